"""What a request and its answer are judged by."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from proxy.policy.canonical import MalformedTarget, Target
from proxy.policy.odata import fold

_UNREAD = object()
_CONTROL_INFORMATION = re.compile(r"(?<!@odata)\.")  # the dot of `@odata.type` walks into nothing
_BOM = "\ufeff"


class MalformedBody(MalformedTarget):
    """A condition asks for a property of a request body that is no JSON in UTF-8: 400 badRequest."""


class Composite:
    """Stands for an object or an empty array where a condition looks for one value."""


COMPOSITE = Composite()
Value = str | int | float | bool | None | Composite


class RequestFacts:
    __slots__ = ("_document", "body", "client_ip", "headers", "method", "now", "target")

    def __init__(
        self,
        method: str,
        target: Target,
        headers: Sequence[tuple[bytes, bytes]],
        client_ip: str,
        now: float,
        body: bytes | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.client_ip = client_ip
        self.now = now
        self.body = body
        self._document: object = _UNREAD

    @property
    def document(self) -> object:
        """The body as JSON; None without a body. Raises MalformedBody."""
        if self._document is _UNREAD:
            self._document = parse_document(self.body) if self.body else None
        return self._document


class AnswerFacts:
    """`body` is identity-coded; None or empty where the answer has none."""

    __slots__ = ("_document", "body", "headers", "status")

    def __init__(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | None = None
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self._document: object = _UNREAD

    @property
    def document(self) -> object:
        if self._document is _UNREAD:
            self._document = parse_document(self.body) if self.body else None
        return self._document


def parse_document(body: bytes) -> object:
    """JSON with every occurrence of a name kept: an object is a dict of lists under folded names."""
    try:
        text = body.decode("utf-8").removeprefix(_BOM)
        return json.loads(text, object_pairs_hook=_all_members, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise MalformedBody("a rule looks at the body, and it is no JSON in UTF-8") from None


def property_path(path: str) -> tuple[str, ...]:
    return tuple(fold(part) for part in _CONTROL_INFORMATION.split(path))


def values_at(document: object, path: tuple[str, ...]) -> list[Value]:
    """All values that a property path leads to; dots walk into objects and arrays."""
    found: list[Value] = []
    _collect(document, path, 0, found)
    return found


def _collect(value: object, path: tuple[str, ...], at: int, found: list[Value]) -> None:
    if isinstance(value, list):
        for item in value:
            _collect(item, path, at, found)
        if not value and at == len(path):
            found.append(COMPOSITE)
    elif at == len(path):
        found.append(value if value is None or isinstance(value, str | int | float) else COMPOSITE)
    elif isinstance(value, dict):
        for member in value.get(path[at], ()):
            _collect(member, path, at + 1, found)


def _all_members(pairs: list[tuple[str, object]]) -> dict[str, list[object]]:
    members: dict[str, list[object]] = {}
    for name, value in pairs:
        members.setdefault(fold(name), []).append(value)
    return members


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
