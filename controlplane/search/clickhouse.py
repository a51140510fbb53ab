"""The search index in ClickHouse, which holds each event once, with its body, even after failed writes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import aiohttp
from clickhouse_connect.driver import create_async_client
from clickhouse_connect.driver.exceptions import ClickHouseError

from controlplane.search.clickhouse_table import (
    COMMENT,
    DEFAULT_DATABASE,
    FORMAT,
    INSERTED,
    INSERTED_TYPES,
    KEEP_DAYS,
    TABLE,
    ClickHouseDialect,
    add_columns,
    bound,
    columns_of,
    create_table,
)
from controlplane.search.document import Document, UnsearchableError, read_document
from controlplane.search.fair_queue import FairQueue
from controlplane.search.interface import (
    MAX_LIMIT,
    MAX_PAGE_BYTES,
    Event,
    Facets,
    Histogram,
    IndexMovedError,
    IndexUnavailableError,
    SearchPage,
    SearchQuery,
)
from controlplane.search.known_event import Parsed
from controlplane.search.query import FIELDS
from controlplane.search.sql import (
    COUNTED_MATCHES,
    Condition,
    Key,
    all_of,
    newest_first,
    one_of,
    page_condition,
    past_retention,
    read_cursor,
    write_cursor,
)
from controlplane.store.interface import RETENTION_MS, GivenOut, StoredEvent
from proxy.policy.redaction import shortened

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

T = TypeVar("T")

log = logging.getLogger(__name__)

Tiers = Callable[[], Awaitable[Mapping[str, int]]]
"""Each organisation's retention in days."""

_HISTOGRAM_SECONDS: Final = 2.0
_PAGE_SECONDS: Final = 2.0  # time limit in seconds of each query of a page
_PAGES: Final = 8  # number of pages that are queried at the same time
_CONNECT_SECONDS: Final = 10
_REPLY_SECONDS: Final = 60
# The server ends a query whose client has disconnected or has stopped waiting.
_READING: Final = {"max_execution_time": _REPLY_SECONDS, "cancel_http_readonly_queries_on_client_close": 1}
_TIERS_SECONDS: Final = 60.0  # a changed tier is applied to new events within this time
_LONGEST_DAYS: Final = max(RETENTION_MS.values()) // 86_400_000
_TIMED_OUT: Final = frozenset({159, 160})  # ClickHouse's error codes of a query that takes too long
_CODE: Final = re.compile(r"[Cc]ode: (\d+)")
# Events of several organisations are not stored in the order of time. The newest are searched in ever longer
# spans of time, so that a page reads little of a large table.
_SPANS_MS: Final = (3_600_000, 2 * 86_400_000, 30 * 86_400_000)
_DIALECT: Final = ClickHouseDialect()


