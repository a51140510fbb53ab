"""python -m bench.trickle: measure the delay until the events of quiet proxies are in the store.

A control plane with its default limits serves one organisation. Each of several proxies has one event per
second. The measurement uses the agent's own journal, shipper and sync. The delay of an event is the time from
the event's beginning to the response that confirms the storage of the event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec

from bench.ingest import SETTINGS, command, facts, ready
from bench.test_audit import RECORD
from proxy.agent.control_plane import ControlPlane, Identity, Response
from proxy.agent.journal import Journal
from proxy.agent.shipper import Shipper
from proxy.agent.sync import Sync
from proxy.audit.record import event_of, lines_of
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from proxy.wire.models import AUDIT_PATH, SYNC_PATH
from tests.fakes.lifeline import end_with_parent

SHIPPING_SECONDS = 90.0  # seconds after the last event


@dataclass
class Seen:
    """Delivery results of the batches of all simulated proxies."""

    late: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    refused: int = 0


class Counted(ControlPlane):
    """Recorder of the time when each event was stored."""

    def __init__(self, seen: Seen, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen = seen

    async def post(self, url: str, body: bytes, *, max_bytes: int = 1 << 20) -> Response:
        response = await super().post(url, body, max_bytes=max_bytes)
        if response.status == 202:
            now = time.time()
            begun = [
                int(event["id"].replace("-", "")[:12], 16) / 1000 for event in json.loads(body)["events"]
            ]
            self._seen.late += [now - each for each in begun]
            self._seen.sizes.append(len(begun))
        elif response.status == 429:
            self._seen.refused += 1
        return response


async def one_proxy(
    directory: Path, address: str, org: str, keys: Any, given: argparse.Namespace, seen: Seen
) -> None:
    journal = Journal(directory, max_bytes=1 << 26)
    async with open_session(client_tls(None), DIRECT) as session:
        calls = Counted(seen, session, Identity(keys["apiKey"], keys["hmacSecret"].encode()))
        sync = Sync(
            calls,
            url=address + SYNC_PATH,
            cache_path=directory / "snapshot",
            interval=30.0,
            require_signed=True,
            announce=lambda snapshot, is_new: None,
        )
        assert await sync.once()
        with ThreadPoolExecutor(1) as disk:
            shipper = Shipper(
                journal,
                disk,
                calls,
                url=address + AUDIT_PATH,
                max_batch_size=500,
                replay_interval=60.0,
                catch_up=True,
                asked=(lambda: None) if given.unasked else (lambda: sync.linger),
            )
            for _ in range(given.seconds):
                await asyncio.sleep(1.0)
                await asyncio.get_running_loop().run_in_executor(disk, add_one, journal, org)
                shipper.notify(journal.pending())
            await asyncio.wait(shipper._tasks.values(), timeout=SHIPPING_SECONDS)
            await shipper.stop(1.0)


def add_one(journal: Journal, org: str) -> None:
    seq = journal.next_seq(org)
    record = msgspec.structs.replace(RECORD, n=seq, org_id=org, time_ms=time.time_ns() // 1_000_000)
    journal.add(org, lines_of([event_of(record, int.from_bytes(os.urandom(4)), seq, None)]), 1)
    journal.commit()


async def all_proxies(
    directory: Path, address: str, org: str, keys: list[Any], given: argparse.Namespace
) -> Seen:
    seen = Seen()
    await ready(address)
    async with asyncio.TaskGroup() as group:
        for number, each in enumerate(keys):
            await asyncio.sleep(0.2)
            group.create_task(one_proxy(directory / f"p{number}", address, org, each, given, seen))
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trickle", description=__doc__)
    parser.add_argument("--proxies", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=100)
    parser.add_argument(
        "--unasked",
        action="store_true",
        help="make proxies wait for the fixed time of earlier releases before they send a batch",
    )
    parser.add_argument("--port", type=int, default=18733)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = directory / "controlplane.toml"
        config.write_text(SETTINGS.format(port=given.port))
        org = facts(config, "org", "add", "bench")["orgId"]
        keys = [facts(config, "proxy", "add", f"p{number}", "--org", org) for number in range(given.proxies)]
        server = subprocess.Popen(command(config), stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
        try:
            address = f"http://127.0.0.1:{given.port}"
            seen = asyncio.run(all_proxies(directory, address, org, keys, given))
        finally:
            server.terminate()
            server.wait()
    marks = quantiles(seen.late, n=100)
    print(
        f"{len(seen.late)} of {given.proxies * given.seconds} events in {len(seen.sizes)} batches,"
        f" {seen.refused} refused; late by {marks[49]:.1f} s (p50), {marks[94]:.1f} s (p95),"
        f" {max(seen.late):.1f} s at most"
    )


if __name__ == "__main__":
    main()
