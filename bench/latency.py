"""Latency that a proxy adds at a fixed rate, and whether what else a proxy does shows in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench.cost import Pace
from bench.graphward import ALLOW
from bench.load import ONE_PATH, head
from bench.report import Table
from bench.rig import UPSTREAM_TOKEN, Missing, Rig
from bench.servers import Server, ServerFailed
from bench.tools import ROOT, cores
from tests.standins.identity import CLIENT_ID, CLIENT_SECRET, TENANT

RATE: Final = 1000
# Long enough for some syncs, renewals and rotations to fall into each turn.
BUSY_SECONDS: Final = 10
SHARES: Final = ("50", "99", "99.9", "max")


@dataclass(slots=True)
class _Target:
    name: str
    port: int
    head_file: Path
    turns: list[Mapping[str, float]] = field(default_factory=list)

    def take_turn(self, seconds: int) -> None:
        command = [sys.executable, "-m", "bench.open_loop", str(self.port), str(self.head_file)]
        done = subprocess.run(
            [*command, str(RATE), str(seconds)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cores().load}),
        )
        if done.returncode:
            raise ServerFailed(f"{self.name}: {done.stderr[-300:]}")
        self.turns.append(json.loads(done.stdout))

    def median(self, share: str) -> float:
        return median(turn[share] for turn in self.turns)


def added(rig: Rig, pace: Pace) -> Table:
    """J2 by nginx, envoy and graphward, less what the upstream takes when it is asked directly."""
    heads = {"direct": rig.run / "direct.head", "proxied": rig.run / "proxied.head"}
    heads["direct"].write_bytes(head(ONE_PATH, UPSTREAM_TOKEN))
    heads["proxied"].write_bytes(head(ONE_PATH, rig.token))
    starts: dict[str, Callable[[], Server]] = {
        "nginx": rig.nginx_judging,
        "envoy": lambda: rig.envoy(judging=True),
        "graphward": lambda: rig.graphward(rules=ALLOW),
    }
    missing = []
    with ExitStack() as stack:
        targets = [_Target("upstream, asked directly", rig.upstream.guarded, heads["direct"])]
        for name, start in starts.items():
            try:
                server = stack.enter_context(start())
            except Missing as error:
                missing.append(f"{name} was not measured: {error} is not here.")
                continue
            targets.append(_Target(name, server.port, heads["proxied"]))
        for _ in range(pace.rounds):
            for target in targets:
                target.take_turn(2 * pace.seconds)
    busy, happened = _busy(rig, heads["proxied"])
    targets.append(busy)
    return _table(targets, [*missing, happened])


def _busy(rig: Rig, head_file: Path) -> tuple[_Target, str]:
    """Graphward while all of 10,000 rules change, tokens are renewed and the spool rotates."""
    stand_ins, ports = rig.stand_ins("changes")
    with stand_ins:
        server = rig.graphward(
            rules=ALLOW,
            upstream_port=rig.upstream.open,  # takes every renewed token
            stand_ins=ports,
            sections={
                "RuleSync": {"IntervalSeconds": 4},
                "Audit": {"SegmentBytes": 262144},
                "Credentials": {
                    "Provider": "environment",
                    "AuthorityUrl": f"http://127.0.0.1:{ports.identity}",
                    "TenantId": TENANT,
                    "ClientId": CLIENT_ID,
                    "ClientSecret": CLIENT_SECRET,
                },
            },
        )
        with server:
            before = stand_ins.log.read_text().split()
            target = _Target("graphward, busy", server.port, head_file)
            target.take_turn(BUSY_SECONDS)
            during = stand_ins.log.read_text().split()[len(before) :]
    events = BUSY_SECONDS * RATE
    return target, (
        f"busy: during its one turn of {BUSY_SECONDS} s there were {during.count('sync')} syncs of 10,000 "
        f"changed rules, {during.count('token')} token renewals, and {events:,} events into segments of "
        "256 KiB."
    )


def _table(targets: list[_Target], notes: list[str]) -> Table:
    base = targets[0]
    rows = []
    for target in targets:
        cells = [f"{target.median(share):,.0f}" for share in SHARES]
        extra = ["–"] * 3
        if target is not base:
            extra = [f"{target.median(share) - base.median(share):,.0f}" for share in SHARES[:3]]
        rows.append((target.name, *cells, *extra))
    columns = ("server", "p50 µs", "p99", "p99.9", "max", "added p50", "added p99", "added p99.9")
    title = f"latency of J2 at {RATE:,} requests a second, from when each was due"
    return Table("LATENCY", title, columns, rows, notes)
