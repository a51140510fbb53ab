"""Measure the data path while audit events can't be delivered, to find out if each request costs more."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Literal

from bench import proofs
from bench.cost import Pace, Peer, Sample, measure, paired
from bench.graphward import ALLOW
from bench.load import ONE_PATH, request_loader
from bench.report import Table
from bench.rig import Rig
from bench.servers import Server


def delivery(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, ONE_PATH)
    with ExitStack() as stack:

        def beside(behaviour: Literal["accepts", "down"]) -> Server:
            fakes, ports = rig.fakes(behaviour)
            stack.enter_context(fakes)
            return rig.graphward(rules=ALLOW, fakes=ports)

        peers = [
            Peer("events accepted", lambda: beside("accepts"), load),
            Peer("events refused with 503", lambda: beside("down"), load),
            Peer("no control plane", lambda: rig.graphward(rules=ALLOW), load),
        ]
        measure(peers, pace, proofs.one_user(rig, evaluating=True))
    rows = [
        (
            peer.name,
            f"{peer.median(_worker):.1f}",
            f"{peer.median(_agent):.1f}",
            f"{peer.median(lambda sample: sample.per_request):.1f}",
            f"{median(paired(peer, peers[0], _worker)):.2f}",
        )
        for peer in peers
    ]
    columns = ("control plane", "data path, CPU µs/request", "agent", "all", "data path ÷ accepted")
    notes = [
        "In each row, the load makes far more than 60 batches per minute, so most audit events wait on disk.",
    ]
    return Table("AUDIT", "J2 with and without delivery of audit events", columns, rows, notes)


def _worker(sample: Sample) -> float:
    return _of(sample, "gw-worker")


def _agent(sample: Sample) -> float:
    return _of(sample, "gw-agent")


def _of(sample: Sample, prefix: str) -> float:
    spent = sum(cpu.total for name, cpu in sample.cpu.items() if name.startswith(prefix))
    return spent / sample.load.requests
