"""Calls that the parts of an exchange, its upstream call and its buffered response, make to it."""

from __future__ import annotations

from proxy.server.client.connection import ClientConnection, RequestHandler
from proxy.server.content.links import LinkRewriter
from proxy.server.context import Context
from proxy.server.exchange.request_body import RequestBody
from proxy.server.http1.request_head import RequestHead
from proxy.server.http1.response_head import AnswerHead
from proxy.server.record.request_record import AuditDraft
from proxy.server.upstream.connection import UpstreamLost


class ExchangeOwner(RequestHandler):
    """One request, as its parts name it: `Exchange` derives from it, and they do not import `Exchange`."""

    __slots__ = ("body", "connection", "context", "draft", "head")

    context: Context
    connection: ClientConnection
    head: RequestHead
    body: RequestBody
    draft: AuditDraft

    # Called by the upstream call

    def head_for_upstream(self, authorization: bytes) -> bytes:
        """Return the head that the upstream is sent."""
        raise NotImplementedError

    def informational(self, head: AnswerHead) -> None:
        """Receive a 1xx response of the upstream."""
        raise NotImplementedError

    def response_started(self, answer: AnswerHead, chunk: bytes, last: bool) -> None:
        """Take the head of the final response, and the first bytes of its body."""
        raise NotImplementedError

    def response_continued(self, chunk: bytes, last: bool) -> None:
        """Take a piece of the response's body."""
        raise NotImplementedError

    def call_failed(self, error: UpstreamLost) -> None:
        """End the exchange: the upstream failed, and the request is not sent once more."""
        raise NotImplementedError

    # Called by the buffered response

    def hold(self, size: int) -> bool:
        """Return True if `size` more bytes may be buffered for rules to read."""
        raise NotImplementedError

    def hold_no_longer(self) -> None:
        """Give back the bytes that are buffered."""
        raise NotImplementedError

    def judged_unread(self) -> bool:
        """Return True if the response may pass without inspection: only the log would have its body."""
        raise NotImplementedError

    def filter_response(self, body: bytes) -> bool:
        """Evaluate and filter the whole response. Return False if it can't be read and need not be."""
        raise NotImplementedError

    def pass_unread(self, held: bytes, *, last: bool) -> bool:
        """Pass on a response that was buffered for the log alone. Return False if its links are rewritten."""
        raise NotImplementedError

    def rewriter(self) -> LinkRewriter:
        """Return the rewriter of links for the address that the application used."""
        raise NotImplementedError

    def start_rewritten(self) -> None:
        """Send the head of a response that is rewritten as it comes."""
        raise NotImplementedError

    def send_whole(self, body: bytes, changed: bytes | None) -> None:
        """Send a response that was buffered whole: as it came, or `changed` without content coding."""
        raise NotImplementedError

    def send_chunk(self, chunk: bytes, last: bool) -> None:
        """Send a piece of a body of unknown length."""
        raise NotImplementedError
