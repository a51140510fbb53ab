"""The grammar of search filters, and a parser from filter text to values that every search index uses.

    filter = *( term separated by white space )            all terms must hold
    term   = [ "-" ] ( field ":" value *( "," value ) / text )
    value  = quoted / bare, where * stands for any characters; numbers and times also > >= < <= and low..high
    text   = quoted / bare, a run of words as they stand in the event's text; a bare text may end in *

This module does not depend on an index. Every filter text results in a Filter, or in a QueryError that names
the column of the error. The parser takes time linear in the length of the text.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from proxy.wire.audit_event import VERDICTS

MAX_FILTER_CHARS: Final = 4096
MAX_VALUES: Final = 200
MAX_PHRASE_WORDS: Final = 32
MAX_STARS: Final = 8  # wildcards in one value; the wildcard matching of an index may take quadratic time
WORD_CHARS: Final = 64  # a longer word is compared by its beginning

Kind = Literal["text", "texts", "number", "time"]


class QueryError(ValueError):
    """Error because the text of a filter or a time can't be parsed.

    `column` is the position of the error in the text; 1 means the first character.
    """

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"column {column}: {message}")
        self.message = message
        self.column = column


@dataclass(frozen=True, slots=True)
class Field:
    """A field that filters can search: its name in a filter, its key in the event, and its type.

    If the field has only a few possible values, `values` lists all possible values.
    """

    name: str
    event_key: str
    kind: Kind = "text"
    values: tuple[str, ...] = ()


FIELDS: Final = MappingProxyType(
    {
        field.name: field
        for field in (
            Field("id", "id"),
            Field("time", "time", "time"),
            Field("org", "orgId"),
            Field("proxy", "proxyId"),
            Field("app", "appId"),
            Field("client", "clientId"),
            Field("ip", "clientIp"),
            Field("request", "requestId"),
            Field("clientrequest", "clientRequestId"),
            Field("method", "method"),
            Field("path", "path"),
            Field("query", "query"),
            Field("status", "status", "number"),
            Field("verdict", "verdict", values=VERDICTS),
            # `ruleIds` includes the deciding rule; events of earlier releases have only that
            Field("rule", "ruleIds", "texts"),
            Field("ruleid", "ruleId"),
            Field("logged", "loggedRuleIds", "texts"),
            Field("transform", "transforms", "texts"),
            Field("upstream", "upstreamStatus", "number"),
            Field("duration", "durationMs", "number"),
            Field("upstreamtime", "upstreamMs", "number"),
            Field("requestbytes", "requestBytes", "number"),
            Field("responsebytes", "responseBytes", "number"),
            Field("parent", "parentRequestId"),
            Field("seq", "seq", "number"),
            Field("reason", "reason"),
            Field("ruleset", "rulesetVersion"),
            Field("upstreamrequest", "upstreamRequestId"),
            Field("trace", "traceId"),
            Field("implied", "impliedRequest"),
            Field("redirect", "redirect"),
            Field("credential", "credentialId"),
            Field("problem", "credentialProblem"),
            Field("shadow", "shadowVerdict"),
            Field("shadowrule", "shadowRuleId"),
            Field("shadowruleset", "shadowRulesetVersion"),
            Field("implausible", "implausibleTime", values=("future", "past")),
        )
    }
)
_BY_SPELLING: Final = {field.event_key.lower(): field for field in FIELDS.values()} | dict(FIELDS)

# Fields whose words free text searches, each field by itself so that no phrase spans two.
TEXT_FIELDS: Final = ("path", "query", "rule", "reason", "logged", "transform")


@dataclass(frozen=True, slots=True)
class Exactly:
    """Condition of a search: a field must have exactly this value, apart from the case of A-Z."""

    text: str


@dataclass(frozen=True, slots=True)
class Like:
    """Condition of a search: a value must contain these pieces in this order, with any text between them."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """Condition of a search: a number or a time must be within a range.

    Times in the range are in milliseconds since 1970. A bound that is None does not limit the range.
    """

    low: float | None
    high: float | None
    low_open: bool = False
    high_open: bool = False


Match: TypeAlias = Exactly | Like | Between


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """Condition of a search: at least one of `matches` must accept the value of the field."""

    field: Field
    matches: tuple[Match, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class HasTerm:
    """Search condition: the event has a value in the field."""

    field: Field
    negated: bool = False


@dataclass(frozen=True, slots=True)
class TextTerm:
    """Search condition: the words follow each other in one of the fields in TEXT_FIELDS.

    With `prefix`, the last search word also matches longer words of the event that begin with the search
    word.
    """

    words: tuple[str, ...]
    prefix: bool = False
    negated: bool = False


Term: TypeAlias = FieldTerm | HasTerm | TextTerm


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of a search for audit events. An event matches if all terms of the filter hold.

    Every event matches a filter without terms.
    """

    terms: tuple[Term, ...] = ()


EVERYTHING: Final = Filter()

