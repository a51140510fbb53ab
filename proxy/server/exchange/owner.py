"""Calls between an exchange and its parts: the upstream call, and the response on its way to the client.

The parts name these base classes and do not import `Exchange`, which derives from them.
"""

from __future__ import annotations

from proxy.server.client.connection import ClientConnection
from proxy.server.client.handler import RequestHandler
from proxy.server.content.links import LinkRewriter
from proxy.server.context import Context
from proxy.server.exchange.batch import Batch
from proxy.server.exchange.evaluation import Evaluation
from proxy.server.exchange.request_body import RequestBody
from proxy.server.http1.request_head import RequestHead
from proxy.server.http1.response_head import ResponseHead
from proxy.server.record.request_record import PendingEvent
from proxy.server.upstream.connection import UpstreamLost


class ResponseBody:
    """The body of a response that has more pieces than one, or that is buffered."""

    __slots__ = ()

    def take(self, chunk: bytes, last: bool) -> None:
        """Take a piece from the upstream; `last` ends the body."""
        raise NotImplementedError

    def resume(self) -> bool:
        """Send what waits for the client, which takes more again. Return False if more still waits."""
        raise NotImplementedError


class ResponseSink(RequestHandler):
    """One request, as the response to it names it."""

    __slots__ = ("batch", "connection", "context", "evaluation", "head", "pending", "response")

    context: Context
    connection: ClientConnection
    head: RequestHead
    pending: PendingEvent
    batch: Batch | None
    evaluation: Evaluation  # once the target is known
    response: ResponseBody | None

    def rewriter(self) -> LinkRewriter:
        """Return the rewriter of links for the address that the application used."""
        return self.context.rewriter(self.connection.scheme, self.connection.host_for(self.head))

    def relocated(self, location: bytes) -> bytes:
        """Return the value of a Location header field as the client receives it."""
        return self.rewriter().header(location) if self.context.rewrite_links else location

    def reserve_buffer(self, size: int) -> bool:
        """Return True if `size` more bytes may be buffered."""
        raise NotImplementedError

    def release_buffer(self) -> None:
        """Give back the bytes that are buffered."""
        raise NotImplementedError

    def buffer(self, response: ResponseBody) -> None:
        """Have `response` take the body. Its head does not leave yet."""
        raise NotImplementedError

    def send_head(self, status: int, head: bytes, first: bytes, size: int) -> None:
        """Send the head and the first piece, which has `size` bytes without its frame. More is to come."""
        raise NotImplementedError

    def send_piece(self, before: bytes, chunk: bytes, behind: bytes, last: bool) -> None:
        """Send a piece of the body between the bytes that frame it; the last one ends the exchange."""
        raise NotImplementedError

    def send_whole(self, status: int, head: bytes, body: bytes, size: int) -> None:
        """Send a whole response, whose body has `size` bytes without its frame, and end the exchange."""
        raise NotImplementedError


class ExchangeOwner(ResponseSink):
    """One request, as its upstream call names it."""

    __slots__ = ("body",)

    body: RequestBody

    def head_for_upstream(self, authorization: bytes) -> bytes:
        """Return the head that the upstream is sent."""
        raise NotImplementedError

    def informational(self, head: ResponseHead) -> None:
        """Receive a 1xx response of the upstream."""
        raise NotImplementedError

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        """Take the head of the final response, and the first bytes of its body."""
        raise NotImplementedError

    def response_continued(self, chunk: bytes, last: bool) -> None:
        """Take a piece of the response's body."""
        raise NotImplementedError

    def call_failed(self, error: UpstreamLost) -> None:
        """End the exchange: the upstream failed, and the request is not sent once more."""
        raise NotImplementedError
