"""Open a SQLite file read-only for a check, with time limits."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

_BUSY_SECONDS: Final = 5.0
_STEPS: Final = 100_000  # SQLite instructions between two checks of the time limit


def has_log(path: Path) -> bool:
    """Return True if a process has the SQLite file open, or was killed while the file was open."""
    return path.with_name(path.name + "-wal").exists()


@contextmanager
def opened(path: Path, *, seconds: float = 10.0) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection to the SQLite file.

    If a SQL statement runs when the time limit passes, the statement fails with OperationalError
    (interrupted).
    """
    # A file that is not open has no log. SQLite would create one that a reader can't remove again.
    how = "mode=ro" if has_log(path) else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=_BUSY_SECONDS)
    ends = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
    try:
        yield connection
    finally:
        connection.close()
