"""Interfaces between an exchange and its parts: the upstream call, and the response to the client.

`Exchange` derives from the base classes of this module. The modules for the parts of an exchange import only
these base classes, and not the class `Exchange`.
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
    """Response body that arrives in several pieces, or that the proxy buffers."""

    __slots__ = ()

    def take(self, chunk: bytes, last: bool) -> None:
        """Process a piece of the response body from the upstream; `last` ends the body."""
        raise NotImplementedError

    def resume(self) -> bool:
        """Send the waiting bytes of the body, because the client reads again.

        Return False if more bytes of the body still wait to be sent.
        """
        raise NotImplementedError


class ResponseSink(RequestHandler):
    """Interface that an exchange offers to the code that sends the response."""

    __slots__ = ("batch", "connection", "context", "evaluation", "head", "pending", "response")

    context: Context
    connection: ClientConnection
    head: RequestHead
    pending: PendingEvent
    batch: Batch | None
    evaluation: Evaluation  # set after the target is canonicalised
    response: ResponseBody | None

    def rewriter(self) -> LinkRewriter:
        """Return the object that rewrites links to the address that the application used."""
        return self.context.rewriter(self.connection.scheme, self.connection.host_for(self.head))

    def relocated(self, location: bytes) -> bytes:
        """Return the value of a Location header field as the client receives it."""
        return self.rewriter().header(location) if self.context.rewrite_links else location

    def reserve_buffer(self, size: int) -> bool:
        """Reserve `size` more bytes of the buffer budget, if the budget has room.

        Return True if the bytes were reserved in the budget.
        """
        raise NotImplementedError

    def release_buffer(self) -> None:
        """Release the reserved bytes of the buffer budget."""
        raise NotImplementedError

    def buffer(self, response: ResponseBody) -> None:
        """Let `response` process the body of the upstream's response.

        The head of the response is not sent yet.
        """
        raise NotImplementedError

    def send_head(self, status: int, head: bytes, first: bytes, size: int) -> None:
        """Send the response head and the first piece of the body.

        `size` is the number of body bytes in `first`, without the bytes of the framing.

        More pieces follow.
        """
        raise NotImplementedError

    def send_piece(self, before: bytes, chunk: bytes, behind: bytes, last: bool) -> None:
        """Send a piece of the response body, with the framing bytes before and after the piece.

        After the last piece of the response body, the exchange ends.
        """
        raise NotImplementedError

    def send_whole(self, status: int, head: bytes, body: bytes, size: int) -> None:
        """Send a complete response and end the exchange.

        Without its framing, the response body has `size` bytes.
        """
        raise NotImplementedError


class ExchangeOwner(ResponseSink):
    """Interface by which an upstream call calls back its exchange (a client's request and response)."""

    __slots__ = ("body",)

    body: RequestBody

    def head_for_upstream(self, authorization: bytes) -> bytes:
        """Return the request head to send upstream."""
        raise NotImplementedError

    def informational(self, head: ResponseHead) -> None:
        """Process a 1xx response of the upstream."""
        raise NotImplementedError

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        """Process the head of the upstream's final response, and the first bytes of its body."""
        raise NotImplementedError

    def response_continued(self, chunk: bytes, last: bool) -> None:
        """Process a piece of the body of the upstream's response."""
        raise NotImplementedError

    def call_failed(self, error: UpstreamLost) -> None:
        """End the exchange, because the upstream failed and the proxy does not send the request again."""
        raise NotImplementedError
