"""The base class of what handles a request: a client connection makes these calls to it."""

from __future__ import annotations

from proxy.rules.stops import Stops
from proxy.server.errors import Refusal


class RequestHandler:
    """Handler of one request, as its client connection names it."""

    __slots__ = ()

    def begin(self) -> None:
        """Handle the request, whose head is whole."""
        raise NotImplementedError

    def request_body(self, chunk: bytes, last: bool) -> None:
        """Take a piece of the body; `last` ends it."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        """End the request with a response of ours, or abort a response that has begun."""
        raise NotImplementedError

    def client_left(self) -> None:
        """End the request without a response: the client is gone."""
        raise NotImplementedError

    def fail(self) -> None:
        """End the request for a fault of the proxy, after its connection was aborted."""
        raise NotImplementedError

    def waited_too_long(self) -> None:
        """Act on the deadline that the handler has set."""
        raise NotImplementedError

    def pause_response(self) -> None:
        """Stop sending: the client takes the response more slowly than it comes."""
        raise NotImplementedError

    def resume_response(self) -> None:
        """Go on to send, after a pause."""
        raise NotImplementedError

    def stop(self, stops: Stops) -> None:
        """End the request if an operator has stopped its application."""
        raise NotImplementedError

    @property
    def record_bytes(self) -> int:
        """About as many bytes as its records will take in the spool."""
        raise NotImplementedError
