"""Tests of `model fetch`, `list` and `diff`, and of rulesets that are published with a schema."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from pathlib import Path

import pytest

from controlplane.cli import main, metadata_source
from controlplane.cli.failure import CommandFailed
from controlplane.cli.metadata_source import read_source
from controlplane.store.interface import LogQuery
from proxy.outbound.egress import DIRECT
from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import Plane, ProxyClient
from tests.controlplane.test_schemas import ONE
from tests.fakes.graph import SCHEMA, FakeGraph
from tests.fakes.server import Response
from tests.pure.model_schema import SMALL, document

NOTHING = {"added": 0, "removed": 0, "changed": 0, "firstAdded": [], "firstRemoved": [], "firstChanged": []}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.csdl"
    path.write_bytes(SMALL)
    return path


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Return a file with a changed form of the small schema.

    The changed schema differs in a relation, a property, a type and an operation.
    """
    text = SMALL.decode()
    for old, new in (
        ('Name="messages" Type="Collection(mail.message)"', 'Name="mails" Type="Collection(mail.message)"'),
        ('<Function Name="latest"><ReturnType Type="mail.message"/></Function>', '<EntityType Name="note"/>'),
        ('Name="mobilePhone" Type="Edm.String"', 'Name="mobilePhone" Type="mail.mailboxSettings"'),
    ):
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "changed.csdl"
    path.write_text(text)
    return path


RULES = "version: 1\nname: hr\nrules:\n  - {id: no-mail, match: {resource: [message]}, verdict: block}\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Return a ruleset with a rule that names a resource of the schema."""
    path = tmp_path / "hr.yaml"
    path.write_text(RULES)
    return path


def failure(source: str, root: str | None = None) -> tuple[int, str]:
    with pytest.raises(CommandFailed) as failed:
        read_source(source, root, DIRECT)
    (line,) = failed.value.lines
    return failed.value.status, line


# Commands


async def test_a_schema_is_fetched_listed_and_compared(
    commands: Commands,
    plane: Plane,
    small: Path,
    changed: Path,
) -> None:
    org = await plane.org("acme")
    for where in ("store", "server"):
        options = ("--org", "acme", "--root", "/v1.0")
        fetched = await commands.facts(where, "model", "fetch", str(small), *options)
        assert (fetched["root"], fetched["digest"]) == ("/v1.0", ONE.digest)
        assert fetched["bytes"] == len(ONE.packed)
        assert (fetched["types"], fetched["relations"], fetched["operations"]) == (13, 14, 10)
        assert fetched["orgs"] == [
            {
                "orgId": org,
                "org": "acme",
                "before": None if where == "store" else ONE.digest,
                "changed": where == "store",
            }
        ]
        (listed,) = (await commands.facts(where, "model", "list", "--org", "acme"))["models"]
        assert (listed["root"], listed["digest"], listed["current"]) == ("/v1.0", ONE.digest, True)
        assert (listed["source"], listed["rulesets"]) == (str(small), [])
        found = await commands.facts(where, "model", "diff", str(changed), *options)
        assert (found["old"], found["different"]) == (ONE.digest, True)
        assert found["types"] == {**NOTHING, "added": 1, "firstAdded": ["sample.mail.note"]}
        relations, properties = found["relations"], found["properties"]
        assert relations["firstAdded"] == [f"sample.mail.{each}.mails" for each in ("mailFolder", "user")]
        assert relations["firstRemoved"] == [
            f"sample.mail.{each}.messages" for each in ("mailFolder", "user")
        ]
        assert properties == {**NOTHING, "changed": 1, "firstChanged": ["sample.mail.user.mobilePhone"]}
        assert found["operations"] == {**NOTHING, "removed": 1, "firstRemoved": ["latest"]}
        same = await commands.facts(where, "model", "diff", str(small), "--org", "acme", "--root", "/V1.0/")
        assert (same["different"], same["types"]) == (False, NOTHING)


async def test_open_routes_are_listed_by_the_stored_schema(
    commands: Commands, plane: Plane, small: Path, rules: Path
) -> None:
    await plane.org("acme")
    await commands.facts("store", "model", "fetch", str(small), "--org", "acme", "--root", "/v1.0")
    for where in ("store", "server"):
        found = await commands.facts(where, "ruleset", "routes", str(rules), "--org", "acme")
        assert found["schema"] == ONE.digest
        (rule,) = found["rules"]
        assert (rule["rule"], rule["things"], rule["open"]) == ("no-mail", ["message"], [])


