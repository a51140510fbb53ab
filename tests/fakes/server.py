"""A small strict HTTP/1.1 server for fakes: it records requests byte for byte, and sends scripted bytes.

The server reads framing as strictly as RFC 9112 allows and marks ambiguities, so that a test can check the
requests that a proxy sent upstream. On each connection, the fake server responds to one request after
another. The server never guesses how to read an ambiguous request.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.fakes.certificates import ServerCertificate

# Bytes of a body that are kept; its length and digest cover the whole.
KEPT_BODY_BYTES: Final = 5 * 1024 * 1024  # the largest batch that a control plane accepts
_MAX_HEAD_BYTES: Final = 1024 * 1024
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/1\.([01])\Z")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*\Z")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?\r\n\Z")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}\Z")
_NO_BODY_STATUSES: Final = frozenset({204, 304})
_REASONS: Final = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    302: "Found",
    304: "Not Modified",
}


class MalformedError(Exception):
    """Error because a request can be read in more than one way."""


@dataclass(slots=True)
class Received:
    """A request in the form in which the fake server received it."""

    connection: int
    head: bytes
    method: str = ""
    target: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    wire_body: bytearray = field(default_factory=bytearray)  # the body with its chunk framing
    body: bytearray = field(default_factory=bytearray)
    body_length: int = 0
    complete: bool = False
    malformed: str = ""
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256, repr=False)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def body_sha256(self) -> str:
        return self._digest.hexdigest()

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def value(self, name: str) -> str:
        """Return the only value of a header field, or an empty text if the field is missing."""
        values = self.values(name)
        return values[0] if len(values) == 1 else ""

    def add_body(self, payload: bytes, wire: bytes | None = None) -> None:
        self.body_length += len(payload)
        self._digest.update(payload)
        _keep(self.body, payload)
        _keep(self.wire_body, payload if wire is None else wire)

    def as_json(self) -> dict[str, object]:
        return {
            "connection": self.connection,
            "method": self.method,
            "target": self.target,
            "head": self.head.decode("latin-1"),
            "body": self.body.decode("latin-1"),
            "bodyLength": self.body_length,
            "bodySha256": self.body_sha256,
            "complete": self.complete,
            "malformed": self.malformed,
        }


def _keep(kept: bytearray, data: bytes) -> None:
    kept += data[: max(0, KEPT_BODY_BYTES - len(kept))]


@dataclass(frozen=True, slots=True)
class Response:
    """A response for the fake server to send.

    If `stream` is given, the server sends the stream instead of `body`. The stream has `length` bytes; if the
    length is unknown, the server sends chunks.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    chunked: bool = False
    stream: Callable[[], Iterator[bytes] | AsyncIterator[bytes]] | None = None
    length: int | None = None
    interim: tuple[int, ...] = ()
    close: bool = False


@dataclass(frozen=True, slots=True)
class RawResponse:
    """Exact bytes that the fake server sends instead of a response, if no correct server would send them."""

    data: bytes
    close: bool = True
    before_body: bool = False  # sent as soon as the head has arrived, without reading the request's body


