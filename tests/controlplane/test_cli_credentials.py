"""Tests of `app federated`, `key`, `certificate` and `credential` as an operator runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from controlplane.cli import main
from tests.controlplane.plane import RULESET, write_settings
from tests.fakes.certificates import client_certificate


class Commands:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = str(write_settings(folder))
        self._capsys = capsys

    def text(self, *words: str, status: int = 0) -> str:
        self._capsys.readouterr()
        assert main(["--config", self._config, *words]) == status
        said = self._capsys.readouterr()
        return said.err if status else said.out

    def facts(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    commands = Commands(tmp_path, capsys)
    commands.text("org", "add", "acme")
    (tmp_path / "hr.yaml").write_text(RULESET.format(name="hr"))
    commands.text("ruleset", "apply", str(tmp_path / "hr.yaml"), "--org", "acme")
    return commands


def test_an_app_without_a_secret_gets_credentials_of_every_kind(run: Commands, tmp_path: Path) -> None:
    added = run.facts("app", "add", "jobs", "--org", "acme", "--ruleset", "hr", "--no-secret")
    assert set(added) == {"appId", "clientId"}
    assert "credential end" not in run.text("app", "list", "--wide")
    assert "app federated add" in run.text(
        *("app", "add", "more", "--org", "acme", "--ruleset", "hr", "--no-secret")
    )
    github = ("app", "federated", "add", "jobs", "--github", "contoso/api")
    said = run.text(*github, "--environment", "a:b")
    assert "https://token.actions.githubusercontent.com" in said
    assert "repo:contoso/api:environment:a%3Ab" in said
    assert run.facts(*github, "--branch", "main")["credential"]["reuse"] == "once"
    cluster = ("--kubernetes", "payroll/sync", "--issuer", "https://oidc.example/cluster")
    held = run.facts("app", "federated", "add", "jobs", *cluster, "--expires", "10d")["credential"]
    assert "enabled, credential ends" in run.text("app", "list", "--wide")
    assert f'ClientAssertionCredential("adfs", "{added["clientId"]}"' in said
    assert (held["subject"], held["reuse"]) == ("system:serviceaccount:payroll:sync", "untilEnd")
    assert held["state"] == "soon"
    once = run.facts("app", "federated", "add", "jobs", *cluster, "--audience", "x", "--reuse", "once")
    assert once["credential"]["reuse"] == "once"

    made = client_certificate().certificate
    (tmp_path / "app.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (tmp_path / "app.der").write_bytes(made.public_bytes(Encoding.DER))
    named = run.text("app", "key", "add", "more", str(tmp_path / "app.pem"))
    assert "AZURE_CLIENT_CERTIFICATE_PATH=" in named
    assert "AZURE_TENANT_ID=adfs" in named
    bound = run.text("app", "certificate", "add", "more", str(tmp_path / "app.pem"))
    assert "curl -sS --cert app.pem" in bound
    assert "AZURE_" not in bound
    key = run.facts("app", "key", "add", "jobs", str(tmp_path / "app.pem"))["credential"]
    by_der = run.facts("app", "certificate", "add", "jobs", str(tmp_path / "app.der"))["credential"]
    assert (key["key"], key["thumbprint"]) == ("RSA 2048", by_der["thumbprint"])

    (soon,) = (
        each for each in run.facts("app", "credential", "ending")["credentials"] if each["id"] == held["id"]
    )
    assert (soon["app"], soon["state"]) == ("jobs", "soon")
    assert "acme" in run.text("app", "credential", "ending", "--org", "acme", "--wide")
    ended = run.facts("app", "credential", "end", "jobs", key["id"], "--expires", "1d")
    assert ended["credential"]["endsAt"] < key["endsAt"]
    assert run.facts("app", "credential", "remove", "jobs", by_der["id"])["id"] == by_der["id"]
    listed = run.facts("app", "credential", "list", "jobs")["credentials"]
    assert [each["kind"] for each in listed] == ["federated"] * 4 + ["publicKey"]
    table = run.text("app", "credential", "list", "jobs", "--wide")
    assert "(soon)" in table
    assert "never" in table
    assert "none (`app credential list` shows the other credentials)" in run.text("app", "show", "jobs")


def test_what_can_not_be_meant_is_refused_before_anything_is_sent(run: Commands, tmp_path: Path) -> None:
    run.text("app", "add", "jobs", "--org", "acme", "--ruleset", "hr")
    add = ("app", "federated", "add", "jobs")
    for words, what in (
        ((), "--issuer URL and --subject TEXT"),
        (("--github", "contoso/api"), "--environment NAME or --branch NAME"),
        (("--github", "contoso", "--branch", "main"), "must be OWNER/REPO"),
        (("--branch", "main"), "--environment, --branch: need --github"),
        (("--kubernetes", "a/b"), "also give --issuer URL of the cluster"),
        (("--github", "a/b", "--kubernetes", "a/b"), "give only one of"),
        (("--issuer", "http://x", "--subject", "y"), "--issuer: must be a URL that begins with https://"),
        (("--issuer", "https://x", "--subject", "y", "--expires", "soon"), "--expires: must be"),
    ):
        assert what in run.text(*add, *words, status=2)
    secret = ec.generate_private_key(ec.SECP256R1())
    text = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "app.key").write_bytes(text)
    for kind in ("key", "certificate"):
        said = run.text("app", kind, "add", "jobs", str(tmp_path / "app.key"), status=2)
        assert said.startswith(f"{tmp_path / 'app.key'}: is a private key")
    assert "No such file" in run.text("app", "key", "add", "jobs", str(tmp_path / "none"), status=2)
    assert "has no credential" in run.text("app", "credential", "remove", "jobs", "crd-0", status=1)
    listed = run.facts("app", "credential", "list", "jobs")["credentials"]
    assert [each["kind"] for each in listed] == ["secret"]
