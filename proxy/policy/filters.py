"""Hide properties of a JSON response, and keep every other byte unchanged.

The filter follows these rules:

- A filter can find properties only by their names. A list item that is not an object, a bare `value` and a
  top-level array have no names, and may be the hidden property itself. The filter refuses a response that
  consists of such values without names.
- The filter hides or keeps an annotation (`mail@odata.type`, `members@delta`) together with its property.
- Under an allow list, the filter removes the annotations of an object itself, because `@odata.id`,
  `@odata.editLink` and similar annotations contain the object's key. The filter keeps the annotations
  that an SDK needs to read the object (`_NEEDED_TO_READ`), and the annotations that the rule allows by name.
  At the top level of a response, all `@odata.*` annotations stay.
- If a rule allows only a part of a property (`manager.mail`), the filter removes the property if its value is
  neither an object nor null.
- The filter ignores letter case of names, but a letter outside ASCII never equals a letter inside ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple, NoReturn, Union

from proxy.config.given_text import MARK
from proxy.policy import json_text, shapes
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.facts import MalformedBody
from proxy.policy.items import ItemFilter, ManyValues
from proxy.policy.shapes import KEEP, Fate
from proxy.policy.transforms import ANYWHERE, ITEMS, Transforms, names_within, strip_name


class FilterFailed(ValueError):
    """Error because the filter cannot process the response body, so the proxy must not forward it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PlainValues(FilterFailed):
    """Error because the response body is a plain value or a list of plain values.

    Only the request path shows if the plain value, such as a number, is the value of a hidden property.
    """


class Filtered(NamedTuple):
    """A filtered response body, and the names of the transforms that removed something from the body."""

    body: bytes
    removed: tuple[str, ...]


