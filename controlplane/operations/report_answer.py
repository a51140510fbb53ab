"""Content of an audit report: the events of its period, and all facts on their completeness."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from controlplane import __version__
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.integrity import Progress as ChainProgress
from controlplane.operations.integrity import Verdict, Verify, verification_in_turn
from controlplane.operations.models import schemas_of
from controlplane.operations.report_changes import changes_of, rules_of_app, stops_of, switches_of
from controlplane.operations.report_period import Period, moment_of, text_of_moment
from controlplane.operations.report_trail import MOST_GAPS, last_heartbeats, retention_of, trails_of
from controlplane.report.answer import (
    NO_SCHEMA,
    UNSEEN,
    WITH_SCHEMA,
    Activity,
    Answer,
    Chain,
    Named,
    Removed,
    SchemaUsed,
    Span,
    gaps_of,
    headline_of,
    statement_of,
)
from controlplane.report.classify import Classifier
from controlplane.report.tally import Row, RowKey, Tally
from controlplane.store.interface import App, Org, PackedSchemas, Proxy
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.wire.audit_event import rfc3339


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an audit report that the control plane is making."""

    doing: Literal["waiting for other reports", "reading events", "walking the chain"]
    done: int
    total: int


async def answered(
    context: OperationContext, actor: Actor, period: Period, note: Callable[[Progress], None]
) -> Answer:
    """Read the events of the report's period, and all facts on their completeness."""
    org, store = period.org, context.store
    made_ms = context.clock.wall_ms()
    # Read before the events: a number that is missing now counts, even if its event arrives during the read.
    received = await store.received_numbers(org.org_id, MOST_GAPS)
    proxies = [*await store.proxies(None), *await _deleted_proxies(context, org)]
    reports = await last_heartbeats(context, [each.proxy_id for each in proxies])
    packed = await store.current_schemas(org.org_id)
    schemas = await asyncio.to_thread(schemas_of, packed) if packed.digests else NO_SCHEMAS
    tally = await _tallied(context, period, schemas, note)
    chain = await _walked(context, actor, org, note)
    apps = await context.resolve.apps_of_events(org.org_id)
    names = {app.app_id: app.name for app in apps}
    activity = tuple(_activity(key, row, names) for key, row in tally.rows.items())
    trails = tuple(trails_of(proxies, received, reports, tally, period))
    kept = await retention_of(context, org, chain, period)
    from_, to = rfc3339(period.from_ms), rfc3339(period.to_ms)
    gaps = gaps_of(org.name, trails, kept, chain, tally.unreadable)
    span = Span(org.name, from_, to, complete=not gaps, classes=len(period.classes))
    statements = tuple(statement_of(name, activity, span) for name in period.classes)
    changes, more = await changes_of(context, actor, period)
    switches = await switches_of(context, actor, period)
    return Answer(
        org_id=org.org_id,
        org=org.name,
        from_=from_,
        to=to,
        classes=period.classes,
        made_at=rfc3339(made_ms),
        made_by=actor.name,
        release=__version__,
        headline=headline_of(span, statements, gaps, kept.oldest),
        complete=not gaps,
        gaps=gaps,
        statements=statements,
        activity=activity,
        events=tally.all.count,
        tokens=tally.tokens,
        unreadable=tally.unreadable,
        proxies=trails,
        retention=kept,
        chain=chain,
        schemas=await _schemas_used(context, org, packed),
        schema_note=WITH_SCHEMA if packed.digests else NO_SCHEMA,
        rules=tuple(
            [
                await rules_of_app(context, app, tally, period, switches)
                for app in apps
                if _concerns(app, tally)
            ]
        ),
        changes=changes,
        more_changes=more,
        stops=await stops_of(context, org, names),
        unseen=UNSEEN,
    )


async def _deleted_proxies(context: OperationContext, org: Org) -> list[Proxy]:
    dead = await context.store.tombstones_of("proxy")
    return [each.as_proxy() for each in dead if org.org_id in each.org_ids]


def _concerns(app: App, tally: Tally) -> bool:
    """Return True if the audit report must list the app: the app exists, or has events in the period."""
    return bool(app.newest_secret) or any(app.app_id == app_id for app_id, _ in tally.versions)


async def _tallied(
    context: OperationContext, period: Period, schemas: Schemas, note: Callable[[Progress], None]
) -> Tally:
    store, org_id = context.store, period.org.org_id
    total = await store.count_between(org_id, period.from_ms, period.to_ms)
    classifier = await asyncio.to_thread(Classifier, period.classes, schemas)
    tally = Tally(classifier, moment_of(period.from_ms), moment_of(period.to_ms))
    place, read = None, 0
    while True:
        note(Progress("reading events", read, max(total, read)))
        bodies, place = await store.blocks_between(org_id, period.from_ms, period.to_ms, place)
        await asyncio.to_thread(tally.add_all, bodies)
        read += len(bodies)
        if place is None:
            return tally


async def _walked(
    context: OperationContext, actor: Actor, org: Org, note: Callable[[Progress], None]
) -> Chain:
    """Verify the complete audit chain, and return the findings for the report."""
    verdict: Verdict | None = None
    async with aclosing(verification_in_turn(context, actor, Verify(org=org.org_id))) as steps:
        async for each in steps:
            if isinstance(each, ChainProgress):
                note(Progress("walking the chain", each.done, each.total))
            else:
                verdict = each
    assert verdict is not None
    head = await context.store.chain_link(org.org_id, verdict.links)
    problem = ""
    if verdict.misfit is not None:
        problem = (
            f"The chain of stored events is broken: {verdict.misfit.what}: {verdict.misfit.explanation}."
        )
    return Chain(
        number=verdict.links,
        link="" if head is None else head.link.hex(),
        at="" if head is None else rfc3339(head.record.chained_ms),
        events=verdict.events,
        purged=verdict.purged,
        walked_at=rfc3339(context.clock.wall_ms()),
        intact=verdict.misfit is None,
        problem=problem,
    )


def _activity(key: RowKey, row: Row, names: dict[str, str]) -> Activity:
    return Activity(
        resource_class=key.resource_class,
        app_id=key.app_id,
        app=names.get(key.app_id, key.app_id) or "an unnamed application",
        access=key.access,
        held=key.held,
        outcome=key.outcome,
        count=row.count,
        first=text_of_moment(row.first),
        last=text_of_moment(row.last),
        rules=_ranked(row.rules),
        removed=tuple(Removed(rule, what, number) for (rule, what), number in row.removed.most_common()),
        requests=_ranked(row.requests),
        why=_ranked(row.why),
        samples=tuple(row.samples),
    )


def _ranked(counter: Counter[str]) -> tuple[Named, ...]:
    return tuple(Named(name, number) for name, number in counter.most_common())


async def _schemas_used(context: OperationContext, org: Org, packed: PackedSchemas) -> tuple[SchemaUsed, ...]:
    held = {(each.root, each.digest): each for each in await context.store.org_schemas(org.org_id)}
    found = []
    for root, digest in packed.digests.items():
        known = held.get((root, digest))
        fetched = "" if known is None else rfc3339(known.fetched_ms)
        found.append(SchemaUsed(root, digest, fetched, "" if known is None else known.source))
    return tuple(found)
