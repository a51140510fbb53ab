"""Sequence numbers of an organisation's events at all proxies, read with one SQL statement for each table."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from controlplane.store.database import Connection
from controlplane.store.interface import Gap, ReceivedNumbers
from controlplane.store.sequences import size

_NUMBERS: Final = """
    SELECT p.proxy_id, coalesce(s.highest, 0), coalesce(s.unlisted, 0), coalesce(s.repeated, 0),
        coalesce(i.count, 0), coalesce(r.count, 0)
    FROM (SELECT proxy_id FROM sequences WHERE org_id = ?1
        UNION SELECT proxy_id FROM implausible_times WHERE org_id = ?1
        UNION SELECT proxy_id FROM reused_batch_ids WHERE org_id = ?1) AS p
    LEFT JOIN sequences AS s ON s.proxy_id = p.proxy_id AND s.org_id = ?1
    LEFT JOIN implausible_times AS i ON i.proxy_id = p.proxy_id AND i.org_id = ?1
    LEFT JOIN reused_batch_ids AS r ON r.proxy_id = p.proxy_id AND r.org_id = ?1
"""
_GAPS: Final = """
    SELECT g.proxy_id, g.first, g.last FROM sequence_gaps AS g
    JOIN sequences AS s ON s.proxy_id = g.proxy_id AND s.org_id = g.org_id
    WHERE g.org_id = ?1 AND g.first <= s.highest ORDER BY g.proxy_id, g.first
"""


def received_numbers(connection: Connection, org_id: str, gap_limit: int) -> dict[str, ReceivedNumbers]:
    """Return the received sequence numbers of each proxy, and the first `gap_limit` gaps in the numbers."""
    gaps: defaultdict[str, list[Gap]] = defaultdict(list)
    for proxy_id, first, last in connection.rows(_GAPS, (org_id,)):
        gaps[proxy_id].append(Gap(first, last))
    return {
        proxy_id: ReceivedNumbers(
            highest,
            tuple(gaps[proxy_id][:gap_limit]),
            unlisted + size(gaps[proxy_id][gap_limit:]),
            repeated,
            implausible,
            reused,
        )
        for proxy_id, highest, unlisted, repeated, implausible, reused in connection.rows(_NUMBERS, (org_id,))
    }
