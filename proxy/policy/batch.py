"""Requests within a request: Graph's JSON batching, read strictly and put together again byte by byte.

A part is evaluated as if it came alone, so it must mean the same to us and to the upstream. What another
reader might take differently is refused: a name twice or in another letter case, an address elsewhere, a
version of its own, a batch within the batch.
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
# What is read of a body before it is known to be a batch must not cost more than one: see `parse_batch`.
_MOST_MEMBERS: Final = 1000  # of an object; headers are the most that one has
_MOST_VALUES: Final = 100_000  # whose places are looked for several times: a fifth of a second
_MOST_URL_BYTES: Final = MAX_PARTS * 16 * 1024  # of all parts together

_PART_NAMES: Final = frozenset({"id", "method", "url", "headers", "body", "dependsOn", "atomicityGroup"})
_RESPONSE_NAMES: Final = frozenset({"id", "status", "headers", "body"})
_LOCATIONS: Final = frozenset({"location", "content-location", "operation-location", "link"})
# Some SDKs write it into every part; the proxy's token is not the upstream's.
_CREDENTIALS: Final = frozenset({"authorization"})
_OF_THE_BODY: Final = frozenset({"content-length", "content-md5", "digest", "content-digest", "repr-digest"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2
_LONGEST_METHOD: Final = 32  # plans are remembered by method; the longest that is registered has 17 letters
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_VERSION: Final = re.compile(r"v[0-9]+(\.[0-9]+)?|beta|edge|canary|stagingv1\.0|stagingbeta")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_MAX_DECODINGS: Final = 8
_STANDARD_BASE64: Final = bytes.maketrans(b"-_", b"+/")
_BETWEEN_BASE64: Final = b" \t\r\n"  # many decoders pass over blanks


class MalformedBatch(ValueError):
    """Not a batch, or one that can be read in more than one way."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    id: str
    method: str
    url: str  # as written
    target: str  # as if it came alone: /v1.0/users?$top=1
    headers: tuple[tuple[str, str], ...]
    body: bytes | None  # exact text; None if absent or null
    depends_on: tuple[str, ...]  # ids as the parts themselves spell them
    raw: bytes  # exact text, save that an absolute url is made relative and a credential taken out
    changed: bool = False  # whether it was


@dataclass(frozen=True, slots=True)
class BatchResponse:
    id: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    raw: bytes

    def with_body(self, body: bytes) -> bytes:
        """The text of the response with another body, and without what its headers tell of the one it had;
        its other bytes as they were."""
        if body == self.body:
            return self.raw
        entry = _Entry(self.raw, _RESPONSE_NAMES)
        where = entry.members.get("body")
        if where is None:
            raise MalformedBatch("a response without a body")
        edits = [(where.value_start, where.value_end, body), *_header_cuts(entry, _OF_THE_BODY)]
        return _edited(self.raw, edits)

    def relocated(self, turned: Callable[[bytes], bytes]) -> BatchResponse:
        """The response with what `turned` makes of Location and its relatives, its other bytes as they
        were."""
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
    """Whether any reading of the target is a batch's."""
    return method == "POST" and target.may_end_in("$batch")


def envelope_decision(decision: Decision) -> Decision:
    """Of the batch itself: only a rule that means it can block it, since its parts are evaluated and filtered
    one by one."""
    if decision.verdict == "block" and decision.rule_id == DEFAULT_RULE_ID:
        return _ALLOWED
    if decision.verdict == "filter":
        return replace(decision, verdict="allow", transforms=None)
    return decision


def parse_batch(body: bytes, version: str, bases: tuple[str, ...]) -> tuple[BatchPart, ...]:
    """The parts of the body of POST /{version}/$batch, in their order. An absolute `url` begins with one of
    the `bases`, which are the addresses of the upstream and of the proxy."""
    _refuse_many_values(body)
    entries = [
        _Entry(raw, _PART_NAMES) for raw in _at_most(MAX_PARTS, _entries(body, "requests"), "requests")
    ]
    if not entries:
        raise MalformedBatch("a batch without requests")
    if sum(len(entry.text("url") or b"") for entry in entries) > _MOST_URL_BYTES:
        raise MalformedBatch(f"urls of more than {_MOST_URL_BYTES} bytes together")
    return _with_known_dependencies(tuple(_part(entry, version, bases) for entry in entries))


def _refuse_many_values(body: bytes) -> None:
    try:
        many = json_text.has_more_values(body, _MOST_VALUES)
    except json_text.JsonTextError as error:
        raise MalformedBatch(str(error)) from error
    if many:
        raise MalformedBatch(f"more than {_MOST_VALUES} values")


def reduced_batch(body: bytes, parts: Sequence[BatchPart], keep: Set[str]) -> bytes:
    """The batch with only the parts whose ids are in `keep`. Nothing kept may depend on anything else."""
    requests = _member(body, "requests")
    kept = b",".join(part.raw for part in parts if part.id in keep)
    return body[: requests.value_start] + b"[" + kept + b"]" + body[requests.value_end :]


