"""Microsoft's published request and response pairs in tests/fixtures/graph-examples.jsonl, in wire form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

PUBLISHED_BASE: Final = "https://graph.microsoft.com"
_FILE: Final = Path(__file__).parent.parent / "fixtures" / "graph-examples.jsonl"


@dataclass(frozen=True, slots=True)
class Example:
    """A published example request for Microsoft Graph, with its published response.

    `target` is percent-encoded if the published example has a target that is not valid in a request line.
    """

    id: str
    name: str
    method: str
    target: str
    request_headers: tuple[tuple[str, str], ...]
    request_body: bytes
    status: int
    response_headers: tuple[tuple[str, str], ...]
    response_body: bytes
    collection: bool


@cache
def examples() -> tuple[Example, ...]:
    with _FILE.open(encoding="utf-8") as lines:
        return tuple(_example(json.loads(line)) for line in lines)


def _example(published: dict[str, Any]) -> Example:
    return Example(
        id=published["id"],
        name=published["name"],
        method=published["method"],
        target=quote(published["target"], safe="/?#[]@!$&'()*+,;=:%~"),
        request_headers=_headers(published["request_headers"]),
        request_body=_body(published["request_body"]),
        status=published["status"],
        response_headers=_headers(published["response_headers"]),
        response_body=_body(published["response_body"]),
        collection=published["collection"],
    )


def _headers(published: list[list[str]]) -> tuple[tuple[str, str], ...]:
    """Return the headers without Content-Length.

    The `Content-Length` in the published examples is often wrong. The fake server computes the correct length
    from the body.
    """
    return tuple((name, value) for name, value in published if name.lower() != "content-length")


def _body(published: Any) -> bytes:
    if published is None:
        return b""
    text = published if isinstance(published, str) else json.dumps(published, ensure_ascii=False)
    return text.encode()
