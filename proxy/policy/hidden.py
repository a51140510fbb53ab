"""Decide if a request path names a property that a filter hides and that the response would show."""

from __future__ import annotations

from enum import Enum

from proxy.policy.facts import property_path
from proxy.policy.transforms import ANYWHERE, Transforms

_RAW_VALUE = "$value"
_BATCH = "$batch"

Path = tuple[str, ...]


class Naming(Enum):
    NOTHING = 0
    HIDDEN = 1
    UNLISTED = 2  # not in the allow list: hidden unless a rule spells out the segment


class HiddenProperties:
    """The properties that one filter hides or allows, as folded property paths."""

    __slots__ = ("_allow", "_strip", "keeps_items")

    def __init__(self, transforms: Transforms) -> None:
        self._strip = [
            tuple([name for name in property_path(path) if name != ANYWHERE]) for path in transforms.strip
        ]
        self.keeps_items = any(not each.place for each in transforms.keep)
        self._allow = None if transforms.allow is None else [property_path(path) for path in transforms.allow]

    def words(self) -> set[str]:
        """Return the path words on which the results of `named_below`, `named_within` and `lists` depend.

        The results of `named_below` and `named_within` also depend on the path segment `$value`, and on a `$`
        at the start of a segment.
        """
        words = {word for path in (*self._strip, *(self._allow or ())) for word in path}
        return words | {_BATCH} if self.keeps_items else words

    def named_below(self, tail: Path) -> Naming:
        """Return the kind of property that `tail`, the path segments after a filtered object, names."""
        if any(_leads_to(tail, path) for path in self._strip):
            return Naming.HIDDEN
        if self.keeps_items:  # such a path is a count, references, or a part of an item that may not be kept
            return Naming.NOTHING if tail[0] == _BATCH else Naming.UNLISTED
        if tail[0] == _RAW_VALUE:  # the entity as raw text, which no filter can parse
            return Naming.UNLISTED
        if self._allow is None or tail[0].startswith("$"):
            return Naming.NOTHING
        return Naming.NOTHING if self._is_listed(tail) else Naming.UNLISTED

    def named_within(self, wild: Path) -> Naming:
        """Return the kind of property that the path segments in `wild` name."""
        tails = [wild[at:] for at in range(len(wild))]
        if any(_leads_to(tail, path) for path in self._strip for tail in tails):
            return Naming.HIDDEN
        if self.keeps_items and any(word.startswith("$") and word != _BATCH for word in wild):
            return Naming.HIDDEN
        if self._allow is None or not wild or wild[-1] != _RAW_VALUE:
            return Naming.NOTHING
        return Naming.NOTHING if any(self._is_listed(tail) for tail in tails) else Naming.HIDDEN

    def lists(self, path: Path) -> bool:
        """Return True if the filter's allow list contains a property that the end of `path` names."""
        return any(self._is_listed(path[at:]) for at in range(len(path)))

    def _is_listed(self, tail: Path) -> bool:
        return self._allow is not None and any(_leads_to(tail, path) for path in self._allow)


def _leads_to(tail: Path, path: Path) -> bool:
    """Return True if `tail` begins with the property path `path`.

    If the property path contains a collection, `tail` may have an object ID after the name of the collection.
    """
    at = 0
    for index, part in enumerate(path):
        if at < len(tail) and tail[at] == part:
            at += 1
        elif index and at + 1 < len(tail) and tail[at + 1] == part:
            at += 2
        else:
            return False
    return True
