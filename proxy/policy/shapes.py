"""Filters answers whose shape has been met before, many times faster than reading them member by member.

A shape is the members that objects at one place have, in their order. An answer is decoded into structs made
for its shape, in which every value is a span of the original text, and encoded again. Where that gives the
very bytes that came, the shape describes the answer whole: no unknown or doubled name, no other order or
spelling. Then the hidden members are unset and what is left is encoded. Other answers are left to the reader.

Graph writes JSON compactly, others put spaces or lines between the tokens. An answer that is formatted evenly
from end to end is made compact for the comparison and formatted again afterwards.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import repeat
from operator import attrgetter
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType


class Fate(Enum):
    KEEP = "keep"
    DROP = "drop"


class Level(Protocol):
    """What to hide of the objects at one place."""

    arrays_only: bool  # another level holds where the place has one object and no array

    def decide(self, name: str) -> Fate | Level: ...


_MAX_MEMBERS = 512  # a shape costs memory and time to make; objects with more are dictionaries, not records
_MAX_SPARSENESS = 64  # members of the shape that an object lacks, on average: each takes room all the same

_members_of = msgspec.json.Decoder(dict[str, Raw]).decode
_elements_of = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode
_format = msgspec.json.format
_OPENING = re.compile(rb'\{(\n *+)?"[^"\\]*+":( ?)')  # of the object: its line break and indent, its space
_NOT_THIS_SHAPE = (msgspec.MsgspecError, RecursionError)


class Shape:
    """Objects at one place of an answer: how to decode them, and which of their members to unset."""

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
        dropped = [field for name, field in fields.items() if level.decide(name) is Fate.DROP]
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

    def hidden(self, objects: list[Any]) -> list[Any]:
        """The objects without what is to be hidden of them."""
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
    """Makes a smaller struct of an object: cheaper than unsetting more members than stay."""
    struct = msgspec.defstruct(
        "Kept", [(field, Any) for field in fields], rename=dict(zip(fields, names, strict=True)), gc=False
    )
    if len(fields) < 2:  # attrgetter makes a tuple of two and more only
        return lambda obj: struct(*[getattr(obj, field) for field in fields])
    values_of = attrgetter(*fields)
    return lambda obj: struct(*values_of(obj))


class Plan:
    """A filter for answers of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._decode = msgspec.json.Decoder(shape.struct).decode

    def apply(self, body: bytes) -> bytes | None:
        """The filtered body, or None if the body, which must be UTF-8, is not of this shape."""
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

    def _apply_to_compact(self, body: bytes) -> bytes | None:
        document = self._decode(body)
        if _encode(document) != body:
            return None
        return _encode(self._shape.hidden([document])[0])

    def _apply_to_formatted(self, body: bytes, indent: int) -> bytes | None:
        compact = _format(body, indent=-1)
        if _format(compact, indent=indent) != body:
            return None
        filtered = self._apply_to_compact(compact)
        return None if filtered is None else _format(filtered, indent=indent)


def learn(body: bytes, level: Level) -> Plan | None:
    """A plan for answers like this one, if one can be made that filters it."""
    try:
        shape = _learn_shape([Raw(body)], level)
    except _NOT_THIS_SHAPE:
        return None
    except ValueError:  # a name that a struct can't have
        return None
    return Plan(shape) if shape else None


def _learn_shape(texts: list[Raw], level: Level) -> Shape | None:
    names: list[str] = []
    places: dict[str, int] = {}  # of the names, as they were when they were last asked for
    known: set[str] = set()
    objects_inside: dict[str, list[Raw]] = {}
    most = _MAX_SPARSENESS * len(texts)  # that the members seen are short of the shape's, together
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
        if len(names) > _MAX_MEMBERS:
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
    """The objects that are these values or lie in them as arrays; None if there is anything else but null."""
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
