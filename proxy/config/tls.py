"""TLS for all connections, as client or server: version 1.2 or later, HTTP/1.1.

Servers must present a valid certificate for their host name.
"""

import errno
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from proxy.config.given_text import MARK, other_encoding

_WANTED: Final = "put PEM certificates there (-----BEGIN CERTIFICATE-----)"
_ALPN: Final = ["http/1.1"]
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not define. The validity of a client's certificate
# is checked when the client requests a token, so that the audit event of a refusal can name the reason.
_WITHOUT_TIMES: Final = 0x200000
_ALERT: Final = "graphward_alert"  # attribute of an ssl.SSLError


def client_tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return a TLS client context that trusts the authorities in `ca_file`, or the system's authorities.

    Raise OSError (or ssl.SSLError) if the file of authorities cannot be loaded.
    """
    if ca_file is not None:
        _refuse_other_text(ca_file)
    return _at_least_1_2(ssl.create_default_context(cafile=None if ca_file is None else str(ca_file)))


def server_tls(
    cert_file: Path, key_file: Path | None, *, ask_for_certificate: bool = False
) -> ssl.SSLContext:
    """Return a TLS server context.

    Raise OSError, or its subclass ssl.SSLError, if a file can't be loaded, for example an encrypted key.

    If `ask_for_certificate` is True, the server requests a certificate from each client. The server also
    accepts a client that sends no certificate. If a client sends a certificate that is not among the trust
    anchors of the context, the handshake fails.
    """
    for file in (cert_file, key_file):
        if file is not None:
            _refuse_other_text(file)
    context = _at_least_1_2(_AlertingContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(cert_file, key_file, password="")
    # Forbids another certificate later in a TLS 1.2 connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if ask_for_certificate:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_WITHOUT_TIMES)
    return context


def alert_of(error: ssl.SSLError) -> bytes:
    """Return the TLS alert that ends a failed handshake; empty if no alert was made."""
    alert = getattr(error, _ALERT, b"")
    return alert if isinstance(alert, bytes) else b""


class _AlertingObject(ssl.SSLObject):
    """TLS object that stores the alert of a failed handshake, because asyncio discards the alert."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError as error:
            setattr(error, _ALERT, self.outgoing.read())
            raise


class _AlertingContext(ssl.SSLContext):
    sslobject_class = _AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> Any:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        if isinstance(made, _AlertingObject):
            made.outgoing = outgoing
        return made


def problem_of_authorities(ca_file: Path) -> str:
    """Describe why a file of trusted certificates can't be used, and the remedy.

    Return an empty text if the file can be used.
    """
    problem = problem_of(partial(client_tls, ca_file))
    return f"{ca_file}: {problem}: {_WANTED}" if problem else ""


def problem_of(load: Callable[[], object]) -> str:
    """Describe why certificates or keys can't be loaded, for the setting's error line.

    Return an empty text if the certificates or keys can be loaded.
    """
    try:
        load()
    except ssl.SSLError as error:
        return f"not usable: {error.reason or 'not PEM'}"
    except OSError as error:
        return str(error.strerror)
    return ""


def _refuse_other_text(pem: Path) -> None:
    """Refuse a PEM file that begins with a byte order mark or is in UTF-16.

    OpenSSL can't read a PEM file in UTF-16 or with a byte order mark, and OpenSSL's error does not say why.
    """
    with pem.open("rb") as file:
        begin = file.read(4)
    if begin.startswith(MARK):
        reason = "the file begins with a byte order mark"
    elif other := other_encoding(begin):
        reason = f"the file is {other} text"
    else:
        return
    raise OSError(errno.EINVAL, f"{reason}: save the file as UTF-8 without a byte order mark", str(pem))


def _at_least_1_2(context: ssl.SSLContext) -> ssl.SSLContext:
    # Without this line, the Python of some distributions allows 1.0.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    return context
