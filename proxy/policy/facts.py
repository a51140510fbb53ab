"""Facts of a request and of its response, against which rules are evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from proxy.policy import json_text
from proxy.policy.canonical import MAX_LIGATURES, MalformedTarget, Target
from proxy.policy.odata import fold, folding_cost, ligatures

# the dot of `@odata.type` does not lead into an object
_CONTROL_INFORMATION: Final = re.compile(r"(?<!@odata)\.")
# Elements and values of one document that all rules together may look at. Without this limit, many conditions
# on a body with many elements would delay all other requests. The limit is higher for a response, because a
# page of results has more values than an application needs to send.
_MAX_LOOKS: Final = 300_000
_MAX_LOOKS_AT_RESPONSE: Final = 1_000_000
_MAX_VALUES: Final = 100_000  # values of a request's body, counted before it is parsed: a fifth of a second
_MAX_TEXT: Final = 8_000_000  # sum of `folding_cost` for all conditions: a third of a second


class MalformedBody(MalformedTarget):
    """Error because a condition needs a property of the body, but the body is not JSON in UTF-8.

    The proxy refuses the request body with 400 badRequest.
    """


class BodyNeeded(Exception):
    """Error because the deciding rule needs a body that the proxy has not read yet."""


class Composite:
    """Placeholder that a condition compares instead of a JSON object or an empty array."""


COMPOSITE: Final = Composite()
Value = str | int | float | bool | None | Composite


class Looks:
    """Number of values that rules may still examine, in one document or in all sub-requests of a `$batch`."""

    __slots__ = ("text", "values")

    def __init__(self, values: int = _MAX_LOOKS) -> None:
        self.values = values
        self.text = _MAX_TEXT


class RequestFacts:
    """Facts of one request, such as its method and path, that a rule can test.

    `unread` is True if the request has a body that was not read yet.
    """

    __slots__ = (
        "_document",
        "_looks",
        "body",
        "client_ip",
        "headers",
        "implied_left",
        "method",
        "now",
        "target",
        "unread",
        "wanted_for_the_log",
    )

    def __init__(
        self,
        method: str,
        target: Target,
        headers: Sequence[tuple[bytes, bytes]],
        client_ip: str,
        now: float,
        body: bytes | None = None,
        looks: Looks | None = None,
        *,
        unread: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.client_ip = client_ip
        self.now = now
        self.body = body
        self.unread = unread
        # For an implied request: the number of evaluations that the original request may still cause.
        self.implied_left: list[int] | None = None
        self.wanted_for_the_log = False  # True if a rule that only logs needs a body that was not read
        self._looks = looks
        self._document: _Document | None = None

    def as_taken(self) -> RequestFacts:
        """Return the facts of the request, with the query options in the form that the upstream reads.

        The returned facts have no body, and are meant only for conditions on the query.
        """
        target = self.target.as_taken
        if target is self.target:
            return self
        return self.without_body(self.method, target)

    def without_body(self, method: str, target: Target) -> RequestFacts:
        """Return the facts of another request that the same client sends at the same time."""
        return RequestFacts(method, target, self.headers, self.client_ip, self.now, None, self._looks)

    def implied(self, method: str, target: Target, document: object = None) -> RequestFacts:
        """Return the facts of a request that another request implies, as if it had been sent separately.

        `document` is the parsed JSON body of the request that another request implies.
        """
        other = self.without_body(method, target)
        if document is not None:
            other.take_document(document)
        return other

    def take_document(self, document: object) -> None:
        """Use an object that was parsed from the body of another request as the body of this request."""
        self._document = _Document(None, self._looks or Looks())
        self._document.root = document

    @property
    def body_known(self) -> bool:
        """True unless the request may have a body whose content is unknown."""
        return True

    @property
    def has_document(self) -> bool:
        """True if the request's body was already parsed, or is an object inside another request's body."""
        return self._document is not None

    @property
    def document(self) -> object:
        """The parsed JSON body of the request; None without a body.

        Reading the property `document` may raise MalformedBody or BodyNeeded.
        """
        return self._read().root

    def values(self, path: tuple[str, ...], cost: int = 1) -> Sequence[Value]:
        """Return the values of the body at a property path; each value counts as `cost` examined values.

        Raise MalformedBody or BodyNeeded if the request's body cannot be read.
        """
        return self._read().values(path, cost)

    def look(self, count: int) -> None:
        """Count `count` values that a rule examines in the request body.

        Raise MalformedBody if all rules together examine too many values.
        """
        self._read().look(count)

    def _read(self) -> _Document:
        if self._document is None:
            if self.unread:
                raise BodyNeeded
            _refuse_many_values(self.body or b"")
            self._document = _Document(self.body, self._looks or Looks())
        return self._document


class ResponseFacts:
    """Facts of one response, such as its status and body, that a rule can test.

    `body` is the response's body after decompression, without any content coding. `body` is None or empty if
    the response has no body. `unread` is True if the response has a body that was not read yet.
    """

    __slots__ = ("_document", "body", "headers", "status", "unread", "wanted_for_the_log")

    def __init__(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes | None = None,
        *,
        unread: bool = False,
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.unread = unread
        self.wanted_for_the_log = False
        self._document: _Document | None = None

    def values(self, path: tuple[str, ...], cost: int = 1) -> Sequence[Value]:
        """Return the values at a property path in a response, or in one item of the response's array `value`.

        Raise MalformedBody or BodyNeeded if the response's body cannot be read.
        """
        if self._document is None:
            if self.unread:
                raise BodyNeeded
            self._document = _Document(self.body, Looks(_MAX_LOOKS_AT_RESPONSE))
        items = self._document.values(("value", *path), cost) if self._document.has_items else ()
        return (*self._document.values(path, cost), *items)


class ItemReader:
    """Reader of values in the items of one response, within one limit for all items."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = _Document(None, Looks(_MAX_LOOKS_AT_RESPONSE))

    def values(self, item: object, path: tuple[str, ...], cost: int) -> Sequence[Value]:
        """Return all values at the property path in `item`, which is a result of `parse_document`.

        Raise MalformedBody if rules examine too many values of the response.
        """
        return self._looks.values_in(item, path, cost)


