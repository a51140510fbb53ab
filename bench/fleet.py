"""python -m bench.fleet: measure how long lists of a large fleet keep a control plane busy.

A store has 400 organisations, 400 rulesets, 4,000 applications and 3,000 proxies, each with 20 heartbeats and
40 windows of metrics. A control plane, started with the usual command, serves each list of the admin API and
each page of the console in turn. Another client requests the control plane's health while the control plane
serves the lists. The longest wait for a health response shows how long the control plane served no other
client.
"""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import aiohttp

from bench.index_engines import cpu_seconds
from bench.ingest import command, facts, ready
from tests.fakes.lifeline import end_with_parent

ORGS, APPS_OF_ORG, PROXIES = 400, 10, 3_000
HEARTBEATS, WINDOWS = 20, 40
SETTINGS = """
[ControlPlane]
Listen = "127.0.0.1:{agents}"
[Console]
Listen = "127.0.0.1:{console}"
[Store]
Path = "store.db"
[Secrets]
MasterKeyFile = "master.key"
[Metrics]
Listen = "127.0.0.1:{metrics}"
"""
ROOT = "/admin/v1"
COMPLETE = ("/fleet", "/apps", "/rulesets", "/orgs", "/operators")
PAGES = (
    "/fleet?limit=50",
    "/fleet?limit=50&sort=health",
    "/fleet?limit=50&search=17",
    "/fleet?limit=50&health=failed",
    "/fleet-counts",
    "/apps?limit=50&sort=-createdAt",
    "/rulesets?limit=50",
    "/orgs?limit=50",
)
CONSOLE = (
    "/",
    "/proxies",
    "/proxies?health=failed",
    "/apps",
    "/rulesets",
    "/orgs",
    "/operators",
    "/record",
    "/audit/integrity",
    "/stops",
    "/search",
)


def _id(kind: int, number: int) -> str:
    return f"019a0000-0000-7000-8{kind:03d}-{number:012d}"


def fill(path: Path, now_ms: int) -> None:
    """Write organisations and other rows directly into the store's tables.

    The operations of the control plane would take minutes to add the same rows.
    """
    names = [f"org-{number:04d}" for number in range(ORGS)]
    yaml = "version: 1\nname: hr\ndefault: block\nrules: []\n"
    with sqlite3.connect(path) as store:
        many = store.executemany
        many(
            "INSERT INTO orgs VALUES (?, ?, '1y', ?)",
            [(_id(1, at), name, at) for at, name in enumerate(names)],
        )
        many(
            "INSERT INTO rulesets (ruleset_id, org_id, name, created_ms) VALUES (?, ?, 'hr', ?)",
            [(_id(2, at), _id(1, at), at) for at in range(ORGS)],
        )
        many(
            "INSERT INTO ruleset_versions (ruleset_id, version, yaml, rule_count, created_ms)"
            " VALUES (?, 1, ?, 0, ?)",
            [(_id(2, at), yaml, at) for at in range(ORGS)],
        )
        many(
            "INSERT INTO apps (app_id, org_id, name, client_id, ruleset_id, enabled, created_ms)"
            " VALUES (?, ?, ?, ?, ?, 1, ?)",
            [
                (_id(3, at), _id(1, at % ORGS), f"app-{at:05d}", f"client-{at}", _id(2, at % ORGS), at)
                for at in range(ORGS * APPS_OF_ORG)
            ],
        )
        many(
            "INSERT INTO app_secrets (app_id, version, hash, created_ms) VALUES (?, 1, 'x', 0)",
            [(_id(3, at),) for at in range(ORGS * APPS_OF_ORG)],
        )
        many(
            "INSERT INTO proxies (proxy_id, name, api_key_digest, hmac_secret, created_ms, last_seen_ms,"
            " heard_ms, said) VALUES (?, ?, ?, x'00', ?, ?, ?, 'ok')",
            [(_id(4, at), f"edge-{at:05d}", str(at).encode(), at, now_ms, now_ms) for at in range(PROXIES)],
        )
        many(
            "INSERT INTO proxy_orgs VALUES (?, ?)", [(_id(4, at), _id(1, at % ORGS)) for at in range(PROXIES)]
        )
        many(
            "INSERT INTO enforced_versions VALUES (?, ?, 1)",
            [(_id(4, at), _id(2, at % ORGS)) for at in range(PROXIES)],
        )
        many("INSERT INTO heartbeats (proxy_id, received_ms, body) VALUES (?, ?, ?)", _heartbeats(now_ms))
        many("INSERT INTO metrics VALUES (?, ?, ?, ?)", _metrics(now_ms))
    store.close()


