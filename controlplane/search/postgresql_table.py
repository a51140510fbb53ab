"""SQL for the PostgreSQL table of audit events: its columns, the row of an event, filters as conditions.

The code of this module does no input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final
from urllib.parse import unquote

from controlplane.search.document import PERCENT_CODED, Document
from controlplane.search.predicates import phrase, said_by
from controlplane.search.query import FIELDS, WORD, Between, Field, fold, words
from controlplane.search.sql import Condition, all_of, any_of, bounded, like_pattern

# Meaning of the columns. Tables of another format are dropped, and filled again from the store. An added
# column does not change the format.
FORMAT: Final = 1
TABLE: Final = "search_events"
STATE: Final = "search_index"

_TERM_CHARS: Final = 100  # a longer value is found by its beginning, and then compared
_MOST_TERMS: Final = 4096  # terms of one event; PostgreSQL accepts a megabyte of them
# Fields that are found by their words.
_BY_WORDS: Final = PERCENT_CODED
_TYPES: Final = {"text": 'text COLLATE "C"', "texts": 'text[] COLLATE "C"', "number": "double precision"}
_OF_FIELDS: Final = tuple(field for field in FIELDS.values() if field.name not in ("org", "time", "id"))

COLUMNS: Final = (
    *("org", "time", "position", "id", "size", "body", "said", "terms"),
    *(field.name for field in _OF_FIELDS),
)
_FIXED: Final = (
    'org text COLLATE "C" NOT NULL',
    "time bigint NOT NULL",
    "position bigint NOT NULL",
    'id text COLLATE "C" NOT NULL',
    "size integer NOT NULL",
    "body bytea NOT NULL",
    'said text COLLATE "C" NOT NULL',
    "terms tsvector NOT NULL",
)
_OWN_COLUMNS: Final = {field.name: f"{field.name} {_TYPES[field.kind]}" for field in _OF_FIELDS}
_COLUMNS: Final = ", ".join((*_FIXED, *_OWN_COLUMNS.values()))
SCHEMA: Final = (
    f"CREATE TABLE {STATE} (format integer NOT NULL, incarnation text NOT NULL, reached bigint NOT NULL)",
    f"CREATE TABLE {TABLE} ({_COLUMNS}, PRIMARY KEY (org, time, position))",
    f"CREATE INDEX {TABLE}_newest ON {TABLE} (time, position)",
    f"CREATE INDEX {TABLE}_terms ON {TABLE} USING gin (terms)",
)


def add_columns(present: Collection[str]) -> list[str]:
    """Return the SQL statements that add the new fields of this release to a table of an earlier release."""
    return [
        f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS {column}"
        for name, column in _OWN_COLUMNS.items()
        if name not in present
    ]


def row_of(document: Document) -> list[object]:
    """Return the values of the document in the order of COLUMNS."""
    said = said_by(document.values)
    values = [_storable(document.values.get(field.name), field) for field in _OF_FIELDS]
    terms = list(dict.fromkeys((*_terms_of(document), *said.split())))[:_MOST_TERMS]
    return [
        document.org_id,
        document.time_ms,
        document.position,
        _without_nul(document.event_id),
        len(document.body),
        document.body,
        said,
        " ".join(map(_quoted, terms)),
        *values,
    ]


def _storable(value: object, field: Field) -> object:
    if value is None:
        return None
    if isinstance(value, tuple):
        return [_without_nul(str(each)) for each in value]
    return float(str(value)) if field.kind == "number" else _without_nul(str(value))


def _without_nul(text: str) -> str:
    """Return the text without NUL, the only character that PostgreSQL's text rejects."""
    return text.replace("\0", "\ufffd")


def _terms_of(document: Document) -> Iterator[str]:
    for field in FIELDS.values():
        value = document.event_id if field.name == "id" else document.values.get(field.name)
        if value is None or field.kind in ("number", "time") or field.name in _BY_WORDS:
            continue
        for each in value if isinstance(value, tuple) else (str(value),):
            yield _term(field, fold(each))