async def test_a_ruleset_is_checked_by_the_stored_schema(
    commands: Commands, plane: Plane, small: Path, rules: Path
) -> None:
    await plane.org("acme")
    await commands.facts("store", "model", "fetch", str(small), "--org", "acme", "--root", "/v1.0")
    wrong = rules.with_name("wrong.yaml")
    wrong.write_text(RULES.replace("message", "massage"))
    for where in ("store", "server"):
        found = await commands.facts(where, "ruleset", "check", str(rules), "--org", "acme")
        assert found == {"name": "hr", "rules": 1, "warnings": []}
        status, out, err = await commands.run(where, "ruleset", "check", str(wrong), "--org", "acme")
        message = "the schema has no type `massage`, did you mean `message`?"
        assert (status, out) == (2, "")
        assert err == f"{wrong}:4:38: rules[0].match.resource[0]: {message}\n"
    asked = ("ruleset", "check", str(rules), "--schema", str(small), "--root", "v1")
    status, _, err = await commands.run("store", *asked)
    assert (status, err.startswith("--root: ")) == (2, True)
    status, out, _ = await commands.run("store", "ruleset", "check", str(rules))
    assert (status, "not looked up; give --schema FILE or --org ORG" in out) == (0, True)


async def test_a_fetch_for_all_organisations(commands: Commands, plane: Plane, small: Path) -> None:
    for name in ("acme", "globex"):
        await plane.org(name)
    fetched = await commands.facts("server", "model", "fetch", str(small), "--all", "--root", "/v1.0")
    assert [each["org"] for each in fetched["orgs"]] == ["acme", "globex"]
    (line,) = (await plane.store.operator_log(LogQuery(1, operation="model.fetch")))[:1]
    assert line.outcome == "done"
    assert len(line.org_ids) == 2
    assert len(line.request) < 1000  # the request has only the document's digest


