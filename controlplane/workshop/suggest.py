"""Suggest the smallest ruleset that would have allowed the recorded requests, with evidence for each rule."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from controlplane.workshop.advice import hangs_on_order
from controlplane.workshop.implied_traffic import implied_by_traffic
from proxy.policy.batch import is_batch
from proxy.policy.canonical import ANY_KEY, MalformedTarget, Target, canonicalise, fully_decoded
from proxy.policy.path_shapes import Shape, Shaped, looks_like_id, parameter, shapes_of
from proxy.policy.queries import QueryGuard
from proxy.policy.redaction import is_cut, without_secrets
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.transforms import Kept, Transforms, covers, parse_names
from proxy.wire.figures import counted

MAX_SHAPES: Final = 5_000  # shapes of paths to store; the text says how many requests are beyond
MAX_SPELLINGS: Final = 20_000  # words whose spellings are stored
_MAX_SPELLINGS_OF_ONE: Final = 16
MAX_OPTIONS: Final = 20  # query options stored for one path
MAX_SELECTED: Final = 60  # properties in `$select` stored for one path
_SAMPLES: Final = 2
_MAX_SAMPLE: Final = 160  # characters of a sample
_SYSTEM_OPTIONS: Final = frozenset(
    """
    select filter orderby search expand apply compute top skip count format skiptoken deltatoken levels
    """.split()  # noqa: SIM905
)
# Options whose values are never written to a comment, also within $expand.
_UNTOLD: Final = re.compile(r"(?i)(?:^|[(;&])\s*\$?(?:filter|search|skiptoken|deltatoken)\s*=")
_SHARE: Final = re.compile(r"(?i)(/shares/)[^/]+")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_DOTTED: Final = re.compile(r"[^\s./\\]+(?:\.[^\s./\\]+)*")  # name of a property
_FEW: Final = 16
_PLAIN: Final = re.compile(r"[A-Za-z/$](?:[A-Za-z0-9_./$-]*[A-Za-z0-9_/$])?")
# Reasons of refusals that a filter may cause: an ambiguous path, or a response that it can't filter.
_FOR_FILTERS: Final = frozenset(("ambiguousTarget", "filterFailed"))
# A property that every filter keeps, because a rule's list must not be empty
_NO_PROPERTY: Final = ("@odata.type",)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Filter(NamedTuple):
    transforms: Transforms
    guards: bool  # True if the rule has a query guard


@dataclass(slots=True)
class Options:
    """The query options of a group of recorded requests whose paths have the same shape."""

    counts: Counter[str] = field(default_factory=Counter)
    top: int = 0
    selected: set[str] = field(default_factory=set)

    def add(self, target: Target) -> None:
        for name, values in target.options.items():
            if name in self.counts or len(self.counts) < MAX_OPTIONS:
                self.counts[name] += 1
            if name == "top":
                self.top = max([self.top, *(int(one) for one in values if _NUMBER.fullmatch(one))])
            elif name == "select" and len(self.selected) < MAX_SELECTED:
                self.selected.update(part.strip() for part in values[0].split(","))


@dataclass(slots=True)
class Evidence:
    """A group of recorded requests whose paths have the same shape.

    The HTTP methods that get the same rule form one group.
    """

    first: datetime | None = None  # None until a time is known
    last: datetime | None = None
    count: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    options: Options = field(default_factory=Options)
    # Filters of responses, limited in number
    transforms: Counter[Transforms] = field(default_factory=Counter)
    whole: int = 0  # requests whose responses were not filtered
    hidden: Transforms | None = None  # combination of all those filters
    is_probed: bool = False  # True if a query named a property that its filter hides

    def add(
        self,
        method: str,
        target: Target,
        time: datetime | None,
        transforms: Transforms | None,
        *,
        was_blocked: bool = False,
    ) -> None:
        if time is not None:
            self.first = time if self.first is None else min(self.first, time)
            self.last = time if self.last is None else max(self.last, time)
        self.count += 1
        self.methods[method] += 1
        sample = _sample(target)
        if len(self.samples) < _SAMPLES and sample not in self.samples:
            self.samples.append(sample)
        self.options.add(target)
        if transforms is None:
            self.whole += not was_blocked
            return
        self.hidden = _both(self.hidden, transforms)
        self.is_probed = self.is_probed or _guard(transforms).is_probed_by(target)
        if transforms in self.transforms or len(self.transforms) < _FEW:
            self.transforms[transforms] += 1

    def filter(self, *, is_general: bool) -> Filter | None:
        """Return a filter that shows no more data than the recorded responses.

        Return None if the recorded responses need no filter.

        If a pattern stands for several resources and only some responses were filtered, the filter applies to
        all these resources. A path pattern cannot exclude a single resource from the filter.
        """
        if self.hidden is None or (self.whole and not is_general):
            return None
        return Filter(_in_one_list(self.hidden), guards=not self.is_probed)

    def together(self, other: Evidence) -> Evidence:
        options = Options(
            self.options.counts + other.options.counts,
            max(self.options.top, other.options.top),
            self.options.selected | other.options.selected,
        )
        return Evidence(
            min(filter(None, (self.first, other.first)), default=None),
            max(filter(None, (self.last, other.last)), default=None),
            self.count + other.count,
            self.methods + other.methods,
            samples=[*self.samples, *other.samples][:_SAMPLES],
            options=options,
            transforms=self.transforms + other.transforms,
            whole=self.whole + other.whole,
            hidden=_both(self.hidden, other.hidden),
            is_probed=self.is_probed or other.is_probed,
        )


def _both(first: Transforms | None, second: Transforms | None) -> Transforms | None:
    if first is None or second is None:
        return first or second
    return first if first == second else first.combined(second)


def _in_one_list(transforms: Transforms) -> Transforms:
    """Combine allowed and stripped properties into one list, because a rule has only one property list.

    Remove the properties in `strip` from the properties in `allow`.
    """
    if transforms.allow is None:
        return transforms
    allow = tuple(
        path
        for path in transforms.allow
        if not any(covers(strip, path) or covers(path, strip) for strip in transforms.strip)
    )
    return Transforms(allow=allow or _NO_PROPERTY, keep=transforms.keep)


@dataclass(slots=True)
class Seen:
    """A group of recorded requests whose paths have the same shape."""

    ids: tuple[str, ...]  # ids of the first request
    several: list[bool]  # True for each id that had other values too
    # HEAD counts as GET, because it has the same rules
    by_method: dict[str, Evidence] = field(default_factory=dict)

    @property
    def is_general(self) -> bool:
        """Return True if the pattern stands for several recorded resources."""
        return any(self.several)

    def add_ids(self, ids: tuple[str, ...]) -> None:
        for at, (known, one) in enumerate(zip(self.ids, ids, strict=True)):
            if known != one:
                self.several[at] = True


class Observations:
    """The recorded requests of an application.

    The memory for the recorded requests depends only on the number of path shapes. A path shape is a path
    with placeholders instead of object IDs.
    """

    def __init__(self) -> None:
        self.count = 0
        self.left_out = 0  # requests that no rule can describe
        self.unknown_filters = 0  # part of `left_out`: requests that unknown rules filtered
        self.shapes: dict[Shape, Seen] = {}
        self._spellings: dict[str, Counter[str]] = {}

    def add(
        self,
        method: str,
        target: str,
        time: datetime | None,
        transforms: Sequence[str] = (),
        *,
        was_blocked: bool = False,
        body: bytes | None = None,
    ) -> None:
        """Add a recorded request that the rules must allow, with the requests that it implies.

        `transforms` contains the names of the transforms that filtered the recorded response. If `transforms`
        is empty, the application received the complete response, unless the proxy blocked the request.
        """
        self.count += 1
        if is_cut(target) or any(map(is_cut, transforms)):
            self.left_out += 1
            return
        hidden = _transforms(tuple(transforms))
        if transforms and hidden is None:
            self.left_out += 1
            self.unknown_filters += 1
            return
        try:
            read = canonicalise(target)
        except MalformedTarget:
            self.left_out += 1
            return
        if is_batch(method, read):  # its sub-requests are evaluated, so it needs no rule
            return
        method = method.upper()
        found = shapes_of(method, read)
        if found is None or _TOKEN.fullmatch(method) is None or not self._has_room(found, method):
            self.left_out += 1
            return
        for shaped in found:
            evidence = self._evidence(shaped, method)
            evidence.add(method, read, time, hidden, was_blocked=was_blocked)
        for other, target_of_other in implied_by_traffic(method, read, body):
            implied = shapes_of(other, target_of_other)
            if implied is None or not self._has_room(implied, other):
                continue
            for shaped in implied:
                self._evidence(shaped, other).add(other, target_of_other, time, None, was_blocked=True)

    def _evidence(self, shaped: Shaped, method: str) -> Evidence:
        self._spell(shaped)
        several = [one == ANY_KEY for one in shaped.ids]
        seen = self.shapes.setdefault(shaped.shape, Seen(shaped.ids, several))
        seen.add_ids(shaped.ids)
        return seen.by_method.setdefault(as_get(method), Evidence())

    def leave_out_filtered(self) -> None:
        """Count a request as left out, because the filter of its response is not known."""
        self.count += 1
        self.left_out += 1
        self.unknown_filters += 1

    def _has_room(self, found: Sequence[Shaped], method: str) -> bool:
        known = [self.shapes[shaped.shape] for shaped in found if shaped.shape in self.shapes]
        if len(self.shapes) + len(found) - len(known) > MAX_SHAPES:
            return False
        return all(as_get(method) in seen.by_method or len(seen.by_method) < _FEW for seen in known)

    def _spell(self, shaped: Shaped) -> None:
        for word, text in zip(shaped.shape, shaped.spelled, strict=True):
            if word is not None and text != ANY_KEY:
                known = self._spellings.get(word)
                if known is not None:
                    if text in known or len(known) < _MAX_SPELLINGS_OF_ONE:
                        known[text] += 1
                elif len(self._spellings) < MAX_SPELLINGS:
                    self._spellings[word] = Counter((text,))

    def spelled(self, word: str) -> str:
        """Return the most frequent spelling of a word in the recorded paths."""
        known = self._spellings.get(word)
        return word if known is None else min(known, key=lambda text: (-known[text], text))


@lru_cache(maxsize=256)
def _transforms(names: tuple[str, ...]) -> Transforms | None:
    """Parse names of transforms such as `strip:a`, `allow:b` and `items:{…}`.

    Return None if `names` is empty, or if a rule can't contain one of the transforms.
    """
    named = parse_names(names)
    known = [*named.stripped, *(named.allowed or ())]
    if not names or any(not name.startswith(("strip:", "allow:", "items:{")) for name in names):
        return None
    if not all(map(_is_property, known)):
        return None
    allow = None if named.allowed is None else tuple(sorted(named.allowed))
    keep = _kept(named.kept)
    return None if keep is None else Transforms(tuple(sorted(named.stripped)), allow, keep=keep)


def _kept(texts: Sequence[str]) -> tuple[Kept, ...] | None:
    """Parse the texts that `condition_text` made from conditions on items.

    Return None if the text of a condition is truncated and therefore can't be parsed.
    """
    if not texts:
        return ()
    transforms = f"{{items: {{keep: [{', '.join(sorted(texts))}]}}}}"
    rule = f"{{id: a, match: {{path: [/a]}}, verdict: filter, transforms: {transforms}}}"
    try:
        (read,) = parse_ruleset(f"version: 1\nname: a\nrules: [{rule}]").rules
    except InvalidRuleset:
        return None
    return None if read.transforms is None else read.transforms.keep


def _is_property(name: str) -> bool:
    return name.isprintable() and _DOTTED.fullmatch(name) is not None


@lru_cache(maxsize=256)
def _guard(transforms: Transforms) -> QueryGuard:
    return QueryGuard(transforms)


# -- a ruleset


@dataclass(frozen=True, slots=True)
class SuggestedPath:
    pattern: str
    methods: tuple[str, ...]
    evidence: Evidence
    filter: Filter | None
    body_only: Members
    in_order: bool  # True if the resource has filters for these methods, so that the order of rules matters


@dataclass(frozen=True, slots=True)
class SuggestedRule:
    id: str
    paths: tuple[SuggestedPath, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        return self.paths[0].methods

    @property
    def filter(self) -> Filter | None:
        return self.paths[0].filter

    @property
    def body_only(self) -> Members:
        return self.paths[0].body_only


@dataclass(frozen=True, slots=True)
class Suggestion:
    yaml: str
    rules: tuple[SuggestedRule, ...]
    requests: int
    left_out: int

    @property
    def has_filters(self) -> bool:
        return any(rule.filter is not None for rule in self.rules)


Members = tuple[str, ...] | None
"""Members of the bodies of requests, or None if a rule does not restrict them."""

Place = tuple[str, str]
"""A pattern in lower case and a method. GET includes HEAD."""


class _KindOf(Protocol):
    def __call__(
        self, pattern: str, method: str, evidence: Evidence, *, is_general: bool
    ) -> Filter | None: ...


def suggest(
    observed: Observations,
    name: str,
    *,
    about: Sequence[str] = (),
    filters: Mapping[Place, Filter] | None = None,
    members: Mapping[Place, tuple[str, ...]] | None = None,
    unguarded: Set[str] = frozenset(),
    blocked: int = 0,
) -> Suggestion:
    """Suggest a ruleset with this name for the recorded requests.

    Raise InvalidRuleset if the name is invalid.

    `about` contains the lines of the comment at the start of the ruleset. `filters` contains a filter for
    each pair of a path pattern and an HTTP method. The filters in `filters` apply in addition to the filters
    of the recorded responses. `members` contains, for each pair of a path pattern and a method, the members
    of the request bodies, if all these bodies are known. A rule with a path pattern in `unguarded` gets no
    query guard. The comment at the start of the ruleset says that the suggestion leaves out the requests in
    `blocked`.

    A filter also blocks paths and queries that name a hidden property. Evaluate the suggested ruleset on the
    same traffic, and pass each request that it blocks to a `Blocked`. Then call `suggest` again with the
    attributes `unguarded` and `count` of this `Blocked`. Repeat the evaluation and the call of `suggest`
    until `Blocked.unguarded` is empty after an evaluation.
    """
    name = _plain(name)

    def kind_of(pattern: str, method: str, evidence: Evidence, *, is_general: bool) -> Filter | None:
        found = (filters or {}).get((pattern.lower(), method)) or evidence.filter(is_general=is_general)
        return found._replace(guards=False) if found and pattern in unguarded else found

    rules = _rules(_paths(observed, kind_of, members or {}))
    text = _yaml(name, rules, about, observed, blocked)
    if hangs_on_order(parse_ruleset(text)):
        rules = _rules(_paths(observed, kind_of, members or {}, all_in_order=True))
        text = _yaml(name, rules, about, observed, blocked)
    return Suggestion(text, tuple(rules), observed.count, observed.left_out + blocked)


class Blocked:
    """Counts the recorded requests that a suggested ruleset blocks by mistake, because of one of its filters.

    If the query guard of a suggested rule would block an allowed query, `suggest` must remove the query guard
    of this rule. A suggested rule always keeps its filter. Without the filter, the application would receive
    more data than in the recorded responses. If a filter blocks a recorded request, the suggestion leaves out
    this request.
    """

    def __init__(self, found: Suggestion) -> None:
        self._filters = {rule.id: rule for rule in found.rules if rule.filter is not None}
        self.unguarded: set[str] = set()  # patterns whose rules must lose their query guard
        self.count = 0  # requests that stay blocked

    def add(self, by: str, target: str) -> None:
        """Process a request that was allowed when it was recorded, but that a suggested rule blocks."""
        rule = self._filters.get(by)
        if rule is not None and _is_probed(rule.filter, target):
            self.unguarded.update(path.pattern for path in rule.paths)
        elif rule is not None or (by in _FOR_FILTERS and self._filters):
            self.count += 1


def _is_probed(filter_: Filter | None, target: str) -> bool:
    return (
        filter_ is not None
        and filter_.guards
        and _guard(filter_.transforms).is_probed_by(canonicalise(target))
    )


def patterns(observed: Observations) -> dict[Shape, str]:
    """Return the suggested path pattern for each shape of recorded paths."""
    return {shape: _pattern(observed, shape, seen) for shape, seen in observed.shapes.items()}


def _paths(
    observed: Observations,
    kind_of: _KindOf,
    members: Mapping[Place, tuple[str, ...]],
    *,
    all_in_order: bool = False,
) -> list[SuggestedPath]:
    """Return the suggested path patterns.

    If several HTTP methods get the same rule on a path, the suggestion combines the methods.
    """
    single: list[tuple[str, str, Evidence, Filter | None]] = []
    spelled: dict[str, str] = {}
    filtered: set[tuple[str, str]] = set()  # resources and methods that have a filter
    for shape in sorted(observed.shapes, key=lambda shape: [word or "" for word in shape]):
        pattern = _pattern(observed, shape, observed.shapes[shape])
        # A segment may be a word in one shape and an id in another
        pattern = spelled.setdefault(pattern.lower(), pattern)
        seen = observed.shapes[shape]
        for method, evidence in sorted(seen.by_method.items()):
            kind = kind_of(pattern, method, evidence, is_general=seen.is_general)
            single.append((pattern, method, evidence, kind))
            if kind is not None:
                filtered.add((_resource(pattern), method))
    found: dict[tuple[str, Filter | None, Members, bool], Evidence] = {}
    for pattern, method, evidence, kind in single:
        in_order = all_in_order or (_resource(pattern), method) in filtered
        key = pattern, kind, members.get((pattern.lower(), method)), in_order
        found[key] = found[key].together(evidence) if key in found else evidence
    return [
        SuggestedPath(pattern, _methods(evidence.methods), evidence, kind, body_only, in_order)
        for (pattern, kind, body_only, in_order), evidence in found.items()
    ]


def as_get(method: str) -> str:
    return "GET" if method == "HEAD" else method


def _specificity(pattern: str) -> tuple[tuple[bool, str], ...]:
    return tuple((word.startswith("{"), word.lower()) for word in pattern.split("/"))


def _pattern(observed: Observations, shape: Shape, seen: Seen) -> str:
    ids = iter(zip(seen.ids, seen.several, strict=True))
    words: list[str] = []
    used: set[str] = set()
    for at, word in enumerate(shape):
        if word is not None:
            words.append(observed.spelled(word))
            continue
        one, several = next(ids)
        if not several and not looks_like_id(one):
            words.append(one)
            continue
        words.append(f"{{{_unused(_parameter(observed, shape[at - 1]), used)}}}")
    return "/" + "/".join(words)


def _parameter(observed: Observations, collection: str | None) -> str:
    return parameter(None if collection is None else observed.spelled(collection))


def _unused(name: str, used: set[str]) -> str:
    number = 2
    found = name
    while found in used:
        found, number = f"{name}-{number}", number + 1
    used.add(found)
    return found


def _methods(seen: Iterable[str]) -> tuple[str, ...]:
    """Return the methods without HEAD if GET is present, because GET includes HEAD."""
    methods = set(seen)
    return tuple(sorted(methods - {"HEAD"} if "GET" in methods else methods))


def _rules(paths: Sequence[SuggestedPath]) -> list[SuggestedRule]:
    """Return the suggested rules for the recorded paths.

    The paths of one resource share a suggested rule if they get the same rule.

    If the order of rules matters, a rule with a fixed segment comes before a rule with a parameter in that
    segment. The suggested ruleset has a rule for deeper paths before the rule for their parent path. If the
    rule for the parent path came first, its filter would block the deeper paths.
    """

    def place(path: SuggestedPath) -> tuple[object, ...]:
        depth = -path.pattern.count("/") if path.in_order else 0
        together = () if path.in_order else (_root(path.pattern).lower(), path.methods, path.body_only or ())
        resource = _resource(path.pattern)
        return resource, not path.in_order, together, depth, _specificity(path.pattern), path.methods

    def kind(path: SuggestedPath) -> tuple[object, ...]:
        return _root(path.pattern).lower(), path.in_order, path.methods, path.filter, path.body_only

    used: set[str] = set()
    return [
        SuggestedRule(_unused(_rule_id(of_rule[0]), used), tuple(of_rule))
        for _, each in groupby(sorted(paths, key=place), kind)
        for of_rule in [list(each)]
    ]


def _resource(pattern: str) -> str:
    """Return the version and the first segment of a path pattern.

    No request matches two patterns that differ in the version or the first segment.
    """
    return "/".join(pattern.split("/")[:3]).lower()


def _root(pattern: str) -> str:
    """Return the API version and the first segment of a path pattern, such as `/v1.0/users`.

    For a pattern that begins with `/v1.0/me`, also return the next segment.
    """
    words = pattern.split("/")
    return "/".join(words[: 4 if words[2:3] == ["me"] else 3])


def _rule_id(path: SuggestedPath) -> str:
    words = _root(path.pattern).split("/")[1:]
    if words[0].lower() == "v1.0" and len(words) > 1:
        words = words[1:]
    parts = [re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in [*words, *path.methods]]
    text = "-".join(filter(None, parts)).lower()[:100]
    return text if text[:1].isalnum() and text != "default" else f"rule-{text}"


# -- text of a ruleset


def _yaml(
    name: str,
    rules: Sequence[SuggestedRule],
    about: Sequence[str],
    observed: Observations,
    blocked: int,
) -> str:
    lines = [f"# {_plain(line)}" for line in about]
    if unsaid := observed.left_out - observed.unknown_filters:
        lines.append(f"# Left out, and so blocked: {counted(unsaid, 'request')} that no rule can describe.")
    if observed.unknown_filters:
        filtered = counted(observed.unknown_filters, "request")
        lines.append(f"# Left out, and so blocked: {filtered} filtered by unknown rules.")
    if blocked:
        lines.append(
            f"# Left out, and so blocked: {counted(blocked, 'request')} that a filter below blocks. "
            "Without the filter, the rule would show more than the recorded responses."
        )
    lines += ["version: 1", f"name: {_scalar(name)}", "default: block"]
    lines.append("rules:" if rules else "rules: []")
    for rule in rules:
        lines += _rule_lines(rule)
    return "\n".join(lines) + "\n"


def _rule_lines(rule: SuggestedRule) -> Iterator[str]:
    evidence = [path.evidence for path in rule.paths]
    count = sum(one.count for one in evidence)
    yield "  # " + ", ".join(filter(None, (counted(count, "request"), _when(evidence))))
    yield f"  - id: {rule.id}"
    yield "    match:"
    yield f"      methods: [{', '.join(map(_scalar, rule.methods))}]"
    yield "      path:"
    for path in rule.paths:
        for comment in _evidence_lines(path):
            yield f"        # {_plain(comment)}"
        yield f"        - {_scalar(path.pattern)}"
    if rule.body_only is not None:
        yield f"    body_only: [{', '.join(map(_scalar, rule.body_only))}]"
    if rule.filter is None:
        yield "    verdict: allow"
        return
    transforms = rule.filter.transforms
    yield "    verdict: filter"
    yield "    transforms:"
    if transforms.strip:
        yield f"      strip_properties: [{', '.join(map(_scalar, transforms.strip))}]"
    if transforms.allow is not None:
        yield f"      allow_properties: [{', '.join(map(_scalar, transforms.allow))}]"
    if transforms.keep:
        yield f"      items: {{keep: [{', '.join(each.text for each in transforms.keep)}]}}"
    yield f"    guard_queries: {'true' if rule.filter.guards else 'false'}"


def _when(evidence: Sequence[Evidence]) -> str:
    """Return the period of the recorded requests as text.

    Return an empty text if no request has a known time.
    """
    first = min((one.first for one in evidence if one.first is not None), default=None)
    last = max((one.last for one in evidence if one.last is not None), default=None)
    if first is None or last is None:
        return ""
    return _time(first) if _time(first) == _time(last) else f"{_time(first)} to {_time(last)}"


def _evidence_lines(path: SuggestedPath) -> Iterator[str]:
    evidence = path.evidence
    methods = ", ".join(f"{count} {method}" for method, count in sorted(evidence.methods.items()))
    yield f"{methods}: {'; '.join(evidence.samples)}"
    if evidence.options.counts:
        yield "query: " + "; ".join(_describe_options(evidence))
    for transforms, count in sorted(evidence.transforms.items(), key=lambda one: one[0].names):
        if path.filter is None or path.filter.transforms != transforms:
            yield f"filtered {_times(count)}: {', '.join(transforms.names)}"
    if path.filter is not None and evidence.hidden is not None and evidence.whole:
        yield f"not filtered {_times(evidence.whole)}"


def _describe_options(evidence: Evidence) -> Iterator[str]:
    options = evidence.options
    for name, count in sorted(options.counts.items()):
        often = "always" if count == evidence.count else _times(count)
        report = f"${name}" if name in _SYSTEM_OPTIONS else name
        if name == "top" and options.top:
            report += f" at most {options.top}"
        if name == "select":
            report += " " + ", ".join(sorted(options.selected, key=lambda text: (text.lower(), text)))
        yield f"{report} ({often})"


def _sample(target: Target) -> str:
    """Return the path and query of a target, without the values of filters, page tokens and IDs of shares."""
    path = _SHARE.sub(r"\1…", target.path)
    query = "" if target.query is None else "?" + _without_values(without_secrets(target.query))
    text = f"{path}{query}"
    return text if len(text) <= _MAX_SAMPLE else text[:_MAX_SAMPLE] + "…"


def _without_values(query: str) -> str:
    return "&".join(
        f"{option.partition('=')[0]}=…" if _UNTOLD.search(fully_decoded(option)) else option
        for option in query.split("&")
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _plain(text: str) -> str:
    """Return a text for a comment, with unprintable characters such as line breaks replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _scalar(text: str) -> str:
    """Return a YAML scalar that a parser reads as text, also within a list."""
    if _PLAIN.fullmatch(text) and text.lower() not in ("true", "false", "null"):
        return text
    return json.dumps(text, ensure_ascii=False)
