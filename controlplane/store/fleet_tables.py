"""Queries that read data about many proxies in one statement: lists by health, counts, losses, reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from controlplane.store.database import Connection, Dialect
from controlplane.store.interface import LatestReports, Losses, ProxyTally, Report, Said
from controlplane.store.lists import Condition, Found, Source, among, given, page_of, where
from controlplane.store.pages import HEALTH_ORDER, FleetQuery, Health, HealthBounds, ListQuery, Standing

_PLAIN: Final = Source(
    "proxies",
    "proxies",
    "proxies.proxy_id",
    "proxies.name",
    {
        "name": "proxies.name",
        "lastSeen": "coalesce(proxies.last_seen_ms, 0)",
        "createdAt": "proxies.created_ms",
    },
    None,
    ("proxies.proxy_id",),
)

# Losses that no operator has acknowledged, one row for each fault of a trail. An acknowledgement covers the
# numbers up to `seq`, and as many of the counted faults as there were.
_UNACKNOWLEDGED: Final = """
    SELECT g.proxy_id, g.last + 1 - CASE WHEN g.first > coalesce(a.seq, 0) THEN g.first ELSE a.seq + 1 END
            AS missing, 0 AS repeated, 0 AS implausible
        FROM sequence_gaps AS g LEFT JOIN acknowledged_losses AS a
            ON a.proxy_id = g.proxy_id AND a.org_id = g.org_id
        WHERE g.last > coalesce(a.seq, 0)
    UNION ALL
    SELECT s.proxy_id, s.unlisted - coalesce(a.unlisted, 0), 0, 0
        FROM sequences AS s LEFT JOIN acknowledged_losses AS a
            ON a.proxy_id = s.proxy_id AND a.org_id = s.org_id
        WHERE s.unlisted > coalesce(a.unlisted, 0)
    UNION ALL
    SELECT s.proxy_id, 0, s.repeated - coalesce(a.repeated, 0), 0
        FROM sequences AS s LEFT JOIN acknowledged_losses AS a
            ON a.proxy_id = s.proxy_id AND a.org_id = s.org_id
        WHERE s.repeated > coalesce(a.repeated, 0)
    UNION ALL
    SELECT i.proxy_id, 0, 0, i.count - coalesce(a.implausible, 0)
        FROM implausible_times AS i LEFT JOIN acknowledged_losses AS a
            ON a.proxy_id = i.proxy_id AND a.org_id = i.org_id
        WHERE i.count > coalesce(a.implausible, 0)
"""
_LOSSES: Final = (
    "SELECT proxy_id, sum(missing) AS missing, sum(repeated) AS repeated,"  # noqa: S608
    " sum(implausible) AS implausible"
    f" FROM ({_UNACKNOWLEDGED}) AS faults"
)

# Time since when each proxy lacks an active version: the time at which the version after its own became
# active. Rulesets are read first: an index finds the few proxies of each that are behind.
_BEHIND: Final = """
    SELECT e.proxy_id, min((SELECT min(later.created_ms) FROM ruleset_versions AS later
            WHERE later.ruleset_id = e.ruleset_id AND later.version > e.version)) AS since_ms
        FROM (SELECT ruleset_id, org_id, (SELECT max(version) FROM ruleset_versions AS newest
                WHERE newest.ruleset_id = rulesets.ruleset_id) AS version FROM rulesets) AS active
            CROSS JOIN enforced_versions AS e
            JOIN proxy_orgs ON proxy_orgs.proxy_id = e.proxy_id AND proxy_orgs.org_id = active.org_id
        WHERE e.ruleset_id = active.ruleset_id AND e.version < active.version GROUP BY e.proxy_id
