"""Find the further requests that recorded requests imply, each with its most likely address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proxy.policy.canonical import ANY_KEY, MalformedTarget, Target
from proxy.policy.facts import RequestFacts
from proxy.policy.implied import (
    WRITES,
    Below,
    Implied,
    Scope,
    Way,
    implied_by_members,
    implied_by_query,
    implied_by_subscription,
    subscribes,
)
from proxy.policy.odata import fold
from proxy.policy.path_shapes import COLLECTIONS, is_plural, shapes_of

_NO_RULES: Final = Below()
_MOST: Final = 100  # requests implied by one request


def implied_by_traffic(method: str, target: Target, body: bytes | None) -> Iterator[tuple[str, Target]]:
    """Yield method and target of every further request that the given request implies."""
    left = _MOST
    waiting = [(method, target, body)]
    while waiting and left:
        for implied in _implied(*waiting.pop()):
            for way in _likely(implied):
                left -= 1
                if not left:
                    return
                yield way.method, way.target
                waiting.append((way.method, way.target, None))


def _implied(method: str, target: Target, body: bytes | None) -> list[Implied]:
    facts = RequestFacts(method, target, (), "", 0.0, body)
    try:
        found = list(implied_by_query(target, _NO_RULES))
        if method in WRITES and body:
            names = [name for reading in target.readings for name in reading.names]
            if any(map(subscribes, names)):
                found += implied_by_subscription(facts)
            else:
                found += implied_by_members(facts, _NO_RULES)
    except MalformedTarget:
        return []
    return [each for each in found if each.scope is Scope.ALL]


def _likely(implied: Implied) -> list[Way]:
    """Return the likely method and address of a request that the query or body of another request contains.

    If the base path ends with a collection, the path gets an object ID after the base path.
    """
    first = implied.ways[0]
    if first.base is None:
        return [first]
    below_key = is_collection(first.base)
    return [
        way
        for way in implied.ways
        if way.method == first.method
        and way.suffix is not None
        and (way.suffix.names[0][0] == ANY_KEY) is below_key
    ][:1]


def is_collection(target: Target) -> bool:
    """Return True if the path of the target seems to end with a collection."""
    if target.may_end_in("delta"):
        return True
    shapes = shapes_of("GET", target)
    last = shapes[0].shape[-1] if shapes and shapes[0].shape else None
    return last is not None and (fold(last) in COLLECTIONS or is_plural(fold(last)))
