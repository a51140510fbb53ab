"""How an audit event abridges what it holds: secrets in a query, and texts that are too long."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

CUT_MARK: Final = "…[cut]"  # ends a text that was cut
MASK: Final = "***"  # stands for a value that grants access

# Paging tokens ($skiptoken, $deltatoken) are no secrets; what grants access by itself is.
_SECRET_OPTION: Final = re.compile(
    r"access_token|id_token|refresh_token|secret|password|assertion|api_?key|\A(?:sig|code)\Z",
    re.IGNORECASE,
)
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
    name, mark, _ = option.partition("=")
    return f"{name}={MASK}" if mark and _SECRET_OPTION.search(name) else option
