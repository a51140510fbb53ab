"""How an audit event abridges what it holds: secrets in a query, and texts that are too long."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from proxy.policy.canonical import fully_decoded

CUT_MARK: Final = "…[cut]"  # ends a text that was cut
MASK: Final = "***"  # stands for a value that grants access

# Paging tokens ($skiptoken, $deltatoken) are no secrets; what grants access by itself is.
_SECRET_NAME: Final = re.compile(
    r"access_token|id_token|refresh_token|secret|password|assertion|api_?key"
    r"|\A\s*(?:sig|code|token|tempauth|pwd)\s*\Z",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile("[&;?]")  # at one or another of which each server splits
_MAX_REMEMBERED_QUERY: Final = 512  # characters


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
