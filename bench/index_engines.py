"""Start search engines, to measure the search index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.clickhouse import SERVER_URL, clickhouse
from tests.fakes.postgres import postgres_server

ENGINES: Final = ("sqlite", "postgresql", "clickhouse")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Settings section [SearchIndex] for a search engine, and the process id of a server engine."""

    kind: str
    url: str = ""
    username: str = ""
    password: str = ""
    ca_file: Path | None = None
    process: int | None = None

    @property
    def section(self) -> str:
        return f'\n[SearchIndex]\nKind = "{self.kind}"\nUrl = "{self.url}"\n' if self.url else ""


@contextmanager
def engine(kind: str, directory: Path) -> Iterator[IndexSettings]:
    """Start the search engine with its files in the directory, if the engine is a server process."""
    if kind == "clickhouse" and SERVER_URL:
        yield IndexSettings(kind, SERVER_URL)
    elif kind == "clickhouse":
        with clickhouse(directory / "clickhouse") as running:
            yield IndexSettings(kind, running.url, process=running.pid)
    elif kind == "postgresql":
        with postgres_server() as server, server.new_database("bench") as url:
            yield IndexSettings(kind, url, process=server.pid)
    else:
        yield IndexSettings(kind)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of all its children."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # The process has ended.
            number, _, rest = stat.read_text().partition(" ")
            fields = rest.rpartition(") ")[2].split()
            if pid == int(number):
                ticks += sum(map(int, fields[11:15]))
            elif pid == int(fields[1]):
                ticks += sum(map(int, fields[11:13]))
    return ticks / _TICKS
