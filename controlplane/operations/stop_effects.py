"""Effects of an emergency stop: the requests that it would refuse, and the proxies that have confirmed it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from controlplane.fleet import Heard, LastWord
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_counts import CountTimes, histogram
from controlplane.operations.fleet import fleet_of, limits_of
from controlplane.operations.operation import Request, Response, operation
from controlplane.search.query import rfc3339_ms
from controlplane.store.interface import StoreError
from controlplane.store.pages import FleetQuery, ListPage, ListQuery, all_rows
from proxy.wire.audit_event import rfc3339

_HOUR_MS: Final = 3_600_000
# seconds for the count, because a stop must not wait longer for its numbers
_COUNTED_WITHIN_SECONDS: Final = 2.0
_TRANSFER_MS: Final = 5000  # ms after the stop at which an older response can still arrive
_MOST_DATED: Final = 50  # proxies whose older heartbeats are read
_MOST_COMPARED: Final = 20  # proxies to compare with their current version, which takes milliseconds for each
_AT_ONCE: Final = 100  # proxies to compare before other requests are served
# unhealthy proxies whose heartbeats every page of the console reads for stop files
_MOST_UNHEALTHY: Final = 200
_HEARTBEATS: Final = 50  # older heartbeats to read of each proxy

Reach = Literal["inForce", "waiting", "ended", "unreachable", "disabled"]


class StopToCome(Request):
    """Emergency stop to preview: of an app, of an organisation, or of all organisations."""

    org: str | None = None
    app: str | None = None  # id, client id or name


class StopEffect(Response):
    org: str | None  # name of the organisation
    app: str | None
    apps: int  # apps that the stop covers
    requests: int | None  # requests of the last hour; null if they could not be counted in time
    proxies: int
    sync_interval_seconds: int


class StopPlace(Request):
    """Emergency stop of an app, of an organisation, or of all organisations."""

    org: str | None = None
    app: str | None = None


class ProxyReach(Response):
    """State of an emergency stop at one proxy.

    A proxy in the state `unreachable` or `disabled` has not confirmed the emergency stop. Proxies in the
    state `ended` stopped cleanly before they confirmed the emergency stop.
    """

    proxy_id: str
    name: str
    state: Reach
    in_force_at: str | None  # time of the first confirmation that is known
    last_heartbeat: str | None


class StopReach(Response):
    stopped_at: str | None  # null: no such stop is set
    in_force: int  # numbers of proxies
    proxies: tuple[ProxyReach, ...]  # proxies, those without the stop first


@operation("kill.effect", "GET", "/stop-effect")
async def effect(context: OperationContext, actor: Actor, request: StopToCome) -> StopEffect:
    """Show the requests that an emergency stop would refuse, before the stop is set."""
    place = await _place(context, actor, request.org, request.app)
    query = ListQuery(org_ids=actor.sees if place.org_id is None else frozenset({place.org_id}))
    apps = await context.store.apps(place.org_id)
    return StopEffect(
        org=place.org,
        app=place.app,
        apps=1 if place.app_id else sum(actor.may("viewer", each.org_id) for each in apps),
        requests=await _requests(context, actor, place),
        proxies=(await context.store.list_proxies(query)).total,
        sync_interval_seconds=context.settings.control_plane.sync_interval_seconds,
    )


@operation("kill.reach", "GET", "/stop-reach")
async def reach(context: OperationContext, actor: Actor, request: StopPlace) -> StopReach:
    """List the proxies that have confirmed an emergency stop, with the time."""
    place = await _place(context, actor, request.org, request.app)
    wanted = (place.org_id, place.app_id)
    stop = next((each for each in await context.store.stops() if (each.org_id, each.app_id) == wanted), None)
    if stop is None:
        return StopReach(stopped_at=None, in_force=0, proxies=())
    org_ids = actor.sees if place.org_id is None else frozenset({place.org_id})
    words = await _last_words(context, org_ids)
    current = await _current(context, words, stop.stopped_ms)
    found = []
    for at, state in enumerate(words):
        if at % _AT_ONCE == 0:
            await asyncio.sleep(0)
        version = current.get(state.proxy.proxy_id)
        found.append(await _reached(context, state, stop.stopped_ms, version, dated=at < _MOST_DATED))
    found.sort(key=lambda each: (each.state == "inForce", each.name))
    in_force = sum(each.state == "inForce" for each in found)
    return StopReach(stopped_at=rfc3339(stop.stopped_ms), in_force=in_force, proxies=tuple(found))


class StopFilesRequest(Request):
    pass


class StopFileFacts(Response):
    """A proxy that refuses requests because of a stop file on its own host."""

    proxy_id: str
    name: str
    stops: str
    everything: bool  # false: the stop covers only what the file's lines name, which heartbeats do not report
    org_ids: tuple[str, ...]
    last_heartbeat: str


class StopFiles(Response):
    proxies: tuple[StopFileFacts, ...]


@operation("kill.files", "GET", "/stop-files")
async def stop_files(context: OperationContext, actor: Actor, request: StopFilesRequest) -> StopFiles:
    """List proxies with an active stop file, as their last heartbeats report."""
    now_ms, fleet = context.clock.wall_ms(), fleet_of(context)
    chosen = FleetQuery(fleet.bounds(now_ms), needs_look=True, seen=actor.sees)
    page = await context.store.list_proxies(ListQuery(org_ids=actor.sees, limit=_MOST_UNHEALTHY), chosen)
    found = []
    for word in await fleet.last_words(now_ms, page.rows):
        if word.heard is None or not all(actor.may("viewer", each) for each in word.proxy.org_ids):
            continue
        by_file = _stopped_by_file(word.heard)
        if by_file:
            proxy, at = word.proxy, rfc3339(word.heard.received_ms)
            everything = " stops everything, " in by_file
            found.append(StopFileFacts(proxy.proxy_id, proxy.name, by_file, everything, proxy.org_ids, at))
    return StopFiles(proxies=tuple(found))


def _stopped_by_file(heard: Heard) -> str:
    """Return the emergency stops from a stop file on the proxy's own host, as the heartbeat reports them."""
    check = (heard.said.checks or {}).get("stops")
    if check is None or check.status == "ok" or check.detail is None:
        return ""
    return "; ".join(part for part in check.detail.split("; ") if part.endswith(" workers"))


