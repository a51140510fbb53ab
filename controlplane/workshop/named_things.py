"""Find the schema element (type, member or operation) that the path of a rule names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controlplane.workshop.schema_graph import KEY, SchemaGraph
from proxy.policy import reached
from proxy.policy.paths import Pattern
from proxy.policy.reached import reaches
from proxy.policy.resource_model import (
    ACTION,
    COLLECTION,
    CONTAINED,
    ENTITY,
    NAVIGATION,
    ResourceModel,
)
from proxy.policy.ruleset import Match
from proxy.policy.things import Resolver

SAMPLE_ID: Final = "id1"  # key in each example
_LONGEST_PREFIX: Final = 4  # segments before the root of a schema; Microsoft Graph has one, its version
VERSION: Final = "v1.0"  # replaces a wildcard in the place of the version in examples


class ThingKind(StrEnum):
    TYPE = "type"
    RELATION = "relation"
    PROPERTY = "property"
    OPERATION = "operation"
    PATH = "path"  # kind of a thing that only its path describes, without a schema


@dataclass(frozen=True, slots=True)
class Thing:
    """A schema element: a type, member or operation. The rules reference says *thing* for a schema element.

    If the element is a type, `type` is this type. If the element is a member, `type` is the type that owns
    the member. If the element is an operation, `type` is the type that the operation binds to, or -1 for an
    unbound operation. `word` is the element's name in a rule, such as `message`, `group.members`,
    `driveItem.content` or `addPassword`.
    """

    kind: ThingKind
    word: str
    type: int
    member: int = -1


@dataclass(frozen=True, slots=True)
class NamedThing:
    """A schema element that a rule names, with the path segments of one address that leads to the element.

    `prefix` holds the address's first segments, the root of the service, such as `v1.0`. `address` holds the
    segments after the root.

    `leads_to` is the type of the objects at the address; -1 means that the address leads to no type. `many`
    is True if the address names a collection of objects.
    """

    thing: Thing
    prefix: tuple[str, ...]
    address: tuple[str, ...]
    leads_to: int
    many: bool


def thing_of(graph: SchemaGraph, pattern: Pattern) -> NamedThing | None:
    """Return the schema element that a pattern names, or None if the schema has no such element."""
    words = [word if word is not None else SAMPLE_ID for word in pattern.segments]
    for at in range(min(len(words), _LONGEST_PREFIX)):
        steps = reaches(graph.model, words[at:])
        if not steps or steps[0].kind == reached.INDETERMINATE:
            continue
        thing = _thing(graph, steps)
        if thing is None:
            return None
        prefix = tuple(word if word is not None else VERSION for word in pattern.segments[:at])
        return NamedThing(
            thing, prefix, _spelled(graph.model, steps, words[at:]), steps[-1].type, steps[-1].collection
        )
    return None


def things_of_match(graph: SchemaGraph, match: Match, root: tuple[str, ...]) -> Iterator[NamedThing]:
    """Yield the schema elements that are named in the match of a rule. Packs are expanded."""
    resolver = Resolver(graph.model)
    resources, operations = list(match.resource), list(match.operation)
    for name in match.pack:
        pack = resolver.facts.packs.get(name.lower())
        if pack is not None:
            resources += pack.resource
            operations += pack.operation
    for name in dict.fromkeys(resources):
        for type_ in resolver.types_of(name):
            thing = type_thing(graph.model, type_)
            if thing is not None:
                yield from _at_shortest_path(graph, thing, root)
        for owner, member in resolver.members_of(name):
            yield from _at_shortest_path(graph, _member_thing(graph.model, owner, member), root)
    for name in dict.fromkeys(operations):
        for operation in resolver.operations_of(name):
            binds = graph.model.operation_binds(operation)
            word = graph.model.operation_name(operation)
            yield from _at_shortest_path(graph, Thing(ThingKind.OPERATION, word, binds, operation), root)


def _member_thing(model: ResourceModel, owner: int, member: int) -> Thing:
    is_relation = bool(model.member_flags(member) & NAVIGATION)
    word = f"{simple_name(model, owner)}.{model.member_name(member)}"
    return Thing(ThingKind.RELATION if is_relation else ThingKind.PROPERTY, word, owner, member)


def _at_shortest_path(graph: SchemaGraph, thing: Thing, root: tuple[str, ...]) -> Iterator[NamedThing]:
    """Yield a schema element with one of its addresses, or nothing if no path leads to the element."""
    model = graph.model
    if thing.kind is ThingKind.OPERATION and thing.type < 0:
        yield NamedThing(thing, root, (model.operation_name(thing.member),), -1, False)
        return
    path = graph.shortest(thing.type)
    if path is None:
        return
    address = tuple(SAMPLE_ID if segment == KEY else segment for segment in path.item())
    if thing.kind is ThingKind.TYPE:
        address = address[:-1] if path.many else address
        yield NamedThing(thing, root, address, thing.type, path.many)
    elif thing.kind is ThingKind.OPERATION:
        yield NamedThing(thing, root, (*address, model.operation_name(thing.member)), -1, False)
    else:
        many = bool(model.member_flags(thing.member) & COLLECTION)
        segments = (*address, model.member_name(thing.member))
        yield NamedThing(thing, root, segments, model.member_type(thing.member), many)


def _thing(graph: SchemaGraph, steps: tuple[reached.Step, ...]) -> Thing | None:
    model = graph.model
    last = len(steps) - 1
    while last > 0 and steps[last].kind in (reached.OPTION, reached.CAST, reached.KEY):
        last -= 1
    step = steps[last]
    if steps[-1].kind == reached.INDETERMINATE:
        return None
    if step.kind == reached.OPERATION:
        operation = step.operations[0]
        is_function = not model.operation_flags(operation) & ACTION
        if is_function and step.type >= 0 and model.type_flags(step.type) & ENTITY:
            return type_thing(model, step.type)  # `/users/delta` names users
        word = model.operation_name(operation)
        return Thing(ThingKind.OPERATION, word, model.operation_binds(operation), operation)
    if step.kind == reached.RELATION and not _is_of_one_type(graph, step):
        return _member(model, ThingKind.RELATION, step)
    if step.kind in (reached.PROPERTY, reached.CONTENT):
        return _member(model, ThingKind.PROPERTY, step)
    return type_thing(model, step.type)


def _is_of_one_type(graph: SchemaGraph, step: reached.Step) -> bool:
    """Return True if the relation's objects are part of its owner, or if no type derives from their type.

    The path `/users/{id}/messages` counts as the type `message`, which is the type of its objects. The path
    `/groups/{id}/members` counts as the relation `group.members`, not as a type, because members of a group
    also have addresses outside the group.
    """
    return bool(graph.model.member_flags(step.member) & CONTAINED) or not graph.has_derived(step.type)


def _member(model: ResourceModel, kind: ThingKind, step: reached.Step) -> Thing:
    word = f"{simple_name(model, step.owner)}.{model.member_name(step.member)}"
    return Thing(kind, word, step.owner, step.member)


def type_thing(model: ResourceModel, type_: int) -> Thing | None:
    return Thing(ThingKind.TYPE, simple_name(model, type_), type_) if type_ >= 0 else None


def simple_name(model: ResourceModel, type_: int) -> str:
    return model.type_name(type_).rpartition(".")[2]


def _spelled(model: ResourceModel, steps: tuple[reached.Step, ...], words: list[str]) -> tuple[str, ...]:
    """Return the path segments with upper and lower case letters as in the schema."""
    spelled: list[str] = []
    for step, word in zip(steps, words, strict=True):
        if step.kind == reached.ROOT:
            spelled.append(model.root_name(step.member))
        elif step.owner >= 0:
            spelled.append(model.member_name(step.member))
        elif step.kind == reached.OPERATION:
            spelled.append(model.operation_name(step.operations[0]))
        else:
            spelled.append(word)
    return tuple(spelled)
