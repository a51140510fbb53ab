"""Upload sessions and downloads of the fake graph.

Each address of an upload or a download contains a credential.

In the real service, addresses that contain a credential have other host names than the graph API. Addresses
that contain a credential have the host `localhost`, and the fake graph's other addresses have `127.0.0.1`.
Like the real service, the fake graph refuses a request that sends a token to an address that contains a
credential.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Final

from tests.fakes.server import Received, Response

if TYPE_CHECKING:
    from tests.fakes.graph import FakeGraph

JSON: Final = ("Content-Type", "application/json")
DOWNLOAD: Final = bytes(range(256)) * 400
_RANGE: Final = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")


def is_pre_authenticated(request: Received) -> bool:
    return request.path.startswith(("/uploads/", "/downloads/"))


def create_session(graph: FakeGraph, _: Received, __: re.Match[str]) -> Response:
    name = str(uuid.uuid4())
    graph.uploads[name] = bytearray()
    return _json(
        200, {**_session("0-"), "uploadUrl": f"{_transfer_base(graph)}/uploads/{name}?tempauth=secret"}
    )


def upload(graph: FakeGraph, request: Received, match: re.Match[str]) -> Response:
    content = graph.uploads.get(match["name"])
    span = _RANGE.fullmatch(request.value("Content-Range"))
    if content is None or span is None:
        return _json(404, {"error": {"code": "itemNotFound", "message": "No such session."}})
    first, last, whole = map(int, span.groups())
    if len(content) == whole and content[first : last + 1] == request.body:
        return _item(match["name"], whole)  # msgraph-core sends the last piece twice
    if first != len(content) or last - first + 1 != request.body_length:
        return _json(416, {"error": {"code": "invalidRange", "message": f"Expected {len(content)}-."}})
    content += request.body
    if len(content) < whole:
        return _json(202, _session(f"{len(content)}-{whole - 1}"))
    return _item(match["name"], whole)


def content(graph: FakeGraph, _: Received, match: re.Match[str]) -> Response:
    return Response(
        302, (("Location", f"{_transfer_base(graph)}/downloads/{match['item']}?tempauth=secret"),)
    )


def download(_: FakeGraph, __: Received, ___: re.Match[str]) -> Response:
    return Response(200, (("Content-Type", "application/octet-stream"),), DOWNLOAD)


def _transfer_base(graph: FakeGraph) -> str:
    return graph.base_url.replace("127.0.0.1", "localhost")


def _session(expected: str) -> dict[str, object]:
    return {"expirationDateTime": "2099-01-01T00:00:00Z", "nextExpectedRanges": [expected]}


def _item(name: str, size: int) -> Response:
    return _json(201, {"id": name, "name": "report.bin", "size": size})


def _json(status: int, body: dict[str, object]) -> Response:
    return Response(status, (JSON,), json.dumps(body).encode())
