"""The search index over audit events."""

from pathlib import Path
from typing import Protocol

from controlplane.search.interface import SearchIndex

__all__ = ["SearchIndex", "open_index"]


class Settings(Protocol):
    """The section [SearchIndex] of the settings."""

    @property
    def kind(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def username(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def ca_file(self) -> Path | None: ...


async def open_index(settings: Settings, store_path: Path, *, has_store: bool = False) -> SearchIndex:
    """The SQLite index lies beside the store: `<store>.search.sqlite`. Who has the store to itself begins
    another one where that is damaged."""
    if settings.kind == "opensearch":
        from controlplane.search.opensearch import OpenSearchIndex  # aiohttp's client, which few need

        return OpenSearchIndex(
            settings.url, username=settings.username, password=settings.password, ca_file=settings.ca_file
        )
    from controlplane.search.sqlite_index import SqliteIndex  # of no use to most commands

    path = store_path.with_name(store_path.name + ".search.sqlite")
    return await (SqliteIndex.open_or_begin if has_store else SqliteIndex.open)(path, store_path)
