"""Find the hidden properties that a query names, and whose values the result would reveal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from proxy.policy.canonical import Target
from proxy.policy.queries import QueryGuard
from proxy.policy.transforms import Transforms
from proxy.policy.visible import escaped

_MOST_NAMES: Final = 100  # names of a query to try; each costs an interpretation of the query
_NAME_OF_NOTHING: Final = "-"  # a property name that no query can contain
_PROPERTY: Final = re.compile(r"[^\W\d]\w*(?:/[^\W\d]\w*)*")


def probed_properties(transforms: Transforms, target: Target) -> tuple[str, ...]:
    """Return each hidden property because of which the query guard refuses the query.

    Return no property names if the query guard refuses the query for a different reason, such as a search in
    all properties.
    """
    if _is_probed(Transforms(strip=(_NAME_OF_NOTHING,)), target):
        return ()
    stripped = [each for each in transforms.strip if _is_probed(Transforms(strip=(each,)), target)]
    missing = () if transforms.allow is None else _not_allowed(transforms.allow, target)
    return tuple(map(escaped, dict.fromkeys((*stripped, *missing))))


def _not_allowed(allow: tuple[str, ...], target: Target) -> Iterator[str]:
    """Yield each property name for which the rules would refuse a query that names only this property."""
    if not _is_probed(Transforms(allow=allow), target):
        return
    names = dict.fromkeys(
        name.replace("/", ".")
        for values in target.options.values()
        for value in values
        for name in _PROPERTY.findall(value)
    )
    tried = list(names)[:_MOST_NAMES]
    if _is_probed(Transforms(allow=(*allow, *tried)), target):
        return
    for name in tried:
        others = tuple(each for each in tried if each != name)
        if _is_probed(Transforms(allow=(*allow, *others)), target):
            yield name


def _is_probed(transforms: Transforms, target: Target) -> bool:
    return QueryGuard(transforms).is_probed_by(target)
