"""Whether a body is the text that rules read, which is UTF-8, by what its Content-Type says."""

from __future__ import annotations

import re
from typing import Final

_PARAMETER: Final = re.compile(
    r";[ \t]*charset[ \t]*=[ \t]*(?:\"([^\"\\]*)\"|([^\";, \t]*))[ \t]*(?=[;,]|\Z)"
)
_UTF8: Final = frozenset(("utf-8", "utf8", "us-ascii", "ascii"))
# Of which ASCII means itself: unlike UTF-7 and its like, where a text of ASCII may mean another one.
_SUPERSETS_OF_ASCII: Final = frozenset(("iso-8859-1", "iso-8859-15", "latin1", "windows-1252"))


def is_utf8(content_type: str, body: bytes) -> bool:
    """False too where two parameters disagree with each other, or one can't be read."""
    lower = content_type.lower()
    mentions = lower.count("charset")
    if not mentions:
        return True
    names = [quoted or plain for quoted, plain in _PARAMETER.findall(lower)]
    known = _UTF8 | _SUPERSETS_OF_ASCII if body.isascii() else _UTF8
    return len(names) == mentions and all(name in known for name in names)
