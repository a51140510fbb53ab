"""JSON bodies of the admin API: read with errors that name the member, and written."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from aiohttp import web

from controlplane.errors import Refused


def decoded(text: bytes, cls: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=cls)
    except msgspec.ValidationError as error:
        raise Refused("invalidRequest", named(str(error))) from None
    except (ValueError, RecursionError):
        raise Refused("invalidRequest", "the body must be one JSON object in UTF-8") from None


def named(problem: str) -> str:
    """msgspec's words, with the member's own name first."""
    said, _, place = problem.partition(" - at `")
    member = re.sub(r"^\$\.?", "", place.rstrip("`"))
    return f"{member}: {said}" if member else said


def json_response(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
