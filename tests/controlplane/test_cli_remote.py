"""Tests that a command has the same output, errors and exit status with a server and on the store's host."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest

from controlplane.cli import main, remote
from controlplane.cli.context import Cli
from controlplane.cli.failure import CommandFailed
from controlplane.cli.report import LONGEST_SECONDS
from controlplane.operations.event_export import ExportEvents, export
from controlplane.operations.report import DownloadReport, report
from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import RULESET, Plane, ProxyClient, batch, write_settings
from tests.controlplane.processes import ROOT, facts
from tests.controlplane.test_fleet import beat
from tests.fakes.certificates import CertificateAuthority

_DAY = ("--from", "2026-11-20", "--to", "2026-11-21")


async def test_a_command_says_the_same_on_both_ways(commands: Commands, plane: Plane, tmp_path: Path) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "hr")
    await plane.inventory.add_app("payroll", "acme", "hr")
    await plane.proxy("edge / 1", "acme")
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(RULESET.format(name="hr"))
    bad.write_text("version: 1\nname: hr\nrules: [{id: a, verdict: perhaps, when: never}]\n")
    for arguments in (
        ("org", "list"),
        ("org", "list", "--search", "CM", "--sort", "-createdAt", "--limit", "1", "--json"),
        ("app", "list", "--sort", "colour"),
        ("ruleset", "list", "--cursor", "x"),
        ("operator", "list", "--org", "acme", "--search", "ad"),
        ("proxy", "list", "--health", "no heartbeat", "--needs-look", "--json"),
        ("proxies", "counts"),
        ("org", "show", "acme", "--json"),
        ("proxy", "show", "edge / 1", "--json"),
        ("ruleset", "show", "hr"),
        ("ruleset", "show", "hr", "--version", "7"),
        ("ruleset", "apply", str(good), "--org", "acme", "--json"),
        ("ruleset", "apply", str(bad), "--org", "acme"),
        ("ruleset", "rollback", "hr"),
        ("ruleset", "replay", str(good), "--org", "acme", *_DAY, "--json"),
        ("ruleset", "replay", "hr@1", "--org", "acme", "--app", "payroll", *_DAY, "--json"),
        ("ruleset", "replay", str(bad), "--org", "acme"),
        ("ruleset", "replay", str(good), "--org", "acme", "--filter", "verdikt:block"),
        ("ruleset", "suggest", "--app", "payroll", "--org", "acme", *_DAY),
        ("ruleset", "explain", "--event", "e1", "--org", "acme"),
        ("app", "show", "nobody"),
        ("app", "add", "payroll", "--org", "acme", "--ruleset", "hr"),
        ("app", "disable", "payroll", "--org", "acme", "--json"),
        ("org", "add", ""),
        ("operator", "show", "ada", "--json"),
        ("operator", "disable", "ada"),
        ("record", "search", "--operation", "proxy"),
        ("record", "search", "--from", "yesterday"),
    ):
        beside, remote = [await commands.run(where, *arguments) for where in ("store", "server")]
        assert remote == beside, arguments
        assert "Traceback" not in beside[2]


async def test_a_table_is_a_page_and_says_how_to_get_the_next(commands: Commands, plane: Plane) -> None:
    for name in ("acme", "globex", "initech"):
        await plane.org(name)
    _, first, _ = await commands.run("store", "org", "list", "--limit", "2")
    following = first.splitlines()[-1]
    assert "acme" in first
    assert "initech" not in first
    assert following.startswith("1–2 of 3 orgs; for more, repeat the command with --cursor ")
    _, rest, _ = await commands.run("store", "org", "list", "--cursor", following.split()[-1])
    assert "initech" in rest
    assert "acme" not in rest
    assert "more:" not in rest
    whole = await commands.facts("store", "org", "list")
    assert list(whole) == ["orgs"]  # the form that a program without support for pages reads
    assert len(whole["orgs"]) == 3
    page = await commands.facts("server", "org", "list", "--limit", "2")
    assert (len(page["orgs"]), page["next"], page["total"]) == (2, following.split()[-1], 3)


async def test_the_names_of_counts_are_those_that_a_list_takes(commands: Commands, plane: Plane) -> None:
    await plane.org("acme")
    await plane.proxy("edge-1", "acme")
    counted = (await commands.run("store", "proxies", "counts"))[1].splitlines()
    (name,) = [line.rpartition(" ")[0].strip() for line in counted[1:] if line.endswith(" 1")]
    assert len((await commands.facts("store", "proxy", "list", "--health", name))["proxies"]) == 1


async def test_what_was_done_where_is_on_record(commands: Commands) -> None:
    await commands.facts("store", "org", "add", "acme")
    await commands.facts("server", "org", "add", "beta")
    lines = json.loads((await commands.run("server", "record", "search", "--operation", "org", "--json"))[1])
    done = [
        (each["operator"].partition(":")[0], each["address"], each["request"]["name"])
        for each in lines["lines"]
    ]
    assert done == [("ada", "127.0.0.1", "beta"), ("local", "local", "acme")]


async def test_a_server_that_is_none_or_knows_no_such_token_is_told(
    commands: Commands, plane: Plane, tmp_path: Path
) -> None:
    commands.token_file.write_text("gwt_of-nobody")
    status, out, err = await commands.run("server", "org", "list")
    assert (status, out, err) == (1, "", f"{commands.url}: this token is unknown or no longer valid\n")
    commands.url = plane.base_url
    status, out, err = await commands.run("server", "org", "list")
    assert (status, out) == (1, "")
    assert err.startswith(f"{commands.url}: this is not the admin API")
    status, out, err = await commands.run("server", "doctor")
    assert (status, out, err) == (
        2,
        "",
        "this command opens the store: give --config instead of --url\n",
    )


async def test_an_operator_s_day_on_the_command_line(
    commands: Commands, plane: Plane, tmp_path: Path
) -> None:
    await plane.org("acme")
    password = str(tmp_path / "password")
    where = "server"
    added = await commands.facts(
        where, "operator", "add", "alan", "--role", "viewer", "--org", "acme", "--password-file", password
    )
    assert added["password"] is True
    await commands.facts(where, "operator", "add", "sso@contoso.com", "--no-password")
    await commands.facts(where, "operator", "grant", "alan", "--role", "editor", "--org", "*")
    status, out, _ = await commands.run(where, "operator", "show", "alan")
    assert (status, "roles\n  *: editor\n  acme: viewer\n" in out) == (0, True)
    _, table, _ = await commands.run(where, "operator", "list")
    assert [line.split()[0] for line in table.splitlines() if "-7" in line] == [
        "ada",
        "alan",
        "sso@contoso.com",
    ]
    await commands.facts(where, "operator", "revoke", "alan", "--org", "*")
    await commands.facts(where, "operator", "set-password", "alan", "--password-file", password)
    made = await commands.facts(where, "operator", "token", "add", "alan", "ci", "--days", "7")
    assert made["token"].startswith("gwt_")
    _, listed, _ = await commands.run(where, "operator", "token", "list", "alan")
    assert "ci" in listed
    assert made["token"] not in listed
    await commands.facts(where, "operator", "token", "revoke", "alan", "ci")
    assert (await commands.facts(where, "operator", "disable", "alan"))["enabled"] is False
    # this is the last admin of all organisations
    assert (await commands.run(where, "operator", "disable", "ada"))[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("operator", "add", "x"),  # no terminal is there to ask for a password
        ("operator", "add", "x", "--admin", "--role", "viewer"),
        ("operator", "add", "x", "--no-password", "--password-file", "y"),
        ("operator", "add", "x", "--no-password", "--role", "viewer"),
        ("operator", "add", "x", "--password-file", "absent"),
        ("operator", "add", "local:x", "--no-password"),
    ],
)
async def test_what_can_not_be_meant_of_an_operator_is_one_line(
    commands: Commands, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    status, out, err = await commands.run("store", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("arguments", "report"),
    [
        (["--url", "http://console.example", "--token-file", "token"], "https"),
        (["--url", "ftp://console.example", "--token-file", "token"], "http://"),
        (["--url", "https://console.example"], "--token-file"),
        (["--url", "http://[::1", "--token-file", "token"], "is not an address"),
        (["--url", "http://localhost:x", "--token-file", "token"], "is not an address"),
        (
            ["--url", "https://ada:secret@console.example", "--token-file", "token"],
            "user name or a password; the",
        ),
        (
            ["--url", "https://ada:secret/1@console.example", "--token-file", "token"],
            "user name or a password; the",
        ),
        (["--url", "https://console.example", "--token-file", "absent"], "absent"),
        (
            ["--url", "https://console.example", "--config", "x.toml"],
            "--config, --url: give only one of them",
        ),
        (["--url", "https://console.example", "--token-file", "/dev/zero"], "and nothing else"),
    ],
)
def test_a_token_goes_nowhere_that_it_could_be_read(
    arguments: list[str],
    report: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("gwt_token")
    assert main([*arguments, "org", "list"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert report in err
    assert "secret" not in err


async def test_waiting_is_the_same_at_the_server(
    commands: Commands, plane: Plane, proxy: ProxyClient
) -> None:
    ruleset_id = await plane.ruleset("acme", "hr")
    await beat(proxy, rulesets={ruleset_id: 1})
    wait = ("proxies", "wait", "--ruleset", "hr", "--json")
    status, out, err = await commands.run("server", *wait)
    assert (status, err) == (0, "")
    assert json.loads(out)["proxies"][0]["state"] == "enforced"
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 2\n")
    waiting = asyncio.create_task(commands.run("server", *wait, "--version", "2", "--timeout", "60"))
    await asyncio.sleep(0)
    await beat(proxy, rulesets={ruleset_id: 2})
    status, out, err = await waiting
    assert (status, err, json.loads(out)["proxies"][0]["version"]) == (0, "", 2)
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 3\n")
    plane.clock.advance(seconds=7)
    status, out, err = await commands.run("server", *wait, "--timeout", "0")
    assert (status, err) == (
        1,
        "edge-1 does not enforce hr version 3: it enforces version 2, 7 s after that version became active\n",
    )


async def test_that_nobody_was_waited_for_is_told(commands: Commands, plane: Plane) -> None:
    await commands.facts("store", "org", "add", "acme")
    await plane.ruleset("acme", "hr")
    status, _, err = await commands.run("server", "proxies", "wait", "--ruleset", "hr")
    assert (status, err) == (0, "no proxy serves the organisation of hr: there is nothing to wait for\n")


async def test_a_list_for_people_names_health_and_why(
    commands: Commands, plane: Plane, proxy: ProxyClient
) -> None:
    await beat(proxy, checks={"vault": {"status": "degraded", "detail": "slow \x1b[31m"}})
    _, out, _ = await commands.run("server", "proxy", "list")
    assert "vault degraded: slow \\u001b[31m" in out
    assert {"lastSeen", "health", "why", "proxyId"} <= set(out.split())
    _, out, _ = await commands.run("server", "proxies", "show", "edge-1")
    assert "\x1b" not in out
    assert "{" not in out
    assert "\nhealth          degraded; vault degraded: slow \\u001b[31m\n" in out
    assert "\nheartbeat\n" in out
    assert "\n  checks\n    vault: degraded, slow \\u001b[31m\n" in out


async def test_what_people_read_is_no_json(commands: Commands, plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    assert (await proxy.audit(batch("a", org, [1, 4]))).status == 202
    await beat(proxy, lastSeq={org: 6})
    _, out, _ = await commands.run("server", "proxy", "show", "edge-1")
    assert re.search(r"\nevents\n  acme: up to number 4: 2 missing, 2 not delivered yet\n", out)


def test_waiting_shows_on_a_terminal_what_it_waits_for(tmp_path: Path) -> None:
    """The progress line is overwritten in place.

    A proxy's name in the progress line cannot control the terminal.
    """
    config = write_settings(tmp_path)
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    rules = tmp_path / "hr.yaml"
    rules.write_text(RULESET.format(name="hr"))
    facts(config, "ruleset", "apply", str(rules), "--org", "acme")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "controlplane", "--config", str(config)),
            *("proxies", "wait", "--ruleset", "hr", "--all", "--timeout", "6", "--json"),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"},
    )
    os.close(follower)
    report = b""
    with suppress(OSError):  # a terminal reports the end of its writer in this way
        while part := os.read(leader, 65536):
            report += part
    os.close(leader)
    assert process.wait() == 1
    assert b"hr version 1: 0 of 1 proxies enforce it; waiting for edge-1 (silent)" in report
    assert b"edge-1 does not enforce hr version 1: it has never sent a heartbeat" in report


# A server with odd responses


def response(body: bytes, *fields: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    size = b"Content-Length: %d" % (len(body) if length is None else length)
    return b"\r\n".join([b"HTTP/1.1 " + status, size, *fields, b"", body])


async def said_of(tmp_path: Path, responded: bytes, *arguments: str) -> tuple[int, str, str]:
    """Run the command `server` with a server that sends `responded` and closes, and return the result."""
    (tmp_path / "token").write_text("gwt_x")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: ([0-9]+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(responded)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        status, out, err = await Commands(tmp_path, url, tmp_path / "token").run("server", *arguments)
    assert err.count("\n") == 1
    return status, out, err.removeprefix(f"{url}: ").rstrip("\n")


async def test_a_report_may_take_longer_than_any_other_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SECONDS", 0.2)
    (tmp_path / "token").write_text("gwt_x")
    export_gave_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await export_gave_up.wait()
        writer.write(response(b"{}", b"Content-Type: application/json"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        cli = Cli(None, url, tmp_path / "token")
        report_of = DownloadReport("acme", format="json")
        taken: list[bytes] = []
        made = asyncio.create_task(
            asyncio.to_thread(cli.stream, report, report_of, taken.append, LONGEST_SECONDS)
        )
        with pytest.raises(CommandFailed):
            await asyncio.to_thread(cli.stream, export, ExportEvents(), taken.append)
        export_gave_up.set()
        await made
    assert taken == [b"{}"]


@pytest.mark.parametrize(
    (("responded", "report")),
    [
        (response(b"<html>sign in</html>"), "responded with 200, but not with a response of an admin API"),
        (response(b'{"orgs": 5}'), "responded with 200, but not with a response of an admin API"),
        (response(b'{"x": ' * 9999), "responded with 200, but not with a response of an admin API"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "responded with 204, but not with a response of an admin API"),
        (response(b'{"orgs": ', length=500), "the response was truncated: "),
        (response(b"zz\r\n", b"Transfer-Encoding: chunked"), "the response was truncated: "),
        (b"\x15\x03\x01\x00\x02\x02F", "the response is not valid HTTP: "),
        # More header fields than libraries allow by default; the ClickHouse driver raises this process's
        # limit.
        (response(b"", *[b"A: b"] * 20_000), "the response is not valid HTTP: "),
        (b"", "Remote end closed connection without response"),
        (
            response(b"{", status=b"502 Bad Gateway", length=500),
            "responded with 502, but not with a response of an admin API",
        ),
    ],
)
async def test_an_odd_response_is_one_line_and_of_a_change_the_doubt_is_told(
    tmp_path: Path, responded: bytes, report: str
) -> None:
    status, out, err = await said_of(tmp_path, responded, "org", "list")
    assert err.startswith(report), err
    assert (status, out, "the change was made" in err) == (1, "", False)
    status, out, err = await said_of(tmp_path, responded, "org", "add", "acme")
    assert (status, out, err.startswith(report)) == (1, "", True)
    assert err.endswith("; check whether the change was made")


@pytest.mark.parametrize(
    (("responded", "report")),
    [
        (
            response(b"<html>", b"Content-Type: text/html"),
            "responded with 200, but not with a response of an admin API",
        ),
        (response(b"{}\n", b"Content-Type: application/x-ndjson", length=9), "the response was truncated: "),
    ],
)
async def test_events_out_of_an_odd_response_are_not_taken_for_all(
    tmp_path: Path, responded: bytes, report: str
) -> None:
    status, _, err = await said_of(tmp_path, responded, "audit", "export")
    assert (status, err.startswith(report)) == (1, True)


async def test_what_never_reached_a_server_was_not_done(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("gwt_x")
    commands = Commands(tmp_path, "http://127.0.0.1:1", tmp_path / "token")
    status, _, err = await commands.run("server", "org", "add", "acme")
    assert (status, "the change was made" in err) == (1, False)


async def test_a_private_authority_that_is_not_known_is_told_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("gwt_x")
    tls = CertificateAuthority(tmp_path).server().server_context()
    async with await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        status, _, err = await Commands(tmp_path, url, tmp_path / "token").run("server", "org", "list")
    assert (status, "set SSL_CERT_FILE to the file of its authority" in err) == (1, True)
