"""Pure functions for the trace of a request: its `traceparent` header (W3C Trace Context, level 1)."""

import re
from dataclasses import dataclass
from typing import Final

_VERSION_0: Final = b"00"
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})"
    rb"(?P<more>-.*)?"
)
_TRACE_ID: Final = 32  # hexadecimal digits
_SAMPLED: Final = 0x01  # the only flag of level 1 (§3.2.2.5)


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The parts of a trace text: a text that the function `trace_of` returned."""

    trace_id: str
    span_id: str  # span of the caller; empty in texts of an older release, which stored only the trace id
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)


def trace_of(traceparent: bytes) -> str | None:
    """Return the flags (`trace-span-flags`) of a `traceparent` header, or None if the header is invalid.

    A later version of the header may append fields after its flags (§3.2.4); version 00 has no such fields.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip(b" \t"))
    if found is None or (found["more"] is not None and found["version"] == _VERSION_0):
        return None
    return found["trace"].decode("ascii")


def trace_id_in(trace: str) -> str:
    """Return the trace ID in a trace text.

    The trace text either comes from `trace_of` or is only a trace ID.
    """
    return trace[:_TRACE_ID]


def parent_in(trace: str) -> TraceParent:
    """Split a trace text, which `trace_of` returned, into its parts.

    A text that is only a trace ID counts as sampled, because its flags are unknown.
    """
    trace_id, _, rest = trace.partition("-")
    span_id, _, flags = rest.partition("-")
    return TraceParent(trace_id, span_id, int(flags, 16) if flags else _SAMPLED)