Resolver: TypeAlias = Callable[[str, str], Sequence[str]]
"""(field, name) to the ids that carry this name; empty where the text is an id itself."""

_RESOLVED: Final = frozenset({"org", "proxy", "app"})


def fold(text: str) -> str:
    """Return the text with the letters A-Z in lower case. All search indexes fold only the letters A-Z."""
    return text.lower() if text.isascii() else text.encode().lower().decode()


WORD: Final = re.compile(r"[\w\-]+")


def words(text: str) -> list[str]:
    """Split a text into words in the same way as a free-text search splits the text of an event.

    Hyphens and underscores belong to a word, so that a GUID is one word.
    """
    return [word[:WORD_CHARS] for word in WORD.findall(text) if word.strip("-_")]


def parse_filter(text: str, resolve: Resolver | None = None, *, now_ms: int = 0) -> Filter:
    """Parse the text of a filter.

    Relative times such as `time:>-15m` are counted from `now_ms`.
    """
    if len(text) > MAX_FILTER_CHARS:
        raise QueryError(f"the filter is longer than {MAX_FILTER_CHARS} characters", MAX_FILTER_CHARS + 1)
    refused = _REFUSED.search(text)
    if refused:
        raise QueryError(f"character U+{ord(refused[0]):04X} can't be searched for", refused.start() + 1)
    return _Parser(text, resolve, now_ms).parse()


# Control characters except white space, and lone surrogates, by which Python represents undecodable command
# line bytes.
_REFUSED: Final = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
_SPACE: Final = re.compile(r"[ \t\n\r\v\f]+")
_BARE: Final = re.compile(r'[^ \t\n\r\v\f"]+')
_BARE_VALUE: Final = re.compile(r'[^ \t\n\r\v\f",]+')
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.\-]*):")
_OPERATORS: Final = frozenset({"AND", "OR", "NOT"})


