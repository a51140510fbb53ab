"""Check the store (integrity, release, disk space) and the master key that decrypts the store's secrets."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from controlplane.doctor.opened import has_log, opened
from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.master_key import MASTER_KEY_CHECK
from controlplane.secrets import MasterKeyError, Vault, VaultKeyError, read_master_key
from controlplane.settings import Settings, StoreSettings
from controlplane.store.beginning import StoreLost, require_store_or_first_start
from controlplane.store.interface import StoreError
from controlplane.store.migrate import newest_known, refusal
from controlplane.vault_key import VaultKey, read_vault_key
from proxy.outbound.settings import egress_of
from proxy.wire.finding import Finding

_MIB: Final = 1024 * 1024
_EXPIRES_SOON_SECONDS: Final = 14 * 86400
_CHECK_SECONDS: Final = 30.0
_LARGE_LOG: Final = 256 * _MIB  # Size of some thousand batches; checkpoints keep the log far smaller.
_LEAST_FREE: Final = 64 * _MIB
_ENOUGH_FREE: Final = 1024 * _MIB
_RESTORE: Final = "stop the server, restore a backup, remove the -wal and -shm files beside it"


def store(settings: Settings) -> list[Finding]:
    if settings.store.url:
        from controlplane.doctor.postgres import postgres

        return postgres(settings.store)
    path = settings.store.path
    if path.is_dir():
        fix = "set Store.Path to a file"
        return [Finding("store", "fail", f"{path} is a directory", fix), *_room(path)]
    try:
        require_store_or_first_start(path, settings.secrets.key_file)
    except StoreLost as error:
        fix = "restore the backup of the store, or start with an empty store: `store new`"
        return [Finding("store", "fail", str(error), fix), *_room(path)]
    if not path.exists() or not path.stat().st_size:
        return [
            Finding("store", "ok", f"{path}: does not exist yet; the first start creates it"),
            *_room(path),
        ]
    return [*_schema(path), *_whole(path), *_log(path), *_room(path), _backup(path)]


def _schema(path: Path) -> Iterator[Finding]:
    try:
        with opened(path) as connection:
            applied = dict(connection.execute("SELECT version, name FROM schema_version").fetchall())
    except sqlite3.OperationalError as error:
        yield Finding("store: schema", "fail", f"{path}: {error}", f"chown it to the server's user: {path}")
        return
    except sqlite3.DatabaseError as error:
        yield Finding("store: schema", "fail", f"{path}: {error}", _RESTORE)
        return
    version, known = max(applied, default=0), newest_known()
    if (why := refusal(applied, known)) is not None:
        fix = "start that release, or restore a backup of this release"
        yield Finding("store: schema", "fail", why, fix)
    elif version < known:
        what = f"belongs to an older release (schema {version} of {known})"
        yield Finding("store: schema", "warn", what, "take a backup: the next start upgrades it")
    else:
        yield Finding("store: schema", "ok", f"schema {version}, which this release can use")


def _whole(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size // _MIB
    try:
        was_at_rest = not has_log(path)
        said = _quick_check(path)
        if said != "ok" and was_at_rest and has_log(path):
            said = _quick_check(path)  # A server that started in between changed the file during the check.
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            what = (
                f"the check of {size} MiB did not finish within {_CHECK_SECONDS:.0f} s, and found no fault "
                "until then"
            )
            fix = f"run it when there is little load: sqlite3 {path} 'PRAGMA quick_check'"
            yield Finding("store: integrity", "warn", what, fix)
        return  # The finding on the schema reports other errors.
    except sqlite3.DatabaseError as error:
        said = str(error)
    if said == "ok":
        what = f"{size} MiB" if size else "the file"
        yield Finding("store: integrity", "ok", f"quick_check found no fault in {what}")
    else:
        yield Finding("store: integrity", "fail", f"{path}: {said}", _RESTORE)


def _quick_check(path: Path) -> str:
    with opened(path, seconds=_CHECK_SECONDS) as connection:
        return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])


def _log(path: Path) -> Iterator[Finding]:
    try:
        size = path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        size = 0
    if size > _LARGE_LOG:
        fix = "end other programs that keep the file open (a backup, a shell), or restart the server once"
        yield Finding("store: log", "warn", f"the write-ahead log has {size // _MIB} MiB", fix)
    else:
        yield Finding("store: log", "ok", f"the write-ahead log has {size // _MIB} MiB")


def _room(path: Path) -> Iterator[Finding]:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            "store: room", "fail", f"{folder} is not writable", f"chown it to the server's user: {folder}"
        )
        return
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    size = path.stat().st_size if path.exists() else 0
    what = f"{free // _MIB} MiB are free on the disk of {folder}"
    fix = f"free space there, shorten retention (`org set-retention`), or move {path} to a larger disk"
    if free < _LEAST_FREE:
        yield Finding("store: room", "fail", f"{what}: batches will soon be refused with 503", fix)
    elif free < max(_ENOUGH_FREE, size // 10):
        yield Finding("store: room", "warn", what, fix)
    else:
        yield Finding("store: room", "ok", what)


def _backup(path: Path) -> Finding:
    what = f'is not checked here; to take one: sqlite3 {path} ".backup FILE"'
    return Finding("store: backup", "ok", what)


def master_key(settings: Settings) -> list[Finding]:
    """Check that the master key decrypts the text that the first start encrypted.

    The check of the master key never creates a master key.
    """
    secrets = settings.secrets
    source, file = secrets.key_source, secrets.key_file
    try:
        sealed = _sealed(settings.store)
    except (Unreadable, StoreError):
        what = f"{source} can't be checked, because the store can't be read"
        return [Finding("master key", "warn", what, "the findings on the store give the reason")]
    if file is not None and not file.exists():
        if sealed is None:
            return [Finding("master key", "ok", f"{file}: does not exist yet; the first start creates it")]
        fix = f"restore the copy of the master key: without it, no proxy can authenticate ({file})"
        return [Finding("master key", "fail", f"{file} is missing, but the store has secrets", fix)]
    ending: list[Finding] = []
    try:
        if secrets.master_key_vault_url:
            found = asyncio.run(read_vault_key(secrets, egress_of(settings.egress)))
            vault, ending = Vault(found.key), _ending(source, found)
        else:
            vault = Vault(read_master_key(secrets.master_key, secrets.master_key_file))
        if sealed is not None:
            vault.open(MASTER_KEY_CHECK, sealed)
    except VaultKeyError as error:
        return [Finding("master key", "fail", f"{source}: {error.what}", error.cure)]
    except MasterKeyError as error:
        fix = "restore the key that belongs to this store, or the store that belongs to this key"
        return [Finding("master key", "fail", f"{source}: {error}", fix)]
    what = "is well-formed; the store has no secret yet" if sealed is None else "opens the store's secrets"
    return ending or [Finding("master key", "ok", f"{source} {what}")]


def _ending(source: str, key: VaultKey) -> list[Finding]:
    """Return a warning if the vault's key expires soon. A vault may refuse to return an expired key."""
    if key.ends_at - time.time() > _EXPIRES_SOON_SECONDS:
        return []
    when = time.strftime("%Y-%m-%d", time.gmtime(key.ends_at))
    what = f"{source} opens the store's secrets, but its version {key.version} expires on {when}"
    return [Finding("master key", "warn", what, "remove the date, or store the same key as a newer version")]


def _sealed(store: StoreSettings) -> bytes | None:
    """Return the text that the first start encrypted with the master key, or None before the first start.

    Raise Unreadable or StoreError if the store cannot be read.
    """
    if not store.url and not store.path.exists():
        return None
    catalogue = "to_regclass(?)" if store.url else "(SELECT name FROM sqlite_schema WHERE name = ?)"
    with store_rows(store) as connection:
        if connection.row(f"SELECT {catalogue}", ("master_key_check",)) == (None,):
            return None
        row = connection.row("SELECT sealed FROM master_key_check")
    return None if row is None else bytes(row[0])
