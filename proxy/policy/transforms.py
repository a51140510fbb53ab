"""The transforms of a filter rule as plain values that can be combined with other transforms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from proxy.policy.comparison import Condition, condition_text
from proxy.policy.thing_rows import Things

_STRIP = "strip:"
_ALLOW = "allow:"
# `**` in a removed property path: the rest of the path applies to objects at that place, and at any depth
# within them.
ANYWHERE: Final = "**"
_BELOW: Final = f"{ANYWHERE}."
ITEMS = "items"  # name of removed items in an audit event
_KEEP = f"{ITEMS}:"


@dataclass(frozen=True, slots=True)
class Kept:
    """A condition of a filter: an item of the response stays only if the item meets the condition.

    `place` is the path of the property that contains the items in the response. `place` is empty if the
    condition is on the top-level items of the response. The attribute `text` distinguishes conditions on 1
    and on true, which are equal values in Python.
    """

    place: str
    condition: Condition
    text: str

    def at(self, place: str) -> Kept:
        return Kept(f"{place}.{self.place}" if self.place else place, self.condition, self.text)


def kept(condition: Condition, place: str = "") -> Kept:
    return Kept(place, condition, condition_text(condition))


@dataclass(frozen=True, slots=True)
class TypedTransforms:
    """Transforms that apply to the resources of a rule, in a response that has objects of the type `root`.

    `root` is the number of the type, or -1 if the schema does not describe the response. `named` is True if
    the rule names the relation or operation that leads to the objects of the response.
    """

    things: Things
    root: int
    named: bool
    strip: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    place: str = ""  # property path to the objects of the type `root`; empty for the response itself

    def at(self, place: str) -> TypedTransforms:
        return replace(self, place=f"{place}.{self.place}" if self.place else place)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all property paths in the transforms, in the form that audit events use."""
        return (*map(strip_name, self.strip), *self.allow_names)

    @property
    def allow_names(self) -> tuple[str, ...]:
        if self.allow is None:
            return ()
        return tuple(_ALLOW + path for path in self.allow or ("",))


@dataclass(frozen=True, slots=True)
class Transforms:
    """Transforms of a filter, as the property paths that the filter removes or allows.

    Dots in a path lead into objects and arrays (``manager.mail``).
    """

    strip: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None  # None: no allow list
    # Allow lists of objects within the response, each with the property path that leads to the objects.
    within: tuple[tuple[str, tuple[str, ...]], ...] = ()
    typed: tuple[TypedTransforms, ...] = ()
    keep: tuple[Kept, ...] = ()

    def combined(self, other: Transforms) -> Transforms:
        """Combine two transforms: unite the removed properties, and intersect the allow lists.

        A combination of two transforms never shows more of a response than either transform shows alone.
        """
        return Transforms(
            _united(self.strip, other.strip),
            _intersected_allows(self.allow, other.allow),
            _merged_within(self.within, other.within),
            tuple(dict.fromkeys((*self.typed, *other.typed))),
            tuple(dict.fromkeys(self.keep + other.keep)),
        )

    def at(self, place: str) -> Transforms:
        """Return the transforms for a response in which the filtered objects are at the path `place`."""
        strip = tuple([f"{place}.{path}" if path else place for path in self.strip])
        within = tuple([(f"{place}.{inner}", allow) for inner, allow in self.within])
        typed = tuple([each.at(place) for each in self.typed])
        keep = tuple([each.at(place) for each in self.keep])
        if self.allow is not None:
            within = ((place, self.allow), *within)
        return Transforms(strip, None, within, typed, keep)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all property paths in the transforms, in the form that audit events use."""
        inner = [name for place, allow in self.within for name in names_within(place, allow)]
        of_types = [name for each in self.typed for name in each.names]
        keep = [_KEEP + each.place + each.text for each in self.keep]
        names = (*map(strip_name, self.strip), *self.allow_names, *inner, *of_types, *keep)
        return tuple(dict.fromkeys(names))  # a type may be filtered at several places

    @property
    def allow_names(self) -> tuple[str, ...]:
        """Names of the properties in an allow list, as an audit event shows them.

        An empty allow list has the one name `allow:`.
        """
        if self.allow is None:
            return ()
        return tuple(_ALLOW + path for path in self.allow or ("",))


def strip_name(path: str) -> str:
    return _STRIP + path.replace(_BELOW, "")


def names_within(place: str, allow: tuple[str, ...]) -> tuple[str, ...]:
    """Return an audit event's names for the properties that a filter allows in objects at the path `place`.

    If `allow` is empty, the filter allows no property, and the result has one name for that.
    """
    return tuple([f"{_ALLOW}{place}.{path}" for path in allow or ("",)])


EVERYTHING: Final = Transforms(("",))  # hides whole objects, after `at` has set their place


@dataclass(frozen=True, slots=True)
class Named:
    """Parts of a filter that an audit event names: removed properties, allowed properties, item conditions.

    In an audit event, the name `ITEMS` stands for all the conditions on items.
    """

    stripped: tuple[str, ...]
    allowed: tuple[str, ...] | None
    kept: tuple[str, ...] = ()


def parse_names(names: Iterable[str]) -> Named:
    """Split the transform names in an audit event into removed properties and allowed properties.

    If an audit event has too many transform names, its last name is a mark that the list was cut. The result
    has this mark at the end of the allowed properties, or, without allowed properties, of the removed ones.
    """
    stripped: list[str] = []
    allowed: list[str] | None = None
    kept: list[str] = []
    for name in names:
        if name == ITEMS or name.startswith(_KEEP):
            kept.append(name.removeprefix(_KEEP))
        elif name.startswith(_ALLOW):
            allowed = [] if allowed is None else allowed
            if len(name) > len(_ALLOW):
                allowed.append(name.removeprefix(_ALLOW))
        elif allowed is None or name.startswith(_STRIP):
            stripped.append(name.removeprefix(_STRIP))
        else:
            allowed.append(name)
    return Named(tuple(stripped), None if allowed is None else tuple(allowed), tuple(kept))


def covers(shorter: str, longer: str) -> bool:
    """Return whether the property path `longer` begins with, or equals, the path `shorter`."""
    short, long = shorter.casefold(), longer.casefold()
    # Dots in the name of an annotation (`photo@odata.type`) do not separate properties.
    return long == short or (long.startswith(short + ".") and "@" not in short)


def _united(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    by_name: dict[str, str] = {}
    for path in first + second:
        by_name.setdefault(path.casefold(), path)
    return tuple(by_name.values())


def _intersected_allows(
    first: tuple[str, ...] | None, second: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if first is None:
        return second
    if second is None:
        return first
    # An allowed object allows everything within it, so `manager` and `manager.mail` have `manager.mail` in
    # common.
    narrowed = [path for path in first if any(covers(other, path) for other in second)]
    narrowed += [path for path in second if any(covers(other, path) for other in first)]
    return _united(tuple(narrowed), ())


def _merged_within(
    first: tuple[tuple[str, tuple[str, ...]], ...], second: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    merged = dict(first)
    for place, allow in second:
        known = merged.get(place)
        merged[place] = allow if known is None else _intersected_allows(known, allow) or ()
    return tuple(merged.items())
