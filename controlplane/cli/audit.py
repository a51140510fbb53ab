"""`audit`: search the audit events."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli.context import (
    FAILED,
    INVALID_INPUT,
    AnyOrg,
    Cli,
    CommandFailed,
    Json,
    Open,
    print_list,
    write_json,
)
from controlplane.clock import SystemClock

if TYPE_CHECKING:
    from controlplane.search.interface import SearchPage, SearchQuery
    from controlplane.search.query import Resolver

app = typer.Typer()

_MAX_LIMIT: Final = 1000
_COLUMNS: Final = {
    "time": "time", "orgId": "org", "appId": "app", "clientIp": "ip", "method": "method", "path": "path",
    "status": "status", "verdict": "verdict", "ruleId": "rule", "reason": "reason", "durationMs": "ms",
}  # fmt: skip
_TIME_HELP: Final = "RFC 3339, a date, or -15m, -2h, -7d."


@app.callback()
def audit() -> None:
    """Audit events."""


# A filter may begin with "-", and may come as one argument or as several.
@app.command(context_settings={"ignore_unknown_options": True})
def search(
    ctx: typer.Context,
    filter_: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILTER]", help="Like: verdict:block path:/v1.0/users/* -rule:r7 status:>=400"
        ),
    ] = None,
    org: AnyOrg = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="T", help=f"Events of this time and later: {_TIME_HELP}")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="T", help=f"Events before this time: {_TIME_HELP}")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=_MAX_LIMIT, help="Events of one page.")
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="C", help="`next` of the page before.")
    ] = None,
    json: Json = False,
) -> None:
    """Find audit events, newest first. Everything that was accepted before is found."""
    from controlplane.search.interface import CursorError, IndexUnavailableError
    from controlplane.search.query import QueryError

    cli: Cli = ctx.obj
    text = _joined(filter_ or [])

    async def work(opened: Open) -> tuple[SearchPage, dict[str, str]]:
        names = await _names(opened)
        query = await _query(opened, text, org, from_, to, limit, cursor)
        return await _search(opened, query), names

    try:
        page, names = cli.run(work)
    except QueryError as error:
        raise CommandFailed(INVALID_INPUT, f"FILTER: {error}") from None
    except CursorError as error:
        raise CommandFailed(INVALID_INPUT, f"--cursor: {error}") from None
    except IndexUnavailableError as error:
        raise CommandFailed(FAILED, str(error)) from None
    if json:
        _print_json(page)
    else:
        _print_table(page, names)


def _joined(arguments: list[str]) -> str:
    for argument in arguments:
        if argument.startswith("--"):
            raise CommandFailed(INVALID_INPUT, f"No such option: {argument}")
    return " ".join(arguments)


async def _query(
    opened: Open,
    text: str,
    org: str | None,
    from_: str | None,
    to: str | None,
    limit: int,
    cursor: str | None,
) -> SearchQuery:
    from controlplane.search.interface import SearchQuery
    from controlplane.search.query import parse_filter

    now_ms = SystemClock().wall_ms()
    return SearchQuery(
        org_ids=None if org is None else ((await opened.registry.org(org)).org_id,),
        filter=parse_filter(text, await _resolver(opened), now_ms=now_ms),
        from_ms=_time("--from", from_, now_ms),
        to_ms=_time("--to", to, now_ms),
        limit=limit,
        cursor=cursor,
    )


def _time(option: str, text: str | None, now_ms: int) -> int | None:
    from controlplane.search.query import QueryError, parse_time

    if text is None:
        return None
    try:
        return parse_time(text, now_ms)
    except QueryError as error:
        raise CommandFailed(INVALID_INPUT, f"{option}: {error.message}") from None


async def _resolver(opened: Open) -> Resolver:
    """Names as the registry knows them now; several organisations may use the same one."""
    ids: dict[tuple[str, str], list[str]] = {}
    for org in await opened.store.orgs():
        ids.setdefault(("org", org.name), []).append(org.org_id)
    for proxy in await opened.store.proxies():
        ids.setdefault(("proxy", proxy.name), []).append(proxy.proxy_id)
    for identity in await opened.store.apps(None):
        ids.setdefault(("app", identity.name), []).append(identity.app_id)
    return lambda field, name: ids.get((field, name), [])


async def _names(opened: Open) -> dict[str, str]:
    orgs = {org.org_id: org.name for org in await opened.store.orgs()}
    return orgs | {identity.app_id: identity.name for identity in await opened.store.apps(None)}


async def _search(opened: Open, query: SearchQuery) -> SearchPage:
    from controlplane.forwarder import Forwarder
    from controlplane.search import open_index

    index = await open_index(opened.settings.search_index, opened.settings.store.path)
    try:
        # What was accepted is found, whether or not a server runs and however far its forwarder is.
        await Forwarder(opened.store, index).drain()
        return await index.search(query)
    finally:
        await index.close()


def _print_json(page: SearchPage) -> None:
    """The events as they came, byte for byte."""
    import msgspec

    events = b", ".join(page.events)
    write_json(b'{"events": [%b], "next": %b}' % (events, msgspec.json.encode(page.next)))


def _print_table(page: SearchPage, names: dict[str, str]) -> None:
    import orjson

    rows: list[dict[str, Any]] = []
    for body in page.events:
        event = orjson.loads(body)
        values = {title: event.get(key) for key, title in _COLUMNS.items()}
        rows.append(
            values | {title: names.get(str(values[title]), values[title]) for title in ("org", "app")}
        )
    print_list("events", rows, as_json=False)
    if page.next is not None:
        sys.stdout.write(f"more: --cursor {page.next}\n")
