"""HTTP sessions of operators: sign-in with a password, session facts, and sign-out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from controlplane.admin.gate import GATE, actor_of, csrf_token
from controlplane.admin.json_text import decoded, json_response
from controlplane.operations.actor import Actor, Role

SESSION_PATH: Final = "/session"


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    password: str


class SessionFacts(msgspec.Struct, rename="camel"):
    operator: str
    roles: Mapping[str, Role]  # roles by organisation id; "*" is every organisation
    csrf_token: str  # value of X-CSRF-Token in requests that make a change with the session's cookie


async def sign_in(request: web.Request) -> web.StreamResponse:
    asked: SignIn = decoded(await request.app[GATE].body(request), SignIn)
    response = web.Response(content_type="application/json")
    actor = await request.app[GATE].sign_in(request, response, asked.name, asked.password)
    response.body = msgspec.json.encode(await _facts(request, actor))
    return response


async def show(request: web.Request) -> web.StreamResponse:
    return json_response(await _facts(request, await actor_of(request)))


async def sign_out(request: web.Request) -> web.StreamResponse:
    response = web.Response(status=204)
    await request.app[GATE].sign_out(request, response)
    return response


async def _facts(request: web.Request, actor: Actor) -> SessionFacts:
    return SessionFacts(actor.name, actor.roles, await csrf_token(request))
