"""Verifies an archive by the audit chain in the archive, without access to the store.

The verification computes each chain link from the link before it. The verification computes each block's
digest from the block's events. A chain link that somebody kept outside the archive proves that the control
plane made the archived chain. If the archive begins with the chain's first link, a link kept outside the
archive also proves that no object before that link is missing. An archive may also begin after a link that an
operator kept; then objects from before that link do not count as missing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Final

import msgspec

from controlplane.archive.manifest import (
    EVENTS_SUFFIX,
    MANIFEST_SUFFIX,
    ArchivedLink,
    Manifest,
    NotAnArchive,
    each_line,
    line_of,
    read_manifest,
)
from controlplane.archive.object_store import ObjectReader
from controlplane.store.chain import BEFORE_THE_FIRST, DIGEST_BYTES, Purged, content_of, make_link
from proxy.wire.figures import counted

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_decode_purged: Final = msgspec.json.Decoder(Purged).decode


class Fault(msgspec.Struct, rename="camel", frozen=True):
    """Place of the first mismatch between an organisation's archive and the audit chain."""

    object: str
    explanation: str
    link: int | None = None
    position: int | None = None


class ArchiveVerdict(msgspec.Struct, rename="camel", frozen=True):
    """The result of the verification of one organisation's archive."""

    org_id: str
    objects: int
    events: int  # number of events that are present and unchanged
    purged: int  # number of events that retention deleted before they were archived
    unexplained: int  # number of missing events without a link in the archive that records their purge
    absent_links: int  # number of links missing between the expected start of the archive and its first link
    first_link: int
    last_link: int
    last_link_digest: str
    received_from_ms: int
    received_to_ms: int
    known_link: int | None  # number of the known link, if the archive has it
    fault: Fault | None

    @property
    def is_whole(self) -> bool:
        return self.fault is None and not self.unexplained and not self.absent_links


@dataclass(frozen=True, slots=True)
class KnownLink:
    """A link of the audit chain, kept by an operator outside the archive."""

    link: str  # hex digits
    number: int | None = None


@dataclass(slots=True)
class _Walk:
    """State of the verification of one organisation's archive: the part that was verified so far."""

    org_id: str
    known: KnownLink | None
    begins_after: int = 0  # number of the link after which the archive must be complete
    objects: int = 0
    events: int = 0
    first: int = 0
    number: int = 0
    link: bytes = b""
    received_from_ms: int = 0
    received_to_ms: int = 0
    purged: int = 0
    # Links after which a later range may begin, by number. A range never begins before the beginning of the
    # newest range.
    links: dict[int, bytes] = field(default_factory=dict)
    # places of missing events, by the position of their block
    absent: dict[int, set[int]] = field(default_factory=dict)
    seen: int | None = None  # number of the known link, once it was found
    fault: Fault | None = None

    def verdict(self) -> ArchiveVerdict:
        return ArchiveVerdict(
            org_id=self.org_id,
            objects=self.objects,
            events=self.events,
            purged=self.purged,
            unexplained=sum(map(len, self.absent.values())),
            absent_links=max(0, self.first - 1 - self.begins_after),
            first_link=self.first,
            last_link=self.number,
            last_link_digest=self.link.hex(),
            received_from_ms=self.received_from_ms,
            received_to_ms=self.received_to_ms,
            known_link=self.seen,
            fault=self.fault,
        )


class _Wrong(Exception):
    """Error because a part of the archive does not match the audit chain."""

    def __init__(self, explanation: str, link: int | None = None, position: int | None = None) -> None:
        super().__init__(explanation)
        self.link = link
        self.position = position


@dataclass(slots=True)
class _Listed:
    """Names of one organisation's archive objects: those with a manifest, and all other objects."""

    org_id: str
    stems: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)


async def verify_archive(
    archive: ObjectReader,
    known: Mapping[str, KnownLink],
    prefix: str = "",
    begins_after: Mapping[str, int] = MappingProxyType({}),
) -> AsyncIterator[ArchiveVerdict]:
    """Yield a verdict for each organisation that has events in the archive.

    `known` holds, for each organisation, a chain link that somebody kept outside the archive. `begins_after`
    holds, for each organisation, the number of the chain link that precedes the archive's first link. If
    `begins_after` has no number for an organisation, the organisation's archive must begin with the first
    link of the chain. Raise NotAnArchive if the folders do not have the names that an archive gives to its
    folders.
    """
    async for listed in _by_org(archive, prefix):
        walk = _Walk(listed.org_id, known.get(listed.org_id), begins_after.get(listed.org_id, 0))
        for stem in sorted(listed.stems, key=_place):
            try:
                listed.others -= await _verify_object(archive, walk, stem)
            except (_Wrong, NotAnArchive) as error:
                place = (error.link, error.position) if isinstance(error, _Wrong) else (None, None)
                walk.fault = Fault(stem, str(error), *place)
                break
        if walk.fault is None:
            walk.fault = _fault_of_end(walk) or _fault_of_others(listed.others)
        yield walk.verdict()


