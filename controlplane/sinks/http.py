"""Texts about an HTTP response of a sink, without secrets, and the delay that the response requests.

The code of this module does no input or output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

_MASK: Final = "********"
_MOST_WORDS: Final = 300  # largest number of characters of a body in a message
_SECONDS: Final = re.compile(r"[0-9]{1,7}", re.ASCII)


def hidden(words: str, secrets: Collection[str]) -> str:
    """Return the text with each secret masked, even in JSON or in a URL.

    Call this function before any truncation of the text, because half a secret would not be found.
    """
    forms = {
        form for secret in secrets for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
    }
    for form in sorted(forms - {""}, key=len, reverse=True):
        words = words.replace(form, _MASK)
    return words


def said(status: int, headers: Mapping[str, str], body: bytes, secrets: Collection[str]) -> str:
    """Return the status and the beginning of the body of a response, as text for a person."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    if 300 <= status < 400:
        target = hidden(headers.get("Location") or "nowhere", secrets)
        return f"responded {phrase}, which leads to {target} and is not followed: correct the address"
    words = beginning(body, secrets)
    return f"responded {phrase}: {words}" if words else f"responded {phrase}"


def unproven(status: int, headers: Mapping[str, str], body: bytes, secrets: Collection[str]) -> str:
    """Return the reason why a response with a success status can't come from the service itself."""
    media_type = headers.get("Content-Type") or "without a Content-Type"
    words = beginning(body, secrets) or "an empty body"
    what = "the response is not that of the service, so nothing counts as delivered: correct the address"
    return f"{what} ({status}, {hidden(media_type, secrets)}: {words})"


def beginning(body: bytes, secrets: Collection[str]) -> str:
    return " ".join(hidden(body.decode("utf-8", "replace"), secrets).split())[:_MOST_WORDS]


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the delay in seconds that `Retry-After` requests, or None without that header field."""
    given = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(given):
        return float(given)
    try:
        moment = parsedate_to_datetime(given)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def text_of(value: object) -> str:
    """Return the value if it is a string, or else an empty string."""
    return value if isinstance(value, str) else ""
