"""Names of the objects in an archive, and manifests that link events to the audit chain.

The module `manifest` does no input or output.

An archive has two objects for each range of an organisation's events. The first archive object of a range
contains the range's events, one on each line. The second archive object of a range is a manifest with the
audit chain links that cover the range's events. With one chain link that was kept outside the archive, the
objects prove that no event up to that link was changed, removed or inserted.
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
_MOST_MANIFEST: Final = 256 * 1024 * 1024  # largest manifest in bytes; 50,000 links take about 30 MB
_LONGEST_LINE: Final = 64 * 1024 * 1024  # longest line in bytes; the largest batch has 5 MiB
_PIECE: Final = 1024 * 1024


class NotAnArchive(ValueError):
    """Error for an object that does not have the form of an archive object.

    The text of the NotAnArchive error gives the reason.
    """


class ArchivedLink(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A link of the audit chain in a manifest, as the control plane made it.

    The digests in a chain link are hexadecimal texts.
    """

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
    absent: dict[int, str] = {}  # digests of missing events, by their place in the block
    verbatim: dict[int, str] = {}  # events that contain line ends, as they were received, in base64
    gone: bool = False  # True if the whole block was purged

    def record(self, org_id: str) -> Record:
        """Return the chain record from which the digest of the link was computed.

        Raise ValueError if a digest in the chain link does not consist of hex digits.
        """
        return Record(
            org_id, self.number, self.kind, self.chained_ms, self.position, self.count, self.proxy_id,  # type: ignore[arg-type]
            bytes.fromhex(self.batch), bytes.fromhex(self.content),
        )  # fmt: skip


class EventsObject(msgspec.Struct, rename="camel", frozen=True):
    """Description of the archive object that holds the events of a manifest."""

    name: str
    events: int
    bytes: int
    sha256: str  # SHA-256 of the object
    content_bytes: int
    content_sha256: str  # SHA-256 of its decompressed lines


class Manifest(msgspec.Struct, rename="camel", frozen=True):
    """Description of a range of an organisation's events in the archive."""

    format: str
    org_id: str
    first_position: int
    last_position: int
    received_from_ms: int
    received_to_ms: int
    absent: int  # number of events of these blocks that are missing: purged, or in a damaged block
    previous_number: int  # number of the link before the first one; 0 if there is none
    previous_link: str
    events: EventsObject | None  # None if no event of these blocks was left
    links: tuple[ArchivedLink, ...]

    @property
    def last_number(self) -> int:
        return self.links[-1].number


_decode_manifest: Final = msgspec.json.Decoder(Manifest).decode


def stem_of(org_id: str, chained_ms: int, first: int, last: int) -> str:
    """Return the common beginning of the names of the two archive objects of a range.

    The names of an organisation's archive objects sort by time.
    """
    day = datetime.fromtimestamp(chained_ms / 1000, UTC).date().isoformat()
    return f"{org_id}/{day}/{first:020d}-{last:020d}"


def archived_link(
    link: Link, events: Sequence[bytes | None] | None, digests: Sequence[bytes]
) -> ArchivedLink:
    """Return a link of the audit chain in the form in which an archive manifest has it.

    `events` are the events that `link` covers, or None if the store no longer has any of these events.
    """
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
    """Return the JSON of an event on one line.

    Line ends occur only between the tokens of JSON, so removing line ends keeps the content of the event.
    """
    return event.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


class EventsWriter:
    """Compresses the events of a range step by step, so that memory never holds the entire range."""

    def __init__(self) -> None:
        self._gzip = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, _GZIP
        )  # no time in the header, so that the same events give the same bytes
        self._content = sha256()
        self._pieces: list[bytes] = []
        self._content_bytes = 0
        self._events = 0

    def add(self, events: Sequence[bytes]) -> None:
        """Compress the given events, and add the result after the events of earlier calls.

        Other threads can run during the compression of the events.
        """
        text = b"".join(map(line_of, events))
        self._content.update(text)
        self._pieces.append(self._gzip.compress(text))
        self._content_bytes += len(text)
        self._events += len(events)

    def finish(self, name: str) -> tuple[bytes, EventsObject]:
        """Return the bytes of the events object, and its description for the manifest."""
        body = b"".join([*self._pieces, self._gzip.flush()])
        digest, content = sha256(body).hexdigest(), self._content.hexdigest()
        return body, EventsObject(name, self._events, len(body), digest, self._content_bytes, content)


def manifest_bytes(manifest: Manifest) -> bytes:
    packed = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packed.compress(msgspec.json.encode(manifest) + b"\n") + packed.flush()


def read_manifest(body: bytes) -> Manifest:
    """Return the manifest that the bytes contain.

    Raise NotAnArchive if the bytes are not a manifest in the current format.
    """
    unpack = zlib.decompressobj(_GZIP)
    try:
        text = unpack.decompress(body, _MOST_MANIFEST)
        manifest = _decode_manifest(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise NotAnArchive(f"the manifest can't be read: {error}") from None
    if not unpack.eof or unpack.unused_data:
        raise NotAnArchive("the manifest is truncated or has trailing data")
    if manifest.format != FORM:
        raise NotAnArchive(
            f"the manifest has the format {manifest.format!r}: use a release that supports this format"
        )
    if not manifest.links:
        raise NotAnArchive("the manifest has no links of the audit chain")
    return manifest


def each_line(body: bytes) -> Iterator[bytes]:
    """Yield the lines of an events object without their line ends.

    Raise NotAnArchive if the events object is damaged.
    """
    unpack = zlib.decompressobj(_GZIP)
    rest, data = b"", body
    while not unpack.eof:
        try:
            piece = unpack.decompress(data, _PIECE)
        except zlib.error as error:
            raise NotAnArchive(f"the events object of the archive can't be decompressed: {error}") from None
        data = unpack.unconsumed_tail
        if not piece and not data and not unpack.eof:
            raise NotAnArchive("the events object of the archive is truncated")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            raise NotAnArchive("the events object of the archive has a line that is too long for an event")
    if rest or unpack.unused_data:
        raise NotAnArchive("the events object of the archive has data after its last line")
