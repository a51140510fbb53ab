"""The admin API over HTTP: a route for each operation, and sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar, get_origin

import msgspec
from aiohttp import web

from controlplane.admin import sessions
from controlplane.admin.gate import GATE, actor_of, perform
from controlplane.admin.json_text import decoded, json_response
from controlplane.admin.openapi import ROOT, description
from controlplane.admin.sessions import SESSION_PATH
from controlplane.errors import Refused
from controlplane.operations.actor import Actor
from controlplane.operations.operation import (
    EVENTS,
    InvalidRequest,
    Operation,
    Request,
    Stream,
    Streamed,
    validation_problem,
)
from controlplane.operations.perform import refusal_code
from controlplane.operations.table import OPERATIONS, STREAMS
from controlplane.requests import no_continue_yet, of_any_name

_LOOKED_AGAIN_SECONDS: Final = 10.0  # seconds between checks of the caller's permissions during a response
_STALLED_SECONDS: Final = 30.0  # seconds within which a reader must accept the next piece
# A reverse proxy buffers a stream unless the response forbids it. nginx obeys X-Accel-Buffering.
# `no-transform` (RFC 9111 section 5.2.2.6) keeps others from compressing the stream in blocks.
STREAM_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}
R = TypeVar("R", bound=Request)
_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes() -> list[web.RouteDef]:
    # A fixed path segment takes precedence over a segment that is a member of a request.
    ordered = sorted(OPERATIONS, key=lambda each: each.path.replace("{", "~"))
    made = [_route(each.method, ROOT + each.path, _handler(each)) for each in ordered]
    streams = [_route("GET", ROOT + each.path, _stream_handler(each)) for each in STREAMS]
    return [
        *streams,
        *made,
        _route("POST", ROOT + SESSION_PATH, sessions.sign_in),
        _route("GET", ROOT + SESSION_PATH, sessions.show),
        _route("DELETE", ROOT + SESSION_PATH, sessions.sign_out),
        _route("GET", f"{ROOT}/openapi.json", _described),
    ]


def _route(method: str, path: str, handler: _Handler) -> web.RouteDef:
    path = of_any_name(path)
    if method == "GET":
        return web.get(path, handler, expect_handler=no_continue_yet, allow_head=False)
    return web.route(method, path, handler, expect_handler=no_continue_yet)


def _handler(operation: Operation[Any, Any]) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        await actor_of(request)
        asked = await _asked(request, operation)
        try:
            response = await perform(request, operation, asked)
        except Exception as error:
            raise _refused(error) from error
        return json_response(response)

    return handle


def _stream_handler(stream: Stream[Any]) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        actor = await actor_of(request)
        members = _query(request, stream.request)
        if EVENTS in stream.media_types and "Last-Event-ID" in request.headers:
            members["after"] = request.headers["Last-Event-ID"]
        asked = _converted(members, request, stream.request, strict=False)
        try:
            streamed = await stream.perform(request.app[GATE].context, actor, asked)
        except Exception as error:
            raise _refused(error) from error
        response = web.StreamResponse(
            headers={**STREAM_HEADERS, **streamed.headers, "Content-Type": streamed.media_type}
        )
        if streamed.file_name is not None:
            response.headers["Content-Disposition"] = f'attachment; filename="{streamed.file_name}"'
        async with aclosing(streamed.pieces):
            await response.prepare(request)
            await _send(request, response, streamed, actor)
        return response

    return handle


class _NoLonger(Exception):
    """Error because the caller lost the permission to read the rest of the response stream."""


async def _send(request: web.Request, response: web.StreamResponse, streamed: Streamed, actor: Actor) -> None:
    clock = asyncio.get_running_loop().time
    looked = clock()
    try:
        async for piece in streamed.pieces:
            if clock() - looked >= _LOOKED_AGAIN_SECONDS:
                if not await request.app[GATE].is_still(request, actor):
                    raise _NoLonger(
                        f"operator {actor.name} was signed out or disabled, or got different roles"
                    )
                looked = clock()
            async with asyncio.timeout(_STALLED_SECONDS):
                await response.write(piece)
    except ConnectionError:
        return  # the reader has closed the connection
    except Exception as error:
        # The response has begun, so only an aborted connection shows that it is incomplete.
        why = str(error) or type(error).__name__
        _log.warning("aborted the response to %s %s: %s", request.method, request.path, why)
        if request.transport is not None:
            request.transport.abort()


def _refused(error: Exception) -> Exception:
    code = refusal_code(error)
    if code is None:
        return error
    problems = error.problems if isinstance(error, InvalidRequest) else ()
    return Refused(code, str(error), problems=problems)


# Build a request from path, query and body


async def _asked(request: web.Request, operation: Operation[Any, Any]) -> Request:
    cls: type[Request] = operation.request
    if operation.method in ("GET", "DELETE"):
        # Text from path and query is converted to numbers and truth values. Members of a body have a type
        # already.
        return _converted(_query(request, cls), request, cls, strict=False)
    return _converted(await _body(request), request, cls, strict=True)


def _converted(members: Mapping[str, Any], request: web.Request, cls: type[R], *, strict: bool) -> R:
    path = request.match_info
    if twice := sorted(path.keys() & members.keys()):
        raise Refused(
            "invalidRequest",
            f"the path of the request already sets {twice[0]}: do not set it in the query or the body",
        )
    try:
        return msgspec.convert({**members, **path}, cls, strict=strict)
    except msgspec.ValidationError as error:
        raise Refused("invalidRequest", validation_problem(error, cls)) from None


def _query(request: web.Request, cls: type[Request]) -> dict[str, Any]:
    several = {
        each.encode_name for each in msgspec.structs.fields(cls) if get_origin(each.type) in (tuple, list)
    }
    members: dict[str, Any] = {}
    for name in dict.fromkeys(request.query):
        values = request.query.getall(name)
        if name not in several and len(values) > 1:
            raise Refused(
                "invalidRequest", f"the query has the parameter {name} {len(values)} times: send it once"
            )
        members[name] = values if name in several else values[0]
    return members


async def _body(request: web.Request) -> dict[str, Any]:
    if request.query_string:
        raise Refused(
            "invalidRequest", "the operation takes no query string: send its parameters in the JSON body"
        )
    text = await request.app[GATE].body(request)
    if text and request.content_type != "application/json":
        raise Refused("invalidRequest", "the Content-Type of the request body must be application/json")
    members: dict[str, Any] = decoded(text or b"{}", dict[str, Any])
    return members


async def _described(request: web.Request) -> web.StreamResponse:
    """Return the OpenAPI description of the admin API and the agent API.

    The OpenAPI description contains no secret, and clients without a token need the description too.
    """
    return json_response(description())
