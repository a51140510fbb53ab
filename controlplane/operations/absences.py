"""Notes on an audit search without results: names, values and times that no event can have.

A deleted application, or a rule of an earlier ruleset version, may still have events. A search reports
unknown names as notes beside an empty result, and not as errors. The notes name only objects that the actor
has permission to look at.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.worker_process import run_trial
from controlplane.search.interface import SearchQuery
from controlplane.search.query import Between, Exactly, Field, FieldTerm, Filter, Like
from proxy.policy.ruleset import DEFAULT_RULE_ID
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, REASONS, SHADOW_VERDICTS, VERDICTS, rfc3339

_MOST_NOTES: Final = 10
_MOST_RULESETS: Final = 200  # number of rulesets whose rules are read for their ids
_LONGEST_SHOWN: Final = 60  # characters of a value that a note shows
_STATUSES: Final = (100, 599)
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
BY_ID: Final = {"app": "app", "proxy": "proxy", "org": "organisation"}
_RULES: Final = frozenset(("rule", "logged", "shadowrule"))
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "reason": tuple(REASONS),
    "problem": tuple(CREDENTIAL_PROBLEMS),
    "verdict": VERDICTS,
    "shadow": SHADOW_VERDICTS,
    "method": _METHODS,
}


@dataclass(frozen=True, slots=True)
class Known:
    """Names of the objects that an actor has permission to look at, grouped by filter field.

    Apps, proxies and organisations have a name and an ID. A rule has a name but no separate ID.
    """

    ids: Mapping[str, Mapping[str, str]]  # names by field and id
    rules: frozenset[str] | None = None  # ids of rules; None: unknown


async def notes_on(
    context: OperationContext,
    actor: Actor,
    query: SearchQuery,
    org: str | None,
    ids: Mapping[tuple[str, str], str],
) -> tuple[str, ...]:
    """Return notes on possible mistakes in a search that found nothing.

    `ids` maps a filter field and an object's ID to the object's name.
    """
    by_field: dict[str, dict[str, str]] = {field: {} for field in BY_ID}
    for (field, known_id), name in ids.items():
        by_field[field][known_id] = name
    asks_rules = any(isinstance(term, FieldTerm) and term.field.name in _RULES for term in query.filter.terms)
    rules = await _rule_ids(context, actor, org) if asks_rules else None
    found = [
        *notes(query.filter, Known(by_field, rules)),
        *_time_notes(query, context.clock.wall_ms()),
    ]
    return tuple(dict.fromkeys(found))[:_MOST_NOTES]


async def _rule_ids(context: OperationContext, actor: Actor, org: str | None) -> frozenset[str] | None:
    """Return the IDs of all rules in the active versions of the visible rulesets."""
    rulesets = await context.resolve.rulesets(actor, org)
    if len(rulesets) > _MOST_RULESETS:
        return None
    found = {DEFAULT_RULE_ID}
    for each in rulesets:
        text = await context.store.ruleset_text(each.ruleset_id, each.version)
        if text is not None:
            found |= await run_trial(actor, _ids_in, text)
    return frozenset(found)


def _ids_in(text: str) -> set[str]:
    try:
        return {rule.id for rule in parse_ruleset(text).rules}
    except InvalidRuleset:
        return set()


def exclusions(wanted: Filter) -> Filter:
    """Return those filter terms that exclude events by a name, such as `-app:payroll`.

    In a filter, an excluded name that does not exist excludes no event. An empty search result does not show
    that an excluded name does not exist.
    """
    return Filter(
        tuple(
            term
            for term in wanted.terms
            if isinstance(term, FieldTerm) and term.negated and term.field.name in BY_ID
        )
    )


def notes(wanted: Filter, known: Known) -> Iterator[str]:
    """Yield a note for each filter value that no event can have."""
    for term in wanted.terms:
        if not isinstance(term, FieldTerm):
            continue
        for match in term.matches:
            if isinstance(match, Exactly):
                yield from _value_notes(term.field, match.text, known)
            elif isinstance(match, Between):
                yield from _range_notes(term.field, match)
            else:
                yield from _pattern_notes(term.field, match, known)


def _value_notes(field: Field, text: str, known: Known) -> Iterator[str]:
    name = field.name
    if name in BY_ID:
        if text not in known.ids[name]:
            yield _absent(BY_ID[name], text, known.ids[name].values())
    elif name in _RULES:
        if known.rules is not None and not _has(known.rules, text):
            yield f"{_absent('rule', text, known.rules)} (in the current rulesets)"
    elif name in _VALUES and not _has(_VALUES[name], text):
        yield _absent(name if name != "shadow" else "verdict", text, _VALUES[name])


def _pattern_notes(field: Field, match: Like, known: Known) -> Iterator[str]:
    text = "*".join(match.pieces)
    if field.name not in BY_ID:
        return
    names = known.ids[field.name]
    if not any(_matches(match, known_id) for known_id in names):
        near = sorted({name for name in names.values() if _matches(match, name)})
        hint = f"; write {', '.join(near[:3])}" if near else ""
        yield f"{field.name}:{_shown(text)} compares IDs, not names{hint}"


def _range_notes(field: Field, match: Between) -> Iterator[str]:
    low, high = match.low, match.high
    if low is not None and high is not None and low > high:
        yield f"{field.name}: the range ends before it begins"
    elif field.name in ("status", "upstream") and not _may_be_a_status(low, high):
        yield f"{field.name}: a status is between {_STATUSES[0]} and {_STATUSES[1]}"


def _may_be_a_status(low: float | None, high: float | None) -> bool:
    return (low is None or low <= _STATUSES[1]) and (high is None or high >= _STATUSES[0])


def _time_notes(query: SearchQuery, now_ms: int) -> Iterator[str]:
    if query.from_ms is not None and query.from_ms > now_ms:
        yield f"from: {rfc3339(query.from_ms)} is in the future"
    if query.from_ms is not None and query.from_ms == query.to_ms:
        yield "from and to are the same time, and `to` is not included"


def _absent(kind: str, text: str, names: Iterable[str]) -> str:
    """Return a note that no object has the name in the filter, with the nearest existing name."""
    by_folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(text.casefold()[:_LONGEST_SHOWN], [*by_folded], n=1, cutoff=0.6)
    hint = f"; did you mean {_shown(by_folded[near[0]])}?" if near else ""
    return f"no {kind} {_shown(text)}{hint}"


def _has(names: Iterable[str], text: str) -> bool:
    return any(name.casefold() == text.casefold() for name in names)


def _matches(match: Like, text: str) -> bool:
    first, *between, last = (piece.casefold() for piece in match.pieces)
    text = text.casefold()
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at = len(first)
    for piece in between:
        found = text.find(piece, at, len(text) - len(last))
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _shown(text: str) -> str:
    return '"' + (text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…") + '"'
