"""Fake of the graph API: published examples, a small directory, and a route for each form of response.

In a test: Example: `async with FakeGraph(tls=certificate, accepts=identity.accepts) as graph: ...
graph.requests`. As a process: `python -m tests.fakes.graph --cert FILE --key FILE --token TEXT` prints `ready
ADDRESS`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import gzip
import hashlib
import json
import re
import signal
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import brotli
import uvloop

from tests.fakes import transfers
from tests.fakes.certificates import ServerCertificate
from tests.fakes.examples import PUBLISHED_BASE, examples
from tests.fakes.server import Fake, Received, Response

PAGE_SIZE: Final = 5
PHOTO: Final = bytes(range(256)) * 16
SCHEMA_FILE: Final = Path(__file__).parent / "graph.csdl"
SCHEMA: Final = SCHEMA_FILE.read_bytes()
_SCHEMA_PATH: Final = re.compile(r"/(?:v1\.0|beta)/\$metadata", re.IGNORECASE)
JSON: Final = (
    "Content-Type",
    "application/json;odata.metadata=minimal;odata.streaming=true;IEEE754Compatible=false;charset=utf-8",
)
_PEOPLE: Final = (
    "Ada Lovelace", "Alan Turing", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Tony Hoare",
    "Frances Allen", "Donald Knuth", "Radia Perlman", "Leslie Lamport", "Lynn Conway", "Ken Thompson",
)  # fmt: skip

Handler = Callable[["FakeGraph", Received, "re.Match[str]"], Response | Awaitable[Response]]


class FakeGraph(Fake):
    """A fake of Microsoft Graph.

    If `realistic` is True, the fake's responses are chunked, compressed and have more header fields.
    """

    def __init__(
        self,
        *,
        tls: ServerCertificate | None = None,
        port: int = 0,
        accepts: Callable[[str], bool] | None = None,
        realistic: bool = True,
        record: bool = True,
        record_file: Path | None = None,
    ) -> None:
        super().__init__(tls=tls, port=port, record=record, record_file=record_file)
        self.realistic = realistic
        self.first_responses: dict[str, deque[Response]] = {}  # path -> responses that precede the usual one
        self.uploads: dict[str, bytearray] = {}
        self._accepts = accepts
        self._examples: dict[tuple[str, str], Response] = {}

    async def response(self, request: Received) -> Response:
        response = self._refusal(request) or await self.content(request)
        if request.value("If-None-Match") and ("ETag", request.value("If-None-Match")) in response.headers:
            response = Response(304, tuple(pair for pair in response.headers if pair[0] == "ETag"))
        return self._dressed(request, response)

    async def content(self, request: Received) -> Response:
        """Return the response to a request or a `$batch` sub-request, without a transfer encoding."""
        first = self.first_responses.get(request.path)
        if first:
            return first.popleft()
        example = self._example(request, request.target)
        if example is not None:
            return example
        for methods, pattern, handler in _ROUTES:
            match = pattern.fullmatch(unquote(request.path))
            if match and (not methods or request.method in methods):
                response = handler(self, request, match)
                return response if isinstance(response, Response) else await response
        # Only one page was published, so the response to any query is that page.
        example = self._example(request, request.path)
        if example is not None:
            return example
        return problem(404, "Request_ResourceNotFound", f"Resource '{request.path}' does not exist.")

    def _refusal(self, request: Received) -> Response | None:
        if request.method == "GET" and _SCHEMA_PATH.fullmatch(unquote(request.path)):
            return None  # the real service returns its schema to a caller without a token
        if transfers.is_pre_authenticated(request):
            sent = request.values("Authorization")
            return problem(401, "InvalidAudience", "This address is its own credential.") if sent else None
        scheme, _, token = request.value("Authorization").partition(" ")
        if self._accepts is None or (scheme == "Bearer" and self._accepts(token)):
            return None
        refusal = problem(401, "InvalidAuthenticationToken", "Access token is empty or not valid.")
        challenge = (
            "WWW-Authenticate",
            'Bearer realm="", authorization_uri="https://login.example/authorize"',
        )
        return replace(refusal, headers=(*refusal.headers, challenge))

    def _example(self, request: Received, target: str) -> Response | None:
        if not self._examples:
            # The first published one of two examples with one target is used.
            for each in reversed(examples()):
                body = each.response_body.replace(PUBLISHED_BASE.encode(), self.base_url.encode())
                response = Response(each.status, each.response_headers, body)
                self._examples[each.method, unquote(each.target)] = response
        method = "GET" if request.method == "HEAD" else request.method
        return self._examples.get((method, unquote(target)))

    def _dressed(self, request: Received, response: Response) -> Response:
        """Return the response with the header fields and content codings that the real service adds."""
        request_id = str(uuid.uuid4())
        headers = [("Cache-Control", "no-cache"), *response.headers, ("request-id", request_id)]
        headers.append(("client-request-id", request.value("client-request-id") or request_id))
        headers.append(("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())))
        if not self.realistic:
            return replace(response, headers=tuple(headers))
        headers += [
            ("x-ms-ags-diagnostic", '{"ServerInfo":{"DataCenter":"Norway East","Slice":"E","Ring":"3"}}'),
            ("Strict-Transport-Security", "max-age=31536000"),
            ("odata-version", "4.0"),
        ]
        if response.stream is not None or not response.body:
            return replace(response, headers=tuple(headers))
        body = response.body
        coded = any(name.lower() == "content-encoding" for name, _ in response.headers)
        coding = _first_coding(request.value("Accept-Encoding"))
        if coding and len(body) > 200 and not coded:
            body = _compressed(body, coding)
            headers += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
        return replace(response, headers=tuple(headers), body=body, chunked=True)


def _first_coding(accepted: str) -> str:
    """Return the first content coding that the client accepts and the fake service supports."""
    offered = (each.partition(";")[0].strip() for each in accepted.lower().split(","))
    return next((each for each in offered if each in ("gzip", "br")), "")


@lru_cache(maxsize=512)
def _compressed(body: bytes, coding: str) -> bytes:
    if coding == "br":
        return bytes(brotli.compress(body, quality=4))
    return gzip.compress(body, compresslevel=6, mtime=0)


def problem(status: int, code: str, message: str, *headers: tuple[str, str]) -> Response:
    inner = {"date": "2026-11-21T04:25:58", "request-id": str(uuid.UUID(int=0))}
    body = {"error": {"code": code, "message": message, "innerError": inner}}
    return Response(status, (("Content-Type", "application/json"), *headers), json.dumps(body).encode())


def _json(body: Any, status: int = 200, *headers: tuple[str, str]) -> Response:
    return Response(status, (JSON, *headers), json.dumps(body, ensure_ascii=False).encode())


# The directory: a dozen users, enough for three pages


def user(number: int) -> dict[str, Any]:
    name = _PEOPLE[number]
    alias = name.split()[0].lower()
    return {
        "id": str(uuid.UUID(int=0x48D31887_5FAD_4D73_A9F5_3C356E68A000 + number)),
        "businessPhones": [f"+47 22 00 00 {number:02}"],
        "displayName": name,
        "jobTitle": "Director" if alias == "barbara" else "Engineer",
        "mail": f"{alias}@contoso.com",
        "mobilePhone": f"+47 900 00 0{number:02}",
        "userPrincipalName": f"{alias}@contoso.com",
    }


def _find_user(key: str) -> int | None:
    for number in range(len(_PEOPLE)):
        each = user(number)
        if key.lower() in (each["id"], each["userPrincipalName"]):
            return number
    return None


def _no_such_user(key: str) -> Response:
    return problem(404, "Request_ResourceNotFound", f"Resource '{key}' does not exist.")


def _users_page(graph: FakeGraph, request: Received, _: re.Match[str]) -> Response:
    query = parse_qs(request.query)
    start = int(query.get("$skiptoken", ["0"])[0])
    end = start + int(query.get("$top", [str(PAGE_SIZE)])[0])
    body: dict[str, Any] = {"@odata.context": f"{graph.base_url}/v1.0/$metadata#users"}
    if end < len(_PEOPLE):
        body["@odata.nextLink"] = f"{graph.base_url}/v1.0/users?$top={end - start}&$skiptoken={end}"
    body["value"] = [user(number) for number in range(start, min(end, len(_PEOPLE)))]
    return _json(body)


def _users_delta(graph: FakeGraph, request: Received, _: re.Match[str]) -> Response:
    query = parse_qs(request.query)
    start = int(query.get("$skiptoken", ["0"])[0])
    delta = f"{graph.base_url}/v1.0/users/delta"
    body: dict[str, Any] = {"@odata.context": f"{graph.base_url}/v1.0/$metadata#users"}
    if "$deltatoken" in query:
        body |= {"@odata.deltaLink": f"{delta}?$deltatoken=later", "value": [user(0)]}
    elif start + PAGE_SIZE < len(_PEOPLE):
        body["@odata.nextLink"] = f"{delta}?$skiptoken={start + PAGE_SIZE}"
        body["value"] = [user(number) for number in range(start, start + PAGE_SIZE)]
    else:
        body["@odata.deltaLink"] = f"{delta}?$deltatoken=latest"
        body["value"] = [user(number) for number in range(start, len(_PEOPLE))]
    return _json(body)


def _user(graph: FakeGraph, request: Received, match: re.Match[str]) -> Response:
    number = _find_user(match["key"])
    if number is None:
        return _no_such_user(match["key"])
    body = {"@odata.context": f"{graph.base_url}/v1.0/$metadata#users/$entity", **user(number)}
    if "manager" in parse_qs(request.query).get("$expand", []):
        body["manager"] = user((number + 1) % len(_PEOPLE))
    return _json(body, 200, ("ETag", f'W/"user-{number}"'))


def _manager(_: FakeGraph, __: Received, match: re.Match[str]) -> Response:
    number = _find_user(match["key"])
    return _no_such_user(match["key"]) if number is None else _json(user((number + 1) % len(_PEOPLE)))


def _property(graph: FakeGraph, _: Received, match: re.Match[str]) -> Response:
    number = _find_user(match["key"])
    values = {name.lower(): value for name, value in user(number or 0).items()}
    if number is None or match["property"].lower() not in values:
        return _no_such_user(match["key"])
    value = values[match["property"].lower()]
    if match["raw"]:
        return Response(200, (("Content-Type", "text/plain"),), str(value).encode())
    context = f"{graph.base_url}/v1.0/$metadata#users('{match['key']}')/{match['property']}"
    return _json({"@odata.context": context, "value": value})


def _messages(graph: FakeGraph, _: Received, match: re.Match[str]) -> Response:
    sender = user(_find_user(match["key"]) or 0)
    subject = {"id": "AAMkADI5MAAIT3drCAAA=", "subject": "Minutes", "sender": sender["mail"], "isRead": False}
    return _json({"@odata.context": f"{graph.base_url}/v1.0/$metadata#messages", "value": [subject]})


def _photo(_: FakeGraph, __: Received, ___: re.Match[str]) -> Response:
    return Response(200, (("Content-Type", "image/jpeg"), ("ETag", 'W/"photo-1"')), PHOTO)


def _metadata(_: FakeGraph, __: Received, ___: re.Match[str]) -> Response:
    return Response(200, (("Content-Type", "application/xml"),), SCHEMA)


# Routes for every form of response


def _echo(_: FakeGraph, request: Received, __: re.Match[str]) -> Response:
    # No real upstream sends the proxy's credential to a client, so the echo omits it.
    head = re.sub(rb"(?im)^(authorization:).*?\r?$", rb"\1 (not shown)\r", request.head).decode("latin-1")
    return _json({"head": head, "bodyBytes": request.body_length, "bodySha256": request.body_sha256})


def _bytes(_: FakeGraph, request: Received, match: re.Match[str]) -> Response:
    count = int(match["count"])
    chunked = "chunked" in request.query
    return Response(
        200,
        (("Content-Type", "application/octet-stream"),),
        stream=lambda: pattern_bytes(count),
        length=None if chunked else count,
    )


def pattern_bytes(count: int) -> Iterator[bytes]:
    """Yield `count` bytes without a repeating pattern.

    If a piece is lost, the digest of the bytes changes.
    """
    block = b"".join(hashlib.sha256(str(each).encode()).digest() for each in range(2048))
    for start in range(0, count, len(block)):
        yield block[: min(len(block), count - start)]


def _status(_: FakeGraph, request: Received, match: re.Match[str]) -> Response:
    status = int(match["code"])
    retry_after = parse_qs(request.query).get("retryAfter", [])
    headers = tuple(("Retry-After", seconds) for seconds in retry_after)
    if 100 <= status < 200:
        return replace(_json({"interim": status}), interim=(status,))
    if status in (204, 304):
        return Response(status, headers)
    if status < 400:
        return _json({"status": status}, status, *headers)
    return problem(status, "standIn", f"This is what a {status} looks like.", *headers)


async def _slow(_: FakeGraph, __: Received, match: re.Match[str]) -> Response:
    await asyncio.sleep(int(match["ms"]) / 1000)
    return _json({"waitedMs": int(match["ms"])})


def _slow_body(_: FakeGraph, __: Received, match: re.Match[str]) -> Response:
    async def halves() -> AsyncIterator[bytes]:
        yield b'{"first": 1, '
        await asyncio.sleep(int(match["ms"]) / 1000)
        yield b'"second": 2}'

    return Response(200, (JSON,), stream=halves)


async def _gate(graph: FakeGraph, _: Received, match: re.Match[str]) -> Response:
    await graph.gate(match["name"]).wait()
    return _json({"gate": match["name"]})


def _upload(_: FakeGraph, request: Received, __: re.Match[str]) -> Response:
    return _json({"bytes": request.body_length, "sha256": request.body_sha256}, 201)


def _redirect(graph: FakeGraph, _: Received, __: re.Match[str]) -> Response:
    return Response(302, (("Location", f"{graph.base_url}/v1.0/users?$top=2"),))


def _operation(graph: FakeGraph, _: Received, __: re.Match[str]) -> Response:
    operation = f"{graph.base_url}/v1.0/operations/1"
    return Response(202, (("Location", operation), ("Operation-Location", operation)))


async def _batch(graph: FakeGraph, request: Received, match: re.Match[str]) -> Response:
    try:
        parts = json.loads(bytes(request.body))["requests"]
    except (ValueError, KeyError, TypeError):
        return problem(400, "BadRequest", "Invalid batch payload format.")
    responses: dict[str, dict[str, Any]] = {}
    for part in parts:
        failed = [
            each
            for each in part.get("dependsOn", [])
            if each not in responses or responses[each]["status"] >= 400
        ]
        if failed:
            responses[part["id"]] = {
                "id": part["id"],
                "status": 424,
                "body": {"error": {"code": "FailedDependency"}},
            }
        else:
            responses[part["id"]] = await _batch_part(graph, part, match["version"])
    # The real service returns responses in any order, so they are not in the requested order.
    return _json({"responses": list(reversed(responses.values()))})


async def _batch_part(graph: FakeGraph, part: dict[str, Any], version: str) -> dict[str, Any]:
    inner = Received(0, b"", method=part["method"], target=f"/{version}/{part['url'].lstrip('/')}")
    inner.headers = list(part.get("headers", {}).items())
    if "body" in part:
        inner.add_body(json.dumps(part["body"]).encode())
    response = await graph.content(inner)
    result: dict[str, Any] = {"id": part["id"], "status": response.status, "headers": dict(response.headers)}
    if response.body:
        result["body"] = _batch_body(response.body)
    return result


def _batch_body(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, binascii.Error):
        return base64.b64encode(body).decode()


_GET: Final = frozenset({"GET", "HEAD"})
_ANY: Final[frozenset[str]] = frozenset()
_USER: Final = r"/(?:v1\.0|beta)/users(?:/|\(')(?P<key>[^/']+)(?:'\))?"
_ROUTES: Final[tuple[tuple[frozenset[str], re.Pattern[str], Handler], ...]] = tuple(
    (methods, re.compile(pattern, re.IGNORECASE), handler)
    for methods, pattern, handler in (
        (_GET, _SCHEMA_PATH.pattern, _metadata),
        (_GET, r"/(?:v1\.0|beta)/users", _users_page),
        (_GET, r"/(?:v1\.0|beta)/users/delta(?:\(\))?", _users_delta),
        (_GET, _USER, _user),
        (_GET, rf"{_USER}/manager", _manager),
        (_GET, rf"{_USER}/messages(?:/.*)?", _messages),
        (_GET, rf"{_USER}/photo/\$value", _photo),
        (_GET, rf"{_USER}/(?P<property>[A-Za-z]+)(?P<raw>/\$value)?", _property),
        (_ANY, r"/(?:v1\.0|beta)/echo(?:/.*)?", _echo),
        (_GET, r"/v1\.0/bytes/(?P<count>[0-9]+)", _bytes),
        (_ANY, r"/v1\.0/status/(?P<code>[1-5][0-9]{2})", _status),
        (_ANY, r"/v1\.0/slow/(?P<ms>[0-9]+)", _slow),
        (_ANY, r"/v1\.0/slow-body/(?P<ms>[0-9]+)", _slow_body),
        (_ANY, r"/v1\.0/gate/(?P<name>\w+)", _gate),
        (frozenset({"PUT", "POST", "PATCH"}), r"/v1\.0/upload(?:/.*)?", _upload),
        (_ANY, r"/v1\.0/redirect", _redirect),
        (_ANY, r"/v1\.0/operations", _operation),
        (frozenset({"POST"}), r"/(?P<version>v1\.0|beta)/\$batch", _batch),
        (
            frozenset({"POST"}),
            r"/v1\.0/.*/(?:microsoft\.graph\.)?createUploadSession",
            transfers.create_session,
        ),
        (frozenset({"PUT"}), r"/uploads/(?P<name>[^/]+)", transfers.upload),
        (_GET, r"/v1\.0/drives/[^/]+/items/(?P<item>[^/]+)/content", transfers.content),
        (_GET, r"/downloads/(?P<item>[^/]+)", transfers.download),
    )
)


async def _run(arguments: argparse.Namespace) -> None:
    tls = ServerCertificate(arguments.cert, arguments.key) if arguments.cert else None
    tokens = frozenset(arguments.token)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    graph = FakeGraph(
        tls=tls,
        port=arguments.port,
        accepts=tokens.__contains__ if tokens else None,
        realistic=not arguments.plain,
        record=False,
        record_file=arguments.record,
    )
    async with graph:
        print(f"ready {graph.base_url}", flush=True)
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fake for the graph API.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cert", type=Path, help="PEM certificate chain; without it, plain HTTP")
    parser.add_argument("--key", type=Path, help="PEM private key of --cert")
    parser.add_argument(
        "--token", action="append", default=[], help="an upstream token to accept (default: any)"
    )
    parser.add_argument(
        "--record", type=Path, help="file for one JSON object a line for each request received"
    )
    parser.add_argument("--plain", action="store_true", help="neither chunks nor compression")
    arguments = parser.parse_args()
    uvloop.run(_run(arguments))


if __name__ == "__main__":
    main()
