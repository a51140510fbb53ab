"""The one question before a new store is made: whether this is a first start, or a store was lost.

A first start makes the store with its tables before anything else: the master key, the reserve and the search
index come later. So if one of these is there and the store has no table, there was a store. A start that was
killed while it made the store finds nothing but the store, and goes on.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from controlplane.store.interface import NoStoreYet, StoreError
from proxy.process.own_process import foreign_above

_BESIDE = (".reserve", ".search.sqlite")
_LOG = "-wal"


class StoreLost(StoreError):
    """The store is missing or empty, and files that belong to one are there."""


def require_store_or_first_start(store: Path, master_key: Path | None) -> None:
    """Raise StoreLost if a new store would take the place of one that was there.

    `master_key` is the file of the master key; None if the settings hold the key itself. Raises StoreError if
    a directory can't be entered, because what is in it can't be found out.
    """
    for each in (store, master_key):
        if each is not None and (problem := foreign_above(each, os.X_OK)):
            raise StoreError(problem)
    # In this order: a first start beside us makes the tables first, and then what we look for here.
    left = _left_behind(store, master_key)
    lack = _lack(store)
    if lack is None or not left:
        return
    names = ", ".join(map(str, left))
    raise StoreLost(
        f"{store} {lack}, but what belongs to a store is there: {names}; restore the backup of the store,"
        " or run `store new` to begin again without its contents"
    )


def require_store(store: Path, master_key: Path | None) -> None:
    """Raise NoStoreYet if no store was made, and StoreLost if one was."""
    require_store_or_first_start(store, master_key)
    if not store.exists():
        raise NoStoreYet(str(store))


def _left_behind(store: Path, master_key: Path | None) -> list[Path]:
    """Files that only a store that was in use leaves."""
    beside = [store.with_name(store.name + suffix) for suffix in _BESIDE]
    if not store.exists() or not store.stat().st_size:
        beside.append(store.with_name(store.name + _LOG))
    candidates = [*([] if master_key is None else [master_key]), *beside]
    return [each for each in candidates if each.exists()]


def _lack(store: Path) -> str | None:
    """Return what the store is instead of a store; None if it has tables, or can't be read."""
    try:
        if not store.stat().st_size:
            return "is empty (0 bytes)"
        if store.with_name(store.name + _LOG).exists():
            return None  # somebody works with it, or was killed while doing so: its tables may be in the log
        uri = f"file:{quote(str(store))}?mode=ro&immutable=1"  # or SQLite makes files beside it
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            row = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except FileNotFoundError:
        return "is missing"
    except (OSError, sqlite3.Error):
        return None  # opening it says what is wrong
    return None if row else "has no tables"


def is_store(store: Path) -> bool:
    return _lack(store) is None


def put_aside_what_is_left(store: Path) -> None:
    """Let a new store begin: the log of the lost one would be taken for the new one's."""
    for suffix in (_LOG, "-shm"):
        path = store.with_name(store.name + suffix)
        if path.exists():
            path.replace(path.with_name(path.name + ".old"))