async def test_people_read_what_came_of_it(
    commands: Commands,
    plane: Plane,
    small: Path,
    changed: Path,
) -> None:
    await plane.org("acme")
    options = ("--org", "acme", "--root", "/v1.0")
    status, out, err = await commands.run("store", "model", "fetch", str(small), *options)
    assert (status, err) == (0, "")
    assert "acme: this is the first schema of /v1.0" in out
    assert (
        "already has this schema" in (await commands.run("store", "model", "fetch", str(small), *options))[1]
    )
    out = (await commands.run("store", "model", "fetch", str(changed), *options))[1]
    assert f"acme: this schema replaces {ONE.digest[:12]} for rulesets that are applied from now on" in out
    out = (await commands.run("store", "model", "diff", "--org", "acme"))[1]
    assert out.splitlines()[1:] == [
        "types: 1 new, 0 removed, 0 changed",
        "  + sample.mail.note",
        "relations: 2 new, 2 removed, 0 changed",
        "  + sample.mail.mailFolder.mails",
        "  + sample.mail.user.mails",
        "  - sample.mail.mailFolder.messages",
        "  - sample.mail.user.messages",
        "properties: 0 new, 0 removed, 1 changed",
        "  ~ sample.mail.user.mobilePhone",
        "operations: 0 new, 1 removed, 0 changed",
        "  - latest",
        "active rulesets that use the old schema: -",
    ]
    out = (await commands.run("store", "model", "list"))[1]
    assert ONE.digest[:12] in out
    assert ONE.digest not in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "malformed"),
        (b"<html><body>sign in</body></html>", "line 1"),
        (SMALL[:-40], "malformed"),
        (b"<a>" * 100_000, "line 1"),
        (
            document('<EntityType Name="a" BaseType="mail.b"/><EntityType Name="b" BaseType="mail.a"/>'),
            "form a cycle",
        ),
        (document('<EntityType Name="thing"/>'), "no entity set and no singleton"),
        (document("&x;", before='<!DOCTYPE x [<!ENTITY x "&y;"><!ENTITY y "&x;">]>'), "line 1"),
        ("schöner".encode("latin-1"), "UTF-8"),
    ],
)
async def test_a_document_that_is_no_schema_is_refused_and_nothing_is_stored(
    commands: Commands,
    plane: Plane,
    tmp_path: Path,
    content: bytes,
    said: str,
) -> None:
    await plane.org("acme")
    path = tmp_path / "bad.csdl"
    path.write_bytes(content)
    for where in ("store", "server"):
        status, out, err = await commands.run(
            where, "model", "fetch", str(path), "--org", "acme", "--root", "/v1.0"
        )
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith(f"{path}: ")
        assert said in line
    assert await plane.store.org_schemas(None) == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ("fetch", "{small}", "--org", "acme"),
            2,
            "--root: required for a file, which does not contain the root path",
        ),
        (("fetch", "{small}", "--org", "acme", "--root", "v1.0"), 2, "--root: 'v1.0' is not the root path"),
        (("fetch", "{small}", "--root", "/v1.0"), 2, "--org, --all: give exactly one of them"),
        (("fetch", "{small}", "--root", "/v1.0", "--all", "--org", "acme"), 2, "--org, --all: give exactly"),
        (("fetch", "{small}", "--org", "nobody", "--root", "/v1.0"), 1, "there is no organisation nobody"),
        (("fetch", "missing.csdl", "--org", "acme", "--root", "/v1.0"), 2, "missing.csdl: No such file"),
        (("diff", "--org", "acme"), 1, "organisation acme has no schema"),
        (
            ("diff", "--org", "acme", "--root", "/beta"),
            1,
            "organisation acme has no schema for the root path /beta",
        ),
    ],
)
async def test_a_wrong_command_says_what_to_do(
    commands: Commands,
    plane: Plane,
    small: Path,
    arguments: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    await plane.org("acme")
    given = [each.format(small=small) for each in arguments]
    for where in ("store", "server"):
        ended, _, err = await commands.run(where, "model", *given)
        assert ended == status
        assert said in err


async def test_a_root_is_named_if_there_are_several(commands: Commands, plane: Plane, small: Path) -> None:
    await plane.org("acme")
    for root in ("/beta", "/v1.0"):
        await commands.facts("store", "model", "fetch", str(small), "--org", "acme", "--root", root)
    status, _, err = await commands.run("store", "model", "diff", "--org", "acme")
    assert (status, err) == (
        2,
        "--root: organisation acme has schemas for several root paths: name one of /beta, /v1.0\n",
    )
    status, _, err = await commands.run("store", "model", "diff", "--org", "acme", "--root", "/beta")
    assert (status, err.startswith("organisation acme has only one schema for the root path /beta: ")) == (
        1,
        True,
    )


# Addresses


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("address")
async def test_a_schema_is_read_from_its_service() -> None:
    async with FakeGraph(accepts=lambda token: False) as graph:
        for path in ("/v1.0/$metadata", "/v1.0/%24metadata", "/v1.0/", "/v1.0"):
            read = await asyncio.to_thread(read_source, graph.base_url + path, None, DIRECT)
            assert (read.root, read.document.encode()) == ("/v1.0", SCHEMA)
        read = await asyncio.to_thread(read_source, f"{graph.base_url}/v1.0", "/other", DIRECT)
        assert read.root == "/other"


@pytest.mark.usefixtures("address")
@pytest.mark.parametrize(
    ("response", "said"),
    [
        (Response(401), "responded with 401: save the document to a file"),
        (Response(404), "responded with 404"),
        (
            Response(302, (("Location", "http://127.0.0.1:9/v1.0/$metadata"),)),
            "redirects to http://127.0.0.1:9",
        ),
        (Response(302, (("Location", "file:///etc/passwd"),)), "responded with 302"),
        (Response(200, (("Content-Type", "application/xml"),), b"\xff\xfe<\0"), "UTF-16"),
    ],
)
async def test_a_service_that_does_not_show_its_schema(response: Response, said: str) -> None:
    async with FakeGraph() as graph:
        graph.first_responses["/v1.0/$metadata"] = deque([response])
        _, line = await asyncio.to_thread(failure, f"{graph.base_url}/v1.0/$metadata")
        assert said in line


@pytest.mark.usefixtures("address")
async def test_a_redirect_within_the_host_is_followed() -> None:
    async with FakeGraph() as graph:
        moved = Response(302, (("Location", f"{graph.base_url}/beta/$metadata"),))
        graph.first_responses["/v1.0/$metadata"] = deque([moved])
        read = await asyncio.to_thread(read_source, f"{graph.base_url}/v1.0/$metadata", None, DIRECT)
        assert (read.root, read.document.encode()) == ("/v1.0", SCHEMA)


@pytest.mark.usefixtures("address")
async def test_a_document_without_end_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata_source, "MAX_DOCUMENT", 1000)
    path = tmp_path / "large.csdl"
    path.write_bytes(b" " * 1001)
    assert failure(str(path), "/v1.0") == (2, f"{path}: {metadata_source._TOO_LARGE}")
    async with FakeGraph() as graph:
        status, line = await asyncio.to_thread(failure, f"{graph.base_url}/v1.0/$metadata")
    assert (status, "give the $metadata of a single service" in line) == (1, True)


