"""Pure: what the SQLite index writes of an event, and how a filter becomes an FTS5 expression and conditions.

Every event gets one row and one list of tokens under one key, and keys are in the order of time. FTS5 walks
the tokens' posting lists from the newest key down and intersects them without touching a row, so the newest
matches of any combination of exact values come first and the walk stops at the page's limit. What tokens
can't decide (parts of a value, amounts) is decided on the rows that are left.

Tokens are `=<letter>:<value>`; no word of free text begins with `=`, so that neither a word nor the beginning
of one is ever taken for a token. A user's text only becomes a token within double quotes, where FTS5 knows no
syntax, or a bound parameter.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import orjson

from controlplane.search.document import Document, Value, text_words
from controlplane.search.interface import SearchQuery
from controlplane.search.query import (
    FIELDS,
    Between,
    Exactly,
    Field,
    FieldTerm,
    HasTerm,
    Like,
    Match,
    TextTerm,
    fold,
)
from proxy.wire.audit_event import VERDICTS

# -- keys: milliseconds since 1970, then a number that keeps apart the events of one millisecond ---

SLOT_BITS: Final = 15
SLOTS: Final = 1 << SLOT_BITS
LEAST_KEY: Final = -(1 << 63)
MOST_KEY: Final = (1 << 63) - 1


def wanted_key(document: Document) -> int:
    return document.time_ms << SLOT_BITS | document.position & SLOTS - 1


# -- rows ------------------------------------------------------------------------------------------

COLUMNS: Final = tuple(field for field in FIELDS.values() if field.kind != "time")
_TYPES: Final = {"text": "TEXT", "texts": "TEXT", "number": "NUMERIC"}

# "parent", "query" and their like are words of SQL: every column is written in quotes.
SCHEMA: Final = (
    f"""CREATE TABLE events (
            key INTEGER PRIMARY KEY,
            {", ".join(f'"{field.name}" {_TYPES[field.kind]}' for field in COLUMNS)},
            body BLOB NOT NULL)""",
    'CREATE UNIQUE INDEX events_by_id ON events (id, "org")',
    # All of ASCII that can be seen but both quotes belongs to a token; token() sees to the rest.
    """CREATE VIRTUAL TABLE terms USING fts5 (term, content='', columnsize=0,
            tokenize="ascii tokenchars '!#$%&()*+,-./:;<=>?@[\\]^_`{|}~'")""",
)
INSERT_EVENT: Final = f"INSERT INTO events VALUES ({', '.join('?' * (len(COLUMNS) + 2))})"  # noqa: S608 - constants
INSERT_TERMS: Final = "INSERT INTO terms (rowid, term) VALUES (?, ?)"
DELETE_TERMS: Final = "INSERT INTO terms (terms, rowid, term) VALUES ('delete', ?, ?)"

_COLUMN_NAMES: Final = tuple(field.name for field in COLUMNS)


def event_row(key: int, document: Document) -> tuple[object, ...]:
    values = document.values
    stored = [values.get(name) for name in _COLUMN_NAMES]
    if "logged" in values or "transform" in values:
        stored = [orjson.dumps(value).decode() if isinstance(value, tuple) else value for value in stored]
    return (key, *stored, document.body)


def column_values(field: Field, stored: object) -> Iterable[str]:
    """What a facet counts in one column."""
    if stored is None:
        return ()
    if field.kind == "texts":
        return [str(item) for item in orjson.loads(str(stored))]
    return (str(stored),)


# -- tokens ----------------------------------------------------------------------------------------

_LETTERS: Final = {
    "id": "n", "org": "o", "proxy": "x", "app": "a", "client": "c", "ip": "i", "request": "q",
    "clientrequest": "k", "method": "m", "path": "p", "status": "s", "verdict": "v", "rule": "r",
    "logged": "l", "transform": "t", "upstream": "u", "parent": "b", "reason": "e", "ruleset": "g",
    "upstreamrequest": "w",
}  # fmt: skip
_UNIQUE: Final = frozenset({"id", "request", "clientrequest", "parent", "upstreamrequest", "path"})
_FOLDER: Final = "=f:"  # a path's beginning up to a slash
_FOLDERS: Final = 3  # "/v1.0/", "/v1.0/users/", "/v1.0/users/{id}/"
_HUNDREDS: Final = {"status": "=h:", "upstream": "=j:"}
_DOUBLINGS: Final = {"duration": "=d:", "upstreamtime": "=y:"}  # milliseconds by their number of bits
_MOST_BITS: Final = 40
_HAS: Final = {"logged": "=z:logged", "transform": "=z:transform", "parent": "=z:parent"}
_OTHER_VERDICT: Final = "=z:verdict"
_DIVIDER: Final = "="  # after each text's words, so that no phrase spans two texts

_TOKEN_CHARS: Final = 96
_NOT_IN_TOKEN: Final = re.compile("[\x00-\x20\x7f\"'%]")


def token(letter: str, value: str) -> str:
    """One token for one value: two values share one only if they differ in nothing but the case of A-Z."""
    return _known_token(letter, value) if len(value) <= _KNOWN_CHARS else _made_token(letter, value)


def _made_token(letter: str, value: str) -> str:
    # fold() first: the digest of a long value must not depend on case.
    return f"={letter}:{_shortened(_escaped(fold(value)))}"


# The same few organisations, apps, rules and addresses come again and again; some megabytes at most.
_KNOWN_CHARS: Final = 64
_known_token: Final = lru_cache(16_384)(_made_token)


def _escaped(text: str) -> str:
    return _NOT_IN_TOKEN.sub(lambda char: f"%{ord(char[0]):02x}", text)


def _shortened(text: str) -> str:
    if len(text) <= _TOKEN_CHARS:
        return text
    return text[:_TOKEN_CHARS] + "%" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def event_tokens(document: Document) -> str:
    """As the tokenizer takes them."""
    tokens = _field_tokens(document.values, document.event_id)
    for listed in text_words(document.values):
        tokens += listed
        tokens.append(_DIVIDER)
    return " ".join(tokens)


def _field_tokens(values: dict[str, Value], event_id: str) -> list[str]:
    tokens = []
    for name, value in values.items():
        letter = _LETTERS.get(name)
        if isinstance(value, str):
            if name in _UNIQUE:
                if name != "request" or value != event_id:
                    tokens.append(_made_token(_LETTERS[name], value))
            elif letter is not None:
                tokens.append(token(letter, value))
        elif isinstance(value, tuple):
            tokens += [token(_LETTERS[name], item) for item in value]
        elif name in _DOUBLINGS and value is not None:
            tokens.append(f"{_DOUBLINGS[name]}{_bits(value)}")
        elif name in _HUNDREDS and value is not None:
            tokens += _status_tokens(name, value)
        if name in _HAS:
            tokens.append(_HAS[name])
    path = values.get("path")
    if isinstance(path, str):
        tokens += [_FOLDER + _shortened(folder) for folder in _folders(_escaped(fold(path)))]
    if fold(str(values.get("verdict"))) not in VERDICTS:
        tokens.append(_OTHER_VERDICT)
    return tokens


@lru_cache(2048)
def _status_tokens(name: str, value: float) -> tuple[str, str]:
    return token(_LETTERS[name], _number_text(value)), f"{_HUNDREDS[name]}{_hundred(value)}"


def _folders(path: str) -> Iterator[str]:
    slash = path.find("/", 1)
    for _ in range(_FOLDERS):
        if slash < 0:
            return
        yield path[: slash + 1]
        slash = path.find("/", slash + 1)


def _number_text(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _hundred(status: float) -> int:
    return int(min(max(status // 100, 0), 9))


def _bits(milliseconds: float) -> int:
    return min(int(max(milliseconds, 0)).bit_length(), _MOST_BITS)


# -- filters ---------------------------------------------------------------------------------------

Expression: TypeAlias = str | None  # of FTS5; None: every event may match
_NEVER: Final = "=n:"  # no event has an empty id


@dataclass(frozen=True, slots=True)
class Plan:
    """`match` finds all matches and may find more; `conditions` on the row (alias e) then decide."""

    match: Expression
    conditions: tuple[str, ...]
    parameters: tuple[object, ...]
    least_key: int
    most_key: int


def plan(query: SearchQuery) -> Plan:
    builder = _Builder(query)
    for term in sorted(query.filter.terms, key=lambda term: term.negated):  # what is taken out comes last
        builder.add(term)
    return builder.plan()


class _Builder:
    def __init__(self, query: SearchQuery) -> None:
        self._all: list[str] = []
        self._none: list[str] = []
        self._conditions: list[str] = []
        self._parameters: list[object] = []
        self._least = LEAST_KEY if query.from_ms is None else _key_at(query.from_ms)
        self._most = MOST_KEY if query.to_ms is None else _key_at(query.to_ms) - 1
        if query.org_id is not None:
            # Both ways: tenants stay apart even if one of the two should ever be wrong.
            self._all.append(_quoted(token("o", query.org_id)))
            self._condition('e."org" = ?', [query.org_id])

    def plan(self) -> Plan:
        match = " AND ".join(self._all) or None
        if match and self._none:
            match = f"({match}) NOT ({' OR '.join(self._none)})"
        return Plan(match, tuple(self._conditions), tuple(self._parameters), self._least, self._most)

    def add(self, term: FieldTerm | HasTerm | TextTerm) -> None:
        if isinstance(term, TextTerm):
            self._add_text(term)
        elif isinstance(term, HasTerm):
            self._add_has(term)
        elif term.negated:
            self._add_excluded(term)
        else:
            self._add_wanted(term)

    def _condition(self, sql: str, parameters: Iterable[object], *, negated: bool = False) -> None:
        # A comparison with NULL is NULL, and an event without the field is no match: IS NOT TRUE, never NOT.
        self._conditions.append(f"({sql}) IS NOT TRUE" if negated else f"({sql})")
        self._parameters += parameters

    def _add_text(self, term: TextTerm) -> None:
        phrase = _quoted(" ".join(term.words)) + ("*" if term.prefix else "")
        if not term.negated:
            self._all.append(phrase)
        elif self._all:
            self._none.append(phrase)
        else:
            self._condition("e.key IN (SELECT rowid FROM terms WHERE terms MATCH ?)", [phrase], negated=True)

    def _add_has(self, term: HasTerm) -> None:
        if term.field.name in _HAS and not term.negated:
            self._all.append(_quoted(_HAS[term.field.name]))
        elif term.field.kind == "time":  # every event has one
            self._condition("FALSE" if term.negated else "TRUE", [])
        else:
            self._condition(f'e."{term.field.name}" IS {"" if term.negated else "NOT "}NULL', [])

    def _add_wanted(self, term: FieldTerm) -> None:
        if term.field.kind == "time":
            self._narrow(term)
        candidates = [_candidates(term.field, match) for match in term.matches]
        if None not in candidates:
            self._all.append(f"({' OR '.join(filter(None, candidates))})")
        if not _decided_by_tokens(term):
            self._decide_on_row(term)

    def _add_excluded(self, term: FieldTerm) -> None:
        others = _other_verdicts(term)
        if others:
            self._all.append(f"({' OR '.join(others)})")
        elif _decided_by_tokens(term) and self._all:
            self._none += filter(None, (_candidates(term.field, match) for match in term.matches))
        else:
            self._decide_on_row(term)

    def _narrow(self, term: FieldTerm) -> None:
        """The key range that holds all the wanted times, so that nothing outside of it is looked at."""
        spans = [match for match in term.matches if isinstance(match, Between)]
        lows = [span.low for span in spans if span.low is not None]
        highs = [span.high for span in spans if span.high is not None]
        if len(lows) == len(spans):
            self._least = max(self._least, _key_at(int(min(lows))))
        if len(highs) == len(spans):
            self._most = min(self._most, _key_at(int(max(highs)) + 1) - 1)

    def _decide_on_row(self, term: FieldTerm) -> None:
        tests, parameters = [], []
        for match in term.matches:
            test, given = _test(_expression(term.field), match)
            tests.append(test)
            parameters += given
        sql = " OR ".join(tests)
        if term.field.kind == "texts":
            sql = f'EXISTS (SELECT 1 FROM json_each(e."{term.field.name}") WHERE {sql})'  # noqa: S608
        self._condition(sql, parameters, negated=term.negated)


def _key_at(milliseconds: int) -> int:
    return min(max(milliseconds << SLOT_BITS, LEAST_KEY), MOST_KEY)


def _expression(field: Field) -> str:
    if field.kind == "time":
        return f"(e.key >> {SLOT_BITS})"
    return "json_each.value" if field.kind == "texts" else f'e."{field.name}"'


def _test(expression: str, match: Match) -> tuple[str, list[object]]:
    if isinstance(match, Exactly):
        return f"{expression} = ? COLLATE NOCASE", [match.text]
    if isinstance(match, Like):
        return f"{expression} LIKE ? ESCAPE '\\'", ["%".join(map(_like_escaped, match.pieces))]
    tests, parameters = [f"{expression} IS NOT NULL"], []
    if match.low is not None:
        tests.append(f"{expression} {'>' if match.low_open else '>='} ?")
        parameters.append(match.low)
    if match.high is not None:
        tests.append(f"{expression} {'<' if match.high_open else '<='} ?")
        parameters.append(match.high)
    return f"({' AND '.join(tests)})", [*parameters]


def _like_escaped(piece: str) -> str:
    return re.sub(r"([%_\\])", r"\\\1", piece)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _decided_by_tokens(term: FieldTerm) -> bool:
    # A request's id may stand among the tokens as the event's own id alone.
    return term.field.name in _LETTERS.keys() - {"request"} and all(
        isinstance(match, Exactly) or (isinstance(match, Between) and match.low == match.high)
        for match in term.matches
    )


def _other_verdicts(term: FieldTerm) -> list[str]:
    """Verdicts are a closed list, and "all but allow" is rare among the allowed: name the others instead."""
    if term.field.name != "verdict" or not all(isinstance(match, Exactly) for match in term.matches):
        return []
    excluded = {fold(match.text) for match in term.matches if isinstance(match, Exactly)}
    if not excluded <= set(VERDICTS):
        return []
    others = [_quoted(token("v", verdict)) for verdict in VERDICTS if verdict not in excluded]
    return [*others, _quoted(_OTHER_VERDICT)]


def _candidates(field: Field, match: Match) -> Expression:
    if isinstance(match, Between):
        return _number_candidates(field.name, match)
    letter = _LETTERS.get(field.name)
    if letter is None:
        return None
    if isinstance(match, Exactly):
        if field.name == "request":  # written only where it differs from the event's id
            return f"{_quoted(token('q', match.text))} OR {_quoted(token('n', match.text))}"
        return _quoted(token(letter, match.text))
    return _beginning_candidates(field.name, letter, match.pieces[0])


def _beginning_candidates(name: str, letter: str, beginning: str) -> Expression:
    start = _escaped(fold(beginning))
    if name == "path":
        folders = [*_folders(start)]
        return _quoted(_FOLDER + _shortened(folders[-1])) if folders else None
    if not start or len(start) > _TOKEN_CHARS or name == "request":
        return None
    return _quoted(f"={letter}:{start}") + "*"


def _number_candidates(name: str, match: Between) -> Expression:
    if name in _LETTERS and match.low == match.high and match.low is not None:
        return _quoted(token(_LETTERS[name], _number_text(match.low)))
    if name in _HUNDREDS:
        return _any_of(_HUNDREDS[name], _hundred, match, 9)
    if name in _DOUBLINGS:
        return _any_of(_DOUBLINGS[name], _bits, match, _MOST_BITS)
    return None


def _any_of(prefix: str, step: Callable[[float], int], match: Between, most: int) -> Expression:
    """The steps that the range touches; both ends of the scale also hold what lies beyond them."""
    low = 0 if match.low is None else step(match.low)
    high = most if match.high is None else step(match.high)
    return " OR ".join(_quoted(f"{prefix}{number}") for number in range(low, high + 1)) or _quoted(_NEVER)
