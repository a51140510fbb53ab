"""Resolve the names of resources, operations and packs in a rule against a schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from proxy.policy.resource_model import ENTITY, NAVIGATION, STREAM, ResourceModel
from proxy.policy.ruleset import Match, Ruleset
from proxy.policy.schemas import Schemas
from proxy.policy.services.facts import Facts
from proxy.policy.services.known import facts_of
from proxy.policy.thing_rows import Member, Part, Things, Types

_NO_ROWS: Final[frozenset[int]] = frozenset()
_MOST_NEAREST: Final = 3  # names that an error suggests
_LONGEST_COMPARED: Final = 100  # characters of an unknown name that is compared with others


class Resolver:
    """Resolver of the names in rules to rows in the tables of one schema."""

    __slots__ = ("_types", "facts", "model")

    def __init__(self, model: ResourceModel) -> None:
        self.model: Final[ResourceModel] = model
        self.facts: Final[Facts] = facts_of(model)
        self._types: Final[Types] = Types(model)

    @property
    def types(self) -> Types:
        return self._types

    def types_of(self, name: str) -> tuple[int, ...]:
        """Return the schema types with the given simple or qualified name, in any letter case."""
        folded = name.lower()
        if "." not in folded:
            return self.model.types_named(folded)
        type_ = self.model.type_of(folded)
        return (type_,) if type_ >= 0 else ()

    def members_of(self, name: str) -> list[tuple[int, int]]:
        """Return the pairs of type index and member index for a name of the form `type.member`.

        `member` is the name of a relation or property that the schema type `type` has.
        """
        owner, _, simple = name.lower().rpartition(".")
        number = self.model.name_id(simple)
        if not owner or number < 0:
            return []
        found: list[tuple[int, int]] = []
        for type_ in self.types_of(owner):
            member = self.model.member_of(type_, number)[1]
            if member >= 0:
                found.append((type_, member))
        return found

    def searched(self, entity_type: str) -> list[tuple[int, int]]:
        """Return the schema types that a Microsoft Search request finds for a folded entity type.

        Each item of the result is a pair of a type index and a member index. The member index is -1 if the
        search finds objects of the type instead of values of a member.
        """
        found: list[tuple[int, int]] = []
        for known, names in self.facts.search_types.items():
            if known.lower() == entity_type:
                for name in names:
                    found += [(type_, -1) for type_ in self.types_of(name)]
                    found += self.members_of(name)
        return found

    def operations_of(self, name: str) -> list[int]:
        folded = name.lower()
        number = self.model.name_id(folded.rpartition(".")[2])
        if number < 0:
            return []
        first, last = self.model.operations_of(number)
        return [
            each
            for each in range(first, last)
            if "." not in folded or self.model.names_space_of(folded, each)
        ]

    def knows_resource(self, name: str) -> bool:
        return bool(self.types_of(name) or self.members_of(name))

    def resolve(self, match: Match) -> Things:
        """Find the rows for the names in a rule's `match` in the tables of the schema.

        Ignore the names that the schema does not contain.
        """
        resources = list(match.resource)
        names = list(match.operation)
        for pack in match.pack:
            found = self.facts.packs.get(pack.lower())
            if found is not None:
                resources += found.resource
                names += found.operation
        types: list[int] = []
        members: dict[int, Member] = {}
        for name in resources:
            types += self.types_of(name)
            for type_, member in self.members_of(name):
                self._add_member(members, type_, member)
        all_types = self._types.with_derived(types)
        bases = self._types.above(types) - all_types
        operations = [each for name in names for each in self.operations_of(name)]
        return Things(
            self._types,
            self.facts,
            all_types,
            bases,
            members,
            frozenset(operations),
            frozenset(self._handing(all_types | bases, members)),
            tuple(self._parts(all_types, members)),
            frozenset(self._elsewhere(all_types)),
        )

    def _add_member(self, members: dict[int, Member], type_: int, member: int) -> None:
        owners = self._types.with_derived((type_,))
        bases = self._types.above((type_,))
        known = members.get(member)
        if known is not None:
            owners = owners | known.owners
            bases = bases | known.bases
        members[member] = Member(member, owners, bases - owners)

    def _elsewhere(self, types: frozenset[int]) -> Iterator[int]:
        """Yield relations that never lead to objects of the given types.

        The declared target of each yielded relation is a base type of the given types.
        """
        for name, targets in self.facts.targets.items():
            found = [type_ for target in targets for type_ in self.types_of(target)]
            if found and types.isdisjoint(self._types.with_derived(found)):
                for _, member in self.members_of(name):
                    yield member

    def _parts(self, types: frozenset[int], members: dict[int, Member]) -> Iterator[Part]:
        """Yield the properties that a rule hides within objects.

        The paths of the objects do not name the hidden properties.
        """
        model = self.model
        rare = {member for name in self.facts.on_request for _, member in self.members_of(name)}
        for each in members.values():
            if not model.member_flags(each.member) & (NAVIGATION | STREAM) and each.member not in rare:
                yield Part(self._only(each.owners, each.bases), (model.member_name(each.member),))
        values = [type_ for type_ in types if not model.type_flags(type_) & ENTITY]
        for owner in sorted({owner for type_ in values for owner in model.holders_of(type_)}):
            first, end = model.members_of(owner)
            found = [
                model.member_name(member)
                for member in range(first, end)
                if model.member_type(member) in types and not model.member_flags(member) & NAVIGATION
            ]
            if found:
                yield Part(self._of_types((owner,)), tuple(found))
        for address in self.facts.addresses:
            if any(member in members for _, member in self.members_of(address.thing)):
                owners = self._of_types(self.types_of(address.owner))
                yield Part(owners, (address.property,))

    def _of_types(self, types: tuple[int, ...]) -> Things:
        all_types = self._types.with_derived(types)
        return self._only(all_types, self._types.above(types) - all_types)

    def _only(self, types: frozenset[int], bases: frozenset[int]) -> Things:
        return Things(self._types, self.facts, types, bases, {}, _NO_ROWS, _NO_ROWS)

    def _handing(self, types: frozenset[int], members: dict[int, Member]) -> Iterator[int]:
        for row in self.facts.handed_over:
            if not any(self._is_named(thing, types, members) for thing in row.things):
                continue
            owners = self.types_of(row.owner) if row.owner else ()
            for operation in self.operations_of(row.operation):
                if not row.owner or self.model.operation_binds(operation) in owners:
                    yield operation

    def _is_named(self, thing: str, types: frozenset[int], members: dict[int, Member]) -> bool:
        return not types.isdisjoint(self.types_of(thing)) or any(
            member in members for _, member in self.members_of(thing)
        )


def words_of(match: Match, facts: Facts) -> str:
    """Return the names in a rule's `match` as text for people, and the names that each pack contains."""
    texts: list[str] = []
    if match.resource:
        texts.append(f"resource {', '.join(match.resource)}")
    if match.operation:
        texts.append(f"operation {', '.join(match.operation)}")
    for name in match.pack:
        pack = facts.packs.get(name.lower())
        inside = "" if pack is None else f" ({', '.join((*pack.resource, *pack.operation))})"
        texts.append(f"pack {name}{inside}")
    return "; ".join(texts)


