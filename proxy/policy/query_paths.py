"""Find the properties that query options name.

Each found property is a path that begins at an item of the response.

A property path is resolved through lambda variables (OData 4.01 part 2 §5.1.1.13) and the options of
`$expand` (§5.1.3): for example, `c/issuer` within `identities/any(c:…)` is `identities/issuer`. A word in a
query option is treated as a keyword only in a place where a keyword can stand. A property name is loose if it
is uncertain which object has the property.
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum
from typing import Final

from proxy.policy.odata import INVISIBLE, fold

Path = tuple[str, ...]

LEVELS: Final = "$levels"  # last part of a path whose options apply to the objects below it too

# tokens of one query in all interpretations: some 10 ms; 64 KiB of compared ids need 6,000
MAX_TOKENS: Final = 10_000
MAX_WORDS: Final = 32  # words of one path

_GUID: Final = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}(?!\w)"
_STRING: Final = r"(?:(?i:duration|binary|geography|geometry)(?='))?'[^']*(?:''[^']*)*'"
_NUMBER: Final = r"[0-9](?:\w|[.:-](?=[0-9]))*"  # matches dates and times too, but not the name in `1:name`
_TOKEN: Final = rf"(?:{_STRING}|{_GUID}|{_NUMBER}|@[\w.]+|(\$?[^\W\d][\w.]*)\s*([(:=]?)|(\S))\s*"
# Other characters that a name may have after its first letter (OData 4.01 ABNF, identifierCharacter): marks
# and connecting punctuation, which `\w` lacks. Invisible characters are in no name.
_NO_LETTERS: Final = re.compile(r"[^\x00-\x7f\w\s]")
_IN_NAMES: Final = frozenset(("Mn", "Mc", "Pc"))
_WORD: Final = re.compile(r"[^\W\d]\w*")
_JSON_ESCAPE: Final = re.compile(r"\\u([0-9A-Fa-f]{4})")
# OData has strings in single quotes. JSON has them in double quotes, where a backslash may precede a quote
# (RFC 8259 §7). Servers differ in which quotes begin a string and what ends it. So such a text is parsed in
# every way.
_SINGLE_QUOTED: Final = re.compile(_TOKEN)
_ALSO_DOUBLE_QUOTED: Final = re.compile(rf'"[^"]*"\s*|{_TOKEN}')
_ALSO_JSON: Final = re.compile(rf'"[^"\\]*(?:\\.[^"\\]*)*(?:"\s*|\\?\Z)|{_TOKEN}', re.DOTALL)

_PLAIN_NAMES: Final = re.compile(r"[A-Za-z_]\w*(?:,[A-Za-z_]\w*)*", re.ASCII)

_OPERATOR_WORDS: Final = """
    eq ne gt ge lt le and or in has add sub mul div mod divby asc desc as with
"""
_FUNCTION_WORDS: Final = """
    contains startswith endswith length indexof substring tolower toupper trim concat year month day
    hour minute second date time now round floor ceiling cast isof matchespattern
"""
_TRANSFORMATION_WORDS: Final = """
    aggregate groupby topcount bottomcount filter orderby select expand compute top skip
"""
_OPERATORS: Final = frozenset(_OPERATOR_WORDS.split())
_LITERALS: Final = frozenset(("null", "true", "false", "inf", "nan"))
_FUNCTIONS: Final = frozenset(_FUNCTION_WORDS.split())
_TRANSFORMATIONS: Final = frozenset(_TRANSFORMATION_WORDS.split()) | {"concat"}
_AGGREGATES: Final = frozenset(("min", "max", "sum", "average", "countdistinct"))  # aggregates after `with`
_LAMBDAS: Final = frozenset(("any", "all"))
_SEARCHES: Final = frozenset(("search", "$search"))
_SEGMENTS: Final = frozenset(("$count", "$ref", "$value"))  # segments of the property that they follow


class _Mode(Enum):
    """Kinds of content in a part of a query's text."""

    PATHS = "paths"
    ORDER = "order"
    EXPRESSION = "expression"
    TRANSFORMATIONS = "transformations"


_MODES: Final = {
    "select": _Mode.PATHS,
    "expand": _Mode.PATHS,
    "orderby": _Mode.ORDER,
    "filter": _Mode.EXPRESSION,
    "compute": _Mode.EXPRESSION,
    "apply": _Mode.TRANSFORMATIONS,
    "top": _Mode.EXPRESSION,
    "skip": _Mode.EXPRESSION,
    "count": _Mode.EXPRESSION,
    "levels": _Mode.EXPRESSION,
}

