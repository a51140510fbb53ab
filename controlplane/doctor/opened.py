"""A SQLite file opened for a look: read-only, and given up soon where it is busy."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

_BUSY_SECONDS: Final = 5.0
_STEPS: Final = 100_000  # of SQLite's machine between two looks at the time


def has_log(path: Path) -> bool:
    """Whether somebody works with the file, or was killed while doing so."""
    return path.with_name(path.name + "-wal").exists()


@contextmanager
def opened(path: Path, *, seconds: float = 10.0) -> Iterator[sqlite3.Connection]:
    """Each statement ends with OperationalError (interrupted) once so many seconds are over."""
    # A file that nobody has open has no log, and SQLite would make one that a reader can't remove again.
    how = "mode=ro" if has_log(path) else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=_BUSY_SECONDS)
    ends = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
    try:
        yield connection
    finally:
        connection.close()
