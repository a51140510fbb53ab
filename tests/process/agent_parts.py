"""Helpers for tests of the agent: a worker that writes a spool, and an agent that only audits."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from proxy.agent.collector import Collector
from proxy.agent.journal import Journal
from proxy.audit.payload import encode
from proxy.audit.record import Record
from proxy.audit.spool import SpoolWriter
from tests.fakes.lifeline import end_with_parent

MIB = 1024 * 1024


def payload(
    n: int, org_id: str = "org-1", path: str = "/v1.0/users", time_ms: int = 1_700_000_000_000
) -> bytes:
    fields = (
        n, time_ms + n, org_id, "app", "client", "192.0.2.1", None, "GET", path, None, 200, "allow", "r1",
        None, None, 200, 1500, 1200, 0, 42, None, "rule", 1, None,
    )  # fmt: skip
    return encode(Record(*fields))


def spool_writer(directory: Path, *, segment_bytes: int = 256 * 1024, prefix: int = 1) -> SpoolWriter:
    spool = SpoolWriter(
        directory, segment_bytes=segment_bytes, max_bytes=256 * MIB, when_full="refuse", id_prefix=prefix
    )
    spool.maintain()
    return spool


def write(spool: SpoolWriter, numbers: Iterable[int], org_id: str = "org-1", **fields: Any) -> None:
    for n in numbers:
        spool.append(org_id, payload(n, org_id, **fields))
        if spool.needs_maintenance:
            spool.maintain()


def collector(directory: Path, journal: Journal, **changes: Any) -> Collector:
    options: dict[str, Any] = {
        "max_bytes": 256 * MIB,
        "when_full": "refuse",
        "workers_room": 2 * 256 * 1024,
        "proxy_id": lambda: "proxy-1",
        "settle_seconds": 0.0,
    }
    return Collector(directory, journal, **(options | changes))


def collect_all(part: Collector, passes: int = 60) -> None:
    """Run passes of the collector until several passes in a row find nothing to do.

    Passes of a live agent, which pauses between its passes, would take some seconds.
    """
    quiet = 0
    for _ in range(passes):
        quiet = 0 if part.run_pass() else quiet + 1
        if quiet > 4:
            return


def journal_lines(directory: Path, org_id: str = "org-1") -> list[dict[str, Any]]:
    files = sorted((directory / "journal" / org_id).glob("*.ndjson"), key=lambda path: int(path.stem))
    return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


def one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


WORKER = """
import os, sys, time
from pathlib import Path
from tests.process.agent_parts import payload, spool_writer
directory, prefix, rate = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
spool = spool_writer(directory, prefix=prefix)
print(spool.stream, flush=True)
n = 0
while True:
    for _ in range(20):
        if spool.needs_maintenance or not spool.ready:
            spool.maintain()
        if not spool.ready:
            break
        org_id = f"org-{n % 3}"
        spool.append(org_id, payload(n, org_id, time_ms=int(time.time() * 1000)))
        n += 1
    os.write(1, b"%d\\n" % n)
    time.sleep(20 / rate)
"""

AUDITING_AGENT = """
import asyncio, contextlib, signal, sys, logging
from pathlib import Path
from proxy.agent.audit import Audit, AuditOptions
from proxy.config.tls import client_tls
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from tests.fakes.control_plane import API_KEY, HMAC_SECRET

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_session(client_tls(None), DIRECT) as session:
        options = AuditOptions(Path(sys.argv[1]), sys.argv[2], 256 << 20, 1 << 20, "refuse", 50, 0.3, True)
        control_plane = ControlPlane(session, lambda: Identity(API_KEY, HMAC_SECRET.encode()))
        audit = Audit(options, control_plane, lambda: "proxy-1", lambda: None)
        task = asyncio.create_task(audit.run())
        waiting = asyncio.create_task(stop.wait())
        print("up", flush=True)
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await audit.stop(120.0)
        audit.close()

logging.basicConfig(level="CRITICAL")
asyncio.run(main())
"""


async def start(program: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