class CompiledFilter:
    """The transforms of one rule, compiled to a filter for any number of responses."""

    def __init__(self, transforms: Transforms) -> None:
        self._names = [
            transforms.allow_names,
            *((strip_name(path),) for path in transforms.strip),
            *(names_within(place, allow) for place, allow in transforms.within),
        ]
        self._known_names: BoundedMemo[int, tuple[str, ...]] = BoundedMemo(
            _MOST_KNOWN_NAMES, None, WhenFull.KEEP
        )
        strip = _tree((path, _STRIPPED << at) for at, path in enumerate(transforms.strip))
        allow = None if transforms.allow is None else _tree((path, _UNLISTED) for path in transforms.allow)
        first_within = _STRIPPED << len(transforms.strip)
        within = _within_tree(transforms.within, first_within)
        items = _Level(strip, allow, within, bare=_Bare.FAILS, arrays_only=True)
        self._document = _Level(strip, allow, within, value_fate=items)
        self._items = ItemFilter(transforms.keep) if transforms.keep else None
        self._hides = bool(transforms.strip or transforms.within or transforms.allow is not None)
        # The following fields only save time; they change no response.
        self._plans: list[shapes.Plan] = []
        self._lessons_left = _MAX_LESSONS

    def apply(self, body: bytes) -> Filtered:
        """Return the response body without hidden properties and items.

        Raise FilterFailed if the body may contain a hidden property that the filter cannot find. Raise
        ItemNotFound if the body is one object for which the filter's conditions on items do not hold.
        """
        _refuse_deep(body)
        _refuse_verbose(body)
        if self._items is None:
            return self._without_properties(body)
        # Items are removed first. Their conditions may use hidden properties, and no plan covers items.
        left = _without_items(self._items, body)
        filtered = self._without_properties(left) if self._hides else Filtered(left, ())
        if left is body:
            return filtered
        return Filtered(filtered.body, (*filtered.removed, ITEMS))

    def _without_properties(self, body: bytes) -> Filtered:
        applied = self._apply_a_plan(body)
        if applied is None:
            if body.startswith(MARK):
                body = body[len(MARK) :]
                if body.startswith(MARK):
                    raise FilterFailed("the response has two byte order marks")
                inner = self._apply_without_mark(body)
                return Filtered(MARK + inner.body, inner.removed)
            return self._apply_without_mark(body)
        return self._named(applied)

    def _apply_without_mark(self, body: bytes) -> Filtered:
        applied = self._apply_a_plan(body)
        if applied is None:
            applied = self._applied_by_reading(body)
            self._learn(body, applied)
        return self._named(applied)

    def _named(self, applied: tuple[bytes, int]) -> Filtered:
        body, removed = applied
        names = self._known_names.entries.get(removed)
        if names is None:
            # Removed paths come first, as in a rule's own list; the lowest bit is that of the allow list.
            bits = [*range(1, len(self._names)), 0]
            found = [name for bit in bits if removed >> bit & 1 for name in self._names[bit]]
            names = tuple(dict.fromkeys(found))  # a type may be filtered at several places
            self._known_names.keep(removed, names)
        return Filtered(body, names)

    def _apply_a_plan(self, body: bytes) -> tuple[bytes, int] | None:
        if not json_text.is_utf8(body):
            raise FilterFailed("the response is not UTF-8")
        for index, plan in enumerate(self._plans):
            filtered = plan.apply(body)
            if filtered is not None:
                if index:
                    self._plans.insert(0, self._plans.pop(index))
                return filtered
        return None

    def _learn(self, body: bytes, applied: tuple[bytes, int]) -> None:
        """If a filter plan filters this response correctly, keep the plan for similar responses."""
        if not self._lessons_left:
            return
        self._lessons_left -= 1
        plan = shapes.learn(body, self._document)
        if plan is not None and plan.apply(body) == applied:
            self._plans = [plan, *self._plans[: _MAX_PLANS - 1]]

    def apply_by_reading(self, body: bytes) -> Filtered:
        """Filter a response body with the same result as `apply`, but examine one member after the other.

        The method `apply_by_reading` works for any response. The faster method `apply` must give the same
        result as this slower method.
        """
        return self._named(self._applied_by_reading(body))

    def _applied_by_reading(self, body: bytes) -> tuple[bytes, int]:
        try:
            json_text.validate(body)
            start = json_text.value_start(body)
            if body[start] != _OPEN_OBJECT:
                _refuse_unnamed(body)
            walk = _Walk(body)
            walk.object(self._document, start)
        except json_text.JsonTextError as error:
            raise FilterFailed(str(error)) from error
        except _PlainItem as error:
            if _has_other_properties(body, start) or json_text.objects_in(body) > 1:
                raise FilterFailed(str(error)) from error
            raise PlainValues(str(error)) from error
        if walk.bare_value and not _has_other_properties(body, start):
            raise PlainValues("the response is a value without a property name: it may be a hidden property")
        return walk.remainder(), walk.removed


def _without_items(items: ItemFilter, body: bytes) -> bytes:
    try:
        json_text.validate(body)
        if body[json_text.value_start(body)] != _OPEN_OBJECT:
            _refuse_unnamed(body)
        return items.apply(body)
    except (json_text.JsonTextError, MalformedBody, ManyValues) as error:
        raise FilterFailed(str(error)) from error


def _refuse_unnamed(body: bytes) -> NoReturn:
    """Raise PlainValues if the response has no JSON object, and FilterFailed if it has one."""
    if json_text.objects_in(body):
        raise FilterFailed("the response is not a JSON object")
    raise PlainValues("the response has values without property names: a value may be a hidden property")


def _refuse_deep(body: bytes) -> None:
    try:
        json_text.refuse_deep(body)
    except json_text.JsonTextError as error:
        raise FilterFailed(str(error)) from error


def _refuse_verbose(body: bytes) -> None:
    """Raise FilterFailed for OData's verbose JSON.

    OData 2 services send verbose JSON with the same media type as any other JSON. In OData's verbose JSON,
    the properties are inside the JSON field `d`.
    """
    if _VERBOSE.match(body) is not None:
        raise FilterFailed(
            "the response is in OData's verbose JSON format, and filters do not find properties in"
            " this format"
        )


