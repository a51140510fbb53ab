"""Find all interpretations of a request target, and refuse a malformed target.

An *interpretation* is one way in which a server may read a target. For example, a server may decode before it
splits, or treat a backslash as a slash. A verdict must hold for every interpretation of the target that the
upstream may use (`Interpretations`). An interpretation that the upstream never uses is not by itself a reason
to refuse a request. If the upstream never uses an interpretation, a rule applies to it only if the rule
names, without wildcards, a segment that only this interpretation has.

In the module `canonical`, a `Reading` object holds one interpretation of a request target. In one
interpretation, a resource may have several *names*: a file has a name by its path and a name as an item. A
rule applies to a resource if the rule matches any of the resource's names.
"""

from __future__ import annotations

import re
import unicodedata
from codecs import unicode_escape_decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, zip_longest
from math import prod
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.interpretations import (
    BACKSLASH,
    COMPATIBILITY,
    DECODED_AGAIN,
    ENCODED_SLASH,
    GRAPH,
    PATH_PARAMETERS,
)
from proxy.policy.odata import (
    CERTAIN,
    SHADOW,
    Aliases,
    MalformedSegment,
    Meaning,
    Part,
    by_own_words,
    close_parentheses,
    colon_forms,
    file_path_meanings,
    fold,
    folded_at_most,
    ligatures,
    meanings_of,
    trimmed,
    without_matrix_parameters,
)

MAX_DECODINGS: Final = 4
# Characters that may stand in a target. All others are percent-encoded, as by a client that sends the target
# alone.
TARGET_CHARS: Final = "%/?:@!$&'()*+,;=-._~[]"
MAX_SEGMENTS: Final = 256
MAX_READINGS: Final = 64
# characters; a path that needs more than splitting costs work per character and interpretation
MAX_ODD_PATH: Final = 8192
MAX_PARTS: Final = 2048  # segments of all names in all interpretations; rules are looked up by each of them
MAX_SPELLED_OUT: Final = 98304  # characters of all spellings of a path, folded forms included
MAX_WRITTEN_OUT: Final = 65536  # characters that aliases stand for, in the path and in all query options
MAX_LIGATURES: Final = (
    100  # ligatures in a query, and in a name in a body; each costs as much as 60 other characters
)
MAX_CACHED_PATH: Final = 512
# segments of one path's names; a path with several interpretations needs some 20
_MAX_CACHED_PARTS: Final = 64
_MOST_PATHS: Final = 4096  # odd paths whose interpretations are remembered
_MAX_CACHED_NAME: Final = 64
_FEW_ESCAPES: Final = 6
_ARGUMENT: Final = 16  # one argument of a key or call takes as long to read as so many characters

# Segments of implied requests. A segment of a request never has a control character.
ANY_KEY: Final = "\0"  # an unknown key
ANY_NAME: Final = "\1"  # a relation of any name

# Kinds of interpretations, as bits in addition to those of `odata`: an encoded slash was read as a separator.
SLASH: Final = 4
# An interpretation that the upstream never uses.
UNTAKEN: Final = 8
_UNLIKELY: Final = SHADOW | UNTAKEN

_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Overlong encodings: bytes that spell a character with more bytes than UTF-8 allows (RFC 3629 §3).
_OVERLONG: Final = re.compile(rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f]|\xf0[\x80-\x8f]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Each alternative begins with a different character, so that `re` examines only few places closely.
_ODD_PATH: Final = re.compile(
    r"%|\\|;|\(|'| |//|/\.\.?(?:/|\Z)|/\$(?:/|\Z)|/\Z|:(?:/|\Z)|"
    r"/(?:[Mm][Ii][Cc][Rr][Oo][Ss][Oo][Ff][Tt]\.)?[Gg][Rr][Aa][Pp][Hh]\."
)
# Every odd path has one of these marks in lower case, or a slash at its end, and few others do. The marks are
# looked for first, because the pattern takes twice as long (bench/test_decide.py,
# test_canonicalise_plain_target).
_ODD_MARKS: Final = ("%", "\\", ";", "(", "'", " ", ":", "//", "/.", "graph.", "/$/")
_UNTRIMMED: Final = re.compile(r"\A | \Z|\(\)\Z|[^\x00-\x7f]")
_QUERY_OR_FRAGMENT: Final = re.compile("[?#]")
# guest account: ada_contoso.com#EXT#@fabrikam.example
_GUEST: Final = re.compile(r"[^?#@]+#EXT#@[\w.-]+", re.IGNORECASE)
_ALIAS: Final = re.compile(r"(?<!\w)(@\w+)")  # excludes text after the @ of a mail address
_GUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GUID_CHARACTERS: Final = 36
_ALIAS_MARK: Final = re.compile("[@\uff20\ufe6b]")  # all characters that `fold` turns into an @
# A question mark that is encoded once or more, or a character that NFKC turns into one.
_MAY_HIDE_QUERY: Final = re.compile(r"%(?:3[Ff]|25|[Ee])")
_PARAMETER_ALIAS: Final = re.compile(r"(?:\A|&)(?:@|%40|%2540)")


