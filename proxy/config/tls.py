"""TLS of every connection, whichever side is ours: version 1.2 at least, HTTP/1.1, and of a server its
certificate and its name."""

import errno
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from proxy.config.given_text import MARK, other_encoding

_WANTED: Final = "put PEM certificates there (-----BEGIN CERTIFICATE-----)"
_ALPN: Final = ["http/1.1"]
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not name. The times of a client's certificate are
# checked when it asks for a token, so that the audit event of a refusal can name the reason.
_WITHOUT_TIMES: Final = 0x200000
_ALERT: Final = "graphward_alert"  # attribute of an ssl.SSLError


def client_tls(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts these authorities, or the system's. Raises OSError, of which ssl.SSLError is one."""
    if ca_file is not None:
        _refuse_other_text(ca_file)
    return _at_least_1_2(ssl.create_default_context(cafile=None if ca_file is None else str(ca_file)))


def server_tls(
    cert_file: Path, key_file: Path | None, *, ask_for_certificate: bool = False
) -> ssl.SSLContext:
    """Raises OSError, of which ssl.SSLError is one. An encrypted key is an error, and no question.

    With `ask_for_certificate`, clients are asked for a certificate. One may come without; a certificate that
    is not among the anchors of the context ends the handshake."""
    for file in (cert_file, key_file):
        if file is not None:
            _refuse_other_text(file)
    context = _at_least_1_2(_AlertingContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(cert_file, key_file, password="")
    context.options |= ssl.OP_NO_RENEGOTIATION  # TLS 1.2: no other certificate later in a connection
    if ask_for_certificate:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_WITHOUT_TIMES)
    return context


def alert_of(error: ssl.SSLError) -> bytes:
    """Return the TLS alert that a failed handshake is ended with; empty if there is none."""
    alert = getattr(error, _ALERT, b"")
    return alert if isinstance(alert, bytes) else b""


class _AlertingObject(ssl.SSLObject):
    """Keeps the alert of a failed handshake, which asyncio drops with the connection."""

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
    """Describe why a file of certificates to trust can't be used, and what to do; empty if it can."""
    problem = problem_of(partial(client_tls, ca_file))
    return f"{ca_file}: {problem}: {_WANTED}" if problem else ""


def problem_of(load: Callable[[], object]) -> str:
    """Describe why certificates or keys can't be loaded, for the line of the setting; empty if they can."""
    try:
        load()
    except ssl.SSLError as error:
        return f"not usable: {error.reason or 'not PEM'}"
    except OSError as error:
        return str(error.strerror)
    return ""


def _refuse_other_text(pem: Path) -> None:
    """OpenSSL reads no PEM after a byte order mark and none in UTF-16, and its own message says neither."""
    with pem.open("rb") as file:
        begin = file.read(4)
    if begin.startswith(MARK):
        reason = "it begins with a byte order mark"
    elif other := other_encoding(begin):
        reason = f"it is {other} text"
    else:
        return
    raise OSError(errno.EINVAL, f"{reason}: save it as UTF-8 without a byte order mark", str(pem))


def _at_least_1_2(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # some distributions' Python leaves it to OpenSSL: 1.0
    context.set_alpn_protocols(_ALPN)
    return context
