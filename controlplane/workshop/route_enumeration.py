"""List the routes to a schema element: requests that read the element, return it or change it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controlplane.workshop.named_things import SAMPLE_ID, NamedThing, Thing, ThingKind, simple_name
from controlplane.workshop.schema_graph import KEY, Path, SchemaGraph
from controlplane.workshop.special_routes import (
    OTHER_VERSIONS,
    SUBSCRIBED,
)
from proxy.policy.reached import INDETERMINATE, reaches
from proxy.policy.resource_model import (
    ACTION,
    BOUND,
    BOUND_TO_COLLECTION,
    COLLECTION,
    EXPANDABLE,
    MEDIA,
    STREAM,
)
from proxy.policy.services.facts import NO_FACTS
from proxy.policy.services.known import facts_of
from proxy.policy.things import Resolver

READS: Final = frozenset(("GET", "HEAD"))
WRITES: Final = ("POST", "PATCH", "PUT", "DELETE")


class RouteKind(StrEnum):
    PATH = "path"
    OPERATION = "operation"
    EXPAND = "$expand"
    SELECT = "$select"
    DELTA = "delta"
    SUBSCRIPTION = "subscription"
    SEARCH = "search"
    BIND = "bind"
    DEEP_INSERT = "deep insert"
    WRITE = "write"
    HANDOVER = "hand over"
    LINK = "link"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a request that an application may send."""

    method: str
    target: str
    body: str | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.target}" + (f" {self.body}" if self.body is not None else "")


@dataclass(frozen=True, slots=True)
class Route:
    """A group of similar requests that reach one schema element.

    `template` is the form of the route that people read, such as `/users/{id}`. The `examples` are requests
    that use the route. If the schema element is only a part of the response, `place` is the property path to
    the schema element within the response. `link` names a property of the response. The value of the property
    named by `link` is a URL that returns the schema element.
    """

    kind: RouteKind
    template: str
    examples: tuple[Example, ...]
    place: str = ""
    link: str = ""