class MalformedTarget(ValueError):
    """Error because a request target has no usable interpretation; the proxy responds 400 badRequest."""


class Name(NamedTuple):
    """A name of a resource, in one interpretation of the request target.

    In `exact`, None marks a path segment that only a literal segment of a rule can match, never a wildcard
    for an ID. `keys` has the positions of path segments that are certainly object IDs: IDs in parentheses,
    and files addressed by path. `relations` has the positions of path segments that are certainly relation
    names, not object IDs.
    """

    folded: tuple[str, ...]
    exact: tuple[str | None, ...]
    keys: tuple[int, ...] = ()
    relations: tuple[int, ...] = ()


class Reading(NamedTuple):
    """An interpretation of a request target, with all names of the resource.

    The bit UNTAKEN in `kind` marks an interpretation that the upstream does not use. `changed_from` is the
    index of the first path segment in which an UNTAKEN interpretation differs from every interpretation that
    the upstream uses.
    """

    kind: int
    names: tuple[Name, ...]
    changed_from: int = 0


class Target:
    """A request target in origin-form (RFC 9112 §3.2.1): its bytes and its interpretations.

    Almost every target is plain: all servers interpret a plain target in the same way. For a plain target,
    `plain` has the path segments, normalised by `fold`. The interpretations (`readings`) of a plain target
    are created only on demand.
    """

    __slots__ = (
        "_as_taken",
        "_options",
        "_readings",
        "cache_key",
        "doubtful",
        "path",
        "plain",
        "query",
        "raw",
        "taken",
    )

    def __init__(
        self,
        raw: str,
        path: str,
        query: str | None,
        plain: tuple[str, ...] | None,
        readings: tuple[Reading, ...] | None = None,
        cache_key: str | None = None,
    ) -> None:
        self.raw = raw
        self.path = path
        self.query = query
        self.plain = plain
        self.cache_key = cache_key  # key of interpretations that depend on nothing but the path
        self._readings = readings
        self._options: dict[str, tuple[str, ...]] | None = None
        self._as_taken: Target | None = None
        self.doubtful = _NO_NAMES  # options of `as_taken` whose names an upstream may trim
        self.taken = 0  # bits of the interpretations that the upstream uses

    @staticmethod
    def implied(
        path: str, readings: tuple[Reading, ...], options: Mapping[str, tuple[str, ...]], taken: int
    ) -> Target:
        """Return the target of an implied request: an additional read or write that a request causes.

        For example, `$expand=manager` implies a read of the manager. Messages for people show `path` as the
        path of the implied request.
        """
        target = Target(path, path, None, None, readings)
        target._options = dict(options)
        target._as_taken = target
        target.taken = taken
        return target

    @property
    def readings(self) -> tuple[Reading, ...]:
        readings = self._readings
        if readings is None:
            exact = tuple(self.path[1:].split("/"))
            readings = self._readings = (Reading(CERTAIN, (Name(self.plain or (), exact),)),)
        return readings

    def may_end_in(self, word: str) -> bool:
        """Return True if the path ends with the segment `word` (in folded form) in any interpretation."""
        return any(name.folded[-1:] == (word,) for reading in self.readings for name in reading.names)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Query options of the request target, by the normalised name that `option_name` returns.

        The values of a query option come from every occurrence of its name, in every interpretation of the
        query.
        """
        options = self._options
        if options is None:
            options = self._options = _options_of(self.path, self.query)
        return options

    @property
    def as_taken(self) -> Target:
        """The request target without the query options that the upstream does not read.

        Some query options and values appear only if a server percent-decodes the query twice. The returned
        target contains these options and values only if the upstream decodes twice.
        """
        found = self._as_taken
        if found is None:
            found = self._as_taken = self if self.taken & DECODED_AGAIN else _taken(self)
        return found


def _taken(target: Target) -> Target:
    query = target.query or ""
    if "%" not in query and "+" not in query and "$$" not in query and "%" not in target.path:
        return target
    options = _parse_options(query, as_taken=True)
    if options == target.options:
        return target
    taken = Target(target.raw, target.path, target.query, target.plain, target._readings, target.cache_key)
    taken._options = options
    taken.doubtful = _doubtful_names(query)
    taken._as_taken = taken
    return taken


_FRAGMENT: Final = "the target has a fragment; encode '#' as %23"
_NOT_PRINTABLE: Final = "the target is not printable ASCII; encode any other character as %XX"


def canonicalise(target: str, taken: int = GRAPH) -> Target:
    """Return the request target, with every interpretation that a server may give to its path.

    The bits of `taken` select the interpretations that the upstream uses.

    Raise MalformedTarget if the target has no interpretation.
    """
    if not target.isascii() or not target.isprintable() or "#" in target:
        raise MalformedTarget(_FRAGMENT if "#" in target else _NOT_PRINTABLE)
    path, mark, rest = target.partition("?")
    query = rest if mark else None
    aliases: dict[str, str] | None = None
    # Aliases that may be impossible to evaluate are read, and refused, now and not during the evaluation.
    options: dict[str, tuple[str, ...]] | None = None
    if query is not None and ("%" in query or "@" in query):
        decoded = _query_decoded(query)
        aliases = _parameter_aliases(query)
        deepest = fully_decoded(decoded, MAX_DECODINGS - 1)
        if ligatures(deepest) > MAX_LIGATURES:
            raise MalformedTarget(
                "the query has too many characters that case folding expands to several characters"
            )
        if _ALIAS_MARK.search(deepest):
            options = _options_of(path, query)
    lowered = path.lower()
    if not _may_be_odd(lowered) or _ODD_PATH.search(path) is None:
        if not path.startswith("/"):
            raise MalformedTarget("the request target does not begin with a slash")
        plain = tuple(lowered[1:].split("/"))
        if len(plain) > MAX_SEGMENTS:
            raise MalformedTarget("the path has too many segments")
        if len(plain) > 2 and _may_be_tenant(plain[1]):
            exact = tuple(path[1:].split("/"))
            certain = Reading(CERTAIN, (Name(plain, exact),))
            found = Target(target, path, query, None, (certain, *_without_tenant([certain])))
        else:
            found = Target(target, path, query, plain)
    else:
        key = path if taken == GRAPH else f"{taken}{path}"
        known = None if aliases else _known_readings.entries.get(key)
        if known is None:
            found = _odd_target(target, path, query, aliases or {}, taken, key)
        else:
            found = Target(target, path, query, None, known, key)
        if options is None and _MAY_HIDE_QUERY.search(path) is not None:
            options = _options_of(path, query)
    if options is not None:
        found._options = options
    found.taken = taken
    return found


def _odd_target(
    target: str, path: str, query: str | None, aliases: Mapping[str, str], taken: int, key: str
) -> Target:
    readings, parts = _readings_of_odd(path, aliases, taken)
    if aliases or len(path) > MAX_CACHED_PATH or parts > _MAX_CACHED_PARTS:
        return Target(target, path, query, None, readings)
    _known_readings.keep(key, readings)
    return Target(target, path, query, None, readings, key)


def _may_be_tenant(segment: str) -> bool:
    """Return True if the segment may name a tenant after the version, as in `/v1.0/myorganization/users`.

    If a segment names a tenant, the path without the tenant segment names the same resource.
    """
    return (
        "." in segment
        or segment == "myorganization"
        or (len(segment) == _GUID_CHARACTERS and _GUID.fullmatch(segment) is not None)
    )


def _without_tenant(readings: Iterable[Reading]) -> Iterator[Reading]:
    """Yield the interpretations of a path for a service that takes the second path segment as the tenant."""
    for reading in readings:
        names = tuple(
            Name(
                name.folded[:1] + name.folded[2:],
                name.exact[:1] + name.exact[2:],
                tuple([at - 1 for at in name.keys]),
            )
            for name in reading.names
            if len(name.folded) > 2 and _may_be_tenant(name.folded[1])
        )
        if names:
            yield Reading(reading.kind | SHADOW, names, max(0, reading.changed_from - 1))


def _may_be_odd(lowered: str) -> bool:
    if lowered.endswith(("/", "/$")):
        return True
    for mark in _ODD_MARKS:  # noqa: SIM110 - `any` takes twice as long if this is not compiled
        if mark in lowered:
            return True
    return False


def option_name(name: str) -> str:
    """Return the normal form of a query option's name: `top` for both `$top` and `TOP`.

    OData 4.01 accepts `$top`, `top` and `$TOP` as the same option.
    """
    if len(name) <= _MAX_CACHED_NAME:
        return _option_name_cached(name)
    return _option_name(name)


def _option_name(name: str) -> str:
    if "%" in name or "+" in name:
        name = fully_decoded(name.replace("+", " "))
    return fold(name).strip().lstrip("$")


_option_name_cached: Final = lru_cache(maxsize=1024)(_option_name)


@dataclass(slots=True)
class _Segments:
    kind: int
    texts: list[str]


class _Room:
    """Number of characters that the further interpretations of a path may have in total."""

    __slots__ = ("_left",)

    def __init__(self, characters: int) -> None:
        self._left = characters

    def take(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise MalformedTarget("the path is too long to be evaluated in all its interpretations")


class _Meanings:
    """Interpretations of the segments of one request path.

    Each path segment is interpreted only once, because the interpretations of one path share most segments.
    """

    __slots__ = ("_aliases", "_of_files", "_of_segments", "_room")

    def __init__(self, aliases: Aliases, room: _Room) -> None:
        self._aliases = aliases
        self._room = room
        self._of_files: dict[str, tuple[Meaning, ...]] = {}
        self._of_segments: dict[tuple[str, bool], tuple[Meaning, ...]] = {}

    def of_segment(self, text: str, following: str | None) -> tuple[Meaning, ...]:
        followed = following is not None and not following.startswith("$")
        found = self._of_segments.get((text, followed))
        if found is None:
            self._room.take(_work_to_read(text))
            # A key may precede the path of a file: `items('id'):`
            read = text[:-1] if text.endswith("):") else text
            found = meanings_of(read, self._aliases, followed=followed)
            self._of_segments[text, followed] = found
        return found

    def of_file(self, text: str) -> tuple[Meaning, ...]:
        found = self._of_files.get(text)
        if found is None:
            self._room.take(_work_to_read(text))
            found = self._of_files[text] = file_path_meanings(text, self._aliases)
        return found


def _work_to_read(text: str) -> int:
    arguments = text.count(",") if text.endswith(")") else 0
    return folded_at_most(text) + _ARGUMENT * arguments


_NO_NAMES: Final[frozenset[str]] = frozenset()
_known_readings: Final[BoundedMemo[str, tuple[Reading, ...]]] = BoundedMemo(_MOST_PATHS, None, WhenFull.CLEAR)


def _readings_of_odd(path: str, aliases: Mapping[str, str], taken: int) -> tuple[tuple[Reading, ...], int]:
    """Return the interpretations of an unusual request path, and the total number of segments in them."""
    if not path.startswith("/"):
        raise MalformedTarget("the request target does not begin with a slash")
    if path.count("/") > MAX_SEGMENTS:
        raise MalformedTarget("the path has too many segments")
    if len(path) > MAX_ODD_PATH:
        raise MalformedTarget("the path is too long to be evaluated in all its interpretations")
    room = _Room(MAX_SPELLED_OUT)
    meanings = _Meanings(Aliases(aliases, MAX_WRITTEN_OUT), room)
    found: dict[Reading, None] = {}
    parts = 0
    try:
        for segments in _spellings(path, room, taken):
            readings = _readings_of(segments, meanings)
            parts += sum(len(name.folded) for reading in readings for name in reading.names)
            found.update(dict.fromkeys(readings))
            if len(found) > MAX_READINGS or parts > MAX_PARTS:
                raise MalformedTarget("the path has too many interpretations")
    except MalformedSegment as error:
        raise MalformedTarget(str(error)) from None
    marked = _with_changes_marked(tuple(found))
    return (*marked, *_without_tenant(marked)), parts


def _with_changes_marked(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """Set `changed_from` in each path interpretation that the upstream does not use (`kind` has UNTAKEN).

    `changed_from` is the index of the first path segment in which the interpretation differs from every
    interpretation that the upstream uses.
    """
    if not any(reading.kind & UNTAKEN for reading in readings):
        return readings
    certain = [name for reading in readings if not reading.kind & _UNLIKELY for name in reading.names]
    return tuple(
        [
            reading._replace(changed_from=_changed_from(reading.names, certain))
            if reading.kind & UNTAKEN
            else reading
            for reading in readings
        ]
    )


def _changed_from(names: Iterable[Name], certain: Sequence[Name]) -> int:
    """Return the lowest index of a segment in which a name in `names` differs from all names in `certain`.

    Names that are also in `certain` do not count. Return 0 if a name in `names` is only the beginning of a
    name in `certain`, because then no segment distinguishes the two names.
    """
    least = MAX_SEGMENTS
    for name in names:
        if name in certain:
            continue
        common = max([_common(name, other) for other in certain], default=0)
        if common >= len(name.folded):
            return 0
        least = min(least, common)
    return least


def _common(one: Name, other: Name) -> int:
    """Return the number of leading segments that are equal in two paths."""
    count = 0
    its = zip(one.folded, one.exact, strict=True)
    others = zip(other.folded, other.exact, strict=True)
    for first, second in zip(its, others, strict=False):
        if first != second:
            break
        count += 1
    return count


def _spellings(path: str, room: _Room, taken: int) -> Iterator[_Segments]:
    """Yield the path, split, decoded and normalised in every order that a server may use.

    Yield the same segments again only if the new kind lacks at least one bit of each kind that was yielded
    before. The bits of `kind`, such as UNTAKEN, select the rules that must consider an interpretation.
    """
    known: dict[str, list[int]] = {}
    for decoded in _decodings(path, taken):
        for variant in _variants(decoded, room, taken):
            for spelling in _without_dots(variant):
                kinds = known.setdefault("\0".join(spelling.texts), [])  # no segment contains a NUL
                if not any(kind & spelling.kind == kind for kind in kinds):
                    kinds.append(spelling.kind)
                    yield spelling


def _variants(decoded: _Segments, room: _Room, taken: int) -> list[_Segments]:
    room.take(_length(decoded))
    variants = [decoded]
    variants += _each(variants, _compatibility_normalised, room, _kind(taken, COMPATIBILITY))
    variants += _each(variants, _at_backslashes, room, _kind(taken, BACKSLASH))
    for variant in variants:
        room.take(_work_to_close(variant))
    variants += _each(variants, _without_matrix_parameters, room, _kind(taken, PATH_PARAMETERS))
    variants += _each(variants, _at_semicolons, room)
    variants += _each(variants, _at_end_of_path, room)
    variants += _each(variants, _trimmed, room)
    variants += _each(variants, _with_colons_joined, room)
    for variant in variants:
        room.take(_work_to_close(variant))
    variants += _each(variants, _with_whole_parentheses, room)
    return variants


def _work_to_close(variant: _Segments) -> int:
    """Return the cost of finding all closing parentheses in a path, for a limit on that cost.

    For each opening parenthesis, the search may have to examine all quotes that follow.
    """
    opening = sum("(" in text for text in variant.texts)
    return opening * sum(text.count("'") for text in variant.texts) if opening else 0


def _length(variant: _Segments) -> int:
    return sum(map(len, variant.texts)) + len(variant.texts)


def _kind(taken: int, interpretation: int) -> int:
    """Return 0 if the upstream uses this kind of interpretation, or the bit UNTAKEN if it does not."""
    return 0 if taken & interpretation else UNTAKEN


def _decodings(path: str, taken: int) -> Iterator[_Segments]:
    """Yield the path decoded `total` times, of which `before` times happen before the split at slashes."""
    if _BAD_ESCAPE.search(path):
        raise MalformedTarget(
            "a percent sign in the request target is not followed by two hexadecimal digits"
        )
    again = _decoded if taken & DECODED_AGAIN else _decoded_again
    texts = [path]
    while (text := _decoded(path) if len(texts) == 1 else again(texts[-1])) != texts[-1]:
        texts.append(text)
        if len(texts) > MAX_DECODINGS + 1:
            raise MalformedTarget("the path is percent-encoded too many times")
    deepest = len(texts) - 1
    for before, text in enumerate(texts):
        if before and text.count("/") == texts[before - 1].count("/"):
            continue
        segments = text[1:].split("/")
        slash = SLASH | _kind(taken, ENCODED_SLASH) if before else CERTAIN
        for total in range(before, deepest + 1):
            if total > before:
                segments = [again(segment) if total > 1 else _decoded(segment) for segment in segments]
            if total or not deepest:
                yield _Segments(slash if total < 2 else slash | _kind(taken, DECODED_AGAIN), segments)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    try:
        decoded = _unescaped(text).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedTarget("the request target is not UTF-8 after percent-decoding") from None
    if _CONTROL.search(decoded):
        raise MalformedTarget("the path contains a control character after decoding")
    return decoded


def _decoded_again(text: str) -> str:
    """Decode path text a second time, although the upstream does not decode the text again.

    A file name may contain any percent sign (`caf%E9.docx`), so the proxy refuses only encodings that nobody
    writes by accident.
    """
    if "%" not in text:
        return text
    unescaped = _unescaped(text)
    if _OVERLONG.search(unescaped):
        raise MalformedTarget("the path contains an overlong encoding after a second decoding")
    decoded = unescaped.decode("utf-8", "replace")
    if _CONTROL.search(decoded):
        raise MalformedTarget("the path contains a control character after a second decoding")
    return decoded


def _each(
    variants: list[_Segments], change: Callable[[_Segments], _Segments], room: _Room, kind: int = 0
) -> list[_Segments]:
    """Apply the function `change` to each variant of a path (a list of segments as some server may read it).

    Return only the variants that `change` changed. The kind of each returned variant gets the bits of `kind`
    in addition.
    """
    changed: list[_Segments] = []
    for before in variants:
        after = change(before)
        if len(after.texts) > MAX_SEGMENTS:
            raise MalformedTarget("the path has too many segments")
        if after.texts != before.texts:
            room.take(_length(after))
            changed.append(_Segments(after.kind | kind, after.texts))
    return changed


def _at_backslashes(variant: _Segments) -> _Segments:
    return _Segments(variant.kind, [part for text in variant.texts for part in text.split("\\")])


def _compatibility_normalised(variant: _Segments) -> _Segments:
    texts: list[str] = []
    for text in variant.texts:
        normal = unicodedata.normalize("NFKC", text)
        if normal.count("%") > text.count("%"):  # a full-width percent sign may start an escape
            normal = _decoded_again(normal)
        texts += normal.split("/") if normal.count("/") > text.count("/") else [normal]
    return _Segments(variant.kind, texts)


def _without_matrix_parameters(variant: _Segments) -> _Segments:
    if not any(";" in text for text in variant.texts):
        return variant
    return _Segments(variant.kind, without_matrix_parameters(variant.texts))


def _at_semicolons(variant: _Segments) -> _Segments:
    """Remove path parameters (after a semicolon) from each segment, even inside a key or a function call.

    A server that does not parse object keys may remove a path parameter inside a key.
    """
    cut = [text.partition(";")[0] for text in variant.texts]
    if cut == variant.texts or cut == _without_matrix_parameters(variant).texts:
        return variant
    return _Segments(variant.kind | SHADOW, cut)


def _at_end_of_path(variant: _Segments) -> _Segments:
    """Interpret an encoded question mark or number sign as the end of the path.

    The text `#EXT#` in the user principal name of a guest account is a part of the name.
    """
    for at, text in enumerate(variant.texts):
        if ("?" in text or "#" in text) and _GUEST.fullmatch(text) is None:
            return _Segments(variant.kind | SHADOW, [*variant.texts[:at], _QUERY_OR_FRAGMENT.split(text)[0]])
    return variant


def _trimmed(variant: _Segments) -> _Segments:
    """Remove blanks, invisible characters and `()` from segments, because servers ignore them there."""
    texts = [text if _UNTRIMMED.search(text) is None else trimmed(text) for text in variant.texts]
    return _Segments(variant.kind | SHADOW, texts)


def _with_colons_joined(variant: _Segments) -> _Segments:
    """Interpret the path `root/:/a` as the path `root:/a`, in which the colon belongs to `root`."""
    if ":" not in variant.texts:
        return variant
    texts: list[str] = []
    for text in variant.texts:
        if text == ":" and texts and not texts[-1].endswith(":"):
            texts[-1] += text
        else:
            texts.append(text)
    return _Segments(variant.kind | SHADOW, texts)


def _with_whole_parentheses(variant: _Segments) -> _Segments:
    return _Segments(variant.kind, close_parentheses(variant.texts))


def _without_dots(variant: _Segments) -> list[_Segments]:
    """Remove dot segments (RFC 3986 §5.2.4) and empty segments of a path.

    If the order in which dot segments and empty segments are removed changes the result, the function returns
    the results of both orders.

    No object ID contains a dot segment. So a rule that blocks or filters applies to a path interpretation
    with a dot segment, even if the upstream never uses that interpretation.
    """
    merged = _resolved([text for text in variant.texts if text])
    kind = variant.kind
    if kind & UNTAKEN and (".." in variant.texts or "." in variant.texts):
        kind = (kind & ~UNTAKEN) | SHADOW
    if "" not in variant.texts or ".." not in variant.texts:
        return [_Segments(kind, merged)]
    resolved = [text for text in _resolved(variant.texts) if text]
    return [_Segments(kind, merged), _Segments(kind, resolved)]


def _resolved(texts: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for text in texts:
        if text == "..":
            if not kept:
                raise MalformedTarget("dot segments in the path lead above its root")
            kept.pop()
        elif text == "$":  # OData libraries ignore such a segment anywhere in the path
            raise MalformedTarget("a segment of the path is only a dollar sign")
        elif text != ".":
            kept.append(text)
    return kept


def _readings_of(variant: _Segments, known: _Meanings) -> list[Reading]:
    """Return every combination of the interpretations of a path's segments.

    A combination chooses one interpretation for each segment. It contains all names that the resource has
    with these interpretations.

    The path `items/x:/permissions/a.txt` names the file `a.txt`, so no rule for permissions may allow it. No
    wildcard for an ID matches the segments `x:` or `root:`. A rule for permissions may block the path
    `items/x:/permissions/a.txt`.
    """
    forms = []
    loosely: list[Name] = []
    for form in colon_forms(variant.texts):
        texts = form.texts
        meanings = [
            known.of_file(text) if at in form.files else known.of_segment(text, following)
            for at, (text, following) in enumerate(zip_longest(texts, texts[1:]))
        ]
        if prod(len(options) for options in meanings) > MAX_READINGS:
            raise MalformedTarget("the path has too many interpretations")
        # The limit is checked before they are made: each combination has all names of each of its segments.
        if len(texts) * prod(sum(len(each.names) for each in options) for options in meanings) > MAX_PARTS:
            raise MalformedTarget(
                "the interpretations of the path have too many resource names that rules may match"
            )
        if form.openings:
            readings = [_combined(variant.kind, choice) for choice in product(*meanings)]
            loosely += [name for reading in readings for name in reading.names]
            for at in form.openings:
                meanings[at] = tuple(map(by_own_words, meanings[at]))
        forms.append([_combined(variant.kind, choice) for choice in product(*meanings)])
    if len(forms) == 1:
        return forms[0]
    shadow = Reading(variant.kind | SHADOW, tuple(loosely))
    certain = [[reading for reading in readings if reading.kind == variant.kind] for readings in forms]
    if any(len(readings) > 1 for readings in certain):
        return [*(reading for readings in forms for reading in readings), shadow]
    # All forms name the same file, so a rule that matches any of them applies.
    names = tuple(name for readings in certain for reading in readings for name in reading.names)
    others = [reading for readings in forms for reading in readings if reading.kind != variant.kind]
    return [Reading(variant.kind, names), *others, shadow]


def _combined(kind: int, choice: Iterable[Meaning]) -> Reading:
    names: list[tuple[Part, ...]] = [()]
    for meaning in choice:
        kind |= meaning.kind
        if len(names) * len(meaning.names) > MAX_READINGS:
            raise MalformedTarget(
                "the interpretations of the path have too many resource names that rules may match"
            )
        names = [name + parts for name in names for parts in meaning.names]
    return Reading(
        kind,
        tuple(
            Name(
                tuple(part.folded for part in name),
                tuple(part.exact for part in name),
                tuple([at for at, part in enumerate(name) if part.is_key]),
            )
            for name in names
        ),
    )


def _query_decoded(query: str) -> str:
    """Percent-decode a query string a single time. Raise MalformedTarget if the query cannot be decoded."""
    if _BAD_ESCAPE.search(query):
        raise MalformedTarget(
            "a percent sign in the request target is not followed by two hexadecimal digits"
        )
    try:
        decoded = _unescaped(query).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedTarget("the request target is not UTF-8 after percent-decoding") from None
    if "\0" in decoded:
        raise MalformedTarget("the decoded query contains a NUL character")
    return decoded


def _parameter_aliases(query: str) -> dict[str, str]:
    """Return the values of the query's parameter aliases (`@name=…`).

    A parameter alias may stand for an object ID.

    The proxy refuses a parameter alias that occurs twice, because its value is ambiguous.
    """
    aliases: dict[str, str] = {}
    for piece in _PARAMETER_ALIAS.split(query)[1:]:
        name, _, value = piece.partition("&")[0].partition("=")
        name = fully_decoded(name).lower()
        if name in aliases:
            raise MalformedTarget("a parameter alias in the query has two values")
        aliases[name] = fully_decoded(value)
    return aliases


def _options_of(path: str, query: str | None) -> dict[str, tuple[str, ...]]:
    """Return a target's query options. A question mark may be percent-encoded and still begin the query.

    `_at_end_of_path` removes the encoded question mark, and the text after the mark, from the path.
    """
    within = _query_within(path) if "%" in path else ""
    return _parse_options(f"{query or ''}&{within}" if within else query or "")


def _query_within(path: str) -> str:
    for _ in range(MAX_DECODINGS):
        path = _leniently_decoded(path)
        _, mark, query = (path if path.isascii() else unicodedata.normalize("NFKC", path)).partition("?")
        if mark or "%" not in path:
            return query
    return ""


def _parse_options(query: str, *, as_taken: bool = False) -> dict[str, tuple[str, ...]]:
    """Parse a query string into its options.

    With `as_taken`, leave out the option names and values that only a second decoding produces.
    """
    options: dict[str, tuple[str, ...]] = {}
    repeated: dict[str, list[str]] = {}
    for piece in query.split("&"):
        name, mark, value = piece.partition("=")
        if not name and not mark:
            continue
        name = _name_taken(name) if as_taken else option_name(name)
        values = _value_readings(value, as_taken=as_taken) if "%" in value or "+" in value else (value,)
        if name not in options:
            options[name] = values
        elif name.startswith("@"):
            raise MalformedTarget("a parameter alias in the query has two values")
        else:
            repeated.setdefault(name, []).extend(values)
    for name, more in repeated.items():
        options[name] += tuple(more)
    aliases = {name: values for name, values in options.items() if name.startswith("@")}
    if aliases:
        if any(
            fold(name) in aliases for values in aliases.values() for name in _ALIAS.findall(" ".join(values))
        ):
            raise MalformedTarget("a parameter alias in the query refers to another parameter alias")
        room = MAX_WRITTEN_OUT
        readings = max(map(len, aliases.values()))
        for name, values in options.items():
            if name not in aliases:
                written = _written_out(values, aliases, readings, room)
                room -= sum(map(len, written))
                options[name] = (*values, *written)
    return options


def _written_out(
    values: Sequence[str], aliases: Mapping[str, tuple[str, ...]], readings: int, room: int
) -> list[str]:
    """Replace the parameter aliases in the values of query options (OData 4.01 part 2 §5.3).

    If a parameter alias has several possible values, the result contains the option's text once for each of
    these values.

    `room` is the maximum total length of the result, in characters.
    """
    written: list[str] = []
    for value in values:
        pieces: list[str] = _ALIAS.split(value)
        names = pieces[1::2]
        if not names:
            continue
        known = {name: aliases.get(fold(name), (name,)) for name in set(names)}
        longest = {name: max(map(len, each)) for name, each in known.items()}
        room -= readings * (len(value) + sum([longest[name] for name in names]))
        if room < 0:
            raise MalformedTarget("parameter aliases in the query expand to too much text")
        for reading in range(readings):
            chosen = {name: each[min(reading, len(each) - 1)] for name, each in known.items()}
            pieces[1::2] = [chosen[name] for name in names]
            written.append("".join(pieces))
    return written


def _name_taken(name: str) -> str:
    """Return the name of a query option, decoded once.

    If a name only looks like `$top`, the upstream reads the name as a different option.
    """
    name = _name_decoded(name)
    return (name if name.isascii() else unicodedata.normalize("NFC", name)).casefold().removeprefix("$")


def _doubtful_names(query: str) -> frozenset[str]:
    """Return option names that the query has only after blanks and invisible characters are removed."""
    found: set[str] = set()
    for piece in query.split("&"):
        name = piece.partition("=")[0]
        trimmed_name = fold(_name_decoded(name)).strip().lstrip("$")
        if trimmed_name != _name_taken(name):
            found.add(trimmed_name)
    return frozenset(found)


def _name_decoded(name: str) -> str:
    return _leniently_decoded(name.replace("+", " ")) if "%" in name or "+" in name else name


def _value_readings(value: str, *, as_taken: bool = False) -> tuple[str, ...]:
    """Return the interpretations of a query option's value.

    The function interprets the value as OData and as an HTML form (`+` is a space). For both, the result has
    the value that is percent-decoded once. Unless `as_taken` is True, the result also has both values
    percent-decoded repeatedly, at most MAX_DECODINGS times.
    """
    once = _leniently_decoded(value)
    if as_taken:
        return (once, _leniently_decoded(value.replace("+", " "))) if "+" in value else (once,)
    deepest = fully_decoded(once, MAX_DECODINGS - 1)
    if "+" not in value:
        return (once,) if deepest == once else (once, deepest)
    form = _leniently_decoded(value.replace("+", " "))
    return tuple(dict.fromkeys((once, form, deepest, fully_decoded(form, MAX_DECODINGS - 1))))


def fully_decoded(text: str, times: int = MAX_DECODINGS) -> str:
    for _ in range(times):
        if "%" not in text or _ESCAPE.search(text) is None:
            break
        text = _leniently_decoded(text)
    return text


def _leniently_decoded(text: str) -> str:
    return _unescaped(text).decode("utf-8", "replace")


def _unescaped(text: str) -> bytes:
    """Decode percent escapes like `unquote_to_bytes`, but faster if the text has many escapes.

    Text with many percent escapes is decoded as a Python literal, which decodes all escapes in one step.
    """
    if text.count("%") <= _FEW_ESCAPES:
        return unquote_to_bytes(text)
    escaped = _BAD_ESCAPE.sub(r"\\x25", text.replace("\\", r"\x5c")).replace("%", r"\x")
    return unicode_escape_decode(escaped.encode())[0].encode("latin-1")
