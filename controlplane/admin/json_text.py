"""Read JSON bodies of the admin API, with errors that name the wrong member. Write JSON responses."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from controlplane.errors import Refused
from controlplane.operations.operation import validation_problem
from proxy.policy.json_text import readable


def decoded(text: bytes, cls: type[Any]) -> Any:
    try:
        return msgspec.json.decode(readable(text), type=cls)
    except msgspec.ValidationError as error:
        raise Refused("invalidRequest", validation_problem(error, cls)) from None
    except ValueError:
        raise Refused("invalidRequest", "the request body must be one JSON object in UTF-8") from None


def json_response(response: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(response), content_type="application/json")
