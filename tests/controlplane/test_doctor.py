"""Tests of the control plane's `doctor`: each real fault is found and reported with its remedy."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.clock import SystemClock
from tests.controlplane.plane import HEARTBEAT, ProxyClient, batch, write_settings
from tests.controlplane.processes import ROOT, cli, facts, server
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.clickhouse import HOW_TO_GET, IS_HERE, clickhouse
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.ports import free_port, this_program

pytestmark = pytest.mark.process


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Create a control plane with one proxy that has not connected yet."""
    config = write_settings(tmp_path)
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    return config


def store(config: Path) -> Path:
    return config.parent / "var" / "controlplane.db"


def change(config: Path, old: str, new: str) -> None:
    config.write_text(config.read_text().replace(old, new, 1))


def findings(config: Path, **environment: str) -> dict[str, dict[str, str]]:
    done = cli(config, "doctor", "--json", **environment)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    failed = any(each["status"] == "fail" for each in report["findings"])
    assert (done.returncode, report["status"] == "fail") == (int(failed), failed)
    for each in report["findings"]:
        assert bool(each["fix"]) is (each["status"] != "ok"), each
        assert "\n" not in each["found"] + each["fix"]
    return {each["check"]: each for each in report["findings"]}


def failures(config: Path, **environment: str) -> dict[str, dict[str, str]]:
    found = findings(config, **environment)
    return {name: each for name, each in found.items() if each["status"] == "fail"}


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each.relative_to(folder)): (each.stat().st_mode, each.read_bytes() if each.is_file() else b"")
        for each in folder.rglob("*")
    }