# Kinds of the previous token, if it is not a mark.
_OPERAND: Final = "operand"
_CALL: Final = "call"  # a closed call of a function or transformation
_OPERATOR: Final = "operator"
_WITH: Final = "with"
_NOT: Final = "not"
_LAMBDA: Final = "any("
_LEVELS_ARE: Final = "levels="
_NEXT_TRANSFORMATION: Final = "call/"
_ENDS_OF_OPERANDS: Final = frozenset((_OPERAND, _CALL))
_BEFORE_OPTIONS: Final = frozenset(("(", ";", "&"))


class Unresolved(ValueError):
    """Error because the properties that a query names cannot be determined."""


class Named:
    """The property names in the options of one query."""

    __slots__ = ("homonyms", "loose", "paths", "renames", "tokens_left")

    def __init__(self) -> None:
        self.paths: set[Path] = set()  # paths of properties
        self.loose: set[str] = set()  # words that may be properties of any object
        self.homonyms: set[str] = set()  # names of variables and `not`, which a server may read as properties
        self.renames = False  # True if `as` may give an object another name
        self.tokens_left = MAX_TOKENS

    def add(self, option: str, text: str, base: Path | None = ()) -> None:
        """Collect the property names in the value of a query option.

        `base` is the path of the object that has the named properties, or None if the path is not certain.
        Raise Unresolved if the property names in the query option cannot be determined.
        """
        text = with_words_whole(text)
        mode = _MODES.get(option, _Mode.EXPRESSION)
        if mode is _Mode.PATHS and base == () and _PLAIN_NAMES.fullmatch(text) is not None:
            names = text.lower().split(",")  # the common `$select`, for which the walk would find the same
            self.take(len(names))
            self.paths.update(zip(names, strict=True))
            return
        for pattern in _readings(text):
            tokens: list[tuple[str, str, str]] = pattern.findall(text)
            self.take(len(tokens) + 1)
            _Walk(self, mode, base).through(tokens)
            if ("", "", "{") in tokens:
                self._take_words_of_json(text[text.index("{") :])

    def _take_words_of_json(self, text: str) -> None:
        """Collect all words of a JSON text.

        JSON parsers differ in the names that they accept: in double quotes, in single quotes or without
        quotes.
        """
        words = _WORD.findall(_JSON_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text))
        self.take(len(words))
        self.loose.update(map(fold, words))

    def take(self, tokens: int) -> None:
        self.tokens_left -= tokens
        if self.tokens_left < 0:
            raise Unresolved("the query is too long")

    def words(self) -> set[str]:
        return self.loose.union(self.homonyms, *self.paths)


def with_words_whole(text: str) -> str:
    """Make each property name one word: replace the characters that the word pattern does not match."""
    return text if text.isascii() else _NO_LETTERS.sub(_in_a_name, unicodedata.normalize("NFC", text))


def _in_a_name(character: re.Match[str]) -> str:
    if INVISIBLE.fullmatch(character[0]) is not None:
        return ""
    return f"_{ord(character[0]):x}_" if unicodedata.category(character[0]) in _IN_NAMES else character[0]


def _readings(text: str) -> list[re.Pattern[str]]:
    if '"' not in text:
        return [_SINGLE_QUOTED]
    if "\\" not in text:
        return [_SINGLE_QUOTED, _ALSO_DOUBLE_QUOTED]
    return [_SINGLE_QUOTED, _ALSO_DOUBLE_QUOTED, _ALSO_JSON]


class _Frame:
    """The text within one pair of parentheses in a query, or the text outside of all parentheses."""

    __slots__ = ("base", "collection", "has_options", "home", "is_call", "mode", "variable")

    def __init__(self, mode: _Mode, base: Path | None, has_options: bool) -> None:
        self.mode = mode
        self.base = base  # path that its names are relative to; None if not certain
        self.home = base  # the same path for the next option of the frame
        self.has_options = has_options
        self.is_call = False
        self.collection: Path | None = None  # collection of a lambda
        self.variable: str | None = None


