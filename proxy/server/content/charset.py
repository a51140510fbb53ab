"""Decide from the Content-Type whether a body is UTF-8, the only text that rules read."""

from __future__ import annotations

import re
from typing import Final

_PARAMETER: Final = re.compile(
    r";[ \t]*charset[ \t]*=[ \t]*(?:\"([^\"\\]*)\"|([^\";, \t]*))[ \t]*(?=[;,]|\Z)"
)
_UTF8: Final = frozenset(("utf-8", "utf8", "us-ascii", "ascii"))
# Charsets in which ASCII bytes mean themselves. In UTF-7 and similar ones, they can mean other text.
_SUPERSETS_OF_ASCII: Final = frozenset(("iso-8859-1", "iso-8859-15", "latin1", "windows-1252"))


def is_utf8(content_type: str, body: bytes) -> bool:
    """Return True if a body is UTF-8 text.

    Return False if two parameters of the Content-Type disagree, or if a parameter cannot be parsed.
    """
    lower = content_type.lower()
    mentions = lower.count("charset")
    if not mentions:
        return True
    names = [quoted or plain for quoted, plain in _PARAMETER.findall(lower)]
    known = _UTF8 | _SUPERSETS_OF_ASCII if body.isascii() else _UTF8
    return len(names) == mentions and all(name in known for name in names)
