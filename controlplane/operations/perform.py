"""Calls of operations, which all go through this module.

The operator log records each operation that makes a change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from controlplane.names import InvalidName
from controlplane.operations.actor import Actor, Forbidden
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Operation, Request, Response
from controlplane.operations.slots import Slots
from controlplane.secrets import without_secrets
from controlplane.store.interface import AlreadyExists, Conflict, NewLogLine, NotFound, StoreError

_REFUSALS: Final[Mapping[type[Exception], str]] = {
    InvalidRequest: "invalidRequest",
    InvalidName: "invalidRequest",
    Forbidden: "forbidden",
    NotFound: "notFound",
    AlreadyExists: "alreadyExists",
    Conflict: "conflict",
}
# Each change writes to the store, even a refused one. Data from proxies waits for the same disk in a bounded
# queue.
MOST_CHANGES_OF_ONE: Final = 8
_changing: Final = Slots(MOST_CHANGES_OF_ONE)
_LONGEST_KEPT: Final = 500  # characters of one member; a longer one is logged as its digest
_MASK: Final = "***"

Q = TypeVar("Q", bound=Request)
A = TypeVar("A", bound=Response)
_log = logging.getLogger(__name__)


def refusal_code(error: Exception) -> str | None:
    """Return the code of a refusal if the caller may see the code, or None for any other error."""
    return next((code for cls, code in _REFUSALS.items() if isinstance(error, cls)), None)


async def perform(operation: Operation[Q, A], context: OperationContext, actor: Actor, request: Q) -> A:
    """Perform an operation and return its response.

    The operation's line in the operator log is on disk before the operation starts, so that no operation runs
    without a line. After the operation ends, its outcome is added to its line in the operator log.
    """
    if not operation.changes:
        return await operation.perform(context, actor, request)
    async with _changing.of(actor):
        return await _recorded(operation, replace(context, about=set(), results=[]), actor, request)


async def _recorded(operation: Operation[Q, A], context: OperationContext, actor: Actor, request: Q) -> A:
    line = NewLogLine(actor.name, actor.address, operation.name, masked(request))
    position = await context.store.begin_log_line(line)
    outcome = "failed"
    try:
        # The roles may have changed: a large body, a dry run or waiting for a slot can take long.
        response = await operation.perform(context, await context.refresh_roles(actor), request)
        outcome = "done"
    except Exception as error:
        outcome = refusal_code(error) or outcome
        raise
    finally:
        await _end(context, position, outcome)
    return response


async def _end(context: OperationContext, position: int, outcome: str) -> None:
    try:
        result = ", ".join(context.results) or None
        await context.store.end_log_line(position, outcome, sorted(context.about), result)
    except StoreError as error:
        # The operation is done. Its response may hold a secret that is shown once, so it must not be lost.
        _log.error("could not write the outcome of operator log line %d (%s): %s", position, outcome, error)


def masked(request: Request) -> str:
    """Return a request as JSON for the operator log, with masked secrets.

    In fields that are not masked, each secret that Graphward made is shortened to its prefix.
    """
    secrets = _secret_members(type(request))
    members: dict[str, Any] = msgspec.to_builtins(request)
    kept = {
        name: _MASK if name in secrets and value is not None else _shortened(value)
        for name, value in members.items()
    }
    return without_secrets(msgspec.json.encode(kept).decode())


@cache
def _secret_members(kind: type[Request]) -> frozenset[str]:
    """Return the JSON names of those fields of a request type whose values are secrets."""
    hints = get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    return frozenset(field.encode_name for field in fields if _is_secret(hints[field.name]))


def _is_secret(hint: Any) -> bool:
    metas = (each for each in getattr(hint, "__metadata__", ()) if isinstance(each, msgspec.Meta))
    return any((meta.extra or {}).get("secret") for meta in metas) or any(map(_is_secret, get_args(hint)))


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_KEPT:
        digest = sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{len(value)} characters, sha256 {digest}"
    if isinstance(value, list | tuple | dict):
        text = msgspec.json.encode(value)
        if len(text) > _LONGEST_KEPT:
            return f"{len(value)} values, sha256 {sha256(text).hexdigest()}"
    return value
