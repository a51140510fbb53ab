"""Content of an audit report as plain values, and the sentences that state the facts of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from controlplane.report.resource_classes import CLASSES
from controlplane.report.words import joined, moment, requests
from proxy.wire.figures import counted

KIND: Final = "graphward audit report"
_MOST_APPS_NAMED: Final = 3
_MOST_RANGES: Final = 5


class Facts(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Base class of the values in an audit report."""


class Named(Facts):
    """A name in a list of an audit report, and how often the name occurs."""

    name: str
    count: int


class Removed(Facts):
    """Properties or items that a rule removed from responses."""

    rule: str
    what: str
    count: int


class Activity(Facts):
    """Requests of one application for one class of resources, all with the same outcome."""

    resource_class: str
    app_id: str
    app: str
    access: str  # read or write
    held: str  # certain or possible
    outcome: str
    count: int
    first: str
    last: str
    rules: tuple[Named, ...]
    removed: tuple[Removed, ...]
    requests: tuple[Named, ...]
    why: tuple[Named, ...]
    samples: tuple[str, ...]  # ids of events


class Range(Facts):
    """A range of sequence numbers, from the first number to the last number, both included."""

    first: int
    last: int


class ProxyTrail(Facts):
    """The audit trail of one proxy: its events in the period, and all sequence numbers that are missing."""

    proxy_id: str
    name: str
    enabled: bool
    events: int
    first: str | None
    last: str | None
    missing: tuple[Range, ...]
    unlisted: int  # number of missing numbers beyond the listed ranges
    repeated: int
    implausible: int
    reused_batches: int
    last_heartbeat: str | None
    ended: bool  # true: the last heartbeat of the proxy reports that the proxy shut down normally
    pending: int | None  # events not delivered at its last heartbeat; null if it did not report them
    problem: str  # why something may be missing in addition to the numbers; or empty
    clock: str  # why times of its events may be wrong; or empty


class Retention(Facts):
    tier: str
    days: int
    org_since: str
    oldest: str | None  # time of the oldest stored event
    purged: int
    problem: str  # why events of the period may have been deleted; or empty
    before: str  # why the period begins before the organisation; or empty


class Chain(Facts):
    """The audit chain of the organisation's events, verified when the report was made."""

    number: int
    link: str
    at: str
    events: int
    purged: int
    walked_at: str
    intact: bool
    problem: str


class SchemaUsed(Facts):
    root: str
    digest: str
    fetched_at: str
    source: str


class VersionInForce(Facts):
    version: int
    from_: str = msgspec.field(name="from")
    to: str | None  # start of the next version; null: it was active when the report was made
    note: str | None


class VersionSeen(Facts):
    version: str
    ruleset: str | None  # null: the app had several rulesets, and events name only the version
    events: int
    first: str
    last: str


class AppRules(Facts):
    """The rules of one application during the period of the report."""

    app_id: str
    app: str
    ruleset: str  # ruleset that was bound when the report was made
    switches: tuple[str, ...]  # every change of its ruleset since the period began
    in_force: tuple[VersionInForce, ...]  # versions of that ruleset since the last switch
    seen: tuple[VersionSeen, ...]  # versions that events name


class Change(Facts):
    """A line in the operator log about rules, emergency stops, retention or roles."""

    time: str
    operator: str
    operation: str
    what: str
    outcome: str


class Statement(Facts):
    """The sentences that the audit events establish about one resource class."""

    resource_class: str
    text: str


class Answer(Facts):
    org_id: str
    org: str
    from_: str = msgspec.field(name="from")
    to: str
    classes: tuple[str, ...]
    made_at: str
    made_by: str
    release: str
    headline: tuple[str, ...]  # completeness of the report, then a line for each class
    complete: bool
    gaps: tuple[str, ...]  # a sentence for each reason why the report may be incomplete
    statements: tuple[Statement, ...]
    activity: tuple[Activity, ...]
    events: int  # number of events in the period
    tokens: int  # number of these events that are requests for a token
    unreadable: int
    proxies: tuple[ProxyTrail, ...]
    retention: Retention
    chain: Chain
    schemas: tuple[SchemaUsed, ...]
    schema_note: str
    rules: tuple[AppRules, ...]
    changes: tuple[Change, ...]
    more_changes: bool
    stops: tuple[str, ...]  # stops that were active when the report was made
    unseen: tuple[str, ...]


