"""Find request paths whose responses contain download addresses.

A client can open content with a download address, without a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from proxy.policy.canonical import ANY_NAME, Name
from proxy.policy.services.graph import GRAPH_FACTS
from proxy.policy.transforms import ANYWHERE

CONTENT: Final = "content"
ITEMS: Final = "items"
_THING: Final = "driveItem.content"
_DRIVE: Final = "drive"
_DRIVES: Final = "drives"
_DELTA: Final = "delta"
_WORKBOOK: Final = "workbook"  # a workbook contains cells and no items
_NO_OBJECTS: Final = frozenset(("$count", "$ref"))
_READS: Final = frozenset(("GET", "HEAD"))
# Parts of an item that contain addresses of its content.
_PARTS: Final = frozenset(("thumbnails", "versions", "permissions"))
# Operations whose response is such an address, with the method that reads or writes the content.
_HANDED_OVER: Final[Mapping[str, tuple[str, str]]] = {
    "createlink": ("createLink", "GET"),  # driveitem-createlink
    "preview": ("preview", "GET"),  # driveitem-preview
    "createuploadsession": ("createUploadSession", "PUT"),  # driveitem-createuploadsession
}
# Words of paths that lead to items of any drive.
_OF_ANY_DRIVE: Final = frozenset(("driveitem", "filesfolder", "following", "recent", "sharedwithme"))
_SHARES: Final = "shares"
_LEAST_BELOW_SHARES: Final = 4  # segments of a path that continues below a shared item
_MOST_STEMS: Final = 8
# Words of a path that decide which content its response may open.
CONTENT_WORDS: Final = frozenset(
    (
        CONTENT,
        ITEMS,
        _DRIVE,
        _DRIVES,
        _WORKBOOK,
        _SHARES,
        *_NO_OBJECTS,
        *_PARTS,
        *_HANDED_OVER,
        *_OF_ANY_DRIVE,
    )
)


class Stem(Enum):
    """Part of a request path with which the path of an implied request begins."""

    WHOLE = "all of it"
    BEFORE_DELTA = "all but a last `delta`"
    ITEM = "all of it, or the item that it is a part of"
    DRIVE = "the drive"


def stems_of(name: Name, stem: Stem) -> list[Name]:
    """Return those prefixes of a request path that `stem` selects.

    For example, `Stem.DRIVE` selects the prefix `/v1.0/me/drive` of the path `/v1.0/me/drive/root/children`.
    """
    if stem is Stem.WHOLE:
        return [name]
    if stem is Stem.BEFORE_DELTA:
        return [_first(name, len(name.folded) - 1) if name.folded[-1:] == (_DELTA,) else name]
    if stem is Stem.ITEM:
        cuts = [at for at, word in enumerate(name.folded) if at > 1 and _belongs_to_item(word)]
        return [name, *[_first(name, at) for at in cuts[:_MOST_STEMS]]]
    return [_first(name, end) for end in list(_drives_of(name))[:_MOST_STEMS]]


def _belongs_to_item(word: str) -> bool:
    return word in _PARTS or word in _HANDED_OVER or word == CONTENT


def _drives_of(name: Name) -> Iterator[int]:
    """Yield the index of the path segment after each drive, unless the path continues to one drive item.

    Yield no index for a drive at the end of the path.
    """
    words = name.folded
    for at, word in enumerate(words):
        end = at + 1 if word == _DRIVE else at + 2 if word == _DRIVES else 0
        if end and end < len(words) and not _is_one_item(words[end:]):
            yield end


def _is_one_item(words: tuple[str, ...]) -> bool:
    """Return True if the path leads to one drive item by its ID, or to a part of that item."""
    return words[:1] == (ITEMS,) and (len(words) == 2 or (len(words) > 2 and _belongs_to_item(words[2])))


def _first(name: Name, size: int) -> Name:
    return Name(name.folded[:size], name.exact[:size], tuple([key for key in name.keys if key < size]))


def may_open(name: Name, method: str) -> bool:
    """Return True if the response may contain objects, because objects can contain download addresses."""
    words = name.folded
    if not words or words[-1] in _NO_OBJECTS or method == "DELETE":
        return False
    if any(word == _WORKBOOK and not _is_key(name, at) for at, word in enumerate(words)):
        return False
    # A read of `content` returns the content itself. A write to it returns the item.
    return words[-1] != CONTENT or _is_key(name, len(words) - 1) or method not in _READS


def _is_key(name: Name, at: int) -> bool:
    """Return True if the segment's position shows that it is an ID or a file path, regardless of its text."""
    return at in name.keys or name.folded[at - 1] == ITEMS


def opens_any_drive(name: Name) -> bool:
    """Return True if the response may contain items of a drive that the path does not name."""
    words = name.folded
    if _SHARES in words[:2]:
        return len(words) >= _LEAST_BELOW_SHARES
    return not _OF_ANY_DRIVE.isdisjoint(words)


def handed_over(names: Iterable[Name]) -> dict[str, str]:
    """Return each operation that returns a URL of file content, with the HTTP method to use at the URL."""
    found = [_HANDED_OVER.get(name.folded[-1]) for name in names]
    return {operation: method for each in found if each is not None for operation, method in (each,)}


def addresses_within(names: Iterable[Name]) -> tuple[str, ...]:
    """Return the paths of the properties that contain download addresses in responses for these resources."""
    words = {word for name in names for word in name.folded}
    paths: dict[str, None] = {}
    for address in GRAPH_FACTS.addresses:
        if address.thing != _THING:
            continue
        if address.within:
            paths[f"{ANYWHERE}.{address.within}.{ANYWHERE}.{address.property}"] = None
            if address.within in words or ANY_NAME in words:
                paths[f"{ANYWHERE}.{address.property}"] = None
        else:
            paths[f"{ANYWHERE}.{address.property}"] = None
    return tuple(paths)
