"""The members in recorded request bodies, from which a rule takes its list of allowed members."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from controlplane.workshop.har import Exchange
from proxy.policy.facts import MalformedBody, parse_document
from proxy.policy.json_text import readable

_MOST_MEMBERS: Final = 60  # members; a longer list is of no use to a reader
# Bytes; a proxy with small buffers refuses a larger body that a rule has to read
_LONGEST_BODY: Final = 100_000
# Only names of annotations may contain dots, because a rule reads a dot as the path into an object.
_NAME: Final = re.compile(r"(?:[^\s./\\@]+)?(?:@[^\s./\\@]+(?:\.[^\s./\\@]+)*)?")
_OTHER_CHARSET: Final = re.compile(rb"charset\s*=\s*\"?(?!utf-8)", re.IGNORECASE)
_TYPE: Final = "@odata.type"  # `body_only` always allows this member


def members_of(exchanges: Iterable[Exchange]) -> tuple[str, ...] | None:
    """Return the sorted names of all JSON members in the recorded bodies.

    Return None if the list of a rule (`body_only`) can't have these names: a recorded body is unknown or is
    not a JSON object, a name is not valid in a rule, or there are more than 60 names. Return None also if no
    recorded body has a member.
    """
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
    """Return True if a rule can read the body of the request as JSON.

    Rules refuse a body in any charset other than UTF-8.
    """
    types = [value for name, value in exchange.headers if name.lower() == b"content-type"]
    return len(types) <= 1 and not any(map(_OTHER_CHARSET.search, types))
