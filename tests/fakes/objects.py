"""Object storage in memory that refuses to overwrite a name, as Azure Blob and S3 optionally do."""

from __future__ import annotations

from collections.abc import AsyncIterator


class MemoryObjects:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused = 0  # number of objects that existed already

    async def create(self, name: str, body: bytes) -> bool:
        if name in self.objects:
            self.refused += 1
            return False
        self.objects[name] = body
        return True

    async def read(self, name: str) -> bytes:
        return self.objects[name]

    async def names(self, prefix: str = "") -> AsyncIterator[str]:
        for name in sorted(self.objects):
            if name.startswith(prefix):
                yield name

    async def close(self) -> None:
        """Do nothing, because object storage in memory has nothing to close."""
