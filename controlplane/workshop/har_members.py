"""The members that the bodies of recorded requests had, for a rule that takes no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from controlplane.workshop.har import Exchange
from proxy.policy.facts import MalformedBody, parse_document
from proxy.policy.json_text import readable

_MOST_MEMBERS: Final = 60  # beyond that, the list says nothing to a reader
_LONGEST_BODY: Final = 100_000  # bytes; a proxy with small buffers refuses what a rule has to read
# Without dots but in an annotation's name: a rule takes them for the way into an object.
_NAME: Final = re.compile(r"(?:[^\s./\\@]+)?(?:@[^\s./\\@]+(?:\.[^\s./\\@]+)*)?")
_OTHER_CHARSET: Final = re.compile(rb"charset\s*=\s*\"?(?!utf-8)", re.IGNORECASE)
_TYPE: Final = "@odata.type"  # which `body_only` takes unlisted


def members_of(exchanges: Iterable[Exchange]) -> tuple[str, ...] | None:
    """The names of all members that the bodies have, sorted. None if one of the bodies is not known, not a
    JSON object that rules can read, or has a name that a rule can't write; and if no body has any."""
    names: dict[str, str] = {}
    for exchange in exchanges:
        found = _members(exchange)
        if found is None:
            return None
        for name in found:
            names.setdefault(name.lower(), name)
    names.pop(_TYPE, None)
    if not 0 < len(names) <= _MOST_MEMBERS or not all(map(_can_be_written, names.values())):
        return None
    return tuple(sorted(names.values(), key=lambda name: (name.lower(), name)))


def _can_be_written(name: str) -> bool:
    return name.isascii() and name.isprintable() and name != "" and _NAME.fullmatch(name) is not None


def _members(exchange: Exchange) -> Sequence[str] | None:
    if "body" in exchange.unknown:
        return None
    if not exchange.body:
        return ()
    if len(exchange.body) > _LONGEST_BODY or not _is_readable(exchange):
        return None
    try:
        parse_document(exchange.body)
    except MalformedBody:
        return None
    value = json.loads(readable(exchange.body))
    return list(value) if isinstance(value, dict) else None


def _is_readable(exchange: Exchange) -> bool:
    """Return True if a rule can read the body as JSON. Rules refuse other charsets."""
    types = [value for name, value in exchange.headers if name.lower() == b"content-type"]
    return len(types) <= 1 and not any(map(_OTHER_CHARSET.search, types))
