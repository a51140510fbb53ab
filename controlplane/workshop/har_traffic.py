"""Verdicts of rules on the traffic of a HAR file, and the rules that allow all of the traffic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.workshop.explain import Explainer, SampleRequest
from controlplane.workshop.har import Exchange
from controlplane.workshop.har_members import members_of
from controlplane.workshop.replay import Outcome, Unclear, outcome_of
from controlplane.workshop.suggest import (
    Blocked,
    Filter,
    Observations,
    Place,
    Suggestion,
    as_get,
    patterns,
    suggest,
)
from proxy.policy.canonical import MalformedTarget, Target, canonicalise
from proxy.policy.filters import FilterFailed, compile_filter
from proxy.policy.json_text import readable
from proxy.policy.path_shapes import shapes_of
from proxy.policy.queries import QueryGuard
from proxy.policy.redaction import without_secrets
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.policy.transforms import ITEMS, Transforms
from proxy.policy.unknown import PartlyKnownResponse

_ANY_RESPONSE: Final = PartlyKnownResponse(
    0, (), None, unknown=frozenset(("status", "response_header", "property"))
)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The expected verdict on one exchange of a HAR file."""

    exchange: Exchange
    outcome: Outcome | Unclear
    body: bytes | None = None  # body of the response that the application gets
    removed: tuple[str, ...] = ()  # paths of the properties that were removed from it

    @property
    def possible(self) -> tuple[Outcome, ...]:
        """The outcome that a rule should produce; several outcomes if the HAR file lacks needed facts."""
        return (self.outcome,) if isinstance(self.outcome, Outcome) else self.outcome.possible

    @property
    def missing(self) -> Sequence[str]:
        """Facts that the HAR file lacks, so that the outcome is uncertain."""
        return () if isinstance(self.outcome, Outcome) else self.outcome.missing

    @property
    def target(self) -> str:
        """The target of the request, with secrets masked."""
        path, mark, query = self.exchange.target.partition("?")
        return path + mark + without_secrets(query)


def by_outcome(foreseen: Iterable[Foreseen]) -> list[list[Foreseen]]:
    """Group exchanges by outcome: blocked, unclear, allowed.

    Among groups with equal outcomes, larger groups come first.
    """
    groups: dict[Outcome | Unclear, list[Foreseen]] = {}
    for one in foreseen:
        groups.setdefault(one.outcome, []).append(one)
    return sorted(groups.values(), key=_rank)


def _rank(group: Sequence[Foreseen]) -> tuple[int, int, int]:
    outcome = group[0].outcome
    lets_through = outcome.lets_through if isinstance(outcome, Outcome) else None
    return (False, None, True).index(lets_through), -len(group), group[0].exchange.number


def foresee(
    ruleset: Ruleset, exchanges: Iterable[Exchange], schemas: Schemas = NO_SCHEMAS
) -> Iterator[Foreseen]:
    explainer = Explainer(ruleset, schemas)
    for exchange in exchanges:
        report = explainer.explain(_sample(exchange), exchange.response or _ANY_RESPONSE)
        if report.possible:
            yield Foreseen(exchange, Unclear(tuple(map(outcome_of, report.possible)), report.missing))
            continue
        evaluation = report.refused or report.decision
        assert evaluation is not None
        before = exchange.answer_body
        removed = _removed(before, report.body) if report.body != before else ()
        if ITEMS in (report.removed or ()):  # because `_removed` compares items by their position
            removed = (ITEMS,)
        yield Foreseen(exchange, outcome_of(evaluation), report.body, removed)


def _sample(exchange: Exchange) -> SampleRequest:
    return SampleRequest(
        exchange.method,
        exchange.target,
        exchange.headers,
        now=0.0 if exchange.time is None else exchange.time.timestamp(),
        body=exchange.body,
        unknown=exchange.unknown,
        masks_secrets=True,
    )


def _removed(before: bytes | None, after: bytes | None) -> tuple[str, ...]:
    """Return the properties in the JSON body `before` that are missing in the JSON body `after`.

    A dot in a property name, as in `manager.mail`, leads into the object or array of that name.
    """
    if not before or not after:
        return ()
    try:
        first, second = json.loads(readable(before)), json.loads(readable(after))
    except ValueError:
        return ()
    found: dict[str, None] = {}
    _compare(first, second, "", found)
    return tuple(sorted(name.removeprefix("value.") for name in found))


