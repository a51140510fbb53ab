"""Measure the memory of Graphward at the start and per idle connection, and the time until it is ready."""

from __future__ import annotations

import re
import resource
import socket
import statistics
import time
from pathlib import Path
from typing import Final

from bench.cost import Pace
from bench.graphward import ALLOW
from bench.load import ONE_PATH, head
from bench.report import Table
from bench.rig import Rig
from bench.servers import Server, ServerFailed

CONNECTIONS: Final = 10_000
_KIND: Final = re.compile(r"^(Rss|Pss|Private_Clean|Private_Dirty):\s+(\d+) kB", re.MULTILINE)


def taken(rig: Rig, pace: Pace) -> Table:
    request = head(ONE_PATH, rig.token).replace(b"#user#", b"1").replace(b"#id#", b"1")
    starts = [_seconds_to_ready(rig, request) for _ in range(pace.rounds)]
    with rig.graphward(rules=ALLOW) as server:
        _response(server.port, request).close()
        server.settle()
        sizes = {name: _memory(pid) for pid, name in server.processes().items()}
        worker = _worker(server)
        per_connection = _per_connection(server.port, worker, request)
    rows = [
        (f"{name} at the start", f"{size['Rss'] / 1024:.1f} MB", f"{size['Pss'] / 1024:.1f} MB", goal)
        for name, size in sizes.items()
        for goal in ("≤ 60 MB" if "worker" in name else "–",)
    ]
    rows.append((f"one of {CONNECTIONS:,} idle connections", f"{per_connection:.1f} KB", "–", "≤ 6 KB"))
    spread = f"{min(starts):.2f}–{max(starts):.2f} s"
    rows.append(("start to first response", f"{statistics.median(starts):.2f} s", spread, "≤ 0.5 s"))
    notes = [
        (
            "The figures of processes are resident memory, and proportional memory (shared pages divided by "
            "the number of processes)."
        ),
        (
            "The figure of a connection counts only private memory of the worker in user space. The figures "
            "of the start are the median and the spread of its time."
        ),
    ]
    columns = ("what", "measured", "share or spread", "goal")
    return Table("MEMORY", "memory and start of graphward", columns, rows, notes)


def _seconds_to_ready(rig: Rig, request: bytes) -> float:
    server = rig.graphward(rules=ALLOW)
    with server:
        _response(server.port, request).close()
        return time.monotonic() - server.started


def _response(port: int, request: bytes) -> socket.socket:
    """Open a connection and read one response."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(request)
    response = connection.recv(65536)
    if not response.startswith(b"HTTP/1.1 200 "):
        raise ServerFailed(f"graphward responses {response[:40]!r}")
    return connection


def _per_connection(port: int, worker: int, request: bytes) -> float:
    """Return the KB of private memory of an idle connection after its first request."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    for _ in range(100):  # Memory that the first requests allocate does not belong to a connection.
        _response(port, request).close()
    before = _private(worker)
    connections = [_response(port, request) for _ in range(CONNECTIONS)]
    after = _private(worker)
    for connection in connections:
        connection.close()
    return (after - before) / CONNECTIONS


def _worker(server: Server) -> int:
    return next(pid for pid, name in server.processes().items() if name.startswith("gw-worker"))


def _private(pid: int) -> int:
    memory = _memory(pid)
    return memory["Private_Clean"] + memory["Private_Dirty"]


def _memory(pid: int) -> dict[str, int]:
    """Return the kilobytes of a process's memory by kind of memory."""
    return {kind: int(size) for kind, size in _KIND.findall(Path(f"/proc/{pid}/smaps_rollup").read_text())}
