"""A sink that sends RFC 5424 messages over TLS or TCP, each behind its length (RFC 5425, RFC 6587).

The syslog protocol has no acknowledgement of messages. A batch of syslog messages counts as delivered when
the server's kernel has confirmed every byte and the connection is still open. The newest syslog messages stay
in the memory of the sink. If the server closes the connection, the sink sends the messages in its memory
again on the next connection. Syslog messages can be lost only if the server died before it had read the
messages. Messages that the syslog server did not read are lost only if they exceed KEPT_BYTES, or if the
control plane dies too. If a connection stays open for KEPT_SECONDS after the server's kernel has confirmed a
message, the message counts as read. The sink does not send such a message again.

An application chooses the path and the query of its requests. The sink truncates a message that is longer
than the syslog server accepts. If the server refused a long message, an application could keep its own
events, or events of other applications, from the server.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import socket
import ssl
import struct
import termios
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from controlplane.search.query import rfc3339_ms
from controlplane.sinks.formats import FORMATS, severity_of
from controlplane.sinks.http import text_of
from controlplane.sinks.interface import Limits, Refusal, Sent, SinkEvent, SinkUnavailable
from controlplane.sinks.settings import SyslogSettings, split_syslog_url
from proxy.policy.redaction import shortened
from proxy.wire.audit_event import rfc3339

KEPT_BYTES: Final = 256 * 1024  # newest messages to send again after the server closed a connection
KEPT_SECONDS: Final = 60.0  # seconds after which an open connection proves that the server has read a message
# lengths to truncate texts to, in characters, until the message fits
_CUTS: Final = (2048, 1024, 512, 256, 128, 64)
_LIMITS: Final = Limits(events=500, bytes=1024 * 1024)
_SEVERITIES: Final = {1: 6, 2: 5, 3: 4}  # syslog's: informational, notice, warning
_NIL: Final = "-"
_NOT_PRINTABLE: Final = re.compile(r"[^!-~]")
_CONNECT_SECONDS: Final = 10.0
# The kernel detects a vanished server within 40 s, before the bytes sent to it count as read.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
_LOOK_SECONDS: Final = 0.01  # pause in seconds between checks for unconfirmed bytes
# The number that RFC 5612 reserves for examples: this program has no enterprise number.
_STRUCTURED_ID: Final = "graphward@32473"
_STRUCTURED: Final = (
    *("id", "orgId", "appId", "clientId", "clientIp", "method", "path", "status", "verdict", "ruleId"),
    *("reason", "requestId", "traceId"),
)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A syslog message that the kernel of the server has confirmed."""

    data: bytes
    confirmed: float  # monotonic clock in seconds


