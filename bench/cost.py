"""Measure the CPU time per request of several servers, which do the same job in turn in each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.load import Load, Loader
from bench.report import Table
from bench.rig import Missing
from bench.servers import CpuTime, Server

WARM_UP_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Pace:
    rounds: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The load and the processor time of one server in one round of the measurement."""

    load: Load
    cpu: Mapping[str, CpuTime]  # keys are process names

    @property
    def total(self) -> CpuTime:
        return sum(self.cpu.values(), CpuTime())

    @property
    def per_request(self) -> float:
        return self.total.total / self.load.requests


@dataclass(slots=True)
class Peer:
    """One of the servers that the benchmark compares, with the samples measured on that server.

    `start` raises Missing if this machine can't run the server.
    """

    name: str
    start: Callable[[], Server]
    loader: Loader
    samples: list[Sample] = field(default_factory=list)

    def median(self, of: Callable[[Sample], float]) -> float:
        return median(of(sample) for sample in self.samples)


def measure(peers: Sequence[Peer], pace: Pace, check: Callable[[Server, Peer], None]) -> list[str]:
    """Measure the cost of the compared servers, and store the samples in each server's `Peer`.

    Return a sentence for each server that was not measured because it is not installed.
    """
    missing: list[str] = []
    with ExitStack() as stack:
        running: list[tuple[Peer, Server]] = []
        for peer in peers:
            try:
                server = stack.enter_context(peer.start())
            except Missing as error:
                missing.append(f"{peer.name} was not measured: {error} is not installed.")
                continue
            check(server, peer)
            peer.loader.run(server.port, WARM_UP_SECONDS)
            server.settle()
            running.append((peer, server))
        for _ in range(pace.rounds):
            for peer, server in running:
                peer.samples.append(_sample(peer, server, pace.seconds))
    return missing


def per_request(sample: Sample) -> float:
    return sample.per_request


def paired(ours: Peer, theirs: Peer, cost: Callable[[Sample], float] = per_request) -> list[float]:
    """Return the cost of `ours` divided by the cost of `theirs`, for each round.

    A disturbance of the machine affects both compared servers in a round.
    """
    pairs = zip(ours.samples, theirs.samples, strict=True)
    return [cost(one) / cost(other) for one, other in pairs]


def _sample(peer: Peer, server: Server, seconds: int) -> Sample:
    before = server.cpu()
    load = peer.loader.run(server.port, seconds)
    server.settle()
    after = server.cpu()
    return Sample(load, {name: after[name] - before.get(name, CpuTime()) for name in after})


def cost_table(
    job: str,
    title: str,
    peers: Sequence[Peer],
    subject: str,
    missing: Sequence[str],
    notes: Sequence[str] = (),
) -> Table:
    """Return a table of the processor time that each compared server needs per request.

    In each round, the cost of `subject` is divided by the cost of each compared server. The table shows the
    median of these quotients.
    """
    measured = [peer for peer in peers if peer.samples]
    reference = next((peer for peer in measured if peer.name == subject), None)
    rows = []
    for peer in measured:
        costs = [sample.per_request for sample in peer.samples]
        ratio = "–"
        if reference is not None:
            ratio = f"{median(paired(reference, peer)):.2f}"
        rows.append(
            (
                peer.name,
                f"{median(costs):.1f}",
                f"{peer.median(lambda sample: sample.total.user / sample.load.requests):.1f}",
                f"{peer.median(lambda sample: sample.total.system / sample.load.requests):.1f}",
                f"{min(costs):.1f}–{max(costs):.1f}",
                f"{peer.median(lambda sample: sample.load.requests / sample.load.seconds):,.0f}",
                ratio,
            )
        )
    columns = ("server", "CPU µs/request", "user", "system", "spread", "requests/s", f"{subject} ÷ it")
    split = [_split(peer) for peer in measured if len(peer.samples[0].cpu) > 1]
    bars = [(peer.name, peer.median(lambda sample: sample.per_request)) for peer in measured]
    return Table(job, title, columns, rows, (*missing, *split, *notes), bars)


def _split(peer: Peer) -> str:
    """Return the share of each process in the processor time of a server."""

    def spent_by(name: str) -> float:
        return peer.median(lambda sample: sample.cpu[name].total / sample.load.requests)

    each = (f"{name} {spent_by(name):.1f}" for name in peer.samples[0].cpu)
    return f"Processor time of each process of the server {peer.name}, in µs per request: {', '.join(each)}."
