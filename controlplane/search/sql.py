"""Translates a search to an SQL condition.

A dialect writes the parts of the SQL condition that depend on the database engine. The module `sql` does no
input or output.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from controlplane.search.interface import CursorError, SearchQuery
from controlplane.search.query import (
    Between,
    Exactly,
    Field,
    FieldTerm,
    Filter,
    HasTerm,
    Like,
    Match,
    Term,
    TextTerm,
    fold,
)
from controlplane.store.interface import MOST_AHEAD_MS

Key: TypeAlias = tuple[int, int]  # time and position of an event; pages are ordered by it, newest first

COUNTED_MATCHES: Final = 50_000  # newest matches that facets count, and that a slow histogram counts
# All engines store times as signed 64-bit numbers. No event has a time beyond these bounds.
LEAST_MS: Final = -(1 << 62)
MOST_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL expression that is true, false or null.

    Each `?` in the SQL marks a parameter. The SQL contains no `?` except the parameter markers.
    """

    sql: str
    parameters: tuple[object, ...] = ()

    def numbered(self, write: Callable[[int, object], str]) -> str:
        """Return the SQL with the database's own markers for parameters.

        `write` receives the number and the value of a parameter, and returns the marker of the parameter.
        """
        first, *others = self.sql.split("?")
        markers = map(write, range(len(self.parameters)), self.parameters)
        return first + "".join(marker + text for marker, text in zip(markers, others, strict=True))


EVERYTHING: Final = Condition("1 = 1")
NOTHING: Final = Condition("1 = 0")


class Dialect(Protocol):
    """Columns of the events table in one database engine, and SQL conditions on the values of events.

    The dialect receives only texts that are already case-folded.
    """

    @property
    def org(self) -> str:
        """Column with the ID of an event's organisation."""

    @property
    def time(self) -> str:
        """Column with the time of an event in milliseconds since 1970.

        Pages of results are ordered by time.
        """

    @property
    def position(self) -> str:
        """Column with the position of an event in the store.

        Events of the same millisecond are ordered by position.
        """

    def exactly(self, field: Field, texts: Sequence[str]) -> Condition:
        """Return the SQL condition that a value of the field equals one of the texts."""

    def like(self, field: Field, pieces: Sequence[str]) -> Condition:
        """Return the SQL condition that a field's value contains the pieces in the given order."""

    def between(self, field: Field, match: Between) -> Condition:
        """Return the SQL condition that the field's number or time lies between the bounds of `match`."""

    def has(self, field: Field) -> Condition:
        """Return the SQL condition that the event has a value in the field."""

    def words(self, words: Sequence[str], *, prefix: bool) -> Condition:
        """Return the SQL condition that the words follow each other in one of TEXT_FIELDS.

        If `prefix` is True, the last word matches every word of the event that begins with the last word.
        """


def page_condition(query: SearchQuery, dialect: Dialect, before: Key | None = None) -> Condition:
    """Return the SQL condition that selects the events of one page of search results.

    `before` is the key of the last event of the previous page.
    """
    conditions = [*_scope(query, dialect), filter_condition(query.filter, dialect)]
    if before is not None:
        conditions.append(Condition(f"({dialect.time}, {dialect.position}) < (?, ?)", before))
    return all_of(conditions)


def newest_first(dialect: Dialect) -> str:
    """Return the SQL ORDER BY terms that sort the events of a page, newest first."""
    return f"{dialect.time} DESC, {dialect.position} DESC"


def past_retention(before_ms: int, newest: int | None) -> Condition:
    """Return the SQL condition that selects events past their retention; see `SearchIndex.purge`."""
    older = Condition("time < ?", (before_ms,))
    if newest is None:
        return older
    ahead = Condition("time > ?", (before_ms + MOST_AHEAD_MS,))
    return all_of([Condition("position <= ?", (newest,)), any_of([older, ahead])])


