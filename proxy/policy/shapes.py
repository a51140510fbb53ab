"""Filter responses of a known shape, many times faster than the filter that goes member by member.

The shape of a response lists the member names of its JSON objects, in their order. For each shape, the filter
makes types of structs, with one field for each member name. The filter decodes a response into these structs.
Every value in a struct is a span of the original response text.

The filter then encodes the structs as JSON again. If the result has the same bytes as the response, the
response has the shape: no unknown or duplicate member names, and the same order and spelling. For such a
response, the filter deletes the values of the hidden members from the structs, and encodes the rest.
If a response has no shape that the filter has learnt, the slower filter goes through the response member by
member.

Graph writes compact JSON; other services put spaces or line breaks between the tokens. If a response has
uniform whitespace, the filter removes the whitespace before it decodes the response, and adds the whitespace
again to the filtered response.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_not
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType


@dataclass(frozen=True, slots=True)
class Fate:
    """Decision about a JSON member: keep the member (KEEP), or remove it because of a configured path.

    `cause` is the bit of the configured path, or 0 for KEEP.
    """

    cause: int


KEEP = Fate(0)
TYPE_ANNOTATIONS = ("@odata.type", "@type")  # names of the member that states an object's type


class Level(Protocol):
    """The properties that the proxy hides in the JSON objects at one place of a response."""

    arrays_only: bool  # True if another level applies when the place has one object and not an array
    by_type: bool  # True if objects that state their type may have another level

    def decide(self, name: str) -> Fate | Level: ...


_MAX_MEMBERS = 512  # a shape costs memory and time; objects with more members are dictionaries, not records
# highest average number of the shape's members that objects lack; each takes memory all the same
_MAX_SPARSENESS = 64

_members_of = msgspec.json.Decoder(dict[str, Raw]).decode
_elements_of = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode
_format = msgspec.json.format
# groups: the object's line break and indent, and its space
_OPENING = re.compile(rb'\{(\n *+)?"[^"\\]*+":( ?)')
_NOT_THIS_SHAPE = msgspec.MsgspecError


class Shape:
    """Struct type for the JSON objects at one property path of a response, and the members to remove."""

    def __init__(self, names: list[str], level: Level, inner: dict[str, Shape]) -> None:
        self.arrays_only = level.arrays_only
        fields = {name: f"f{index}" for index, name in enumerate(names)}
        self.struct = msgspec.defstruct(
            "Shape",
            [(field, self._type_of(inner.get(name)), UNSET) for name, field in fields.items()],
            rename={field: name for name, field in fields.items()},
            forbid_unknown_fields=True,
            gc=False,
        )
        self._inner = [(fields[name], shape) for name, shape in inner.items()]
        fates = [(field, level.decide(name)) for name, field in fields.items()]
        causes = {field: fate.cause for field, fate in fates if isinstance(fate, Fate) and fate.cause}
        dropped = list(causes)
        self._of_cause = [(cause, attrgetter(field)) for field, cause in causes.items()]
        self.causes = 0  # bits of the paths for which a member may be removed, here or in inner objects
        for cause in (*causes.values(), *(shape.causes for shape in inner.values())):
            self.causes |= cause
        self._setters = [getattr(self.struct, field).__set__ for field in dropped]
        kept = [name for name in names if fields[name] not in dropped]
        self._copy_kept: Callable[[Any], Any] | None = None
        if len(dropped) > len(kept):
            self._copy_kept = _copier(kept, [fields[name] for name in kept])

    @staticmethod
    def _type_of(inner: Shape | None) -> Any:
        if inner is None:
            return Raw | UnsetType
        if inner.arrays_only:
            return list[inner.struct] | UnsetType  # type: ignore[name-defined]
        return list[inner.struct] | inner.struct | None | UnsetType  # type: ignore[name-defined]

    def causes_in(self, objects: list[Any], wanted: int) -> int:
        """Return the bits of the configured paths that remove a member of at least one object.

        `wanted` has the bits of the paths to look for.
        """
        found = 0
        for cause, value_of in self._of_cause:
            if cause & wanted & ~found and any(map(is_not, map(value_of, objects), repeat(UNSET))):
                found |= cause
        for field, shape in self._inner:
            for obj in objects:
                if not shape.causes & wanted & ~found:
                    break
                value = getattr(obj, field)
                if isinstance(value, msgspec.Struct):
                    value = [value]
                if isinstance(value, list):
                    found |= shape.causes_in(value, wanted & ~found)
        return found

    def hidden(self, objects: list[Any]) -> list[Any]:
        """Return the decoded JSON objects without their hidden properties."""
        for field, shape in self._inner:
            for obj in objects:
                value = getattr(obj, field)
                if isinstance(value, list):
                    setattr(obj, field, shape.hidden(value))
                elif isinstance(value, msgspec.Struct):
                    setattr(obj, field, shape.hidden([value])[0])
        if self._copy_kept is not None:
            return list(map(self._copy_kept, objects))
        for set_member in self._setters:
            deque(map(set_member, objects, repeat(UNSET)), maxlen=0)  # a loop that runs in C
        return objects


def _copier(names: list[str], fields: list[str]) -> Callable[[Any], Any]:
    """Return a function that copies a JSON object without its hidden properties into a smaller struct.

    If most members of an object are hidden, copying the visible members is cheaper than unsetting the hidden
    members.
    """
    struct = msgspec.defstruct(
        "Kept", [(field, Any) for field in fields], rename=dict(zip(fields, names, strict=True)), gc=False
    )
    if len(fields) < 2:  # attrgetter returns a tuple only for two or more names
        return lambda obj: struct(*[getattr(obj, field) for field in fields])
    values_of = attrgetter(*fields)
    return lambda obj: struct(*values_of(obj))


class Plan:
    """A filter for responses whose JSON has one known shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._only_cause = shape.causes if shape.causes.bit_count() == 1 else None
        self._decode = msgspec.json.Decoder(shape.struct).decode

    def apply(self, body: bytes) -> tuple[bytes, int] | None:
        """Filter a response body, which must be UTF-8.

        Return the filtered body and a bit mask. In the bit mask, each configured property path has a bit,
        which is set if the filter removed a member because of this path. Return None if an object in the
        body has a member that the filter's shape lacks, or has its members in another order.
        """
        opening = _OPENING.match(body)
        if opening is None:
            return None
        try:
            if not opening[1] and not opening[2]:
                return self._apply_to_compact(body)
            indent = len(opening[1]) - 1 if opening[1] else 0
            return self._apply_to_formatted(body, indent)
        except _NOT_THIS_SHAPE:
            return None

    def _apply_to_compact(self, body: bytes) -> tuple[bytes, int] | None:
        document = self._decode(body)
        if _encode(document) != body:
            return None
        shape, removed = self._shape, self._only_cause
        if removed is None:
            removed = shape.causes_in([document], shape.causes)
        if not removed:
            return body, 0
        filtered = _encode(shape.hidden([document])[0])
        return filtered, removed if len(filtered) < len(body) else 0

    def _apply_to_formatted(self, body: bytes, indent: int) -> tuple[bytes, int] | None:
        compact = _format(body, indent=-1)
        if _format(compact, indent=indent) != body:
            return None
        applied = self._apply_to_compact(compact)
        if applied is None:
            return None
        filtered, removed = applied
        return _format(filtered, indent=indent), removed


