"""Plain scalars of YAML: the spelling, and the number or boolean that a scalar may stand for.

A YAML parser that guesses the type of a scalar loses the scalar's spelling. For example, `1.10` becomes 1.1,
`4.0` becomes 4 and `+47` becomes 47. A plain YAML scalar becomes a `Written` if its Python value would lose
the scalar's spelling. A `Written` object has the value and the spelling of a scalar. It counts as text if
text is expected, and as a number if a number is expected. A scalar without a special spelling is a plain
Python value; `text_of` returns the value's text.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

_MAX_DIGITS: Final = 18  # digits of the longest number; a longer one is an id, which is text
# digits of the longest whole number in a text that is compared with a JSON number
_LONGEST_WHOLE: Final = 150
_DECIMAL: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_WHOLE: Final = re.compile(r"[-+]?[0-9]+")
# Only the forms that every reader takes for a number: not `010`, `1e3`, `0x10`, `.5` or `1_000`.
_PLAIN_NUMBER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?")
_OTHER_BASE: Final = re.compile(r"0x([0-9A-Fa-f]{1,16})|0o([0-7]{1,21})")
_BEGINNINGS_OF_NUMBERS: Final = frozenset("+-0123456789")
_NOTHING: Final = frozenset(("", "~", "null", "Null", "NULL"))
_TRUTH: Final = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}

T = TypeVar("T")


class Written(msgspec.Struct, frozen=True):
    """A plain YAML scalar that `text_of` would spell differently as a number or boolean."""

    written: str

    @property
    def value(self) -> bool | int | float:
        """The number or boolean that the YAML scalar stands for."""
        truth = _TRUTH.get(self.written)
        if truth is not None:
            return truth
        number = number_in(self.written)
        assert number is not None
        return number


def read_plain(text: str) -> bool | int | float | str | Written | None:
    """Return the value of a YAML scalar without quotes, by the types of JSON; any other scalar is text."""
    if text in _NOTHING:
        return None
    if text in _TRUTH:
        return _TRUTH[text] if text.islower() else Written(text)
    if text[0] not in _BEGINNINGS_OF_NUMBERS or _PLAIN_NUMBER.fullmatch(text) is None:
        return text
    number = float(text) if "." in text else int(text)
    return number if text_of(number) == text else Written(text)


def number_in(text: str) -> int | float | None:
    """Return the decimal number that a text spells, even with leading zeros and a sign.

    Return None if the text is not a number, or if the number has too many digits or is too large.
    """
    if len(text) > 2 * _MAX_DIGITS + 8 or _DECIMAL.fullmatch(text) is None:
        return None
    if any(len(digits) > _MAX_DIGITS for digits in re.split(r"[^0-9]+", text)):
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    number = float(text)
    return number if abs(number) < float("inf") else None


def values_meant(text: str) -> tuple[bool | int | float, ...]:
    """Return the number or boolean that a lenient parser may read from a text, such as 16 from `0x10`."""
    if text in _TRUTH:
        return (_TRUTH[text],)
    other = _OTHER_BASE.fullmatch(text)
    if other is not None:
        return (int(other[1], 16) if other[1] else int(other[2], 8),)
    if text.isascii() and text.isdigit() and len(text) > _MAX_DIGITS:
        return (int(text),) if len(text) <= _LONGEST_WHOLE else ()
    number = number_in(text)
    return () if number is None else (number,)


def text_of(value: bool | int | float | str | Written) -> str:
    """Return a YAML value as text: a `Written` keeps the ruleset's spelling, others get that of JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Written):
        return value.written
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, int) and value.bit_length() > 512:
        return hex(value)  # converting huge numbers to decimal costs quadratic time, and Python refuses it
    return str(value)


def as_text(value: T) -> T | str:
    """Return a YAML scalar as it is written, for a place where text is expected.

    Any value other than a scalar is returned unchanged.
    """
    return text_of(value) if isinstance(value, bool | int | float | str | Written) else value


def as_value(value: T) -> T | bool | int | float:
    """Return the number or boolean of a YAML scalar, for a place where a number or boolean is expected.

    Any value other than a `Written` is returned unchanged.
    """
    return value.value if isinstance(value, Written) else value


def as_values(value: object) -> object:
    """Return a copy of a YAML document, with a number or boolean in place of each `Written` scalar."""
    if isinstance(value, dict):
        return {key: as_values(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_values(each) for each in value]
    return as_value(value)