def parse_batch_response(body: bytes) -> tuple[BatchResponse, ...]:
    responses = tuple(_response(entry) for entry in _entries(body, "responses"))
    if len({response.id.casefold() for response in responses}) < len(responses):
        raise MalformedBatch("two responses with one id")
    return responses


def made_response(part_id: str, status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    """The text of a response of our own; `body` is a JSON text."""
    head = json.dumps({"id": part_id, "status": status, "headers": dict(headers)}, separators=(",", ":"))
    return head[:-1].encode() + b',"body":' + body + b"}"


def merged_response(
    body: bytes, order: Sequence[str], finished: Sequence[tuple[str, bytes]], own: Mapping[str, bytes]
) -> bytes:
    """The response to the whole batch: `body`, the upstream's, with other responses.

    `order` has the ids of the request's parts. `finished` has id and text of the upstream's responses and
    keeps its order; `own` has the texts of the others by id. Each of ours comes before the response of the
    next part that the upstream has responded.
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
    """What the text of a part's body, in a request or a response, would be if the part came alone: what is no
    JSON travels as a string, in base64 of either alphabet."""
    if body is None or body[:1] != b'"':
        return body
    text = json_text.decoded_string(body).encode("utf-8", "replace")
    coded = text.translate(_STANDARD_BASE64, _BETWEEN_BASE64).rstrip(b"=")
    try:
        return base64.b64decode(coded + b"=" * (-len(coded) % 4), validate=True)
    except binascii.Error:
        return text


# Reading


def _entries(body: bytes, name: str) -> Iterator[bytes]:
    """The texts of the objects in the array of this name, the one member that matters."""
    found = _member(body, name)
    if body[found.value_start : found.value_start + 1] != b"[":
        raise MalformedBatch(f"`{name}` is no array")
    for start, end in json_text.elements(body, found.value_start):
        if body[start : start + 1] != b"{":
            raise MalformedBatch(f"something in `{name}` is no object")
        yield body[start:end]


def _member(body: bytes, name: str) -> json_text.Member:
    try:
        json_text.validate(body)
    except json_text.JsonTextError as error:
        raise MalformedBatch(str(error)) from error
    start = json_text.value_start(body)
    if body[start : start + 1] != b"{":
        raise MalformedBatch("not an object")
    found = _members(body, start, frozenset({name})).get(name)
    if found is None:
        raise MalformedBatch(f"no `{name}`")
    return found


def _members(text: bytes, start: int, names: Set[str]) -> dict[str, json_text.Member]:
    """The members of an object by name: none twice, none that differs from `names` only in letter case."""
    found: dict[str, json_text.Member] = {}
    seen: set[str] = set()
    folded = {name.casefold() for name in names}
    for member in _at_most(_MOST_MEMBERS, json_text.members(text, start), "members in an object"):
        fold = member.name.casefold()
        if fold in seen or (fold in folded and member.name not in names):
            raise MalformedBatch(f"`{_printable(member.name)}` twice or in another letter case")
        seen.add(fold)
        found[member.name] = member
    return found


def _at_most(limit: int, found: Iterable[T], what: str) -> Iterator[T]:
    """What was found; the one past the limit is refused before it, or anything behind it, is looked at."""
    for count, each in enumerate(found):
        if count == limit:
            raise MalformedBatch(f"more than {limit} {what}")
        yield each


class _Entry:
    """One object of the array, and typed access to its members."""

    def __init__(self, raw: bytes, names: Set[str]) -> None:
        self.raw = raw
        self.members = _members(raw, 0, names)

    def text(self, name: str) -> bytes | None:
        """The exact text of a member's value; None if it is absent or null."""
        member = self.members.get(name)
        if member is None:
            return None
        value = self.raw[member.value_start : member.value_end]
        return None if value == b"null" else value

    def string(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise MalformedBatch(f"an entry without `{name}`")
        return _string(value, name)

    def headers(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, _string(self.raw[where.value_start : where.value_end], "headers"))
            for name, where in self.header_places()
        )

    def header_places(self) -> Iterator[tuple[str, json_text.Member]]:
        """Name of each header that has a value, and where it lies in `raw`."""
        value = self.text("headers")
        if value is None:
            return
        if value[:1] != b"{":
            raise MalformedBatch("`headers` is no object")
        for name, where in _members(self.raw, self.members["headers"].value_start, frozenset()).items():
            if self.raw[where.value_start : where.value_end] != b"null":
                yield name, where


def _string(value: bytes, name: str) -> str:
    if value[:1] != b'"':
        raise MalformedBatch(f"`{name}` is no string")
    text = json_text.decoded_string(value)
    if _CONTROL.search(text):
        raise MalformedBatch(f"a control character in `{name}`")
    if _SURROGATE.search(text):
        raise MalformedBatch(f"half a character in `{name}`")
    return text


def _part(entry: _Entry, version: str, bases: tuple[str, ...]) -> BatchPart:
    method, url = entry.string("method"), entry.string("url")
    part_id = entry.string("id")
    if not part_id:
        raise MalformedBatch("an empty `id`")
    if len(method) > _LONGEST_METHOD or not _TOKEN.fullmatch(method):
        raise MalformedBatch("`method` is no method")
    headers = entry.headers()
    if not all(_TOKEN.fullmatch(name) for name, _ in headers):
        raise MalformedBatch("a name in `headers` is none of a header")
    relative = _relative_url(url, version, bases)
    edits = _header_cuts(entry, _CREDENTIALS)
    if relative != url:
        where = entry.members["url"]
        edits.append((where.value_start, where.value_end, json.dumps(relative).encode()))
    return BatchPart(
        id=part_id,
        method=method.upper(),  # whether the upstream minds letter case is its own affair
        url=url,
        target=_target(relative, version),
        headers=headers,
        body=entry.text("body"),
        depends_on=_depends_on(entry),
        raw=_edited(entry.raw, edits),
        changed=bool(edits),
    )


def _header_cuts(entry: _Entry, names: Set[str]) -> list[tuple[int, int, bytes]]:
    """What to cut so that the entry has no header of these names, in whatever letter case."""
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
        raise MalformedBatch("`status` is no status")
    return BatchResponse(entry.string("id"), int(status), entry.headers(), entry.text("body"), raw)


def _depends_on(entry: _Entry) -> tuple[str, ...]:
    value = entry.text("dependsOn")
    if value is None:
        return ()
    if value[:1] != b"[":
        raise MalformedBatch("`dependsOn` is no array")
    names = _at_most(MAX_PARTS, json_text.elements(value, 0), "ids in `dependsOn`")
    return tuple(_string(value[start:end], "dependsOn") for start, end in names)


def _with_known_dependencies(parts: tuple[BatchPart, ...]) -> tuple[BatchPart, ...]:
    """The parts, their dependencies spelled like the ids that they name: Graph compares ids without case."""
    ids = {part.id.casefold(): part.id for part in parts}
    if len(ids) < len(parts):
        raise MalformedBatch("two requests with one id")
    dependencies: dict[str, set[str]] = {}
    for part in parts:
        for needed in part.depends_on:
            if needed.casefold() not in ids:
                raise MalformedBatch("`dependsOn` names no request of the batch")
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
            raise MalformedBatch("requests that depend on each other")
        done |= ready


# Addresses


def _relative_url(url: str, version: str, bases: tuple[str, ...]) -> str:
    """The url as the upstream takes it, relative to the version's root."""
    if _SCHEME.match(url):
        url = _without_base(url, version, bases)
    path = url.partition("?")[0]
    if not path.strip("/"):
        raise MalformedBatch("a `url` without a path")
    if "#" in url:
        raise MalformedBatch("a fragment in a `url`")
    for reading in _readings(path):
        if reading.startswith(("//", "/\\", "\\")) or _SCHEME.match(reading):
            raise MalformedBatch("a `url` that leads elsewhere")
        if "$batch" in reading:
            raise MalformedBatch("a batch within the batch")
        first = _first_segment(reading)
        if _VERSION.fullmatch(first):
            raise MalformedBatch("a `url` with a version of its own")
        if first.startswith("$"):
            # OData 4.01 Part 1 §11.7.3.1: what the part of that id is about, which rules can't know.
            raise MalformedBatch("a `url` that refers to another part")
    return url


def _without_base(url: str, version: str, bases: tuple[str, ...]) -> str:
    """What follows the version in an absolute `url`. Host and port may be spelled otherwise than in a base,
    as in links of responses: the request is sent to the upstream in any case."""
    given = parse_address(url)
    for base in bases:
        wanted = parse_address(base)
        if wanted is None or given is None or wanted.origin != given.origin:
            continue
        root = f"{wanted.rest}/{version}/"
        if given.rest[: len(root)].casefold() == root.casefold():
            return given.rest[len(root) - 1 :]
    raise MalformedBatch("a `url` that leads elsewhere, or to another version")


def _readings(path: str) -> Iterator[str]:
    """The path as it stands and with each further decoding, as careless readers might see it."""
    for _ in range(_MAX_DECODINGS):
        if ligatures(path) > MAX_LIGATURES:
            raise MalformedBatch("a `url` of many characters that stand for several")
        yield unicodedata.normalize("NFKC", path).casefold()
        decoded = unquote(path, errors="replace")
        if decoded == path:
            return
        path = decoded
    raise MalformedBatch("a `url` encoded over and over")


def _first_segment(path: str) -> str:
    """The first segment that counts, dot segments removed (RFC 3986 §5.2.4)."""
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
