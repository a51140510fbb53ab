"""Pure parser of settings that give header fields in OpenTelemetry's form."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def parse_header_fields(text: str) -> dict[str, str]:
    """Parse header fields in the form that OpenTelemetry uses in settings.

    No error message repeats the value of a header field.
    """
    fields: dict[str, str] = {}
    for number, pair in enumerate(filter(None, text.split(",")), 1):
        name, mark, value = pair.partition("=")
        value = unquote(value.strip())
        if not mark or not _HEADER_NAME.fullmatch(name.strip()):
            raise ValueError(f"header pair {number} must be name=value, with a name that HTTP allows")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"header pair {number} has a character that is not allowed in a header field")
        fields[name.strip()] = value
    return fields
