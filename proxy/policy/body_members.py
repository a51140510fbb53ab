"""The check `body_only` of a rule: it finds members of a request's body that the rule does not list.

- The check compares member names without regard to letter case, as in conditions. If an object has several
  members of the same name, the check examines each of them.
- The check ignores `@odata.type`, which states the type of an object and writes nothing. The check also
  ignores the annotation `NAME@odata.type` if the rule lists the member NAME. A rule must list every
  annotation that the check does not ignore, such as `members@odata.bind`, in the same way as a member.
- A rule that lists `passwordProfile.password` lists one member of the object `passwordProfile`. A text, a
  number or null as the value of `passwordProfile` writes the whole object, so the check finds the unlisted
  member `passwordProfile`. If `passwordProfile` is an array, the check examines each item of the array as if
  the item alone were the value of `passwordProfile`.
- An empty body, `null` and `{}` have no members. If the body is a text, a number or another bare value, the
  check finds one unlisted member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from proxy.policy.conditions import NO, YES, Check
from proxy.policy.facts import RequestFacts, ResponseFacts
from proxy.policy.odata import fold
from proxy.policy.ruleset import BodyOnly

_TYPES: Final = frozenset(("odata.type", "type"))  # the second form is that of OData 4.01
_NO_OBJECT: Final = "(the body is not an object)"


class Listed:
    """JSON fields that a rule lists for one object: each as a whole, or with a list of its own fields."""

    __slots__ = ("inner", "whole")

    def __init__(self) -> None:
        self.inner: dict[str, Listed] = {}
        self.whole = False


def listed_members(paths: Iterable[str]) -> Listed:
    """Build a tree of property paths, with a node for each JSON object on the paths."""
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
    """Split a property path at its dots, but not at dots in the name of an annotation."""
    name, at, annotation = path.partition("@")
    segments = name.split(".")
    segments[-1] += at + annotation
    return [fold(segment) for segment in segments]


def body_only_check(part: BodyOnly) -> Check:
    """Return a check that is true if the request body has only JSON fields that the rule lists.

    In a rule that blocks, the check is true if the request body has a JSON field that the rule does not list.
    """
    listed = listed_members(part.names)
    if part.wants_another:
        return lambda request, response: YES if _has_another(request, response, listed) else NO
    return lambda request, response: NO if _has_another(request, response, listed) else YES


def _has_another(request: RequestFacts, response: ResponseFacts | None, listed: Listed) -> bool:
    return next(other_members(request, listed), None) is not None


def other_members(request: RequestFacts, listed: Listed) -> Iterator[str]:
    """Yield the path, in lower case, of each JSON field in the request body that the rule does not list.

    Raise MalformedBody or BodyNeeded if the request's body cannot be read.
    """
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
    """Return True if `name` is a type annotation of the object itself, or of a field that the rule lists.

    An annotation `@odata.type` belongs to the object itself, and `NAME@odata.type` belongs to the object's
    field NAME.
    """
    base, at, annotation = name.partition("@")
    if at != "@" or annotation not in _TYPES or not all(isinstance(each, str) for each in occurrences):
        return False
    return not base or base in level.inner
