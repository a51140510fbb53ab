"""JSON bodies of the admin API: read with errors that name the member, and written."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from aiohttp import web

from controlplane.errors import Refused

_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def decoded(text: bytes, cls: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=cls)
    except msgspec.ValidationError as error:
        raise Refused("invalidRequest", told(str(error), cls)) from None
    except (ValueError, RecursionError):
        raise Refused("invalidRequest", "the body must be one JSON object in UTF-8") from None


def told(problem: str, cls: type[Any]) -> str:
    """What msgspec says is wrong with a request of the class, the member's own name first."""
    unknown = _UNKNOWN.fullmatch(problem)
    if unknown is not None:  # in the request itself: further in, msgspec says where
        known = ", ".join(each.encode_name for each in msgspec.structs.fields(cls))
        return f"{unknown[1]}: unknown member, {f'known are {known}' if known else 'none is known'}"
    said, _, place = problem.partition(" - at `")
    member = re.sub(r"^\$\.?", "", place.rstrip("`"))
    return f"{member}: {said}" if member else said


def json_response(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
