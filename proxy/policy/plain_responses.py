"""Filter a response in JSON or in any other format.

The filtered response has no hidden property. The filtered response is either JSON or plain values (such as a
number or a text) that are not a hidden property.

A filter finds properties by their names in the response. A number, a text, or a list of numbers or texts has
no property names. Only the request path shows if a response without property names, such as a number, is a
hidden property. OData returns plain values for a property that the path names, for a function or an action,
and for `/$count`. A response of plain values passes if the path does not name a hidden property. Plain values
in response to another path, such as the path of an entity, may be the value of a hidden property. The filter
refuses each response whose plain value may be the value of a hidden property.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.config.given_text import without_mark
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.candidates import SINGLETONS
from proxy.policy.canonical import Target
from proxy.policy.filters import CompiledFilter, Filtered, FilterFailed, PlainValues
from proxy.policy.hidden import HiddenProperties, Naming
from proxy.policy.items import ItemNotFound
from proxy.policy.known_names import PROPERTIES
from proxy.policy.odata import fold
from proxy.policy.path_shapes import (
    COLLECTIONS,
    KNOWN_RESOURCES,
    Shaped,
    is_plural,
    names_function,
    shapes_of,
)
from proxy.policy.transforms import ITEMS, Transforms

_NUMBER: Final = re.compile(rb"[ \t\r\n]*[0-9]{1,19}[ \t\r\n]*")
_NOTHING: Final = re.compile(rb"[ \t\r\n]*(?:null|\[[ \t\r\n]*\])[ \t\r\n]*")
_VERBOSE: Final = re.compile(r";\s*odata\s*=\s*\"?verbose")
_MOST_TYPES: Final = 256  # Content-Type values that are remembered
_LONGEST_TYPE: Final = 256  # bytes of one Content-Type value
_COUNT: Final = "$count"
_READS: Final = frozenset(("GET", "HEAD"))
_NO_PROPERTIES: Final = b"{}"
_RAW: Final = "$value"
_LEAST_SEGMENTS: Final = 3  # the API version, the resource, and the requested part of it
_CAST: Final = "microsoft.graph."
# Types of pictures, sound and arbitrary bytes. The first bytes of such a body must prove its format.
_MEDIA: Final = ("image/", "audio/", "video/", "application/octet-stream")
_SIGNATURES: Final = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\x00",  # TIFF
    b"MM\x00*",
    b"\x00\x00\x01\x00",  # ICO
    b"OggS\x00",
    b"fLaC\x00",
    b"ID3\x02",  # MP3
    b"ID3\x03",
    b"ID3\x04",
    b"\x1aE\xdf\xa3",  # Matroska, WebM
)
_CONTAINER: Final = re.compile(
    rb"RIFF.{4}(?:WEBP|WAVE|AVI )|\x00.{3}ftyp|BM.{4}\x00{4}.{2}\x00\x00", re.DOTALL
)
_BEGINS_OTHER_TEXT: Final = "{[<\"'"
# Separators of rows, columns and form fields, which may contain a property. "Larsen, Kim" contains none.
_SEPARATORS: Final = re.compile(r"[\t|&]|[,;](?! )")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # more than one line, or not text
_EXTENSION: Final = re.compile(r"extension_[0-9A-Fa-f]{32}_\w+")
_WORD: Final = re.compile(r"\w+")

_KNOWN_PROPERTIES: Final = frozenset(fold(name) for name in PROPERTIES)
# Names that are both relations and properties; as relations they lead to objects.
_RELATIONS: Final = frozenset(
    (
        "attachments",
        "calendar",
        "directreports",
        "drive",
        "manager",
        "memberof",
        "members",
        "owners",
        "photo",
        "transitivememberof",
    )
)
_OBJECTS: Final = COLLECTIONS | SINGLETONS | _RELATIONS | (KNOWN_RESOURCES - _KNOWN_PROPERTIES)
# Plural names of single objects.
_NO_COLLECTIONS: Final = frozenset(
    (
        "analytics",
        "auditlogs",
        "communications",
        "fields",
        "insights",
        "mailboxsettings",
        "onpremisesextensionattributes",
        "reports",
        "settings",
    )
)


Asked = tuple[str, Target]  # method of the request in capitals, and its target


class NamesHidden(Exception):
    """Error because the request path may name a hidden property.

    The rule that hides the property blocks the whole request.
    """


class MediaType(NamedTuple):
    """Parsed Content-Type header with only those fields that a response filter needs."""

    essence: str  # e.g. application/json, in lower case; empty without a Content-Type
    is_json: bool
    is_verbose: bool  # OData's verbose JSON


_known_types: Final[BoundedMemo[bytes, MediaType]] = BoundedMemo(_MOST_TYPES, _LONGEST_TYPE, WhenFull.KEEP)


def media_type(content_type: bytes) -> MediaType:
    """Parse the value of a Content-Type header. An empty value gives an empty media type."""
    known = _known_types.entries.get(content_type)
    if known is None:
        text = content_type.decode("latin-1").lower()
        essence = text.partition(";")[0].strip(" \t")
        is_json = essence in ("application/json", "text/json") or essence.endswith("+json")
        known = MediaType(essence, is_json, is_json and _VERBOSE.search(text) is not None)
        _known_types.keep(content_type, known)
    return known


def without_hidden(
    compiled: CompiledFilter, transforms: Transforms, asked: Asked, kind: MediaType, body: bytes
) -> Filtered:
    """Filter the body of a response, and return it with the names of the removed properties.

    Raise FilterFailed if the body may contain a hidden property that the filter cannot find. Raise
    NamesHidden if the request path may name a hidden property. Raise ItemNotFound if a read led to a single
    object that the filter removes. If the filter drops the object that a write returns, the response shows no
    property, although the upstream has done the write.
    """
    if kind.is_json:
        if kind.is_verbose:
            raise FilterFailed(
                "the response is in OData's verbose JSON format, and filters do not find properties in"
                " this format"
            )
        try:
            return compiled.apply(body)
        except ItemNotFound:
            if asked[0] in _READS:
                raise
            return Filtered(_NO_PROPERTIES, (ITEMS,))
        except PlainValues as plain:
            _require_plain(transforms, asked, body, plain)
    else:
        _require_raw(transforms, asked, kind.essence, body)
    return Filtered(body, ())


def _require_plain(transforms: Transforms, asked: Asked, body: bytes, plain: PlainValues) -> None:
    """Raise an error unless the path requests plain values that are not a hidden property."""
    if _NOTHING.fullmatch(without_mark(body)):
        return
    if transforms.keep:
        raise plain
    is_count = _NUMBER.fullmatch(without_mark(body)) is not None
    for path in _ends(asked):
        last = path.shape[-1]
        if last == _COUNT and is_count:
            continue
        if last == _RAW:
            _require_property(transforms, asked, path.parent, plain)
        elif asked[0] != "POST":
            _require_property(transforms, asked, path, plain)
        elif _has_plain_values(last):  # an action and not a property
            _refuse_stripped(transforms, path)
        else:
            raise plain


def _has_plain_values(word: str | None) -> bool:
    """Return False if the path segment requests an entity, a collection, a count or a reference."""
    return not (word is None or word.startswith("$") or word in COLLECTIONS or word in SINGLETONS)


def _require_property(transforms: Transforms, asked: Asked, path: Shaped, failure: FilterFailed) -> None:
    """Raise the exception `failure` unless the path leads to a property or function that stays visible."""
    # a path with ) at its end is a call and not a cast
    if not asked[1].path.removesuffix(f"/{_RAW}").endswith(")"):
        path = _without_cast(path)
    last = path.shape[-1]
    if not _has_plain_values(last) or len(path.shape) < _LEAST_SEGMENTS:
        raise failure
    _refuse_unlisted(transforms, path)
    if transforms.allow is None and (last in _OBJECTS or _may_end_in_key(path)):
        raise failure


def _may_end_in_key(path: Shaped) -> bool:
    """Return True if the path may request an entity by its key (OData 4.01 Part 2 §4.3.6)."""
    words = path.shape
    last, collection = path.spelled[-1], words[-2]
    if collection is None or collection in COLLECTIONS or collection in SINGLETONS:
        return False  # after a known collection, keys are already distinguished from words
    if collection in _NO_COLLECTIONS or names_function(last):
        return False
    is_known = collection in _KNOWN_PROPERTIES or collection in KNOWN_RESOURCES
    return is_plural(collection) or (len(words) == _LEAST_SEGMENTS and not is_known)


def _require_raw(transforms: Transforms, asked: Asked, essence: str, body: bytes) -> None:
    """Raise an error unless the response body is a count, a value of a property, a picture or a sound."""
    if transforms.keep:
        raise FilterFailed("the response is not JSON, so the filter cannot read the properties of its items")
    ends = _ends(asked)
    is_count = essence == "text/plain" and _NUMBER.fullmatch(without_mark(body)) is not None
    if is_count and all(path.shape[-1] == _COUNT for path in ends):
        return
    failed = FilterFailed("the response is not JSON")
    if not all(path.shape[-1] == _RAW for path in ends):
        raise failed
    if essence.startswith(_MEDIA) and _is_media(body):
        for path in ends:
            _refuse_unlisted(transforms, path.parent)
        return
    if essence != "text/plain" or not _is_one_value(body, transforms):
        raise failed
    for path in ends:
        _require_property(transforms, asked, path.parent, failed)


def _ends(asked: Asked) -> list[Shaped]:
    """Return a shape of the request path for each way in which the upstream may interpret the path.

    A shape contains the words of a path, with None in place of each object ID. Raise FilterFailed if the path
    pattern of a rule cannot express the request path, or if the path is too short.
    """
    shapes = shapes_of(*asked)
    if not shapes or any(len(each.shape) < _LEAST_SEGMENTS for each in shapes):
        raise FilterFailed("the response has no property names, so it may contain a hidden property")
    return [_with_extensions(each) for each in shapes]


def _with_extensions(path: Shaped) -> Shaped:
    """Return the shape of a path, in which the name of a directory extension is a word and not an object ID.

    A shape contains the words of a path, with None in place of each object ID.

    The name of a directory extension contains an application's ID, but the name as a whole is a property
    name.
    """
    words = [
        fold(text) if word is None and _EXTENSION.fullmatch(text) else word
        for word, text in zip(path.shape, path.spelled, strict=True)
    ]
    return path._replace(shape=tuple(words))


def _without_cast(path: Shaped) -> Shaped:
    """Remove a cast (the name of a type) from the end of a path.

    With or without a type cast, a path leads to the same objects (OData 4.01 Part 1 §11.2.2).
    """
    while (last := path.shape[-1]) is not None and last.startswith(_CAST):
        path = path.parent
    return path


def _refuse_stripped(transforms: Transforms, path: Shaped) -> None:
    """Raise NamesHidden if the path names a property that the filter removes."""
    if HiddenProperties(Transforms(transforms.strip)).named_within(_words(path)) is not Naming.NOTHING:
        raise NamesHidden


def _refuse_unlisted(transforms: Transforms, path: Shaped) -> None:
    """Raise NamesHidden unless the path names a property that the filter shows."""
    hidden = HiddenProperties(transforms)
    if hidden.named_within(_words(path)) is not Naming.NOTHING:
        raise NamesHidden
    if transforms.allow is not None and not hidden.lists(_words(path)):
        raise NamesHidden


def _words(path: Shaped) -> tuple[str, ...]:
    """Return the words of a path, with `/` in place of each object ID, because `/` names no property."""
    return tuple(word or "/" for word in path.shape)


def _is_media(body: bytes) -> bool:
    """Return True if the response body begins with the signature of a picture or sound format.

    The Content-Type alone does not prove the format, because a server may send any text with it.
    """
    return body.startswith(_SIGNATURES) or _CONTAINER.match(body) is not None


def _is_one_value(body: bytes, transforms: Transforms) -> bool:
    """Return True if the body is a single line of text that cannot contain the name of a hidden property."""
    try:
        text = without_mark(body).decode().strip()
    except UnicodeDecodeError:
        return False
    if text[:1] in set(_BEGINS_OTHER_TEXT) or _CONTROL.search(text) or _SEPARATORS.search(text):
        return False
    hidden = {fold(path.rpartition(".")[2]) for path in transforms.strip}
    return hidden.isdisjoint(fold(word) for word in _WORD.findall(text))