class _Walk:
    """One pass through the tokens of a query option's text."""

    __slots__ = ("_before", "_frame", "_named", "_outer", "_path", "_variables")

    def __init__(self, named: Named, mode: _Mode, base: Path | None) -> None:
        self._named = named
        self._frame = _Frame(mode, base, True)
        self._outer: list[_Frame] = []
        self._variables: dict[str, list[Path | None]] = {}  # names in OData are case-sensitive (part 2 §2)
        self._before = ""
        self._path: Path | None = None  # path that a slash would continue; None if not certain

    def through(self, tokens: list[tuple[str, str, str]]) -> None:
        for name, after, mark in tokens:
            if name:
                self._pass_name(name, after)
            elif mark:
                self._pass_mark(mark)
            else:
                self._path, self._before = None, _OPERAND
        if self._before == _NOT:
            self._pass_property(self._frame.base, _NOT, "")

    def _pass_mark(self, mark: str) -> None:
        before = self._before
        if before == _NOT and mark in ",);/":  # `not` has no operand, so it is a property
            self._pass_property(self._frame.base, _NOT, "")
            before = _OPERAND
        self._before = mark
        if mark == "/":
            if before == _CALL:
                self._before = _NEXT_TRANSFORMATION
            elif before != _OPERAND:
                self._path = None
            return
        self._path = None
        if mark == "(":
            self._open_plain(before)
        elif mark == ")":
            self._before = _CALL if self._frame.is_call else _OPERAND
            self._close()
        elif mark in "*]}":
            self._before = _OPERAND

    def _open(self, frame: _Frame) -> None:
        self._outer.append(self._frame)
        self._frame = frame
        self._path = None
        self._before = "("

    def _open_plain(self, before: str) -> None:
        frame = self._frame
        if frame.mode is _Mode.PATHS:  # `*(…)`
            self._open(_Frame(_Mode.EXPRESSION, None, True))
        else:
            base = None if before in _ENDS_OF_OPERANDS else frame.base
            self._open(_Frame(_within(frame.mode), base, False))

    def _close(self) -> None:
        variable = self._frame.variable
        if variable is not None:
            self._variables[variable].pop()
            if not self._variables[variable]:
                del self._variables[variable]
        if self._outer:
            self._frame = self._outer.pop()

    def _pass_name(self, name: str, after: str) -> None:
        before, frame = self._before, self._frame
        word = fold(name)
        if after and word in _SEARCHES:
            raise Unresolved("a query option other than `$search` contains a search")
        self._before = after or _OPERAND
        if before == "/" or (before == _NEXT_TRANSFORMATION and not self._is_transformation(word, after)):
            self._pass_segment(name, word, after)
        elif name[0] == "$" or after == "=":
            self._pass_option(name, word, before, after)
        elif after == ":" and before == _LAMBDA:
            self._declare(name, word)
        elif "." in name:
            if after == "(" and frame.mode is not _Mode.PATHS:
                # a function of the service, whose result may depend on any property
                self._named.loose.add(word)
            self._pass_cast(frame.base, after)
        elif frame.mode is _Mode.PATHS or not self._is_language(name, word, before, after):
            self._pass_property(None if before == '"' else frame.base, word, after)
            if before in _ENDS_OF_OPERANDS and not after:
                self._before = ""  # unknown syntax: the next word may be a property as well

    def _is_transformation(self, word: str, after: str) -> bool:
        return self._frame.mode is _Mode.TRANSFORMATIONS and after == "(" and word in _TRANSFORMATIONS

    def _pass_segment(self, name: str, word: str, after: str) -> None:
        """Process a property name after a slash in a query."""
        if name[0] == "$":
            path = self._path = self._path if word in _SEGMENTS else None
            if after == "(":
                self._open(_Frame(_Mode.EXPRESSION, path, True))
        elif "." in name:
            if after == "(" and self._frame.mode is not _Mode.PATHS:
                self._named.loose.add(word)
            self._pass_cast(self._path, after)
        elif word in _LAMBDAS and after == "(" and self._frame.mode is not _Mode.PATHS:
            self._open_lambda(self._path)
        else:
            self._pass_property(self._path, word, after)

    def _pass_property(self, base: Path | None, word: str, after: str) -> None:
        path = None
        if base is None:
            self._named.loose.add(word)
        elif len(base) >= MAX_WORDS:
            raise Unresolved("the query is nested too deeply")
        else:
            path = (*base, word)
            self._named.paths.add(path)
        self._pass_cast(path, after)

    def _pass_cast(self, path: Path | None, after: str) -> None:
        """Process a type cast in a property path of a query.

        A cast changes the type of the object that precedes the cast in the path, but not the property that
        the path names.
        """
        self._path = path
        if after != "(":
            return
        if self._frame.mode is _Mode.PATHS:
            self._open(_Frame(_Mode.EXPRESSION, path, True))
        # a key, a function of the service, or part of an aggregation: their names refer to other objects
        else:
            self._open(_Frame(_Mode.EXPRESSION, None, False))

    def _pass_option(self, name: str, word: str, before: str, after: str) -> None:
        """Process a query name that stands after a dollar sign or before an equals sign."""
        frame = self._frame
        if after == "=" and frame.has_options and before in _BEFORE_OPTIONS:
            self._begin_option(word)
        elif name[0] != "$":
            self._pass_property(None, word, after)
        elif after == "(":
            self._open(_Frame(_Mode.EXPRESSION, None, True))
        else:
            # These stand for an item of the response; within `$expand`, servers differ (part 2 §5.1.1.14).
            is_item = frame.base == () and (word == "$it" or (word == "$this" and not self._variables))
            self._path = () if is_item else None

    def _begin_option(self, word: str) -> None:
        frame, option = self._frame, word.lstrip("$")
        mode = _MODES.get(option)
        frame.mode = mode or _Mode.EXPRESSION
        frame.base = None if mode is None else frame.home
        self._path = None
        if mode is None and option == word:
            self._named.loose.add(word)
        elif option == "levels":
            self._before = _LEVELS_ARE
            if frame.home is None:
                self._named.loose.add(LEVELS)
            else:
                self._named.paths.add((*frame.home, LEVELS))

    def _open_lambda(self, collection: Path | None) -> None:
        self._open(_Frame(_Mode.EXPRESSION, self._frame.base, False))
        self._frame.collection = collection
        self._before = _LAMBDA

    def _declare(self, name: str, word: str) -> None:
        self._frame.variable = name
        self._variables.setdefault(name, []).append(self._frame.collection)
        self._named.homonyms.add(word)

    def _pass_variable(self, name: str, word: str) -> None:
        self._path = self._variables[name][-1]
        if self._path is None:
            self._named.loose.add(word)

    def _is_language(self, name: str, word: str, before: str, after: str) -> bool:
        """Return True if the word is a keyword or variable at its position, and not a property name.

        If the word is a keyword or variable, also update the state of the parser for the text after the word.

        A property may have a name that is also a keyword, such as `date`, `has` or `null`.
        """
        follows_operand = before in _ENDS_OF_OPERANDS
        if follows_operand and word in _OPERATORS:
            self._named.renames = self._named.renames or word == "as"
            self._pass_operator(_WITH if word == "with" else _OPERATOR, after)
        elif name in self._variables and after != "(":
            self._pass_variable(name, word)
        elif after == "(" and word in _LAMBDAS:
            self._open_lambda(None)
        elif after == "(" and (word in _FUNCTIONS or self._is_transformation(word, after)):
            self._open_call(word)
        elif word == _NOT and not follows_operand:
            self._named.homonyms.add(word)
            self._pass_operator(_NOT, after)
        elif self._is_value(word, before) and not after:
            self._path = None
        else:
            return False
        return True

    def _is_value(self, word: str, before: str) -> bool:
        if before == _LEVELS_ARE:
            return word == "max"
        if before == _WITH:
            return word in _AGGREGATES
        return word in _LITERALS and before not in _ENDS_OF_OPERANDS and self._frame.mode is not _Mode.ORDER

    def _pass_operator(self, kind: str, after: str) -> None:
        self._path, self._before = None, kind
        if after == "(":
            self._open(_Frame(_within(self._frame.mode), self._frame.base, False))

    def _open_call(self, word: str) -> None:
        frame = self._frame
        # The transformations within `expand(…)` apply to the expanded objects (OData aggregation 4.0 §3.12).
        base = None if word == "expand" else frame.base
        self._open(_Frame(_within(frame.mode), base, False))
        self._frame.is_call = True


def _within(mode: _Mode) -> _Mode:
    """Return the kind of query text in parentheses that belong to a text of the kind `mode`."""
    return mode if mode is _Mode.TRANSFORMATIONS else _Mode.EXPRESSION
