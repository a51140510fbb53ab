"""Redact the secrets of a query, and mark the places where text was cut.

The mark `…[N more]` ends a text or list that was cut. In the mark `…[N more]`, N is the number of removed
characters or items.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from proxy.policy.canonical import fully_decoded

MASK: Final = "***"  # replaces a value that grants access

# Paging tokens ($skiptoken, $deltatoken) are not secrets. A value that grants access by itself is one.
_SECRET_NAME: Final = re.compile(
    r"access_token|id_token|refresh_token|secret|password|assertion|api_?key"
    r"|\A\s*(?:sig|code|token|tempauth|pwd)\s*\Z",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile("[&;?]")  # servers differ in which of these characters they split at
_MAX_REMEMBERED_QUERY: Final = 512  # characters
_CUT_MARK: Final = re.compile(r"…\[(?:[0-9]+ more|cut)\]")  # events of earlier releases have `…[cut]`


def cut_mark(missing: int) -> str:
    """Return the mark of cut text: the last item of a cut list, or the end of a cut text.

    `missing` is the number of items or characters that were removed.
    """
    return f"…[{missing} more]"


def is_cut(text: str) -> bool:
    """Return True if the text contains the mark of cut text, such as a target with a cut path or query."""
    return "…[" in text and _CUT_MARK.search(text) is not None


def shortened(text: str, most: int) -> str:
    """Return a text, or, if it is longer than `most`, its first `most` characters with a mark of the cut."""
    return text if len(text) <= most else text[:most] + cut_mark(len(text) - most)


def without_secrets(query: str) -> str:
    """Return the query with a mask in place of each value that grants access by itself."""
    if len(query) <= _MAX_REMEMBERED_QUERY:
        return _without_secrets_remembered(query)
    return _masked(query)


@lru_cache(maxsize=1024)
def _without_secrets_remembered(query: str) -> str:
    return _masked(query)


def _masked(query: str) -> str:
    return "&".join(map(_option_masked, query.split("&")))


def _option_masked(option: str) -> str:
    if not any(map(_is_secret, _SEPARATORS.split(fully_decoded(option)))):
        return option
    name, mark, _ = option.partition("=")
    return f"{name}={MASK}" if mark else MASK


def _is_secret(option: str) -> bool:
    name, mark, _ = option.partition("=")
    return bool(mark) and _SECRET_NAME.search(name) is not None
