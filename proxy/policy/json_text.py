"""Positions of the parts of a JSON text, so that callers can cut or keep a part and change no other byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import re2

from proxy.config.given_text import MARK, without_mark

# Nested objects and arrays that a JSON parser must accept. OData's own library reads 100 levels. Every Python
# version and every library that reads JSON here accepts more than this, each with a different limit.
MAX_LEVELS: Final = 512


class JsonTextError(ValueError):
    """Error because the text is not one JSON value in UTF-8 (RFC 8259)."""


class TooDeep(JsonTextError):
    """Error because the JSON text has more levels of objects and arrays than some parsers accept."""


class Member(NamedTuple):
    """One member of a JSON object: its decoded name, and the position of its text."""

    name: str
    start: int  # position of the name's opening quote
    value_start: int
    value_end: int


_BACKSLASH = 0x5C
_QUOTE = 0x22
_OPEN_BRACE = 0x7B
_skip_whole_value = msgspec.json.Decoder(msgspec.Raw).decode

# RFC 8259 §8.2: the grammar allows an escaped surrogate without its partner, as in mail previews that end in
# the middle of an emoji. msgspec does not allow it. So the check sees a harmless escape of the same length.
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

# Groups are repeated in atomic groups, not possessively. Before 3.11.5, Python keeps what a failed last
# repetition of a possessive group consumed (python/cpython#106052).
_STRING = rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"'
_SCALAR = rb"[-+.0-9A-Za-z]++"


def _nested(depth: int) -> bytes:
    between = rb'[^\[\]{}"]*+'
    inner = b"|" + _nested(depth - 1) if depth else b""
    return rb"[\[{]" + between + b"(?>(?:(?:" + _STRING + inner + b")" + between + rb")*)[\]}]"


_ANY_VALUE = _STRING + b"|" + _SCALAR + b"|" + _nested(4)
_VALUE = re.compile(rb"\s*+(?:" + _ANY_VALUE + b")", re.DOTALL)
_OPENING_OR_STRING = re.compile(_STRING + rb"|[\[{,]", re.DOTALL)
_BRACKET_OR_STRING = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)

# These patterns find parts of a text that has passed `validate`; they do not check the text.
NAME = re.compile(rb"[\s,]*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
AFTER_VALUE = re.compile(rb"\s*+([,\]}])")
WHITESPACE = re.compile(rb"(?:\A" + MARK + rb")?\s*+")


def validate(text: bytes) -> None:
    """Raise JsonTextError unless `text` is strictly valid JSON.

    The text must be in UTF-8, with or without a byte order mark, and nested at most MAX_LEVELS deep.
    """
    if not is_utf8(text):
        raise JsonTextError("the text is not UTF-8")
    text = readable(text)
    try:
        try:
            _skip_whole_value(text)
        except msgspec.DecodeError:
            if b"\\u" not in text:
                raise
            _skip_whole_value(_SURROGATE_ESCAPE.sub(rb"\\u0020", text))
    except msgspec.DecodeError as error:
        raise JsonTextError(f"the text is not JSON: {error}") from error


def readable(text: bytes) -> bytes:
    """Return the JSON text in the form that any parser accepts: without a byte order mark (RFC 8259 §8.1).

    Raise TooDeep if the text has more nesting levels than some JSON parsers accept.
    """
    refuse_deep(text)
    return without_mark(text)


def refuse_deep(text: bytes, levels: int = MAX_LEVELS) -> None:
    """Raise TooDeep if the JSON text is nested more than `levels` deep."""
    # Deleting a rare byte takes a fifth of the time of Python's count.
    opened = 2 * len(text) - len(text.replace(b"{", b"")) - len(text.replace(b"[", b""))
    if opened > levels and _within(levels).fullmatch(text) is None:
        raise TooDeep(f"the JSON text is malformed, or nested more than {levels} levels deep")


@cache
def _within(levels: int) -> Any:
    """Return an RE2 pattern for text whose brackets are balanced and at most `levels` deep.

    Matching a text takes one pass, at half the speed of a JSON parser.
    """
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.dot_nl = True
    piece = rb'[^"\[\]{}]|"(?:[^"\\]|\\.)*"'
    pattern = b"(?:" + piece + b")*"
    for _ in range(levels):
        pattern = b"(?:" + piece + rb"|[\[{]" + pattern + rb"[\]}])*"
    return re2.compile(pattern, options)


def has_more_values(text: bytes, limit: int) -> bool:
    """Return whether a JSON text has more than `limit` values; objects and arrays count twice.

    Raise JsonTextError if the text is not valid JSON.
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= limit:
        return False
    validate(text)
    for token in _OPENING_OR_STRING.finditer(text):
        if text[token.start()] != _QUOTE:
            limit -= 1
            if limit < 0:
                return True
    return False