"""

_SERVES: Final = "EXISTS (SELECT 1 FROM proxy_orgs WHERE proxy_orgs.proxy_id = proxies.proxy_id"

# `fleet_health.assess` in SQL, as an index in HEALTH_ORDER; a test compares the two.
_HEALTH: Final = """
    CASE WHEN proxies.enabled = 0 THEN 6
        WHEN proxies.heard_ms IS NULL THEN 3
        WHEN proxies.ended_ms = proxies.last_seen_ms THEN
            CASE WHEN lost.proxy_id IS NOT NULL
                OR reused.latest_ms > ? AND reused.latest_ms < ? THEN 2 ELSE 5 END
        WHEN abs(? - proxies.heard_ms) > ? OR proxies.said = 'failed' THEN 0
        WHEN abs(? - proxies.heard_ms) > ? THEN 1
        WHEN proxies.said = 'degraded' OR lost.proxy_id IS NOT NULL OR behind.since_ms < ?
            OR reused.latest_ms > ? AND reused.latest_ms < ? THEN 2
        ELSE 4 END
"""
_ASSESSED: Final = f"""
    (SELECT proxies.proxy_id, proxies.name, proxies.created_ms, proxies.last_seen_ms, proxies.retired_ms,
            {_HEALTH} AS health,
            CASE WHEN lost.proxy_id IS NULL THEN 0 ELSE 1 END AS has_losses
        FROM proxies LEFT JOIN ({_LOSSES} GROUP BY proxy_id) AS lost ON lost.proxy_id = proxies.proxy_id
            LEFT JOIN ({_BEHIND}) AS behind ON behind.proxy_id = proxies.proxy_id
            LEFT JOIN (SELECT proxy_id, max(latest_ms) AS latest_ms FROM reused_batch_ids GROUP BY proxy_id)
                AS reused ON reused.proxy_id = proxies.proxy_id) AS proxies
