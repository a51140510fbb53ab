"""Operations of the control plane.

Each operation has a name, a place in the admin API, and a function that performs the operation.

The function of an operation takes a context, an actor and a typed request, and returns a typed response. The
function of an operation checks the actor's role itself, because only the function finds the organisation of a
request.

A stream is an operation whose response is too long or too slow to be one value. A stream's function first
checks the request, and then returns the response in pieces.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_type_hints

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext


class Request(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Typed request of an operation, from JSON or from path and query.

    If the operation's path names a request field, the value of the field comes from the URL path. A request
    field that is not in the URL path comes from the query of a GET request, or from the JSON body for other
    methods.
    """


class Response(msgspec.Struct, rename="camel"):
    """Typed response of an operation. The response of an operation is sent as JSON.

    The JSON of a response is the same on the command line and in the admin API.
    """


Secret = Annotated[str, msgspec.Meta(extra={"secret": True})]
"""Member of a request that the operator log never contains."""

Method = Literal["GET", "POST", "PUT", "DELETE"]

Q = TypeVar("Q", bound=Request)
A = TypeVar("A", bound=Response)
_Function = Callable[[OperationContext, Actor, Q], Awaitable[A]]


_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)

_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)

_NO_CHOICE: Final = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_EXPECTED: Final = re.compile(
    r"Expected `(?P<kinds>[\w |]+)`(?: (?P<sign>[<>]=?) (?P<bound>\d+)|, got `\w+`)?"
)
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def validation_problem(error: msgspec.ValidationError, cls: type[Any]) -> str:
    """Return the text of a validation error for a request of the class `cls`.

    The text begins with the name of the request field that is not valid.
    """
    unknown = _UNKNOWN.fullmatch(str(error))
    # an unknown member of the request itself; for nested ones, msgspec names the place
    if unknown is not None:
        known = ", ".join(each.encode_name for each in msgspec.structs.fields(cls))
        return f"{unknown[1]}: unknown member, {f'known are {known}' if known else 'none is known'}"
    said, _, place = str(error).partition(" - at `")
    member = re.sub(r"^\$\.?", "", place.rstrip("`"))
    if (missing := _MISSING.fullmatch(said)) is not None:
        return f"{f'{member}.' if member else ''}{missing[1]}: is missing"
    said = _in_plain_words(said, _choice(member, cls))
    return f"{member}: {said}" if member else said


def _choice(member: str, cls: type[Any]) -> tuple[str, ...]:
    """Return the values that a request field can have, if the type of the field lists the values."""
    if not (isinstance(cls, type) and issubclass(cls, msgspec.Struct)):  # a body may be read as a dict
        return ()
    kinds = [each.type for each in msgspec.structs.fields(cls) if each.encode_name == member]
    found = [msgspec.inspect.type_info(kind) for kind in kinds]
    found += [each for kind in found if isinstance(kind, msgspec.inspect.UnionType) for each in kind.types]
    literals = [each.values for each in found if isinstance(each, msgspec.inspect.LiteralType)]
    return tuple(str(value) for values in literals for value in values)


def _in_plain_words(said: str, choice: tuple[str, ...]) -> str:
    """Rephrase the JSON decoder's message about a wrong value as an instruction."""
    if (wrong := _NO_CHOICE.fullmatch(said)) is not None and choice:
        return f"{wrong[1]} is not allowed: use one of {', '.join(choice)}"
    if (expected := _EXPECTED.fullmatch(said)) is None:
        return said
    kinds = [_KINDS.get(kind, kind) for kind in expected["kinds"].split(" | ") if kind != "null"]
    bound = f", {_BOUNDS[expected['sign']]} {expected['bound']}" if expected["sign"] else ""
    return f"must be {' or '.join(kinds)}{bound}"


class InvalidRequest(ValueError):
    """Error because the request of an operation is not valid.

    `problems` has one line of text for each problem of the request.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _first_paragraph(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring, as one line."""
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split())


@dataclass(frozen=True, slots=True)
class Operation(Generic[Q, A]):
    name: str  # noun and verb, as on the command line: "org.add"
    method: Method
    path: str  # path below the admin API's root, with request members in braces: "/orgs/{org}"
    request: type[Q]
    response: type[A]
    perform: _Function[Q, A]
    changes: bool  # True: the operation leaves a line in the operator log

    @property
    def summary(self) -> str:
        return _first_paragraph(self.perform)


def operation(
    name: str,
    method: Method,
    path: str,
    *,
    changes: bool | None = None,
) -> Callable[[_Function[Q, A]], Operation[Q, A]]:
    """Return a decorator that turns a function into an operation; the function's annotations give the types.

    `changes` is True if the operation changes stored state. By default, operations with a method other than
    GET count as changes.
    """

    def made(function: _Function[Q, A]) -> Operation[Q, A]:
        hints = get_type_hints(function)
        recorded = method != "GET" if changes is None else changes
        return Operation(name, method, path, hints["request"], hints["return"], function, recorded)

    return made


EVENTS: Final = "text/event-stream"
"""A stream of this type continues from its request's member `after`, which browsers send as Last-Event-ID."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A response that the server sends in several pieces.

    The code that reads `pieces` must always close `pieces` at the end, also after an error.
    """

    media_type: str
    pieces: AsyncGenerator[bytes, None]
    file_name: str | None = None  # name under which a browser saves the response
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream(Generic[Q]):
    """An operation that changes nothing, and sends its response in several pieces."""

    name: str
    path: str
    request: type[Q]
    media_types: tuple[str, ...]  # media types; the response has one of them
    perform: Callable[[OperationContext, Actor, Q], Awaitable[Streamed]]

    @property
    def summary(self) -> str:
        return _first_paragraph(self.perform)


def stream(
    name: str, path: str, *media_types: str
) -> Callable[[Callable[[OperationContext, Actor, Q], Awaitable[Streamed]]], Stream[Q]]:
    """Return a decorator that makes a Stream (an operation with a long response) from a function.

    The annotation of the function's parameter `request` is the request type.
    """

    def made(function: Callable[[OperationContext, Actor, Q], Awaitable[Streamed]]) -> Stream[Q]:
        return Stream(name, path, get_type_hints(function)["request"], media_types, function)

    return made
