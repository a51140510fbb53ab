"""Read HAR files (HTTP Archive 1.2 and its variants): requests to a graph API, with their responses.

The reader uses only HAR entries whose requests went to the graph API. The reader leaves out a HAR entry only
if the entry's request cannot be read. If a part of a HAR entry other than the request cannot be read, the
part counts as unknown. A HAR file contains live credentials. The reader masks credentials in header fields
while it reads the file, so that no output can show the credentials.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from controlplane.workshop.har_text import InvalidHar, read_entries
from controlplane.workshop.har_values import (
    Body,
    Fields,
    Headers,
    field_of,
    is_json,
    is_placeholder,
    is_unicode,
    member,
    read_body,
    read_fields,
    read_time,
    size_of,
    status_of,
    values_of,
)
from proxy.policy.batch import (
    BatchResponse,
    MalformedBatch,
    as_if_alone,
    is_batch,
    parse_batch,
    parse_batch_response,
)
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.facts import ResponseFacts
from proxy.policy.redaction import MASK
from proxy.policy.unknown import PartlyKnownResponse, RequestPart, ResponsePart
from proxy.wire.figures import counted

DEFAULT_BASE: Final = "https://graph.microsoft.com"
MOST_ENTRIES_NAMED: Final = 5  # entry numbers listed in one remark
_TARGET_CHARS: Final = "%/?:@!$&'()*+,;=-._~[]{}|^`\"<>\\"
_MOST_HOSTS_NAMED: Final = 5
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")  # method, RFC 9110 §9.1
_WITHOUT_BODY: Final = frozenset(("GET", "HEAD"))
_EMPTY_STATUSES: Final = frozenset((204, 205, 304))
# Recorders that keep no bodies write a size of 0 too, so such a body may still have had content.
_SAID_TO_BE_EMPTY: Final = Body(None, "is said to be empty")
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that an application sent, and its response.

    A HAR file does not contain the client's address.
    """

    number: int  # number of its entry, from 1
    time: datetime | None  # None if unknown
    method: str
    target: str
    headers: Headers
    body: bytes | None
    unknown: frozenset[RequestPart]
    response: ResponseFacts | None  # None if unknown
    part: str = ""  # id of a request within a $batch

    @property
    def answer_body(self) -> bytes | None:
        return None if self.response is None else self.response.body


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about a fault, with the numbers of the HAR entries that have the fault."""

    what: str
    count: int
    entries: tuple[int, ...]  # numbers of the first entries, from 1


@dataclass(frozen=True, slots=True)
class Har:
    exchanges: tuple[Exchange, ...]
    elsewhere: int  # number of requests to other addresses
    preflights: int  # number of CORS preflight requests, which a browser sends by itself
    left_out: tuple[Remark, ...] = ()  # reasons why entries are not among the exchanges
    unknown: tuple[Remark, ...] = ()  # facts of exchanges that are unknown


def parse_har(data: bytes, *bases: str) -> Har:
    """Return the exchanges with the graph API at one of the addresses in `bases`.

    Raise InvalidHar if the file has no exchange with the graph API.
    """
    reader = _Reader(bases or (DEFAULT_BASE,))
    text = read_entries(data)
    for number, entry in enumerate(text.entries, 1):
        reader.read(number, entry)
    if text.broken_off:
        reader.leave_out(len(text.entries) + 1, text.broken_off)
    return reader.found()


class _Unusable(Exception):
    """Error because the request of a HAR entry cannot be read.

    The message of the error is the reason why the entry's request cannot be read.
    """


class _Reader:
    """Collects the exchanges of one HAR file, and the reasons why entries or facts are missing."""

    def __init__(self, bases: Sequence[str]) -> None:
        self._bases = [(text, _base(text)) for text in bases]
        self._exchanges: list[Exchange] = []
        self._hosts: Counter[str] = Counter()
        self._preflights = 0
        self._left_out: dict[str, list[int]] = {}
        self._unknown: dict[str, list[int]] = {}

    def read(self, number: int, entry: object) -> None:
        try:
            self._read(number, entry)
        except _Unusable as unusable:
            self.leave_out(number, str(unusable))

    def leave_out(self, number: int, why: str) -> None:
        self._left_out.setdefault(why, []).append(number)

    def _miss(self, number: int, what: str, problem: str) -> None:
        if problem:
            self._unknown.setdefault(f"{what} {problem}", []).append(number)

    def found(self) -> Har:
        if not self._exchanges:
            raise InvalidHar(self._nothing())
        return Har(
            tuple(self._exchanges),
            self._hosts.total(),
            self._preflights,
            _remarks(self._left_out),
            _remarks(self._unknown),
        )

    def _nothing(self) -> str:
        """Return the reason why no exchange was found in the HAR file, and what to do."""
        said = []
        asked = " or ".join(text for text, _ in self._bases)
        if self._hosts:
            hosts = self._hosts.most_common(_MOST_HOSTS_NAMED)
            named = ", ".join(f"{host} ({count})" for host, count in hosts)
            said.append(f"no request to {asked} in the file, but to {named}: set the address with --base")
        said += [with_entries(remark) for remark in _remarks(self._left_out)]
        return (
            "; ".join(said) or "no request in the file: record the traffic of the application and export it"
        )

    def _read(self, number: int, entry: object) -> None:
        request = member(entry, "request")
        if not isinstance(request, dict):
            raise _Unusable("request is missing")
        url = _url(request)
        found = next(((text, at) for text, at in self._bases if _below(url, at) is not None), None)
        if found is None:
            self._hosts[url.netloc.rpartition("@")[2] or f"{url.scheme}:"] += 1
            return
        base, at = found
        method = member(request, "method")
        if not isinstance(method, str) or not _TOKEN.fullmatch(method):
            raise _Unusable("request.method is missing or is not an HTTP method")
        fields = read_fields(member(request, "headers"))
        if method.upper() == "OPTIONS" and values_of(fields.fields, b"access-control-request-method"):
            self._preflights += 1
            return
        target = _target(_below(url, at) or "/", url.query or _query_of(request))
        whole = self._exchange(number, entry, (method, target), fields)
        self._exchanges.append(whole)
        self._exchanges += self._parts(whole, base)

    def _exchange(self, number: int, entry: object, line: tuple[str, str], fields: Fields) -> Exchange:
        method, target = line
        time, problem = read_time(member(entry, "startedDateTime"))
        self._miss(number, "the time", problem)
        self._miss(number, "the request's headers", fields.problem)
        body = _request_body(member(entry, "request"), method, fields)
        self._miss(number, "the request's body", body.problem)
        unknown: set[RequestPart] = {"ip"}
        unknown |= {"time"} if time is None else set()
        unknown |= set() if fields.is_whole else {"header"}
        unknown |= {"body"} if body.problem else set()
        return Exchange(
            number,
            time,
            method,
            target,
            fields.fields,
            body.data,
            frozenset(unknown),
            self._response(number, member(entry, "response"), method),
        )

    def _response(self, number: int, response: object, method: str) -> ResponseFacts | None:
        status = status_of(member(response, "status"))
        if status is None:
            self._miss(number, "the response", "is not recorded or did not come")
            return None
        fields = read_fields(member(response, "headers"))
        self._miss(number, "the response's headers", fields.problem)
        body = _response_body(member(response, "content"), method, status, fields)
        if body is not _SAID_TO_BE_EMPTY:
            self._miss(number, "the response's body", body.problem)
        unknown: set[ResponsePart] = set() if fields.is_whole else {"response_header"}
        unknown |= {"property"} if body.problem else set()
        return PartlyKnownResponse(status, fields.fields, body.data, unknown=unknown)

    def _parts(self, whole: Exchange, base: str) -> Iterator[Exchange]:
        """Yield an exchange for each request within a $batch."""
        try:
            read = canonicalise(whole.target)
        except MalformedTarget:
            return
        if not is_batch(whole.method, read):
            return
        if whole.body is None:
            self._miss(whole.number, "the requests within the $batch", "are not known")
            return
        version = read.readings[0].names[0].folded[0]
        try:
            parts = parse_batch(whole.body, version, (base,))
        except MalformedBatch:
            self._miss(whole.number, "the requests within the $batch", "can't be read")
            return
        responses = _responses(whole.answer_body)
        for part in parts:
            response = responses.get(part.id.casefold())
            yield Exchange(
                whole.number,
                whole.time,
                part.method,
                part.target,
                tuple(field_of(name, value) for name, value in part.headers),
                as_if_alone(part.body),
                whole.unknown & {"ip", "time"},
                None if response is None else _response_of_part(response),
                part=part.id,
            )


def _remarks(found: dict[str, list[int]]) -> tuple[Remark, ...]:
    return tuple(
        Remark(what, len(numbers), tuple(numbers[:MOST_ENTRIES_NAMED])) for what, numbers in found.items()
    )


def remark_lines(har: Har) -> Iterator[str]:
    """Return one text line for each remark about the entries of a HAR file.

    The lines about omitted entries come first, then the lines about unknown facts of the other entries.
    """
    for remark in har.left_out:
        yield f"left out {counted(remark.count, 'entry')}: {with_entries(remark)}"
    for remark in har.unknown:
        yield f"unknown for {counted(remark.count, 'entry')}: {with_entries(remark)}"


def with_entries(remark: Remark) -> str:
    """Return the text of the remark with the numbers of the HAR entries that the remark is about."""
    named = ", ".join(map(str, remark.entries))
    more = f" and {remark.count - len(remark.entries):,} more" if remark.count > len(remark.entries) else ""
    return f"{remark.what} ({'entry' if remark.count == 1 else 'entries'} {named}{more})"


# -- the request's target


def _base(text: str) -> SplitResult:
    try:
        base = urlsplit(text)
        known = base.scheme in ("http", "https") and base.hostname and not base.query
        base.port  # noqa: B018 - raises ValueError
    except ValueError:
        known = False
    if not known:
        raise InvalidHar(f"{text} is not an address of the graph API: write an address like {DEFAULT_BASE}")
    return base


def _url(request: dict[str, object]) -> SplitResult:
    text = request.get("url")
    if not isinstance(text, str) or not text.strip():
        raise _Unusable("request.url is missing")
    text = text.strip()
    if text.startswith("/") and not text.startswith("//"):
        text = f"https://{_authority(request.get('headers'))}{text}"
    try:
        url = urlsplit(text)
        url.port  # noqa: B018 - raises ValueError
    except ValueError:
        raise _Unusable("request.url is not a URL") from None
    if not url.scheme:
        raise _Unusable("request.url is relative")
    return url


def _authority(headers: object) -> str:
    """Return the host of a request whose URL is only a path. Raise _Unusable if the request has no host."""
    fields = read_fields(headers).fields
    hosts = values_of(fields, b"host")
    if isinstance(headers, list):
        hosts += [
            str(member(each, "value")).encode() for each in headers if member(each, "name") == ":authority"
        ]
    if not hosts:
        raise _Unusable("request.url is relative, and the request names no host")
    return hosts[0].decode()


def _below(url: SplitResult, base: SplitResult) -> str | None:
    """Return the part of the URL's path below `base`, or None if the URL does not begin with `base`."""
    if (url.scheme, url.hostname, _port(url)) != (base.scheme, base.hostname, _port(base)):
        return None
    prefix = base.path.rstrip("/")
    if prefix and not url.path.startswith(f"{prefix}/"):
        return None
    return url.path[len(prefix) :] or "/"


