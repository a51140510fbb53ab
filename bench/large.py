"""Measure downloads and uploads of large bodies, in bytes for each second of processor time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from bench.cost import Pace, Peer, Sample, measure
from bench.graphward import ANYTHING
from bench.load import Loader, head
from bench.report import Table
from bench.rig import LARGE_BYTES, Rig
from bench.servers import Server

PATH: Final = "/v1.0/large"
JSON_PATH: Final = "/v1.0/large-json"
CONNECTIONS: Final = 4


def bodies(rig: Rig, pace: Pace) -> Table:
    down, json_down = (
        [
            Peer("nginx", rig.nginx, _loader(rig, path)),
            Peer("graphward", lambda: rig.graphward(rules=ANYTHING), _loader(rig, path)),
        ]
        for path in (PATH, JSON_PATH)
    )
    own = rig.upstream.own
    up = [
        Peer("nginx", lambda: rig.nginx(upstream_port=own), _loader(rig, PATH, upload=True)),
        Peer(
            "graphward",
            lambda: rig.graphward(rules=ANYTHING, upstream_port=own),
            _loader(rig, PATH, upload=True),
        ),
    ]
    missing = measure(down, pace, _no_proof)
    missing += measure(json_down, pace, _no_proof)
    with rig.start_own_upstream():
        missing += measure(up, pace, _no_proof)
    rows = [
        *_rows("down", down, _bytes_read),
        *_rows("down, JSON", json_down, _bytes_read),
        *_rows("up", up, _bytes_sent),
    ]
    columns = ("server", "MB per CPU second", "spread", "MB/s", "graphward ÷ it")
    notes = [
        (
            "nginx forwards without evaluation. The goal of graphward is at least 0.8 of the bytes that "
            "nginx forwards per CPU second."
        ),
        "graphward searches every byte of a JSON response for links that would bypass the proxy.",
    ]
    title = f"bodies of {LARGE_BYTES >> 20} MB, {CONNECTIONS} connections"
    return Table("LARGE", title, columns, rows, (*missing, *notes))


def _no_proof(server: Server, peer: Peer) -> None:
    """Check nothing here, because the load client fails at an unexpected response."""


def _loader(rig: Rig, path: str, *, upload: bool = False) -> Loader:
    request = head(path, rig.token).replace(b"#id#", b"0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f")
    if upload:
        request = request.replace(b"GET ", b"PUT ", 1).replace(
            b"\r\n\r\n",
            b"\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n" % LARGE_BYTES,
        )
        request += b"x" * LARGE_BYTES
    file: Path = rig.run / f"large-{'up' if upload else 'down'}-{path.rpartition('/')[2]}.head"
    file.write_bytes(request)
    return Loader(file, connections=CONNECTIONS)


def _bytes_read(sample: Sample) -> float:
    return sample.load.bytes_read


def _bytes_sent(sample: Sample) -> float:
    return sample.load.requests * LARGE_BYTES


def _rows(way: str, peers: list[Peer], moved: Callable[[Sample], float]) -> list[tuple[str, ...]]:
    def rate(sample: Sample) -> float:
        return moved(sample) / sample.total.total  # bytes per microsecond equal MB per second

    ours = peers[-1].samples
    rows: list[tuple[str, ...]] = []
    for peer in peers:
        rates = [rate(sample) for sample in peer.samples]
        ratio = median(rate(own) / other for own, other in zip(ours, rates, strict=True))
        speed = peer.median(lambda sample: moved(sample) / sample.load.seconds / 1e6)
        spread = f"{min(rates):,.0f}–{max(rates):,.0f}"
        rows.append((f"{peer.name}, {way}", f"{median(rates):,.0f}", spread, f"{speed:,.0f}", f"{ratio:.2f}"))
    return rows
