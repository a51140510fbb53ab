"""Check the store in PostgreSQL: connection, release, durability, and number of connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from controlplane.database_url import NAME_AUTHORITY, is_authority_unknown
from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.settings import StoreSettings
from controlplane.store.database import Connection
from controlplane.store.interface import StoreError
from controlplane.store.migrate import refusal
from proxy.wire.finding import Finding

_MIB: Final = 1024 * 1024
_LONG_SECONDS: Final = 600
# Words of an error by the driver or the server, and the remedy
_REMEDIES: Final = {
    "password authentication failed": "correct the user and the password in {}",
    "no password supplied": "add the password to {}",
    "no pg_hba.conf entry": "add this host to pg_hba.conf of the server, or correct {}",
    " does not exist": (
        "create the missing user or database at the server (createuser, createdb), or correct {}"
    ),
    "permission denied": "grant the user the privileges in the database, or name another user in {}",
    "failed to resolve": "correct the host in {}, or this machine's name service",
    "could not translate": "correct the host in {}, or this machine's name service",
    "onnection refused": "start the server, or correct host and port in {}",
    "certificate": "correct the sslmode and sslrootcert in {}, or the certificate of the server",
    "SSL": "turn on TLS at the server, or correct the sslmode in {}",
    "query parameter": "correct the parameters after ? in {}",
    "graphward[postgresql]": "install it where the control plane runs",
}
_NEEDED: Final = 20  # connections of one control plane, and some for commands


def postgres(settings: StoreSettings) -> list[Finding]:
    try:
        with store_rows(settings) as connection:
            return [
                *_copy(connection),
                *_schema(connection),
                *_durability(connection),
                *_room_for_connections(connection),
                *_long_transactions(connection),
                _backup(connection),
            ]
    except (Unreadable, StoreError) as error:
        fix = remedy(str(error), "Store.Url")
        return [Finding("store", "fail", f"the database can't be read: {error}", fix)]


def remedy(reason: str, key: str) -> str:
    """Return the remedy for an error in connecting to the database, whose URL is in the setting `key`."""
    given = f"{key} (or {key.rpartition('.')[2]}File)"
    if is_authority_unknown(reason):
        return NAME_AUTHORITY.format(given)
    known = next((remedy for symptom, remedy in _REMEDIES.items() if symptom in reason), None)
    return (known or "correct {}, or allow this machine to connect to the database").format(given)


def _copy(connection: Connection) -> Iterator[Finding]:
    from controlplane.store.postgres_migrate import MARK

    if connection.row("SELECT to_regclass(?)", (MARK,)) != (None,):
        what = "a copy into the database is not finished: no control plane and no command opens it"
        yield Finding("store", "fail", what, "run the same `store copy` again: it continues")


def _schema(connection: Connection) -> Iterator[Finding]:
    from controlplane.store.postgres_migrate import migrations

    if connection.row("SELECT to_regclass('schema_version')") == (None,):
        yield Finding("store", "ok", "the database has no tables yet; the first start makes them")
        return
    applied: dict[int, str] = dict(connection.rows("SELECT version, name FROM schema_version"))
    newest, known = max(applied, default=0), migrations()[-1][0]
    why = refusal(applied, known)
    if why is not None:
        yield Finding("store: schema", "fail", why, "start that release, or restore a backup of this release")
    elif newest < known:
        what = f"belongs to an older release (schema {newest} of {known})"
        yield Finding("store: schema", "warn", what, "take a backup: the next start upgrades it")
    else:
        yield Finding("store: schema", "ok", f"schema {newest}, which this release can use")


def _durability(connection: Connection) -> Iterator[Finding]:
    """Check that the database server reports a commit only after the commit is on disk.

    The control plane acknowledges a batch only after the database server has reported the commit of the
    batch.
    """
    for name in ("fsync", "full_page_writes"):
        (value,) = connection.row("SELECT current_setting(?)", (name,))
        if value != "on":
            what = f"{name} is {value} on the server: a crash can lose acknowledged batches"
            yield Finding("store: durability", "fail", what, f"set {name} = on in postgresql.conf")
            return
    yield Finding("store: durability", "ok", "the server writes commits to disk")


def _room_for_connections(connection: Connection) -> Iterator[Finding]:
    most, used = connection.row(
        "SELECT CAST(current_setting('max_connections') AS bigint), (SELECT count(*) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend')"
    )
    what = f"{used} of {most} connections are in use"
    if most - used < _NEEDED:
        fix = f"raise max_connections: each control plane needs up to {_NEEDED}"
        yield Finding("store: connections", "warn", what, fix)
    else:
        yield Finding("store: connections", "ok", what)


def _long_transactions(connection: Connection) -> Iterator[Finding]:
    row = connection.row(
        "SELECT pid, coalesce(application_name, ''), CAST(extract(epoch FROM now() - xact_start) AS bigint)"
        " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND xact_start < now() - make_interval(secs => ?) ORDER BY xact_start LIMIT 1",
        (float(_LONG_SECONDS),),
    )
    if row is not None:
        pid, name, seconds = row
        what = f"process {pid} ({name or 'unnamed'}) has had a transaction open for {seconds // 60} minutes"
        fix = f"end it, or its rows can't be vacuumed: SELECT pg_terminate_backend({pid})"
        yield Finding("store: transactions", "warn", what, fix)


def _backup(connection: Connection) -> Finding:
    (size,) = connection.row("SELECT pg_database_size(current_database())")
    what = (
        f"the database has {size // _MIB} MiB; back it up at the server (pg_dump, or an archive of its WAL)"
    )
    return Finding("store: backup", "ok", what)