async def _by_org(archive: ObjectReader, prefix: str) -> AsyncIterator[_Listed]:
    listed: _Listed | None = None
    async for name in archive.names(prefix):
        org_id, *folders = name.split("/")
        if not folders:
            raise NotAnArchive(f"{name}: this object is not in the folder of an organisation")
        if len(folders) == 1 and _DAY.fullmatch(org_id):
            raise NotAnArchive("this is the folder of one organisation: give the folder above it")
        if listed is None or listed.org_id != org_id:
            if listed is not None:
                yield listed
            listed = _Listed(org_id)
        if name.endswith(MANIFEST_SUFFIX):
            listed.stems.append(name.removesuffix(MANIFEST_SUFFIX))
        else:
            listed.others.add(name)
    if listed is not None:
        yield listed


def _place(stem: str) -> tuple[str, str]:
    """Return the sort key of an archived range, which is the position of its events.

    If somebody set the clock back, a later range of events may have an earlier day in its name.
    """
    first, _, last = stem.rpartition("/")[2].partition("-")
    return first, last


async def _verify_object(archive: ObjectReader, walk: _Walk, stem: str) -> set[str]:
    """Verify one range of audit events in the archive.

    Return the object names that the manifest of the range lists.
    """
    manifest = read_manifest(await archive.read(stem + MANIFEST_SUFFIX))
    _verify_place(walk, manifest, stem)
    lines: Iterator[bytes] = iter(())
    if manifest.events is not None:
        lines = each_line(await _events_of(archive, manifest, stem))
    link, begin = bytes.fromhex(manifest.previous_link), manifest.previous_number
    made: dict[int, bytes] = {begin: link}
    events = 0
    for number, archived in enumerate(manifest.links, begin + 1):
        link = _verify_link(manifest.org_id, archived, number, link)
        made[number] = link
        if archived.kind == "purge":
            _note_purge(walk, archived)
        else:
            events += _verify_block(walk, archived, lines, is_new=number > walk.number)
        _look_for_known(walk, number, link)
    if next(lines, None) is not None:
        raise _Wrong("the events object has more events than the chain records")
    _join(walk, manifest, made, events)
    return set() if manifest.events is None else {stem + EVENTS_SUFFIX}


def _verify_place(walk: _Walk, manifest: Manifest, stem: str) -> None:
    name = stem.rpartition("/")[2]
    if manifest.org_id != walk.org_id:
        raise _Wrong(f"the manifest belongs to organisation {manifest.org_id}, not to {walk.org_id}")
    if name != f"{manifest.first_position:020d}-{manifest.last_position:020d}":
        raise _Wrong("the range in the manifest differs from the range in the name of the manifest")
    if len(manifest.previous_link) != 2 * DIGEST_BYTES or not _is_hex(manifest.previous_link):
        raise _Wrong("previousLink of the manifest is not a SHA-256 digest in hex digits")
    if manifest.previous_number == 0 and manifest.previous_link != BEFORE_THE_FIRST.hex():
        raise _Wrong("the first link of the manifest does not begin an audit chain", 1)
    if walk.objects == 0:
        return
    if manifest.previous_number > walk.number:
        text = f"the archive has no links from {walk.number + 1} to {manifest.previous_number}"
        raise _Wrong(f"{text}: an earlier object of the archive is missing", walk.number + 1)
    kept = walk.links.get(manifest.previous_number)
    if kept is None or kept.hex() != manifest.previous_link:
        raise _Wrong(
            "the hash chain of this range does not continue the hash chain of the earlier ranges",
            manifest.previous_number,
        )


def _is_hex(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) * 2 == len(text)
    except ValueError:
        return False


async def _events_of(archive: ObjectReader, manifest: Manifest, stem: str) -> bytes:
    said = manifest.events
    assert said is not None
    try:
        body = await archive.read(stem + EVENTS_SUFFIX)
    except KeyError:
        raise _Wrong(
            "the events object that the manifest names is missing", None, manifest.first_position
        ) from None
    if sha256(body).hexdigest() != said.sha256:
        raise _Wrong(
            "the events object does not match its digest in the manifest", None, manifest.first_position
        )
    return body


