"""Pure: the trace that a request belongs to, by its `traceparent` header (W3C Trace Context, level 1)."""

import re
from typing import Final

_VERSION_0: Final = b"00"
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    rb"(?P<more>-.*)?"
)


def trace_id_of(traceparent: bytes) -> str | None:
    """Return the trace id of a header's value, or None if the value is invalid (§3.2.2).

    A later version may append fields after its flags (§3.2.4); version 00 has none.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip(b" \t"))
    if found is None or (found["more"] is not None and found["version"] == _VERSION_0):
        return None
    return found["trace"].decode("ascii")
