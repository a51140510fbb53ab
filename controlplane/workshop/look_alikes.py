"""Warnings about possible mistakes in the names of a ruleset: mixed alphabets and typing errors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from proxy.policy.known_names import PAIRED, PAIRED_PROPERTIES, PROPERTIES, RESOURCES
from proxy.policy.ruleset import Condition, Rule, Ruleset
from proxy.policy.visible import looks_like, mixed_scripts, named, near

_SHORTEST: Final = 5  # characters of a name that is compared with similar ones
_LONGEST: Final = 64
_DIGITS: Final = re.compile(r"[0-9]+")

_LAWFUL: Final = frozenset(name.casefold() for name in RESOURCES | PROPERTIES | PAIRED)
_LAWFUL_PROPERTIES: Final = frozenset(name.casefold() for name in PAIRED_PROPERTIES)

_Where = tuple[int | str, ...]


class _Place(NamedTuple):
    """One text in a ruleset, its position, and its names to compare with names of Microsoft Graph."""

    where: _Where
    text: str
    properties: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.properties + self.resources


def look_alikes(ruleset: Ruleset) -> Iterator[tuple[_Where, str]]:
    """Yield a position and a message for each text of a ruleset that may be confused with another text."""
    properties = _Neighbours(PROPERTIES)
    resources = _Neighbours([*RESOURCES, *PROPERTIES])
    plain = _Neighbours(name for place in _places(ruleset) for name in place.names if name.isascii())
    # Names at earlier positions, because the second of two similar names gets the warning
    own = _Neighbours(())
    for place in _places(ruleset):
        message = _mixture(place.text) or _imitation(place, resources, plain)
        message = message or _near_miss(place, properties, resources, own)
        if message:
            yield place.where, message
        else:
            own.add(place.names)


def _mixture(text: str) -> str | None:
    mixed = mixed_scripts(text)
    if mixed is None:
        return None
    common, rare = mixed
    return (
        f"`{text}` mixes two alphabets in one word: {named(rare)} next to {named(common)}; "
        "type the word again"
    )


def _imitation(place: _Place, known: _Neighbours, plain: _Neighbours) -> str | None:
    """Return a message for a name that looks Latin but contains letters of another alphabet."""
    for name in place.names:
        skeleton = looks_like(name)
        if not name.isascii() and (meant := known.same(skeleton) or plain.same(skeleton)):
            letter = next(char for char in name if not char.isascii())
            return f"`{name}` looks like `{meant}`, but contains {named(letter)}"
    return None


def _near_miss(
    place: _Place, properties: _Neighbours, resources: _Neighbours, own: _Neighbours
) -> str | None:
    for name in place.names:
        known = properties if name in place.properties else resources
        if name.casefold() in _LAWFUL or (name in place.properties and name.casefold() in _LAWFUL_PROPERTIES):
            continue
        plural = resources.same(f"{name.casefold()}s") if name in place.resources else None
        if meant := plural or known.nearest(name):
            return f"`{name}` is one letter off from Microsoft Graph's `{meant}`: did you mean that?"
        if not own.same(name.casefold()) and (meant := own.nearest(name)):
            return f"`{name}` is one letter off from `{meant}`, which another rule names: did you mean that?"
    return None


class _Neighbours:
    """Finder of known names that differ from a given name in one letter.

    If two names differ in one letter, they share at least one shortening, such as the name without one
    letter.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        self._shortened: dict[str, list[str]] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            folded = name.casefold()
            if folded in self._names or len(folded) > _LONGEST:
                continue
            self._names[folded] = name
            if len(folded) >= _SHORTEST:
                for key in _shortenings(folded):
                    self._shortened.setdefault(key, []).append(folded)

    def same(self, folded: str) -> str | None:
        return self._names.get(folded)

    def nearest(self, name: str) -> str | None:
        """Return a known name that differs in one letter from the given name.

        Ignore names that differ only in a number, such as `extensionAttribute1` and `extensionAttribute2`.
        """
        folded = name.casefold()
        if not _SHORTEST <= len(folded) <= _LONGEST:
            return None
        for key in _shortenings(folded):
            for other in self._shortened.get(key, ()):
                if other != folded and near(folded, other) and not _differ_by_number(folded, other):
                    return self._names[other]
        return None


def _shortenings(name: str) -> list[str]:
    return [name, *dict.fromkeys(name[:at] + name[at + 1 :] for at in range(len(name)))]


def _differ_by_number(one: str, other: str) -> bool:
    return _DIGITS.sub("", one) == _DIGITS.sub("", other)


def _places(ruleset: Ruleset) -> Iterator[_Place]:
    yield _Place(("name",), ruleset.name)
    for index, rule in enumerate(ruleset.rules):
        yield from _places_of(("rules", index), rule)


def _places_of(where: _Where, rule: Rule) -> Iterator[_Place]:
    for at, path in enumerate(rule.match.path):
        segments = takewhile(_names_no_files, unicodedata.normalize("NFC", path).split("/")[2:])
        words = tuple(segment for segment in segments if _is_word(segment))
        yield _Place((*where, "match", "path", at), path, resources=words)
    if rule.transforms is not None:
        listed = {"strip_properties": rule.transforms.strip, "allow_properties": rule.transforms.allow or ()}
        for key, paths in listed.items():
            for at, path in enumerate(paths):
                yield _Place((*where, "transforms", key, at), path, properties=_property_names(path))
        keep = [each.condition for each in rule.transforms.keep]
        yield from _places_of_conditions((*where, "transforms", "items", "keep"), keep)
    for at, path in enumerate(rule.body_only or ()):
        yield _Place((*where, "body_only", at), path, properties=_property_names(path))
    yield from _places_of_conditions((*where, "conditions"), rule.conditions)


def _places_of_conditions(where: _Where, conditions: Sequence[Condition]) -> Iterator[_Place]:
    for at, condition in enumerate(conditions):
        of_condition = (*where, at)
        names = _property_names(condition.name) if condition.source in ("body", "property") else ()
        yield _Place((*of_condition, condition.source), condition.name, properties=names)
        for test in condition.tests:
            if isinstance(test.operand, tuple):
                for number, each in enumerate(test.operand):
                    if isinstance(each, str):
                        yield _Place((*of_condition, test.operator, number), each)
            elif isinstance(test.operand, str) and test.operator != "matches":
                yield _Place((*of_condition, test.operator), test.operand)


def _names_no_files(segment: str) -> bool:
    return not segment.endswith(":")


def _is_word(word: str) -> bool:
    """Return True if a path segment may be the name of a resource.

    A path segment with other characters than letters may be a file name, an object ID or a function call.
    """
    return word.isalpha() and (word.isascii() or looks_like(word).isascii())


def _property_names(path: str) -> tuple[str, ...]:
    return tuple(filter(None, unicodedata.normalize("NFC", path).split(".")))
