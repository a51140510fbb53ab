"""Count audit events by application, resource class and outcome, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec

from controlplane.report.classify import Access, Classifier, Held
from proxy.policy.transforms import parse_names

Outcome = Literal["passed", "blocked", "refused", "failed", "withheld", "unanswered"]
"""Outcome of a request.

`passed`: the application received a successful response, or a part of it. `blocked`: a rule or a stop refused
the request. `refused`: the proxy refused it before any rule. `failed`: the upstream responded with an error.
`withheld`: the upstream responded, and the proxy withheld the response. `unanswered`: the request may have
reached the upstream, and no response came back."""

MAX_ROWS: Final = 20_000  # applications times classes, accesses and outcomes
MAX_VERSIONS: Final = 5_000  # applications times versions of their rulesets
MAX_PROXIES: Final = 20_000
_MOST_NAMED: Final = 50  # rules, requests and reasons of one row
_MOST_SAMPLES: Final = 3
OTHERS: Final = "(others)"

_TOKENS: Final = frozenset(
    ("tokenIssued", "tokenRefused", "assertionRefused", "certificateRefused", "tooManyFailures")
)
_UNANSWERED: Final = frozenset(("upstreamTimeout", "upstreamProtocol", "upstreamAborted", "clientAborted"))
_NOT_SENT: Final = frozenset(("dependencyFailed", "credentialUnavailable", "upstreamUnreachable"))
_FIRST_ERROR: Final = 400


class Seen(msgspec.Struct, rename="camel", gc=False):
    """Parsed audit event with only those JSON fields that an audit report needs."""

    id: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    method: str
    path: str
    verdict: str
    query: str | None = None
    app_id: str | None = None
    proxy_id: str | None = None
    status: int | float | None = None
    upstream_status: int | float | None = None
    rule_id: str | None = None
    transforms: tuple[str, ...] | None = None
    reason: str | None = None
    ruleset_version: int | str | None = None
    implied_request: str | None = None


K = TypeVar("K", bound=Hashable)

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)

_decode: Final = msgspec.json.Decoder(Seen).decode


class RowKey(NamedTuple):
    resource_class: str
    app_id: str
    access: Access
    held: Held
    outcome: Outcome


@dataclass(slots=True)
class Row:
    """Count of one application's requests for one resource class.

    All requests of a row have the same access, such as `read`, the same outcome, and the same certainty that
    they reach the resource class.
    """

    count: int = 0
    first: datetime = _LATEST
    last: datetime = _EARLIEST
    rules: Counter[str] = field(default_factory=Counter)
    # rule and the property or item that it removed
    removed: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Span:
    """A number of events, with the times of the first and the last event."""

    count: int = 0
    first: datetime = _LATEST
    last: datetime = _EARLIEST

    def add(self, time: datetime) -> None:
        self.count += 1
        self.first = min(self.first, time)
        self.last = max(self.last, time)


class Tally:
    """Counts of the audit events in a period that includes its start and excludes its end."""

    def __init__(self, classifier: Classifier, begin: datetime, end: datetime) -> None:
        self._classifier: Final = classifier
        self._begin: Final = begin
        self._end: Final = end
        self.rows: Final[dict[RowKey, Row]] = {}
        self.versions: Final[dict[tuple[str, str], Span]] = {}
        self.proxies: Final[dict[str, Span]] = {}
        self.all: Final = Span()
        self.tokens = 0
        self.unreadable = 0  # number of stored events without the members that a report needs

    def add_all(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            try:
                event = _decode(body)
            except msgspec.ValidationError:
                self.unreadable += 1
                continue
            if self._begin <= event.time < self._end:
                self._add(event)

    def _add(self, event: Seen) -> None:
        self.all.add(event.time)
        _span(self.proxies, event.proxy_id or "", MAX_PROXIES).add(event.time)
        if event.reason in _TOKENS:
            self.tokens += 1
            return
        app_id = event.app_id or ""
        if event.ruleset_version is not None:
            _span(self.versions, (app_id, str(event.ruleset_version)), MAX_VERSIONS).add(event.time)
        found = self._classifier.classify(event.method, event.path, event.query, event.implied_request)
        if not found.touches:
            return
        outcome = outcome_of(event)
        for touch in found.touches:
            key = RowKey(touch.resource_class, app_id, found.access, touch.held, outcome)
            row = self.rows.get(key)
            if row is None:
                if len(self.rows) >= MAX_ROWS:
                    key = key._replace(app_id=OTHERS)
                row = self.rows.setdefault(key, Row())
            _count(row, event, found.shown, touch.why)


def outcome_of(event: Seen) -> Outcome:
    """Return the outcome of a recorded request."""
    reason, upstream = event.reason or "", event.upstream_status
    if reason == "filterFailed" or (event.verdict == "block" and upstream is not None):
        return "withheld"
    if reason in _NOT_SENT:
        return "failed"
    if upstream is not None:
        return "passed" if upstream < _FIRST_ERROR else "failed"
    if reason in _UNANSWERED:
        return "unanswered"
    if event.verdict == "block":
        return "blocked" if event.rule_id is not None or reason in ("stopped", "noRuleset") else "refused"
    if event.rule_id is None:
        return "refused"
    return "passed" if (event.status or 0) < _FIRST_ERROR else "failed"


def _count(row: Row, event: Seen, shown: str, why: str) -> None:
    row.count += 1
    row.first = min(row.first, event.time)
    row.last = max(row.last, event.time)
    rule = event.rule_id or event.reason or ""
    _named(row.rules, rule, OTHERS)
    _named(row.requests, f"{event.method} {shown}", OTHERS)
    if why:
        _named(row.why, why, OTHERS)
    for each in removals(event.transforms or ()):
        _named(row.removed, (rule, each), (OTHERS, OTHERS))
    if len(row.samples) < _MOST_SAMPLES:
        row.samples.append(event.id)


def removals(transforms: Sequence[str]) -> list[str]:
    """Describe in words the properties and items that the recorded transforms removed from a response."""
    named = parse_names(transforms)
    found = list(named.stripped)
    if named.allowed is not None:
        found.append(f"everything but {', '.join(named.allowed) or 'nothing'}")
    return [*found, *(["list items"] if named.kept else [])]


def _named(counter: Counter[K], key: K, others: K) -> None:
    counter[key if key in counter or len(counter) < _MOST_NAMED else others] += 1


def _span(spans: dict[K, Span], key: K, most: int) -> Span:
    found = spans.get(key)
    if found is None:
        found = Span()
        if len(spans) < most:
            spans[key] = found
    return found
