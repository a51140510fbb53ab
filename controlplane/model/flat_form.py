"""Write a parsed schema in the flat form, the text form that proxies load."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from controlplane.model.metadata import Navigation, Operation, Property, Schema, Type, TypeRef
from proxy.policy.resource_model import (
    ACTION,
    BOUND,
    BOUND_TO_COLLECTION,
    COLLECTION,
    CONTAINED,
    ENTITY,
    EXPANDABLE,
    MAGIC,
    MEDIA,
    NAVIGATION,
    OPEN,
    STREAM,
)

_NONE: Final = 0  # no type; a reference to a type is its row number plus 1


def encode(schema: Schema) -> bytes:
    """Return a parsed schema in its flat form, the bytes that proxies load.

    The flat form of a schema does not depend on the order of declarations in the schema's document.
    """
    return _Writer(schema).write()


def _split(full: str) -> tuple[str, str]:
    """Split a qualified name into the namespace and the simple name."""
    space, _, simple = full.rpartition(".")
    return space, simple


class _Writer:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        spellings = {name.lower(): name for name in sorted(_names_of(schema), reverse=True)}
        self._names = [spellings[folded] for folded in sorted(spellings)]
        self._name_ids = {name.lower(): number for number, name in enumerate(self._names)}
        own = {_split(each.name)[0] for each in schema.types}
        own |= {_split(each.name)[0] for each in schema.operations}
        own |= {space for _, space in schema.aliases}
        stands_for = {alias.lower(): space.lower() for alias, space in schema.aliases}
        stands_for |= {space.lower(): space.lower() for space in own}
        self._spaces = sorted(stands_for, key=self._id)
        self._space_ids = {space: number for number, space in enumerate(self._spaces)}
        self._stands_for = stands_for
        self._types = sorted(schema.types, key=lambda each: self._place(each.name))
        self._references = {each.name: row + 1 for row, each in enumerate(self._types)}

    def write(self) -> bytes:
        members: list[tuple[int, ...]] = []
        types: list[tuple[int, ...]] = []
        for each in self._types:
            base = self._references[each.base] if each.base is not None else _NONE
            flags = ENTITY * each.entity | OPEN * each.open | MEDIA * each.has_stream
            types.append((*self._place(each.name), base, flags, len(members)))
            members += self._members_of(each)
        spaces: list[tuple[int, ...]] = [
            (self._id(each), self._space_ids[self._stands_for[each]]) for each in self._spaces
        ]
        roots: list[tuple[int, ...]] = sorted(
            (self._id(each.name), COLLECTION * each.type.collection, self._reference(each.type))
            for each in self._schema.roots
        )
        operations = sorted(map(self._operation, self._schema.operations), key=_by_name_and_binding)
        names = [name.encode("ascii") for name in self._names]
        blob = b"".join(names)
        ends, end = [], 0
        for name in names:
            end += len(name)
            ends.append((end,))
        tables = [spaces, types, members, roots, operations]
        header = (len(names), len(blob), *map(len, tables))
        return MAGIC + _packed([header, *ends]) + b"".join(map(_packed, tables)) + blob

    def _id(self, name: str) -> int:
        return self._name_ids[name.lower()]

    def _place(self, full: str) -> tuple[int, int]:
        space, simple = _split(full)
        return self._id(simple), self._space_ids[space.lower()]

    def _reference(self, type_: TypeRef | None) -> int:
        return _NONE if type_ is None else self._references.get(type_.name, _NONE)

    def _members_of(self, owner: Type) -> list[tuple[int, ...]]:
        members: list[Property | Navigation] = [*owner.properties, *owner.navigations]
        return sorted(map(self._member, members))

    def _member(self, each: Property | Navigation) -> tuple[int, ...]:
        flags = COLLECTION * each.type.collection
        if isinstance(each, Navigation):
            flags |= NAVIGATION | CONTAINED * each.contained | EXPANDABLE * each.expandable
        elif each.is_stream:
            flags |= STREAM
        return self._id(each.name), flags, self._reference(each.type)

    def _operation(self, each: Operation) -> tuple[int, ...]:
        flags = ACTION * each.action
        if each.binds is not None:
            flags |= BOUND | BOUND_TO_COLLECTION * each.binds.collection
        if each.returns is not None:
            flags |= COLLECTION * each.returns.collection
        return (*self._place(each.name), flags, self._reference(each.binds), self._reference(each.returns))


def _names_of(schema: Schema) -> Iterable[str]:
    for type_ in schema.types:
        yield from _split(type_.name)
        yield from (each.name for each in type_.properties)
        yield from (each.name for each in type_.navigations)
    for operation in schema.operations:
        yield from _split(operation.name)
    yield from (each.name for each in schema.roots)
    for alias in schema.aliases:
        yield from alias


def _by_name_and_binding(row: tuple[int, ...]) -> tuple[int, ...]:
    return (row[0], row[3], *row)


def _packed(rows: Iterable[tuple[int, ...]]) -> bytes:
    return b"".join(struct.pack(f"<{len(row)}I", *row) for row in rows)