"""  # noqa: S608 - our own statements


_STANDING: Final[Mapping[Standing, str]] = {
    "active": "proxies.retired_ms IS NULL",
    "retired": "proxies.retired_ms IS NOT NULL",
    "any": "1 = 1",
}


def page_of_proxies(
    connection: Connection, query: ListQuery, fleet: FleetQuery | None, standing: Standing
) -> Found:
    """Return one page of the list of proxies.

    If `fleet` is None, the list of proxies can't be sorted or filtered by health.
    """
    wanted = [Condition(_STANDING[standing], ())]
    wanted += [] if query.org_ids is None else [_serving(connection.dialect, query.org_ids)]
    if fleet is None or (query.sort != "health" and fleet.health is None and not fleet.needs_look):
        return page_of(connection, _PLAIN, query, wanted)
    columns = {**_PLAIN.columns, "health": "proxies.health"}
    if fleet.health is not None:
        wanted.append(Condition("proxies.health = ?", (HEALTH_ORDER.index(fleet.health),)))
    if fleet.needs_look:
        well, disabled = HEALTH_ORDER.index("ok"), HEALTH_ORDER.index("disabled")
        known = Condition("1 = 1", ())
        if fleet.seen is not None:
            seen = among(connection.dialect, "proxy_orgs.org_id", fleet.seen)
            known = Condition(f"NOT {_SERVES} AND NOT {seen.sql})", seen.parameters)
        lossy = f"proxies.health = ? AND has_losses = 1 AND {known.sql}"
        wanted.append(Condition(f"proxies.health < ? OR {lossy}", (well, disabled, *known.parameters)))
    source = replace(
        _PLAIN, tables=_ASSESSED, counted=_ASSESSED, columns=columns, parameters=_bounds(fleet.bounds)
    )
    return page_of(connection, source, query, wanted)


def count_by_health(
    connection: Connection,
    bounds: HealthBounds,
    org_ids: Collection[str] | None,
    search: str | None = None,
) -> dict[Health, int]:
    """Return how many proxies have each state of health.

    The count includes a proxy if the proxy is not retired, serves an organisation in `org_ids`, and matches
    the search text.
    """
    wanted = [Condition(_STANDING["active"], ())]
    wanted += [] if org_ids is None else [_serving(connection.dialect, org_ids)]
    wanted += [] if search is None else [_PLAIN.holds(search)]
    rows = connection.rows(
        f"SELECT health, count(*) FROM {_ASSESSED}{where(wanted)} GROUP BY health",  # noqa: S608
        (*_bounds(bounds), *given(wanted)),
    )
    return {HEALTH_ORDER[place]: count for place, count in sorted(rows)}


def _serving(dialect: Dialect, org_ids: Collection[str]) -> Condition:
    served = among(dialect, "proxy_orgs.org_id", org_ids)
    return Condition(f"{_SERVES} AND {served.sql})", served.parameters)


def _bounds(bounds: HealthBounds) -> tuple[int, ...]:
    now = bounds.now_ms
    recent = (now - bounds.reused_ms, now + bounds.reused_ms)
    return (*recent, now, bounds.lost_ms, now, bounds.stale_ms, now - bounds.behind_ms, *recent)


# Losses and reports of some proxies


def losses_of_proxies(connection: Connection, proxy_ids: Collection[str]) -> dict[str, Losses]:
    """Return, for each proxy, the unacknowledged losses of all its organisations together."""
    chosen = among(connection.dialect, "proxy_id", proxy_ids)
    rows = connection.rows(f"{_LOSSES} WHERE {chosen.sql} GROUP BY proxy_id", chosen.parameters)
    return {each: Losses() for each in proxy_ids} | {
        proxy_id: Losses(*map(int, losses)) for proxy_id, *losses in rows
    }


def latest_reports(
    connection: Connection, proxy_ids: Collection[str], windows: int
) -> dict[str, LatestReports]:
    """Return, for each proxy, its newest heartbeat and its newest metrics reports."""
    beats = _newest(connection, "heartbeats", "received_ms, body, skew_ms", proxy_ids, 1)
    metrics = _newest(connection, "metrics", "received_ms, body", proxy_ids, windows) if windows else {}
    chosen = among(connection.dialect, "proxy_id", proxy_ids)
    reused: dict[str, int] = dict(
        connection.rows(
            "SELECT proxy_id, max(latest_ms) FROM reused_batch_ids"  # noqa: S608
            f" WHERE {chosen.sql} GROUP BY proxy_id",
            chosen.parameters,
        )
    )
    return {
        each: LatestReports(
            next(iter(beats.get(each, ())), None), tuple(metrics.get(each, ())), reused.get(each)
        )
        for each in proxy_ids
    }


# A report also names deleted proxies.
_EVER: Final = "SELECT proxy_id FROM proxies UNION ALL SELECT id FROM tombstones WHERE kind = 'proxy'"


def _newest(
    connection: Connection, table: str, columns: str, proxy_ids: Collection[str], count: int
) -> Mapping[str, Sequence[Report]]:
    """Return, for each proxy, its newest reports, the newest report first.

    The query reads only the newest `count` reports of each proxy, and no older reports.
    """
    chosen = among(connection.dialect, "proxy_id", proxy_ids)
    rows = connection.rows(
        f"SELECT reports.proxy_id, {columns} FROM (SELECT proxy_id, coalesce((SELECT received_ms"  # noqa: S608
        f" FROM {table} AS kept WHERE kept.proxy_id = proxies.proxy_id"
        " ORDER BY received_ms DESC LIMIT 1 OFFSET ?), 0) AS since_ms"
        f" FROM ({_EVER}) AS proxies WHERE {chosen.sql}) AS newest JOIN {table} AS reports"
        " ON reports.proxy_id = newest.proxy_id AND reports.received_ms >= newest.since_ms"
        " ORDER BY received_ms DESC",
        (count - 1, *chosen.parameters),
    )
    found: defaultdict[str, list[Report]] = defaultdict(list)
    for proxy_id, *report in rows:
        if len(found[proxy_id]) < count:  # several reports may have arrived in the same millisecond
            found[proxy_id].append(Report(*report))
    return found


def tally_of_proxies(connection: Connection, most: int) -> tuple[ProxyTally, ...]:
    """Return the proxies that need attention most, sorted by losses, then by state, then by silence.

    Proxies with losses come before proxies without losses. Among proxies with losses, and also among proxies
    without losses, enabled proxies come before disabled proxies. If two proxies have the same state, the
    longer silent proxy comes first. The list includes a retired proxy only if the proxy has losses. In the
    sort order, a retired or ended proxy counts as a disabled proxy.
    """
    rows = connection.rows(
        "SELECT name, CASE WHEN retired_ms IS NOT NULL OR ended_ms = last_seen_ms THEN 0"  # noqa: S608
        " ELSE enabled END AS live,"
        " coalesce(last_seen_ms, created_ms) AS seen_ms, coalesce(gaps.missing, 0)"
        " + coalesce(numbers.unlisted, 0), coalesce(numbers.repeated, 0), coalesce(lost.missing, 0),"
        " coalesce(lost.repeated, 0), coalesce(lost.implausible, 0), coalesce(reused.count, 0)"
        f" FROM proxies LEFT JOIN ({_LOSSES} GROUP BY proxy_id) AS lost ON lost.proxy_id = proxies.proxy_id"
        " LEFT JOIN (SELECT proxy_id, sum(last - first + 1) AS missing FROM sequence_gaps GROUP BY proxy_id)"
        " AS gaps ON gaps.proxy_id = proxies.proxy_id"
        " LEFT JOIN (SELECT proxy_id, sum(unlisted) AS unlisted, sum(repeated) AS repeated FROM sequences"
        " GROUP BY proxy_id) AS numbers ON numbers.proxy_id = proxies.proxy_id"
        " LEFT JOIN (SELECT proxy_id, sum(count) AS count FROM reused_batch_ids GROUP BY proxy_id) AS reused"
        " ON reused.proxy_id = proxies.proxy_id"
        " WHERE retired_ms IS NULL OR lost.proxy_id IS NOT NULL"
        " ORDER BY CASE WHEN lost.proxy_id IS NULL THEN 1 ELSE 0 END, live DESC, seen_ms LIMIT ?",
        (most,),
    )
    return tuple(
        ProxyTally(
            name, bool(enabled), seen_ms, int(missing), int(repeated), Losses(*map(int, lost)), int(reused)
        )
        for name, enabled, seen_ms, missing, repeated, *lost, reused in rows
    )


# Heartbeats


def note_heartbeat(connection: Connection, proxy_id: str, received_ms: int, said: Said) -> None:
    """Store the values of a proxy's newest heartbeat that are needed to list and count proxies.

    A heartbeat can report the proxy's end. After a heartbeat that reports the end, the proxy counts as ended
    until its next message changes `last_seen_ms`.
    """
    ended_ms, health = (received_ms, "ok") if said.health == "ended" else (None, said.health)
    connection.run(
        "UPDATE proxies SET last_seen_ms = ?, heard_ms = ?, said = ?, ended_ms = ? WHERE proxy_id = ?",
        (received_ms, received_ms, health, ended_ms, proxy_id),
    )
    served = connection.rows(
        "SELECT rulesets.ruleset_id, held.version FROM proxy_orgs"
        " JOIN rulesets ON rulesets.org_id = proxy_orgs.org_id"
        " LEFT JOIN enforced_versions AS held ON held.proxy_id = proxy_orgs.proxy_id"
        " AND held.ruleset_id = rulesets.ruleset_id WHERE proxy_orgs.proxy_id = ?",
        (proxy_id,),
    )
    changed = [(each, said.rulesets.get(each)) for each, held in served if said.rulesets.get(each) != held]
    if not changed:
        return
    connection.many(
        "DELETE FROM enforced_versions WHERE proxy_id = ? AND ruleset_id = ?",
        [(proxy_id, ruleset_id) for ruleset_id, _ in changed],
    )
    connection.many(
        "INSERT INTO enforced_versions (proxy_id, ruleset_id, version) VALUES (?, ?, ?)",
        [(proxy_id, ruleset_id, version) for ruleset_id, version in changed if version is not None],
    )
