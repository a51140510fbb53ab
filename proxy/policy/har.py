"""HAR files (HTTP Archive 1.2, as browsers and mitmproxy write them): requests to a graph API, with answers.

Such a file holds live credentials. Their header fields are masked while it is read, so that nothing made of
it can show one.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from proxy.policy.abridged import MASK
from proxy.policy.batch import (
    BatchAnswer,
    MalformedBatch,
    as_if_alone,
    is_batch,
    parse_batch,
    parse_batch_answer,
)
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.facts import AnswerFacts
from proxy.policy.unknown import AnswerPart, PartlyKnownAnswer, RequestPart

DEFAULT_BASE: Final = "https://graph.microsoft.com"
_CREDENTIALS: Final = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"))
_TARGET_CHARS: Final = "%/?:@!$&'()*+,;=-._~[]{}|^`\"<>\\"
_MOST_NAMED: Final = 5
_BOM: Final = b"\xef\xbb\xbf"

Headers = tuple[tuple[bytes, bytes], ...]


class InvalidHar(ValueError):
    """The file is no HAR, or none of use: the text says where and why, and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as an application sent it, and what came of it. The client's address isn't in a HAR."""

    number: int  # of its entry, from 1
    time: datetime
    method: str
    target: str
    headers: Headers
    body: bytes | None
    unknown: frozenset[RequestPart]
    answer: AnswerFacts | None
    part: str = ""  # of a $batch: its id

    @property
    def answer_body(self) -> bytes | None:
        return None if self.answer is None else self.answer.body


@dataclass(frozen=True, slots=True)
class Har:
    exchanges: tuple[Exchange, ...]
    elsewhere: int  # requests to other addresses
    preflights: int  # a browser's own, before a request to another origin


# -- the file


class _Field(msgspec.Struct):
    name: str
    value: str


class _PostData(msgspec.Struct):
    text: str | None = None
    encoding: str | None = None


class _Request(msgspec.Struct, rename="camel"):
    method: str
    url: str
    headers: list[_Field] = []
    post_data: _PostData | None = None
    body_size: int | float | None = None


class _Content(msgspec.Struct):
    text: str | None = None
    encoding: str | None = None
    size: int | float | None = None


class _Response(msgspec.Struct):
    status: int
    headers: list[_Field] = []
    content: _Content | None = None


class _Entry(msgspec.Struct, rename="camel"):
    request: _Request
    started_date_time: str = ""
    response: _Response | None = None


class _Log(msgspec.Struct):
    entries: list[_Entry]


class _File(msgspec.Struct):
    log: _Log


def parse_har(data: bytes, base: str = DEFAULT_BASE) -> Har:
    """The exchanges with the graph API at `base`. Raises InvalidHar."""
    at = _base(base)
    try:
        entries = msgspec.json.decode(data.removeprefix(_BOM), type=_File).log.entries
    except msgspec.ValidationError as error:
        raise InvalidHar(f"not a HAR file: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidHar(f"not a HAR file, which is JSON: {error}") from None
    exchanges: list[Exchange] = []
    hosts: Counter[str] = Counter()
    preflights = 0
    for number, entry in enumerate(entries, 1):
        try:
            url = urlsplit(entry.request.url)
            target = _target(url, at)
        except ValueError:
            raise InvalidHar(f"entry {number}: its url is none") from None
        if target is None:
            hosts[url.netloc.rpartition("@")[2] or f"{url.scheme}:"] += 1
        elif _is_preflight(entry.request):
            preflights += 1
        else:
            exchanges += _exchanges(number, entry, target, base)
    if not exchanges and hosts:
        named = ", ".join(f"{host} ({count})" for host, count in hosts.most_common(_MOST_NAMED))
        raise InvalidHar(f"no request to {base} in it, but to {named}")
    if not exchanges:
        raise InvalidHar("no request in it")
    return Har(tuple(exchanges), hosts.total(), preflights)


def _base(text: str) -> SplitResult:
    try:
        base = urlsplit(text)
        known = base.scheme in ("http", "https") and base.hostname and not base.query
        base.port  # noqa: B018 - which may be none
    except ValueError:
        known = False
    if not known:
        raise InvalidHar(f"{text}: the graph API's address is written as {DEFAULT_BASE}")
    return base


def _target(url: SplitResult, base: SplitResult) -> str | None:
    """Path and query below the base, as they crossed the wire; None where it is another's."""
    if (url.scheme, url.hostname, _port(url)) != (base.scheme, base.hostname, _port(base)):
        return None
    prefix = base.path.rstrip("/")
    if prefix and not url.path.startswith(f"{prefix}/"):
        return None
    text = url.path[len(prefix) :] or "/"
    if url.query:
        text += f"?{url.query}"
    return quote(text, safe=_TARGET_CHARS)


