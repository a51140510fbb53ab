"""Pure: header fields as OpenTelemetry writes them in settings."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def parse_header_fields(text: str) -> dict[str, str]:
    """Parse the form that OpenTelemetry gives header fields in settings. No error repeats a value."""
    fields: dict[str, str] = {}
    for number, pair in enumerate(filter(None, text.split(",")), 1):
        name, mark, value = pair.partition("=")
        value = unquote(value.strip())
        if not mark or not _HEADER_NAME.fullmatch(name.strip()):
            raise ValueError(f"pair {number} must be name=value, with a name that HTTP allows")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"pair {number} has a character that no header field may have")
        fields[name.strip()] = value
    return fields
