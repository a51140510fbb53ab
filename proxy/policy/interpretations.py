"""Path interpretations that an upstream may use: their names in settings, their bits in the canonicaliser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ENCODED_SLASH: Final = 1  # `%2F` separates segments
BACKSLASH: Final = 2  # a backslash separates segments, encoded or not
DECODED_AGAIN: Final = 4  # percent-encoding is decoded more than once
PATH_PARAMETERS: Final = 8  # `;name=value` after a segment is not part of it
COMPATIBILITY: Final = 16  # full-width letters and similar characters are equal to plain ones (NFKC)

GRAPH: Final = ENCODED_SLASH | BACKSLASH
EVERY: Final = 31

_BITS: Final = {
    "encoded-slash": ENCODED_SLASH,
    "backslash": BACKSLASH,
    "decoded-again": DECODED_AGAIN,
    "path-parameters": PATH_PARAMETERS,
    "compatibility-characters": COMPATIBILITY,
}
GRAPH_NAMES: Final = ("encoded-slash", "backslash")


def parse_interpretation(name: str) -> str:
    """Return `name` if it names a path interpretation, such as `backslash`: one way to read a path.

    Raise ValueError if the given name is not the name of a path interpretation.
    """
    if name not in _BITS:
        raise ValueError(f"the value must be one of {', '.join(_BITS)}, not {name!r}")
    return name


def bits(names: Iterable[str]) -> int:
    """Return the bits of the path interpretations with the given names."""
    taken = 0
    for name in names:
        taken |= _BITS[name]
    return taken