def _scope(query: SearchQuery, dialect: Dialect) -> list[Condition]:
    scope = [] if query.org_ids is None else [one_of(dialect.org, query.org_ids)]
    if query.from_ms is not None:
        scope.append(Condition(f"{dialect.time} >= ?", (max(query.from_ms, LEAST_MS),)))
    if query.to_ms is not None:
        scope.append(Condition(f"{dialect.time} < ?", (min(query.to_ms, MOST_MS),)))
    return scope


def filter_condition(wanted: Filter, dialect: Dialect) -> Condition:
    return all_of([term_condition(term, dialect) for term in wanted.terms])


def term_condition(term: Term, dialect: Dialect) -> Condition:
    """Return the SQL condition for one term of a search filter.

    If the term is negated, negate the condition.
    """
    if isinstance(term, TextTerm):
        condition = dialect.words([fold(word) for word in term.words], prefix=term.prefix)
    elif isinstance(term, HasTerm):
        condition = dialect.has(term.field)
    else:
        condition = any_of(_alternatives(term, dialect))
    return negated(condition) if term.negated else condition


def _alternatives(term: FieldTerm, dialect: Dialect) -> list[Condition]:
    texts = [fold(match.text) for match in term.matches if isinstance(match, Exactly)]
    found = [dialect.exactly(term.field, list(dict.fromkeys(texts)))] if texts else []
    others = (match for match in term.matches if not isinstance(match, Exactly))
    return found + [_of_match(term.field, match, dialect) for match in others]


def _of_match(field: Field, match: Match, dialect: Dialect) -> Condition:
    if isinstance(match, Like):
        return dialect.like(field, [fold(piece) for piece in match.pieces])
    assert isinstance(match, Between)
    return dialect.between(field, match)


# -- shared by the dialects --


def all_of(conditions: Iterable[Condition]) -> Condition:
    return _joined(" AND ", conditions) or EVERYTHING


def any_of(conditions: Iterable[Condition]) -> Condition:
    return _joined(" OR ", conditions) or NOTHING


def _joined(operator: str, conditions: Iterable[Condition]) -> Condition | None:
    several = [*conditions]
    if len(several) < 2:
        return several[0] if several else None
    parameters = tuple(each for condition in several for each in condition.parameters)
    return Condition(operator.join(f"({each.sql})" for each in several), parameters)


def negated(condition: Condition) -> Condition:
    """Return the SQL condition that holds if the given condition does not hold.

    If an event lacks the field, the SQL expression is null. The negated condition is true for an event that
    lacks the field.
    """
    return Condition(f"NOT coalesce({condition.sql}, FALSE)", condition.parameters)


def one_of(column: str, values: Sequence[object]) -> Condition:
    if not values:
        return NOTHING
    return Condition(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def bounded(column: str, match: Between) -> Condition:
    """Return the SQL condition that the number in the column lies between the bounds of `match`."""
    bounds = []
    if match.low is not None:
        bounds.append(Condition(f"{column} {'>' if match.low_open else '>='} ?", (match.low,)))
    if match.high is not None:
        bounds.append(Condition(f"{column} {'<' if match.high_open else '<='} ?", (match.high,)))
    return all_of(bounds)


def like_pattern(pieces: Sequence[str]) -> str:
    r"""Return the pieces as a LIKE pattern, whose escape character is `\`."""
    return "%".join(map(_literal, pieces))


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


# Cursors


def write_cursor(before: Key) -> str:
    packed = struct.pack(">qq", *before)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_cursor(cursor: str) -> Key:
    """Return the index key that bounds the next page: all events of the next page come before this key."""
    try:
        time_ms, position = struct.unpack(
            ">qq", base64.b64decode(cursor + "==", altchars=b"-_", validate=True)
        )
    except (ValueError, struct.error):
        raise CursorError("this page cursor was not made by this search index") from None
    return int(time_ms), int(position)