UNSEEN: Final = (
    "Requests that went to the graph API without Graphward. The audit logs of the tenant show them.",
    "Downloads by addresses that open a file without a token. They bypass the proxy.",
    "Notifications of a subscription. The trail shows only which application subscribed.",
    "Bodies of requests and responses. A search or a subscription names its resources in its body.",
    "Requests without a valid token. The proxy counts them, but they belong to no organisation.",
    "Events that carry a time outside the period. The clock of the proxy gives an event its time.",
    "Data that applications passed on after they had received it.",
)
NO_SCHEMA: Final = (
    "The organisation has no stored schema. Paths were classified by built-in facts about Microsoft Graph. A"
    " request with an unknown name in its path counts as one that may have reached each class. `model fetch`"
    " stores a schema."
)
WITH_SCHEMA: Final = (
    "Paths were classified by the current stored schema. If it does not describe a path, built-in facts about"
    " Microsoft Graph were used."
)


@dataclass(frozen=True, slots=True)
class Span:
    """Organisation and period of an audit report, as the sentences of the report name them."""

    org: str
    from_: str
    to: str
    complete: bool  # true: the trail of the period has no known gap
    classes: int

    @property
    def place(self) -> str:
        """Return the end of a sentence in the report: the organisation and the period.

        If a report has several statements, the line above the statements gives the start and end of the
        period.
        """
        if self.classes > 1:
            return f"of {self.org} through Graphward in this period"
        return f"of {self.org} through Graphward between {self.times}"

    @property
    def times(self) -> str:
        return f"{moment(self.from_)} and {moment(self.to)}"


def statement_of(resource_class: str, activity: Iterable[Activity], span: Span) -> Statement:
    """State in one or two sentences what the audit events prove about one resource class."""
    rows = [each for each in activity if each.resource_class == resource_class]
    noun = CLASSES[resource_class].noun
    texts = [
        *_known(rows, noun, span.place, complete=span.complete),
        *_possible(rows, noun),
        *_stopped(rows),
    ]
    return Statement(resource_class, " ".join(texts))


def _known(rows: Sequence[Activity], noun: str, place: str, *, complete: bool) -> list[str]:
    reads = [each for each in rows if _reached(each) and each.held == "certain" and each.access == "read"]
    writes = [each for each in rows if _reached(each) and each.held == "certain" and each.access == "write"]
    if not reads and not writes:
        is_open = any(_reached(each) and each.held == "possible" for each in rows)
        known = "is known to have read or changed" if is_open else "read or changed"
        if not complete:
            return [f"The stored trail shows no application that {known} {noun} {place}."]
        return [f"No application {known} {noun} {place}."]
    texts = []
    if reads:
        texts.append(f"{_apps(reads)} read {noun} {place}.")
    else:
        texts.append(f"No application requested to read {noun} {place}.")
    if writes:
        also = "also " if reads else ""
        lead = f"{_apps(writes)} {also}changed {noun}."
        texts.append(f"{lead} The response to a change may show what was changed.")
    return texts


def _possible(rows: Sequence[Activity], noun: str) -> list[str]:
    found = [each for each in rows if _reached(each) and each.held == "possible"]
    if not found:
        return []
    reasons = joined([because(each) for each in sorted({each.name for row in found for each in row.why})])
    return [
        f"{requests(_sum(found))} of {_apps(found, with_counts=False)} may have reached {noun}, {reasons}."
    ]


def because(reason: str) -> str:
    """Return `because …` if the reason is a sentence, or `because of …` if it names a part of a request."""
    is_sentence = reason.startswith(("the ", "neither "))
    return f"because {reason}" if is_sentence else f"because of {reason}"


def _stopped(rows: Sequence[Activity]) -> list[str]:
    """Return a sentence with the number of requests that gave the application no result, by outcome."""
    words = {
        "blocked": ("was blocked", "were blocked"),
        "refused": ("was refused before a rule decided", "were refused before a rule decided"),
        "failed": ("failed at the graph API", "failed at the graph API"),
        "withheld": ("had its response withheld", "had their responses withheld"),
        "unanswered": ("got no response", "got no response"),
    }
    found = []
    for outcome, (one, many) in words.items():
        total = _sum(each for each in rows if each.outcome == outcome)
        if total:
            found.append(f"{requests(total)} {one if total == 1 else many}")
    return [f"{joined(found)}."] if found else ["No request was blocked, refused or failed."]


