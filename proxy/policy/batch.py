"""JSON batching of Microsoft Graph: parse a batch strictly, and rebuild it byte by byte.

The proxy evaluates a sub-request like a separate request, so the proxy and the upstream must read the
sub-request in the same way. A batch that another parser might read differently is refused. Examples of a
refused batch:

- a member name that occurs twice or in another letter case
- a `url` with the address of another server
- an API version in the `url` of a sub-request
- a $batch within the $batch
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from proxy.policy import json_text
from proxy.policy.canonical import MAX_LIGATURES, TARGET_CHARS, Target
from proxy.policy.decision import Decision
from proxy.policy.odata import ligatures
from proxy.policy.origins import parse_address
from proxy.policy.ruleset import DEFAULT_RULE_ID

T = TypeVar("T")

MAX_PARTS: Final = 20  # Graph's own limit
# `parse_batch` uses these limits so that reading a body costs no more than a batch may cost.
_MOST_MEMBERS: Final = 1000  # members of one object; headers have the most
_MOST_VALUES: Final = 100_000  # values of one body, which are searched several times: a fifth of a second
_MOST_URL_BYTES: Final = MAX_PARTS * 16 * 1024  # bytes of all `url` members together

_PART_NAMES: Final = frozenset({"id", "method", "url", "headers", "body", "dependsOn", "atomicityGroup"})
_RESPONSE_NAMES: Final = frozenset({"id", "status", "headers", "body"})
_LOCATIONS: Final = frozenset({"location", "content-location", "operation-location", "link"})
# Some SDKs copy these headers into every sub-request. The application's proxy token is not valid at the
# upstream.
_CREDENTIALS: Final = frozenset({"authorization"})
_OF_THE_BODY: Final = frozenset({"content-length", "content-md5", "digest", "content-digest", "repr-digest"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2
# characters; plans are remembered by method, and the longest registered method has 17 letters
_LONGEST_METHOD: Final = 32
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_VERSION: Final = re.compile(r"v[0-9]+(\.[0-9]+)?|beta|edge|canary|stagingv1\.0|stagingbeta")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_MAX_DECODINGS: Final = 8
_STANDARD_BASE64: Final = bytes.maketrans(b"-_", b"+/")
_BETWEEN_BASE64: Final = b" \t\r\n"  # blanks, which many decoders skip


class MalformedBatch(ValueError):
    """Error because the body is not a $batch, or because parsers can read the body in more than one way."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    id: str
    method: str
    url: str  # `url` as written
    target: str  # target if the sub-request came alone: /v1.0/users?$top=1
    headers: tuple[tuple[str, str], ...]
    body: bytes | None  # exact text; None if absent or null
    depends_on: tuple[str, ...]  # ids in the spelling of the sub-requests that they name
    raw: bytes  # exact text, except that an absolute url is made relative and a credential is removed
    changed: bool = False  # True if `raw` differs from the original text


@dataclass(frozen=True, slots=True)
class BatchResponse:
    id: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    raw: bytes

    def with_body(self, body: bytes) -> bytes:
        """Return the text of a sub-request's response after `body` has replaced the previous body.

        The returned text has no header fields that describe the replaced body. The function changes no other
        byte of the sub-request's response.
        """
        if body == self.body:
            return self.raw
        entry = _Entry(self.raw, _RESPONSE_NAMES)
        where = entry.members.get("body")
        if where is None:
            raise MalformedBatch("a response in the batch has no `body`")
        edits = [(where.value_start, where.value_end, body), *_header_cuts(entry, _OF_THE_BODY)]
        return _edited(self.raw, edits)

    def relocated(self, turned: Callable[[bytes], bytes]) -> BatchResponse:
        """Rewrite Location and similar headers of a sub-request's response with the function `turned`.

        Except for the rewritten headers, the bytes of the response stay unchanged.
        """
        edits = []
        for name, where in _Entry(self.raw, _RESPONSE_NAMES).header_places():
            if name.casefold() in _LOCATIONS:
                before = _string(self.raw[where.value_start : where.value_end], "headers").encode()
                after = turned(before)
                if after != before:
                    edits.append((where.value_start, where.value_end, json.dumps(after.decode()).encode()))
        return replace(self, raw=_edited(self.raw, edits)) if edits else self