def objects_in(text: bytes) -> int:
    """Return the number of objects in a valid JSON text."""
    if b"{" not in text:
        return 0
    return sum(text[token.start()] == _OPEN_BRACE for token in _OPENING_OR_STRING.finditer(text))


def run_of_members_but(names: Iterable[str], *, scalars: bool = False) -> re.Pattern[bytes]:
    """Return a pattern that matches as many whole JSON members with their commas as possible.

    A match can begin at any place between two JSON members, and it can be empty. The pattern stops before a
    member named like one of `names`, in any letter case and with or without an annotation. The pattern also
    stops before any member whose name contains JSON escapes and must be decoded. If `scalars` is True, a
    match also ends before a member whose value is an object or array.
    """
    alternatives = []
    for name in names:
        if not name.isascii():
            return re.compile(b"")
        alternatives.append(re.escape(name.encode()))
    stop = b"|".join(alternatives)
    name_token = (rb'(?!"(?i:' + stop + rb')["@])' if alternatives else b"") + rb'"[^"\\]*+"'
    value = _STRING + b"|" + _SCALAR if scalars else _ANY_VALUE
    return re.compile(rb"(?>(?:\s*+" + name_token + rb"\s*+:\s*+(?:" + value + rb")\s*+,)*)", re.DOTALL)


def is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def decoded_string(token: bytes) -> str:
    """Decode a JSON string token; the token includes its quotes."""
    if _BACKSLASH not in token:
        return token[1:-1].decode()
    value = json.loads(token)  # unlike msgspec and orjson, json accepts a lone surrogate
    if not isinstance(value, str):
        raise JsonTextError("a JSON value is not a string")
    return value


def value_start(text: bytes, position: int = 0) -> int:
    found = WHITESPACE.match(text, position)
    return found.end() if found else position


def value_end(text: bytes, start: int) -> int:
    """Return the end of the JSON value that begins at `start`."""
    found = _VALUE.match(text, start)
    if found:
        return found.end()
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(text, start):
        first = text[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
            if not depth:
                return token.end()
    raise JsonTextError("a JSON object or array has no closing bracket")


def require_after_value(text: bytes, position: int) -> re.Match[bytes]:
    """Return the match of the comma or bracket after a JSON value; group 1 is that character."""
    found = AFTER_VALUE.match(text, position)
    if found is None:
        raise JsonTextError("a JSON value is not followed by a comma or a closing bracket")
    return found


def members(text: bytes, start: int) -> Iterator[Member]:
    """Yield the members of the JSON object that begins at `start`, including duplicates."""
    position = start + 1
    while found := NAME.match(text, position):
        position = value_end(text, found.end())
        yield Member(decoded_string(found[1]), found.start(1), found.end(), position)
        if require_after_value(text, position)[1] != b",":
            return


def elements(text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each element of the JSON array that begins at `start`."""
    position = value_start(text, start + 1)
    if text[position] == 0x5D:  # ]
        return
    while True:
        end = value_end(text, position)
        yield position, end
        after = require_after_value(text, end)
        if after[1] != b",":
            return
        position = value_start(text, after.end())
