"""List requests that reach the data at a rule's path, derived from this path alone without a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from controlplane.workshop.named_things import SAMPLE_ID, VERSION, NamedThing, Thing, ThingKind
from controlplane.workshop.route_enumeration import READS, WRITES, Example, Route, RouteKind
from controlplane.workshop.special_routes import OTHER_VERSIONS
from proxy.policy.paths import Pattern

_VERSION: Final = re.compile(r"v[0-9.]+|beta")
_OPTIONS: Final = ("$count", "$ref", "$value")


def thing_by_path(path: str, pattern: Pattern) -> NamedThing | None:
    """Return a schema element that the path names, or None if the path has only wildcards."""
    segments = _spelled(path, pattern)
    while segments and segments[-1] in _OPTIONS:
        segments.pop()
    at = 1 if segments and (segments[0] is None or _VERSION.fullmatch(segments[0])) else 0
    if not any(segments[at:]):
        return None
    prefix = tuple(VERSION if segment is None else segment for segment in segments[:at])
    address = tuple(SAMPLE_ID if segment is None else segment for segment in segments[at:])
    return NamedThing(Thing(ThingKind.PATH, _shown(_joined(address)), -1), prefix, address, -1, False)


def routes_by_path(named: NamedThing, methods: frozenset[str]) -> Iterator[Route]:
    """Yield requests that reach the data at a rule's path, derived from this path alone without a schema.

    `methods` has the HTTP methods of the rule. If `methods` is empty, the rule applies to all HTTP methods.
    """
    prefix, address = named.prefix, named.address
    reads, writes = not methods or bool(methods & READS), not methods or bool(methods & frozenset(WRITES))
    method = "GET" if reads else min(methods)
    start = _joined(prefix)
    yield Route(RouteKind.PATH, named.thing.word, (Example(method, start + _joined(address)),))
    if len(prefix) == 1 and prefix[0] in OTHER_VERSIONS:
        other = _joined((OTHER_VERSIONS[prefix[0]], *address))
        yield Route(RouteKind.VERSION, _shown(other), (Example(method, other),))
        for twin in _twins(address):
            yield Route(RouteKind.PATH, _shown(_joined(twin)), (Example(method, start + _joined(twin)),))
        if reads:
            resource = "/".join(address)
            body = {"changeType": "updated", "notificationUrl": "https://example.com/", "resource": resource}
            yield _posted(RouteKind.SUBSCRIPTION, start, "/subscriptions", f"resource: {resource}", body)
    last = max(at for at, word in enumerate(address) if word != SAMPLE_ID)
    if not last:
        return
    owner, name = _joined(address[:last]), address[last]
    owners = [owner, owner.rpartition("/")[0]] if address[last - 1] == SAMPLE_ID else [owner]
    if reads:
        examples = tuple(Example("GET", f"{start}{each}?$expand={name}") for each in owners)
        yield Route(RouteKind.EXPAND, f"{_shown(owner)}?$expand={name}", examples, name)
    if writes and len(owners) > 1:
        yield _posted(RouteKind.DEEP_INSERT, start, owners[1], name, {name: [{}]})


def _twins(address: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the address with `/users/{id}` in place of `/me`, or with `/me` in place of `/users/{id}`."""
    if address[0] == "me":
        yield ("users", SAMPLE_ID, *address[1:])
    elif address[:2] == ("users", SAMPLE_ID):
        yield ("me", *address[2:])


def _posted(kind: RouteKind, start: str, target: str, note: str, body: object) -> Route:
    example = Example("POST", start + target, json.dumps(body))
    return Route(kind, f"POST {_shown(target)} with {note}", (example,))


def _spelled(path: str, pattern: Pattern) -> list[str | None]:
    """Return the pattern's segments with upper and lower case as in the rule."""
    words = path.strip("/").removesuffix("/**").split("/")
    if len(words) != len(pattern.segments):
        return list(pattern.segments)
    return [None if known is None else word for word, known in zip(words, pattern.segments, strict=True)]


def _joined(segments: tuple[str, ...]) -> str:
    return "".join(f"/{each}" for each in segments)


def _shown(target: str) -> str:
    return re.sub(rf"(?<=/){SAMPLE_ID}(?=/|$)", "{id}", target)