_ALLOWED: Final = Decision("allow", DEFAULT_RULE_ID, reason="default")


def is_batch(method: str, target: Target) -> bool:
    """Return True if the request is a $batch in any interpretation of its target."""
    return method == "POST" and target.may_end_in("$batch")


def envelope_decision(decision: Decision) -> Decision:
    """Return the decision on the outer $batch request.

    The sub-requests of the batch are evaluated and filtered one by one. Therefore, an outer $batch request is
    blocked only if a rule matches the path of the outer request.
    """
    if decision.verdict == "block" and decision.rule_id == DEFAULT_RULE_ID:
        return _ALLOWED
    if decision.verdict == "filter":
        return replace(decision, verdict="allow", transforms=None)
    return decision


def parse_batch(body: bytes, version: str, bases: tuple[str, ...]) -> tuple[BatchPart, ...]:
    """Return the sub-requests in the body of POST /{version}/$batch, in their order.

    An absolute `url` of a sub-request must begin with one of the `bases`: the addresses of the upstream and
    of the proxy.
    """
    _refuse_many_values(body)
    entries = [
        _Entry(raw, _PART_NAMES) for raw in _at_most(MAX_PARTS, _entries(body, "requests"), "requests")
    ]
    if not entries:
        raise MalformedBatch("`requests` is empty")
    if sum(len(entry.text("url") or b"") for entry in entries) > _MOST_URL_BYTES:
        raise MalformedBatch(
            f"the `url` members of the batch together have more than {_MOST_URL_BYTES} bytes"
        )
    return _with_known_dependencies(tuple(_part(entry, version, bases) for entry in entries))


def _refuse_many_values(body: bytes) -> None:
    try:
        many = json_text.has_more_values(body, _MOST_VALUES)
    except json_text.JsonTextError as error:
        raise MalformedBatch(str(error)) from error
    if many:
        raise MalformedBatch(f"the body of the batch has more than {_MOST_VALUES} JSON values")


def reduced_batch(body: bytes, parts: Sequence[BatchPart], keep: Set[str]) -> bytes:
    """Return the batch with only the sub-requests whose IDs are in `keep`.

    No sub-request in `keep` may depend on a sub-request that is left out.
    """
    requests = _member(body, "requests")
    kept = b",".join(part.raw for part in parts if part.id in keep)
    return body[: requests.value_start] + b"[" + kept + b"]" + body[requests.value_end :]


def parse_batch_response(body: bytes) -> tuple[BatchResponse, ...]:
    responses = tuple(_response(entry) for entry in _entries(body, "responses"))
    if len({response.id.casefold() for response in responses}) < len(responses):
        raise MalformedBatch("two responses in the batch have the same `id`")
    return responses