class RouteEnumeration:
    """Enumeration of the routes to the elements of one schema.

    With `through_references`, the enumeration also follows paths that continue after a relation to objects
    stored elsewhere.
    """

    def __init__(self, graph: SchemaGraph, *, through_references: bool = False) -> None:
        self._graph = graph
        self._model = graph.model
        self._facts = facts_of(graph.model)
        self._through_references = through_references
        resolver = Resolver(graph.model)
        self._targets: dict[int, list[int]] = {}
        for name, targets in self._facts.targets.items():
            types = [type_ for target in targets for type_ in resolver.types_of(target)]
            if types:
                self._targets.update((member, types) for _, member in resolver.members_of(name))

    def routes(self, named: NamedThing, methods: frozenset[str]) -> Iterator[Route]:
        """Yield the routes to a schema element, limited to routes that use one of the `methods`.

        If the set `methods` is empty, it stands for all HTTP methods.
        """
        if named.thing.kind is ThingKind.OPERATION:
            yield from self._calls(named.thing, named.prefix)
            return
        reads, writes = not methods or bool(methods & READS), not methods or bool(methods & frozenset(WRITES))
        for path in self._paths(named.thing):
            yield self._path_route(named.thing, path, named.prefix, methods)
            if reads:
                yield from self._brought_by_query(named.thing, path, named.prefix)
        if reads:
            yield from self._returned(named.thing, named.prefix)
            yield from self._special(named)
        if writes:
            yield from self._writes(named)

    # Paths and queries.

    def _paths(self, thing: Thing) -> Iterator[Path]:
        """Yield the paths to objects of a type, or to objects that have a property, relation or operation."""
        graph, wanted = self._graph, thing.type
        arrives = graph.may_be if thing.kind is ThingKind.TYPE else graph.is_a
        found = graph.paths(lambda type_: arrives(type_, wanted), through_references=self._through_references)
        return (path for path in found if not self._leads_elsewhere(path, wanted))

    def _leads_elsewhere(self, path: Path, wanted: int) -> bool:
        """Return True if the last relation of the path never leads to an object of the wanted type."""
        targets = None if path.last is None else self._targets.get(path.last.member)
        return targets is not None and not any(self._graph.may_be(each, wanted) for each in targets)

    def _path_route(
        self, thing: Thing, path: Path, prefix: tuple[str, ...], methods: frozenset[str]
    ) -> Route:
        if thing.kind is ThingKind.TYPE:
            segments, many = path.segments, path.many
        else:
            name = self._model.member_name(thing.member)
            segments = (*path.item(), name)
            many = bool(self._model.member_flags(thing.member) & COLLECTION)
        examples: list[Example] = []
        if not methods or methods & READS:
            examples.append(_example("GET", prefix, segments))
            if many and thing.kind is not ThingKind.PROPERTY:
                examples.append(_example("GET", prefix, (*segments, KEY)))
        if not methods or methods & frozenset(WRITES):
            examples += _written(thing, prefix, segments, many, methods)
        return Route(RouteKind.PATH, _template(segments), tuple(examples))

    def _brought_by_query(self, thing: Thing, path: Path, prefix: tuple[str, ...]) -> Iterator[Route]:
        model = self._model
        if thing.kind is ThingKind.TYPE:
            last = path.last
            if last is not None and last.expandable:
                yield _with_query(RouteKind.EXPAND, prefix, path.owner(), f"$expand={last.segments[-1]}")
            return
        name, flags = model.member_name(thing.member), model.member_flags(thing.member)
        if thing.kind is ThingKind.RELATION:
            if flags & EXPANDABLE:
                yield _with_query(RouteKind.EXPAND, prefix, path.item(), f"$expand={name}")
        elif flags & STREAM:
            if model.type_flags(path.type) & MEDIA:
                segments = (*path.item(), "$value")
                yield Route(RouteKind.PATH, _template(segments), (_example("GET", prefix, segments),))
            for address in self._facts.addresses:
                if address.thing == thing.word and address.owner == simple_name(model, thing.type):
                    item = path.item()
                    template = f"{_template(item)} with {address.property}"
                    example = _example("GET", prefix, item)
                    yield Route(RouteKind.LINK, template, (example,), link=address.property)
        else:
            yield _with_query(RouteKind.SELECT, prefix, path.item(), f"$select={name}")

    # Operations.

    def _calls(self, thing: Thing, prefix: tuple[str, ...]) -> Iterator[Route]:
        """Yield a call of an operation for each path to an object or collection that has the operation."""
        model, operation = self._model, thing.member
        name = model.operation_name(operation)
        if not model.operation_flags(operation) & BOUND:
            yield self._call(operation, (name,), prefix)
            return
        many = bool(model.operation_flags(operation) & BOUND_TO_COLLECTION)
        for path in self._paths(thing):
            if path.many or not many:
                yield self._call(operation, (*(path.segments if many else path.item()), name), prefix)

    def _call(self, operation: int, segments: tuple[str, ...], prefix: tuple[str, ...]) -> Route:
        action = bool(self._model.operation_flags(operation) & ACTION)
        method = "POST" if action else "GET"
        template = f"{method} {_template(segments)}" if action else _template(segments)
        body = "{}" if action else None
        return Route(RouteKind.OPERATION, template, (_example(method, prefix, segments, body),))

    def _returned(self, thing: Thing, prefix: tuple[str, ...]) -> Iterator[Route]:
        """Yield the calls of operations whose response contains the schema element or its address."""
        model, graph = self._model, self._graph
        for operation, segments in graph.operations():
            if thing.kind is ThingKind.TYPE and graph.may_be(model.operation_returns(operation), thing.type):
                yield self._call(operation, segments, prefix)
            elif self._is_delta_of(thing, operation):
                query = f"$select={model.member_name(thing.member)}"
                yield _with_query(RouteKind.DELTA, prefix, segments, query)
            elif self._hands_over(operation, thing):
                route = self._call(operation, segments, prefix)
                yield Route(RouteKind.HANDOVER, route.template, route.examples)

    def _hands_over(self, operation: int, thing: Thing) -> bool:
        binds, name = self._model.operation_binds(operation), self._model.operation_name(operation)
        owner = simple_name(self._model, binds) if binds >= 0 else ""
        return any(
            fact.operation == name and fact.owner in ("", owner) and thing.word in fact.things
            for fact in self._facts.handed_over
        )

    def _is_delta_of(self, thing: Thing, operation: int) -> bool:
        """Return True if the operation is a delta function of the type to which the relation belongs.

        The response of a delta function contains the objects of the relation, for example as `members@delta`.
        """
        model = self._model
        return (
            thing.kind is ThingKind.RELATION
            and model.operation_name(operation).lower() == "delta"
            and self._graph.is_a(model.operation_binds(operation), thing.type)
        )

    # Requests of Graph that name a thing in their body.

    def _special(self, named: NamedThing) -> Iterator[Route]:
        thing, prefix = named.thing, named.prefix
        if thing.word in SUBSCRIBED and self._exists("subscriptions"):
            resource = "/".join(named.address)
            body = {"changeType": "updated", "notificationUrl": "https://example.com/", "resource": resource}
            yield _posted(RouteKind.SUBSCRIPTION, prefix, ("subscriptions",), f"resource: {resource}", body)
        if self._exists("search", "query"):
            for folded, words in self._facts.search_types.items():
                if thing.word in words:
                    entity = next((word for word in words if word.lower() == folded), folded)
                    search = {"requests": [{"entityTypes": [entity], "query": {"queryString": "a"}}]}
                    note = f"entityTypes: [{entity}]"
                    yield _posted(RouteKind.SEARCH, prefix, ("search", "query"), note, search)
        if len(prefix) == 1 and prefix[0] in OTHER_VERSIONS and self._facts is not NO_FACTS:
            other = (OTHER_VERSIONS[prefix[0]],)
            template = f"/{other[0]}{_template(named.address)}"
            yield Route(RouteKind.VERSION, template, (_example("GET", other, named.address),))

    def _exists(self, *names: str) -> bool:
        return all(step.kind != INDETERMINATE for step in reaches(self._model, names))

    # Writes to the objects that have the relation.

    def _writes(self, named: NamedThing) -> Iterator[Route]:
        thing, prefix, model = named.thing, named.prefix, self._model
        if thing.kind is ThingKind.TYPE:
            yield from self._deep_inserts(thing, prefix)
        elif thing.kind is not ThingKind.OPERATION:
            name = model.member_name(thing.member)
            many = bool(model.member_flags(thing.member) & COLLECTION)
            for path in self._paths(thing):
                if path.last is not None and not path.last.contained:
                    continue  # these objects are written at their own addresses
                if thing.kind is ThingKind.RELATION:
                    reference = f"https://graph.microsoft.com/v1.0/directoryObjects/{SAMPLE_ID}"
                    bound = {f"{name}@odata.bind": [reference] if many else reference}
                    yield from _body_routes(RouteKind.BIND, prefix, path, f"{name}@odata.bind", bound)
                elif not model.member_flags(thing.member) & STREAM:
                    value: object = [{}] if many else {}
                    yield from _body_routes(RouteKind.WRITE, prefix, path, name, {name: value})

    def _deep_inserts(self, thing: Thing, prefix: tuple[str, ...]) -> Iterator[Route]:
        """Yield requests that create an object together with its contained element, in one request body."""
        graph = self._graph
        for path in graph.paths(lambda type_: graph.is_a(type_, thing.type)):
            if path.last is not None and path.last.contained and len(path.owner()) > 1:
                name = path.last.segments[-1]
                value: object = [{}] if path.many else {}
                owner = path.owner()
                if owner[-1] == KEY and len(path.last.segments) == 1:
                    yield _posted(RouteKind.DEEP_INSERT, prefix, owner[:-1], name, {name: value})