def parse_document(body: bytes) -> object:
    """Parse JSON; an object becomes a dict from each case-folded name to all values under that name."""
    try:
        text = json_text.readable(body).decode("utf-8")
        return json.loads(text, object_pairs_hook=_all_members, parse_constant=_refuse_constant)
    except MalformedBody:
        raise
    except json_text.TooDeep as error:
        raise MalformedBody(f"a rule needs the body, but {error}") from None
    except ValueError:
        raise MalformedBody("a rule needs the body, which is not JSON in UTF-8") from None


def _refuse_many_values(body: bytes) -> None:
    try:
        many = json_text.has_more_values(body, _MAX_VALUES)
    except json_text.JsonTextError:
        raise MalformedBody("a rule needs the body, which is not JSON in UTF-8") from None
    if many:
        raise MalformedBody("the body has too many JSON values for a rule to examine")


def property_path(path: str) -> tuple[str, ...]:
    return tuple(fold(part) for part in _CONTROL_INFORMATION.split(path))


class _Document:
    """A JSON body, or None without a body, and the values that rules have looked up in the body."""

    __slots__ = ("_costs", "_known", "_looks", "root")

    def __init__(self, body: bytes | None, looks: Looks) -> None:
        self.root = parse_document(body) if body else None
        self._known: dict[tuple[str, ...], list[Value]] = {}
        self._costs: dict[tuple[str, ...], int] = {}
        self._looks = looks

    @property
    def has_items(self) -> bool:
        return isinstance(self.root, dict) and any(
            isinstance(each, list) for each in self.root.get("value", ())
        )

    def values(self, path: tuple[str, ...], cost: int) -> Sequence[Value]:
        """Return all values of the document at a property path.

        Dots in a property path lead into objects and arrays.
        """
        found = self._known.get(path)
        if found is None:
            found = []
            self._collect(self.root, path, 0, found)
            self._known[path] = found
            self._costs[path] = sum([folding_cost(each) for each in found if isinstance(each, str)])
        self.look(len(found) * cost)
        self._looks.text -= self._costs[path]
        if self._looks.text < 0:
            raise MalformedBody("rules would have to examine too much text of the body")
        return found

    def values_in(self, value: object, path: tuple[str, ...], cost: int) -> Sequence[Value]:
        """Return all values at a property path that starts at `value`, which is a part of a document."""
        found: list[Value] = []
        self._collect(value, path, 0, found)
        self.look(len(found) * cost)
        self._looks.text -= sum([folding_cost(each) for each in found if isinstance(each, str)])
        if self._looks.text < 0:
            raise MalformedBody("rules would have to examine too much text of the body")
        return found

    def look(self, count: int) -> None:
        self._looks.values -= count
        if self._looks.values < 0:
            raise MalformedBody("rules would have to examine too many values of the body")

    def _collect(self, value: object, path: tuple[str, ...], at: int, found: list[Value]) -> None:
        if isinstance(value, list):
            self.look(len(value))
            for item in value:
                self._collect(item, path, at, found)
            if not value and at == len(path):
                found.append(COMPOSITE)
        elif at == len(path):
            found.append(value if value is None or isinstance(value, str | int | float) else COMPOSITE)
        elif isinstance(value, dict):
            members = value.get(path[at], ())
            self.look(len(members))
            for member in members:
                self._collect(member, path, at + 1, found)


def _all_members(pairs: list[tuple[str, object]]) -> dict[str, list[object]]:
    members: dict[str, list[object]] = {}
    for name, value in pairs:
        if ligatures(name) > MAX_LIGATURES:
            raise MalformedBody(
                "a name in the body has too many characters that case folding expands to several characters"
            )
        members.setdefault(fold(name), []).append(value)
    return members


def _refuse_constant(name: str) -> object:
    raise ValueError(f"the constant {name} is not JSON")
