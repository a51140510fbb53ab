"""Tests of the files in a configuration directory: the requested changes, and errors with their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from controlplane.as_code.documents import (
    InvalidDirectory,
    UnreadableFile,
    directory_json_schema,
    read_documents,
)
from controlplane.as_code.wanted import WantedApp, WantedKey, WantedOperator, WantedProxy
from proxy.policy import yaml_document
from tests.fakes.certificates import client_certificate
from tests.pure.json_schema import is_valid

RULESET = (
    "version: 1\nname: {0}\nrules:\n  - id: r1\n    match: {{path: [/v1.0/users]}}\n    verdict: allow\n"
)
CONTOSO = """\
version: 1
organisations:
  - name: contoso
    retention: 1y
    rulesets: [rulesets/staff.yaml]
    apps:
      - {name: payroll, ruleset: staff, owner: hr}
      - {name: 2026, ruleset: staff, enabled: false}
"""
FLEET = """\
version: 1
proxies:
  - {name: edge-2, orgs: [contoso]}
  - {name: edge-1, orgs: [fabrikam, contoso], enabled: true}
operators:
  - {name: ci, roles: {"*": viewer, contoso: editor}}
"""
KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
PRIVATE = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
CERTIFICATE = client_certificate().certificate.public_bytes(Encoding.PEM).decode()
FILES = {"rulesets/staff.yaml": RULESET.format("staff")}


def files(texts: Mapping[str, str]) -> Callable[[str], str]:
    def read(name: str) -> str:
        try:
            return texts[name]
        except KeyError:
            raise UnreadableFile(f"{name}: No such file or directory") from None

    return read


def problems(documents: Mapping[str, str], texts: Mapping[str, str] = FILES) -> tuple[str, ...]:
    with pytest.raises(InvalidDirectory) as caught:
        read_documents(documents, files(texts))
    return caught.value.lines


def test_documents_become_one_request_whatever_their_order() -> None:
    wanted = read_documents({"fleet.yaml": FLEET, "contoso.yaml": CONTOSO}, files(FILES))
    (org,) = wanted.organisations
    assert (org.name, org.retention, org.second_person, org.schemas) == ("contoso", "1y", None, None)
    assert org.apps == (
        WantedApp("2026", "staff", enabled=False),
        WantedApp("payroll", "staff", owner="hr"),
    )
    assert [(each.name, each.yaml, each.file) for each in org.rulesets or ()] == [
        ("staff", FILES["rulesets/staff.yaml"], "rulesets/staff.yaml")
    ]
    assert wanted.proxies == (
        WantedProxy("edge-1", ("contoso", "fabrikam"), True),
        WantedProxy("edge-2", ("contoso",)),
    )
    assert wanted.operators == (WantedOperator("ci", {"*": "viewer", "contoso": "editor"}),)
    assert read_documents({"a.yaml": CONTOSO + FLEET.removeprefix("version: 1\n")}, files(FILES)) == wanted


def test_a_list_that_is_left_out_is_not_managed_and_an_empty_one_is() -> None:
    only = "version: 1\norganisations:\n  - name: contoso\n    apps: []\n"
    wanted = read_documents({"a.yaml": only}, files({}))
    assert (wanted.organisations[0].apps, wanted.organisations[0].rulesets) == ((), None)
    assert (wanted.proxies, wanted.operators) == (None, None)
    assert problems({"a.yaml": only.replace(" []", "")}) == (
        "a.yaml:4:10: organisations[0].apps: the key has no value: write one, or remove the key",
    )


def test_every_error_of_every_file_is_named_by_its_place() -> None:
    first = """\
version: 1
organisations:
  - name: contoso
    retention: 2y
    owner: me
    rulesets: [../x.yaml]
"""
    second = """\
version: 1
organisations:
  - name: fabrikam
    rulesets: [rulesets/bad.yaml, rulesets/none.yaml, rulesets/staff.yaml]
    apps:
      - {name: crm, ruleset: staff}
      - {name: crm, ruleset: staff}
  - name: fabrikam
    rulesets: [rulesets/staff.yaml]
    apps: [{name: crm, ruleset: stuff, shadow: staff}]