class ClickHouseIndex:
    """The search index in a ClickHouse database.

    `url` is the address of ClickHouse's HTTP interface, with the database as its path.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str = "",
        password: str = "",
        ca_file: Path | None = None,
        tiers: Tiers,
    ) -> None:
        given = urlsplit(url)
        self._database = unquote(given.path.strip("/")) or DEFAULT_DATABASE
        self._address: dict[str, Any] = {
            "interface": given.scheme,
            "host": given.hostname or "",
            "port": given.port or (8443 if given.scheme == "https" else 8123),
            "username": username or unquote(given.username or "") or None,
            "password": password or unquote(given.password or ""),
            "ca_cert": None if ca_file is None else str(ca_file),
        }
        self._where = f"{given.scheme}://{given.hostname}:{self._address['port']}/{self._database}"
        self._tiers = tiers
        self._days: Mapping[str, int] = {}
        self._days_until = 0.0
        self._client: AsyncClient | None = None
        self._incarnation: str | None = None
        self._is_checked = False  # True if the table holds the events up to the store's position
        self._preparing = asyncio.Lock()
        # keeps many searches of one organisation from delaying those of another
        self._finding = FairQueue(_PAGES)

    def __repr__(self) -> str:
        return f"<ClickHouseIndex {self._where}>"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def outbox_name(self) -> str:
        """Name under which the store's outbox records the progress of the ClickHouse table.

        If the ClickHouse table is dropped and created again, the store's outbox records the progress of the
        new table under a new name.
        """
        async with self._preparing:
            if self._incarnation is None:
                self._incarnation = await self._prepared()
                self._is_checked = False
            return f"clickhouse:{self._incarnation}"

    async def _prepared(self) -> str:
        """Create the database and the table if they are missing.

        Return the ID that distinguishes the table from earlier tables of the same name.
        """
        await self._make_database()
        await self._command(create_table(f"graphward search index, format {FORMAT}, {uuid.uuid4()}"))
        incarnation = await self._present()
        columns = (
            "SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"
        )
        rows = await self._rows(columns, {"database": self._database, "table": TABLE})
        for statement in add_columns({str(name) for (name,) in rows}):
            await self._command(statement)
        return incarnation

    async def _make_database(self) -> None:
        """Create the ClickHouse database only if it is missing.

        A user without the right to create databases can therefore use an existing ClickHouse database.
        """
        client = await self._connected()
        client.database = None
        known = await self._rows(
            "SELECT name FROM system.databases WHERE name = {database:String}", {"database": self._database}
        )
        if not known:
            await self._command(
                "CREATE DATABASE IF NOT EXISTS {database:Identifier}", {"database": self._database}
            )
        client.database = self._database

    async def _present(self) -> str:
        """Return the ID that distinguishes the existing table from earlier tables of the same name."""
        comment = (
            "SELECT comment FROM system.tables WHERE database = {database:String} AND name = {table:String}"
        )
        rows = await self._rows(comment, {"database": self._database, "table": TABLE})
        if not rows:
            raise self._unavailable(f"the table {TABLE} was dropped")
        found = COMMENT.fullmatch(str(rows[0][0]))
        if found is None:
            raise self._unavailable(
                f"the table {TABLE} belongs to another program: set another database in SearchIndex.Url"
            )
        if int(found[1]) != FORMAT:
            raise self._unavailable(
                f"the table has format {found[1]} of another release, and this release uses format {FORMAT}"
            )
        return found[2]

    # -- writing --

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        await self.outbox_name()
        await self._insert(events, _token_of(events))

    async def write_parsed(self, batches: Sequence[Parsed], after: int = 0) -> None:
        await self.write(
            [
                StoredEvent(position, batch.org_id, bytes(body))
                for batch in batches
                for position, body in enumerate(batch.bodies, batch.position)
            ]
        )

    async def write_range(self, events: Sequence[Event], given: GivenOut) -> None:
        await self._require_known(given.after)
        await self._insert(events, given.token)

    async def _require_known(self, after: int) -> None:
        """Raise IndexMovedError if the table lacks events up to the position `after`.

        A table that lacks events was dropped, or was restored from a copy.
        """
        known = await self.outbox_name()
        try:
            self._incarnation = await self._present()
        except IndexUnavailableError:
            self._incarnation = None
            raise
        if await self.outbox_name() != known:
            raise IndexUnavailableError(
                f"{self._where}: the table was created again, so the control plane fills it from the"
                " first event"
            )
        if self._is_checked or not after:
            return
        reached = await self._reached(after)
        if reached < after:
            raise IndexMovedError(
                f"{self._where}: the index has events only up to position {reached}, and lacks events up to"
                f" position {after}",
                reached,
            )
        self._is_checked = True

    async def _reached(self, after: int) -> int:
        """Return the position of the newest event in the table.

        The query reads the newest positions first, because ClickHouse finds these positions by an index.
        """
        for least in (after - COUNTED_MATCHES, 0):
            newest = f"SELECT max(position) FROM {TABLE} WHERE position >= {{least:Int64}}"
            ((position,),) = await self._rows(newest, {"least": least})
            if position:
                break
        return int(position)

    async def _insert(self, events: Sequence[Event], token: str) -> None:
        days = await self._kept_days({event.org_id for event in events})
        columns = await asyncio.to_thread(_columns, events, days)
        if not columns[0]:
            return
        client = await self._connected()
        try:
            await client.insert(
                TABLE,
                columns,
                column_names=INSERTED,
                column_type_names=INSERTED_TYPES,
                column_oriented=True,
                settings={
                    "insert_deduplication_token": token,
                    "async_insert": 0,
                    "max_partitions_per_insert_block": 0,
                },
            )
        except (ClickHouseError, aiohttp.ClientError, OSError, TimeoutError) as error:
            self._is_checked = False
            raise self._unavailable(error) from error

    async def _kept_days(self, org_ids: set[str]) -> Mapping[str, int]:
        now = time.monotonic()
        if now >= self._days_until or not org_ids <= self._days.keys():
            self._days = await self._tiers()
            self._days_until = now + _TIERS_SECONDS
        return self._days

    # -- retention --

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        await self.outbox_name()
        await self._apply_tier(org_id)
        due, values = bound(all_of([one_of("org", [org_id]), past_retention(before_ms, newest)]))
        oldest = (
            "SELECT happened, count(), max((time, position)) FROM (SELECT happened, time, position"
            f" FROM {TABLE} WHERE {due} ORDER BY time, position LIMIT {{limit:UInt64}}) GROUP BY happened"
        )
        found = await self._rows(oldest, {**values, "limit": limit})
        purged = sum(int(count) for _, count, _ in found)
        if purged:
            last_ms, last_position = max(last for _, _, last in found)
            values |= {"last_ms": last_ms, "last_position": last_position}
            for month in sorted({f"{happened:%Y%m}" for happened, _, _ in found}):
                await self._command(
                    f"DELETE FROM {TABLE} IN PARTITION {month}"
                    f" WHERE {due} AND (time, position) <= ({{last_ms:Int64}}, {{last_position:Int64}})",
                    values,
                )
        return purged

    async def _apply_tier(self, org_id: str) -> None:
        """Apply the organisation's current retention tier to stored events that have a different tier."""
        days = (await self._tiers()).get(org_id, _LONGEST_DAYS)
        values = {"org": org_id, "days": days, "database": self._database, "table": TABLE}
        other = f"org = {{org:String}} AND {KEEP_DAYS} != {{days:UInt16}}"
        if not await self._rows(f"SELECT 1 FROM {TABLE} WHERE {other} LIMIT 1", values):
            return
        under_way = (
            "SELECT 1 FROM system.mutations"
            " WHERE database = {database:String} AND table = {table:String} AND NOT is_done LIMIT 1"
        )
        if not await self._rows(under_way, values):
            await self._command(
                f"ALTER TABLE {TABLE} UPDATE {KEEP_DAYS} = {{days:UInt16}} WHERE {other}", values
            )

    # -- reading --

    async def search(self, query: SearchQuery) -> SearchPage:
        limit = max(1, min(query.limit, MAX_LIMIT))
        before = None if query.cursor is None else read_cursor(query.cursor)
        await self.outbox_name()
        async with self._finding.of(query.org_ids):
            rows, left = await self._newest_rows(query, before, limit + 1)
            read = _read_of(rows, limit)
            if read < len(rows):
                left = rows[read - 1][1], rows[read - 1][2]
            bodies = await self._bodies([row[:3] for row in rows[:read]])
        return SearchPage(bodies, None if left is None else write_cursor(left))

    async def _newest_rows(
        self, query: SearchQuery, before: Key | None, limit: int
    ) -> tuple[Sequence[tuple[Any, ...]], Key | None]:
        """Return the rows of the newest events that match the query.

        If the query reached its time limit, also return the key from which a next query finds older matches.
        """

        async def rows_of(narrowed: SearchQuery) -> Sequence[tuple[Any, ...]]:
            condition, values = bound(_page(narrowed, before))
            newest = f"SELECT org, time, position, size FROM {TABLE} WHERE {condition}"
            newest += f" ORDER BY {newest_first(_DIALECT)} LIMIT {{limit:UInt64}}"
            settings = {"max_execution_time": _PAGE_SECONDS}
            return await self._rows(newest, {**values, "limit": limit}, settings)

        try:
            return await _widening(query, before, rows_of, lambda rows: len(rows) == limit), None
        except _TooLongError:
            spans = _spans(query, before)
        for from_ms in reversed(spans):
            with suppress(_TooLongError):
                return await rows_of(replace(query, from_ms=from_ms)), (from_ms, 0)
        raise self._unavailable(
            "searching one hour of events takes too long: give an app, a path or a shorter time"
        )

    async def _bodies(self, keys: Sequence[tuple[Any, ...]]) -> tuple[bytes, ...]:
        """Return the texts of the audit events with the given index keys.

        The query reads the texts of events only for the events on one page of results.
        """
        if not keys:
            return ()
        orgs, times, positions = (sorted(set(column)) for column in zip(*keys, strict=True))
        rows = await self._rows(
            f"SELECT org, time, position, body FROM {TABLE} WHERE org IN {{orgs:Array(String)}}"
            " AND time IN {times:Array(Int64)} AND position IN {positions:Array(Int64)}",
            {"orgs": orgs, "times": times, "positions": positions},
        )
        bodies = {row[:3]: row[3] for row in rows}
        # A row that was written twice is one event, even before ClickHouse has merged the two.
        return tuple(bodies[key].encode() for key in dict.fromkeys(keys) if key in bodies)

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        await self.outbox_name()
        condition, values = bound(_page(SearchQuery(None if org_ids is None else tuple(org_ids)), None))
        ends = f"SELECT count(), min(time), max(time) FROM {TABLE} WHERE {condition}"
        ((count, least, most),) = await self._rows(ends, values)
        return (int(least), int(most)) if count else None

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets:
        await self.outbox_name()

        async def counts_of(narrowed: SearchQuery) -> Facets:
            newest, values = _newest(", ".join(dict.fromkeys(fields)) or "org", narrowed)
            rows = await self._rows(
                f"SELECT each.1 AS number, min(each.2) AS spelling, count() AS matches"
                f" FROM (SELECT arrayJoin({_pairs(fields)}) AS each FROM ({newest})) WHERE each.2 IS NOT NULL"
                " GROUP BY number, lower(each.2) ORDER BY matches DESC, spelling"
                " LIMIT {top:UInt64} BY number",
                {**values, "top": top},
            )
            counts: dict[str, list[tuple[str, int]]] = {name: [] for name in fields}
            counted = 0
            for number, spelling, matches in rows:
                if number == len(fields):
                    counted = int(matches)
                else:
                    counts[fields[number]].append((str(spelling), int(matches)))
            found = {name: tuple(listed) for name, listed in counts.items()}
            return Facets(found, counted, complete=counted < COUNTED_MATCHES)

        return await _widening(query, None, counts_of, lambda facets: not facets.complete)

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram:
        await self.outbox_name()
        condition, values = bound(_page(query, None))
        every = f"SELECT time FROM {TABLE} WHERE {condition}"
        try:
            buckets = await self._buckets(every, values, interval_ms, seconds=_HISTOGRAM_SECONDS)
            return Histogram(buckets, complete=True)
        except _TooLongError:
            log.info(
                "a histogram took more than %.0f s and counts only the newest events", _HISTOGRAM_SECONDS
            )

        async def newest_of(narrowed: SearchQuery) -> tuple[tuple[int, int], ...]:
            return await self._buckets(*_newest("time", narrowed), interval_ms)

        newest = await _widening(query, None, newest_of, lambda each: _count(each) >= COUNTED_MATCHES)
        return Histogram(newest, complete=False)

    async def _buckets(
        self, source: str, values: Mapping[str, object], interval_ms: int, seconds: float = _REPLY_SECONDS
    ) -> tuple[tuple[int, int], ...]:
        rows = await self._rows(
            f"SELECT time - positiveModulo(time, {{interval:Int64}}) AS start, count() FROM ({source})"
            " GROUP BY start ORDER BY start",
            {**values, "interval": interval_ms},
            {"max_execution_time": seconds},
        )
        return tuple((int(start), int(count)) for start, count in rows)

    # -- ClickHouse --

    async def _connected(self) -> AsyncClient:
        if self._client is None:
            try:
                self._client = await create_async_client(
                    **self._address,
                    connect_timeout=_CONNECT_SECONDS,
                    send_receive_timeout=_REPLY_SECONDS,
                    autogenerate_session_id=False,
                    form_encode_query_params=True,  # a filter with many values is too long for an address
                )
            except (ClickHouseError, aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unavailable(error) from error
        return self._client

    async def _rows(
        self, sql: str, values: Mapping[str, object], settings: Mapping[str, object] | None = None
    ) -> Sequence[tuple[Any, ...]]:
        client = await self._connected()
        try:
            result = await client.query(
                sql, parameters=dict(values), settings={**_READING, **(settings or {})}
            )
        except (ClickHouseError, aiohttp.ClientError, OSError, TimeoutError) as error:
            if _code(error) in _TIMED_OUT:
                raise _TooLongError(f"{self._where}: {_excerpt(error)}") from error
            raise self._unavailable(error) from error
        return [tuple(row) for row in result.result_rows]

    async def _command(self, sql: str, values: Mapping[str, object] | None = None) -> None:
        client = await self._connected()
        try:
            await client.command(sql, parameters=dict(values or {}))
        except (ClickHouseError, aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, what: str | Exception) -> IndexUnavailableError:
        text = what if isinstance(what, str) else _excerpt(what)
        return IndexUnavailableError(f"search index at {self._where}: {text}")


class _TooLongError(IndexUnavailableError):
    """Error because ClickHouse stopped a query at its time limit."""


def _code(error: Exception) -> int:
    found = _CODE.search(str(error))
    return int(found[1]) if found else 0


def _excerpt(error: Exception) -> str:
    return shortened(str(error) or type(error).__name__, 300)


def _columns(events: Sequence[Event], days: Mapping[str, int]) -> list[list[object]]:
    documents: dict[tuple[str, str], Document] = {}
    for event in events:
        try:
            document = read_document(event)
        except UnsearchableError as error:
            log.error("event at position %d is not searchable: %s", event.position, error)
            continue
        documents[document.org_id, document.event_id] = document
    return columns_of([*documents.values()], lambda org_id: days.get(org_id, _LONGEST_DAYS))


def _page(query: SearchQuery, before: Key | None) -> Condition:
    condition = page_condition(query, _DIALECT, before)
    # ClickHouse uses its sort order for a bound on one column, but not for a bound on two columns.
    return condition if before is None else all_of([Condition("time <= ?", before[:1]), condition])


def _newest(columns: str, query: SearchQuery) -> tuple[str, dict[str, object]]:
    condition, values = bound(_page(query, None))
    newest = f"SELECT {columns} FROM {TABLE} WHERE {condition} ORDER BY {newest_first(_DIALECT)}"
    return f"{newest} LIMIT {COUNTED_MATCHES}", values


def _pairs(fields: Sequence[str]) -> str:
    """Return the SQL for an array of pairs: the number of a field, and a value of the event in this field.

    The SQL array of each event ends with an extra pair, whose number is one above the number of the last
    field. The SQL array of each event has exactly one extra pair, so the number of extra pairs is the number
    of events.
    """
    pairs = []
    for number, name in enumerate(fields):
        if FIELDS[name].kind == "texts":
            pairs.append(f"arrayMap(each -> ({number}, toNullable(toString(each))), {name})")
        else:
            pairs.append(f"[({number}, toNullable(toString({name})))]")
    return f"arrayConcat({', '.join((*pairs, f'[({len(fields)}, toNullable({chr(39) * 2}))]'))})"


async def _widening(
    query: SearchQuery,
    before: Key | None,
    run: Callable[[SearchQuery], Awaitable[T]],
    is_full: Callable[[T], bool],
) -> T:
    """Run the query over ever longer time spans, until the results of one span fill the page."""
    if query.org_ids is not None and len(query.org_ids) <= 1:
        return await run(query)
    for from_ms in _spans(query, before):
        result = await run(replace(query, from_ms=from_ms))
        if is_full(result):
            return result
    return await run(query)


def _spans(query: SearchQuery, before: Key | None) -> list[int]:
    """Return the start times of ever longer time spans, which all end with the newest requested event.

    The result does not contain the start of the whole requested time span. If all shorter time spans give too
    few results, the caller runs the query over the whole requested time span.
    """
    ends = [time.time_ns() // 1_000_000, query.to_ms, None if before is None else before[0]]
    newest = min(each for each in ends if each is not None)
    begins = (newest - span for span in _SPANS_MS)
    return [begin for begin in begins if query.from_ms is None or begin > query.from_ms]


def _read_of(rows: Sequence[tuple[Any, ...]], limit: int) -> int:
    """Return the number of rows on a page of results, which is smaller if the events are large."""
    read = size = 0
    while read < min(limit, len(rows)) and size < MAX_PAGE_BYTES:
        size += int(rows[read][3])
        read += 1
    return read


def _count(buckets: Sequence[tuple[int, int]]) -> int:
    return sum(count for _, count in buckets)


def _token_of(events: Sequence[Event]) -> str:
    """Return the deduplication token of a write to ClickHouse, which depends only on the events.

    Writes of the same events always have the same deduplication token, so ClickHouse ignores a repeated
    write.
    """
    digest = hashlib.sha256()
    for event in events:
        digest.update(b"%d %b %b" % (event.position, event.org_id.encode(), event.body))
    return digest.hexdigest()
