"""Call operations of a running control plane through its admin API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

import msgspec

from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from proxy.config.given_text import NotUtf8, decoded
from proxy.config.tls import client_tls
from proxy.outbound.egress import Egress
from proxy.outbound.opener import cure_of_certificate, egress_handlers, named_reason
from proxy.policy.json_text import readable

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from controlplane.operations.operation import Operation, Response, Stream
    from controlplane.operations.operation import Request as Asked

    A = TypeVar("A", bound=Response)
    Q = TypeVar("Q", bound=Asked)

_ROOT: Final = "/admin/v1"
_NO_SUCH_ENDPOINT: Final = "there is no such endpoint"  # message of every listener of a control plane
_DOUBT: Final = "; check whether the change was made"
# A gateway's 502 and similar: the control plane behind it may have processed the request.
_OF_WHO_PASSES_ON: Final = 500
_SECONDS: Final = 120.0
_PIECE_BYTES: Final = 65_536
_MAX_TOKEN_BYTES: Final = 4096  # The file may be an endless device.


class _Problem(msgspec.Struct):
    code: str
    message: str
    problems: tuple[str, ...] = ()


class _ErrorBody(msgspec.Struct):
    error: _Problem


class _NoRedirects(HTTPRedirectHandler):
    """HTTP handler that follows no redirect: a redirect could send the token to a different server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Remote:
    def __init__(self, url: str, token_file: Path, egress: Egress) -> None:
        self._url = _checked(url)
        self._token = _token(token_file)
        self._egress = egress

    def call(self, operation: Operation[Q, A], asked: Q) -> A:
        doubt = _DOUBT if operation.changes else ""
        with self._open(operation.method, operation.path, asked, doubt) as response:
            try:
                return msgspec.json.decode(readable(response.read()), type=operation.response)
            except (HTTPException, OSError) as error:
                raise CommandFailed(
                    FAILED, f"{self._url}: the response was truncated: {error}{doubt}"
                ) from None
            except ValueError:
                raise _no_response(self._url, response.status, doubt) from None

    def pieces(self, stream: Stream[Q], asked: Q, seconds: float | None = None) -> Iterator[bytes]:
        """Yield each piece of a response body as soon as the piece arrives.

        `seconds` is the longest time to wait for a byte. If `seconds` is None, the default time limit
        applies.
        """
        with self._open("GET", stream.path, asked, seconds=seconds) as response:
            plain = {each.partition(";")[0] for each in stream.media_types}
            if response.headers.get_content_type() not in plain:
                raise _no_response(self._url, response.status)
            while piece := self._piece(response):
                yield piece
            if response.length:  # `read1` does not report a truncated response.
                raise CommandFailed(
                    FAILED, f"{self._url}: the response was truncated: {response.length} bytes are missing"
                )

    def _piece(self, response: HTTPResponse) -> bytes:
        try:
            return response.read1(_PIECE_BYTES)
        except (HTTPException, OSError) as error:
            raise CommandFailed(FAILED, f"{self._url}: the response was truncated: {error}") from None

    def _opener(self) -> OpenerDirector:
        tls = HTTPSHandler(context=client_tls(None))
        return build_opener(_NoRedirects, tls, *egress_handlers(self._egress))

    def _open(
        self, method: str, path: str, asked: Asked, doubt: str = "", *, seconds: float | None = None
    ) -> HTTPResponse:
        """Send a request of an operation to the server, and return the response.

        If the server may have made the change, the error text ends with `doubt`.
        """
        members: dict[str, Any] = msgspec.to_builtins(asked)
        place = "/".join(
            quote(str(members.pop(part[1:-1])), safe="") if part.startswith("{") else part
            for part in path.split("/")
        )
        url, body = f"{self._url}{_ROOT}{place}", None
        headers = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "identity"}
        if method in ("GET", "DELETE"):
            url += _query(members)
        else:
            body = msgspec.json.encode(members)
            headers["Content-Type"] = "application/json"
        request = Request(url, body, headers, method=method)  # noqa: S310 - http and https, as checked
        try:
            response: HTTPResponse = self._opener().open(request, timeout=seconds or _SECONDS)
        except HTTPError as error:
            raise _failure(self._url, error, doubt) from None
        except URLError as error:  # The request was not sent.
            reason = named_reason(self._egress, url, error.reason)
            raise CommandFailed(FAILED, f"{self._url}: {reason}{cure_of_certificate(error.reason)}") from None
        except OSError as error:
            raise CommandFailed(FAILED, f"{self._url}: {error}{doubt}") from None
        except HTTPException as error:
            raise CommandFailed(
                FAILED, f"{self._url}: the response is not valid HTTP: {error}{doubt}"
            ) from None
        return response


def _query(members: Mapping[str, Any]) -> str:
    given = {name: _text(value) for name, value in members.items() if value is not None}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _no_response(url: str, status: int, doubt: str = "") -> CommandFailed:
    return CommandFailed(
        FAILED, f"{url}: responded with {status}, but not with a response of an admin API{doubt}"
    )


def _failure(url: str, error: HTTPError, doubt: str) -> CommandFailed:
    """Return the server's error in the form that commands with direct access to the store use."""
    try:
        with error:
            problem = msgspec.json.decode(readable(error.read()), type=_ErrorBody).error
    except (HTTPException, OSError, ValueError):
        return _no_response(url, error.code, doubt if error.code >= _OF_WHO_PASSES_ON else "")
    if problem.code == "unauthenticated":
        return CommandFailed(FAILED, f"{url}: this token is unknown or no longer valid")
    if problem.message == _NO_SUCH_ENDPOINT:
        return CommandFailed(
            FAILED, f"{url}: this is not the admin API, or it is of another release: {problem.message}"
        )
    status = INVALID_INPUT if problem.code in ("invalidRequest", "payloadTooLarge") else FAILED
    return CommandFailed(status, *(problem.problems or (problem.message,)))


def _checked(url: str) -> str:
    if "@" in url:  # Do not print the URL, because it may contain a password.
        raise CommandFailed(
            INVALID_INPUT, "--url: must not contain a user name or a password; the token is in --token-file"
        )
    try:
        parts = urlsplit(url)
        # `port` raises ValueError if it is not a number.
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise CommandFailed(INVALID_INPUT, f"--url: is not an address: {url!r}") from None
    if parts.scheme not in ("http", "https") or not is_address or parts.query or parts.fragment:
        raise CommandFailed(INVALID_INPUT, f"--url: must be an http:// or https:// address, not {url!r}")
    assert parts.hostname is not None
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise CommandFailed(
            INVALID_INPUT, "--url: without TLS, the token could be read in transit: use https"
        )
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            token = decoded(opened.read(_MAX_TOKEN_BYTES)).strip()
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error.strerror}") from None
    except NotUtf8 as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: can't be read: {error}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CommandFailed(INVALID_INPUT, f"{file}: must contain an API token and nothing else")
    return token
