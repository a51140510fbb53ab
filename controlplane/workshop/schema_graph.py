"""Find paths in a schema that lead along navigations from the schema's roots to given types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from proxy.policy.resource_model import (
    BOUND,
    BOUND_TO_COLLECTION,
    COLLECTION,
    CONTAINED,
    ENTITY,
    EXPANDABLE,
    NAVIGATION,
    ResourceModel,
)

MAX_NAVIGATIONS: Final = 4  # navigations in one path
KEY: Final = "{id}"  # segment that stands for any key
_MAX_COMPLEX: Final = 2  # nested complex properties on the way to a navigation


@dataclass(frozen=True, slots=True)
class Edge:
    """A navigation from one type of a schema to another.

    If complex properties lead to the navigation, `segments` begins with their names.
    """

    segments: tuple[str, ...]
    owner: int
    member: int
    target: int
    many: bool
    contained: bool
    expandable: bool


@dataclass(frozen=True, slots=True)
class Path:
    """Path to the objects of a schema type, without the API version.

    `last` is the last navigation property (a relation to objects of a schema type) in the path. `last` is
    None for a path without navigation properties.
    """

    segments: tuple[str, ...]
    type: int
    many: bool
    last: Edge | None = None
    navigations: int = 0

    def item(self) -> tuple[str, ...]:
        """Return the path segments of one object. If the path leads to a collection, append an object ID."""
        return (*self.segments, KEY) if self.many else self.segments

    def owner(self) -> tuple[str, ...]:
        """Return the path segments of the object that has the last navigation property of this path."""
        return self.segments[: -len(self.last.segments)] if self.last is not None else ()


class SchemaGraph:
    """The types of a schema, with the navigations of each type, including inherited navigations."""

    def __init__(self, model: ResourceModel) -> None:
        self.model: Final = model
        self.roots: Final = tuple(
            Path((model.root_name(row),), model.root_type(row), bool(model.root_flags(row) & COLLECTION))
            for row in range(model.roots)
        )
        self._edges: dict[int, tuple[Edge, ...]] = {}
        self._shortest: dict[tuple[int, bool], Path] | None = None

    def edges(self, type_: int) -> tuple[Edge, ...]:
        found = self._edges.get(type_)
        if found is None:
            found = self._edges[type_] = tuple(self._edges_of(type_, (), _MAX_COMPLEX))
        return found

    def _edges_of(self, type_: int, before: tuple[str, ...], depth: int) -> Iterator[Edge]:
        model = self.model
        for owner in self.bases(type_):
            for member in range(*model.members_of(owner)):
                flags, target = model.member_flags(member), model.member_type(member)
                many, name = bool(flags & COLLECTION), model.member_name(member)
                if flags & NAVIGATION:
                    contained, expandable = bool(flags & CONTAINED), bool(flags & EXPANDABLE) and not before
                    yield Edge((*before, name), owner, member, target, many, contained, expandable)
                elif target >= 0 and not many and depth:
                    yield from self._edges_of(target, (*before, name), depth - 1)

    def bases(self, type_: int) -> Iterator[int]:
        """Yield the row of a type and the rows of all its base types."""
        while type_ >= 0:
            yield type_
            type_ = self.model.base_of(type_)

    def is_a(self, type_: int, base: int) -> bool:
        return type_ >= 0 and self.model.distance(type_, base) >= 0

    def may_be(self, type_: int, wanted: int) -> bool:
        """Return True if an object with the declared type `type_` can have the type `wanted`."""
        return type_ >= 0 and (self.is_a(type_, wanted) or self.is_a(wanted, type_))

    def paths(self, arrives: Callable[[int], bool], *, through_references: bool = False) -> Iterator[Path]:
        """Yield paths to the schema types for which `arrives` returns True, the shortest path first.

        All navigation properties in a path except the last one must contain their target objects (OData
        `ContainsTarget`), unless `through_references` is True.
        """
        distance = self._distances(arrives, through_references)
        level = [path for path in self.roots if path.type in distance]
        while level:
            yield from (path for path in level if arrives(path.type))
            level = list(self._longer(level, distance, arrives, through_references))

    def _distances(self, arrives: Callable[[int], bool], through_references: bool) -> dict[int, int]:
        """Return, for each type, the lowest number of navigations to a type that `arrives` accepts."""
        types = self._reachable()
        distance = {type_: 0 for type_ in types if arrives(type_)}
        for steps in range(1, MAX_NAVIGATIONS + 1):
            nearer = set(distance)
            for type_ in types - nearer:
                for edge in self.edges(type_):
                    if edge.target in nearer and (
                        edge.contained or through_references or not distance[edge.target]
                    ):
                        distance[type_] = steps
                        break
        return distance

    def _reachable(self) -> set[int]:
        types = {path.type for path in self.roots}
        level = types
        for _ in range(MAX_NAVIGATIONS):
            level = {edge.target for type_ in level for edge in self.edges(type_)} - types
            types = types | level
        return types

    def _longer(
        self,
        level: list[Path],
        distance: dict[int, int],
        arrives: Callable[[int], bool],
        through_references: bool,
    ) -> Iterator[Path]:
        for path in level:
            if path.last is not None and not (path.last.contained or through_references):
                continue  # a path ends with a reference
            left = MAX_NAVIGATIONS - path.navigations - 1
            for edge in self.edges(path.type):
                steps = distance.get(edge.target, MAX_NAVIGATIONS)
                leads = edge.contained or through_references or arrives(edge.target)
                if steps <= left and leads:
                    segments = (*path.item(), *edge.segments)
                    yield Path(segments, edge.target, edge.many, edge, path.navigations + 1)

    def shortest(self, type_: int, *, many: bool = False) -> Path | None:
        """Return one of the shortest paths to the type, or to a type that is derived from this type."""
        if self._shortest is None:
            self._shortest = self._shortest_paths()
        collection = self._shortest.get((type_, True))
        single = None if many else self._shortest.get((type_, False))
        if collection is None or single is None:
            return collection or single
        return min(collection, single, key=lambda path: path.navigations)

    def _shortest_paths(self) -> dict[tuple[int, bool], Path]:
        found: dict[tuple[int, bool], Path] = {}
        level = list(self.roots)
        for _ in range(MAX_NAVIGATIONS + 1):
            fresh: dict[tuple[int, bool], Path] = {}
            for path in level:
                for base in self.bases(path.type):
                    known = found.get((base, path.many))
                    if known is None or (path.type == base and known.type != base):
                        found[base, path.many] = (
                            path  # prefer a path to the type itself over one to a derived type
                        )
                        fresh.setdefault((path.type, path.many), path)
            level = [
                Path((*path.item(), *edge.segments), edge.target, edge.many, edge, path.navigations + 1)
                for path in fresh.values()
                for edge in self.edges(path.type)
            ]
        return found

    def operations(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield each schema operation that a path can call: its row, and the segments of a call path."""
        model = self.model
        for row in range(model.operations):
            flags, name = model.operation_flags(row), model.operation_name(row)
            if not flags & BOUND:
                yield row, (name,)
                continue
            binds, many = model.operation_binds(row), bool(flags & BOUND_TO_COLLECTION)
            path = self.shortest(binds, many=many) if binds >= 0 else None
            if path is not None:
                yield row, (*(path.segments if many else path.item()), name)

    def has_derived(self, type_: int) -> bool:
        """Return True if an object with this declared type can be of several types."""
        model = self.model
        return any(
            model.base_of(other) == type_ and model.type_flags(other) & ENTITY for other in range(model.types)
        )