def _has_other_properties(body: bytes, start: int) -> bool:
    names = [member.name for member in json_text.members(body, start)]
    return any(not name.startswith("@") and _fold(name) != "value" for name in names)


def compile_filter(transforms: Transforms) -> CompiledFilter:
    """Return the compiled filter for transforms that are given by property path.

    Raise ValueError if the transforms are by object type instead of by property path.
    """
    if transforms.typed:
        raise ValueError("use compile_filter of typed_filter.py for transforms that name object types")
    return CompiledFilter(transforms)


# Names that a set of paths leads through. The end of a path stands for the whole property, and has its fate.
_Tree = dict[str, Union[Fate, "_Tree"]]

# One bit for each path for which something may be removed. The lowest is that of the allow list. Allow lists
# within the response follow the removed paths.
_UNLISTED = 1
_STRIPPED = 2


class _Within:
    """The allow list for the objects at one place in a response, and the allow lists below this place."""

    __slots__ = ("allow", "cause", "inner")

    def __init__(self) -> None:
        self.allow: _Tree | None = None
        self.cause = 0
        self.inner: dict[str, _Within] = {}


_NEEDED_TO_READ = frozenset({"@odata.type", "@odata.etag", "@odata.context", "@removed"})
_NEEDED_TO_READ_A_PART = frozenset(
    {"odata.type", "odata.count", "odata.context", "odata.nextlink", "odata.deltalink"}
)
# OData 2.0 JSON Format §4: the only member of the document
_VERBOSE = re.compile(rb'(?:\xef\xbb\xbf)?\s*+\{\s*+"(?:d|\\u0064)"\s*+:\s*+[\[{]')
_OPEN_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY, _NULL = b"{[]n"
_MOST_FATES = 4096  # member names whose fate is remembered
_MOST_KNOWN_NAMES = 256  # combinations of removed paths whose names are remembered
_MAX_PLANS = 4
_MAX_LESSONS = 64  # plans that a filter makes at most, so that it stops if every response has a new shape


class _PlainItem(Exception):
    """Error because an item in the response's list is not a JSON object; the message gives details."""


class _Bare(Enum):
    """Ways to treat a value that is not a JSON object, at a place where the filter expects objects."""

    STAYS = "stays"
    GOES = "goes"
    FAILS = "fails"


