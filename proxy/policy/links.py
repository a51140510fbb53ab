"""Links that an SDK follows, turned from the upstream to the proxy; every other byte stays.

`@odata.nextLink` and `@odata.deltaLink`, with or without a property before the @, anywhere in a JSON body;
`NextLink` and `DeltaLink` too, since there are SDKs that ignore case. In valid JSON a quote that is followed
by a colon closes a name, so that the end of the name, the colon and the beginning of the link are told by
standing together, and text within a string can't imitate them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2

# Between the name and the link. No service writes more white space; the bound is what a stream may hold back.
_MAX_SPACE: Final = 256
_SPACE: Final = b"[ \\t\\r\\n]{0,%d}" % _MAX_SPACE
_ESCAPED: Final = 6  # bytes of a character spelled as \u0040
_LONGEST_NAME: Final = b"@odata.deltaLink"
_DEFAULT_PORTS: Final = {b"https": b":443", b"http": b":80"}

# Linear in the text, whatever it holds, and where nothing is found ten times as fast as Python's own
# expressions: RE2 leaps from one @ to the next (bench/test_filter.py, test_links_where_none_changes).
_OPTIONS: Final = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1

# The last escape of a name. Only a name with one needs the slower pattern.
_NAME_WITH_ESCAPE: Final = re2.compile(rb'\\u00[^"\\]{2}[^"\\]*"' + _SPACE + b":", _OPTIONS)
_MAY_BEGIN_A_NAME: Final = re.compile(rb"@(?:[o\\]|\Z)|\\(?:u|\Z)")
# How every name without an escape ends. A short body that lacks it is not worth a call of RE2.
_END_OF_NAME: Final = b'Link"'
_SHORT: Final = 4096
# As a number: to look for bytes with `in`, Python raises and drops an exception first, which takes 100 ns.
_BACKSLASH: Final = 0x5C


class _Patterns(NamedTuple):
    plain: Any  # of RE2, for names as every service writes them
    escaped: Any  # of RE2, for names with any letter as an escape
    longest: int  # bytes that a match of either can have, with the character that follows it
    header: re.Pattern[bytes]


class LinkRewriter:
    """Rewrites the links of one upstream to one address of the proxy."""

    def __init__(self, upstream_base: bytes, proxy_base: bytes) -> None:
        self._plain, self._escaped, self._longest, self._header = _patterns(upstream_base)
        self._replacement = rb"\g<1>" + proxy_base.replace(b"\\", rb"\\") + rb"\g<2>"

    def rewrite(self, body: bytes) -> bytes | None:
        """The body with its links turned, or None if there was none to turn."""
        if _BACKSLASH in body and _NAME_WITH_ESCAPE.search(body):
            pattern = self._escaped
        elif len(body) < _SHORT and body.find(_END_OF_NAME) < 0:
            return None
        else:
            pattern = self._plain
        # Nearly always None, which RE2's wrapper finds in fewer steps than it replaces nothing in: 3 % of J3.
        if pattern.search(body) is None:
            return None
        rewritten: bytes = pattern.sub(self._replacement, body)
        return rewritten

    def header(self, value: bytes) -> bytes:
        """The value of Location, Content-Location or Operation-Location."""
        return self._header.sub(self._replacement, value)

    def stream(self) -> LinkStream:
        return LinkStream(self)

    def rewritable(self, text: bytes) -> int:
        """How much of a text that goes on can be rewritten by now: no link begins there and ends beyond."""
        decided = max(0, len(text) - self._longest)
        earliest = max(0, decided - self._longest)
        end = text[earliest:]
        if end.find(b"@o") < 0 and _BACKSLASH not in end and not end.endswith(b"@"):
            return len(text)  # as nearly always: the patterns would take as long as all the rest
        for found in self._escaped.finditer(text, earliest):
            decided = max(decided, found.end())
        undecided = _MAY_BEGIN_A_NAME.search(text, decided)
        return undecided.start() if undecided else len(text)


class LinkStream:
    """The same for a body in chunks. Holds back at most one name and the beginning of its link."""

    def __init__(self, rewriter: LinkRewriter) -> None:
        self._rewriter = rewriter
        self._waiting = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be sent by now."""
        text = self._waiting + chunk if self._waiting else chunk
        end = self._rewriter.rewritable(text)
        if end == len(text):  # as nearly always, and compiled, a slice is a copy
            done, self._waiting = text, b""
        else:
            done, self._waiting = text[:end], text[end:]
        return self._rewriter.rewrite(done) or done

    def finish(self) -> bytes:
        done, self._waiting = self._waiting, b""
        return self._rewriter.rewrite(done) or done


@lru_cache(maxsize=16)
def _patterns(upstream_base: bytes) -> _Patterns:
    origin, path, default_port = _split_base(upstream_base)
    link = _spelled(origin) + (b"(?:" + _spelled(default_port) + b")?" if default_port else b"")
    link += _spelled(path, fold=False)
    boundary = rb"([\"?#/]|\\/|" + b"|".join(_escape(char) for char in (b"/", b"?", b"#")) + b")"
    colon = b'"' + _SPACE + b":" + _SPACE + b'"'
    next_or_delta = b"|".join(
        _spelled_char(first, fold=True) + _spelled(rest, fold=False)
        for first, rest in ((b"n", b"ext"), (b"d", b"elta"))
    )
    name = _spelled(b"@odata.", fold=False) + b"(?:" + next_or_delta + b")" + _spelled(b"Link", fold=False)
    folded_origin = re.escape(origin) + (b"(?:" + default_port + b")?" if default_port else b"")
    return _Patterns(
        plain=re2.compile(rb"(@odata\.(?:[Nn]ext|[Dd]elta)Link" + colon + b")" + link + boundary, _OPTIONS),
        escaped=re2.compile(b"(" + name + colon + b")" + link + boundary, _OPTIONS),
        longest=_ESCAPED * len(_LONGEST_NAME + upstream_base + b":443/") + 2 * _MAX_SPACE + len(b'":"'),
        header=re.compile(rb"(\A)(?i:" + folded_origin + b")" + re.escape(path) + rb"([/?#]|\Z)"),
    )


def _split_base(base: bytes) -> tuple[bytes, bytes, bytes]:
    """Scheme and host, path, and the port that may be written though it need not be (RFC 3986 §6.2.3)."""
    scheme, _, rest = base.partition(b"://")
    host, slash, path = rest.partition(b"/")
    has_port = re.search(rb":[0-9]+\Z", host)
    return scheme + b"://" + host, slash + path, b"" if has_port else _DEFAULT_PORTS.get(scheme.lower(), b"")


def _spelled(text: bytes, *, fold: bool = True) -> bytes:
    """A pattern for the text as it can stand in a JSON string."""
    return b"".join(_spelled_char(bytes([char]), fold=fold) for char in text)


def _spelled_char(char: bytes, *, fold: bool) -> bytes:
    variants = sorted({char.lower(), char.upper()}) if fold else [char]
    spellings = [re.escape(variant) for variant in variants] + [_escape(variant) for variant in variants]
    if char == b"/":
        spellings.append(rb"\\/")
    return b"(?:" + b"|".join(spellings) + b")"


def _escape(char: bytes) -> bytes:
    return rb"\\u00(?i:" + char.hex().encode() + b")"
