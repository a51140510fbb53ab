"""The table with the links of the audit chains.

The transaction that stores or purges events also adds the link for these events to the audit chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from controlplane.store.block_body import events_of
from controlplane.store.chain import (
    BEFORE_THE_FIRST,
    Kind,
    Link,
    Purged,
    Record,
    content_of,
    digests_of,
    each_digest,
    make_link,
    make_mac,
)
from controlplane.store.database import Connection

PURGED: Final = b"null"  # value in the place of a purged event
_COLUMNS: Final = "org_id, number, kind, chained_ms, position, count, proxy_id, batch, content, link, mac"
_LINKS_AFTER: Final = f"SELECT {_COLUMNS} FROM chain WHERE org_id = ? AND number > ? ORDER BY number"  # noqa: S608
ADOPTED_AT_ONCE: Final = 32  # number of blocks in one transaction

_decode_purged: Final = msgspec.json.Decoder(Purged).decode


def head(connection: Connection, org_id: str) -> Link | None:
    """Return the newest chain link of the organisation, or None if the organisation has no chain."""
    with connection.damaged_text():
        row = connection.row(
            f"SELECT {_COLUMNS} FROM chain WHERE org_id = ? ORDER BY number DESC LIMIT 1",  # noqa: S608
            (org_id,),
        )
    return None if row is None else _link(row)


def links_after(connection: Connection, org_id: str, number: int, limit: int) -> list[Link]:
    rows = connection.rows(f"{_LINKS_AFTER} LIMIT ?", (org_id, number, limit))
    return [*map(_link, rows)]


@contextmanager
def each_link(connection: Connection, org_id: str) -> Iterator[Iterable[Link]]:
    """Yield the organisation's chain links one by one, because all of them may not fit into memory."""
    with connection.each(_LINKS_AFTER, (org_id, 0)) as rows:
        yield map(_link, rows)


def _link(row: Sequence[object]) -> Link:
    *record, link, mac = row
    return Link(Record(*record), link, mac)  # type: ignore[arg-type]


def purged_places(connection: Connection, org_id: str, position: int, number: int = 0) -> set[int]:
    """Return the indexes of a block's purged events, from the chain links with numbers above `number`.

    If the chain link of a purge can't be decoded, this function ignores the link. Events are purged only
    after they were received, so the link of a purge always follows the link of the purged block.
    """
    rows = connection.rows(
        "SELECT content FROM chain WHERE org_id = ? AND position = ? AND kind = 'purge'"
        " AND +number > ?",  # the plus sign keeps SQLite from using an index and reading the whole chain
        (org_id, position, number),
    )
    places: set[int] = set()
    for (content,) in rows:
        with suppress(ValueError):
            places.update(_decode_purged(content).gone)
    return places


def read_digests(connection: Connection, position: int) -> bytes:
    """Return the digests of a block's events, joined in order, or no bytes if no digests are stored."""
    row = connection.row("SELECT digests FROM event_digests WHERE position = ?", (position,))
    return b"" if row is None else bytes(row[0])


_Said = tuple[Kind, int, int, str, bytes, bytes]
"""Content of a record without its place and time: kind, position, count, proxy, batch, content."""


class Head(NamedTuple):
    """Number and digest of the newest link in an organisation's audit chain."""

    number: int
    link: bytes


BEFORE_ALL: Final = Head(0, BEFORE_THE_FIRST)


@dataclass(frozen=True, slots=True)
class Chain:
    """Adds links to the audit chains of organisations.

    `key` signs them. Without a key, the links have no MAC, and a verification reports the missing MAC.
    """

    key: bytes | None
    now_ms: int

    def add_blocks(
        self,
        connection: Connection,
        org_id: str,
        proxy_id: str,
        batch: bytes,
        blocks: Mapping[int, Sequence[bytes]],
        head: Head,
        kind: Kind = "block",
    ) -> None:
        """Add one chain link for each block of a batch.

        `blocks` maps the position of each block to the events of the block.
        """
        digests = {position: b"".join(digests_of(events)) for position, events in blocks.items()}
        connection.many("INSERT INTO event_digests (position, digests) VALUES (?, ?)", digests.items())
        self._add(
            connection,
            org_id,
            head,
            (
                (kind, position, len(events), proxy_id, batch, content_of(digests[position]))
                for position, events in blocks.items()
            ),
        )

    def add_purge(
        self, connection: Connection, org_id: str, position: int, events: Sequence[bytes],
        gone: Sequence[int],
    ) -> None:  # fmt: skip
        """Add a chain link that records the purge of the events at the given indexes of a block.

        The chain link also records which purged events did not match their digests.
        """
        known = each_digest(read_digests(connection, position))
        found = zip(gone, digests_of(events[at] for at in gone), strict=True)
        unfit = [at for at, digest in found if known[at : at + 1] != [digest]]
        content = msgspec.json.encode(Purged(list(gone), unfit))
        self._add(
            connection,
            org_id,
            _newest(connection, org_id),
            [("purge", position, len(gone), "", b"", content)],
        )

    def adopt(self, connection: Connection, org_id: str) -> int:
        """Add to the organisation's audit chain the next blocks that an earlier release stored.

        Return the number of events in the added blocks.
        """
        newest = head(connection, org_id)
        rows = connection.rows(
            "SELECT position, proxy_id, body FROM blocks WHERE org_id = ? AND position > ?"
            " ORDER BY position LIMIT ?",
            (org_id, newest.record.position if newest else 0, ADOPTED_AT_ONCE),
        )
        adopted = 0
        for position, proxy_id, body in rows:
            events = events_of(body)
            self.add_blocks(
                connection, org_id, proxy_id, b"", {position: events}, _newest(connection, org_id), "adopted"
            )
            if gone := [at for at, event in enumerate(events) if bytes(event) == PURGED]:
                self.add_purge(connection, org_id, position, events, gone)
            adopted += len(events)
        return adopted

    def _add(self, connection: Connection, org_id: str, head: Head, said: Iterable[_Said]) -> None:
        last, link = head
        rows = []
        for number, (kind, *what) in enumerate(said, last + 1):
            link = make_link(link, Record(org_id, number, kind, self.now_ms, *what))  # type: ignore[arg-type]
            mac = None if self.key is None else make_mac(self.key, link)
            rows.append((org_id, number, kind, self.now_ms, *what, link, mac))
        connection.many(
            f"INSERT INTO chain ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            rows,
        )


def _newest(connection: Connection, org_id: str) -> Head:
    row = connection.row(
        "SELECT number, link FROM chain WHERE org_id = ? ORDER BY number DESC LIMIT 1", (org_id,)
    )
    return BEFORE_ALL if row is None else Head(*row)
