"""Rules that were active in the period of an audit report, and changes of rules in this period.

These changes include assignments of other rulesets to applications, emergency stops, and changes of
permissions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operator_log import RecordFacts, SearchOperatorLog, readable_request
from controlplane.operations.operator_log import search as search_log
from controlplane.operations.report_period import Period, text_of_moment, time_text
from controlplane.report.answer import AppRules, Change, VersionInForce, VersionSeen
from controlplane.report.tally import Span as Seen
from controlplane.report.tally import Tally
from controlplane.report.words import moment
from controlplane.search.query import parse_time
from controlplane.store.interface import App, Org
from proxy.wire.audit_event import rfc3339

_MOST_CHANGES: Final = 200  # lines of the operator log of one noun
_NOUNS: Final = ("ruleset", "proposal", "app", "model", "kill", "unkill", "org", "proxy", "operator")
_SIGN_IN: Final = "session.sign-in"
_GAVE_ROLES: Final = '"rolesUntil"'  # member in the log line of a sign-in that gave roles by groups


# Operations that change rules, emergency stops, retention, or the permission to change any of these.
_CHANGING: Final = frozenset(
    (
        "ruleset.apply",
        "ruleset.rollback",
        "proposal.approve",
        "proposal.reject",
        "model.fetch",
        "app.add",
        "app.bind",
        "app.shadow",
        "app.enable",
        "app.disable",
        "app.promote-shadow",
        "operator.add",
        "operator.delete",
        "operator.disable",
        "operator.enable",
        "operator.grant",
        "operator.revoke",
        "org.set-retention",
        "org.set-second-person",
        "proxy.acknowledge",
        "proxy.disable",
        "proxy.enable",
        "proxy.grant",
        "proxy.revoke",
    )
)


@dataclass(frozen=True, slots=True)
class Switch:
    """Assignment of another ruleset to an application, as the operator log reports it.

    `before` is the name of the old ruleset. `before` can be None if an earlier release wrote the line of the
    operator log, because such a line does not name the rulesets.
    """

    app: str  # id or name
    before: str | None
    at: str
    said: str


_SWITCHED: Final = re.compile(r"switched (?P<app>\S+)(?: from (?P<before>\S+))? to ")


async def switches_of(context: OperationContext, actor: Actor, period: Period) -> list[Switch]:
    """Return, oldest first, each switch of an application to another ruleset since the period began."""
    asked = SearchOperatorLog(org=period.org.org_id, from_=rfc3339(period.from_ms), limit=_MOST_CHANGES)
    found = []
    for operation in ("app.bind", "app.promote-shadow", "proposal.approve"):
        page = await search_log.perform(context, actor, msgspec.structs.replace(asked, operation=operation))
        found += [switch for line in page.lines if (switch := _switch(line)) is not None]
    return sorted(found, key=lambda each: each.at)


def _switch(line: RecordFacts) -> Switch | None:
    if line.outcome != "done":
        return None
    if line.result is not None:
        said = _SWITCHED.match(line.result)
        return None if said is None else Switch(said["app"], said["before"], line.time, line.result)
    if line.operation == "proposal.approve":
        return None
    return Switch(str(line.request.get("app")), None, line.time, "switched")


async def rules_of_app(
    context: OperationContext, app: App, tally: Tally, period: Period, all_switches: list[Switch]
) -> AppRules:
    """Return the versions of an app's ruleset that were active in the period or are named in events."""
    switches = [each for each in all_switches if each.app in (app.app_id, app.name)]
    bound_ms = parse_time(switches[-1].at, 0) if switches else period.from_ms
    versions = sorted(await context.store.ruleset_versions(app.ruleset_id), key=lambda each: each.version)
    in_force = []
    for at, each in enumerate(versions):
        following = versions[at + 1].created_ms if at + 1 < len(versions) else None
        begin = max(each.created_ms, bound_ms) if switches else each.created_ms
        if begin < period.to_ms and (following is None or following > bound_ms):
            end = None if following is None else rfc3339(following)
            in_force.append(VersionInForce(each.version, rfc3339(begin), end, each.note))
    seen = [
        VersionSeen(
            version,
            _ruleset_of(span, app, switches),
            span.count,
            text_of_moment(span.first),
            text_of_moment(span.last),
        )
        for (app_id, version), span in sorted(tally.versions.items(), key=lambda item: item[1].first)
        if app_id == app.app_id
    ]
    said = tuple(f"{moment(each.at)}: {each.said}" for each in switches)
    return AppRules(app.app_id, app.name, app.ruleset_name, said, tuple(in_force), tuple(seen))


def _ruleset_of(span: Seen, app: App, switches: list[Switch]) -> str | None:
    """Return the ruleset that evaluated a range of events, or None if the ruleset is not known."""
    if not switches:
        return app.ruleset_name
    return switches[0].before if text_of_moment(span.last) < switches[0].at else None


async def stops_of(context: OperationContext, org: Org, names: dict[str, str]) -> tuple[str, ...]:
    """Return a sentence for each active emergency stop."""
    found = []
    for each in await context.store.stops():
        if each.org_id not in (None, org.org_id):
            continue
        scope = "Everything" if each.org_id is None else f"Organisation {org.name}"
        if each.app_id is not None:
            scope = f"App {names.get(each.app_id, each.app_id)}"
        since = f"{scope} has been stopped since {time_text(each.stopped_ms)}, by {each.stopped_by}"
        found.append(f"{since}: {each.reason}" if each.reason else f"{since}.")
    return tuple(found)


async def changes_of(
    context: OperationContext, actor: Actor, period: Period
) -> tuple[tuple[Change, ...], bool]:
    """Return lines of the operator log about rules, stops, retention or roles, from one period."""
    lines: dict[tuple[str, str, str], RecordFacts] = {}
    more = False
    asked = SearchOperatorLog(
        org=period.org.org_id,
        from_=rfc3339(period.from_ms),
        to=rfc3339(period.to_ms),
        limit=_MOST_CHANGES,
    )
    questions = [msgspec.structs.replace(asked, operation=noun) for noun in _NOUNS]
    everywhere = [f"{noun}.all" for noun in ("kill", "unkill")]
    questions += [msgspec.structs.replace(asked, operation=name, org=None) for name in everywhere]
    questions.append(msgspec.structs.replace(asked, operation=_SIGN_IN, search=_GAVE_ROLES))
    for question in questions:
        found = await search_log.perform(context, actor, question)
        more = more or found.next is not None
        for line in found.lines:
            if line.operation in (*_CHANGING, _SIGN_IN) or line.operation.startswith(("kill.", "unkill.")):
                lines[line.time, line.operator, line.operation] = line
    said = [value for line in lines.values() for value in line.request.values() if isinstance(value, str)]
    names = await context.resolve.names(actor, said)
    ordered = sorted(lines.values(), key=lambda line: line.time)
    return tuple(_change(each, names) for each in ordered), more


def _change(line: RecordFacts, names: dict[str, str]) -> Change:
    what = ", ".join(f"{name} {value}" for name, value in readable_request(line, names))
    what = f"{what}: {line.result}" if what and line.result else what or line.result or ""
    return Change(line.time, line.operator, line.operation, what, line.outcome or "not known")
