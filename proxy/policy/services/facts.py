"""The form in which facts of a service are written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NONE: Final[tuple[str, ...]] = ()


class Pack:
    """A list of things that belong together, by the names that rules use."""

    __slots__ = ("operation", "resource")

    def __init__(self, resource: tuple[str, ...], operation: tuple[str, ...] = _NONE) -> None:
        self.resource: Final[tuple[str, ...]] = resource
        self.operation: Final[tuple[str, ...]] = operation


class Address:
    """A property that holds a pre-authenticated address of a thing.

    `within` is the property under which objects hold the owner, if it is a part of other objects. `relation`
    is the last relation that a path to them has.
    """

    __slots__ = ("owner", "property", "relation", "thing", "within")

    def __init__(
        self, thing: str, owner: str, property_: str, *, within: str = "", relation: str = ""
    ) -> None:
        self.thing: Final[str] = thing
        self.owner: Final[str] = owner
        self.property: Final[str] = property_
        self.within: Final[str] = within
        self.relation: Final[str] = relation


class HandedOver:
    """An operation whose caller gets a thing or an address of it, though the schema does not say so.

    `owner` is the type that the operation binds to, or empty for all of that name.
    """

    __slots__ = ("operation", "owner", "things")

    def __init__(self, operation: str, owner: str, things: tuple[str, ...]) -> None:
        self.operation: Final[str] = operation
        self.owner: Final[str] = owner
        self.things: Final[tuple[str, ...]] = things


class Facts:
    """Facts of one service, which is known by a namespace of its schema."""

    __slots__ = ("addresses", "handed_over", "namespace", "on_request", "packs", "search_types", "targets")

    def __init__(
        self,
        namespace: str,
        packs: Mapping[str, Pack],
        handed_over: tuple[HandedOver, ...],
        addresses: tuple[Address, ...],
        search_types: Mapping[str, tuple[str, ...]],
        on_request: tuple[str, ...] = _NONE,
        targets: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.namespace: Final[str] = namespace
        self.packs: Final[dict[str, Pack]] = dict(packs)
        self.handed_over: Final[tuple[HandedOver, ...]] = handed_over
        self.addresses: Final[tuple[Address, ...]] = addresses
        self.search_types: Final[dict[str, tuple[str, ...]]] = dict(search_types)
        # Types to which a relation leads, if its declared type is a base of many others.
        self.targets: Final[dict[str, tuple[str, ...]]] = dict(targets or {})
        self.on_request: Final[tuple[str, ...]] = (
            on_request  # properties that come only if `$select` has them
        )


NO_FACTS: Final = Facts("", {}, (), (), {})