def _port(url: SplitResult) -> int | None:
    return url.port or _PORTS.get(url.scheme)


def _query_of(request: dict[str, object]) -> str:
    """Return the query of a request from its `queryString` list, for a URL recorded without its query."""
    listed = request.get("queryString")
    if not isinstance(listed, list):
        return ""
    pairs = [(member(each, "name"), member(each, "value")) for each in listed]
    return "&".join(
        f"{quote(name, safe='$@')}={quote(value, safe=_TARGET_CHARS.replace('&', '').replace('%', ''))}"
        for name, value in pairs
        if isinstance(name, str) and isinstance(value, str) and is_unicode(name + value)
    )


def _target(path: str, query: str) -> str:
    """Return the path and the query of a recorded request as the application sent them.

    Raise _Unusable if the recording tool replaced a part of the path or query with a placeholder.
    """
    if not is_unicode(path + query):
        raise _Unusable("request.url is not valid Unicode")
    if any(_is_redacted_segment(unquote(segment)) for segment in path.split("/")):
        raise _Unusable("request.url is redacted")
    options = [_option(option) for option in query.split("&")] if query else []
    text = f"{path}?{'&'.join(options)}" if options else path
    return quote(text, safe=_TARGET_CHARS)


def _is_redacted_segment(text: str) -> bool:
    return is_placeholder(text) and (not text.isalpha() or "redacted" in text.lower())


