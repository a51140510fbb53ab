"""Find the resource classes that a recorded request reaches by its path, `$expand` or implied requests.

The report says that a recorded request reaches a resource class certainly, possibly, or not at all. If the
audit trail lacks facts of the request, such as the body of a search, the report says *possibly*. The report
also says *possibly* if neither a schema nor a built-in fact about Microsoft Graph describes the request's
path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from controlplane.report.resource_classes import (
    CLASSES,
    HANDED_OVER,
    READING_ACTIONS,
    SEARCHED,
    TO_PEOPLE,
    TOLD_BY_BODY,
    ResourceClass,
)
from controlplane.workshop.implied_traffic import is_collection
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.canonical import (
    ANY_KEY,
    UNTAKEN,
    MalformedTarget,
    Name,
    Target,
    canonicalise,
    fully_decoded,
)
from proxy.policy.implied import Below, Implied, implied_by_query
from proxy.policy.known_names import PROPERTIES, RESOURCES
from proxy.policy.odata import SHADOW, fold
from proxy.policy.path_shapes import COLLECTIONS, shapes_of
from proxy.policy.reached import CONTENT, NO, OPERATION, OPTION, PROPERTY, YES
from proxy.policy.redaction import is_cut
from proxy.policy.resource_model import ACTION
from proxy.policy.schemas import Schemas
from proxy.policy.thing_paths import ReachedPath, end_may_hold, ends_with_named, met_by
from proxy.policy.thing_rows import Things
from proxy.policy.thing_rules import ThingRules
from proxy.policy.things import Resolver

Access = Literal["read", "write"]
Held = Literal["certain", "possible"]

_MOST_KNOWN: Final = 8192  # shapes of requests whose classes are cached
_LONGEST_KEY: Final = 4096  # characters of such a shape
_LONGEST_SHOWN: Final = 160
# Any id, whether or not the schema describes it: a GUID, a number, an address, a long token with more digits
# than a name has.
_ID: Final = re.compile(
    r"/(?:[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9]+|[A-Za-z0-9._+-]+@[A-Za-z0-9.-]+"
    r"|(?=(?:[A-Za-z_=-]*[0-9]){4})[A-Za-z0-9_=-]{20,})(?=/|\Z)"
)
_MOST_EXPANDED: Final = 300  # relations of one request, including nested ones
_BELOW_VERSION: Final = 1  # segments of a path before the segments that name things
_NO_THINGS: Final = frozenset((("$batch",), ("$metadata",)))
_OPTIONS: Final = frozenset(("$value", "$ref", "$count"))
# segments that do not change the type of the object before them
_OF_THE_OBJECT: Final = _OPTIONS | {"delta", "restore"}
_SELECT: Final = re.compile(r"[A-Za-z0-9_.,/ ]*")
_READS: Final = frozenset(("GET", "HEAD"))
_NO_BELOW: Final = Below()
_NO_CLASSES: Final[frozenset[str]] = frozenset()
_EXTRA_WORDS: Final = (
    "subscriptions search query photo photos delta invitations places rooms reports auditlogs signins"
    " mastercategories outlook planner todo tasks onenote presence contacts people insights settings"
    " mailboxsettings identity policies rolemanagement security teamwork subscribedskus messagerules"
    " profilephoto token proxy extensions attachments openextensions singlevalueextendedproperties"
)
_KNOWN: Final = (
    frozenset(_EXTRA_WORDS.split())
    | COLLECTIONS
    | frozenset(map(fold, RESOURCES))
    | frozenset(map(fold, PROPERTIES))
    | frozenset(word for each in CLASSES.values() for word in each.words | each.shared)
    | frozenset(HANDED_OVER)
    | frozenset(TOLD_BY_BODY)
    | READING_ACTIONS
)

NO_BODY: Final = (
    "the trail does not hold bodies of requests, which name the resources of a search or subscription"
)
MAY_BE: Final = "the objects may be of several types"
UNKNOWN_NAME: Final = "neither a schema nor a built-in fact describes the path"
WAS_CUT: Final = "the recorded request was cut because it was too long"
UNREADABLE: Final = "the request has no unambiguous interpretation"


class Touch(NamedTuple):
    """A resource class that a request reaches, and the certainty that the request reaches it."""

    resource_class: str
    held: Held
    why: str  # empty if the path itself reaches the class


class Classified(NamedTuple):
    access: Access
    shown: str  # the shape of the request, with ids left out
    touches: tuple[Touch, ...]


class Classifier:
    """Classifier that finds the resource classes that a request reaches, with the help of schemas.

    If no schema describes a path, the Classifier uses built-in names of resource classes.
    """

    def __init__(self, classes: Sequence[str], schemas: Schemas) -> None:
        self._classes: Final = [CLASSES[each] for each in classes]
        self._has_schemas: Final = bool(schemas.models)
        # without rules; used to find the most specific name of a path
        self._paths: Final = ThingRules(schemas)
        self._things: Final[dict[str, dict[str, Things]]] = {
            model.digest: {each.name: Resolver(model).resolve(each.things) for each in self._classes}
            for model in schemas.models
        }
        self._known: Final[BoundedMemo[str, Classified]] = BoundedMemo(
            _MOST_KNOWN, _LONGEST_KEY, WhenFull.CLEAR
        )

    def classify(self, method: str, path: str, query: str | None, implied: str | None = None) -> Classified:
        """Return the resource classes that a recorded request reaches.

        `implied` is an additional request that the recorded request implied. The audit event of the recorded
        request contains the implied request.
        """
        asked = query if query and _matters(query) else ""
        shape = _ID.sub("/{id}", path)
        key = f"{method} {shape}?{asked} {implied or ''}"
        found = self._known.entries.get(key)
        if found is None:
            found = self._classified(method, shape.replace("{id}", "0"), shape, asked, implied or "")
            self._known.keep(key, found)
        return found

    def _classified(self, method: str, path: str, shape: str, query: str, implied: str) -> Classified:
        cut = is_cut(path) or is_cut(query) or is_cut(implied)
        touched: dict[str, Touch] = {}
        access: Access = "read" if method.upper() in _READS else "write"
        try:
            target = canonicalise(path.partition("…[")[0])
            access = self._access(method, target)
            shape = _shape(method, target) or shape
            self._add(touched, self._of_target(method, target))
            self._add(touched, self._by_selection(query))
            if query:
                asked = query.partition("…[")[0]
                self._add(touched, self._by_query(path.partition("…[")[0], asked))
            self._add(touched, self._by_body(method, target, implied))
        except MalformedTarget:
            words = frozenset(re.findall(r"\w+", fully_decoded(f"{path}?{query}").lower()))
            self._add(touched, self._by_words(words, "possible", UNREADABLE))
        if cut:
            self._add(touched, (Touch(each.name, "possible", WAS_CUT) for each in self._classes))
        return Classified(access, _shown(shape, query), tuple(touched.values()))

    @staticmethod
    def _add(touched: dict[str, Touch], found: Iterable[Touch]) -> None:
        """Add to the dictionary `touched` the resource classes that the request reaches.

        If a resource class is already in the dictionary, keep the more certain entry.
        """
        for each in found:
            known = touched.get(each.resource_class)
            if known is None or (known.held == "possible" and each.held == "certain"):
                touched[each.resource_class] = each

    # Classification by the path

    def _of_target(self, method: str, target: Target) -> Iterator[Touch]:
        shapes = shapes_of(method, target)
        for reading in target.readings:
            unlikely = bool(reading.kind & (SHADOW | UNTAKEN))
            if any(name.folded[_BELOW_VERSION:] in _NO_THINGS for name in reading.names):
                continue
            path = self._paths.reached(reading.names)
            if path is not None:
                yield from self._of_steps(path, unlikely=unlikely)
            if path is None or not path.certain:
                shaped = None if shapes is None or unlikely else [each.shape for each in shapes]
                yield from self._of_words(reading.names, shaped, unlikely=unlikely)

    def _of_steps(self, path: ReachedPath, *, unlikely: bool) -> Iterator[Touch]:
        """Return the resource classes that a path reaches according to the schema.

        If the path is uncertain, return only the resource classes that the path certainly reaches.
        """
        for each in self._classes:
            held = _held(self._things[path.model.digest][each.name], path, at_end=each.at_end)
            if held == YES and each.name not in self._told_by_body(path.names):
                yield Touch(each.name, "certain", "")
            elif held != NO and path.certain and not unlikely:
                yield Touch(each.name, "possible", MAY_BE)

    def _of_words(
        self, names: Sequence[Name], shaped: Sequence[tuple[str | None, ...]] | None, *, unlikely: bool
    ) -> Iterator[Touch]:
        all_words = shaped if shaped is not None else [_plain_words(name) for name in names]
        for words in all_words:
            yield from (Touch(each.name, "certain", "") for each in self._classes if _has_words(each, words))
            yield from self._handed_over(words)
            known = [word is None or word in _KNOWN or _is_marked(word) for word in words[1:]]
            if not unlikely and not all(known):
                yield from (Touch(each.name, "possible", UNKNOWN_NAME) for each in self._classes)

    def _handed_over(self, words: Iterable[str | None]) -> Iterator[Touch]:
        for word in words:
            for name in HANDED_OVER.get(word or "", ()):
                if any(each.name == name for each in self._classes):
                    yield Touch(name, "certain", f"{word} hands it over")

    def _told_by_body(self, words: Iterable[str | None]) -> frozenset[str]:
        """Return the resource classes that a call of an operation may reach, depending on its body."""
        named = (TOLD_BY_BODY.get((word or "").rpartition(".")[2].lower(), _NO_CLASSES) for word in words)
        return frozenset(each.name for each in self._classes).intersection(frozenset().union(*named))

    def _by_words(self, words: frozenset[str], held: Held, why: str) -> Iterator[Touch]:
        for each in self._classes:
            if not words.isdisjoint(each.words | each.shared):
                yield Touch(each.name, held, why)

    def _access(self, method: str, target: Target) -> Access:
        """Return `read` if a request only reads data, and `write` otherwise.

        A POST to an operation that changes nothing counts as a read.
        """
        if method.upper() in _READS:
            return "read"
        if method.upper() != "POST":
            return "write"
        last = {name.folded[-1] for each in target.readings for name in each.names if name.folded}
        if any(word.rpartition(".")[2] in READING_ACTIONS for word in last):
            return "read"
        path = self._paths.reached(target.readings[0].names)
        if path is not None and path.certain and path.steps and path.steps[-1].kind == OPERATION:
            model = path.model
            operations = path.steps[-1].operations
            if all(not model.operation_flags(each) & ACTION for each in operations):
                return "read"
        return "write"

    # Classification by the query

    def _by_query(self, path: str, query: str) -> Iterator[Touch]:
        left = _MOST_EXPANDED
        try:
            waiting = [canonicalise(f"{path}?{query}")]
            while waiting:
                for implied in implied_by_query(waiting.pop(), _NO_BELOW):
                    left -= 1
                    if left < 0:
                        raise MalformedTarget("the query expands too many relations")
                    target = _likely(implied)
                    waiting.append(target)
                    for touch in self._of_expanded(target):
                        is_certain = touch.held == "certain"
                        why = implied.cause if is_certain else f"{touch.why} (in its {implied.cause})"
                        yield touch._replace(why=why)
        except MalformedTarget:
            for each in self._classes:
                yield Touch(each.name, "possible", UNREADABLE)

    def _of_expanded(self, target: Target) -> Iterator[Touch]:
        """Return the resource classes that an expanded relation reaches."""
        for reading in target.readings:
            path = self._paths.reached(reading.names)
            if path is not None and path.certain:
                things = self._things[path.model.digest]
                for each in self._classes:
                    held = _held(things[each.name], path, at_end=each.at_end)
                    if held != NO:
                        yield Touch(each.name, "certain" if held == YES else "possible", MAY_BE)
                continue
            for name in reading.names:
                words = _plain_words(name)
                yield from (
                    Touch(each.name, "certain", "") for each in self._classes if _has_words(each, words)
                )
                if any(word not in _KNOWN for word in words[-1:] if word):
                    yield from (Touch(each.name, "possible", UNKNOWN_NAME) for each in self._classes)

    def _by_selection(self, query: str) -> Iterator[Touch]:
        """Return resource classes of the properties that responses contain only if `$select` names them."""
        lowered = fully_decoded(query).lower()
        if "select" not in lowered:
            return
        words = frozenset(re.findall(r"\w+", lowered))
        for each in self._classes:
            if not words.isdisjoint(each.selected):
                yield Touch(each.name, "certain", "$select")

    # Classification by the body, which the trail does not hold

    def _by_body(self, method: str, target: Target, implied: str) -> Iterator[Touch]:
        cause, _, request = implied.partition(": ")
        if cause.startswith("entityTypes "):
            name = SEARCHED.get(fold(cause.removeprefix("entityTypes ")))
            if name is not None and any(each.name == name for each in self._classes):
                yield Touch(name, "certain", cause)
        elif request:
            yield from self._by_recorded(cause, request)
        ends = {name.folded[1:] for each in target.readings for name in each.names}
        if method.upper() == "POST" and ("search", "query") in ends:
            for each in self._classes:
                if each.name in SEARCHED.values():
                    yield Touch(each.name, "possible", NO_BODY)
        for end in ends:
            for name in self._told_by_body(end):
                yield Touch(name, "possible", NO_BODY)
        if method.upper() in ("POST", "PATCH") and any(end[:1] == ("subscriptions",) for end in ends):
            for each in self._classes:
                yield Touch(each.name, "possible", NO_BODY)

    def _by_recorded(self, cause: str, request: str) -> Iterator[Touch]:
        method, _, path = request.partition(" ")
        try:
            target = canonicalise(path.replace("{any}", "0"))
        except MalformedTarget:
            return
        for touch in self._of_target(method, target):
            yield touch._replace(why=cause)


def _likely(implied: Implied) -> Target:
    """Return the likely address of a request that another request implies, for example by `$expand`.

    If the base path of the address is a collection, an object ID follows it.
    """
    base = implied.ways[0].base
    below_key = base is not None and is_collection(base)
    for way in implied.ways:
        if way.suffix is not None and (way.suffix.names[0][:1] == (ANY_KEY,)) is below_key:
            return way.target
    return implied.ways[0].target


def _matters(query: str) -> bool:
    """Return False if a query certainly contains neither `$expand` nor `$select`."""
    lowered = query.lower()
    words = "expand" in lowered or "select" in lowered
    return words or "%" in lowered or "\\" in lowered or is_cut(query)


def _held(things: Things, path: ReachedPath, *, at_end: bool) -> int:
    """Return how certainly a path reaches the resource class, at any step or only at its end."""
    if not path.steps:
        return NO
    if not at_end:
        held = met_by(things, path).held
        return max(held, _part_held(things, path)) if held == NO and path.certain else held
    if not path.certain:
        return met_by(things, path).held and 1
    if ends_with_named(things, path):
        return YES
    end = next((step for step in reversed(path.steps) if step.kind not in (PROPERTY, CONTENT, OPTION)), None)
    if end is None or (end.type < 0 and not end.operations):
        return NO
    if end.type in things.types or any(each in things.operations for each in end.operations):
        return YES
    return 1 if end.type in things.bases else NO


def _part_held(things: Things, path: ReachedPath) -> int:
    """Return the certainty that objects at a path's end contain data of a resource class, such as app keys.

    The certainty is 1 (possibly) if only a type that is derived from the type at the path's end has such
    data.
    """
    held = NO
    if path.names[-1].lower() in TO_PEOPLE:
        return held
    for part in things.parts:
        if any(name.startswith("@") for name in part.names) or not end_may_hold(part.owners, path):
            continue
        held = max(held, YES if path.end_type in part.owners.types else 1)
    return held


def _plain_words(name: Name) -> tuple[str | None, ...]:
    return tuple(None if at in name.keys else word for at, word in enumerate(name.folded))


def _is_marked(word: str) -> bool:
    return word.startswith("$") or "." in word or "(" in word or word == ANY_KEY or word.isdecimal()


def _has_words(each: ResourceClass, words: Sequence[str | None]) -> bool:
    """Return whether the words of a path name the resource class, at any position or only at the end."""
    named = [word.rpartition(".")[2].partition("(")[0] for word in words[1:] if word]
    if each.at_end:
        ends = [word for word in named if word not in _OF_THE_OBJECT and not _is_property(word)]
        return bool(ends) and ends[-1] in each.words
    found = frozenset(named)
    if not found.isdisjoint(each.words):
        return True
    if found.isdisjoint(each.shared) or not found.isdisjoint(each.apart):
        return False
    return not each.among or not found.isdisjoint(each.among)


_PROPERTY_WORDS: Final = frozenset(map(fold, PROPERTIES)) - frozenset(map(fold, RESOURCES)) - COLLECTIONS


def _is_property(word: str) -> bool:
    return word in _PROPERTY_WORDS and word not in CLASSES["directory"].words


def _shape(method: str, target: Target) -> str:
    """Return the path with `{id}` in place of each ID.

    Return an empty text if the path has several interpretations.
    """
    shapes = shapes_of(method, target) or []
    if len(shapes) != 1:
        return ""
    spelled = zip(shapes[0].shape, shapes[0].spelled, strict=True)
    return "/" + "/".join("{id}" if word is None else text for word, text in spelled)


def _shown(shape: str, query: str) -> str:
    text = shape
    expand = next((part for part in query.split("&") if "expand" in part.lower()), "")
    if expand:
        text = f"{shape}?{expand}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
