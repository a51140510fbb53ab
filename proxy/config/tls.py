"""TLS of every connection, whichever side is ours: version 1.2 at least, HTTP/1.1, and of a server its
certificate and its name."""

import errno
import ssl
from pathlib import Path
from typing import Final

from proxy.config.given_text import MARK, other_encoding

_ALPN: Final = ["http/1.1"]


def client_tls(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts these authorities, or the system's. Raises OSError, of which ssl.SSLError is one."""
    if ca_file is not None:
        _refuse_other_text(ca_file)
    return _at_least_1_2(ssl.create_default_context(cafile=None if ca_file is None else str(ca_file)))


def server_tls(cert_file: Path, key_file: Path | None) -> ssl.SSLContext:
    """Raises OSError, of which ssl.SSLError is one. An encrypted key is an error, and no question."""
    for file in (cert_file, key_file):
        if file is not None:
            _refuse_other_text(file)
    context = _at_least_1_2(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(cert_file, key_file, password="")
    return context


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
