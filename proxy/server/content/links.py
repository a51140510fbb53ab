"""Rewrite links to the upstream, which an SDK follows, into links to the proxy.

The rewriter does not change any byte outside of links to the upstream.

The rewriter changes the values of `@odata.nextLink` and `@odata.deltaLink`, with or without a property before
the @, anywhere in a JSON body. `NextLink` and `DeltaLink` are rewritten too, because some SDKs ignore case.
OData 4.01 writes `@nextLink`, OData 3 writes `odata.nextLink`, and verbose JSON writes `__next`.

The rewriter recognises the address of the upstream in every spelling that leads to the same host. Spellings
of one address can differ in letter case, escapes, percent-encoding, a final dot of the host, the scheme or a
default port.

In valid JSON, a quote followed by a colon ends a member name. The rewriter can therefore search for the end
of a link's name, the colon and the start of the link as one sequence of bytes. A text inside a JSON string
cannot contain an unescaped quote, so it cannot imitate a link's name with its colon.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2

# White space between the name and the link. Services write less; the limit bounds what a stream holds back.
_MAX_SPACE: Final = 256
_SPACE: Final = b"[ \\t\\r\\n]{0,%d}" % _MAX_SPACE
_ESCAPED: Final = 6  # bytes of a character that is spelled as \u0040
_LONGEST_NAME: Final = b"@odata.deltaLink"
_MAX_ZEROS: Final = 3  # zeros before the digits of a port
_DEFAULT_PORTS: Final = b"(?::0{0,%d}(?:443|80))?" % _MAX_ZEROS

# RE2 runs in linear time for any text. If nothing matches, it is ten times as fast as Python's expressions,
# because it jumps from one @ to the next (bench/test_filter.py, test_links_where_none_changes).
_OPTIONS: Final = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1

# The last escape of a name. Only a name with an escape needs the slower pattern.
_NAME_WITH_ESCAPE: Final = re2.compile(rb'\\u00[^"\\]{2}[^"\\]*"' + _SPACE + b":", _OPTIONS)
_MAY_BEGIN_A_NAME: Final = re.compile(
    rb"@(?:odata|next|delta|Next|Delta|[^\"]{0,5}\Z|[^\"]{0,5}\\)"
    rb"|\"(?:odata|__next|[odat_nex]{0,5}\Z|[odat_nex]{0,5}\\)|\\(?:u|\Z)"
)
_BEGINS_A_NAME: Final = re2.compile(rb"@(?:odata\.|[nN]ext|[dD]elta)", _OPTIONS)
_BEGINNINGS: Final = (b"@odata.", b"@next", b"@Next", b"@delta", b"@Delta", b'"odata.', b'"__next')
_LONGEST_BEGINNING: Final = 7  # bytes of the longest name that the pattern above needs, minus one
_OF_ODATA_3: Final = b'"odata.'
_OF_VERBOSE: Final = b'"__next'  # OData 2.0 JSON Format §6.2, and verbose JSON of OData 3
_IS_VERBOSE: Final = re.compile(rb'(?:\xef\xbb\xbf)?[ \t\r\n]*\{[ \t\r\n]*"d"[ \t\r\n]*:')
_MEMBER_D: Final = b'"d"'
_VERBOSE_BEGINS: Final = 64  # bytes in which verbose JSON begins, with white space
_ODATA_3_BEGINS: Final = 512  # bytes in which the first member of such a body begins
_ODATA_3_ENDS: Final = 16384  # bytes that the last member with the longest link takes
_ENDS_WITH_TEXT: Final = (b'"}', b'"}\n', b'"}\r\n', b'"\n}', b'"\r\n}', b'" }', b'"\n}\n', b'"\r\n}\r\n')
# The rest of a link with a relation (RFC 8288 §3). A link without one has no known purpose, so it stays.
_HAS_RELATION: Final = rb"(?=[^>]*>[^<]*;[ \t]*(?i:rel)[ \t]*=)"
# End of every name without an escape. A short body without it is not worth a call of RE2.
_END_OF_NAME: Final = b'Link"'
_SHORT: Final = 4096
# A number, because a search for bytes with `in` raises and drops an exception first, which takes 100 ns.
_BACKSLASH: Final = 0x5C


_NEXT_OR_DELTA: Final = b"(?:[Nn]ext|[Dd]elta)Link"
_COLON: Final = b'"' + _SPACE + b":" + _SPACE + b'"'
# Names as services write them. The first pattern is tried first, because RE2 jumps from one @ to the next in
# it.
_NAME: Final = rb"@(?:odata\.)?" + _NEXT_OR_DELTA + _COLON
_NAME_OF_ODATA_3: Final = rb'"(?:odata\.' + _NEXT_OR_DELTA + b"|__next)" + _COLON
_ANY_NAME: Final = b"(?:" + _NAME + b"|" + _NAME_OF_ODATA_3 + b")"
_HAS_NAME: Final = re2.compile(_NAME, _OPTIONS)
_HAS_ANY_NAME: Final = re2.compile(_ANY_NAME, _OPTIONS)
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#\\]*).*", re.DOTALL)
_MAX_HOST: Final = 300


class _Patterns(NamedTuple):
    plain: Any  # an RE2 pattern for names as every service writes them
    of_odata_3: Any  # an RE2 pattern for these names and those of OData 3
    escaped_names: Any  # an RE2 pattern for names with any letter as an escape, up to their link
    escaped: Any  # an RE2 pattern for names with any letter as an escape, with their link
    longest: int  # bytes that a match can have, with the character that follows it
    header: re.Pattern[bytes]
    in_link_header: re.Pattern[bytes]


class LinkRewriter:
    """Rewriter that replaces the addresses of one upstream in links by one address of the proxy.

    If a link for SDKs leads to an unknown address instead of the upstream, `foreign` receives the host of the
    link.
    """

    def __init__(
        self,
        upstream_base: bytes,
        proxy_base: bytes,
        others: tuple[bytes, ...] = (),
        foreign: Callable[[str], None] | None = None,
    ) -> None:
        patterns = _patterns((upstream_base, *others))
        self._plain, self._of_odata_3 = patterns.plain, patterns.of_odata_3
        self._escaped_names, self._escaped = patterns.escaped_names, patterns.escaped
        self._longest = patterns.longest
        self._header, self._in_link_header = patterns.header, patterns.in_link_header
        self._proxy_base = proxy_base
        self._own_base = proxy_base.lower()
        self._foreign = foreign
        self._replacement = rb"\g<1>" + proxy_base.replace(b"\\", rb"\\") + rb"\g<2>"

    def rewrite(self, body: bytes, *, is_odata_3: bool = False) -> bytes | None:
        """Return the body with rewritten links. Return None if no link in the body changed."""
        if _BACKSLASH in body and _NAME_WITH_ESCAPE.search(body):
            return self._turned(body, self._escaped_names, self._escaped)
        if len(body) < _SHORT and body.find(_END_OF_NAME) < 0:
            may_be_verbose = is_odata_3 or body.find(_MEMBER_D, 0, _VERBOSE_BEGINS) >= 0
            if not may_be_verbose or body.find(_OF_VERBOSE) < 0:
                return None
        if is_odata_3 or may_be_odata_3(body):
            return self._turned(body, _HAS_ANY_NAME, self._of_odata_3)
        return self._turned(body, _HAS_NAME, self._plain)

    def _turned(self, body: bytes, names: Any, links: Any) -> bytes | None:
        """Replace the upstream's base URL by the proxy's base URL in each link of the body.

        `names` finds the name of a link, such as `@odata.nextLink`. `links` matches this name together with
        the URL after it.

        Most response bodies contain no link that must be rewritten. To detect a body without links, one
        search for the names of links is enough.
        """
        found = names.search(body)
        if found is None:
            return None
        pieces: list[bytes] = []
        done = 0
        while found is not None:
            link = links.match(body, found.start())
            if link is not None:
                pieces.append(body[done : link.end(1)])
                pieces.append(self._proxy_base)
                done = link.start(2)
            elif self._foreign is not None:
                self._report_foreign(body[found.end() : found.end() + _MAX_HOST], self._foreign)
            found = names.search(body, found.end())
        if not done:
            return None
        pieces.append(body[done:])
        return b"".join(pieces)

    def _report_foreign(self, link: bytes, report: Callable[[str], None]) -> None:
        """Report the host of an absolute link that does not lead to the proxy."""
        absolute = _ABSOLUTE.match(_without_escapes(link.partition(b'"')[0]).lower())
        if absolute is not None and not absolute[0].startswith(self._own_base):
            report(absolute[1].decode("ascii", "backslashreplace"))

    def header(self, value: bytes) -> bytes:
        """Return the rewritten value of Location, Content-Location, Operation-Location or Link (RFC 8288)."""
        if value.startswith(b"<"):
            return self._in_link_header.sub(self._replacement, value)
        return self._header.sub(self._replacement, value)

    def stream(self) -> LinkStream:
        return LinkStream(self)

    def rewritable(self, text: bytes) -> int:
        """Return how many bytes of an unfinished text can be rewritten without cutting a link."""
        decided = max(0, len(text) - self._longest)
        earliest = max(0, decided - self._longest)
        end = text[earliest:]
        if (
            _BACKSLASH not in end
            and end.find(_OF_ODATA_3) < 0
            and end.find(_OF_VERBOSE) < 0
            and _BEGINS_A_NAME.search(end) is None
        ):
            return len(text) - _begun(end)
        for found in self._escaped.finditer(text, earliest):
            decided = max(decided, found.end())
        undecided = _MAY_BEGIN_A_NAME.search(text, decided)
        return undecided.start() if undecided else len(text)


class LinkStream:
    """Rewriter of links in a body that arrives in chunks.

    The rewriter keeps back at most the name of one link and the beginning of its address.
    """

    def __init__(self, rewriter: LinkRewriter) -> None:
        self._rewriter = rewriter
        self._waiting = b""
        self._is_odata_3 = False  # set when a piece shows it
        self._beginning = b""  # start of the body, up to the bytes that identify verbose JSON

    def feed(self, chunk: bytes) -> bytes:
        """Return the rewritten bytes that can be sent now."""
        text = self._waiting + chunk if self._waiting else chunk
        if len(self._beginning) < _VERBOSE_BEGINS:
            self._beginning += chunk[:_VERBOSE_BEGINS]
            self._is_odata_3 = self._is_odata_3 or _IS_VERBOSE.match(self._beginning) is not None
        self._is_odata_3 = self._is_odata_3 or may_be_odata_3(text)
        end = self._rewriter.rewritable(text)
        if end == len(text):  # the usual case; avoids a slice, which is a copy in compiled code
            done, self._waiting = text, b""
        else:
            done, self._waiting = text[:end], text[end:]
        return self._rewritten(done)

    def finish(self) -> bytes:
        done, self._waiting = self._waiting, b""
        return self._rewritten(done)

    def _rewritten(self, done: bytes) -> bytes:
        return self._rewriter.rewrite(done, is_odata_3=self._is_odata_3) or done


def _begun(text: bytes) -> int:
    """Return the number of bytes at the end of the text that may be the start of a link's name."""
    last = text[-_LONGEST_BEGINNING:]
    for first in (last.rfind(b"@"), last.rfind(b'"')):
        if first >= 0 and any(name.startswith(last[first:]) for name in _BEGINNINGS):
            return len(last) - first
    return 0