@pytest.mark.usefixtures("address")
async def test_a_document_that_comes_too_slowly_is_left() -> None:
    times = iter([0.0, 61.0])

    def read(url: str) -> str:
        with pytest.raises(CommandFailed) as failed:
            read_source(url, None, DIRECT, lambda: next(times))
        return str(failed.value)

    async with FakeGraph() as graph:
        assert "took longer than 60 s" in await asyncio.to_thread(read, f"{graph.base_url}/v1.0/$metadata")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://graph.test/v1.0/$metadata", "use https"),
        ("https://ada:secret@graph.test/v1.0/$metadata", "must not contain a user name or a password"),
        ("https://ada:secret/1@graph.test/v1.0/$metadata", "must not contain a user name or a password"),
        ("https://graph.test/v1.0/$metadata?x=1", "without query"),
        ("https:///v1.0/$metadata", "must be the address"),
        ("https://graph.test:x/$metadata", "is not an address"),
    ],
)
def test_an_address_that_is_not_read(url: str, said: str) -> None:
    status, line = failure(url)
    assert status == 2
    assert said in line
    assert "secret" not in line


# Rulesets


async def test_a_ruleset_that_needs_a_schema_is_refused_without_one(
    commands: Commands,
    plane: Plane,
    small: Path,
    rules: Path,
) -> None:
    await plane.org("acme")
    for where in ("store", "server"):
        status, out, err = await commands.run(where, "ruleset", "apply", str(rules), "--org", "acme")
        assert (status, out) == (1, "")
        assert "organisation acme has no schema: store a schema with `model fetch URL --org acme`" in err
    assert await plane.store.rulesets(None) == []
    await commands.facts("store", "model", "fetch", str(small), "--org", "acme", "--root", "/v1.0")
    applied = await commands.facts("server", "ruleset", "apply", str(rules), "--org", "acme")
    assert applied["version"] == 1
    (named,) = applied["schemas"]
    assert (named["root"], named["digest"], named["source"]) == ("/v1.0", ONE.digest, str(small))
    assert (await commands.facts("server", "ruleset", "show", "hr"))["schemas"] == [named]


async def test_a_ruleset_with_an_unknown_name_is_refused_and_the_version_in_force_stays(
    commands: Commands, plane: Plane, tmp_path: Path, small: Path, rules: Path
) -> None:
    await plane.org("acme")
    options = ("--org", "acme", "--root", "/v1.0")
    await commands.facts("store", "model", "fetch", str(small), *options)
    await commands.facts("store", "ruleset", "apply", str(rules), "--org", "acme")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(RULES.replace("[message]", "[message, masage]"))
    for where in ("store", "server"):
        status, _, err = await commands.run(where, "ruleset", "apply", str(wrong), "--org", "acme")
        assert status == 2
        said = "the schema has no type `masage`, did you mean `message`?"
        assert err == f"{wrong}:4:47: rules[0].match.resource[1]: {said}\n"
    # A name that a new schema lacks is refused too.
    other = tmp_path / "other.csdl"
    other.write_bytes(SMALL.replace(b'"message"', b'"letter"').replace(b"mail.message", b"mail.letter"))
    await commands.facts("store", "model", "fetch", str(other), *options)
    status, _, err = await commands.run("store", "ruleset", "apply", str(rules), "--org", "acme")
    assert (status, "no type `message`" in err) == (2, True)
    assert (await commands.facts("store", "ruleset", "show", "hr"))["version"] == 1


async def test_a_new_schema_takes_effect_when_the_text_is_applied_again(
    commands: Commands,
    plane: Plane,
    small: Path,
    changed: Path,
    rules: Path,
    proxy: ProxyClient,
) -> None:
    options = ("--org", "acme", "--root", "/v1.0")
    await commands.facts("store", "model", "fetch", str(small), *options)
    await commands.facts("store", "ruleset", "apply", str(rules), "--org", "acme")
    before = await proxy.sync()
    new = (await commands.facts("store", "model", "fetch", str(changed), *options))["digest"]
    assert (await proxy.sync(before.headers["ETag"])).status == 304
    found = await commands.facts("store", "model", "diff", "--org", "acme")
    assert (found["old"], found["new"], found["rulesets"]) == (ONE.digest, new, ["hr@1"])
    status, out, err = await commands.run("store", "ruleset", "apply", str(rules), "--org", "acme", "--json")
    assert (status, err) == (0, f"{rules}: this text is already active; the new version uses a new schema\n")
    applied = json.loads(out)
    assert (applied["version"], applied["changed"], applied["newSchemasAlone"]) == (2, True, True)
    listed = (await commands.facts("store", "model", "list"))["models"]
    assert [(each["digest"], each["rulesets"]) for each in listed] == [
        (new, ["hr@2"]),
        (ONE.digest, ["hr@1"]),
    ]
    assert (await proxy.sync()).json["rulesets"][0]["schemas"] == {"/v1.0": new}
    again = await commands.facts("store", "ruleset", "apply", str(rules), "--org", "acme")
    assert (again["version"], again["changed"]) == (2, False)


def test_the_command_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--help"]) == 0
    assert {"fetch", "list", "diff"} <= set(capsys.readouterr().out.split())
