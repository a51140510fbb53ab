"""Accept connections that begin with a TLS handshake.

A connection counts against every connection limit from its acceptance on, not only after the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Final

from proxy.config.tls import alert_of
from proxy.ipc.counters import CREDENTIAL_PROBLEMS_FIRST
from proxy.server.client.admission import Admission, admit
from proxy.server.client.connection import ClientConnection, HandlerFor
from proxy.server.client_limits import Failures, network_of
from proxy.server.context import Context, plain_address
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64  # connections to accept before open connections are served
# handshakes only to report the reached limit; further connections are closed without one
MOST_TO_REFUSE: Final = 16
_REFUSED: Final = CREDENTIAL_PROBLEMS_FIRST + tuple(CREDENTIAL_PROBLEMS).index("certificate")
# X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and similar codes: OpenSSL finds no trust anchor.
_UNREGISTERED: Final = frozenset((18, 19, 20, 21))
_RETRY_SECONDS: Final = 0.5  # seconds until the next accept if no file descriptor is free


class TlsListener:
    """Listener for TLS, which owns one listening socket."""

    def __init__(
        self,
        context: Context,
        handler_for: HandlerFor,
        listener: socket.socket,
        tls: ssl.SSLContext,
        handshake_timeout: float,
    ) -> None:
        self._context = context
        self._handler_for = handler_for
        self._listener = listener
        self._tls = tls
        self._handshake_timeout = handshake_timeout
        self._handshakes: set[asyncio.Task[None]] = set()
        self._to_refuse = 0
        self._logged = Failures(1)
        listener.setblocking(False)
        context.loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stop accepting TLS connections.

        After the listener stops accepting connections, TLS handshakes that have begun continue.
        """
        self._context.loop.remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.error("cannot accept client connections: %s", error.strerror)
                self._context.loop.remove_reader(self._listener)
                self._context.loop.call_later(_RETRY_SECONDS, self._accept_again)
                return
            self._take(accepted, str(peer[0]))

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._context.loop.add_reader(self._listener, self._accept)

    def _take(self, accepted: socket.socket, address: str) -> None:
        context = self._context
        admission = admit(context, address)
        if admission.refused_by is not None and self._to_refuse >= MOST_TO_REFUSE:
            context.counters.values[admission.refused_by] += 1
            admission.end(context)
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context.handshakes += 1
        self._to_refuse += admission.refused_by is not None
        task = context.loop.create_task(self._shake_hands(accepted, address, admission))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, address: str, admission: Admission) -> None:
        context = self._context
        connection = ClientConnection(context, self._handler_for, secure=True, admission=admission)
        try:
            # a duplicate, because asyncio closes the original before an alert can be sent
            with accepted.dup() as kept:
                await self._secure(accepted, kept, connection, address)
        except OSError:  # includes ssl.SSLError, if the client fails the handshake or leaves
            accepted.close()
        finally:
            context.handshakes -= 1
            self._to_refuse -= admission.refused_by is not None
            if not connection.made:
                admission.end(context)

    async def _secure(
        self, accepted: socket.socket, kept: socket.socket, connection: ClientConnection, address: str
    ) -> None:
        try:
            await self._context.loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout,
            )
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                self._refused_certificate(error, plain_address(address))
            _send_alert(kept, error)
            raise

    def _refused_certificate(self, error: ssl.SSLCertVerificationError, address: str) -> None:
        """Count a refused client certificate. For each client address, log at most one refusal per minute.

        OpenSSL does not reveal the refused certificate.
        """
        context, network = self._context, network_of(address)
        context.counters.values[_REFUSED] += 1
        now = context.deadlines.now
        if self._logged.wait(network, now):
            return
        self._logged.add(network, now)
        why = error.verify_message
        if error.verify_code in _UNREGISTERED:
            why = "no application has registered it"
        logger.warning("refused the client certificate of %s: %s", address, why)


def _send_alert(connection: socket.socket, error: ssl.SSLError) -> None:
    """Send the TLS alert, so that the client sees a refused certificate and not a network fault."""
    with contextlib.suppress(OSError):
        connection.send(alert_of(error))
        connection.shutdown(socket.SHUT_WR)
