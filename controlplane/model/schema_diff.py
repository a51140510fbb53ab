"""Compare two schemas by the names of their types, relations, properties and operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proxy.policy.resource_model import NAVIGATION, ResourceModel


@dataclass(frozen=True, slots=True)
class Difference:
    """Names that are only in one of two compared schemas, in alphabetical order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]  # names in both schemas whose targets or flags differ


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    types: Difference
    relations: Difference
    properties: Difference
    operations: Difference


@dataclass(frozen=True, slots=True)
class Counts:
    types: int
    relations: int
    properties: int
    operations: int


def counts_of(model: ResourceModel) -> Counts:
    """Return how many types, relations, properties and operations a schema declares."""
    relations = sum(bool(model.member_flags(member) & NAVIGATION) for member in range(model.members))
    return Counts(model.types, relations, model.members - relations, model.operations)


def diff_schemas(old: ResourceModel, new: ResourceModel) -> SchemaDifference:
    return SchemaDifference(
        _difference(_types(old), _types(new)),
        _difference(_members(old, NAVIGATION), _members(new, NAVIGATION)),
        _difference(_members(old, 0), _members(new, 0)),
        _difference(_operations(old), _operations(new)),
    )


def _difference(old: Mapping[str, object], new: Mapping[str, object]) -> Difference:
    return Difference(
        tuple(sorted(new.keys() - old.keys())),
        tuple(sorted(old.keys() - new.keys())),
        tuple(sorted(name for name in new.keys() & old.keys() if new[name] != old[name])),
    )


def _named(model: ResourceModel, type_: int) -> str:
    return model.type_name(type_) if type_ >= 0 else ""


def _types(model: ResourceModel) -> dict[str, object]:
    return {
        model.type_name(type_): (_named(model, model.base_of(type_)), model.type_flags(type_))
        for type_ in range(model.types)
    }


def _members(model: ResourceModel, kind: int) -> dict[str, object]:
    return dict(_members_of_kind(model, kind))


def _members_of_kind(model: ResourceModel, kind: int) -> Iterator[tuple[str, object]]:
    for type_ in range(model.types):
        owner = model.type_name(type_)
        for member in range(*model.members_of(type_)):
            flags = model.member_flags(member)
            if flags & NAVIGATION == kind:
                name = f"{owner}.{model.member_name(member)}"
                yield name, (_named(model, model.member_type(member)), flags)


def _operations(model: ResourceModel) -> dict[str, object]:
    """Return the operations of a schema by their name and the type that they bind to.

    Overloads that bind to the same type count as one operation.
    """
    found: dict[str, set[object]] = {}
    for operation in range(model.operations):
        binds = _named(model, model.operation_binds(operation))
        name = model.operation_name(operation)
        meaning = (model.operation_flags(operation), _named(model, model.operation_returns(operation)))
        found.setdefault(f"{binds}.{name}" if binds else name, set()).add(meaning)
    return dict(found)