def _reached(row: Activity) -> bool:
    """Return True if a request gave data to the application or may have changed data."""
    if row.outcome == "passed":
        return True
    return row.access == "write" and row.outcome in ("withheld", "unanswered")


def _apps(rows: Sequence[Activity], *, with_counts: bool = True) -> str:
    totals: dict[str, int] = {}
    for each in rows:
        totals[each.app] = totals.get(each.app, 0) + each.count
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{app} ({requests(total)})" if with_counts else app for app, total in ranked[:_MOST_APPS_NAMED]]
    rest = len(ranked) - len(named)
    if rest:
        named.append(counted(rest, "other application"))
    lead = "" if not with_counts or len(ranked) == 1 else f"{counted(len(ranked), 'application')}: "
    return lead + joined(named)


def _sum(rows: Iterable[Activity]) -> int:
    return sum(each.count for each in rows)


def gaps_of(
    org: str, proxies: Sequence[ProxyTrail], retention: Retention, chain: Chain, unreadable: int
) -> tuple[str, ...]:
    """Return the reasons why the report may be incomplete, one sentence each, most important first."""
    found = [chain.problem, retention.problem, _unserved(org, proxies)]
    if unreadable:
        found.append(
            f"{counted(unreadable, 'stored event')} could not be read, and may belong to the period."
        )
    for wanting in (_missing, _repeated, _implausible, _reused):
        found += map(wanting, proxies)
    found += [each.problem for each in proxies]
    found += [retention.before, *(each.clock for each in proxies)]
    return tuple(filter(None, found))


def _unserved(org: str, proxies: Sequence[ProxyTrail]) -> str:
    """Return a note if no proxy recorded the organisation's requests, or an empty text if a proxy did."""
    if any(each.last_heartbeat is not None or each.last is not None for each in proxies):
        return ""
    if any(each.problem or each.missing for each in proxies):
        return ""  # the other notes say more
    return f"No proxy of {org} has ever sent an event or a heartbeat, so nothing recorded its requests."


def _missing(proxy: ProxyTrail) -> str:
    missing = sum(one.last - one.first + 1 for one in proxy.missing) + proxy.unlisted
    if not missing:
        return ""
    return (
        f"{counted(missing, 'event')} of {proxy.name} never arrived: {_numbers(proxy)}."
        " The time of a missing event is not known."
    )


def _repeated(proxy: ProxyTrail) -> str:
    if not proxy.repeated:
        return ""
    return (
        f"{counted(proxy.repeated, 'event')} of {proxy.name} arrived under sequence numbers that other events"
        " had before, so its older trail may have been lost."
    )


def _implausible(proxy: ProxyTrail) -> str:
    if not proxy.implausible:
        return ""
    return f"{counted(proxy.implausible, 'event')} of {proxy.name} had an implausible time."


def _reused(proxy: ProxyTrail) -> str:
    if not proxy.reused_batches:
        return ""
    return (
        f"{proxy.name} sent {counted(proxy.reused_batches, 'batch')} under ids that it had used"
        " before for other events."
    )


def _numbers(proxy: ProxyTrail) -> str:
    ranges = [
        str(each.first) if each.first == each.last else f"{each.first}–{each.last}"
        for each in proxy.missing[:_MOST_RANGES]
    ]
    rest = len(proxy.missing) - len(ranges)
    more = [f"{rest:,} more ranges"] if rest > 0 else []
    unlisted = [f"{proxy.unlisted:,} numbers that are not listed"] if proxy.unlisted else []
    word = "number" if ranges and len(proxy.missing) == 1 and "–" not in ranges[0] else "numbers"
    return f"{word} {joined([*ranges, *more, *unlisted])}"


def headline_of(
    span: Span, statements: Sequence[Statement], gaps: Sequence[str], oldest: str | None
) -> tuple[str, ...]:
    """Return the headline of a report: its completeness or its most important gap, and its main facts."""
    if gaps:
        rest = len(gaps) - 1
        more = f" There {'is' if rest == 1 else 'are'} {counted(rest, 'more reason')} below." if rest else ""
        first = f"Incomplete between {span.times}: {gaps[0]}{more}"
    else:
        first = f"Complete: no gap is known in the trail of {span.org} between {span.times}."
    if oldest is None:
        first = f"{first} No event of the organisation is stored."
    elif oldest > span.from_:
        first = f"{first} The oldest stored event is of {moment(oldest)}."
    return (first, *(each.text for each in statements))