def _option(option: str) -> str:
    """Return a query option of a recorded request.

    If the recording tool wrote a placeholder instead of the option's value, replace the placeholder with
    MASK.

    Raise _Unusable if the placeholder may stand for the name of a property.
    """
    name, mark, value = option.partition("=")
    if not is_placeholder(unquote(value if mark else name)):
        return option
    if not mark or unquote(name).lstrip().startswith("$"):
        raise _Unusable("request.url is redacted")
    return f"{name}={MASK}"


# -- bodies


def _request_body(request: object, method: str, fields: Fields) -> Body:
    post = member(request, "postData")
    size = size_of(member(request, "bodySize"))
    text = post if isinstance(post, str) else member(post, "text")
    media_type = member(post, "mimeType") or _first(fields, b"content-type")
    if text is not None and text != "":
        encoding = member(post, "encoding")
        return read_body(text, member(post, "_encoding") if encoding is None else encoding, size, media_type)
    if member(post, "params"):
        return Body(None, "is recorded as form fields only")
    declared = size_of(_first(fields, b"content-length"))
    if size or declared or _first(fields, b"transfer-encoding"):
        return Body(None, "is not recorded")
    if declared == 0 or method.upper() in _WITHOUT_BODY or (size == 0 and not media_type):
        return Body(None)
    return Body(None, "is not recorded")


def _response_body(content: object, method: str, status: int, fields: Fields) -> Body:
    size, text = size_of(member(content, "size")), member(content, "text")
    media_type = member(content, "mimeType") or _first(fields, b"content-type")
    if text is not None and text != "":
        return read_body(text, member(content, "encoding"), size, media_type)
    if method.upper() == "HEAD" or status < 200 or status in _EMPTY_STATUSES:
        return Body(None)
    declared = size_of(_first(fields, b"content-length"))
    if not size and (declared == 0 or (text == "" and not declared and not is_json(media_type))):
        return Body(None)
    if size == 0 and text is None and not declared:
        return _SAID_TO_BE_EMPTY
    return Body(None, "is not recorded")


def _first(fields: Fields, name: bytes) -> str | None:
    return next((value.decode() for value in values_of(fields.fields, name)), None)


def _responses(body: bytes | None) -> dict[str, BatchResponse]:
    if body is None:
        return {}
    try:
        return {response.id.casefold(): response for response in parse_batch_response(body)}
    except MalformedBatch:
        return {}


def _response_of_part(response: BatchResponse) -> ResponseFacts:
    headers = tuple(field_of(name, value) for name, value in response.headers)
    return ResponseFacts(response.status, headers, response.body)
