"""Check the search index: it exists, belongs to this release, and is not far behind the store."""

from __future__ import annotations

import base64
import sqlite3
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import unquote, urlencode, urlsplit

from controlplane.database_url import address_of
from controlplane.doctor.opened import opened
from controlplane.doctor.postgres import remedy
from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.settings import SearchIndexSettings, Settings, StoreSettings
from controlplane.store.interface import StoreError
from proxy.config.tls import client_tls
from proxy.wire.finding import Finding

_NAME: Final = "search index"
_BEHIND: Final = 10_000  # number of events that an index writer writes within seconds
_UNTOLD: Final = Finding(
    _NAME, "warn", "its progress is unknown", "the findings on the store give the reason"
)
_TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1 << 20


def index(settings: Settings) -> list[Finding]:
    if not settings.store.url and not settings.store.path.exists():
        return []
    if settings.search_index.kind == "clickhouse":
        return _clickhouse(settings)
    if settings.search_index.kind == "postgresql":
        return [_postgresql(settings)]
    return [_sqlite(settings.store)]


def _sqlite(store: StoreSettings) -> Finding:
    from controlplane.search.sqlite_index import FORMAT

    path = store.path.with_name(store.path.name + ".search.sqlite")
    rebuild = f"stop the server, rm {path}*, then start it: the index is built again from the store"
    if not path.exists():
        return Finding(_NAME, "ok", f"{path}: does not exist yet; the next start builds it from the store")
    try:
        with opened(path) as connection:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found != FORMAT:
                what = (
                    f"{path}: belongs to another release (format {found}; this release has format {FORMAT})"
                )
                return Finding(_NAME, "warn", what, "the next start builds it again, which may take minutes")
            (incarnation,) = connection.execute("SELECT id FROM incarnation").fetchone()
    except sqlite3.Error as error:
        return Finding(_NAME, "fail", f"{path}: {error}", rebuild)
    return _lag(store, f"sqlite:{incarnation}", rebuild)


def _lag(store: StoreSettings, outbox: str, rebuild: str) -> Finding:
    try:
        with store_rows(store) as connection:
            (newest,) = connection.row("SELECT coalesce(max(position + count - 1), 0) FROM blocks")
            row = connection.row("SELECT position FROM outbox_cursor WHERE index_name = ?", (outbox,))
    except (Unreadable, StoreError):
        return _UNTOLD
    indexed = row[0] if row else 0
    behind = max(0, newest - indexed)
    if behind > _BEHIND:
        fix = f"wait, because the server catches up by itself; if the number does not fall, {rebuild}"
        what = f"{behind} events behind the store: {100 * indexed // newest} % are indexed"
        return Finding(_NAME, "warn", what, fix)
    return Finding(_NAME, "ok", f"{behind} events behind the store")


def _postgresql(settings: Settings) -> Finding:
    try:
        import psycopg
    except ModuleNotFoundError:
        return Finding(_NAME, "fail", "psycopg is not installed", 'pip install "graphward[postgresql]"')

    from controlplane.search.postgresql_table import FORMAT, STATE
    from controlplane.store.postgres_database import connect, reason

    url = settings.search_index.url
    try:
        with connect(url) as raw:
            state = raw.execute(f"SELECT format, incarnation FROM {STATE}".encode()).fetchone()  # noqa: S608
    except psycopg.errors.UndefinedTable:
        return Finding(_NAME, "ok", f"no table {STATE} yet; the next start makes it")
    except psycopg.Error as error:
        if url == settings.store.url:
            return _UNTOLD
        fix = remedy(reason(error), "SearchIndex.Url")
        return Finding(_NAME, "fail", f"{address_of(url)} can't be queried: {reason(error)}", fix)
    if state is None or state[0] != FORMAT:
        return Finding(
            _NAME, "warn", "of another release", "the next start builds it again, which may take hours"
        )
    rebuild = f"drop the table {STATE}: the server makes and fills the index again"
    return _lag(settings.store, f"postgresql:{state[1]}", rebuild)


def _clickhouse(settings: Settings) -> list[Finding]:
    from controlplane.search.clickhouse_table import COMMENT, DEFAULT_DATABASE, FORMAT, TABLE

    given = settings.search_index
    database = unquote(urlsplit(given.url).path.strip("/")) or DEFAULT_DATABASE
    try:
        comment = _comment(given, database, TABLE)
    except urllib.error.HTTPError as error:
        fix = "correct SearchIndex.Username and Password" if error.code in (401, 403) else "see its log"
        return [Finding(_NAME, "fail", f"ClickHouse responds with {error.code}", fix)]
    except (OSError, ValueError) as error:  # URLError is an OSError, and so is an error of TLS
        reason = getattr(error, "reason", error)
        fix = "correct SearchIndex.Url (and CaFile), or allow this machine to connect to ClickHouse"
        return [Finding(_NAME, "fail", f"can't connect to ClickHouse: {reason}", fix)]
    if not comment:
        return [Finding(_NAME, "ok", f"no table {database}.{TABLE} yet; the next start makes it")]
    found = COMMENT.fullmatch(comment)
    if found is None or int(found[1]) != FORMAT:
        what = f"the table {database}.{TABLE} belongs to another release"
        return [Finding(_NAME, "fail", what, "name another database in SearchIndex.Url")]
    rebuild = f"drop the table {database}.{TABLE}: the server makes and fills it again"
    return [_lag(settings.store, f"clickhouse:{found[2]}", rebuild)]


def _comment(given: SearchIndexSettings, database: str, table: str) -> str:
    """Return the comment of a ClickHouse table, or an empty text if the table does not exist."""
    parts = urlsplit(given.url)
    query = {
        "query": "SELECT comment FROM system.tables"
        " WHERE database = {database:String} AND name = {table:String} FORMAT TSVRaw",
        "param_database": database,
        "param_table": table,
    }
    request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}/?{urlencode(query)}")  # noqa: S310 - http(s)
    if given.username:
        pair = base64.b64encode(f"{given.username}:{given.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {pair}")
    context = client_tls(given.ca_file) if parts.scheme == "https" else None
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
        return str(response.read(_MOST_BYTES).decode("utf-8", "replace").strip())
