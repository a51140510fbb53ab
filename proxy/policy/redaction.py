"""Redact the secrets of a query, and mark what had to be cut: `…[N more]` ends a text or a list.

N counts the characters that a text lacks, or the items that a list lacks.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from proxy.policy.canonical import fully_decoded

MASK: Final = "***"  # stands for a value that grants access

# Paging tokens ($skiptoken, $deltatoken) are no secrets; what grants access by itself is.
_SECRET_NAME: Final = re.compile(
    r"access_token|id_token|refresh_token|secret|password|assertion|api_?key"
    r"|\A\s*(?:sig|code|token|tempauth|pwd)\s*\Z",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile("[&;?]")  # at one or another of which each server splits
_MAX_REMEMBERED_QUERY: Final = 512  # characters
_CUT_MARK: Final = re.compile(r"…\[(?:[0-9]+ more|cut)\]")  # events of earlier releases have `…[cut]`


def cut_mark(missing: int) -> str:
    """The last element of a list, or the end of a text, of which `missing` items or characters were cut."""
    return f"…[{missing} more]"


def is_cut(text: str) -> bool:
    """Return True if a mark of a cut stands in the text, such as a target whose path or query was cut."""
    return "…[" in text and _CUT_MARK.search(text) is not None


def shortened(text: str, most: int) -> str:
    """Return the text itself if it has at most `most` characters, else so many of them and the mark."""
    return text if len(text) <= most else text[:most] + cut_mark(len(text) - most)


def without_secrets(query: str) -> str:
    """The query less the values that grant access by themselves."""
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