def _written(
    thing: Thing, prefix: tuple[str, ...], segments: tuple[str, ...], many: bool, methods: frozenset[str]
) -> Iterator[Example]:
    """Yield the write requests to a path, limited to the `methods` of a rule."""
    item = (*segments, KEY) if many and thing.kind is not ThingKind.PROPERTY else segments
    if thing.kind is ThingKind.RELATION:
        forms = {"POST": (*segments, "$ref"), "PUT": (*segments, "$ref"), "DELETE": (*item, "$ref")}
        if many:
            del forms["PUT"]
        else:
            del forms["POST"]
    else:
        forms = {"PATCH": item, "PUT": item, "DELETE": item}
        if many:
            forms["POST"] = segments
    for method in WRITES:
        if method in forms and (not methods or method in methods):
            yield _example(method, prefix, forms[method], None if method == "DELETE" else "{}")


def _body_routes(
    kind: RouteKind, prefix: tuple[str, ...], path: Path, note: str, body: object
) -> Iterator[Route]:
    """Yield the routes that write an object with a PATCH to the object, or a POST to its collection.

    Each of the PATCH and POST requests sends `body`.
    """
    text = json.dumps(body)
    item = path.item()
    yield Route(kind, f"PATCH {_template(item)} with {note}", (_example("PATCH", prefix, item, text),))
    if path.many:
        template = f"POST {_template(path.segments)} with {note}"
        yield Route(kind, template, (_example("POST", prefix, path.segments, text),))


def _posted(
    kind: RouteKind, prefix: tuple[str, ...], segments: tuple[str, ...], note: str, body: object
) -> Route:
    template = f"POST {_template(segments)} with {note}"
    return Route(kind, template, (_example("POST", prefix, segments, json.dumps(body)),))


def _with_query(kind: RouteKind, prefix: tuple[str, ...], segments: tuple[str, ...], query: str) -> Route:
    """Return a route (a group of example requests) to a path with the query options `query`.

    If the path ends with an object key, the route has a second example request: the same query on the
    object's collection.
    """
    asked = [segments, segments[:-1]] if segments[-1] == KEY else [segments]
    targets = [f"{_example('GET', prefix, each).target}?{query}" for each in asked]
    examples = tuple(Example("GET", each) for each in targets)
    place = query.partition("=")[2] if kind is RouteKind.EXPAND else ""
    return Route(kind, f"{_template(segments)}?{query}", examples, place)


def _template(segments: tuple[str, ...]) -> str:
    return "/" + "/".join(segments)


def _example(
    method: str, prefix: tuple[str, ...], segments: tuple[str, ...], body: str | None = None
) -> Example:
    words = (SAMPLE_ID if segment == KEY else segment for segment in (*prefix, *segments))
    return Example(method, "/" + "/".join(words), body)