@dataclass(frozen=True, slots=True)
class _Place:
    org_id: str | None = None
    org: str | None = None
    app_id: str | None = None
    app: str | None = None


async def _place(context: OperationContext, actor: Actor, org: str | None, app: str | None) -> _Place:
    if app is not None:
        found = await context.resolve.app(actor, "viewer", app, org)
        owner = await context.resolve.org(actor, "viewer", found.org_id)
        return _Place(owner.org_id, owner.name, found.app_id, found.name)
    if org is not None:
        owner = await context.resolve.org(actor, "viewer", org)
        return _Place(owner.org_id, owner.name)
    return _Place()


async def _requests(context: OperationContext, actor: Actor, place: _Place) -> int | None:
    now_ms = context.clock.wall_ms()
    asked = CountTimes(
        filter=f"app:{place.app_id}" if place.app_id else "",
        org=place.org_id,
        from_=rfc3339(now_ms - _HOUR_MS),
        to=rfc3339(now_ms + 1),
    )
    try:
        async with asyncio.timeout(_COUNTED_WITHIN_SECONDS):
            found = await histogram.perform(context, actor, asked)
    except (StoreError, TimeoutError):
        return None
    return sum(each.count for each in found.buckets)


async def _last_words(context: OperationContext, org_ids: frozenset[str] | None) -> Sequence[LastWord]:
    now_ms, fleet = context.clock.wall_ms(), fleet_of(context)

    async def read(query: ListQuery) -> ListPage[LastWord]:
        page = await context.store.list_proxies(query)
        return ListPage(tuple(await fleet.last_words(now_ms, page.rows)), page.next, page.total)

    return await all_rows(read, ListQuery(org_ids=org_ids))


async def _current(
    context: OperationContext, words: Sequence[LastWord], stopped_ms: int
) -> Mapping[str, str | None]:
    """Return the current sync version of some proxies that sent a heartbeat since the emergency stop.

    If very many proxies sent a heartbeat since the emergency stop, the function reads the sync version of
    only a limited number of proxies. The function first reads the sync version of each proxy whose last
    heartbeat is not enough to confirm the emergency stop. A heartbeat alone confirms the emergency stop if
    the proxy's rules were synced after the stop was set.
    """
    heard = [
        (_confirms(each.heard, stopped_ms, None), each.proxy.proxy_id)
        for each in words
        if each.heard is not None and each.heard.received_ms >= stopped_ms
    ]
    heard.sort(key=lambda each: each[0])
    limits = limits_of(context)
    return {each: await context.store.sync_version(each, limits) for _, each in heard[:_MOST_COMPARED]}


async def _reached(
    context: OperationContext, state: LastWord, stopped_ms: int, current: str | None, *, dated: bool
) -> ProxyReach:
    proxy, heard = state.proxy, state.heard
    confirmed = heard is not None and _confirms(heard, stopped_ms, current)
    at = None
    if confirmed and dated:
        beats = await fleet_of(context).heartbeats(proxy.proxy_id, _HEARTBEATS)
        at = min(_since(each, stopped_ms) for each in beats if _confirms(each, stopped_ms, current))
    found: Reach = "inForce" if confirmed else "waiting"
    if not confirmed and state.presence != "here":
        found = "ended" if state.presence == "ended" else "unreachable"
    if not confirmed and not proxy.enabled:
        found = "disabled"
    return ProxyReach(
        proxy_id=proxy.proxy_id,
        name=proxy.name,
        state=found,
        in_force_at=None if at is None else rfc3339(at),
        last_heartbeat=None if heard is None else rfc3339(heard.received_ms),
    )


def _confirms(heard: Heard, stopped_ms: int, current: str | None) -> bool:
    """Return True if the proxy had received the emergency stop when the proxy sent the heartbeat.

    If the sync version in a heartbeat is current, the proxy has received the emergency stop. The proxy has
    also received the emergency stop if its rules were confirmed after the stop was set.
    """
    if heard.received_ms < stopped_ms:
        return False
    if current is not None and heard.said.sync_version == current:
        return True
    age = heard.said.sync_age_seconds
    return age is not None and heard.received_ms - age * 1000 >= stopped_ms + _TRANSFER_MS


def _since(heard: Heard, stopped_ms: int) -> int:
    """Return the latest time, in Unix ms, at which the proxy can have received the emergency stop."""
    age = heard.said.sync_age_seconds or 0.0
    synced_ms = round(heard.received_ms - age * 1000)
    return synced_ms if synced_ms >= stopped_ms else heard.received_ms


def seconds_after(stopped_at: str, at: str) -> float:
    """Return the seconds that an emergency stop took to reach a proxy."""
    return ((rfc3339_ms(at) or 0) - (rfc3339_ms(stopped_at) or 0)) / 1000
