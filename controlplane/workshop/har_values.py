"""Read the values of a HAR entry (bodies, header fields, times) in the forms that different recorders write.

A HAR value that cannot be read counts as unknown, and the reason is stored with it. A HAR value that cannot
be read never counts as empty. A placeholder in a HAR file is never used as if it were the recorded value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from proxy.policy.redaction import MASK

Headers = tuple[tuple[bytes, bytes], ...]

_CREDENTIALS: Final = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"))
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_LINE_BREAK: Final = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_DATA_URI: Final = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_GZIP: Final = b"\x1f\x8b"
_PLAIN_ENCODINGS: Final = frozenset(("", "utf-8", "utf8", "text", "plain", "none", "identity"))
_WORDS: Final = (
    "redacted|omitted|removed|masked|hidden|sanitized|sanitised|scrubbed|stripped|elided|obfuscated|anonymized"
    "|anonymised|truncated|filtered|not recorded|not captured|not available|unavailable"
)
_TEXT: Final = r"[\w .:,-]{0,60}"
# Placeholders that tools write instead of a value: stars, or one of the words alone or in brackets.
_PLACEHOLDER: Final = re.compile(
    rf"""["']?(?:[*•█]{{3,}}|x{{6,}}|(?:{_WORDS})|[\[<({{*_#$%-]+{_TEXT}\b(?:{_WORDS})\b{_TEXT}[\]>)}}*_#$%-]+)["']?""",
    re.IGNORECASE,
)
_SPEAKS_OF_IT: Final = re.compile(rf"\b(?:{_WORDS})\b", re.IGNORECASE)
_LONGEST_PLACEHOLDER: Final = 200  # characters of a placeholder
# Bytes beyond twice the text; no other spelling of the same JSON is that much longer
_MUCH_LARGER: Final = 100
_EARLIEST_SECONDS: Final = 1e9  # a time in the year 2001; a smaller number is a duration
_EARLIEST_MILLISECONDS: Final = 1e11
_LATEST_SECONDS: Final = 1e10


class Body(NamedTuple):
    """Bytes of a recorded body, or the reason why the bytes are unknown."""

    data: bytes | None
    problem: str = ""


class Fields(NamedTuple):
    """Header fields of a HAR entry.

    Header fields of a HAR entry. MASK replaces each credential, and each value that the recording tool
    removed or that cannot be read.
    """

    fields: Headers
    is_whole: bool  # False if there may be other fields
    problem: str = ""


def member(value: object, name: str) -> object:
    """Return the member `name` of a JSON object, or None if the object has no such member."""
    return value.get(name) if isinstance(value, dict) else None


def text_of(value: object) -> str | None:
    return value if isinstance(value, str) else None