"""
    texts = {**FILES, "rulesets/bad.yaml": "version: 1\nname: bad\nrules:\n  - id: r1\n    verdict: maybe\n"}
    lines = problems({"1.yaml": first, "2.yaml": second}, texts)
    assert [line.partition(": ")[0] for line in lines] == [
        "1.yaml:4:16",
        "1.yaml:5:5",
        "1.yaml:6:16",
        "2.yaml:4:35",
        "2.yaml:7:16",
        "2.yaml:8:11",
        "2.yaml:9:16",
        "2.yaml:10:19",
        "2.yaml:10:33",
        "rulesets/bad.yaml:4:5",
        "rulesets/bad.yaml:5:14",
    ]
    said = "\n".join(lines)
    assert "the app crm is already defined at 2.yaml:6:16" in said
    assert "no file under `rulesets` has a ruleset named stuff" in said
    assert "rulesets/none.yaml: No such file or directory" in said
    (misplaced,) = problems({"staff.yaml": FILES["rulesets/staff.yaml"]})
    assert misplaced.startswith("staff.yaml:1:1: document: put rulesets and cases into a subdirectory")
    (every,) = problems({"a.yaml": 'version: 1\nproxies: [{name: "*", orgs: ["*"]}]\n'})
    assert every.startswith("a.yaml:2:30: proxies[0].orgs[0]: * stands for every organisation")


def test_the_schema_for_editors_takes_what_is_taken() -> None:
    schema = directory_json_schema()
    for text in (CONTOSO, FLEET):
        assert is_valid(yaml_document.parse(text).value, schema)
    for wrong in (
        CONTOSO.replace("1y", "2y"),
        CONTOSO.replace("owner", "owners"),
        FLEET.replace("orgs: [contoso]", "orgs: []"),
        FLEET.replace("editor", "owner"),
        FLEET.replace("version: 1", "version: 2"),
    ):
        assert not is_valid(yaml_document.parse(wrong).value, schema), wrong


def test_the_page_shows_documents_and_pipelines_that_can_be_read() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/manage-as-code.md").read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    documents = [each for each in blocks if "$schema=graphward" in each]
    assert len(documents) == 1
    texts = {
        "rulesets/contoso/hr-sync.yaml": RULESET.format("hr-sync"),
        "rulesets/contoso/hr-sync-next.yaml": RULESET.format("hr-sync-next"),
        "credentials/payroll.crt": CERTIFICATE,
        "credentials/payroll-tls.pem": CERTIFICATE,
        "schemas/graph.xml": (Path(__file__).parents[1] / "fakes/graph.csdl").read_text("utf-8"),
    }
    wanted = read_documents({"page.yaml": documents[0]}, files(texts))
    assert [each.name for each in wanted.organisations[0].rulesets or ()] == ["hr-sync", "hr-sync-next"]
    assert [each.root for each in wanted.organisations[0].schemas or ()] == ["/v1.0"]
    for pipeline in blocks:
        if pipeline not in documents:
            assert yaml_document.parse(pipeline).problems == ()


def test_a_federated_credential_is_checked_where_it_stands() -> None:
    text = """\
version: 1
organisations:
  - name: contoso
    apps:
      - name: jobs
        ruleset: staff
        secret: false
        federated:
          - {issuer: https://issuer.example, subject: a}
          - {issuer: https://issuer.example, subject: a, reuse: untilEnd}
          - {issuer: http://issuer.example, subject: b}
          - {issuer: https://issuer.example, subject: c, reuse: twice}
"""
    lines = problems({"1.yaml": text})
    assert [line.partition(": ")[0] for line in lines] == ["1.yaml:11:22", "1.yaml:12:65"]
    assert "must be a URL that begins with https://" in lines[0]
    good = "".join(text.splitlines(keepends=True)[:10])
    assert ["is already defined at 1.yaml:9:" in line for line in problems({"1.yaml": good})] == [True]


def with_app(members: str) -> dict[str, str]:
    app = f"    apps:\n      - name: payroll\n        ruleset: staff\n{members}"
    return {
        "a.yaml": f"version: 1\norganisations:\n  - name: contoso\n    rulesets: [rulesets/staff.yaml]\n{app}"
    }


def test_a_key_is_a_file_or_stands_in_the_document() -> None:
    texts = {**FILES, "payroll.pem": PUBLIC}
    inline = PUBLIC.replace("\n", "\n              ").rstrip()
    ends = "ends: 2027-01-31T01:00:00+01:00"
    for members in (f"{{key: payroll.pem, {ends}}}", f"key: |\n              {inline}\n            {ends}"):
        read = read_documents(with_app(f"        keys:\n          - {members}\n"), files(texts))
        (app,) = read.organisations[0].apps or ()
        assert app.keys == (WantedKey(PUBLIC, "2027-01-31T00:00:00.000Z"),)


def test_what_can_not_prove_an_app_is_refused_with_its_place_and_no_part_of_a_private_key() -> None:
    texts = {**FILES, "private.pem": PRIVATE, "public.pem": PUBLIC, "text.json": "{}"}
    said = problems(
        with_app(
            "        secret: false\n        secret_ends: 2027-01-31T00:00:00Z\n"
            "        keys: [{key: private.pem}, {key: public.pem}, {key: public.pem}, {key: none.pem}]\n"
            "        certificates: [{certificate: public.pem}]\n"
            "        federated: [{issuer: 'https://i', subject: s, keys: text.json}]\n"
        ),
        texts,
    )
    assert [line.split(": ", 2)[2] for line in said] == [
        "`secret: false` gives the app no client secret",
        (
            "private.pem: is a private key. Only the application must have it: give its"
            " public key or its certificate. Nothing of it was stored"
        ),
        "duplicate of a credential above",
        "none.pem: No such file or directory",
        "public.pem: has no certificate in PEM",
        "text.json: must be a JWKS: a JSON object with a list `keys` that is not empty",
    ]
    assert not any(part in line for line in said for part in PRIVATE.split() if len(part) > 20)
    (wrong,) = problems(with_app("        keys: [{key: public.pem, ends: tomorrow}]\n"), texts)
    assert "`until` must be an RFC 3339 time" in wrong
