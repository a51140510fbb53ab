"""Data types for facts about an upstream service, such as Microsoft Graph, that its schema does not state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NONE: Final[tuple[str, ...]] = ()


class Pack:
    """A predefined list of related resources and operations, by the names that rules use."""

    __slots__ = ("operation", "resource")

    def __init__(self, resource: tuple[str, ...], operation: tuple[str, ...] = _NONE) -> None:
        self.resource: Final[tuple[str, ...]] = resource
        self.operation: Final[tuple[str, ...]] = operation


class Address:
    """A property that contains a pre-authenticated address (URL), for example of a file's content.

    If the URL is a property of a nested object, `within` is the name of the property that contains the nested
    object. `relation` is the name of the last relation in a path that leads to objects with the
    pre-authenticated address.
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
    """An operation that returns objects or a URL to them, although the schema does not state this result.

    `owner` is the type to which the operation binds. If `owner` is empty, the fact applies to all operations
    with the name.
    """

    __slots__ = ("operation", "owner", "things")

    def __init__(self, operation: str, owner: str, things: tuple[str, ...]) -> None:
        self.operation: Final[str] = operation
        self.owner: Final[str] = owner
        self.things: Final[tuple[str, ...]] = things


class Facts:
    """Facts about one upstream service. The proxy recognises the service by a namespace in its schema."""

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
        # Types to which a relation actually leads, if its declared type is a base of many others.
        self.targets: Final[dict[str, tuple[str, ...]]] = dict(targets or {})
        self.on_request: Final[tuple[str, ...]] = (
            on_request  # properties that a response contains only if `$select` names them
        )


NO_FACTS: Final = Facts("", {}, (), (), {})
