"""Storage for an archive: objects that are written once, and can be read and listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol


class StorageUnavailable(Exception):
    """Error because the storage did not complete a call. The caller may try the storage call again.

    The text of the StorageUnavailable error is one line for a person.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after  # delay in seconds that the storage requested


class ObjectReader(Protocol):
    """Read access to an archive, in object storage or in a directory."""

    def names(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield the names of the stored objects that begin with the prefix, sorted by their characters."""

    async def read(self, name: str) -> bytes:
        """Return the bytes of the stored object that has this name.

        Raise KeyError if the object does not exist, or StorageUnavailable if it can't be read.
        """


class ObjectStore(ObjectReader, Protocol):
    """Object storage into which an archive is written."""

    async def create(self, name: str, body: bytes) -> bool:
        """Write an object under a name, and return True if no other object had the name.

        Return False if the storage already contains an object with the given name. `create` never changes an
        object that exists.
        """

    async def close(self) -> None: ...


class Folder:
    """A copy of an archive of audit events, in a directory.

    The control plane never writes to a directory that contains a copy of an archive.
    """

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
