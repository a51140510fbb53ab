"""Read the entries of a HAR file up to the first damaged entry.

The functions accept the forms of HAR files that different programs write.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from proxy.config.given_text import other_encoding, without_mark

# Bytes after decompression; a limit, because a small file could otherwise fill the memory
MAX_BYTES: Final = 1 << 30

_GZIP: Final = b"\x1f\x8b"
_OTHER_KINDS: Final = {
    b"PK\x03\x04": "a ZIP archive: unpack it and use the .har file from it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it first",
    b"BZh": "compressed with bzip2: decompress it first",
    b"\xfd7zXZ": "compressed with xz: decompress it first",
    b"%PDF": "a PDF document: export the traffic as HAR",
}
_NO_JSON: Final = "not a HAR file, which is JSON: "
_BETWEEN: Final = re.compile(r"[\s,\x00]*")  # characters allowed between two entries, also in JSON Lines
_ENTRIES: Final = re.compile(r'"entries"\s*:\s*\[')
_WHOLE_NUMBER_DIGITS: Final = 19  # a longer number becomes a float, because its last digits are not used


class InvalidHar(ValueError):
    """Error because a file is not a HAR file, or has no usable request.

    The message gives the place and reason of the fault, and quotes no content of the file.
    """


class HarText(NamedTuple):
    entries: list[object]  # JSON values, not validated
    broken_off: str = ""  # reason why nothing can be read after the last entry


def read_entries(data: bytes) -> HarText:
    """Return all entries (requests with responses) of the HAR file.

    Raise InvalidHar if the file has no entries.

    Bytes that are not UTF-8 become lone surrogates in the entries.
    """
    text = _text(data)
    values, problem = _values(text)
    if problem and not values:
        return _salvaged(text, problem)
    entries = [entry for value in values for entry in _entries_of(value)]
    if not entries and not any(map(_is_har, values)):
        raise InvalidHar("not a HAR file: it has no log.entries; export the traffic as HAR")
    return HarText(entries, problem)


def _text(data: bytes) -> str:
    if data.startswith(_GZIP):
        data = _decompressed(data)
    for start, what in _OTHER_KINDS.items():
        if data.startswith(start):
            raise InvalidHar(f"not a HAR file but {what}")
    if encoding := other_encoding(data):
        raise InvalidHar(f"{_NO_JSON}the file is {encoding} text: save it as UTF-8")
    text = without_mark(data).decode("utf-8", "surrogateescape").strip("\x00 \t\r\n")
    if not text:
        raise InvalidHar(f"{_NO_JSON}the file is empty; export the traffic again")
    return text


def _decompressed(data: bytes) -> bytes:
    """Decompress a gzip file, as far as possible if the file was truncated.

    Raise InvalidHar if the gzip file is damaged.
    """
    gzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = gzip.decompress(data, MAX_BYTES)
    except zlib.error:
        raise InvalidHar(
            "the gzip compression of the file is damaged: export the traffic as HAR again"
        ) from None
    if gzip.unconsumed_tail:
        raise InvalidHar(
            f"the file has more than {MAX_BYTES >> 20} MiB when decompressed: export fewer requests"
        )
    return found


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _WHOLE_NUMBER_DIGITS else float(digits)


# Recorders write control characters in strings, and NaN for a time that they did not measure.
_DECODER: Final = json.JSONDecoder(strict=False, parse_int=_number, parse_constant=lambda name: None)


def _next_value(text: str, at: int) -> tuple[object, int]:
    """Return the JSON value that begins at the position `at`, and the position after the value.

    Raise InvalidHar, with line and column, if the text is not valid JSON.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") or error.pos >= len(text):
            raise InvalidHar(f"the file was truncated: it ends after {len(text):,} characters") from None
        where = f"line {error.lineno} column {error.colno}"
        raise InvalidHar(
            f"the file's JSON is invalid at {where}: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from None
    except RecursionError:
        raise InvalidHar("the JSON of the file is nested too deeply") from None


def _values(text: str) -> tuple[list[object], str]:
    """Return the JSON values in a file's text: one value, or one value for each line."""
    found: list[object] = []
    at = 0
    while at < len(text):
        try:
            value, at = _next_value(text, at)
        except InvalidHar as error:
            return found, str(error)
        found.append(value)
        at = _end_of_gap(text, at)
    return found, ""


def _end_of_gap(text: str, at: int) -> int:
    gap = _BETWEEN.match(text, at)
    return at if gap is None else gap.end()


def _salvaged(text: str, problem: str) -> HarText:
    """Return the complete entries before the damaged part of a HAR file.

    Raise InvalidHar if the file has no list of entries.
    """
    begin = _ENTRIES.search(text)
    if begin is None:
        raise InvalidHar(f"{_NO_JSON}{problem}")
    found: list[object] = []
    at = _end_of_gap(text, begin.end())
    while at < len(text) and text[at] != "]":
        try:
            value, at = _next_value(text, at)
        except InvalidHar as error:
            return HarText(found, str(error))
        found.append(value)
        at = _end_of_gap(text, at)
    return HarText(found, "" if at < len(text) else problem)


def _is_har(value: object) -> bool:
    """Return whether the JSON value has a list of HAR entries, or is a HAR entry."""
    if isinstance(value, list):
        return any(map(_is_har, value))
    if not isinstance(value, dict):
        return False
    log = value.get("log", value)
    return isinstance(log, dict) and (isinstance(log.get("entries"), list) or "request" in value)


def _entries_of(value: object) -> Iterator[object]:
    """Yield the entries of a HAR object: from the object itself, its `log`, a single entry or a list."""
    if isinstance(value, list):
        for each in value:
            yield from _entries_of(each)
    elif isinstance(value, dict):
        log = value.get("log", value)
        entries = log.get("entries") if isinstance(log, dict) else None
        if isinstance(entries, list):
            yield from entries
        elif "request" in value:
            yield value
