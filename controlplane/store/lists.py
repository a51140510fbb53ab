"""SQL, for all database engines, that selects the IDs and the order of the rows on one page of a list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controlplane.store.database import Connection, Dialect
from controlplane.store.pages import Key, ListQuery

_FOLDED: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Condition:
    sql: str
    parameters: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The database tables and columns from which the rows of a list are read."""

    tables: str  # SQL after FROM
    counted: str  # SQL after FROM, without joins that exclude no row
    id: str
    name: str
    columns: Mapping[str, str]  # SQL of each column that the list can be sorted by; never null
    org_id: str | None  # column of the row's one organisation; None: it has none, or several
    ids: tuple[str, ...]  # columns that a search for a whole id compares
    parameters: tuple[Any, ...] = ()  # values for the placeholders in `tables`

    def holds(self, part: str) -> Condition:
        """Return the SQL condition that a row of the list matches the search text."""
        compared = [part_of(self.name), *(f"{each} = ?" for each in self.ids)]
        return Condition(" OR ".join(compared), (pattern(part), *(part for _ in self.ids)))


_NEWEST: Final = (
    "(SELECT max(version) FROM ruleset_versions AS newer WHERE newer.ruleset_id = rulesets.ruleset_id)"
)
ORGS: Final = Source(
    "orgs",
    "orgs",
    "org_id",
    "name",
    {"name": "name", "createdAt": "created_ms", "retention": "retention"},
    "org_id",
    ("org_id",),
)
RULESETS: Final = Source(
    "rulesets JOIN orgs ON orgs.org_id = rulesets.org_id JOIN ruleset_versions AS active"
    f" ON active.ruleset_id = rulesets.ruleset_id AND active.version = {_NEWEST}",
    "rulesets",
    "rulesets.ruleset_id",
    "rulesets.name",
    {
        "name": "rulesets.name",
        "org": "orgs.name",
        "version": "active.version",
        "rules": "active.rule_count",
        "changedAt": "active.created_ms",
    },
    "rulesets.org_id",
    ("rulesets.ruleset_id",),
)
APPS: Final = Source(
    "apps JOIN orgs ON orgs.org_id = apps.org_id JOIN rulesets ON rulesets.ruleset_id = apps.ruleset_id"
    " LEFT JOIN app_uses ON app_uses.app_id = apps.app_id",
    "apps",
    "apps.app_id",
    "apps.name",
    {
        "name": "apps.name",
        "org": "orgs.name",
        "ruleset": "rulesets.name",
        "owner": "coalesce(apps.owner, '')",
        "lastSeen": "coalesce(app_uses.last_ms, 0)",
        "createdAt": "apps.created_ms",
    },
    "apps.org_id",
    ("apps.app_id", "apps.client_id"),
)
OPERATORS: Final = Source(
    "operators",
    "operators",
    "operator_id",
    "name",
    {"name": "lower(name)", "createdAt": "created_ms", "signedInAt": "coalesce(signed_in_ms, 0)"},
    None,
    ("operator_id",),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The IDs of the rows on a page, and the keys of the next and the previous page."""

    ids: tuple[str, ...]
    next: Key | None
    total: int
    before: int = 0
    previous: Key | None = None


def page_of(
    connection: Connection, source: Source, query: ListQuery, further: Sequence[Condition] = ()
) -> Found:
    """Return the page of list rows that match the query and all further conditions."""
    wanted = [*_conditions(source, query, connection.dialect), *further]
    values = (*source.parameters, *given(wanted))
    (total,) = connection.row(f"SELECT count(*) FROM {source.counted}{where(wanted)}", values)  # noqa: S608 - our own names
    # A name is more useful to a person than an id, so it comes first in the order of equal values.
    keys = list(dict.fromkeys((source.columns[query.sort], source.columns["name"], source.id)))
    before, previous = 0, None
    if query.after is not None:
        if query.with_before:
            before, previous = _before(connection, source, query, wanted, keys)
        sign = "<" if query.descending else ">"
        wanted.append(Condition(f"({', '.join(keys)}) {sign} ({', '.join('?' * len(keys))})", query.after))
    order = _order(keys, descending=query.descending)
    rows = connection.rows(
        f"SELECT {source.id}, {', '.join(keys)} FROM {source.tables}{where(wanted)}"  # noqa: S608
        f" ORDER BY {order} LIMIT ?",
        (*source.parameters, *given(wanted), query.limit + 1),
    )
    page = rows[: query.limit]
    following = tuple(page[-1][1:]) if len(rows) > query.limit else None
    return Found(tuple(row[0] for row in page), following, total, before, previous)


def _before(
    connection: Connection, source: Source, query: ListQuery, wanted: Sequence[Condition], keys: Sequence[str]
) -> tuple[int, Key | None]:
    """Return the number of rows before the page, and the key after which the previous page begins."""
    assert query.after is not None
    sign = ">=" if query.descending else "<="
    passed = Condition(f"({', '.join(keys)}) {sign} ({', '.join('?' * len(keys))})", query.after)
    rows = connection.rows(
        f"SELECT {', '.join(keys)}, count(*) OVER () FROM {source.tables}{where([*wanted, passed])}"  # noqa: S608
        f" ORDER BY {_order(keys, descending=not query.descending)} LIMIT ?",
        (*source.parameters, *given([*wanted, passed]), query.limit + 1),
    )
    before = rows[0][-1] if rows else 0
    return before, tuple(rows[query.limit][:-1]) if len(rows) > query.limit else None


def _order(keys: Sequence[str], *, descending: bool) -> str:
    return ", ".join(f"{key} DESC" if descending else key for key in keys)


def among(dialect: Dialect, column: str, values: Collection[str]) -> Condition:
    """Return the SQL condition that the column has one of the given values."""
    return Condition(f"{column} {dialect.among}", (dialect.listed(sorted(values)),))


def _conditions(source: Source, query: ListQuery, dialect: Dialect) -> Iterable[Condition]:
    if query.org_ids is not None and source.org_id is not None:
        yield among(dialect, source.org_id, query.org_ids)
    if query.ids is not None:
        yield among(dialect, source.id, query.ids)
    if query.search is not None:
        yield source.holds(query.search)


def part_of(column: str) -> str:
    """Return the SQL condition that the column contains a text.

    The caller must convert the searched text with the function `pattern`, and pass the result as the
    parameter of the SQL condition.
    """
    return f"lower({column}) LIKE ? ESCAPE '!'"


def pattern(part: str) -> str:
    folded = part.translate(_FOLDED)
    for each in "!%_":
        folded = folded.replace(each, f"!{each}")
    return f"%{folded}%"


def where(wanted: Sequence[Condition]) -> str:
    return " WHERE " + " AND ".join(f"({each.sql})" for each in wanted) if wanted else ""


def given(wanted: Sequence[Condition]) -> tuple[Any, ...]:
    return tuple(value for each in wanted for value in each.parameters)