class _Level:
    """The properties that the filter hides in the objects at one place in the response."""

    by_type = False  # True if the type of each object decides

    __slots__ = (
        "_anywhere",
        "_children",
        "_deeper",
        "_fates",
        "_within",
        "allow",
        "arrays_only",
        "bare",
        "not_allowed",
        "plain_run",
        "strip",
        "value_fate",
    )

    def __init__(
        self,
        strip: _Tree,
        allow: _Tree | None,
        within: dict[str, _Within],
        *,
        cause: int = _UNLISTED,
        bare: _Bare | None = None,
        arrays_only: bool = False,
        value_fate: _Level | None = None,
    ) -> None:
        anywhere = strip.get(ANYWHERE)
        self._anywhere: _Tree = {} if anywhere is None or isinstance(anywhere, Fate) else anywhere
        self._deeper: _Level | None = None
        self.strip = _united(strip, self._anywhere) if self._anywhere else strip
        self.allow = allow  # None: everything is allowed
        self.not_allowed = Fate(cause)
        self._within = within
        self.bare = bare or (_Bare.STAYS if allow is None else _Bare.GOES)
        self.arrays_only = arrays_only
        self.value_fate = value_fate  # level of the items in the `value` of a document
        # Members that need no decision: they stay, or they are removed under an allow list.
        self.plain_run = json_text.run_of_members_but(
            self._names_to_decide_on(), scalars=self.by_type or bool(self._anywhere)
        )
        self._fates: BoundedMemo[bytes, Fate | _Level] = BoundedMemo(_MOST_FATES, None, WhenFull.CLEAR)
        self._children: dict[str, _Level] = {}

    def for_object(self, text: bytes, start: int) -> _Level:
        """Return the filter for the JSON object that begins at the position `start` of the response."""
        return self

    def fate(self, token: bytes) -> Fate | _Level:
        """Return the fate of a field in a JSON object: the field stays, is removed, or must be examined."""
        fate = self._fates.entries.get(token)
        if fate is None:
            fate = self.decide(json_text.decoded_string(token))
            self._fates.keep(token, fate)
        return fate

    def _names_to_decide_on(self) -> Iterator[str]:
        yield from self.strip
        yield from self._within
        if self.value_fate is not None:
            yield "value"
        if self.allow is not None:
            yield from self.allow
            yield ""  # matches annotations of the object itself, which begin with @

    def decide(self, name: str) -> Fate | _Level:
        if self.value_fate is not None and _fold(name) == "value":
            return self.value_fate
        return self.decide_by_name(name)

    def decide_by_name(self, name: str) -> Fate | _Level:
        base, at, annotation = name.partition("@")
        if not base:
            fate = self._decide_on_own_annotation(_fold(name))
            return self._level_below() if self._anywhere and fate is KEEP else fate
        name, base, annotation = _fold(name), _fold(base), _fold(annotation)
        strip = self.strip.get(base, _Tree())
        if isinstance(strip, Fate):
            return strip
        if at and name in self.strip:
            return self._stripped(name)
        if at and f"@{annotation}" in self._anywhere:
            return self._stripped(f"@{annotation}")
        allow: _Tree | None = None
        if self.allow is not None:
            if base not in self.allow:
                if name not in self.allow:
                    return self.not_allowed
                is_delta = annotation == "delta"
                return self._child(name, base, strip, None) if is_delta else KEEP
            branch = self.allow[base]
            allow = None if isinstance(branch, Fate) else branch
        child = self._child(base, base, strip, allow)
        if isinstance(child, _Level) and at and annotation != "delta" and child.allow is not None:
            return KEEP if annotation in _NEEDED_TO_READ_A_PART else child.not_allowed
        return child

    def _stripped(self, annotation: str) -> Fate:
        """Return the fate of an annotation that is itself in the list of properties to remove."""
        fate = self.strip[annotation]
        assert isinstance(fate, Fate)
        return fate

    def _decide_on_own_annotation(self, name: str) -> Fate:
        if self.value_fate is not None and name.startswith("@odata."):
            return KEEP
        if name in self.strip:
            return self._stripped(name)
        if self.allow is None or name in self.allow or name in _NEEDED_TO_READ:
            return KEEP
        return self.not_allowed

    def _child(self, name: str, base: str, strip: _Tree, allow: _Tree | None) -> _Level | Fate:
        """Return the filter for objects in the JSON field `name`, or KEEP if it would hide nothing."""
        child = self._children.get(name)
        if child is not None:
            return child
        within = self._within.get(base)
        inner: dict[str, _Within] = {}
        cause = self.not_allowed.cause
        if within is not None:
            inner = within.inner
            if within.allow is not None:
                cause = within.cause if allow is None else cause | within.cause
                allow = within.allow if allow is None else _intersection(allow, within.allow)
        if self._anywhere:
            if not strip and allow is None and not inner:
                return self._level_below()
            strip = _united(strip, {ANYWHERE: self._anywhere})
        elif not strip and allow is None and not inner:
            return KEEP
        child = self._children[name] = _Level(strip, allow, inner, cause=cause)
        return child

    def is_level_below(self, fate: Fate | _Level) -> bool:
        """Return True if `fate` removes only properties that are hidden at every place in a response."""
        return fate is not KEEP and fate is self._deeper

    def _level_below(self) -> _Level:
        """Return the filter that hides only those properties that are hidden at every place in a response."""
        below = self._deeper
        if below is None:
            below = self._deeper = _Level({ANYWHERE: self._anywhere}, None, {})
        return below