def _verify_link(org_id: str, archived: ArchivedLink, number: int, previous: bytes) -> bytes:
    if archived.number != number:
        raise _Wrong(f"found chain link {archived.number} instead of link {number}", number)
    try:
        made = make_link(previous, archived.record(org_id))
    except ValueError:
        raise _Wrong(
            "the chain link has a digest that is not hex digits", number, archived.position
        ) from None
    if made.hex() != archived.link:
        raise _Wrong("the content of the chain link does not match its digest", number, archived.position)
    return made


def _verify_block(walk: _Walk, archived: ArchivedLink, lines: Iterator[bytes], *, is_new: bool) -> int:
    """Return how many of the block's events are in the given range; 0 if an earlier range has the block."""
    if archived.gone:
        if is_new:
            walk.absent[archived.position] = set(range(archived.count))
        return 0
    digests = []
    for at in range(archived.count):
        if at in archived.absent:
            digests.append(_absent_digest(archived, at))
            continue
        line = next(lines, None)
        if line is None:
            raise _Wrong(
                "an event of the block is missing in the events object",
                archived.number,
                archived.position + at,
            )
        digests.append(sha256(_as_it_came(archived, at, line)).digest())
    if content_of(b"".join(digests)).hex() != archived.content:
        raise _Wrong(
            "an event of the block does not match the digest in the chain link",
            archived.number,
            archived.position,
        )
    absent = {at for at in archived.absent if 0 <= at < archived.count}
    if not is_new:
        return 0  # an earlier range has these events
    if absent:
        walk.absent[archived.position] = absent
    return archived.count - len(absent)


def _absent_digest(archived: ArchivedLink, at: int) -> bytes:
    text = archived.absent[at]
    if len(text) != 2 * DIGEST_BYTES or not _is_hex(text):
        raise _Wrong(
            "the manifest has no valid digest for an event that the archive lacks",
            archived.number,
            archived.position + at,
        )
    return bytes.fromhex(text)


def _as_it_came(archived: ArchivedLink, at: int, line: bytes) -> bytes:
    """Return an archived event with the line ends that the event had when the control plane received it."""
    if at not in archived.verbatim:
        return line
    try:
        event = base64.b64decode(archived.verbatim[at], validate=True)
    except ValueError:
        event = b""
    if line_of(event) != line + b"\n":
        raise _Wrong(
            "a line of the events object differs from the event that the control plane received",
            archived.number,
            archived.position + at,
        )
    return event


def _note_purge(walk: _Walk, archived: ArchivedLink) -> None:
    """Record which audit events a purge deleted.

    The recorded purge explains why the archive lacks the purged events.
    """
    try:
        gone = set(_decode_purged(bytes.fromhex(archived.content)).gone)
    except ValueError:
        raise _Wrong(
            "the chain link that records a purge can't be read", archived.number, archived.position
        ) from None
    absent = walk.absent.get(archived.position, set())
    walk.purged += len(absent & gone)
    absent -= gone
    if not absent:
        walk.absent.pop(archived.position, None)


def _look_for_known(walk: _Walk, number: int, link: bytes) -> None:
    known = walk.known
    if known is None or known.link != link.hex():
        return
    if known.number in (None, number):
        walk.seen = number


def _join(walk: _Walk, manifest: Manifest, made: Mapping[int, bytes], events: int) -> None:
    """Add a range to the verified part of the archive.

    The range may repeat chain links of an earlier range.
    """
    for number, link in made.items():
        if walk.links.get(number, link) != link:
            raise _Wrong("two ranges of the archive have different chain links with the same number", number)
    known = walk.number if walk.objects else -1
    walk.links = {number: link for number, link in walk.links.items() if number >= manifest.previous_number}
    walk.links.update(made)
    if not walk.objects:
        walk.first = manifest.previous_number + 1
        walk.received_from_ms = manifest.received_from_ms
    walk.objects += 1
    if manifest.last_number > known:
        walk.number, walk.link = manifest.last_number, made[manifest.last_number]
        walk.received_to_ms = manifest.received_to_ms
    walk.events += events


def _fault_of_end(walk: _Walk) -> Fault | None:
    known = walk.known
    if known is None or walk.seen is not None:
        return None
    if known.number is not None and known.number > walk.number:
        text = f"the archive ends with link {walk.number}, before the known link {known.number}:"
        return Fault("", f"{text} newer objects are missing or not written yet", known.number)
    if known.number is not None and known.number < walk.first:
        text = f"the archive begins with link {walk.first}, after the known link {known.number}"
        return Fault("", text, known.number)
    return Fault("", "the known link is not in the archive: its chain was made again", known.number)


def _fault_of_others(others: set[str]) -> Fault | None:
    if not others:
        return None
    more = f", nor of {counted(len(others) - 1, 'other object')}" if len(others) > 1 else ""
    return Fault(min(others), f"no manifest names this object{more}: its origin is unknown")