class SyslogSink:
    def __init__(self, settings: SyslogSettings) -> None:
        self._settings = settings
        self._scheme, self._host, self._port = split_syslog_url(settings.url)
        self._tls = _context(settings) if self._scheme == "tls" else None
        self._socket: socket.socket | None = None
        self._kept: deque[_Frame] = deque()
        self._kept_bytes = 0

    @property
    def limits(self) -> Limits:
        return _LIMITS

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        frames, refused = [], []
        for event in events:
            message = fitting_message(event, self._settings)
            if len(message) > self._settings.max_message_bytes:
                what = f"the message has {len(message)} bytes even when truncated, and MaxMessageBytes is"
                refused.append(Refusal(event.position, f"{what} {self._settings.max_message_bytes}"))
            else:
                frames.append(b"%d %s" % (len(message), message))
        self._unwatch()
        await self._in_thread(frames)
        self._watch()
        return Sent(tuple(refused))

    async def test(self) -> str:
        """Open a connection to the syslog server, and close it again."""
        connection = await asyncio.to_thread(self._connected)
        try:
            if isinstance(connection, ssl.SSLSocket):
                return f"connected to {self._host}:{self._port} over {connection.version()}"
            return f"connected to {self._host}:{self._port} without TLS"
        finally:
            _end(connection)

    def _watch(self) -> None:
        """Watch an idle connection, so that the sink detects the end of the connection immediately.

        The time at which the connection ends shows which messages the syslog server has read.
        """
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._look)

    def _unwatch(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)

    def _look(self) -> None:
        if self._socket is not None and not _is_open(self._socket):
            self._unwatch()
            self._drop()

    async def close(self) -> None:
        self._unwatch()
        connection, self._socket = self._socket, None
        if connection is not None:
            _end(connection)

    async def _in_thread(self, frames: Sequence[bytes]) -> None:
        try:
            await asyncio.to_thread(self._deliver, frames)
        except OSError as error:
            self._drop()
            raise SinkUnavailable(f"the connection to the syslog server broke: {_reason(error)}") from error
        except BaseException:  # the call was cancelled: the thread ends with its connection
            self._drop()
            raise

    def _deliver(self, frames: Sequence[bytes]) -> None:
        """Send the messages, and return when the kernel of the server has confirmed every byte."""
        if self._socket is not None and not _is_open(self._socket):
            self._drop()
        connection = self._socket
        if connection is None:
            self._socket = connection = self._connected()
            connection.sendall(b"".join(each.data for each in self._kept))
        connection.sendall(b"".join(frames))
        self._until_confirmed(connection)
        if not _is_open(connection):
            raise ConnectionResetError("the syslog server closed the connection")
        self._keep(frames)

    def _until_confirmed(self, connection: socket.socket) -> None:
        ends = time.monotonic() + self._settings.timeout_seconds
        while _unconfirmed(connection):
            if time.monotonic() > ends:
                raise TimeoutError("the syslog server does not read the messages")
            time.sleep(_LOOK_SECONDS)

    def _keep(self, frames: Sequence[bytes]) -> None:
        now = time.monotonic()
        self._kept.extend(_Frame(each, now) for each in frames)
        self._kept_bytes += sum(map(len, frames))
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().data)

    def _forget_read(self) -> None:
        """Drop from memory the messages that the syslog server has read.

        Call this method when the connection to the syslog server ends.
        """
        while self._kept and time.monotonic() - self._kept[0].confirmed > KEPT_SECONDS:
            self._kept_bytes -= len(self._kept.popleft().data)

    def _connected(self) -> socket.socket:
        """Return a new connection to the syslog server.

        Raise SinkUnavailable if the connection fails.
        """
        connection = None
        try:
            connection = socket.create_connection((self._host, self._port), _CONNECT_SECONDS)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=self._host)
            connection.settimeout(self._settings.timeout_seconds)
        except (OSError, ValueError) as error:
            if connection is not None:
                connection.close()
            where = f"no connection to {self._host}:{self._port}"
            raise SinkUnavailable(f"{where}: {_reason(error)}") from None
        return connection

    def _drop(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            self._forget_read()
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def fitting_message(event: SinkEvent, settings: SyslogSettings) -> bytes:
    """Return the syslog message of an event, with long texts truncated if the server would refuse it."""
    message = message_of(event, settings)
    for most in _CUTS:
        if len(message) <= settings.max_message_bytes:
            break
        members = _cut(event.members, most)
        body = orjson.dumps(members)
        payload = FORMATS[settings.format](members, body)
        message = message_of(SinkEvent(event.position, event.org_id, body, payload), settings)
    return message


def _cut(value: Any, most: int) -> Any:
    """Return the value with each long text truncated as the proxy truncates texts."""
    match value:
        case str():
            return shortened(value, most)
        case dict():
            return {name: _cut(each, most) for name, each in value.items()}
        case list():
            return [_cut(each, most) for each in value]
    return value


def message_of(event: SinkEvent, settings: SyslogSettings) -> bytes:
    """Return an RFC 5424 message that contains the event in the format of the sink."""
    members = event.members
    priority = settings.facility * 8 + _SEVERITIES[severity_of(members)]
    time_ms = rfc3339_ms(text_of(members.get("time")))
    header = " ".join(
        (
            f"<{priority}>1",
            _NIL if time_ms is None else rfc3339(time_ms),
            _name(members.get("proxyId"), 255),
            "graphward",
            _NIL,
            _name(members.get("verdict"), 32),
            _structured(members) if settings.structured_data else _NIL,
        )
    )
    # Line ends between the tokens of JSON have no meaning, and receivers may split there.
    text = event.payload.replace(b"\r", b" ").replace(b"\n", b" ")
    return header.encode("utf-8", "replace") + b" " + text


def _name(value: object, most: int) -> str:
    """Return a text as a name in the syslog header: printable ASCII without spaces."""
    return _NOT_PRINTABLE.sub("?", text_of(value))[:most] or _NIL


def _structured(members: Any) -> str:
    given = ((name, members.get(name)) for name in _STRUCTURED)
    parameters = [f'{name}="{_in_parameter(str(value))}"' for name, value in given if value is not None]
    return f"[{' '.join((_STRUCTURED_ID, *parameters))}]"


def _in_parameter(value: str) -> str:
    """Escape quote, backslash and closing bracket in a value of structured data (RFC 5424 §6.3.3)."""
    return re.sub(r'(["\\\]])', r"\\\1", value.replace("\r", " ").replace("\n", " "))


def _context(settings: SyslogSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.client_cert_file is not None:
        context.load_cert_chain(settings.client_cert_file, settings.client_key_file)
    return context


def _is_open(connection: socket.socket) -> bool:
    """Return whether the syslog server keeps the connection open.

    Data that the syslog server sends is read and ignored.
    """
    timeout = connection.gettimeout()
    connection.settimeout(0)
    try:
        while connection.recv(4096):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    finally:
        with suppress(OSError):
            connection.settimeout(timeout)
    return False


def _end(connection: socket.socket) -> None:
    """Close the connection; for TLS, send the close_notify alert first (RFC 5425 §4.4)."""
    with suppress(OSError, ValueError):
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(0)  # do not wait for the server's own alert
            connection.unwrap()
    connection.close()


def _unconfirmed(connection: socket.socket) -> int:
    """Return the number of sent bytes that the kernel of the server has not confirmed (SIOCOUTQ)."""
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS handshake: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
