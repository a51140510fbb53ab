"""Losses in the audit trail of a proxy, and the operators' acknowledgements of these losses.

New gaps in the sequence numbers of a proxy's events appear only above the highest received number. An
acknowledgement therefore stores only one sequence number. An acknowledgement covers all gaps up to the stored
sequence number, and no gap that appears later. Some faults, such as repeated sequence numbers and implausible
times, have only a count. For each of these faults, the acknowledgement stores the count that the operator
acknowledged.
"""

from __future__ import annotations

from typing import Final

from controlplane.store.database import Connection
from controlplane.store.interface import Acknowledgement, Conflict, Losses

# Losses of one organisation at one proxy (?1, ?2). A missing acknowledgement covers nothing.
_LOSSES: Final = """
    WITH known AS (SELECT coalesce(max(seq), 0) AS seq, coalesce(max(unlisted), 0) AS unlisted,
            coalesce(max(repeated), 0) AS repeated, coalesce(max(implausible), 0) AS implausible
        FROM acknowledged_losses WHERE proxy_id = ?1 AND org_id = ?2)
    SELECT
        coalesce((SELECT sum(g.last - CASE WHEN g.first > known.seq THEN g.first
            ELSE known.seq + 1 END + 1) FROM sequence_gaps AS g
            WHERE g.proxy_id = ?1 AND g.org_id = ?2 AND g.last > known.seq), 0)
        + coalesce((SELECT s.unlisted - known.unlisted FROM sequences AS s
            WHERE s.proxy_id = ?1 AND s.org_id = ?2 AND s.unlisted > known.unlisted), 0),
        coalesce((SELECT s.repeated - known.repeated FROM sequences AS s
            WHERE s.proxy_id = ?1 AND s.org_id = ?2 AND s.repeated > known.repeated), 0),
        coalesce((SELECT i.count - known.implausible FROM implausible_times AS i
            WHERE i.proxy_id = ?1 AND i.org_id = ?2 AND i.count > known.implausible), 0)
    FROM known
"""

_ACKNOWLEDGED: Final = (
    "seq",
    "unlisted",
    "repeated",
    "implausible",
    "acknowledged_ms",
    "acknowledged_by",
    "note",
)


def losses_of(connection: Connection, proxy_id: str, org_id: str) -> Losses:
    return Losses(*connection.row(_LOSSES, (proxy_id, org_id)))


def losses_of_org(connection: Connection, org_id: str) -> Losses:
    """Return the sum of the losses at all proxies, acknowledged or not."""
    row = connection.row(
        "SELECT coalesce((SELECT sum(last - first + 1) FROM sequence_gaps WHERE org_id = ?1), 0)"
        " + coalesce((SELECT sum(unlisted) FROM sequences WHERE org_id = ?1), 0),"
        " coalesce((SELECT sum(repeated) FROM sequences WHERE org_id = ?1), 0),"
        " coalesce((SELECT sum(count) FROM implausible_times WHERE org_id = ?1), 0)",
        (org_id,),
    )
    return Losses(*row)


def acknowledgement_of(connection: Connection, proxy_id: str, org_id: str) -> Acknowledgement | None:
    row = connection.row(
        "SELECT acknowledged_ms, acknowledged_by, note FROM acknowledged_losses"
        " WHERE proxy_id = ? AND org_id = ?",
        (proxy_id, org_id),
    )
    return None if row is None else Acknowledgement(*row)


def implausible_of(connection: Connection, proxy_id: str, org_id: str) -> tuple[int, int | None]:
    """Return how many events had an implausible time, and when the last of them was received."""
    row = connection.row(
        "SELECT count, latest_ms FROM implausible_times WHERE proxy_id = ? AND org_id = ?",
        (proxy_id, org_id),
    )
    return (0, None) if row is None else (int(row[0]), int(row[1]))


def acknowledge(
    connection: Connection, key: tuple[str, str], given: Acknowledgement, expected: Losses | None
) -> Losses:
    found = losses_of(connection, *key)
    if expected is not None and found != expected:
        raise Conflict(
            "the event losses of the proxy have changed since they were listed: list the losses again"
        )
    connection.run(
        f"INSERT INTO acknowledged_losses (proxy_id, org_id, {', '.join(_ACKNOWLEDGED)})"  # noqa: S608
        " SELECT ?1, ?2, coalesce(max(s.highest), 0), coalesce(max(s.unlisted), 0),"
        " coalesce(max(s.repeated), 0),"
        " coalesce((SELECT count FROM implausible_times WHERE proxy_id = ?1 AND org_id = ?2), 0),"
        " CAST(?3 AS bigint), ?4, ?5 FROM sequences AS s WHERE s.proxy_id = ?1 AND s.org_id = ?2"
        f" ON CONFLICT (proxy_id, org_id) DO UPDATE SET"
        f" {', '.join(f'{each} = excluded.{each}' for each in _ACKNOWLEDGED)}",
        (*key, given.acknowledged_ms, given.acknowledged_by, given.note),
    )
    return found
