"""Reader for UTF-8 text from people and other programs, with or without a byte order mark."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

MARK: Final = b"\xef\xbb\xbf"  # byte order mark in UTF-8, which editors and .NET write at the start of a text
_MARK_CHAR: Final = "\ufeff"
_UTF32_MARKS: Final = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
# A secret that the control plane made: see `mint` there.
_MINTED: Final = re.compile(r"gw[a-z]_[0-9A-Za-z_-]{8,}")
_QUOTES: Final = "\"'`´‘’‚‛“”„‟«»‹›"


class NotUtf8(ValueError):
    """Error because the bytes of a file or a text are not UTF-8.

    The error's message completes the sentence "can't read FILE: …".
    """


def without_mark(data: bytes) -> bytes:
    """Return `data` without a UTF-8 byte order mark at its beginning."""
    return data[len(MARK) :] if data.startswith(MARK) else data


def decoded(data: bytes) -> str:
    """Return the text of `data` without its byte order mark.

    Raise NotUtf8 for an encoding other than UTF-8; the message names UTF-16 and UTF-32.
    """
    if other := other_encoding(data):
        raise NotUtf8(f"the text is {other}: save it as UTF-8")
    try:
        return without_mark(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"the text is not UTF-8 (byte {_place(data, error)}): save it as UTF-8") from None


def text_of(data: bytes) -> str:
    """Return the decoded text with \\n at the end of each line, like Python's text files."""
    return decoded(data).replace("\r\n", "\n").replace("\r", "\n")


def secret_of(text: str) -> str:
    """Return the secret without a byte order mark at its start and without a line end at its end."""
    return text.removeprefix(_MARK_CHAR).rstrip("\r\n")


def first_line(data: bytes) -> str:
    """Return the first line of a password file, without its line end. Raise NotUtf8."""
    return decoded(data).partition("\n")[0].removesuffix("\r")


def surroundings(secret: str) -> str:
    """Describe the characters around a control plane secret; return an empty text if there are none.

    A secret of another product may begin or end with a quote or a space. So `surroundings` examines only
    secrets that the control plane made.
    """
    core = secret.strip("".join(filter(_is_no_part, set(secret))))
    if core == secret or _MINTED.fullmatch(core) is None:
        return ""
    around = secret.replace(core, "", 1)
    kinds = dict.fromkeys(_kind(char) for char in around)
    return " and ".join(kinds)


def _is_no_part(char: str) -> bool:
    return char in _QUOTES or char.isspace() or unicodedata.category(char) in ("Cc", "Cf")


def _kind(char: str) -> str:
    if char in _QUOTES:
        return "quotes"
    return "spaces or line ends" if char.isspace() else "invisible characters"


def other_encoding(data: bytes) -> str:
    """Return UTF-16 or UTF-32 if a byte order mark or zero bytes indicate it, else an empty text."""
    if data.startswith(_UTF32_MARKS) or _zeros(data) in ((1, 1, 1, 0), (0, 1, 1, 1)):
        return "UTF-32"
    if data.startswith(_UTF16_MARKS) or _zeros(data)[:2] in ((1, 0), (0, 1)):
        return "UTF-16"
    return ""


def _zeros(data: bytes) -> tuple[int, ...]:
    """Return four numbers: 1 for each of the first four bytes that is zero, else 0.

    The first two characters of a text that a person or a program gives are nearly always ASCII.
    """
    return tuple(int(not each) for each in data[:4])


def _place(data: bytes, error: UnicodeDecodeError) -> int:
    """Return the position of the byte that is not valid UTF-8, counted from 1."""
    return error.start + 1 + len(data) - len(error.object)
