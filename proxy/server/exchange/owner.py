"""Interfaces between an exchange and its parts: the upstream call, and the response to the client.

The parts import these base classes instead of `Exchange`, which derives from them.
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
    """Body of a response that has several pieces, or that is buffered."""

    __slots__ = ()

    def take(self, chunk: bytes, last: bool) -> None:
        """Process a piece from the upstream; `last` ends the body."""
        raise NotImplementedError

    def resume(self) -> bool:
        """Send what waits, because the client reads again. Return False if more still waits."""
        raise NotImplementedError


class ResponseSink(RequestHandler):
    """A request, as seen by the response to it."""

    __slots__ = ("batch", "connection", "context", "evaluation", "head", "pending", "response")

    context: Context
    connection: ClientConnection
    head: RequestHead
    pending: PendingEvent
    batch: Batch | None
    evaluation: Evaluation  # set after the target is canonicalised
    response: ResponseBody | None

    def rewriter(self) -> LinkRewriter:
        """Return the rewriter of links for the address that the application used."""
        return self.context.rewriter(self.connection.scheme, self.connection.host_for(self.head))

    def relocated(self, location: bytes) -> bytes:
        """Return the value of a Location header field as the client receives it."""
        return self.rewriter().header(location) if self.context.rewrite_links else location

    def reserve_buffer(self, size: int) -> bool:
        """Return True if `size` more bytes may be buffered. If so, they are reserved."""
        raise NotImplementedError

    def release_buffer(self) -> None:
        """Release the reserved bytes of the buffer budget."""
        raise NotImplementedError

    def buffer(self, response: ResponseBody) -> None:
        """Let `response` process the body. Its head is not sent yet."""
        raise NotImplementedError

    def send_head(self, status: int, head: bytes, first: bytes, size: int) -> None:
        """Send the head and the first piece, which has `size` bytes without its frame. More pieces follow."""
        raise NotImplementedError

    def send_piece(self, before: bytes, chunk: bytes, behind: bytes, last: bool) -> None:
        """Send a piece of the body between the bytes that frame it. The last piece ends the exchange."""
        raise NotImplementedError

    def send_whole(self, status: int, head: bytes, body: bytes, size: int) -> None:
        """Send a whole response and end the exchange. The body has `size` bytes without its frame."""
        raise NotImplementedError


class ExchangeOwner(ResponseSink):
    """A request, as seen by its upstream call."""

    __slots__ = ("body",)

    body: RequestBody

    def head_for_upstream(self, authorization: bytes) -> bytes:
        """Return the request head to send upstream."""
        raise NotImplementedError

    def informational(self, head: ResponseHead) -> None:
        """Process a 1xx response of the upstream."""
        raise NotImplementedError

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        """Process the head of the final response, and the first bytes of its body."""
        raise NotImplementedError

    def response_continued(self, chunk: bytes, last: bool) -> None:
        """Process a piece of the response's body."""
        raise NotImplementedError

    def call_failed(self, error: UpstreamLost) -> None:
        """End the exchange: the upstream failed, and the request is not sent again."""
        raise NotImplementedError