class Unknown:
    """A name of a resource, operation or pack in a rule, if no schema contains this name.

    `place` is the key path of the name in the document, starting from `rules`.
    """

    __slots__ = ("message", "place")

    def __init__(self, place: tuple[int | str, ...], message: str) -> None:
        self.place: Final[tuple[int | str, ...]] = place
        self.message: Final[str] = message


def unknown_things(ruleset: Ruleset, schemas: Schemas) -> Iterator[Unknown]:
    """Find names of resources, operations and packs in a ruleset that are missing in every schema."""
    resolvers: list[Resolver] = []
    for index, rule in enumerate(ruleset.rules):
        match = rule.match
        if not match.names_things:
            continue
        if not resolvers:
            resolvers = [Resolver(model) for model in schemas.models]
        for word, names in (
            ("resource", match.resource),
            ("operation", match.operation),
            ("pack", match.pack),
        ):
            for at, name in enumerate(names):
                message = _problem(word, name, resolvers)
                if message:
                    yield Unknown(("rules", index, "match", word, at), message)


def _problem(word: str, name: str, resolvers: Sequence[Resolver]) -> str:
    if word == "pack":
        known = [pack for resolver in resolvers for pack in resolver.facts.packs]
        if name.lower() in known:
            return ""
        if not known:
            return (
                f"there is no pack `{name}`: the service of this schema has no packs; "
                "name types by `resource`"
            )
        return f"there is no pack `{name}`" + nearest(name, known)
    if word == "operation":
        if any(resolver.operations_of(name) for resolver in resolvers):
            return ""
        return f"the schema has no operation `{name}`" + nearest(name, _operation_names(resolvers))
    if any(resolver.knows_resource(name) for resolver in resolvers):
        return ""
    owner, _, member = name.rpartition(".")
    owners = [(resolver, type_) for resolver in resolvers for type_ in resolver.types_of(owner)]
    if owner and owners:
        names = [each for resolver, type_ in owners for each in _member_names(resolver.model, type_)]
        return f"the type `{owner}` has no relation or property `{member}`" + nearest(member, names, owner)
    siblings = list(_type_names_in(owner, resolvers)) if owner else []
    if siblings:
        return f"the schema has no type `{name}`" + nearest(member, siblings, owner)
    return f"the schema has no type `{owner or name}`" + nearest(owner or name, _type_names(resolvers))


def nearest(name: str, known: Iterable[str], owner: str = "") -> str:
    """Return the end of an error message: the known names that are most similar to the unknown name."""
    by_folded = {each.lower(): each for each in known}
    close = get_close_matches(name[:_LONGEST_COMPARED].lower(), list(by_folded), n=_MOST_NEAREST, cutoff=0.6)
    prefix = f"{owner}." if owner else ""
    names = [f"`{prefix}{by_folded[each]}`" for each in close]
    if not names:
        return ""
    *others, last = names
    return f", did you mean {', '.join(others)} or {last}?" if others else f", did you mean {last}?"


def _type_names(resolvers: Sequence[Resolver]) -> Iterator[str]:
    for resolver in resolvers:
        for type_ in range(resolver.model.types):
            yield resolver.model.type_name(type_).rpartition(".")[2]


def _type_names_in(namespace: str, resolvers: Sequence[Resolver]) -> Iterator[str]:
    for resolver in resolvers:
        for type_ in range(resolver.model.types):
            place, _, short = resolver.model.type_name(type_).rpartition(".")
            if place.lower() == namespace.lower():
                yield short


def _operation_names(resolvers: Sequence[Resolver]) -> Iterator[str]:
    for resolver in resolvers:
        for operation in range(resolver.model.operations):
            yield resolver.model.operation_name(operation)


def _member_names(model: ResourceModel, type_: int) -> Iterator[str]:
    while type_ >= 0:
        first, end = model.members_of(type_)
        for member in range(first, end):
            yield model.member_name(member)
        type_ = model.base_of(type_)
