"""Remove items from a response unless all conditions of `items: {keep: …}` hold.

- The items of a response are the elements of its `value` array. A document without a `value` array is one
  object, and the conditions are tested on the object itself. If a document has properties in addition to
  `value`, the filter also treats the document as one object and tests the conditions on the document.
  Otherwise, the filter would not evaluate these properties.
- Each condition has one of three results. If the result of a condition is INDETERMINATE, the filter removes
  the item. The filter also removes an item without the property that a condition compares, even if `$select`
  left out this property. The filter also removes an item that is not an object.
- If an entry of a delta response has only an ID and `@removed`, each compared property is missing, so the
  filter removes the entry. If the filter kept this entry, the application could see the ID of an object
  that it must not see.
- The filter removes the count of items from every document, because the count includes removed items. Links
  to the next page stay in the response, so that paging works. A page of the response may therefore have no
  items.
- An object within an item is not an item. Conditions under `members` apply to the items or the object at the
  property path. If the object at the property path does not meet the conditions, the filter removes the
  JSON member whose value is this object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.policy import json_text
from proxy.policy.comparison import Condition
from proxy.policy.conditions import YES, ValuesTest, compile_values_test, looks_of
from proxy.policy.facts import ItemReader, parse_document, property_path
from proxy.policy.odata import fold
from proxy.policy.transforms import Kept

_OPEN_OBJECT: Final = 0x7B
_OPEN_ARRAY: Final = 0x5B
_NULL: Final = 0x6E
_VALUE: Final = "value"
_COUNTS: Final = frozenset(("@odata.count", "@count", "odata.count", "__count", "@odata.totalcount"))
_COUNT_ANNOTATIONS: Final = frozenset(("odata.count", "count"))
_DELTA: Final = "delta"


class ItemNotFound(Exception):
    """Error because the response is one object that does not meet the filter's conditions."""


class ManyValues(ValueError):
    """A response that has more than one member named `value`."""


class _Test:
    __slots__ = ("looks", "path", "test")

    def __init__(self, condition: Condition) -> None:
        self.path = property_path(condition.name)
        self.test: ValuesTest = compile_values_test(condition)
        self.looks = looks_of(condition)


class _Place:
    """Conditions on the items at one property path, and the property paths within these items."""

    __slots__ = ("inner", "tests")

    def __init__(self) -> None:
        self.tests: list[_Test] = []
        self.inner: dict[str, _Place] = {}


class ItemFilter:
    """The conditions that one filter sets on items.

    One ItemFilter object can filter any number of responses.
    """

    def __init__(self, keep: Iterable[Kept]) -> None:
        self._root = _Place()
        for each in keep:
            place = self._root
            for segment in each.place.split(".") if each.place else []:
                name = fold(segment)
                inner = place.inner.get(name)
                if inner is None:
                    inner = place.inner[name] = _Place()
                place = inner
            place.tests.append(_Test(each.condition))

    def apply(self, body: bytes) -> bytes:
        """Return a JSON response without the items that do not meet the filter's conditions.

        The argument `body` must be valid JSON. If the filter removes no item, the function returns `body`
        unchanged. Raise ItemNotFound, ManyValues or MalformedBody if the filter cannot be applied to the
        response.
        """
        cutting = _Cutting(body)
        cutting.document(self._root, json_text.value_start(body))
        return cutting.remainder()


