"""The lock on a SQLite file that lets only one control plane use the file.

The control plane that has the lock is always the leader.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from controlplane.store.interface import StoreError


class InUse(StoreError):
    """Error because another process has the lock on the SQLite file."""


class Alone:
    """A lock on the store's SQLite file, not on a separate lock file.

    The kernel releases the lock when the process ends.

    The class `Alone` uses an flock, which is independent of the locks that SQLite itself takes. Close this
    lock after all connections to the file are closed: closing the file also releases SQLite's locks on the
    file.
    """

    leads = True

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise InUse(
                f"{path} is in use by another control plane, and SQLite allows only one: stop the other"
                " control plane, or let both control planes use PostgreSQL"
            ) from None

    def announce(self) -> None:
        """Announce nothing, because no other control plane can use the same SQLite file."""

    async def until_leading(self) -> None:
        """Return at once, because the only control plane of a SQLite file is always the leader."""

    async def until_not_leading(self) -> None:
        await asyncio.Event().wait()

    async def run(self, on_events: Callable[[], None]) -> None:
        """Return at once, because no other control plane can use the SQLite file and store events in it."""

    async def close(self) -> None:
        os.close(self._file)