def _compare(before: object, after: object, path: str, found: dict[str, None]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            where = f"{path}.{name}" if path else name
            if name in after:
                _compare(value, after[name], where, found)
            else:
                found[where] = None
    elif isinstance(before, list) and isinstance(after, list):
        for one, other in zip(before, after, strict=False):
            _compare(one, other, path, found)


# -- rules from traffic


def suggest_for(exchanges: Sequence[Exchange], name: str, *, about: Sequence[str] = ()) -> Suggestion:
    """Suggest a ruleset that allows the traffic of a HAR file.

    If all recorded GET requests of a path name properties in `$select`, the suggested ruleset limits the
    path's responses to these properties.
    """
    observed = Observations()
    for exchange in exchanges:
        observed.add(exchange.method, exchange.target, exchange.time, body=exchange.body)
    by_place = _by_place(observed, exchanges)
    filters = _filters(by_place)
    members = _members(by_place)
    unguarded: frozenset[str] = frozenset()
    while True:
        found = suggest(observed, name, about=about, filters=filters, members=members, unguarded=unguarded)
        blocked = _blocked(found, exchanges)
        if not blocked.unguarded:
            break
        unguarded |= blocked.unguarded
    if not blocked.count:
        return found
    return suggest(
        observed,
        name,
        about=about,
        filters=filters,
        members=members,
        unguarded=unguarded,
        blocked=blocked.count,
    )


def _blocked(found: Suggestion, exchanges: Sequence[Exchange]) -> Blocked:
    blocked = Blocked(found)
    if found.has_filters:
        for one in foresee(parse_ruleset(found.yaml), exchanges):
            if isinstance(one.outcome, Outcome) and not one.outcome.lets_through:
                blocked.add(one.outcome.by, one.exchange.target)
    return blocked


_ByPlace = dict[Place, list[tuple[Target, Exchange]]]


def _by_place(observed: Observations, exchanges: Sequence[Exchange]) -> _ByPlace:
    pattern_of = patterns(observed)
    by_place: _ByPlace = {}
    for exchange in exchanges:
        try:
            target = canonicalise(exchange.target)
        except MalformedTarget:
            continue
        for shaped in shapes_of(exchange.method.upper(), target) or ():
            if shaped.shape in pattern_of:
                place = pattern_of[shaped.shape].lower(), as_get(exchange.method.upper())
                by_place.setdefault(place, []).append((target, exchange))
    return by_place


def _members(by_place: _ByPlace) -> dict[Place, tuple[str, ...]]:
    """Return the body fields for each path pattern and writing method, if all request bodies are known."""
    found = {
        place: members_of(exchange for _, exchange in seen)
        for place, seen in by_place.items()
        if place[1] != "GET"
    }
    return {place: names for place, names in found.items() if names is not None}


def _filters(by_place: _ByPlace) -> dict[Place, Filter]:
    """Return a suggested filter for each path pattern whose GET requests all select properties by name.

    A suggested filter is used only if it leaves every recorded response unchanged. A filter for one method
    ignores requests of other methods to the same path.
    """
    found = {place: _selected(seen) for place, seen in by_place.items() if place[1] == "GET"}
    return {place: Filter(one, guards=True) for place, one in found.items() if one is not None}


def _selected(seen: Sequence[tuple[Target, Exchange]]) -> Transforms | None:
    names: dict[str, str] = {}
    for target, _ in seen:
        selected = target.options.get("select", ())
        if len(selected) != 1 or "expand" in target.options:
            return None
        for name in selected[0].split(","):
            if not name.strip().isidentifier():
                return None
            names.setdefault(name.strip().lower(), name.strip())
    for _ in range(2):  # the second pass keeps properties that come without being selected, such as an id
        transforms = Transforms(allow=tuple(sorted(names.values(), key=str.lower)))
        removed = _removed_by(transforms, seen)
        if removed is None:
            return None
        if not removed:
            return transforms
        for name in removed:
            names.setdefault(name.lower(), name)
    return None


def _removed_by(transforms: Transforms, seen: Sequence[tuple[Target, Exchange]]) -> set[str] | None:
    """Return the properties that a filter would remove from the recorded responses.

    Return None if the filter can't read a response or blocks a request, or if no response is known.
    """
    guard, made = QueryGuard(transforms), compile_filter(transforms)
    removed: set[str] = set()
    known = 0
    for target, exchange in seen:
        if guard.is_probed_by(target):
            return None
        response = exchange.response
        if response is None or response.body is None:
            continue
        known += 1
        if not 200 <= response.status < 300:
            continue
        try:
            after = made.apply(response.body).body
        except FilterFailed:
            return None
        if after != response.body:
            names = _removed(response.body, after)
            if not names or any("." in name or "@" in name for name in names):
                return None
            removed.update(names)
    return removed if known else None
