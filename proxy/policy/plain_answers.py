"""A filter on a response of any kind: JSON without what is hidden, and values that are no hidden property.

A filter finds properties by their names. A number, a text or a list of them has no names, so only the path
says what it is: OData returns plain values for a property that the path names, for a function or an action,
and for `/$count`. Such a response passes if the path does not name what is hidden. Every other response
without names, such as plain values in place of an entity, may be the hidden property itself and fails.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.config.given_text import other_encoding, without_mark
from proxy.policy.canonical import Target
from proxy.policy.compile import SINGLETONS
from proxy.policy.filters import CompiledFilter, Filtered, FilterFailed, PlainValues
from proxy.policy.hidden import HiddenProperties, Naming
from proxy.policy.path_shapes import COLLECTIONS, shapes_of
from proxy.policy.transforms import Transforms

_NUMBER: Final = re.compile(rb"[ \t\r\n]*[0-9]{1,19}[ \t\r\n]*")
_NOTHING: Final = re.compile(rb"[ \t\r\n]*(?:null|\[[ \t\r\n]*\])[ \t\r\n]*")
_VERBOSE: Final = re.compile(r";\s*odata\s*=\s*\"?verbose")
_MOST_KNOWN_TYPES: Final = 256  # and bytes of one
_COUNT: Final = "$count"
_RAW: Final = "$value"
_LEAST_SEGMENTS: Final = 3  # version, resource, and what is asked of it
# Codings of pictures and sound; a drawing in SVG is XML, and is told from these by its text.
_MEDIA: Final = ("image/", "audio/", "video/")
_BEGINS_OTHER_TEXT: Final = b"{[<\"'"
_SEPARATORS: Final = re.compile(rb"[\r\n\t,;|]")  # of rows and columns, which may hold a property


Asked = tuple[str, Target]  # the request's method in capitals, and its target


class NamesHidden(Exception):
    """The path may name what the filter hides: the rule that hides it blocks the request."""


class MediaType(NamedTuple):
    """What a Content-Type says."""

    essence: str  # such as application/json, in lower case; empty without a Content-Type
    is_json: bool
    is_verbose: bool  # OData's verbose JSON


_known_types: Final[dict[bytes, MediaType]] = {}


def media_type(content_type: bytes) -> MediaType:
    """The media type of a Content-Type's value, empty if there is none."""
    known = _known_types.get(content_type)
    if known is None:
        text = content_type.decode("latin-1").lower()
        essence = text.partition(";")[0].strip(" \t")
        is_json = essence in ("application/json", "text/json") or essence.endswith("+json")
        known = MediaType(essence, is_json, is_json and _VERBOSE.search(text) is not None)
        if len(_known_types) < _MOST_KNOWN_TYPES and len(content_type) <= _MOST_KNOWN_TYPES:
            _known_types[content_type] = known
    return known


def without_hidden(
    compiled: CompiledFilter, transforms: Transforms, asked: Asked, kind: MediaType, body: bytes
) -> Filtered:
    """The body of a response with what the filter leaves of it, and what was removed.

    Raises FilterFailed if the body may hold a hidden property that the filter can't find, and NamesHidden if
    the path may name one.
    """
    if kind.is_json:
        if kind.is_verbose:
            raise FilterFailed("it is OData's verbose JSON, whose properties lie elsewhere")
        try:
            return compiled.apply(body)
        except PlainValues as plain:
            _require_plain(transforms, asked, body, plain)
    else:
        _require_raw(transforms, asked, kind.essence, body)
    return Filtered(body, ())


def _require_plain(transforms: Transforms, asked: Asked, body: bytes, plain: PlainValues) -> None:
    """Raise unless plain values are what the path asks for, and not what the filter hides."""
    if _NOTHING.fullmatch(without_mark(body)):
        return
    is_count = _NUMBER.fullmatch(without_mark(body)) is not None
    for words in _ends(asked):
        last = words[-1]
        if last == _COUNT and is_count:
            continue
        if last is None or last in (_COUNT, *SINGLETONS) or last in COLLECTIONS:
            raise plain  # an entity, a collection or a count, none of which has plain values
        if last == _RAW and words[-2] is None:
            raise plain
        if asked[0] != "POST":  # to an action, which is no property
            _refuse_unlisted(transforms, words)


def _require_raw(transforms: Transforms, asked: Asked, essence: str, body: bytes) -> None:
    """Raise unless the body is a count, one value of a property, or a picture or sound."""
    ends = _ends(asked)
    is_count = essence == "text/plain" and _NUMBER.fullmatch(without_mark(body)) is not None
    if is_count and all(words[-1] == _COUNT for words in ends):
        return
    if not all(words[-1] == _RAW for words in ends):
        raise FilterFailed("it is not JSON")
    if essence.startswith(_MEDIA) and _is_binary(body):
        return
    if essence != "text/plain" or not _is_one_value(body):
        raise FilterFailed("it is not JSON")
    for words in ends:
        if words[-2] is None:
            raise FilterFailed("it is not JSON")
        _refuse_unlisted(transforms, words[:-1])


def _ends(asked: Asked) -> list[tuple[str | None, ...]]:
    """The words of the path in each interpretation that counts, None for an id. Raises FilterFailed."""
    shapes = shapes_of(*asked)
    if not shapes or any(len(each.shape) < _LEAST_SEGMENTS for each in shapes):
        raise FilterFailed("it has no names, and may be the hidden property")
    return [each.shape for each in shapes]


def _refuse_unlisted(transforms: Transforms, words: tuple[str | None, ...]) -> None:
    """Raise NamesHidden unless the path names something that the filter shows."""
    path = tuple(word or "/" for word in words)
    hidden = HiddenProperties(transforms)
    if hidden.named_within(path) is not Naming.NOTHING:
        raise NamesHidden
    if transforms.allow is not None and not hidden.lists(path):
        raise NamesHidden


def _is_binary(body: bytes) -> bool:
    """Whether no text can be read from it: text with a picture's type may be anything."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return not other_encoding(body)
    return not text


def _is_one_value(body: bytes) -> bool:
    """Whether a text is one line that has neither fields nor columns."""
    text = without_mark(body).strip()
    return text[:1] not in [bytes([each]) for each in _BEGINS_OTHER_TEXT] and not _SEPARATORS.search(text)
