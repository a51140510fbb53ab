"""Storage of an archive: objects that are written once, read and listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol


class StorageUnavailable(Exception):
    """The storage did not do it now; the same call may do it later. The text is one line for a person."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after  # seconds that the storage asked for


class ObjectReader(Protocol):
    """An archive to be read, wherever it lies."""

    def names(self, prefix: str = "") -> AsyncIterator[str]:
        """Give the names of the objects that begin with the prefix, in the order of their characters."""

    async def read(self, name: str) -> bytes:
        """Return the bytes of the object. Raise KeyError if there is none, or StorageUnavailable."""


class ObjectStore(ObjectReader, Protocol):
    """Storage for an archive."""

    async def create(self, name: str, body: bytes) -> bool:
        """Write the object, and return True. Return False if there is one of that name, which stays."""

    async def close(self) -> None: ...


class Folder:
    """A copy of an archive in a directory. Only its user writes there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def names(self, prefix: str = "") -> AsyncIterator[str]:
        files = (each for each in self._path.rglob("*") if each.is_file())
        for name in sorted(each.relative_to(self._path).as_posix() for each in files):
            if name.startswith(prefix):
                yield name

    async def read(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None
        except OSError as error:
            raise StorageUnavailable(f"{self._path / name}: {error.strerror}") from None