def made_response(part_id: str, status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the text of a response that the proxy itself makes to a sub-request. `body` is a JSON text."""
    head = json.dumps({"id": part_id, "status": status, "headers": dict(headers)}, separators=(",", ":"))
    return head[:-1].encode() + b',"body":' + body + b"}"


def merged_response(
    body: bytes, order: Sequence[str], finished: Sequence[tuple[str, bytes]], own: Mapping[str, bytes]
) -> bytes:
    """Return the response to the whole $batch, with responses of the upstream and of the proxy.

    `body` is the response that the upstream sent; its array of responses is replaced. `order` has the IDs of
    all sub-requests in the order of the batch. `finished` has the ID and the text of each upstream response;
    the result keeps the order of these responses. `own` maps the ID of a sub-request to the text of the
    proxy's own response. Each response in `own` is placed before the upstream response to the next
    sub-request of the batch.
    """
    responded = {part_id for part_id, _ in finished}
    before: dict[str, list[bytes]] = {}
    waiting: list[bytes] = []
    for part_id in order:
        if part_id in responded:
            before[part_id], waiting = waiting, []
        elif part_id in own:
            waiting.append(own[part_id])
    texts: list[bytes] = []
    for part_id, text in finished:
        texts += before.get(part_id, [])
        texts.append(text)
    responses = _member(body, "responses")
    return (
        body[: responses.value_start] + b"[" + b",".join(texts + waiting) + b"]" + body[responses.value_end :]
    )


def as_if_alone(body: bytes | None) -> bytes | None:
    """Decode the body of a sub-request or of its response, as if the body had been sent outside a batch.

    A body that is not JSON is a base64 string in the batch, in the standard or the URL-safe alphabet.
    """
    if body is None or body[:1] != b'"':
        return body
    text = json_text.decoded_string(body).encode("utf-8", "replace")
    coded = text.translate(_STANDARD_BASE64, _BETWEEN_BASE64).rstrip(b"=")
    try:
        return base64.b64decode(coded + b"=" * (-len(coded) % 4), validate=True)
    except binascii.Error:
        return text


# Parsing of JSON


def _entries(body: bytes, name: str) -> Iterator[bytes]:
    """Yield the texts of the JSON objects in the batch's array `requests` or `responses`."""
    found = _member(body, name)
    if body[found.value_start : found.value_start + 1] != b"[":
        raise MalformedBatch(f"`{name}` in the batch is not an array")
    for start, end in json_text.elements(body, found.value_start):
        if body[start : start + 1] != b"{":
            raise MalformedBatch(f"an item of `{name}` in the batch is not a JSON object")
        yield body[start:end]


def _member(body: bytes, name: str) -> json_text.Member:
    try:
        json_text.validate(body)
    except json_text.JsonTextError as error:
        raise MalformedBatch(str(error)) from error
    start = json_text.value_start(body)
    if body[start : start + 1] != b"{":
        raise MalformedBatch("the body of the batch is not a JSON object")
    found = _members(body, start, frozenset({name})).get(name)
    if found is None:
        raise MalformedBatch(f"`{name}` is missing")
    return found


def _members(text: bytes, start: int, names: Set[str]) -> dict[str, json_text.Member]:
    """Return the members of one JSON object in the batch, by name.

    Refuse a member name that occurs twice, or that differs from one of `names` only in letter case.
    """
    found: dict[str, json_text.Member] = {}
    seen: set[str] = set()
    folded = {name.casefold() for name in names}
    for member in _at_most(_MOST_MEMBERS, json_text.members(text, start), "members in an object"):
        fold = member.name.casefold()
        if fold in seen or (fold in folded and member.name not in names):
            raise MalformedBatch(
                f"`{_printable(member.name)}` occurs twice in an object of the batch, or its letter case "
                "differs from the defined name"
            )
        seen.add(fold)
        found[member.name] = member
    return found


def _at_most(limit: int, found: Iterable[T], what: str) -> Iterator[T]:
    """Yield the items of the batch.

    If the batch has more than `limit` items, raise MalformedBatch without an examination of the extra item.
    """
    for count, each in enumerate(found):
        if count == limit:
            raise MalformedBatch(f"the batch has more than {limit} {what}")
        yield each


class _Entry:
    """One object in the batch's array of requests or responses, with typed access to its members."""

    def __init__(self, raw: bytes, names: Set[str]) -> None:
        self.raw = raw
        self.members = _members(raw, 0, names)

    def text(self, name: str) -> bytes | None:
        """Return the exact text of a JSON member's value; None if the member is absent or null."""
        member = self.members.get(name)
        if member is None:
            return None
        value = self.raw[member.value_start : member.value_end]
        return None if value == b"null" else value

    def string(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise MalformedBatch(f"an item of the batch has no `{name}`")
        return _string(value, name)

    def headers(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, _string(self.raw[where.value_start : where.value_end], "headers"))
            for name, where in self.header_places()
        )

    def header_places(self) -> Iterator[tuple[str, json_text.Member]]:
        """Yield the name and the position in `raw` of each sub-request header that has a value."""
        value = self.text("headers")
        if value is None:
            return
        if value[:1] != b"{":
            raise MalformedBatch("`headers` in the batch is not a JSON object")
        for name, where in _members(self.raw, self.members["headers"].value_start, frozenset()).items():
            if self.raw[where.value_start : where.value_end] != b"null":
                yield name, where


def _string(value: bytes, name: str) -> str:
    if value[:1] != b'"':
        raise MalformedBatch(f"`{name}` in the batch is not a string")
    text = json_text.decoded_string(value)
    if _CONTROL.search(text):
        raise MalformedBatch(f"`{name}` in the batch contains a control character")
    if _SURROGATE.search(text):
        raise MalformedBatch(f"`{name}` in the batch contains a lone surrogate (half of a UTF-16 pair)")
    return text


def _part(entry: _Entry, version: str, bases: tuple[str, ...]) -> BatchPart:
    method, url = entry.string("method"), entry.string("url")
    part_id = entry.string("id")
    if not part_id:
        raise MalformedBatch("`id` is empty")
    if len(method) > _LONGEST_METHOD or not _TOKEN.fullmatch(method):
        raise MalformedBatch("`method` of a sub-request is not an HTTP method")
    headers = entry.headers()
    if not all(_TOKEN.fullmatch(name) for name, _ in headers):
        raise MalformedBatch("a name in `headers` is not a valid header name")
    relative = _relative_url(url, version, bases)
    edits = _header_cuts(entry, _CREDENTIALS)
    if relative != url:
        where = entry.members["url"]
        edits.append((where.value_start, where.value_end, json.dumps(relative).encode()))
    return BatchPart(
        id=part_id,
        method=method.upper(),  # the upstream may or may not ignore the letter case of methods
        url=url,
        target=_target(relative, version),
        headers=headers,
        body=entry.text("body"),
        depends_on=_depends_on(entry),
        raw=_edited(entry.raw, edits),
        changed=bool(edits),
    )


def _header_cuts(entry: _Entry, names: Set[str]) -> list[tuple[int, int, bytes]]:
    """Return the text edits that remove the headers in `names` from an entry of the batch."""
    where = entry.members.get("headers")
    if where is None or entry.text("headers") is None:
        return []
    cuts = []
    some_stay = False
    fields = list(json_text.members(entry.raw, where.value_start))
    for at, field in enumerate(fields):
        if field.name.casefold() not in names:
            some_stay = True
        elif some_stay:
            cuts.append((fields[at - 1].value_end, field.value_end, b""))
        else:
            end = fields[at + 1].start if at + 1 < len(fields) else field.value_end
            cuts.append((field.start, end, b""))
    return cuts


def _edited(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _response(raw: bytes) -> BatchResponse:
    entry = _Entry(raw, _RESPONSE_NAMES)
    status = entry.text("status") or b""
    if not re.fullmatch(rb"[1-5][0-9]{2}", status):
        raise MalformedBatch("`status` of a response in the batch is not an HTTP status code")
    return BatchResponse(entry.string("id"), int(status), entry.headers(), entry.text("body"), raw)


def _depends_on(entry: _Entry) -> tuple[str, ...]:
    value = entry.text("dependsOn")
    if value is None:
        return ()
    if value[:1] != b"[":
        raise MalformedBatch("`dependsOn` of a sub-request is not an array")
    names = _at_most(MAX_PARTS, json_text.elements(value, 0), "ids in `dependsOn`")
    return tuple(_string(value[start:end], "dependsOn") for start, end in names)


def _with_known_dependencies(parts: tuple[BatchPart, ...]) -> tuple[BatchPart, ...]:
    """Return the sub-requests, with each ID in `dependsOn` spelled like the `id` that it refers to.

    Microsoft Graph compares IDs of sub-requests without regard to letter case.
    """
    ids = {part.id.casefold(): part.id for part in parts}
    if len(ids) < len(parts):
        raise MalformedBatch("two sub-requests of the batch have the same `id`")
    dependencies: dict[str, set[str]] = {}
    for part in parts:
        for needed in part.depends_on:
            if needed.casefold() not in ids:
                raise MalformedBatch("`dependsOn` names a request that is not in the batch")
        dependencies[part.id] = {ids[needed.casefold()] for needed in part.depends_on}
    _refuse_cycles(dependencies)
    return tuple(
        replace(part, depends_on=tuple(ids[needed.casefold()] for needed in part.depends_on))
        for part in parts
    )


def _refuse_cycles(dependencies: Mapping[str, Set[str]]) -> None:
    done: set[str] = set()
    while len(done) < len(dependencies):
        ready = {name for name, needed in dependencies.items() if name not in done and needed <= done}
        if not ready:
            raise MalformedBatch("sub-requests depend on each other in a cycle")
        done |= ready


# Parsing of addresses


def _relative_url(url: str, version: str, bases: tuple[str, ...]) -> str:
    """Return a sub-request's `url` in the upstream's interpretation, relative to the API version's root."""
    if _SCHEME.match(url):
        url = _without_base(url, version, bases)
    path = url.partition("?")[0]
    if not path.strip("/"):
        raise MalformedBatch("the `url` of a sub-request has no path")
    if "#" in url:
        raise MalformedBatch("the `url` of a sub-request has a fragment")
    for reading in _readings(path):
        if reading.startswith(("//", "/\\", "\\")) or _SCHEME.match(reading):
            raise MalformedBatch("the `url` of a sub-request leads to another server than the batch")
        if "$batch" in reading:
            raise MalformedBatch("the batch contains another batch")
        first = _first_segment(reading)
        if _VERSION.fullmatch(first):
            raise MalformedBatch("the `url` of a sub-request contains an API version")
        if first.startswith("$"):
            # OData 4.01 Part 1 §11.7.3.1: such a url stands for the entity of another sub-request, which
            # rules cannot evaluate.
            raise MalformedBatch("the `url` of a sub-request refers to another sub-request of the batch")
    return url


def _without_base(url: str, version: str, bases: tuple[str, ...]) -> str:
    """Return the part of a sub-request's absolute `url` after the API version.

    The host and port in `url` may be spelled differently from the same host and port in a base address, for
    example in capital letters. The same applies to links in responses. The proxy always sends a sub-request
    to the upstream, even if the `url` spells the host differently.
    """
    given = parse_address(url)
    for base in bases:
        wanted = parse_address(base)
        if wanted is None or given is None or wanted.origin != given.origin:
            continue
        root = f"{wanted.rest}/{version}/"
        if given.rest[: len(root)].casefold() == root.casefold():
            return given.rest[len(root) - 1 :]
    raise MalformedBatch(
        "the `url` of a sub-request leads to a server or API version other than that of the batch"
    )


def _readings(path: str) -> Iterator[str]:
    """Yield the path of a sub-request, first unchanged and then after each repeated decoding.

    Lenient parsers may decode a path repeatedly.
    """
    for _ in range(_MAX_DECODINGS):
        if ligatures(path) > MAX_LIGATURES:
            raise MalformedBatch(
                "the `url` of a sub-request has too many characters that case folding expands to"
                " several characters"
            )
        yield unicodedata.normalize("NFKC", path).casefold()
        decoded = unquote(path, errors="replace")
        if decoded == path:
            return
        path = decoded
    raise MalformedBatch("the `url` of a sub-request is percent-encoded too many times")


def _first_segment(path: str) -> str:
    """Return the path's first segment that is not empty, after dot segments are removed (RFC 3986 §5.2.4)."""
    segments: list[str] = []
    for segment in re.split(r"[/\\]", path):
        name = segment.partition(";")[0].strip()
        if name == "..":
            segments = segments[:-1]
        elif name not in ("", "."):
            segments.append(name)
    return segments[0] if segments else ""


def _target(url: str, version: str) -> str:
    return f"/{version}/" + quote(url.removeprefix("/"), safe=TARGET_CHARS)


def _printable(name: str) -> str:
    return name[:40].encode("ascii", "backslashreplace").decode()
