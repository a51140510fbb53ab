"""Measure the latency that a proxy adds at a fixed rate, and how its other work changes this latency."""

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
from bench.rig import UPSTREAM_TOKEN, FakePorts, Missing, Rig
from bench.servers import Server, ServerFailed
from bench.tools import ROOT, cores
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT

RATE: Final = 1000
# Long enough for several syncs, renewals and rotations in each round.
BUSY_SECONDS: Final = 10
BUSY_ROUNDS: Final = 3
SHARES: Final = ("50", "99", "99.9", "max")


@dataclass(slots=True)
class _Target:
    name: str
    head_file: Path
    turns: list[Mapping[str, float]] = field(default_factory=list)

    def take_turn(self, port: int, seconds: int) -> None:
        command = [sys.executable, "-m", "bench.open_loop", str(port), str(self.head_file)]
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
    """Measure job J2 with nginx, envoy and graphward, minus the latency of direct upstream requests."""
    heads = {"direct": rig.run / "direct.head", "proxied": rig.run / "proxied.head"}
    heads["direct"].write_bytes(head(ONE_PATH, UPSTREAM_TOKEN))
    heads["proxied"].write_bytes(head(ONE_PATH, rig.token))
    starts: dict[str, Callable[[], Server]] = {
        "nginx": rig.nginx_evaluating,
        "envoy": lambda: rig.envoy(evaluating=True),
        "graphward": lambda: rig.graphward(rules=ALLOW),
    }
    missing = []
    with ExitStack() as stack:
        direct = _Target("upstream, asked directly", heads["direct"])
        measured = [(direct, rig.upstream.guarded)]
        for name, start in starts.items():
            try:
                server = stack.enter_context(start())
            except Missing as error:
                missing.append(f"{name} was not measured: {error} is not installed.")
                continue
            measured.append((_Target(name, heads["proxied"]), server.port))
        for _ in range(pace.rounds):
            for target, port in measured:
                target.take_turn(port, 2 * pace.seconds)
    quiet, busy, happened = _disturbed(rig, heads["proxied"])
    return _table([*(target for target, _ in measured), quiet, busy], [*missing, happened])


def _disturbed(rig: Rig, head_file: Path) -> tuple[_Target, _Target, str]:
    """Measure Graphward alone, and while 10,000 rules change, tokens are renewed and the spool rotates."""
    quiet, busy = _Target("graphward, left alone", head_file), _Target("graphward, busy", head_file)
    happened: list[str] = []
    for _ in range(BUSY_ROUNDS):
        with rig.graphward(rules=ALLOW) as server:
            quiet.take_turn(server.port, BUSY_SECONDS)
        fakes, ports = rig.fakes("changes")
        with fakes, _busy(rig, ports) as server:
            before = len(fakes.log.read_text().split())
            busy.take_turn(server.port, BUSY_SECONDS)
            happened += fakes.log.read_text().split()[before:]
    note = (
        f"The last two rows of the job LATENCY took {BUSY_ROUNDS} rounds of {BUSY_SECONDS} s, one after the "
        f"other. The rounds of the row *graphward, busy* had {happened.count('sync')} syncs of "
        "10,000 changed rules, "
        f"{happened.count('token')} token renewals, "
        f"and {BUSY_ROUNDS * BUSY_SECONDS * RATE:,} events into segments of 256 KiB."
    )
    return quiet, busy, note


def _busy(rig: Rig, ports: FakePorts) -> Server:
    return rig.graphward(
        rules=ALLOW,
        upstream_port=rig.upstream.open,  # The open upstream accepts every renewed token.
        fakes=ports,
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
    title = f"latency of J2 at {RATE:,} requests a second, counted from the time when each was due"
    return Table("LATENCY", title, columns, rows, notes)
