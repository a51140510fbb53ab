"""Tests of server processes: kills, signals, files, logs, and commands run while a server runs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.clock import SystemClock
from tests.controlplane.plane import RULESET, SYNC, ProxyClient, batch, write_settings
from tests.controlplane.processes import Server, cli, events_in, facts, server

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("CONTROLPLANE_KILLS", "3"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_settings(tmp_path, Audit="RateLimitOrg = 100000\nRateLimitProxy = 100000")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def _proxy(config: Path, session: aiohttp.ClientSession) -> ProxyClient:
    org = facts(config, "org", "add", "acme")["orgId"]
    added = facts(config, "proxy", "add", "edge-1", "--org", "acme")
    return ProxyClient(
        session, "", SystemClock(), added["proxyId"], added["apiKey"], added["hmacSecret"], [org]
    )


def _stored(config: Path) -> list[int]:
    with sqlite3.connect(config.parent / "var" / "controlplane.db") as connection:
        found = events_in(connection)
    connection.close()
    return sorted(event["seq"] for event in found)


async def test_a_kill_between_commit_and_response_counts_the_batch_once(
    config: Path, session: aiohttp.ClientSession
) -> None:
    proxy = _proxy(config, session)
    killed: dict[str, Any] | None = None
    for round_ in range(KILLS):
        async with server(config, "tests.controlplane.killed_server") as running:
            proxy.base_url = running.address
            if killed is not None:
                await _replay(proxy, killed)
            moment = "after" if round_ % 3 else "before"
            numbers = range(3 * round_, 3 * round_ + 3)
            killed = batch(f"kill-{moment}-{round_}", proxy.org_ids[0], numbers)
            with pytest.raises(aiohttp.ClientError):
                await proxy.audit(killed)
            assert await running.wait() == -signal.SIGKILL
        committed = 3 * (round_ + 1) if moment == "after" else 3 * round_
        assert _stored(config) == list(range(committed))


async def _replay(proxy: ProxyClient, killed: dict[str, Any]) -> None:
    """Send the batch `killed` again, after the control plane was killed and restarted.

    If the control plane committed the batch before the kill, it must respond that the batch is a duplicate.
    If not, the control plane must store the batch.
    """
    committed = killed["batchId"].startswith("kill-after")
    sent = killed if committed else {**killed, "batchId": f"replay-{killed['batchId']}"}
    response = await proxy.audit(sent)
    assert response.json == {"batchId": sent["batchId"], "accepted": 3, "duplicate": committed}


async def test_kills_at_random_moments_lose_no_acknowledged_batch_and_double_none(
    config: Path, session: aiohttp.ClientSession
) -> None:
    proxy = _proxy(config, session)
    waiting = {f"b{number}": [number * 10 + each for each in range(10)] for number in range(200)}
    everything = sorted(seq for numbers in waiting.values() for seq in numbers)
    acknowledged: set[str] = set()

    async def deliver(batch_id: str, numbers: list[int]) -> None:
        try:
            response = await proxy.audit(batch(batch_id, proxy.org_ids[0], numbers))
        except aiohttp.ClientError:
            return
        assert response.status == 202
        acknowledged.add(batch_id)

    generator = random.Random(11)
    for kill in (True, True, True, False):
        async with server(config) as running:
            proxy.base_url = running.address
            left = [each for each in waiting.items() if each[0] not in acknowledged]
            deliveries = asyncio.gather(*(deliver(*each) for each in left))
            if kill:
                await asyncio.sleep(generator.uniform(0, 0.15))
                running.process.send_signal(signal.SIGKILL)
            await deliveries
            stored = set(_stored(config))
            assert stored >= {seq for batch_id in acknowledged for seq in waiting[batch_id]}
    assert acknowledged == set(waiting)
    assert _stored(config) == everything


async def test_sigterm_ends_the_server_after_its_last_response(
    config: Path, session: aiohttp.ClientSession
) -> None:
    proxy = _proxy(config, session)
    async with server(config) as running:
        proxy.base_url = running.address
        sent = [proxy.audit(batch(f"b{number}", proxy.org_ids[0], [number])) for number in range(20)]
        responses = [await response for response in asyncio.as_completed(sent)]
        assert {response.status for response in responses} == {202}
        running.process.send_signal(signal.SIGTERM)
        assert await running.wait() == 0
    assert running.log[-1].endswith("stopped\n")
    assert _stored(config) == list(range(20))
    # A clean stop leaves one complete file.
    assert not (config.parent / "var" / "controlplane.db-wal").exists()


async def test_commands_take_effect_while_the_server_runs(
    config: Path, session: aiohttp.ClientSession
) -> None:
    proxy = _proxy(config, session)
    async with server(config) as running:
        proxy.base_url = running.address
        assert (await proxy.send(SYNC)).status == 200
        await asyncio.to_thread(facts, config, "proxy", "disable", "edge-1")
        assert (await proxy.send(SYNC)).code == "unknownApiKey"
        await asyncio.to_thread(facts, config, "proxy", "enable", "edge-1")
        renewed = await asyncio.to_thread(facts, config, "proxy", "rotate-secret", "edge-1")
        assert (await proxy.send(SYNC)).code == "unknownApiKey"
        proxy.api_key, proxy.hmac_secret = renewed["apiKey"], renewed["hmacSecret"]
        assert (await proxy.send(SYNC)).status == 200


async def test_a_backup_taken_under_load_restores(config: Path, session: aiohttp.ClientSession) -> None:
    proxy = _proxy(config, session)
    backup = config.parent / "restored" / "var" / "controlplane.db"
    backup.parent.mkdir(parents=True)
    async with server(config) as running:
        proxy.base_url = running.address
        for number in range(10):
            await proxy.audit(batch(f"b{number}", proxy.org_ids[0], [number]))
        load = [proxy.audit(batch(f"c{number}", proxy.org_ids[0], [number])) for number in range(10, 100)]
        responses, _ = await asyncio.gather(
            asyncio.gather(*load), asyncio.to_thread(_back_up, config, backup)
        )
        assert {response.status for response in responses} == {202}
    with sqlite3.connect(backup) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        restored = {event["seq"] for event in events_in(connection)}
        batches = connection.execute("SELECT count(*) FROM batches").fetchone()[0]
    connection.close()
    assert set(range(10)) <= restored <= set(range(100))
    assert batches == len(restored)  # only whole batches
    (backup.parent / "master.key").write_bytes((config.parent / "var" / "master.key").read_bytes())
    again = write_settings(backup.parents[1])
    async with server(again) as running:
        proxy.base_url = running.address
        assert (await proxy.audit(batch("b0", proxy.org_ids[0], [0]))).json["duplicate"] is True


def _back_up(config: Path, target: Path) -> None:
    source = sqlite3.connect(config.parent / "var" / "controlplane.db")
    copy = sqlite3.connect(target)
    source.backup(copy, pages=5)
    source.close()
    copy.close()


async def test_files_are_private_and_no_secret_is_at_rest_or_in_the_log(
    config: Path, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    proxy = _proxy(config, session)
    rules = tmp_path / "hr.yaml"
    rules.write_text(RULESET.format(name="hr"))
    facts(config, "ruleset", "apply", str(rules), "--org", "acme")
    client_secret = facts(config, "app", "add", "payroll", "--org", "acme", "--ruleset", "hr")["clientSecret"]
    async with server(config) as running:
        proxy.base_url = running.address
        await proxy.send(SYNC)
        await proxy.audit(batch("b", proxy.org_ids[0], [1]))
        bad = proxy.headers(b"")
        bad["X-Hmac-Signature"] = "0" * 64
        await proxy.send(SYNC, headers=bad)
        var = config.parent / "var"
        files = {path.name: path for path in var.iterdir()}
        assert {"controlplane.db", "controlplane.db-wal", "master.key"} <= set(files)
        assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
        everything = (
            b"".join(path.read_bytes() for name, path in files.items()) + "".join(running.log).encode()
        )
    for secret in (proxy.api_key, proxy.hmac_secret, client_secret):
        assert secret.encode() not in everything


HOSTILE_HEADS = [
    b"GET /\x1b[31m/%0d%0aFAKE HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%e2%80%a8%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET //evil/.. HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /api/v1/agent/audit HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/v1/agent/audit HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /api/v1/agent/audit HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    b"POST /api/v1/agent/audit HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /api/v1/agent/audit HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n",
    b"POST /api/v1/agent/audit HTTP/1.1\r\nHost: x\r\nX-Api-Key: \xff\xfe\r\n\r\n",
    b"GET /api/v1/agent/sync HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /api/v1/agent/sync HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\n\r\n\r\n",
    b"GARBAGE\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(500)) + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nH\0: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
]


async def test_no_bytes_give_a_5xx_a_traceback_or_a_second_log_line(
    config: Path, session: aiohttp.ClientSession
) -> None:
    proxy = _proxy(config, session)
    generator = random.Random(5)
    async with server(config) as running:
        proxy.base_url = running.address
        good = f"GET {SYNC} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        good += "".join(f"{name}: {value}\r\n" for name, value in proxy.headers(b"").items())
        mutated = [_mutate(generator, good.encode() + b"\r\n") for _ in range(300)]
        for head in HOSTILE_HEADS + mutated:
            response = await _exchange(running, head)
            assert not response.startswith(b"HTTP/1.1 5"), (head, response)
        assert (await proxy.send(SYNC)).status == 200
    log = "".join(running.log)
    assert "Traceback" not in log
    assert all(line[:4].isdigit() and line.endswith("\n") for line in running.log)
    assert "\x1b" not in log
    assert "\u2028" not in log


def _mutate(generator: random.Random, head: bytes) -> bytes:
    mutable = bytearray(head)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(mutable))
        mutable[place : place + generator.randint(0, 3)] = generator.randbytes(generator.randint(0, 3))
    return bytes(mutable)


async def _exchange(running: Server, data: bytes) -> bytes:
    host, port = running.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_an_address_in_use_is_one_line_and_status_1(config: Path, tmp_path: Path) -> None:
    async with server(config) as running:
        port = running.address.rpartition(":")[2]
        second = tmp_path / "second"
        second.mkdir()
        settings = write_settings(second)
        done = await asyncio.to_thread(cli, settings, ControlPlane__Listen=f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert port in done.stderr
