"""Messages between a worker and the agent over a pair of sockets that outlives both.

Every message tells a state of its kind, of which only the latest matters. So a peer that is slow, dead or
not yet born costs nothing: what does not fit into the socket waits as one message per kind and identity
(upstream identity or issuer), and a later one replaces it.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.rules.stops import Stops

LAST_STOP: Final = signal.SIGUSR1  # supervisor -> agent: end, and no other agent goes on with your directory
_MAX_MESSAGE: Final = 128 * 1024


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    """worker -> agent: I am new here, tell me the state."""


class UpstreamTokenRejected(msgspec.Struct, frozen=True, tag="credentialRejected", tag_field="type"):
    """worker -> agent: the upstream responded with 401 to this identity's token of this generation."""

    identity: str
    generation: int


class SnapshotUnusable(msgspec.Struct, frozen=True, tag="snapshotUnusable", tag_field="type"):
    """worker -> agent: what lies on disk is not the snapshot that you told me of."""


class Rules(msgspec.Struct, frozen=True, tag="rules", tag_field="type"):
    """agent -> worker: which snapshot is to be active, told after each sync. So who missed it once, or
    could not read it, learns of it again."""

    generation: int  # 0: the agent holds none, and what is active stays
    age: float | None  # seconds since the control plane confirmed it; None: nobody knows
    stopped: Stops  # beside what the snapshot stops, where that could not be written


class ActiveUpstreamToken(msgspec.Struct, frozen=True, tag="credential", tag_field="type", rename="camel"):
    """agent -> worker: an identity's token in force; its generations only grow, a lower one is stale."""

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
    """agent -> worker: there is no valid token of this identity; one you hold is good until its own end."""

    identity: str
    detail: str
    retry_after: float


class SigningKeys(msgspec.Struct, frozen=True, tag="signingKeys", tag_field="type"):
    """agent -> worker: the keys of proxy tokens. The first signs, all are accepted; without any there is no
    token."""

    keys: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"SigningKeys({len(self.keys)} keys)"


class UnknownIssuerKey(msgspec.Struct, frozen=True, tag="unknownIssuerKey", tag_field="type"):
    """worker -> agent: an assertion names a key that this issuer was not known to have."""

    identity: str  # the issuer


class IssuerKeys(msgspec.Struct, frozen=True, tag="issuerKeys", tag_field="type", rename="camel"):
    """agent -> worker: the keys that an issuer publishes. They replace its earlier ones."""

    identity: str  # the issuer
    keys: str  # a JWKS
    good_until: float  # Unix seconds


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
    """(worker's end, agent's end), non-blocking, message boundaries kept."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setblocking(False)
    return pair


class Channel:
    """One end, driven by the running event loop."""

    def __init__(self, end: socket.socket, on_message: Callable[[Message], None]) -> None:
        self._end = end
        self._on_message = on_message
        self._waiting: dict[tuple[type[Message], str], Message] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._readable)

    def send(self, message: Message) -> None:
        """Never waits; of messages that the socket has no room for, the latest of each kind is sent later."""
        kind = (type(message), getattr(message, "identity", ""))
        if self._waiting:
            self._waiting.pop(kind, None)
            self._waiting[kind] = message
        elif not self._sent(message):
            self._waiting[kind] = message
            self._loop.add_writer(self._end.fileno(), self._writable)

    def close(self) -> None:
        """Stops reading and writing; the socket itself belongs to the supervisor."""
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())

    def _sent(self, message: Message) -> bool:
        try:
            self._end.send(_encoder.encode(message))
        except BlockingIOError:
            return False
        except OSError:  # the other end is gone for good: the whole proxy is stopping
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
            except msgspec.DecodeError:  # of another release, during an upgrade: not for us
                continue
            self._on_message(message)