class Fake:
    """Base class of the fake servers: a context manager that listens while it is entered."""

    def __init__(
        self,
        *,
        tls: ServerCertificate | None = None,
        port: int = 0,
        record: bool = True,
        record_file: Path | None = None,
    ) -> None:
        self.requests: list[Received] = []
        self.fragments: list[bytes] = []  # bytes of incomplete heads
        self.raw_responses: dict[str, RawResponse] = {}  # path -> exact bytes
        self.connections_opened = 0
        self.connections_open = 0
        self._tls = tls
        self._port = port
        self._record = record
        self._record_file = record_file.open("w", buffering=1) if record_file else None
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    # Methods to override

    async def response(self, request: Received) -> Response:
        raise NotImplementedError

    # Start and stop

    async def __aenter__(self) -> Self:
        context = self._tls.server_context() if self._tls else None
        self._server = await asyncio.start_server(
            self._accepted, "127.0.0.1", self._port, ssl=context, limit=_MAX_HEAD_BYTES, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._record_file:
            self._record_file.close()

    @property
    def base_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    # Methods for tests

    async def received(self, count: int) -> list[Received]:
        """Wait until `count` requests have arrived, complete or aborted.

        Return all requests that have arrived.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: sum(self._is_over(each) for each in self.requests) >= count)
        return self.requests

    def gate(self, name: str) -> asyncio.Event:
        """Return the event that opens `/v1.0/gate/NAME`, at which requests wait until the event is set."""
        return self._gates.setdefault(name, asyncio.Event())

    @staticmethod
    def _is_over(request: Received) -> bool:
        return request.complete or bool(request.malformed)

    # One connection

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.connections_opened += 1
        self.connections_open += 1
        try:
            await self._serve(next(self._numbers), reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the peer has closed, or the fake stops
        finally:
            self.connections_open -= 1
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _serve(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    self.fragments.append(error.partial)
                return
            except asyncio.LimitOverrunError:
                self.fragments.append(await reader.read(_MAX_HEAD_BYTES))
                return
            request = Received(connection, head)
            if self._record:
                self.requests.append(request)
            keep_alive = await self._one_request(request, reader, writer)
            if not keep_alive:
                return

    async def _one_request(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        try:
            length = read_head(request)
            raw = self.raw_responses.get(request.path)
            if raw is not None and raw.before_body:
                writer.write(raw.data)
                await writer.drain()
                return not raw.close
            if request.value("Expect").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await _read_body(request, length, reader)
        except MalformedError as error:
            request.malformed = str(error)
            await self._note(request)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return False
        except (asyncio.IncompleteReadError, ConnectionError):
            request.malformed = "cut off within the body"
            await self._note(request)
            return False
        request.complete = True
        await self._note(request)
        if raw is not None:
            writer.write(raw.data)
            await writer.drain()
            return not raw.close
        return await self._send(request, await self.response(request), writer)

    async def _note(self, request: Received) -> None:
        if self._record_file:
            self._record_file.write(json.dumps(request.as_json()) + "\n")
        if self._record:
            async with self._changed:
                self._changed.notify_all()

    async def _send(self, request: Received, response: Response, writer: asyncio.StreamWriter) -> bool:
        closing = (
            response.close
            or "close" in request.value("Connection").lower()
            or b" HTTP/1.0\r\n" in request.head
        )
        for status in response.interim:
            writer.write(f"HTTP/1.1 {status} {_REASONS.get(status, 'Interim')}\r\n\r\n".encode())
        without_body = response.status in _NO_BODY_STATUSES or request.method == "HEAD"
        writer.write(_response_head(response, closing=closing))
        if not without_body:
            await _send_body(response, writer)
        await writer.drain()
        return not closing


def read_head(request: Received) -> int | None:
    """Read the head of a request into `request`.

    Return the length of the request's body, or None if the body is chunked.
    """
    line, *lines = request.head[:-4].split(b"\r\n")
    match = _REQUEST_LINE.match(line)
    if match is None:
        raise MalformedError("request line")
    request.method, request.target = match[1].decode(), match[2].decode()
    for each in lines:
        pair = _FIELD.match(each)
        if pair is None:
            raise MalformedError("header field")
        request.headers.append((pair[1].decode(), pair[2].decode("latin-1")))
    if len(request.values("Host")) != 1:
        raise MalformedError("Host")
    return _framing(request)


def _framing(request: Received) -> int | None:
    """Return the framing of the request by RFC 9112 §6.3.

    Refuse every framing that two parsers could read differently.
    """
    codings, lengths = request.values("Transfer-Encoding"), request.values("Content-Length")
    if codings and lengths:
        raise MalformedError("Content-Length beside Transfer-Encoding")
    if codings:
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise MalformedError("Transfer-Encoding")
        return None
    if len(lengths) > 1 or (lengths and not _LENGTH.match(lengths[0].encode("latin-1"))):
        raise MalformedError("Content-Length")
    return int(lengths[0]) if lengths else 0


async def _read_body(request: Received, length: int | None, reader: asyncio.StreamReader) -> None:
    if length is None:
        await _read_chunks(request, reader)
        return
    left = length
    while left:
        data = await reader.read(min(left, 65536))
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        request.add_body(data)
        left -= len(data)


async def _read_chunks(request: Received, reader: asyncio.StreamReader) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        match = _CHUNK_SIZE.match(line)
        if match is None:
            raise MalformedError("chunk size")
        size = int(match[1], 16)
        if size == 0:
            break
        data = await reader.readexactly(size + 2)
        if data[-2:] != b"\r\n":
            raise MalformedError("chunk end")
        request.add_body(data[:-2], line + data)
    request.add_body(b"", line)
    while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
        request.add_body(b"", trailer)
    request.add_body(b"", trailer)


def _response_head(response: Response, *, closing: bool) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    if response.status >= 200 and response.status != 204:
        length = len(response.body) if response.stream is None else response.length
        in_chunks = response.chunked or length is None
        lines.append("Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {length}")
    if closing:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _send_body(response: Response, writer: asyncio.StreamWriter) -> None:
    in_chunks = response.chunked or (response.stream is not None and response.length is None)
    parts = response.stream() if response.stream is not None else _pieces(response.body)
    if isinstance(parts, AsyncIterator):
        async for part in parts:
            await _send_part(part, writer, in_chunks=in_chunks)
    else:
        for part in parts:
            await _send_part(part, writer, in_chunks=in_chunks)
    if in_chunks:
        writer.write(b"0\r\n\r\n")


def _pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 16384):
        yield body[start : start + 16384]


async def _send_part(part: bytes, writer: asyncio.StreamWriter, *, in_chunks: bool) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(part), part) if in_chunks else part)
    await writer.drain()
