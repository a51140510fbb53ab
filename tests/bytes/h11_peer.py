"""An independent HTTP/1.1 parser, h11, which reads a client's bytes in place of the proxy or the upstream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import h11

from tests.bytes.data_path import UpstreamPeer

_MAX_HEAD = 1 << 20

Fields = list[tuple[bytes, bytes]]


@dataclass
class ReadRequest:
    """A complete request that h11 parsed."""

    method: bytes
    target: bytes
    fields: Fields
    body: bytes = b""

    @property
    def essence(self) -> tuple[bytes, bytes, bytes]:
        return self.method, self.target, self.body


def readings(data: bytes) -> list[ReadRequest]:
    """Return the complete requests that h11 parses from a client's bytes, until h11 refuses a request."""
    found: list[ReadRequest] = []
    while True:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        connection.receive_data(data.removeprefix(b"\r\n"))  # RFC 9112 §2.2, which h11 does not implement
        try:
            request = _next_request(connection)
        except h11.RemoteProtocolError:
            return found
        if request is None:
            return found
        found.append(request)
        if connection.their_state in (h11.MUST_CLOSE, h11.CLOSED):
            return found
        data = bytes(connection.trailing_data[0])


def _in_origin_form(target: bytes) -> bytes:
    """Convert a target to origin form (RFC 9112 §3.2.2), because h11 does not."""
    scheme, mark, rest = target.partition(b"://")
    if not mark or scheme.lower() not in (b"http", b"https"):
        return target
    return b"/" + rest.partition(b"/")[2]


def _next_request(connection: h11.Connection) -> ReadRequest | None:
    request: ReadRequest | None = None
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            request = ReadRequest(event.method, _in_origin_form(event.target), list(event.headers))
        elif isinstance(event, h11.Data) and request is not None:
            request.body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:
            return None


@dataclass
class H11Upstream:
    """A fake upstream that responds to each request with the request's target.

    The fake upstream stores every request, and every fault for which h11 refused a request.
    """

    requests: list[ReadRequest] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def script(self, peer: UpstreamPeer) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        request: ReadRequest | None = None
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                # ignores an incomplete request, which the proxy has cut short
                if connection.trailing_data[0]:
                    self.refused.append(str(error))
                return
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    peer.send(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                connection.receive_data(await peer.reader.read(1 << 16))
            elif isinstance(event, h11.Request):
                request = ReadRequest(event.method, _in_origin_form(event.target), list(event.headers))
            elif isinstance(event, h11.Data) and request is not None:
                request.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                self.requests.append(request)
                self._response(peer, connection, request)
                if connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
            else:
                return

    def body_for(self, request: ReadRequest) -> bytes:
        return json.dumps({"target": request.target.decode("latin-1")}).encode()

    def _response(self, peer: UpstreamPeer, connection: h11.Connection, request: ReadRequest) -> None:
        body = self.body_for(request)
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        response = connection.send(h11.Response(status_code=200, headers=fields, reason=b"OK")) or b""
        if request.method != b"HEAD":
            response += connection.send(h11.Data(data=body)) or b""
        peer.send(response + (connection.send(h11.EndOfMessage()) or b""))
