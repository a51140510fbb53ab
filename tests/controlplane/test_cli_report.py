"""Tests of `audit report`, `audit report-key` and `audit verify-report`, run as an auditor would run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.cli.report import folded
from tests.controlplane.plane import FakeClock, batch, started
from tests.controlplane.processes import cli, facts

pytestmark = pytest.mark.process


@pytest.fixture
async def config(tmp_path: Path) -> Path:
    """Path of the settings of a control plane whose organisation has audit events 1, 2 and 4.

    The audit event 3 of the same proxy never arrived.
    """
    async with started(tmp_path, FakeClock()) as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge", "acme")
        for number in (1, 2, 4):
            assert (await proxy.audit(batch(f"b{number}", org, [number]))).status == 202
    return tmp_path / "controlplane.toml"


def test_a_line_of_a_report_is_folded_for_a_terminal() -> None:
    line = "  - App: hr-portal; Access: read; Asked: GET /v1.0/me/messages/{id} (45)"
    assert folded(line, 40).split("\n") == [
        "  - App: hr-portal; Access: read; Asked:",
        "    GET /v1.0/me/messages/{id} (45)",
    ]
    assert (
        folded("  GET /v1.0/users/{id}/mailFolders/{id}", 20) == "  GET\n  /v1.0/users/{id}/mailFolders/{id}"
    )
    assert folded("", 40) == ""


def test_a_report_is_made_and_checked_without_a_store(config: Path, tmp_path: Path) -> None:
    page = tmp_path / "mail.html"
    period = ("--from", "2026-11-21", "--to", "2026-11-21T11:00:00Z")
    made = cli(config, "audit", "report", "--org", "acme", *period, "--output", str(page))
    assert (made.returncode, made.stderr) == (1, "")  # the report is incomplete
    first, headline, *_ = made.stdout.splitlines()
    assert first.startswith("Incomplete between 2026-11-21 00:00:00 UTC and 2026-11-21 11:00:00 UTC: ")
    shown = "The stored trail shows no application that read or changed mail of acme"
    assert headline.startswith(shown)
    assert "1 event of edge never arrived: number 3." in made.stdout
    key = tmp_path / "graphward.key"
    key.write_text(cli(config, "audit", "report-key").stdout)
    elsewhere = tmp_path / "nowhere.toml"  # this file is never opened
    found = cli(elsewhere, "audit", "verify-report", str(page), "--key", str(key))
    assert (found.returncode, found.stderr) == (0, "")
    assert "valid: this page is unchanged since it was signed with" in found.stdout
    strange = cli(elsewhere, "audit", "verify-report", str(page), "--key", str(key), "--data", str(key))
    assert (strange.returncode, strange.stderr) == (
        2,
        f"--data: {page} is a report, and no exported file belongs to a report\n",
    )
    assert headline in found.stdout
    unknown = cli(elsewhere, "audit", "verify-report", str(page))
    assert unknown.returncode == 1
    assert "not verified" in unknown.stderr
    assert key.read_text().strip() in unknown.stderr
    sent = tmp_path / "sent.html"
    sent.write_bytes(page.read_bytes().replace(b"\n", b"\r\n"))
    found = cli(elsewhere, "audit", "verify-report", str(sent), "--key", str(key))
    assert (found.returncode, found.stdout) == (1, "")
    assert (
        f"{sent}: the report or manifest is not valid: its line ends were changed from LF to CRLF"
        in found.stderr
    )
    page.write_text(page.read_text().replace("never arrived", "all arrived", 1))
    changed = cli(elsewhere, "audit", "verify-report", str(page), "--key", key.read_text().strip())
    assert changed.returncode == 1
    assert (
        "the report or manifest is not valid: the HTML page differs from the page that was signed; line"
        in changed.stderr
    )


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_an_export_names_its_filter_its_time_and_the_head_of_the_chain(
    config: Path, tmp_path: Path, form: str
) -> None:
    data, manifest = tmp_path / f"events.{form}", tmp_path / "manifest.json"
    files = ("--output", str(data), "--manifest", str(manifest))
    asked = ("audit", "export", "path:/v1.0/users", "--org", "acme", "--format", form)
    assert cli(config, *asked, *files).returncode == 0
    assert data.read_bytes() == cli(config, *asked).stdout.encode()  # the same as without a manifest
    signed = json.loads(manifest.read_text())["signed"]
    assert (signed["filter"], signed["org"], signed["events"]) == ("path:/v1.0/users", "acme", 3)
    assert signed["heads"][0]["link"] == facts(config, "audit", "head")["heads"][0]["link"]
    key = ("--key", signed["key"])
    found = cli(config, "audit", "verify-report", str(manifest), *key, "--data", str(data))
    assert (found.returncode, found.stderr) == (0, "")
    assert f"3 events of acme, {signed['oldest']} to " in found.stdout
    assert "Note: 1 event number of acme never arrived" in found.stdout
    whole = tmp_path / "whole"  # the form that the admin API and the console return
    whole.write_bytes(data.read_bytes() + manifest.read_bytes())
    found = cli(config, "audit", "verify-report", str(whole), *key)
    assert (found.returncode, found.stderr) == (0, "")
    assert f"{whole}: is the exported file" in found.stdout
    whole.write_bytes(whole.read_bytes().replace(b"GET", b"PUT", 1))
    refused = cli(config, "audit", "verify-report", str(whole), *key).stderr
    assert "the exported data differs from its signed manifest" in refused
    data.write_bytes(data.read_bytes().replace(b"GET", b"PUT", 1))
    changed = cli(config, "audit", "verify-report", str(manifest), *key, "--data", str(data))
    assert changed.returncode == 1
    differs = "the exported data differs from its signed manifest: the data's SHA-256 is"
    assert differs in changed.stderr  # the length is right


def test_json_is_the_signed_line_and_a_class_is_one_of_six(config: Path) -> None:
    done = cli(config, "audit", "report", "--org", "acme", "--class", "files", "--class", "chats", "--json")
    signed = json.loads(done.stdout)
    assert signed["signed"]["report"]["classes"] == ["files", "chats"]
    assert signed["signed"]["key"] == facts(config, "audit", "report-key")["key"]
    assert len(signed["signature"]) == 128
    wrong = cli(config, "audit", "report", "--org", "acme", "--class", "male")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "--class: 'male' is not one of mail, files, calendars, chats, directory, credentials\n",
    )