class _Walk:
    """One pass through a valid JSON text that collects the byte ranges to remove."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._cuts: list[tuple[int, int]] = []  # ascending, without overlaps
        self._met_value = False
        self.removed = 0  # bits of the paths for which something was cut
        self.bare_value = False  # True if the document's `value` is not an array, an object or null

    def remainder(self) -> bytes:
        if not self._cuts:
            return self._text
        pieces = []
        position = 0
        for start, end in self._cuts:
            pieces.append(self._text[position:start])
            position = end
        pieces.append(self._text[position:])
        return b"".join(pieces)

    def object(self, level: _Level, start: int) -> int:
        """Examine the JSON object that begins at `start`, and return the position of its end."""
        text = self._text
        if level.by_type:
            level = level.for_object(text, start)
        position = start + 1
        kept_end = None  # end of the last member that stays
        while True:
            run_end = level.plain_run.match(text, position).end()  # type: ignore[union-attr]
            if run_end > position:
                if level.allow is None:
                    kept_end = len(text[position : run_end - 1].rstrip()) + position
                else:
                    self.removed |= level.not_allowed.cause
                    self._cut(json_text.value_start(text, position), json_text.value_start(text, run_end))
            found = json_text.NAME.match(text, run_end)
            if found is None:
                # the end of an object without members
                return json_text.require_after_value(text, position).end()
            stays, end = self._member(level, found)
            after = json_text.require_after_value(text, end)
            position = after.end()
            last = after[1] == b"}"
            if stays:
                kept_end = end
            elif not last:
                self._cut(found.start(1), json_text.value_start(text, position))
            elif kept_end is not None:
                self._cut(kept_end, end)
            else:
                self._cut(start + 1, position - 1)
            if last:
                return position

    def _cut(self, start: int, end: int) -> None:
        while self._cuts and self._cuts[-1][0] >= start:
            self._cuts.pop()
        self._cuts.append((start, end))

    def _member(self, level: _Level, name: re.Match[bytes]) -> tuple[bool, int]:
        """Return True if the JSON field with the name stays, and the position at which the field ends."""
        fate = level.fate(name[1])
        if fate is level.value_fate:
            fate = self._fate_of_value(level, name.end())
        if isinstance(fate, _Level):
            end = self._inside(fate, name.end())
            if end is not None:
                return True, end
            fate = fate.not_allowed
        self.removed |= fate.cause
        return fate is KEEP, json_text.value_end(self._text, name.end())

    def _fate_of_value(self, document: _Level, start: int) -> Fate | _Level:
        """Decide if the filter keeps, removes or examines the JSON field `value` of a response.

        The field may contain a list of items, an object, or the value of a property.
        """
        if self._met_value:
            raise FilterFailed("the response has more than one member named `value`")
        self._met_value = True
        first = self._text[start]
        if first == _OPEN_ARRAY and document.value_fate is not None:
            return document.value_fate
        fate = document.decide_by_name("value")
        if (fate is KEEP or document.is_level_below(fate)) and document.allow is None:
            if first == _OPEN_OBJECT and document.value_fate is not None:
                return document  # this level fails if the object contains another `value`
            self.bare_value = first != _NULL
        elif fate is document.not_allowed:
            self.bare_value = first not in (_OPEN_OBJECT, _OPEN_ARRAY, _NULL)
        return fate

    def _inside(self, level: _Level, start: int) -> int | None:
        """Examine all JSON objects within one JSON value.

        Return the position after the JSON value, or None if the filter must remove the value.
        """
        first = self._text[start]
        if first == _OPEN_OBJECT:
            return self.object(level, start)
        if first == _OPEN_ARRAY:
            return self._array(level, start)
        if first == _NULL or level.bare is _Bare.STAYS:
            return json_text.value_end(self._text, start)
        if level.bare is _Bare.FAILS:
            raise _PlainItem("a list item of the response is not a JSON object: it may be a hidden property")
        return None

    def _array(self, level: _Level, start: int) -> int | None:
        """Examine the items of a JSON array, and the items of nested arrays of any depth."""
        text = self._text
        depth = 0
        position = start
        while True:
            if text[position] == _OPEN_ARRAY:
                depth += 1
                position = json_text.value_start(text, position + 1)
                if text[position] != _CLOSE_ARRAY:
                    continue
                depth, end = depth - 1, position + 1
            else:
                inside = self._inside(level, position)
                if inside is None:
                    return None  # the array is removed as a whole
                end = inside
            while depth:
                after = json_text.require_after_value(text, end)
                if after[1] != b"]":
                    position = json_text.value_start(text, after.end())
                    break
                depth, end = depth - 1, after.end()
            else:
                return end


def _fold(name: str) -> str:
    if name.isascii():
        return name.lower()
    # An accent is part of its letter or a separate character after it: the same name (Unicode TR 15, NFC).
    folded = unicodedata.normalize("NFC", name.casefold())
    # The Kelvin sign folds to k, and the sharp s to ss; no name of a property contains them.
    return folded if folded.isascii() == name.isascii() else name


def _tree(paths: Iterable[tuple[str, int]]) -> _Tree:
    """Build a tree of property paths, each with the bit that records a removal by the path."""
    tree: _Tree = {}
    for path, cause in paths:
        _plant(tree, _segments(path), Fate(cause))
    return tree


def _within_tree(within: Iterable[tuple[str, tuple[str, ...]]], first: int) -> dict[str, _Within]:
    """Make a tree of the allow lists of nested objects, by the property names that lead to these objects.

    `first` is the bit by which the filter records that the first allow list in `within` removed something.
    Each following allow list has the next higher bit.
    """
    root: dict[str, _Within] = {}
    for at, (place, paths) in enumerate(within):
        names, node = root, None
        for segment in _segments(place):
            node = names.get(segment)
            if node is None:
                node = names[segment] = _Within()
            names = node.inner
        if node is not None:
            node.cause = first << at
            node.allow = _tree((path, node.cause) for path in paths)
    return root


def _united(first: _Tree, second: _Tree) -> _Tree:
    """Return a tree that contains the property paths of both given trees.

    If one tree contains the path to an object, the result does not contain paths to single properties inside
    this object.
    """
    united = dict(first)
    for name, branch in second.items():
        known = united.get(name)
        if known is None:
            united[name] = branch
        elif not isinstance(known, Fate):
            united[name] = branch if isinstance(branch, Fate) else _united(known, branch)
    return united


def _intersection(first: _Tree, second: _Tree) -> _Tree:
    """Return the tree of the properties that both allow lists contain.

    If an allow list names an object, the list allows every property inside the object.
    """
    both: _Tree = {}
    for name, one in first.items():
        other = second.get(name)
        if other is None:
            continue
        if isinstance(one, Fate):
            both[name] = other
        else:
            both[name] = one if isinstance(other, Fate) else _intersection(one, other)
    return both


def _plant(tree: _Tree, segments: list[str], fate: Fate) -> None:
    first, *rest = segments
    if not rest:
        tree[first] = fate
        return
    branch = tree.setdefault(first, {})
    if not isinstance(branch, Fate):  # otherwise a shorter path already covers the whole property
        _plant(branch, rest, fate)


def _segments(path: str) -> list[str]:
    """Split a property path at its dots, except at dots in the name of an annotation.

    For example, `manager.photo@odata.mediaReadLink` has two segments.
    """
    name, at, annotation = path.partition("@")
    segments = name.split(".")
    segments[-1] += at + annotation
    return [_fold(segment) for segment in segments]