def size_of(value: object) -> int | None:
    """Return the size of a body in bytes, or None if the size is unknown.

    Most HAR recorders write -1 for an unknown size.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        return None
    return int(value)


def status_of(value: object) -> int | None:
    """Return the status of a recorded response, or None if the HAR entry has no response.

    In a HAR file, browsers record the status 0 for a request that received no response.
    """
    if isinstance(value, str):
        value = size_of(value.strip()[:3])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 100 <= value <= 999:
        return None
    return int(value) if value == int(value) else None


def is_placeholder(text: str) -> bool:
    return len(text) <= _LONGEST_PLACEHOLDER and _PLACEHOLDER.fullmatch(text.strip()) is not None


def is_unicode(text: str) -> bool:
    return _SURROGATE.search(text) is None


# -- bodies


def read_body(text: object, encoding: object, size: int | None, media_type: object) -> Body:
    """Decode a body from the text that a HAR recorder stored.

    `size` is the length of the body in bytes that the HAR recorder wrote.
    """
    if not isinstance(text, str):
        return Body(None, "is not recorded" if text is None else "is recorded as something other than text")
    if is_placeholder(text):
        return Body(None, "is redacted")
    if not is_unicode(text):
        return Body(None, "is not valid Unicode")
    name = encoding.strip().lower() if isinstance(encoding, str) else encoding
    if name == "base64":
        try:
            data = base64.b64decode(_LINE_BREAK.sub("", _DATA_URI.sub("", text, count=1)), validate=True)
        except (binascii.Error, ValueError):
            return Body(None, "is redacted" if _SPEAKS_OF_IT.search(text[:200]) else "is malformed base64")
    elif name is None or name in _PLAIN_ENCODINGS:
        data = text.encode()
    else:
        return Body(None, "has an unknown encoding")
    return _confirmed(data, text, size, is_json(media_type))


def _confirmed(data: bytes, text: str, size: int | None, expects_json: bool) -> Body:
    """Accept the bytes of a recorded body if they are complete JSON, or if there are exactly `size` bytes."""
    if is_json_document(data):
        is_cut = size is not None and size > 2 * len(data) + _MUCH_LARGER
        return Body(None, "is shorter than its size") if is_cut else Body(data)
    if len(text) <= _LONGEST_PLACEHOLDER and is_placeholder(data.decode("utf-8", "replace")):
        return Body(None, "is redacted")
    if expects_json and data.startswith(_GZIP):
        return Body(None, "is still compressed")
    if size is not None:
        return Body(data) if size in (len(data), len(text)) else Body(None, "does not have its size")
    if expects_json and data:
        return Body(None, "is not valid JSON")
    if _REPLACED in text or (len(text) <= _LONGEST_PLACEHOLDER and _SPEAKS_OF_IT.search(text)):
        return Body(None, "is redacted or was not text")
    return Body(data)


def is_json(media_type: object) -> bool:
    return isinstance(media_type, str) and "json" in media_type.lower()


def is_json_document(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


# -- header fields


def read_fields(value: object) -> Fields:
    """Read header fields from a list (as HAR requires) or an object. Omit HTTP/2 pseudo-headers."""
    found: list[tuple[bytes, bytes]] = []
    unreadable = 0
    for name, text in _named(value):
        if name.startswith(":"):
            continue
        if not name or not name.isprintable() or not name.isascii():
            unreadable += 1
            continue
        if text is None or is_placeholder(text) or not is_unicode(text):
            unreadable += name.lower() not in _CREDENTIALS
            found.append((name.encode(), MASK.encode()))
            continue
        # Browsers join repeated fields of one name with line breaks.
        found += [field_of(name, one) for one in text.split("\n")]
    if not found:  # every request and every response has at least one field
        return Fields((), is_whole=False, problem="are not recorded" if not unreadable else "can't be read")
    nameless = any(not name for name, _ in _named(value))
    return Fields(tuple(found), not nameless, "have values that can't be read" if unreadable else "")


def field_of(name: str, value: str) -> tuple[bytes, bytes]:
    shown = MASK if name.lower() in _CREDENTIALS else value.strip("\r")
    return name.encode("latin-1", "replace"), shown.encode("utf-8", "replace")


def values_of(fields: Headers, name: bytes) -> list[bytes]:
    return [value for known, value in fields if known.lower() == name]


def _named(value: object) -> Iterator[tuple[str, str | None]]:
    """Yield the names and values of recorded header fields.

    If the name of a header field is unknown, the yielded name is an empty text. If the value of a header
    field is unknown, the yielded value is None.
    """
    if isinstance(value, dict):
        for name, each in value.items():
            for one in each if isinstance(each, list) else [each]:
                yield name, _text(one)
    elif isinstance(value, list):
        for each in value:
            name = member(each, "name")
            yield (name if isinstance(name, str) else ""), _text(member(each, "value"))


def _text(value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return text_of(value)


# -- times


def read_time(value: object) -> tuple[datetime | None, str]:
    """Return the time of a HAR entry. If the time of the HAR entry is unknown, return None and the reason.

    A time that is a number is interpreted as seconds or milliseconds since 1970.
    """
    if value is None or value == "":
        return None, "is not recorded"
    moment = _of_number(value) if not isinstance(value, str) else _of_text(value.strip())
    if moment is None:
        return None, "is not a time"
    if not 1970 < moment.year < 9999:
        return None, "is outside the years 1971 to 9998"
    if moment.tzinfo is None:
        return None, "has no time zone"
    return moment, ""


def _of_number(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = value / 1000 if value >= _EARLIEST_MILLISECONDS else value
    if not _EARLIEST_SECONDS <= seconds < _LATEST_SECONDS:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _of_text(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text)  # RFC 1123, the form of HTTP's Date
    except ValueError:
        pass
    try:
        return _of_number(float(text))
    except ValueError:
        return None
