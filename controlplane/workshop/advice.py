"""Warnings about a valid ruleset that may not have the effect that its author expects."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from controlplane.workshop.look_alikes import look_alikes
from proxy.policy import yaml_document
from proxy.policy.canonical import Name
from proxy.policy.ending import moment_text
from proxy.policy.paths import PathTree, Pattern, parse_pattern
from proxy.policy.ruleset import Rule, Ruleset
from proxy.policy.ruleset_yaml import RulesetProblem, at_most, document_problem
from proxy.policy.visible import looks_like, near
from proxy.policy.yaml_document import MAX_PROBLEMS

_VERSION = re.compile(r"v[0-9]+(\.[0-9]+)?|beta")
_VERSIONS = ("v1.0", "beta")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_COMPARED = 2_000  # patterns; a limit, because each pattern is compared with each other

_UNGUARDED = (
    "this filter does not set guard_queries: $filter and similar options can reveal hidden properties; write "
    " `guard_queries: true`, or `guard_queries: false` to allow this"
)
_NO_JSON = frozenset(("$value", "content", "contentstream"))
_NOT_FILTERED = (
    "responses of this path are not JSON: a filter passes only images, sounds and single lines of text, "
    "and responds 502 filterFailed to everything else; allow or block the path in a separate rule"
)
_SOON = 14 * 24 * 3600  # seconds before the end of a rule from which the end is reported
_NO_WORD = "/"  # stands in a name for a segment that only a wildcard matches

_Where = tuple[int | str, ...]
_Advice = Iterator[tuple[_Where, str]]


def ruleset_advice(text: str, ruleset: Ruleset, now: float | None = None) -> tuple[RulesetProblem, ...]:
    """Return the warnings about a ruleset, in the order of its lines.

    `ruleset` is the result of parse_ruleset for the text. `now` is the current time in Unix seconds. If `now`
    is None, no rule counts as ended.
    """
    document = yaml_document.parse(text)
    raw = cast("dict[str, Any]", document.value)
    kinds = (
        _unguarded(raw["rules"]),
        _unfiltered(ruleset),
        _leading_nowhere(raw["rules"]),
        _never_reached(ruleset),
        _settled_by_order_alone(ruleset),
        _without_version(ruleset),
        _unknown_methods(ruleset),
        look_alikes(ruleset),
        _ending(ruleset, now),
    )
    problems = [
        document_problem(document, where, message)
        for found in kinds
        for where, message in islice(found, MAX_PROBLEMS + 1)
    ]
    return tuple(at_most(sorted(problems, key=lambda one: (one.line, one.column))))


def hangs_on_order(ruleset: Ruleset) -> bool:
    """Return True if a rule is never reached, or if two rules overlap and only their order decides."""
    return any(_never_reached(ruleset)) or any(_settled_by_order_alone(ruleset))


def _unguarded(rules: list[dict[str, Any]]) -> _Advice:
    for at, rule in enumerate(rules):
        if rule["verdict"] == "filter" and "guard_queries" not in rule and _is_asked_with_a_query(rule):
            yield ("rules", at, "transforms"), _UNGUARDED


def _unfiltered(ruleset: Ruleset) -> _Advice:
    """Warn about filters on paths whose responses are not JSON."""
    for at, rule in enumerate(ruleset.rules):
        for place, path in enumerate(rule.match.path):
            if rule.verdict == "filter" and path.rpartition("/")[2].casefold() in _NO_JSON:
                yield ("rules", at, "match", "path", place), _NOT_FILTERED


def _ending(ruleset: Ruleset, now: float | None) -> _Advice:
    """Warn about rules that have ended or end soon, and about rules whose end opens access again."""
    for at, rule in enumerate(ruleset.rules):
        if rule.until is None:
            continue
        end, moment = rule.until.end, moment_text(rule.until.end)
        if now is not None and end <= now:
            yield ("rules", at, "until"), f"this rule ended at {moment}: {_AFTER_THE_END[rule.verdict]}"
        elif rule.verdict == "block" or (rule.verdict == "filter" and ruleset.default == "allow"):
            yield ("rules", at, "until"), f"this {rule.verdict} ends by itself at {moment}: {_OPENS}"
        elif now is not None and end <= now + _SOON:
            yield ("rules", at, "until"), f"this rule ends at {moment}, {_left(end - now)} from now"


_OPENS = "after that, later rules and the default decide these requests, and nobody has to approve this"
_AFTER_THE_END = {
    "allow": "it no longer allows anything; remove it, or write a later time",
    "filter": "it no longer filters: later rules and the default decide; write a later time",
    "block": "it no longer blocks: later rules and the default decide; remove `until`",
    "log_only": "it no longer logs; remove it, or write a later time",
}


def _left(seconds: float) -> str:
    days, hours = int(seconds // 86400), int(seconds // 3600)
    number, unit = (days, "day") if days else (hours, "hour")
    return f"{number} {unit}" + ("" if number == 1 else "s") if number else "less than an hour"


def _is_asked_with_a_query(rule: dict[str, Any]) -> bool:
    methods = rule["match"].get("methods") or ["GET"]
    return not {"GET", "HEAD"}.isdisjoint(method.upper() for method in methods)


def _leading_nowhere(rules: list[dict[str, Any]]) -> _Advice:
    for at, rule in enumerate(rules):
        transforms = rule.get("transforms") or {}
        for kind in ("strip_properties", "allow_properties"):
            paths = transforms.get(kind) or ()
            for place, path in enumerate(paths):
                name, dot, rest = path.partition(".")
                if dot and name.casefold() == "value":
                    message = f"a path begins at each item of a list, without `value`: write {rest}"
                elif path.casefold().startswith("@odata."):
                    message = (
                        "this removes control information of objects only; that of the whole response stays"
                    )
                else:
                    continue
                yield ("rules", at, "transforms", kind, place), message


def _unknown_methods(ruleset: Ruleset) -> _Advice:
    for at, rule in enumerate(ruleset.rules):
        for place, method in enumerate(rule.match.methods):
            if method.upper() not in _METHODS:
                close = difflib.get_close_matches(method.upper(), _METHODS, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                yield ("rules", at, "match", "methods", place), f"Microsoft Graph has no such method{hint}"


# -- rules that are never reached


@dataclass(frozen=True, slots=True)
class _Place:
    """A path pattern, and its rule, which decides every request that the pattern matches."""

    index: int
    rule: Rule
    pattern: Pattern


def _never_reached(ruleset: Ruleset) -> _Advice:
    trees: dict[str, PathTree[_Place]] = {"request": PathTree(), "response": PathTree()}
    for index, rule in enumerate(ruleset.rules):
        tree = trees[rule.when]
        deciders = [_deciders_before(tree, rule, path) for path in rule.match.path]
        if deciders and all(deciders):
            ids = _ids(one for each in deciders for one in each)
            yield ("rules", index, "id"), f"this rule is never reached: its requests are decided by {ids}"
        else:
            for at, each in enumerate(deciders):
                if each:
                    where = ("rules", index, "match", "path", at)
                    yield where, f"this path is never reached: its requests are decided by {_ids(each)}"
        if _always_decides(rule) and not all(deciders):
            for pattern in _patterns(rule):
                tree.add(pattern, _Place(index, rule, pattern))


def _deciders_before(tree: PathTree[_Place], rule: Rule, path: str) -> list[str]:
    """Return earlier rules that together decide all requests to the path; empty if there are none.

    The returned rules together cover every HTTP method that `rule` matches.
    """
    found: list[str] = []
    for pattern in parse_pattern(path):
        covering = tree.find(_as_name(pattern))[0]
        before = [place for place in covering if place.pattern.rest or not pattern.rest]
        before.sort(key=lambda place: place.index)
        whole = [place.rule.id for place in before if not place.rule.match.methods]
        if whole:
            found += whole[:1]
            continue
        taking = _taking_each_method(before, _methods(rule))
        if not taking:
            return []
        found += taking
    return found


def _taking_each_method(places: list[_Place], methods: frozenset[str]) -> list[str]:
    """Return rules that together match all of `methods`, or an empty list if any method is not matched.

    Each rule in `places` has an explicit list of the methods that it matches.
    """
    found: list[str] = []
    left = set(methods)
    for place in places:
        if left & _methods(place.rule):
            left -= _methods(place.rule)
            found.append(place.rule.id)
    return [] if left else found


def _as_name(pattern: Pattern) -> Name:
    words = tuple(_NO_WORD if word is None else word for word in pattern.segments)
    return Name(words, words)


def _always_decides(rule: Rule) -> bool:
    gates = (rule.ip, rule.time, rule.until, rule.body_only)
    return rule.verdict != "log_only" and not rule.conditions and not any(gates)


def _methods(rule: Rule) -> frozenset[str]:
    """Return the methods of a rule, or an empty set if the rule matches any method. GET includes HEAD."""
    methods = {method.upper() for method in rule.match.methods}
    return frozenset(methods | {"HEAD"} if "GET" in methods else methods)


def _patterns(rule: Rule) -> list[Pattern]:
    return [pattern for path in rule.match.path for pattern in parse_pattern(path)]


def _ids(ids: Iterator[str] | list[str]) -> str:
    return " and ".join(f"`{one}`" for one in dict.fromkeys(ids))


# -- rules whose order alone decides what they share


def _settled_by_order_alone(ruleset: Ruleset) -> _Advice:
    places: list[_Place] = []
    for index, rule in enumerate(ruleset.rules):
        if not _always_decides(rule):
            continue
        own = [_Place(index, rule, pattern) for pattern in _patterns(rule)]
        crossing = next(
            ((before, place) for place in own for before in places if _contradict(before, place)), None
        )
        if crossing is not None:  # only the first one, because a rule that crosses many is one oversight
            yield ("rules", index, "match"), _contradiction(*crossing)
        places += own
        if len(places) > MAX_COMPARED:
            return


def _contradict(first: _Place, second: _Place) -> bool:
    """Return True if two patterns overlap only partly, and their rules have different verdicts or transforms.

    Rulesets usually place a rule for an exception before the general rule. If each of two overlapping rules
    also matches requests that the other rule does not match, this may be an oversight.
    """
    one, other = first.rule, second.rule
    return (
        (one.verdict, one.transforms) != (other.verdict, other.transforms)
        and one.when == other.when
        and _share_a_method(one, other)
        and _shared(first.pattern, second.pattern) is not None
        and not _covers(first.pattern, second.pattern)
        and not _covers(second.pattern, first.pattern)
    )


def _contradiction(first: _Place, second: _Place) -> str:
    shared = _shared(first.pattern, second.pattern)
    return (
        f"`{first.rule.id}` and this rule both match {shared}: only their order makes the verdict "
        f"{first.rule.verdict} instead of {second.rule.verdict}"
    )


def _share_a_method(one: Rule, other: Rule) -> bool:
    first, second = _methods(one), _methods(other)
    return not first or not second or bool(first & second)


def _covers(general: Pattern, special: Pattern) -> bool:
    if len(general.segments) > len(special.segments):
        return False
    if not general.rest and (special.rest or len(general.segments) < len(special.segments)):
        return False
    return all(word in (None, known) for word, known in zip(general.segments, special.segments, strict=False))


def _shared(one: Pattern, other: Pattern) -> str | None:
    """Return a pattern for the paths that both given patterns match, or None if they share no path."""
    short, long = sorted((one, other), key=lambda pattern: len(pattern.segments))
    if len(short.segments) < len(long.segments) and not short.rest:
        return None
    words: list[str] = []
    for at, known in enumerate(long.segments):
        word = short.segments[at] if at < len(short.segments) else None
        if word is not None and known is not None and word != known:
            return None
        words.append(word or known or "*")
    return "/" + "/".join(words + ["**"] * (one.rest and other.rest))


# -- paths as Microsoft's documentation abbreviates them


def _without_version(ruleset: Ruleset) -> _Advice:
    """Warn about the first path that does not begin with a version.

    Do not warn if no path has a version and the default verdict is `block`. An upstream may use paths without
    a version. If the upstream's paths begin with a version, a path without a version matches no request. A
    rule with such a path therefore cannot allow a request by mistake.
    """
    paths = [
        (("rules", index, "match", "path", at), path)
        for index, rule in enumerate(ruleset.rules)
        for at, path in enumerate(rule.match.path)
    ]
    bare = [(where, path) for where, path in paths if not _begins_with_version(path)]
    if bare and (len(bare) < len(paths) or ruleset.default == "allow"):
        where, path = bare[0]
        meant = _version_meant(path)
        hint = f"did you mean {meant}?" if meant else f"write /v1.0{path}, or /*{path} for every version"
        yield (
            where,
            f"paths of Microsoft Graph begin with a version, so this path matches nothing there: {hint}",
        )


def _version_meant(path: str) -> str | None:
    """Correct the first segment of the path if it looks like a misspelt version of Microsoft Graph.

    Otherwise return None.
    """
    _, first, *rest = path.split("/")
    shown = looks_like(first)
    for version in _VERSIONS:
        if near(shown.replace("o", "0").replace("l", "1"), version) or near(shown, version):
            return "/".join(("", version, *rest))
    return None


def _begins_with_version(path: str) -> bool:
    """Return True if the path begins with a version, or with a wildcard that can stand for a version."""
    firsts = [pattern.segments[0] if pattern.segments else None for pattern in parse_pattern(path)]
    return any(word is None or _VERSION.fullmatch(word) for word in firsts)