def _port(url: SplitResult) -> int | None:
    return url.port or {"https": 443, "http": 80}.get(url.scheme)


def _is_preflight(request: _Request) -> bool:
    return request.method.upper() == "OPTIONS" and any(
        field.name.lower() == "access-control-request-method" for field in request.headers
    )


def _exchanges(number: int, entry: _Entry, target: str, base: str) -> Iterator[Exchange]:
    """The request, and after a $batch its parts."""
    request = entry.request
    post = request.post_data
    body = None if post is None else _bytes(number, post.text, post.encoding)
    unknown: set[RequestPart] = {"ip"}
    if body is None and request.body_size is not None and request.body_size > 0:
        unknown.add("body")
    whole = Exchange(
        number,
        _time(number, entry.started_date_time),
        request.method,
        target,
        _fields(request.headers),
        body,
        frozenset(unknown),
        _answer(number, entry.response),
    )
    yield whole
    yield from _parts(whole, base)


def _parts(whole: Exchange, base: str) -> Iterator[Exchange]:
    try:
        read = canonicalise(whole.target)
        if not is_batch(whole.method, read) or whole.body is None:
            return
        version = read.readings[0].names[0].folded[0]
        parts = parse_batch(whole.body, version, upstream_base=base, proxy_base=base)
    except (MalformedTarget, MalformedBatch):
        return
    answers = _answers(whole.answer_body)
    for part in parts:
        answer = answers.get(part.id.casefold())
        yield Exchange(
            whole.number,
            whole.time,
            part.method,
            part.target,
            tuple(_field(name, value) for name, value in part.headers),
            as_if_alone(part.body),
            frozenset(("ip",)),
            None
            if answer is None
            else AnswerFacts(
                answer.status, tuple(_field(name, value) for name, value in answer.headers), answer.body
            ),
            part=part.id,
        )


def _answers(body: bytes | None) -> dict[str, BatchAnswer]:
    if body is None:
        return {}
    try:
        return {answer.id.casefold(): answer for answer in parse_batch_answer(body)}
    except MalformedBatch:
        return {}


def _answer(number: int, response: _Response | None) -> AnswerFacts | None:
    """None where none came: a browser notes a status of 0 then."""
    if response is None or not 100 <= response.status <= 999:
        return None
    content = response.content or _Content()
    body = _bytes(number, content.text, content.encoding)
    unknown: frozenset[AnswerPart] = frozenset()
    if body is None and content.size is not None and content.size > 0:
        unknown = frozenset(("property",))
    return PartlyKnownAnswer(response.status, _fields(response.headers), body, unknown=unknown)


def _fields(fields: Sequence[_Field]) -> Headers:
    """Without HTTP/2's own, which are no fields."""
    return tuple(_field(field.name, field.value) for field in fields if not field.name.startswith(":"))


def _field(name: str, value: str) -> tuple[bytes, bytes]:
    shown = MASK if name.lower() in _CREDENTIALS else value
    return name.encode("latin-1", "replace"), shown.encode("utf-8", "replace")


def _bytes(number: int, text: str | None, encoding: str | None) -> bytes | None:
    if text is None:
        return None
    if encoding == "base64":
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidHar(f"entry {number}: a body in base64 is malformed") from None
    return text.encode("utf-8", "replace")


def _time(number: int, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise InvalidHar(f"entry {number}: startedDateTime is no time") from None
    if not 1970 < moment.year < 9999:
        raise InvalidHar(f"entry {number}: startedDateTime is one that some zone's calendar has no day for")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