class _Parser:
    def __init__(self, text: str, resolve: Resolver | None, now_ms: int) -> None:
        self._text = text
        self._at = 0
        self._values = 0
        self._resolve = resolve
        self._now_ms = now_ms

    def parse(self) -> Filter:
        terms: list[Term] = []
        while self._skip_space():
            terms.append(self._term())
            if self._at < len(self._text) and not _SPACE.match(self._text, self._at):
                raise self._error("expected white space between two terms")
        return Filter(tuple(terms))

    def _skip_space(self) -> bool:
        space = _SPACE.match(self._text, self._at)
        if space:
            self._at = space.end()
        return self._at < len(self._text)

    def _error(self, message: str, at: int | None = None) -> QueryError:
        return QueryError(message, (self._at if at is None else at) + 1)

    def _term(self) -> Term:
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._error(f"the filter has more than {MAX_VALUES} values and terms")
        negated = self._text[self._at] == "-"
        if negated:
            self._at += 1
        name = _FIELD.match(self._text, self._at)
        if not name:
            return self._text_term(negated)
        if name[1].lower() == "has":
            self._at = name.end()
            return self._has_term(negated)
        field = self._field(name[1], self._at)
        self._at = name.end()
        return self._field_term(field, negated)

    def _field(self, name: str, at: int) -> Field:
        field = _BY_SPELLING.get(name.lower())
        if field:
            return field
        near = difflib.get_close_matches(name.lower()[:32], [*_BY_SPELLING, "has"], n=1, cutoff=0.6)
        nearest = _BY_SPELLING[near[0]].name if near and near[0] in _BY_SPELLING else "has" if near else ""
        hint = f"did you mean {nearest}?" if near else "put it in quotes to search for it as text"
        raise self._error(f"unknown field {_shown(name)}: {hint}", at)

    def _has_term(self, negated: bool) -> HasTerm:
        at = self._at
        value, _ = self._value()
        return HasTerm(self._field(value, at), negated)

    def _field_term(self, field: Field, negated: bool) -> FieldTerm:
        matches = [*self._match(field)]
        while self._text.startswith(",", self._at):
            self._at += 1
            self._values += 1
            if self._values > MAX_VALUES:
                raise self._error(f"the filter has more than {MAX_VALUES} values and terms")
            matches += self._match(field)
        return FieldTerm(field, tuple(matches), negated)

    def _match(self, field: Field) -> Sequence[Match]:
        at = self._at
        value, quoted = self._value()
        if field.kind == "time":
            return (self._between(field, value, at, self._time),)
        if field.kind == "number":
            return (self._between(field, value, at, self._number),)
        if not quoted and "*" in value:
            return (self._like(value, at),)
        if field.values and not quoted and value.lower() not in field.values:
            hint = f"write one of {', '.join(field.values)}, or put it in quotes to search for it anyway"
            raise self._error(f"{_shown(value)} is not a {field.name}: {hint}", at)
        if self._resolve and field.name in _RESOLVED:
            return [Exactly(known) for known in self._resolve(field.name, value)] or [Exactly(value)]
        return (Exactly(value),)

    def _value(self) -> tuple[str, bool]:
        """Return the value that begins at the parser's position, and whether the value was quoted."""
        if self._text.startswith('"', self._at):
            return self._quoted(), True
        bare = _BARE_VALUE.match(self._text, self._at)
        if not bare:
            raise self._error('expected a value; write "" for an empty value')
        self._at = bare.end()
        return bare[0], False

    def _quoted(self) -> str:
        quoted = _QUOTED.match(self._text, self._at)
        if not quoted:
            raise self._error("the closing quote is missing")
        self._at = quoted.end()
        return _ESCAPE.sub(r"\1", quoted[1])

    def _like(self, value: str, at: int) -> Like:
        pieces = re.sub(r"\*+", "*", value).split("*")
        if len(pieces) > MAX_STARS + 1:
            raise self._error(f"the value has more than {MAX_STARS} wildcards", at)
        return Like(tuple(pieces))

    def _between(
        self, field: Field, value: str, at: int, read: Callable[[Field, str, int], float]
    ) -> Between:
        low, dots, high = value.partition("..")
        if dots:
            if not low and not high:
                raise self._error("a range needs a bound: 400..499, 400.. or ..499", at)
            return Between(
                read(field, low, at) if low else None, read(field, high, at + len(low) + 2) if high else None
            )
        sign = value[:2] if value[1:2] == "=" else value[:1]
        if sign not in _COMPARISONS:
            exactly = read(field, value, at)
            return Between(exactly, exactly)
        bound = read(field, value[len(sign) :], at + len(sign))
        if sign.startswith(">"):
            return Between(bound, None, low_open=sign == ">")
        return Between(None, bound, high_open=sign == "<")

    def _number(self, field: Field, value: str, at: int) -> float:
        if not _NUMBER.fullmatch(value):
            example = f"{field.name}:404, {field.name}:>=400 or {field.name}:400..499"
            raise self._error(f"{_shown(value)} is not a number; write {example}", at)
        return float(value) if "." in value else int(value)

    def _time(self, field: Field, value: str, at: int) -> float:
        try:
            return parse_time(value, self._now_ms)
        except QueryError as error:
            raise self._error(f"{field.name}: {error.message}", at) from None

    def _text_term(self, negated: bool) -> TextTerm:
        at = self._at
        if self._text.startswith('"', at):
            return self._words(self._quoted(), at, prefix=False, negated=negated)
        bare = _BARE.match(self._text, at)
        if not bare:
            raise self._error('"-" must stand before the term that it excludes')
        self._at = bare.end()
        if bare[0] in _OPERATORS:
            hint = f'all terms must match, -term excludes, field:a,b matches either, "{bare[0]}" is the word'
            raise self._error(f"{bare[0]} is not an operator in filters: {hint}", at)
        text = bare[0].rstrip("*")
        if "*" in text:
            raise self._error("a wildcard in free text must be at the end of a word", at + text.index("*"))
        return self._words(text, at, prefix=text != bare[0], negated=negated)

    def _words(self, text: str, at: int, *, prefix: bool, negated: bool) -> TextTerm:
        found = words(text)
        if not found:
            raise self._error("the text has no word to search for", at)
        if len(found) > MAX_PHRASE_WORDS:
            raise self._error(f"the phrase has more than {MAX_PHRASE_WORDS} words", at)
        # "/users/*" means more text after the word, and "use*" means a longer word.
        goes_on = prefix and WORD.match(text[-1]) is not None and len(found[-1]) < WORD_CHARS
        return TextTerm(tuple(found), goes_on, negated)


_COMPARISONS: Final = frozenset({">", ">=", "<", "<="})
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,9})?")
_RELATIVE: Final = re.compile(r"-([0-9]{1,7})([smhdw])")
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def parse_time(text: str, now_ms: int) -> int:
    """Parse a time into Unix milliseconds.

    The text is an RFC 3339 time, a date (its first instant in UTC), a time before now such as `-15m`, or
    `now`.
    """
    if text == "now":
        return now_ms
    relative = _RELATIVE.fullmatch(text)
    if relative:
        return now_ms - int(relative[1]) * _UNITS[relative[2]]
    milliseconds = rfc3339_ms(text) if _RFC3339.fullmatch(text) else None
    if milliseconds is None:
        hint = "write 2026-11-21T04:25:58Z, 2026-11-21, -15m, -2h or -7d"
        raise QueryError(f"{_shown(text)} is not a time; {hint}", 1)
    return milliseconds


def rfc3339_ms(text: str) -> int | None:
    """Return the milliseconds since 1970 of an RFC 3339 time, or None if the text is not such a time.

    A time without an offset is UTC. Return None if the text is not an RFC 3339 time. Return None also if the
    time has no valid year in UTC, because the function `rfc3339` could not write such a time.
    """
    try:
        moment = datetime.fromisoformat(text.upper())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