class _Cutting:
    """Collects, in one pass through a JSON response, the positions of the items to remove."""

    __slots__ = ("_cuts", "_reader", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._reader = ItemReader()
        self._cuts: list[tuple[int, int]] = []

    def remainder(self) -> bytes:
        if not self._cuts:
            return self._text
        pieces: list[bytes] = []
        position = 0
        for start, end in sorted(self._cuts):
            pieces.append(self._text[position:start])
            position = end
        pieces.append(self._text[position:])
        return b"".join(pieces)

    def document(self, root: _Place, start: int) -> None:
        members = list(json_text.members(self._text, start))
        values = [member for member in members if fold(member.name) == _VALUE]
        if len(values) > 1:
            raise ManyValues("the response has more than one member named `value`")
        if not values or not _is_list(self._text, members, values[0]):
            end = json_text.value_end(self._text, start)
            if root.tests and not self._holds(root, start, end):
                raise ItemNotFound
            self._members(root, members)
            # `value` is an object within the object, or a list with other properties next to it
            for value in values:
                self._within(root, value.value_start)
            return
        if root.tests:
            spans = [(member.start, member.value_end) for member in members]
            self._cut(spans, [not _counts_items(fold(member.name)) for member in members])
        self._items(root, values[0].value_start)

    def _items(self, place: _Place, start: int) -> None:
        """Examine the items of the JSON array that begins at `start`."""
        spans = list(json_text.elements(self._text, start))
        kept: list[bool] = []
        for item_start, item_end in spans:
            stays = self._holds(place, item_start, item_end)
            kept.append(stays)
            if stays:
                self._within(place, item_start)
        self._cut(spans, kept)

    def _within(self, place: _Place, start: int) -> None:
        """Examine the JSON value that begins at `start`, and filter the items in this value."""
        if not place.inner:
            return
        if self._text[start] == _OPEN_OBJECT:
            self._members(place, list(json_text.members(self._text, start)))
        elif self._text[start] == _OPEN_ARRAY:
            for item_start, _ in list(json_text.elements(self._text, start)):
                self._within(place, item_start)

    def _members(self, place: _Place, members: list[json_text.Member]) -> None:
        if not place.inner:
            return
        kept = [self._member(place, member) for member in members]
        self._cut([(member.start, member.value_end) for member in members], kept)

    def _member(self, place: _Place, member: json_text.Member) -> bool:
        """Filter the items in the value of a JSON member, and return True if the filter keeps the member."""
        base, _, annotation = fold(member.name).partition("@")
        inner = place.inner.get(base)
        if inner is None:
            return True
        if annotation and annotation != _DELTA:
            return not inner.tests or annotation not in _COUNT_ANNOTATIONS
        first = self._text[member.value_start]
        if first == _OPEN_ARRAY:
            self._items(inner, member.value_start)
            return True
        if first == _NULL:
            return True
        if not self._holds(inner, member.value_start, member.value_end):
            return False
        self._within(inner, member.value_start)
        return True

    def _holds(self, place: _Place, start: int, end: int) -> bool:
        if not place.tests:
            return True
        if self._text[start] != _OPEN_OBJECT:
            return False
        item = parse_document(self._text[start:end])
        read = self._reader.values
        return all(each.test(read(item, each.path, each.looks)) == YES for each in place.tests)

    def _cut(self, spans: list[tuple[int, int]], kept: list[bool]) -> None:
        """Remove the array elements or members that the filter does not keep, each with one comma."""
        last_kept = -1
        for at, stays in enumerate(kept):
            if stays:
                last_kept = at
        for at in range(last_kept):
            if not kept[at]:
                self._cuts.append((spans[at][0], spans[at + 1][0]))
        if last_kept + 1 < len(spans):
            start = spans[last_kept][1] if last_kept >= 0 else spans[0][0]
            self._cuts.append((start, spans[-1][1]))


def _is_list(text: bytes, members: list[json_text.Member], value: json_text.Member) -> bool:
    """Return True if the document's member `value` is an array and its only property."""
    if text[value.value_start] != _OPEN_ARRAY:
        return False
    names = [fold(member.name) for member in members]
    return all(name == _VALUE or name.partition("@")[0] in ("", _VALUE) or name in _COUNTS for name in names)


def _counts_items(name: str) -> bool:
    base, _, annotation = name.partition("@")
    return name in _COUNTS or (base == _VALUE and annotation in _COUNT_ANNOTATIONS)
