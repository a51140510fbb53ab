"""Usage counts of applications and rules by day, which are stored together with the counted events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from controlplane.store.database import NO_LOCKS, Connection, Database, is_text
from controlplane.store.interface import AppUsage, NewBatch, RuleUsage
from controlplane.store.lists import among
from controlplane.usage import MOST_RULES

_MOST_LISTED: Final = 2 * MOST_RULES

# An event can name an application that does not exist, or another organisation's. Such a name gets no row.
_OF_APP: Final = "FROM apps WHERE app_id = ?1 AND org_id = ?2"
_NOTE_APP: Final = (
    f"INSERT INTO app_uses (app_id, last_ms) SELECT app_id, CAST(?3 AS bigint) {_OF_APP}"
    " ON CONFLICT (app_id) DO UPDATE SET last_ms = excluded.last_ms"
    " WHERE app_uses.last_ms < excluded.last_ms"
)
_COUNT_APP: Final = (
    "INSERT INTO app_days (app_id, day, requests)"
    f" SELECT app_id, CAST(?3 AS bigint), CAST(?4 AS bigint) {_OF_APP}"
    " ON CONFLICT (app_id, day) DO UPDATE SET requests = app_days.requests + excluded.requests"
)
_HAS_ROOM: Final = (  # so that invented ids don't fill the database
    " AND (EXISTS (SELECT 1 FROM rule_days AS known WHERE known.ruleset_id = apps.ruleset_id"  # noqa: S608 - our own names
    " AND known.rule_id = CAST(?3 AS text) AND known.day = CAST(?4 AS bigint))"
    " OR (SELECT count(*) FROM (SELECT 1 FROM rule_days AS others WHERE others.day = CAST(?4 AS bigint)"
    f" AND others.ruleset_id = apps.ruleset_id LIMIT {MOST_RULES}) AS counted) < {MOST_RULES})"
)
_COUNT_RULE: Final = (
    "INSERT INTO rule_days (ruleset_id, rule_id, day, hits, last_ms)"
    " SELECT ruleset_id, CAST(?3 AS text), CAST(?4 AS bigint), CAST(?5 AS bigint), CAST(?6 AS bigint)"
    f" {_OF_APP}{_HAS_ROOM}"
    " ON CONFLICT (ruleset_id, rule_id, day) DO UPDATE SET hits = rule_days.hits + excluded.hits,"
    " last_ms = CASE WHEN rule_days.last_ms > excluded.last_ms THEN rule_days.last_ms"
    " ELSE excluded.last_ms END"
)


def count_uses(connection: Connection, batch: NewBatch) -> None:
    """Count the uses of applications and rules in the events of a batch.

    If an earlier batch already contained an event, the function counts the event's use of its application and
    of its rules again.
    """
    newest: dict[str, int] = {}
    for (app_id, _), use in batch.uses.apps.items():
        newest[app_id] = max(use.last_ms, newest.get(app_id, use.last_ms))
    known = {app_id: (app_id, batch.org_id) for app_id in newest if is_text(app_id)}
    connection.many(_NOTE_APP, [(*key, newest[app_id]) for app_id, key in known.items()])
    connection.many(
        _COUNT_APP,
        [
            (*known[app_id], day, use.requests)
            for (app_id, day), use in batch.uses.apps.items()
            if app_id in known
        ],
    )
    connection.many(
        _COUNT_RULE,
        [
            (*known[app_id], rule_id, day, *use)
            for (app_id, rule_id, day), use in batch.uses.rules.items()
            if app_id in known
        ],
    )


class UsageTables:
    _database: Database

    async def app_usage(self, app_ids: Sequence[str], from_day: int) -> Mapping[str, AppUsage]:
        def job(connection: Connection) -> Mapping[str, AppUsage]:
            chosen = among(connection.dialect, "app_id", app_ids)
            rows = connection.rows(
                "SELECT app_id, last_ms FROM app_uses"  # noqa: S608
                f" WHERE {chosen.sql}",
                chosen.parameters,
            )
            last: dict[str, int] = dict(rows)
            counted: Any = connection.rows(
                "SELECT app_id, CAST(sum(requests) AS bigint) FROM app_days"  # noqa: S608
                f" WHERE {chosen.sql} AND day >= ? GROUP BY app_id",
                (*chosen.parameters, from_day),
            )
            requests: dict[str, int] = dict(counted)
            since = among(connection.dialect, "apps.app_id", app_ids)
            return {
                app_id: AppUsage(last.get(app_id), requests.get(app_id, 0), since_ms)
                for app_id, since_ms in connection.rows(
                    "SELECT app_id, CASE WHEN counted_since_ms > apps.created_ms THEN counted_since_ms"  # noqa: S608
                    " ELSE apps.created_ms END FROM apps JOIN orgs ON orgs.org_id = apps.org_id"
                    f" WHERE {since.sql}",
                    since.parameters,
                )
            }

        return await self._database.read(job)

    async def rule_usage(self, ruleset_id: str, from_day: int) -> RuleUsage:
        def job(connection: Connection) -> RuleUsage:
            (since_ms,) = connection.row(
                "SELECT CASE WHEN counted_since_ms > rulesets.created_ms THEN counted_since_ms"
                " ELSE rulesets.created_ms END FROM rulesets JOIN orgs ON orgs.org_id = rulesets.org_id"
                " WHERE ruleset_id = ?",
                (ruleset_id,),
            )
            rows = connection.rows(
                "SELECT rule_id, CAST(sum(CASE WHEN day >= ?2 THEN hits ELSE 0 END) AS bigint), max(last_ms)"  # noqa: S608
                " FROM rule_days WHERE ruleset_id = ?1 GROUP BY rule_id"
                f" ORDER BY 2 DESC, 3 DESC LIMIT {_MOST_LISTED}",
                (ruleset_id, from_day),
            )
            return RuleUsage(since_ms, {rule_id: (hits, last_ms) for rule_id, hits, last_ms in rows})

        return await self._database.read(job)

    async def oldest_events(self, org_ids: Sequence[str]) -> Mapping[str, int]:
        def job(connection: Connection) -> Mapping[str, int]:
            chosen = among(connection.dialect, "org_id", org_ids)
            rows = connection.rows(
                "SELECT org_id, (SELECT min(least_ms) FROM blocks WHERE blocks.org_id = orgs.org_id)"  # noqa: S608
                f" FROM orgs WHERE {chosen.sql}",
                chosen.parameters,
            )
            return {org_id: oldest_ms for org_id, oldest_ms in rows if oldest_ms is not None}

        return await self._database.read(job)

    async def purge_usage(self, before_day: int) -> int:
        """Delete the usage counts of days before `before_day`.

        Return how many counts were deleted.
        """

        def job(connection: Connection) -> int:
            days = connection.count("DELETE FROM app_days WHERE day < ?", (before_day,))
            return days + connection.count("DELETE FROM rule_days WHERE day < ?", (before_day,))

        return await self._database.write(job, NO_LOCKS)