def learn(body: bytes, level: Level) -> Plan | None:
    """Learn the names and the order of the members in a response's JSON objects.

    Return a plan that filters responses with the same members, or None if no such plan is possible.
    """
    try:
        shape = _learn_shape([Raw(body)], level)
    except _NOT_THIS_SHAPE:
        return None
    except ValueError:  # a struct cannot have a field of this name
        return None
    return Plan(shape) if shape else None


def _learn_shape(texts: list[Raw], level: Level) -> Shape | None:
    names: list[str] = []
    places: dict[str, int] = {}  # positions of the names when they were last needed
    known: set[str] = set()
    objects_inside: dict[str, list[Raw]] = {}
    most = _MAX_SPARSENESS * len(texts)  # members of the shape that all objects together may lack
    for text in texts:
        place = 0
        members = _members_of(text)
        most -= len(names) - len(members)
        if most < 0:
            return None
        for name, value in members.items():
            if name in known:
                if names[place : place + 1] != [name]:
                    if len(places) != len(names):
                        places = {each: at for at, each in enumerate(names)}
                    place = places[name]
            else:
                names.insert(place, name)
                known.add(name)
            place += 1
            if not isinstance(level.decide(name), Fate):
                objects_inside.setdefault(name, []).append(value)
        if len(names) > _MAX_MEMBERS or (level.by_type and not known.isdisjoint(TYPE_ANNOTATIONS)):
            return None
    inner: dict[str, Shape] = {}
    for name, values in objects_inside.items():
        fate = level.decide(name)
        objects = _objects_in(values)
        if objects is None or isinstance(fate, Fate):
            return None
        shape = _learn_shape(objects, fate)
        if shape is None:
            return None
        inner[name] = shape
    return Shape(names, level, inner)


def _objects_in(values: list[Raw]) -> list[Raw] | None:
    """Return the JSON objects in a list of values, including the objects in arrays of the list.

    Return None if one of the values is not an object, an array or null.
    """
    objects: list[Raw] = []
    for value in values:
        kind = bytes(value)[:1]
        if kind == b"{":
            objects.append(value)
        elif kind == b"[":
            inside = _elements_of(value)
            if any(bytes(element)[:1] != b"{" for element in inside):
                return None
            objects += inside
        elif kind != b"n":
            return None
    return objects