def _heartbeats(now_ms: int) -> Iterator[tuple[str, int, str]]:
    checks = {each: {"status": "ok"} for each in ("sync", "credentials", "audit", "upstream", "tls")}
    for at in range(PROXIES):
        said = {
            "version": "0.1.0",
            "uptimeSeconds": 86_400.0,
            "loadedRules": 10,
            "syncVersion": "1-abc",
            "syncAgeSeconds": 12.0,
            "rulesets": {_id(2, at % ORGS): 1},
            "checks": checks,
            "lastSeq": {_id(1, at % ORGS): 1000},
            "auditPending": 0,
            "oldestPendingSeconds": 0,
        }
        body = json.dumps(said)
        for beat in range(HEARTBEATS):
            yield _id(4, at), now_ms - beat * 30_000, body


def _moment(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(ms // 1000))


def _metrics(now_ms: int) -> Iterator[tuple[str, str, int, str]]:
    bounds = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
    for window in range(WINDOWS):
        end_ms = now_ms - window * 60_000
        start = _moment(end_ms - 60_000)
        said = {
            "windowStart": start,
            "windowEnd": _moment(end_ms),
            "evaluated": 600 + window,
            "allowed": 500,
            "blocked": 100,
            "filtered": 0,
            "loggedOnly": 0,
            "upstreamErrors": 0,
            "auditPending": 0,
            "latencyMs": {
                "buckets": [[each, 50 * at] for at, each in enumerate(bounds)],
                "sum": 1000.5,
                "count": 600,
            },
        }
        body = json.dumps(said)
        for at in range(PROXIES):
            yield _id(4, at), start, end_ms, body


async def _health(session: aiohttp.ClientSession, url: str, done: asyncio.Event) -> float:
    """Return the longest time in ms that the control plane took for a response about its health."""
    longest = 0.0
    while not done.is_set():
        begun = time.perf_counter()
        async with session.get(url):
            pass
        longest = max(longest, (time.perf_counter() - begun) * 1000)
        await asyncio.sleep(0.002)
    return longest


async def _measure(session: aiohttp.ClientSession, url: str, health: str, pid: int, repeat: int) -> str:
    walls, size = [], 0
    # The first response is not counted, because templates and statements are compiled.
    async with session.get(url) as response:
        status, size = response.status, len(await response.read())
    spent = cpu_seconds(pid)
    for _ in range(repeat):
        begun = time.perf_counter()
        async with session.get(url) as response:
            await response.read()
        walls.append((time.perf_counter() - begun) * 1000)
    cpu = (cpu_seconds(pid) - spent) * 1000 / repeat
    done = asyncio.Event()
    waiting = asyncio.create_task(_health(session, health, done))
    await asyncio.sleep(0.05)
    for _ in range(min(repeat, 5)):
        async with session.get(url) as response:
            await response.read()
    done.set()
    return (
        f"{status} {size / 1000:7.1f} KB {cpu:7.1f} ms CPU {median(walls):7.1f} ms,"
        f" /healthz at most {await waiting:6.1f} ms"
    )


async def measure(address: str, health: str, token: str, pid: int, repeat: int, only: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for path in (*(ROOT + each for each in (*COMPLETE, *PAGES)), *CONSOLE):
            if only in path:
                print(f"{path:42}", await _measure(session, address + path, health, pid, repeat), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--only", default="", help="only paths that contain this text")
    parser.add_argument("--port", type=int, default=18741, help="first of three consecutive ports")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "controlplane.toml"
        ports = {name: given.port + at for at, name in enumerate(("agents", "console", "metrics"))}
        config.write_text(SETTINGS.format(**ports))
        facts(config, "operator", "add", "ada", "--admin", "--no-password")
        token = facts(config, "operator", "token", "add", "ada", "bench")["token"]
        fill(Path(directory) / "store.db", time.time_ns() // 1_000_000)
        server = subprocess.Popen(command(config), stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
        address, health = (f"http://127.0.0.1:{ports[each]}" for each in ("console", "agents"))
        try:
            asyncio.run(ready(health))
            asyncio.run(measure(address, f"{health}/healthz", token, server.pid, given.repeat, given.only))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
