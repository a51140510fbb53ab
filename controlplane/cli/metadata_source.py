"""Read the `$metadata` of a service from a URL or a file, with limits on size and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.cli.remote import is_loopback
from controlplane.model.metadata import MAX_DOCUMENT
from proxy.config.given_text import NotUtf8, decoded
from proxy.config.tls import client_tls
from proxy.outbound.egress import Egress
from proxy.outbound.opener import cure_of_certificate, egress_handlers, named_reason

_METADATA: Final = "$metadata"
_SECONDS: Final = 60.0  # time limit for a whole document; Microsoft Graph's takes about 5 s
_STALLED_SECONDS: Final = 20.0  # time limit for a pause between bytes
_REFUSED: Final = (401, 403)  # statuses of a service that shows its schema only to callers with a token
_PIECE_BYTES: Final = 65_536
_TOO_LARGE: Final = f"has more than {MAX_DOCUMENT:,} bytes: give the $metadata of a single service"


@dataclass(frozen=True, slots=True)
class Metadata:
    """A `$metadata` document, the root path of its service, and the URL or file that has the document."""

    document: str
    root: str
    name: str


class _Elsewhere(OSError):
    """Error because a redirect leads to another host."""


class _SameHost(HTTPRedirectHandler):
    """Redirect handler that raises an error if a redirect changes the scheme or the host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        scheme, host = urlsplit(newurl)[:2]
        if (scheme, host) != urlsplit(req.full_url)[:2]:
            fp.close()
            raise _Elsewhere(f"redirects to {scheme}://{host}: give the document's address on that host")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def read_source(
    source: str, root: str | None, egress: Egress, clock: Callable[[], float] = time.monotonic
) -> Metadata:
    """Return the `$metadata` document at a URL or in a file.

    Raise CommandFailed if the document cannot be read.
    """
    if not source.lower().startswith(("http://", "https://")):
        return _in_file(Path(source), root)
    parts = _checked(source)
    path = parts.path.rstrip("/")
    if path.rpartition("/")[2].lower() not in (_METADATA, "%24metadata"):
        # An unquoted $metadata is a shell variable, so the shell removes the last segment.
        path = f"{path}/{_METADATA}"
    url = parts._replace(path=path).geturl()
    document = _text(url, _downloaded(url, egress, clock))
    return Metadata(document, root or path.rpartition("/")[0] or "/", url)


def _in_file(file: Path, root: str | None) -> Metadata:
    if root is None:
        what = (
            "--root: required for a file, which does not contain the root path of its service, such as /v1.0"
        )
        raise CommandFailed(INVALID_INPUT, what)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_DOCUMENT + 1)
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error.strerror}") from None
    if len(content) > MAX_DOCUMENT:
        raise CommandFailed(INVALID_INPUT, f"{file}: {_TOO_LARGE}")
    return Metadata(_text(str(file), content), root, str(file))


def _text(name: str, content: bytes) -> str:
    try:
        return decoded(content)
    except NotUtf8 as error:
        raise CommandFailed(INVALID_INPUT, f"{name}: can't be read: {error}") from None


def _checked(url: str) -> SplitResult:
    if "@" in url:  # Do not print the URL, because it may contain a password.
        raise CommandFailed(
            INVALID_INPUT,
            "the address must not contain a user name or a password (in a path, write @ as %40)",
        )
    try:
        parts = urlsplit(url)
        # `port` raises ValueError if it is not a number.
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise CommandFailed(INVALID_INPUT, f"{url!r} is not an address") from None
    if not is_address or parts.query or parts.fragment:
        raise CommandFailed(
            INVALID_INPUT, f"{url!r} must be the address of a $metadata without query and fragment"
        )
    if parts.scheme.lower() == "http" and not is_loopback(parts.hostname or ""):
        raise CommandFailed(
            INVALID_INPUT, f"{url}: without TLS, the schema could be changed in transit: use https"
        )
    return parts


def _downloaded(url: str, egress: Egress, clock: Callable[[], float]) -> bytes:
    ends_at = clock() + _SECONDS
    headers = {"Accept": "application/xml", "Accept-Encoding": "identity"}
    request = Request(url, headers=headers)  # noqa: S310 - http and https, as checked
    tls = HTTPSHandler(context=client_tls(None))
    opener = build_opener(_SameHost, tls, *egress_handlers(egress))
    try:
        with opener.open(request, timeout=_STALLED_SECONDS) as response:
            return _content(url, response, ends_at, clock)
    except HTTPError as error:
        error.close()
        said = (
            "save the document to a file, and give the file"
            if error.code in (401, 403)
            else "give its $metadata"
        )
        raise CommandFailed(FAILED, f"{url}: responded with {error.code}: {said}") from None
    except URLError as error:
        reason = named_reason(egress, url, error.reason)
        raise CommandFailed(FAILED, f"{url}: {reason}{cure_of_certificate(error.reason)}") from None
    except (OSError, HTTPException) as error:
        raise CommandFailed(FAILED, f"{url}: {error}") from None


def _content(url: str, response: Any, ends_at: float, clock: Callable[[], float]) -> bytes:
    content = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        content += piece
        if len(content) > MAX_DOCUMENT:
            raise CommandFailed(FAILED, f"{url}: {_TOO_LARGE}")
        if clock() > ends_at:
            raise CommandFailed(
                FAILED,
                (f"{url}: took longer than {_SECONDS:g} s: save the document to a file, and give the file"),
            )
    if response.length:  # `read1` does not report a truncated response.
        raise CommandFailed(FAILED, f"{url}: the response was truncated: {response.length} bytes are missing")
    return bytes(content)
