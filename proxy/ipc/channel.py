"""Messages between a worker process and the agent over a pair of sockets that outlives both processes.

Each message states one value completely, so only the latest message about each value matters. So a peer
process that is slow, dead or not started yet does not delay the sender. A message that does not fit into the
socket's buffer waits until the buffer has room. At most one message per kind and identity (upstream identity
or issuer) waits, because a later message replaces it.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.rules.stops import Stops

LAST_STOP: Final = signal.SIGUSR1  # supervisor -> agent: stop; no other agent will reuse your directory
_MAX_MESSAGE: Final = 128 * 1024


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    """worker -> agent: a new worker process requests the current state."""


class UpstreamTokenRejected(msgspec.Struct, frozen=True, tag="credentialRejected", tag_field="type"):
    """worker -> agent: the upstream responded with 401 to the named generation of the identity's token."""

    identity: str
    generation: int


class SnapshotUnusable(msgspec.Struct, frozen=True, tag="snapshotUnusable", tag_field="type"):
    """worker -> agent: the snapshot file on disk differs from the snapshot that the agent announced."""


class Rules(msgspec.Struct, frozen=True, tag="rules", tag_field="type"):
    """agent -> worker: the rules snapshot that the worker must activate.

    The agent sends a `Rules` message to the workers after each sync. So a worker that missed a `Rules`
    message or could not read the snapshot receives a `Rules` message again.
    """

    generation: int  # 0: the agent has no snapshot, and the active one stays
    age: float | None  # seconds since the control plane confirmed the snapshot; None: unknown
    stopped: Stops  # stops in addition to those of the snapshot, if the snapshot could not be written


class ActiveUpstreamToken(msgspec.Struct, frozen=True, tag="credential", tag_field="type", rename="camel"):
    """agent -> worker: the active token of an upstream identity.

    The generation of a token only increases, so a worker ignores a lower generation.
    """

    identity: str
    generation: int
    token: str
    expires_at: float

    def __repr__(self) -> str:
        token = f"{self.identity}, generation={self.generation}, expires_at={self.expires_at}"
        return f"ActiveUpstreamToken({token})"


class UpstreamTokenUnavailable(
    msgspec.Struct, frozen=True, tag="credentialUnavailable", tag_field="type", rename="camel"
):
    """agent -> worker: the agent has no valid token of the named upstream identity.

    An upstream token that the worker already has stays valid until it expires.
    """

    identity: str
    detail: str
    retry_after: float


class SigningKeys(msgspec.Struct, frozen=True, tag="signingKeys", tag_field="type"):
    """agent -> worker: the signing keys of proxy tokens.

    The first signing key signs proxy tokens, and every signing key verifies proxy tokens. Without a signing
    key, the proxy issues no token.
    """

    keys: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"SigningKeys({len(self.keys)} keys)"


class UnknownIssuerKey(msgspec.Struct, frozen=True, tag="unknownIssuerKey", tag_field="type"):
    """worker -> agent: an application's assertion names a key that is not among the issuer's known keys."""

    identity: str  # issuer of the key


class IssuerKeys(msgspec.Struct, frozen=True, tag="issuerKeys", tag_field="type", rename="camel"):
    """agent -> worker: the signing keys that an issuer publishes.

    The newly published signing keys replace the issuer's earlier keys in the worker.
    """

    identity: str  # issuer of the keys
    keys: str  # JWKS as JSON text
    good_until: float  # Unix time in seconds


Message = (
    Hello
    | UpstreamTokenRejected
    | SnapshotUnusable
    | Rules
    | ActiveUpstreamToken
    | UpstreamTokenUnavailable
    | SigningKeys
    | UnknownIssuerKey
    | IssuerKeys
)

_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return two non-blocking sockets that keep message boundaries: the worker's end and the agent's end."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setblocking(False)
    return pair


class Channel:
    """One end of the socket pair between worker and agent, which the running event loop serves."""

    def __init__(self, end: socket.socket, on_message: Callable[[Message], None]) -> None:
        self._end = end
        self._on_message = on_message
        self._waiting: dict[tuple[type[Message], str], Message] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._readable)

    def send(self, message: Message) -> None:
        """Send a message to the process at the other end without waiting.

        If the socket's buffer has no room, the channel later sends only the latest message of each kind.
        """
        kind = (type(message), getattr(message, "identity", ""))
        if self._waiting:
            self._waiting.pop(kind, None)
            self._waiting[kind] = message
        elif not self._sent(message):
            self._waiting[kind] = message
            self._loop.add_writer(self._end.fileno(), self._writable)

    def close(self) -> None:
        """Stop reading and writing messages on the channel.

        `close` does not close the socket, because the socket belongs to the supervisor process.
        """
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())

    def _sent(self, message: Message) -> bool:
        try:
            self._end.send(_encoder.encode(message))
        except BlockingIOError:
            return False
        except OSError:  # the other end is closed for good: the whole proxy is stopping
            return True
        return True

    def _writable(self) -> None:
        while self._waiting:
            kind = next(iter(self._waiting))
            if not self._sent(self._waiting[kind]):
                return
            del self._waiting[kind]
        self._loop.remove_writer(self._end.fileno())

    def _readable(self) -> None:
        while True:
            try:
                data = self._end.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._end.fileno())
                return
            try:
                message = _decoder.decode(data)
            except msgspec.DecodeError:  # a message of another release, during an upgrade
                continue
            self._on_message(message)
