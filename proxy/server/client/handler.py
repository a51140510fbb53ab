"""Base class of request handlers: the methods that a client connection calls."""

from __future__ import annotations

from proxy.rules.stops import Stops
from proxy.server.errors import Refusal


class RequestHandler:
    """Handler of one request, with the methods that its client connection calls."""

    __slots__ = ()

    def begin(self) -> None:
        """Handle the request, because its head is complete."""
        raise NotImplementedError

    def request_body(self, chunk: bytes, last: bool) -> None:
        """Process a piece of the request body; if `last` is True, the piece is the last of the body."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        """End the request with a response that the proxy makes, or abort a response that has begun."""
        raise NotImplementedError

    def client_left(self) -> None:
        """End the request without a response, because the client is gone."""
        raise NotImplementedError

    def fail(self) -> None:
        """End the request after a fault of the proxy.

        The client connection of the request is already aborted.
        """
        raise NotImplementedError

    def waited_too_long(self) -> None:
        """Handle the expiry of the deadline that the handler has set."""
        raise NotImplementedError

    def pause_response(self) -> None:
        """Pause the response, because the upstream sends it faster than the client reads it."""
        raise NotImplementedError

    def resume_response(self) -> None:
        """Continue to send the response after a pause."""
        raise NotImplementedError

    def stop(self, stops: Stops) -> None:
        """End the request if an operator has stopped the application that sent the request."""
        raise NotImplementedError

    @property
    def record_bytes(self) -> int:
        """Approximate number of bytes that the records of the request will take in the spool."""
        raise NotImplementedError
