"""Pure: the objects of an archive: their names, and the manifest that ties events to the chain.

An archive has two objects for each range of an organisation's events: the events, one a line, and a
manifest with the links of the chain that speak of them. With one link of the chain that was kept
elsewhere, these prove that no event up to that link was changed, left out or put in.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec

from controlplane.store.chain import Link, Record

FORM: Final = "graphward archive 1"
EVENTS_SUFFIX: Final = ".ndjson.gz"
MANIFEST_SUFFIX: Final = ".manifest.json.gz"
_GZIP: Final = zlib.MAX_WBITS | 16
_LEVEL: Final = 6
_MOST_MANIFEST: Final = 256 * 1024 * 1024  # bytes of a manifest that are read; 50,000 links have some 30 MB
_LONGEST_LINE: Final = 64 * 1024 * 1024  # the largest batch has 5 MiB
_PIECE: Final = 1024 * 1024


class NotAnArchive(ValueError):
    """An object is not what the archive's form says; the text says why."""


class ArchivedLink(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A link of the chain as it was made. Digests are hex digits."""

    number: int
    kind: str
    chained_ms: int
    position: int
    count: int
    proxy_id: str
    batch: str
    content: str
    link: str
    mac: str | None = None
    absent: dict[int, str] = {}  # digests of events that were not there, by their place in the block
    verbatim: dict[int, str] = {}  # events that have line ends, as they came, in base64
    gone: bool = False  # all of the block had been purged

    def record(self, org_id: str) -> Record:
        """Return what was hashed. Raise ValueError if a digest is not hex digits."""
        return Record(
            org_id, self.number, self.kind, self.chained_ms, self.position, self.count, self.proxy_id,  # type: ignore[arg-type]
            bytes.fromhex(self.batch), bytes.fromhex(self.content),
        )  # fmt: skip


class EventsObject(msgspec.Struct, rename="camel", frozen=True):
    """The object with the events of a manifest."""

    name: str
    events: int
    bytes: int
    sha256: str  # digest of the object
    content_bytes: int
    content_sha256: str  # digest of its lines


class Manifest(msgspec.Struct, rename="camel", frozen=True):
    """The description of a range of an organisation's events in an archive."""

    format: str
    org_id: str
    first_position: int
    last_position: int
    received_from_ms: int
    received_to_ms: int
    absent: int  # events of these blocks that were not there: purged, or in a damaged block
    previous_number: int  # the link before the first one; 0 if there is none
    previous_link: str
    events: EventsObject | None  # None: nothing of these blocks was there
    links: tuple[ArchivedLink, ...]

    @property
    def last_number(self) -> int:
        return self.links[-1].number


_decode_manifest: Final = msgspec.json.Decoder(Manifest).decode


def stem_of(org_id: str, chained_ms: int, first: int, last: int) -> str:
    """Return the name that both objects of a range begin with. Names of an organisation sort by time."""
    day = datetime.fromtimestamp(chained_ms / 1000, UTC).date().isoformat()
    return f"{org_id}/{day}/{first:020d}-{last:020d}"


def archived_link(
    link: Link, events: Sequence[bytes | None] | None, digests: Sequence[bytes]
) -> ArchivedLink:
    """Return the link as a manifest has it. `events` are those of its block, None if all of it has gone."""
    record = link.record
    absent = {at: _hex_at(digests, at) for at, event in enumerate(events or ()) if event is None}
    broken = {
        at: event for at, event in enumerate(events or ()) if event is not None and _has_line_ends(event)
    }
    return ArchivedLink(
        number=record.number,
        kind=record.kind,
        chained_ms=record.chained_ms,
        position=record.position,
        count=record.count,
        proxy_id=record.proxy_id,
        batch=record.batch.hex(),
        content=record.content.hex(),
        link=link.link.hex(),
        mac=None if link.mac is None else link.mac.hex(),
        absent=absent,
        verbatim={at: base64.b64encode(event).decode() for at, event in broken.items()},
        gone=events is None and record.kind != "purge",
    )


def _hex_at(digests: Sequence[bytes], at: int) -> str:
    return digests[at].hex() if at < len(digests) else ""


def _has_line_ends(event: bytes) -> bool:
    return b"\n" in event or b"\r" in event


def line_of(event: bytes) -> bytes:
    """Return the event on one line. Line ends stand only between the tokens of JSON, so its meaning stays."""
    return event.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


class EventsWriter:
    """Compresses events step by step, so that no range is in memory as a whole."""

    def __init__(self) -> None:
        self._gzip = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, _GZIP
        )  # its header has no time: same bytes again
        self._content = sha256()
        self._pieces: list[bytes] = []
        self._content_bytes = 0
        self._events = 0

    def add(self, events: Sequence[bytes]) -> None:
        """Compress these events behind the others. Other threads can run while this one does it."""
        text = b"".join(map(line_of, events))
        self._content.update(text)
        self._pieces.append(self._gzip.compress(text))
        self._content_bytes += len(text)
        self._events += len(events)

    def finish(self, name: str) -> tuple[bytes, EventsObject]:
        """Return the bytes of the object, and what a manifest says of them."""
        body = b"".join([*self._pieces, self._gzip.flush()])
        digest, content = sha256(body).hexdigest(), self._content.hexdigest()
        return body, EventsObject(name, self._events, len(body), digest, self._content_bytes, content)


def manifest_bytes(manifest: Manifest) -> bytes:
    packed = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packed.compress(msgspec.json.encode(manifest) + b"\n") + packed.flush()


def read_manifest(body: bytes) -> Manifest:
    """Raise NotAnArchive if it is not a manifest of this form."""
    unpack = zlib.decompressobj(_GZIP)
    try:
        text = unpack.decompress(body, _MOST_MANIFEST)
        manifest = _decode_manifest(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise NotAnArchive(f"the manifest can't be read: {error}") from None
    if not unpack.eof or unpack.unused_data:
        raise NotAnArchive("the manifest is cut off or has something behind it")
    if manifest.format != FORM:
        raise NotAnArchive(f"the manifest has the form {manifest.format!r}: use a release that reads it")
    if not manifest.links:
        raise NotAnArchive("the manifest has no links")
    return manifest


def each_line(body: bytes) -> Iterator[bytes]:
    """Give the lines of an events object without their ends. Raise NotAnArchive if it is damaged."""
    unpack = zlib.decompressobj(_GZIP)
    rest, data = b"", body
    while not unpack.eof:
        try:
            piece = unpack.decompress(data, _PIECE)
        except zlib.error as error:
            raise NotAnArchive(f"the events can't be inflated: {error}") from None
        data = unpack.unconsumed_tail
        if not piece and not data and not unpack.eof:
            raise NotAnArchive("the object of events is cut off")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            raise NotAnArchive("the object of events has a line that no event can have")
    if rest or unpack.unused_data:
        raise NotAnArchive("the object of events does not end with its last line")