def test_before_the_first_start_nothing_is_made(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    found = findings(config)
    assert {each["status"] for each in found.values()} == {"ok"}
    assert [each.name for each in tmp_path.iterdir()] == [config.name]


def test_a_sound_store_is_found_so_and_nothing_is_changed(config: Path) -> None:
    before = everything(config.parent)
    found = findings(config)
    assert {name for name, each in found.items() if each["status"] != "ok"} == {"proxies"}
    assert found["proxies"]["found"] == "edge-1: no heartbeat"
    assert "quick_check" in found["store: integrity"]["found"]
    assert everything(config.parent) == before
    lines = cli(config, "doctor").stdout.splitlines()
    assert lines[-1].endswith("1 warning, 0 failed")
    assert lines[-2].strip().startswith("-> `proxy show edge-1`")


async def test_beside_the_server_it_knows_whose_ports_are_open(config: Path) -> None:
    added = facts(config, "proxy", "rotate-secret", "edge-1")
    port = free_port()
    change(config, "127.0.0.1:0", f"127.0.0.1:{port}")
    async with server(config) as running, aiohttp.ClientSession() as session:
        proxy = ProxyClient(session, running.address, SystemClock(), "", added["apiKey"], added["hmacSecret"])
        assert (await proxy.send(HEARTBEAT, b'{"checks": {}}')).status == 200
        found = findings(config)
    assert found["ControlPlane.Listen"]["found"] == f"the running server listens on 127.0.0.1:{port}"
    assert found["proxies"]["found"] == "the only proxy is healthy"
    assert found["clock"]["found"] == "agrees with the clock of 1 proxy"
    assert found["search index"]["found"] == "0 events behind the store"
    name = f"host {socket.gethostname()}, process {running.process.pid}"
    assert found["control planes"]["found"] == f"1 runs: {name} (leads)"


async def test_proxies_whose_clocks_agree_with_each_other_tell_of_this_one(config: Path) -> None:
    async with server(config) as running, aiohttp.ClientSession() as session:
        for name in ("edge-1", "edge-2", "edge-3"):
            command = ("rotate-secret", name) if name == "edge-1" else ("add", name, "--org", "acme")
            added = facts(config, "proxy", *command)
            proxy = ProxyClient(
                session, running.address, SystemClock(), "", added["apiKey"], added["hmacSecret"]
            )
            timestamp = str(int(time.time()) + 90)
            assert (await proxy.send(HEARTBEAT, b"{}", timestamp=timestamp)).status == 200
        found = findings(config)
    assert found["clock"]["status"] == "warn"
    assert re.fullmatch(r"the median clock of 3 proxies is (8\d|90) s ahead", found["clock"]["found"])
    assert "timedatectl" in found["clock"]["fix"]


def test_a_damaged_store(config: Path) -> None:
    path = store(config)
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(os.urandom(path.stat().st_size - 3 * 4096))
    found = failures(config)
    assert "store: integrity" in found or "store: schema" in found
    assert all("restore a backup" in each["fix"] for name, each in found.items() if name.startswith("store"))


def test_a_store_of_a_later_release(config: Path) -> None:
    with sqlite3.connect(store(config)) as connection:
        connection.execute("INSERT INTO schema_version VALUES (999, '0999_future.sql')")
    connection.close()
    assert "newer release (schema 999" in failures(config)["store: schema"]["found"]


def test_another_master_key_and_none(config: Path) -> None:
    key = config.parent / "var" / "master.key"
    kept = key.read_text()
    key.write_text("ab" * 32)
    assert "the master key does not belong to this store" in failures(config)["master key"]["found"]
    key.unlink()
    assert "is missing" in failures(config)["master key"]["found"]
    assert not key.exists()
    assert "master key" not in failures(config, Secrets__MasterKey=kept.strip())
    assert kept.strip() not in cli(config, "doctor", Secrets__MasterKey=kept.strip()).stdout


def test_files_that_others_can_read(config: Path) -> None:
    store(config).chmod(0o644)
    found = findings(config)["file modes"]
    assert (found["status"], found["fix"]) == ("warn", f"chmod 600 {store(config)}")


def test_a_port_in_use_by_another_program(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = failures(config, ControlPlane__Listen=f"127.0.0.1:{port}")["ControlPlane.Listen"]
    assert f"in use by {this_program()}" in found["found"]
    assert f"ss -ltnp sport = :{port}" in found["fix"]


@pytest.mark.parametrize(
    ("days", "status", "report"),
    [(-1, "fail", "ended on"), (5.5, "warn", "ends in 5 days"), (90, "ok", "is valid until")],
)
def test_a_certificate_by_its_end(
    config: Path, tmp_path: Path, days: float, status: str, report: str
) -> None:
    files = CertificateAuthority(tmp_path / "authority").server("own", days=days)
    found = findings(
        config, ControlPlane__CertFile=str(files.cert_file), ControlPlane__KeyFile=str(files.key_file)
    )["ControlPlane.CertFile"]
    assert (found["status"], report in found["found"]) == (status, True)


def test_a_key_of_another_certificate(config: Path, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    one, other = authority.server("one"), authority.server("other")
    found = failures(
        config, ControlPlane__CertFile=str(one.cert_file), ControlPlane__KeyFile=str(other.key_file)
    )
    assert "not usable" in found["ControlPlane.CertFile"]["found"]


def test_a_damaged_index(config: Path) -> None:
    index = store(config).with_name("controlplane.db.search.sqlite")
    index.touch(mode=0o600)
    index.write_bytes(b"no database at all, and long enough to be looked at" * 100)
    found = failures(config)["search index"]
    assert f"rm {index}*" in found["fix"]


async def test_an_index_that_lies_far_behind(config: Path) -> None:
    added = facts(config, "proxy", "rotate-secret", "edge-1")
    org = facts(config, "org", "show", "acme")["orgId"]
    async with server(config) as running, aiohttp.ClientSession() as session:
        proxy = ProxyClient(
            session, running.address, SystemClock(), "", added["apiKey"], added["hmacSecret"], [org]
        )
        assert (await proxy.audit(batch("b1", org, range(1, 5)))).status == 202
    with sqlite3.connect(store(config)) as connection:
        connection.execute(
            "INSERT INTO blocks (position, count, org_id, proxy_id, least_ms, most_ms, body)"
            " VALUES (20000, 1, 'o', 'p', 1, 1, x'5b5d')"
        )
    connection.close()
    found = findings(config)["search index"]
    assert found["status"] == "warn"
    # The server may have indexed the four events before it ended.
    assert re.fullmatch(r"(1999\d|2000\d) events behind the store: 0 % are indexed", found["found"])


@pytest.mark.skipif(not IS_HERE, reason=HOW_TO_GET)
def test_a_clickhouse_that_refuses_the_password_or_is_away(config: Path, tmp_path: Path) -> None:
    password, wrong = "clickhouse~password~9f3", "clickhouse~password~9f4"
    environment = {"SearchIndex__Kind": "clickhouse", "SearchIndex__Username": "default"}
    with clickhouse(tmp_path / "clickhouse", password) as running:
        environment["SearchIndex__Url"] = running.url
        found = findings(config, **environment, SearchIndex__Password=password)
        assert "no table graphward.events yet" in found["search index"]["found"]
        refused = failures(config, **environment, SearchIndex__Password=wrong)["search index"]
        assert "SearchIndex.Username" in refused["fix"]
    away = failures(config, **environment, SearchIndex__Password=password)["search index"]
    assert "SearchIndex.Url" in away["fix"]
    assert "clickhouse~password" not in json.dumps([refused, away])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m,mode=700", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes privileges")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_is_nearly_full(config: Path, small_disk: Path) -> None:
    moved = small_disk / "controlplane.db"
    shutil.copy(store(config), moved)
    moved.chmod(0o600)
    assert findings(config, Store__Path=str(moved))["store: room"]["status"] == "warn"
    (small_disk / "something-else").write_bytes(b"\0" * 40 * 1024 * 1024)
    assert "will soon be refused with 503" in failures(config, Store__Path=str(moved))["store: room"]["found"]


def test_on_a_terminal_it_is_coloured_and_drives_nothing(config: Path) -> None:
    with sqlite3.connect(store(config)) as connection:
        connection.execute("UPDATE proxies SET name = 'edge' || char(27) || ']0;evil'")
    connection.close()
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "controlplane", "--config", str(config), "doctor"],
        cwd=ROOT,
        stdout=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(follower)
    report = b""
    try:
        while part := os.read(leader, 65536):
            report += part
    except OSError:  # a terminal reports the end of its writer in this way
        pass
    os.close(leader)
    assert process.wait() == 0
    assert b"\x1b[32mok" in report
    assert b"\x1b]0;evil" not in report
    assert b"\\u001b]0;evil" in report


def test_settings_that_can_not_be_read_are_status_2(tmp_path: Path) -> None:
    done: Any = cli(tmp_path / "absent.toml", "doctor")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


PROVIDED = """[Console]
Listen = []
PublicBaseUrl = "https://console.contoso.test"
OidcIssuer = "{issuer}"
OidcClientId = "{client}"
OidcClientSecret = "{secret}"
"""


async def sign_on(
    directory: Path, provider: FakeIdentityProvider, secret: str = CLIENT_SECRET
) -> dict[str, str]:
    issuer = f"{provider.base_url}/{TENANT}/v2.0"
    section = PROVIDED.format(issuer=issuer, client=CLIENT_ID, secret=secret)
    (directory / "c.toml").write_text(section, "utf-8")
    found = await asyncio.to_thread(findings, directory / "c.toml")
    assert secret not in json.dumps(found)
    return found["single sign-on"]


async def test_a_provider_that_knows_this_console_is_told_where_to_lead_back_to(tmp_path: Path) -> None:
    async with FakeIdentityProvider() as provider:
        found = await sign_on(tmp_path, provider)
    assert found["status"] == "ok"
    assert "https://console.contoso.test/login/single-sign-on/callback" in found["found"]


@pytest.mark.parametrize("fault", ["secret", "template", "away"])
async def test_what_keeps_single_sign_on_from_working_is_told(tmp_path: Path, fault: str) -> None:
    words = {
        "secret": "invalid_client: the secret has expired",
        "template": "write the tenant's own id in place of {tenantid}",
        "away": "responded with 503",
    }
    async with FakeIdentityProvider() as provider:
        if fault == "secret":
            wrong: dict[str, object] = {"error": "invalid_client"}
            wrong["error_description"] = "the secret has expired"
            provider.people.refusal = (401, wrong)
        elif fault == "template":
            provider.people.discovery = {"issuer": "https://login.contoso.test/{tenantid}/v2.0"}
        else:
            provider.mode = "error"
        found = await sign_on(tmp_path, provider)
    assert found["status"] == "fail"
    assert words[fault] in found["found"]
