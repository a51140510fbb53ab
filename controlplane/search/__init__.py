"""The search index over audit events."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from controlplane.search.interface import IndexUnavailableError, SearchIndex
from controlplane.store.interface import RETENTION_MS, Org

__all__ = ["SearchIndex", "open_index"]

_DAY_MS: Final = 86_400_000


class Settings(Protocol):
    """The settings in the section [SearchIndex]."""

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


class RegistryStore(Protocol):
    """The part of the store that gives the retention of each organisation."""

    async def orgs(self) -> list[Org]: ...


async def _tiers(store: RegistryStore) -> dict[str, int]:
    return {org.org_id: RETENTION_MS[org.retention] // _DAY_MS for org in await store.orgs()}


@contextmanager
def _needing(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise IndexUnavailableError(
            f'SearchIndex.Kind = {extra} needs the package {error.name}: pip install "graphward[{extra}]"'
        ) from error


async def open_index(
    settings: Settings, store: RegistryStore, store_path: Path, *, has_store: bool = False
) -> SearchIndex:
    """Open the search index that the settings name.

    The SQLite index is stored in `<store>.search.sqlite`. If no other process uses the store, the caller
    replaces a damaged index with a new index.
    """
    if settings.kind == "clickhouse":
        with _needing("clickhouse"):
            # imported late, because few installations need its client
            from controlplane.search.clickhouse import ClickHouseIndex

        return ClickHouseIndex(
            settings.url,
            username=settings.username,
            password=settings.password,
            ca_file=settings.ca_file,
            tiers=partial(_tiers, store),
        )
    if settings.kind == "postgresql":
        with _needing("postgresql"):
            # imported late, because few installations need its driver
            from controlplane.search.postgresql import PostgresIndex

        return PostgresIndex(settings.url)
    # imported late, because most commands do not use it
    from controlplane.search.sqlite_index import SqliteIndex

    path = store_path.with_name(store_path.name + ".search.sqlite")
    return await (SqliteIndex.open_or_begin if has_store else SqliteIndex.open)(path, store_path)