def may_be_odata_3(body: bytes) -> bool:
    """Return True if a body is verbose JSON, or has names of OData 3 at its beginning or in its last member.

    `may_be_odata_3` searches only these two places for names of OData 3, not the rest of the body. To search
    the whole body for names of OData 3 would take thirty times as long as the search for names of OData 4.
    """
    if body.find(_OF_ODATA_3, 0, _ODATA_3_BEGINS) >= 0 or _IS_VERBOSE.match(body) is not None:
        return True
    return body.endswith(_ENDS_WITH_TEXT) and body.find(_OF_ODATA_3, max(0, len(body) - _ODATA_3_ENDS)) >= 0


@lru_cache(maxsize=16)
def _patterns(bases: tuple[bytes, ...]) -> _Patterns:
    splits = [_split_base(base) for base in bases]
    link = b"(?:" + b"|".join(_spelled_base(*each) for each in splits) + b")"
    boundary = rb"([\"?#/]|\\/|" + b"|".join(_escape(char) for char in (b"/", b"?", b"#")) + b")"
    next_or_delta = b"|".join(
        _spelled_char(first, fold=True) + _spelled(rest, fold=False)
        for first, rest in ((b"n", b"ext"), (b"d", b"elta"))
    )
    odata = _spelled(b"odata.", fold=False)
    name = b"(?:" + _spelled(b"@", fold=False) + b"(?:" + odata + b')?|"' + odata + b")"
    name += b"(?:" + next_or_delta + b")" + _spelled(b"Link", fold=False)
    name = b"(?:" + name + b'|"' + _spelled(b"__next", fold=False) + b")"
    in_header = b"(?:" + b"|".join(_in_header(authority, path) for _, authority, path in splits) + b")"
    longest_base = max(map(len, bases)) + len(b"https.:443/") + _MAX_ZEROS
    return _Patterns(
        plain=re2.compile(b"(" + _NAME + b")" + link + boundary, _OPTIONS),
        of_odata_3=re2.compile(b"(" + _ANY_NAME + b")" + link + boundary, _OPTIONS),
        escaped_names=re2.compile(name + _COLON, _OPTIONS),
        escaped=re2.compile(b"(" + name + _COLON + b")" + link + boundary, _OPTIONS),
        longest=_ESCAPED * (len(_LONGEST_NAME) + longest_base) + 2 * _MAX_SPACE + len(b'":"'),
        header=re.compile(rb"(\A)(?:(?i:https?):)?//" + in_header + rb"([/?#]|\Z)"),
        in_link_header=re.compile(rb"(<)(?:(?i:https?):)?//" + in_header + rb"([/?#>])" + _HAS_RELATION),
    )


