"""Checks before a new store is made, so that a lost earlier store is not replaced.

The first start of a control plane makes the store with its tables before all other files. The control plane
makes the files of the master key, the reserve and the search index after the store's tables. If the file of a
master key, reserve or search index exists, but the store has no tables, an earlier store was lost. If the
first start of a control plane was killed while it made the store, only the store's file exists. After such an
interrupted first start, the next start of the control plane continues to make the store.
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
    """Error because the store is missing or empty, although other files of a store exist."""


def require_store_or_first_start(store: Path, master_key: Path | None) -> None:
    """Raise StoreLost if an earlier store was lost, so that no new store replaces the lost store.

    `master_key` is the file of the master key, or None if the settings hold the key itself. Raise StoreError
    if the process can't enter a directory, because the content of the directory is then unknown.
    """
    for each in (store, master_key):
        if each is not None and (problem := foreign_above(each, os.X_OK)):
            raise StoreError(problem)
    # The order of the two checks matters: a concurrent first start makes the tables first, and the other
    # files later.
    left = _left_behind(store, master_key)
    lack = _lack(store)
    if lack is None or not left:
        return
    names = ", ".join(map(str, left))
    raise StoreLost(
        f"{store} {lack}, but files of a store exist: {names}; restore the backup of the store,"
        " or run `store new` to begin again without its contents"
    )


def require_store(store: Path, master_key: Path | None) -> None:
    """Raise NoStoreYet if no store was ever made, and StoreLost if a store was lost."""
    require_store_or_first_start(store, master_key)
    if not store.exists():
        raise NoStoreYet(str(store))


def _left_behind(store: Path, master_key: Path | None) -> list[Path]:
    """Return the existing files of a used store, except for the store's main file."""
    beside = [store.with_name(store.name + suffix) for suffix in _BESIDE]
    if not store.exists() or not store.stat().st_size:
        beside.append(store.with_name(store.name + _LOG))
    candidates = [*([] if master_key is None else [master_key]), *beside]
    return [each for each in candidates if each.exists()]


def _lack(store: Path) -> str | None:
    """Return the reason why the file cannot be a store: the file is empty, missing or without tables.

    Return None if the file has tables or can't be read.
    """
    try:
        if not store.stat().st_size:
            return "is empty (0 bytes)"
        if store.with_name(store.name + _LOG).exists():
            return None  # another process uses it or was killed while using it: its tables may be in the log
        # without `immutable`, SQLite makes files next to it
        uri = f"file:{quote(str(store))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            row = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except FileNotFoundError:
        return "is missing"
    except (OSError, sqlite3.Error):
        return None  # opening the file reports the error
    return None if row else "has no tables"


def is_store(store: Path) -> bool:
    return _lack(store) is None


def put_aside_what_is_left(store: Path) -> None:
    """Prepare the directory for a new store: rename the SQLite log of a lost store.

    If the log of the lost store kept its name, SQLite would read it as the log of the new store.
    """
    for suffix in (_LOG, "-shm"):
        path = store.with_name(store.name + suffix)
        if path.exists():
            path.replace(path.with_name(path.name + ".old"))