def _term(field: Field, folded: str) -> str:
    return _without_nul(f"{field.name}={folded[:_TERM_CHARS]}")


def _quoted(lexeme: str) -> str:
    doubled = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


class PostgresDialect:
    """Class that writes search conditions as SQL for PostgreSQL.

    `lower` with the collation C changes A-Z and no other characters, as the filter grammar requires.
    """

    org, time, position = "org", "time", "position"

    def exactly(self, field: Field, texts: Sequence[str]) -> Condition:
        plain = [_without_nul(text) for text in texts]
        if field.name not in _BY_WORDS and max(map(len, plain)) < _TERM_CHARS:
            return _found(" | ".join(_quoted(_term(field, text)) for text in plain))
        return any_of([_equals(field, text) for text in plain])

    def like(self, field: Field, pieces: Sequence[str]) -> Condition:
        pattern = Condition("lower({}) LIKE ?", (_without_nul(like_pattern(pieces)),))
        condition = _value(field, lambda value: Condition(pattern.sql.format(value), pattern.parameters))
        known = [*_words_within(pieces)] if field.name in _BY_WORDS else []
        return all_of([_found(" & ".join(dict.fromkeys(known))), condition]) if known else condition

    def between(self, field: Field, match: Between) -> Condition:
        return bounded(field.name, match)

    def has(self, field: Field) -> Condition:
        column = field.name
        return Condition(f"cardinality({column}) > 0" if field.kind == "texts" else f"{column} IS NOT NULL")

    def words(self, words: Sequence[str], *, prefix: bool) -> Condition:
        said = Condition("said LIKE ?", (like_pattern(["", phrase(words, prefix=prefix), ""]),))
        return all_of([_have(words, prefix=prefix), said])


def _equals(field: Field, text: str) -> Condition:
    compared = _value(field, lambda value: Condition(f"lower({value}) = ?", (text,)))
    if field.name in _BY_WORDS:
        known = words(fold(unquote(text)))
        return all_of([_have(known), compared]) if known else compared
    return all_of([_have([_term(field, text)]), compared])


def _have(terms: Sequence[str], *, prefix: bool = False) -> Condition:
    """Return the condition that an event contains all the words or values in `terms`.

    If `prefix` is True, the last term also matches each longer word or value that begins with this term.
    """
    quoted = [*map(_quoted, terms)]
    return _found(" & ".join([*dict.fromkeys(quoted[:-1]), quoted[-1] + (":*" if prefix else "")]))


def _found(query: str) -> Condition:
    return Condition("terms @@ CAST(? AS tsquery)", (query,))


def _value(field: Field, holds: Callable[[str], Condition]) -> Condition:
    """Return the search condition for the value of a field, or for alternative values of the field."""
    if field.kind != "texts":
        return holds(field.name)
    condition = holds("each")
    items = f"SELECT FROM unnest({field.name}) AS each WHERE {condition.sql}"
    return Condition(f"EXISTS ({items})", condition.parameters)


def _words_within(pieces: Sequence[str]) -> Iterator[str]:
    """Yield a tsquery for each word that a text must contain to match all pattern pieces.

    The pieces are the parts of a search pattern between its wildcards. Skip a word directly after a wildcard,
    because the word may be the end of a longer word in the text. A word directly before a wildcard may be
    only the beginning of a longer word in the text.
    """
    for number, piece in enumerate(pieces):
        if "%" in piece:
            continue
        for word in WORD.finditer(piece):
            begins = word.start() > 0 or number == 0
            ends = word.end() < len(piece) or number == len(pieces) - 1
            for known in words(word[0]) if begins else ():
                yield _quoted(known) if ends else f"{_quoted(known)}:*"


def bound(condition: Condition) -> str:
    return condition.numbered(lambda number, _: f"${number + 1}")