def _without_escapes(text: bytes) -> bytes:
    plain = text.replace(b"\\/", b"/")
    return re.sub(rb"\\u00([0-7][0-9A-Fa-f])", lambda found: bytes([int(found[1], 16)]), plain)


def _split_base(base: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the scheme, the host with a non-default port, and the path of a base address."""
    scheme, _, rest = base.partition(b"://")
    host, slash, path = rest.partition(b"/")
    return scheme, host, slash + path


def _spelled_base(scheme: bytes, authority: bytes, path: bytes) -> bytes:
    """Return a pattern that matches a base address in a JSON string, in every spelling of its host."""
    either = _spelled(b"http") + b"(?:" + _spelled(b"s") + b")?" + _spelled(b"://")
    return either + _spelled_authority(authority) + _spelled(path, fold=False)


def _in_header(authority: bytes, path: bytes) -> bytes:
    return _spelled_authority(authority) + re.escape(path)


def _spelled_authority(authority: bytes) -> bytes:
    """Return a pattern for every spelling of a host and its port.

    A dot at the end of the host names the DNS root (RFC 3986 §3.2.2). An address may contain the default port
    of its scheme, or omit this port.
    """
    found = re.search(rb":([0-9]+)\Z", authority)
    host = authority[: found.start()] if found else authority
    port = _spelled(b":") + b"0{0,%d}" % _MAX_ZEROS + _spelled(found[1]) if found else _DEFAULT_PORTS
    spelled = b"".join(_spelled_char(bytes([char]), fold=True, percent=True) for char in host)
    if b"xn--" in host:
        spelled = b"(?:" + spelled + b"|" + _spelled_unicode(host) + b")"
    return spelled + b"(?:" + _spelled_char(b".", fold=False, percent=True) + b")?" + port


def _spelled_unicode(host: bytes) -> bytes:
    """Return a pattern for the letters of a Punycode host, as they are or as JSON escapes (RFC 5891 §5)."""
    try:
        text = host.decode("idna")
    except UnicodeError:
        return re.escape(host)
    return b"".join(
        _spelled_char(each.encode(), fold=True)
        if each.isascii()
        else b"(?:" + re.escape(each.encode()) + rb"|\\u(?i:%04x))" % ord(each)
        for each in text
    )


def _spelled(text: bytes, *, fold: bool = True) -> bytes:
    """Return a pattern that matches every spelling of `text` in a JSON string."""
    return b"".join(_spelled_char(bytes([char]), fold=fold) for char in text)


def _spelled_char(char: bytes, *, fold: bool, percent: bool = False) -> bytes:
    variants = sorted({char.lower(), char.upper()}) if fold else [char]
    spellings = [re.escape(variant) for variant in variants] + [_escape(variant) for variant in variants]
    if char == b"/":
        spellings.append(rb"\\/")
    if percent:
        spellings += [rb"%(?i:" + variant.hex().encode() + b")" for variant in variants]
    return b"(?:" + b"|".join(spellings) + b")"


def _escape(char: bytes) -> bytes:
    return rb"\\u00(?i:" + char.hex().encode() + b")"
