"""The hash chain of an organisation's audit events: the content of a link, and the facts that it proves.

The code of this module does no input or output.

A link of the audit chain is the SHA-256 of the previous link and of a record. The record of a link describes
a block of events that was stored, or the events of a block that retention deleted. The record of a block has
a digest of the block, computed from the digests of all its events. Therefore an event can be verified even if
other events of the block were deleted. Anybody who keeps one link can verify all earlier links of the audit
chain. Without the master key, nobody can make a link with a valid MAC.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

import msgspec

DIGEST_BYTES: Final = 32
BEFORE_THE_FIRST: Final = bytes(DIGEST_BYTES)

Kind = Literal["block", "adopted", "purge"]
"""`adopted`: a block that was stored by an earlier release, which had no chain."""


@dataclass(frozen=True, slots=True)
class Record:
    """Content of one link in the audit chain: the bytes that the link hashes.

    The number of the link in the chain is part of the hashed bytes.
    """

    org_id: str
    number: int
    kind: Kind
    chained_ms: int
    position: int
    count: int
    proxy_id: str
    batch: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class Link:
    record: Record
    link: bytes
    mac: bytes | None


class Purged(msgspec.Struct, omit_defaults=True):
    """Indexes, in a block, of the events that a purge deleted."""

    gone: list[int]
    unfit: list[int] = []  # places of those events that did not match their stored digests


def make_link(previous: bytes, record: Record) -> bytes:
    said = (
        record.org_id, record.number, record.kind, record.chained_ms, record.position, record.count,
        record.proxy_id, record.batch.hex(), record.content.hex(),
    )  # fmt: skip
    return sha256(previous + msgspec.json.encode(said)).digest()


def make_mac(key: bytes, link: bytes) -> bytes:
    return hmac.digest(key, link, "sha256")


def digests_of(events: Iterable[bytes]) -> list[bytes]:
    return [sha256(event).digest() for event in events]


def content_of(digests: bytes) -> bytes:
    """Return the content of the audit chain record that describes a block of events.

    `digests` has the digest of each event in the block, one after the other.
    """
    return sha256(digests).digest()


def each_digest(digests: bytes) -> Sequence[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
