"""The members of a request's body that a rule does not list: `body_only`.

- Names compare without regard to letter case, as conditions compare them. Each occurrence of a name counts.
- `@odata.type` says the type of an object and writes nothing, so it counts for nothing. The same holds for
  `NAME@odata.type` of a listed NAME. Every other annotation is a member like others: `members@odata.bind` has
  to be listed by that name.
- `passwordProfile.password` lists one member of an object. A text, a number or null in the place of the
  object writes all of it, and counts as another member. In an array, each item is such an object.
- An empty body, `null` and `{}` have no member. A bare value or text in the place of the document counts as
  one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from proxy.policy.conditions import NO, YES, Check
from proxy.policy.facts import RequestFacts, ResponseFacts
from proxy.policy.odata import fold
from proxy.policy.ruleset import BodyOnly

_TYPES: Final = frozenset(("odata.type", "type"))  # the second as OData 4.01 spells it
_NO_OBJECT: Final = "(the body is no object)"


class Listed:
    """The members that a rule lists of one object: each is listed whole, or has a list of its own."""

    __slots__ = ("inner", "whole")

    def __init__(self) -> None:
        self.inner: dict[str, Listed] = {}
        self.whole = False


def listed_members(paths: Iterable[str]) -> Listed:
    """Arrange property paths by the objects that they lead through."""
    root = Listed()
    for path in paths:
        level = root
        for segment in _segments(path):
            inner = level.inner.get(segment)
            if inner is None:
                inner = level.inner[segment] = Listed()
            level = inner
        level.whole = True
    return root


def _segments(path: str) -> list[str]:
    """The dots of an annotation's name lead nowhere."""
    name, at, annotation = path.partition("@")
    segments = name.split(".")
    segments[-1] += at + annotation
    return [fold(segment) for segment in segments]


def body_only_check(part: BodyOnly) -> Check:
    """Holds if the body has no member but the listed ones; for a block, if it has another one."""
    listed = listed_members(part.names)
    if part.wants_another:
        return lambda request, response: YES if _has_another(request, response, listed) else NO
    return lambda request, response: NO if _has_another(request, response, listed) else YES


def _has_another(request: RequestFacts, response: ResponseFacts | None, listed: Listed) -> bool:
    return next(other_members(request, listed), None) is not None


def other_members(request: RequestFacts, listed: Listed) -> Iterator[str]:
    """The paths of the members that are not listed, in small letters. Raises MalformedBody and BodyNeeded."""
    waiting: list[tuple[object, Listed, str]] = [(request.document, listed, "")]
    while waiting:
        value, level, place = waiting.pop()
        if isinstance(value, list):
            request.look(len(value))
            waiting.extend([(item, level, place) for item in value])
        elif isinstance(value, dict):
            for name, occurrences in value.items():
                request.look(len(occurrences))
                inner = level.inner.get(name)
                path = f"{place}.{name}" if place else str(name)
                if inner is None:
                    if not _is_type(str(name), occurrences, level):
                        yield path
                elif not inner.whole:
                    waiting.extend([(each, inner, path) for each in occurrences])
        elif place:
            yield place
        elif value is not None:
            yield _NO_OBJECT


def _is_type(name: str, occurrences: list[object], level: Listed) -> bool:
    """Return True if the member says the type of its object or of a listed member."""
    base, at, annotation = name.partition("@")
    if at != "@" or annotation not in _TYPES or not all(isinstance(each, str) for each in occurrences):
        return False
    return not base or base in level.inner
