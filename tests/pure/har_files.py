"""HAR files in the forms that browsers and mitmproxy write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

BASE = "https://graph.microsoft.com"
SECRETS = ("eyJ0eXAi-token", "session=geheim")


def entry(
    target: str,
    method: str = "GET",
    *,
    body: Any = None,
    response: Any = None,
    status: int = 200,
    base: str = BASE,
    **members: Any,
) -> dict[str, Any]:
    """Return a HAR entry with the fields that every HAR file has, and with secret credentials."""
    request: dict[str, Any] = {
        "method": method,
        "url": base + target,
        "httpVersion": "HTTP/2",
        "headers": [
            {"name": ":authority", "value": "graph.microsoft.com"},
            {"name": "Authorization", "value": f"Bearer {SECRETS[0]}"},
            {"name": "Cookie", "value": SECRETS[1]},
            {"name": "ConsistencyLevel", "value": "eventual"},
        ],
        "queryString": [],
        "cookies": [],
        "headersSize": -1,
        "bodySize": 0 if body is None else len(json.dumps(body)),
    }
    if body is not None:
        request["postData"] = {"mimeType": "application/json", "text": json.dumps(body), "params": []}
    content: dict[str, Any] = {"size": 0, "mimeType": "application/json"}
    if response is not None:
        text = response if isinstance(response, str) else json.dumps(response)
        content |= {"size": len(text), "text": text}
    return {
        "startedDateTime": "2026-11-21T11:00:00.123Z",
        "time": 12,
        "request": request,
        "response": {
            "status": status,
            "statusText": "",
            "headers": [{"name": "Set-Cookie", "value": SECRETS[1]}, {"name": "X", "value": "y"}],
            "cookies": [],
            "content": content,
            "redirectURL": "",
            "headersSize": -1,
            "bodySize": -1,
        },
        "cache": {},
        "timings": {"send": 1, "wait": 1, "receive": 1},
        "_initiator": {"type": "script"},
        **members,
    }


def har(*entries: dict[str, Any] | Sequence[dict[str, Any]]) -> bytes:
    listed = [one for each in entries for one in ([each] if isinstance(each, dict) else each)]
    return json.dumps(
        {"log": {"version": "1.2", "creator": {"name": "x", "version": "1"}, "pages": [], "entries": listed}}
    ).encode()
