"""Check sinks: connect to each sink without an event, and compare the sink's progress with the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from controlplane.clock import SystemClock
from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.search.query import EVERYTHING, Exactly, FieldTerm, Filter, parse_filter
from controlplane.settings import Settings
from controlplane.sinks.consumer import MOST_DEAD_LETTERS
from controlplane.sinks.interface import SinkRefused, SinkUnavailable
from controlplane.sinks.open_sink import open_sink
from controlplane.sinks.settings import AnySink, AnyTable, WebhookSettings
from controlplane.store.database import Connection, Row
from controlplane.store.interface import StoreError
from controlplane.store.notices import oldest_notice
from controlplane.store.sinks import STATE, oldest_received
from proxy.outbound.settings import egress_of
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted
from proxy.wire.finding import Finding

_LATE_SECONDS: Final = 900.0
_STATE: Final = f"{STATE} WHERE sink = ?"
_TRY_SECONDS: Final = 20.0


def sinks(settings: Settings) -> list[Finding]:
    """Connect to each sink, and check how far each sink is behind the store.

    The check sends no test message to webhooks, because people would read it as a real notice.
    """
    found = [asyncio.run(_tried(settings, sink)) for sink in settings.event_sinks]
    return [*found, *_progress(settings)]


async def _tried(settings: Settings, sink: AnySink) -> Finding:
    name = f"sink {sink.name}"
    try:
        opened = open_sink(sink, egress_of(settings.egress))
        try:
            async with asyncio.timeout(_TRY_SECONDS):
                return Finding(name, "ok", await opened.test())
        finally:
            await opened.close()
    except TimeoutError:
        problem = f"no response within {_TRY_SECONDS:g} s"
    except (SinkUnavailable, SinkRefused, OSError) as error:
        problem = str(error)
    fix = (
        f"correct [[Sinks]] {sink.name}, or allow this machine to connect to it; its events wait in the store"
    )
    return Finding(name, "fail", problem, fix)


def _progress(settings: Settings) -> list[Finding]:
    if not settings.sinks or (not settings.store.url and not settings.store.path.exists()):
        return []
    try:
        with store_rows(settings.store) as connection:
            return [each for sink in settings.sinks for each in _of_sink(connection, sink)]
    except (Unreadable, StoreError):
        return []  # The findings on the store give the reason.


def _of_webhook(sink: WebhookSettings, row: Row | None) -> Finding:
    """Return a finding with the state of a webhook, as the store records it.

    Send no test notice to the webhook, because people would read the notice.
    """
    name, untried = f"sink {sink.name}", "not tried, because a test sends a notice"
    problem, problem_ms = (None, None) if row is None else (row[5], row[6])
    if problem is None:
        state = "it has not started yet" if row is None else "it accepted the last notice"
        return Finding(name, "ok", f"{untried}; {state}")
    since = f" since {rfc3339(problem_ms)}" if problem_ms else ""
    fix = f"correct the fault that the message names, then try it with a notice: sink test {sink.name}"
    return Finding(name, "fail", f"notices are not delivered{since}: {problem}", fix)


def _names_of_nothing(connection: Connection, sink: AnyTable) -> Iterator[Finding]:
    """Find organisations, applications and proxies that a sink's settings name but that do not exist.

    If a sink's settings name an organisation, application or proxy that does not exist, the sink never
    delivers events for that name.
    """
    orgs = connection.rows("SELECT org_id, name FROM orgs")
    known = {each for row in orgs for each in row}
    for name in sink.organisations:
        if name not in known:
            fix = f"correct Organisations of [[Sinks]] {sink.name}; then sink rewind {sink.name} --to T"
            yield Finding(f"sink {sink.name}", "warn", f"there is no organisation {name}", fix)
    ids = {"org": {row[0] for row in orgs}}
    ids["app"] = {row[0] for row in connection.rows("SELECT app_id FROM apps")}
    ids["proxy"] = {row[0] for row in connection.rows("SELECT proxy_id FROM proxies")}
    wanted = EVERYTHING if isinstance(sink, WebhookSettings) else parse_filter(sink.filter)
    for field, value in _exact_terms(wanted):
        if value not in ids.get(field, {value}):
            what = f"Filter has {field}:{value}, but no {field} has that id (a filter does not accept names)"
            fix = f"use the id in Filter of [[Sinks]] {sink.name}; then sink rewind {sink.name} --to T"
            yield Finding(f"sink {sink.name}", "warn", what, fix)


def _exact_terms(wanted: Filter) -> Iterator[tuple[str, str]]:
    for term in wanted.terms:
        if isinstance(term, FieldTerm):
            yield from ((term.field.name, each.text) for each in term.matches if isinstance(each, Exactly))


def _of_sink(connection: Connection, sink: AnyTable) -> list[Finding]:
    found = list(_names_of_nothing(connection, sink))
    row = connection.row(_STATE, (sink.name,))
    if isinstance(sink, WebhookSettings):
        found.append(_of_webhook(sink, row))
    if row is None:
        return found
    _, position, _, _, _, problem, _, letters, _ = row
    if letters:
        what = f"{counted(letters, 'event')} that it refused permanently"
        fix = f"read them: sink dead-letters {sink.name}; then sink retry or sink discard"
        stands_still = letters >= MOST_DEAD_LETTERS and problem is not None
        found.append(Finding(f"sink {sink.name}", "fail" if stands_still else "warn", what, fix))
    oldest = oldest_notice if isinstance(sink, WebhookSettings) else oldest_received
    oldest_ms = oldest(connection, position)
    age = 0.0 if oldest_ms is None else (SystemClock().wall_ms() - oldest_ms) / 1000
    if age > _LATE_SECONDS:
        what = f"{age:.0f} s behind the store" + (f": {problem}" if problem else "")
        found.append(
            Finding(f"sink {sink.name}", "warn", what, "correct the fault that the message names, or wait")
        )
    return found
