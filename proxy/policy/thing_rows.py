"""Table rows of a schema: the rows of the types, members and operations that a rule names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.policy.resource_model import STREAM, ResourceModel
from proxy.policy.services.facts import Facts

_NO_MEMBERS: Final[frozenset[int]] = frozenset()


class Types:
    """Inheritance between the types of one schema."""

    __slots__ = ("model",)

    def __init__(self, model: ResourceModel) -> None:
        self.model: Final[ResourceModel] = model

    def with_derived(self, types: Iterable[int]) -> frozenset[int]:
        found: set[int] = set()
        left = list(types)
        while left:
            type_ = left.pop()
            if type_ not in found:
                found.add(type_)
                left += self.model.derived_of(type_)
        return frozenset(found)

    def above(self, types: Iterable[int]) -> frozenset[int]:
        """Return all base types of the given schema types."""
        found: set[int] = set()
        for type_ in types:
            base = self.model.base_of(type_)
            while base >= 0:
                found.add(base)
                base = self.model.base_of(base)
        return frozenset(found)

    def leading_to(self, types: Iterable[int], owners: Iterable[int]) -> frozenset[int]:
        """Return all schema types whose objects may contain an object of the given types, at any depth.

        `owners` are the schema types that declare a member (property or relation) that the rule names.
        """
        found: set[int] = set()
        left = [*self.with_derived(types), *self.with_derived(owners)]
        while left:
            type_ = left.pop()
            if type_ in found:
                continue
            found.add(type_)
            each = type_
            while each >= 0:
                left += self.with_derived(self.model.holders_of(each))
                each = self.model.base_of(each)
        return frozenset(found) | self.above(found)


class Member:
    """A relation or property that a rule names, with the rule's types, their derived types and base types."""

    __slots__ = ("bases", "member", "owners")

    def __init__(self, member: int, owners: frozenset[int], bases: frozenset[int]) -> None:
        self.member: Final[int] = member
        self.owners: Final[frozenset[int]] = owners
        self.bases: Final[frozenset[int]] = bases


class Part:
    """Properties named by a rule, and those that hold a pre-authenticated URL of data named by it."""

    __slots__ = ("names", "owners")

    def __init__(self, owners: Things, names: tuple[str, ...]) -> None:
        self.owners: Final[Things] = owners
        self.names: Final[tuple[str, ...]] = names


class Things:
    """Table rows of one schema: the rows of the types, members and operations that a rule names."""

    __slots__ = (
        "_leading",
        "_may_hold",
        "bases",
        "elsewhere",
        "facts",
        "handing",
        "inheritance",
        "members",
        "model",
        "operations",
        "parts",
        "streams",
        "types",
    )

    def __init__(
        self,
        inheritance: Types,
        facts: Facts,
        types: frozenset[int],
        bases: frozenset[int],
        members: dict[int, Member],
        operations: frozenset[int],
        handing: frozenset[int],
        parts: tuple[Part, ...] = (),
        elsewhere: frozenset[int] = _NO_MEMBERS,
    ) -> None:
        model = inheritance.model
        self.model: Final[ResourceModel] = model
        self.inheritance: Final[Types] = inheritance
        self.facts: Final[Facts] = facts
        self.types: Final[frozenset[int]] = types  # the named types, and all types that derive from them
        self.bases: Final[frozenset[int]] = bases  # base types: their objects may have one of the types
        self.members: Final[dict[int, Member]] = members
        self.operations: Final[frozenset[int]] = operations
        self.handing: Final[frozenset[int]] = handing  # operations that give their caller a named thing
        self.parts: Final[tuple[Part, ...]] = parts
        self.elsewhere: Final[frozenset[int]] = elsewhere  # relations that never lead to one of the types
        streams: set[int] = set()
        for each in members.values():
            if model.member_flags(each.member) & STREAM:
                streams |= each.owners | each.bases
        self.streams: Final[frozenset[int]] = frozenset(streams)
        self._leading: frozenset[int] | None = None
        self._may_hold: dict[tuple[int, bool], bool] = {}

    def known_to_hold(self, type_: int, navigations: bool) -> bool | None:
        """Look up if objects of a schema type may contain an object or a property that the rule names.

        Return the cached result, or None if no result is cached.
        """
        return self._may_hold.get((type_, navigations))

    def remember(self, type_: int, navigations: bool, may_hold: bool) -> None:
        self._may_hold[type_, navigations] = may_hold

    @property
    def leading(self) -> frozenset[int]:
        """Schema types whose objects may contain an object or a property that the rule names."""
        leading = self._leading
        if leading is None:
            owners = [owner for each in self.members.values() for owner in each.owners]
            leading = self._leading = self.inheritance.leading_to(self.types, owners)
        return leading
