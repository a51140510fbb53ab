"""Tests of trace ids in the header `traceparent` (W3C Trace Context)."""

import pytest

from proxy.wire.trace_context import parent_in, trace_id_in, trace_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-ff",
        f" \t00-{TRACE}-{PARENT}-00 ",
        # a later version, whose further fields are ignored
        f"01-{TRACE}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like",
        f"fe-{TRACE}-{PARENT}-01-",
    ],
)
def test_a_valid_header_names_its_trace(value: str) -> None:
    trace = trace_of(value.encode())
    assert trace is not None
    assert trace_id_in(trace) == TRACE
    parent = parent_in(trace)
    assert (parent.trace_id, parent.span_id) == (TRACE, PARENT)
    assert parent.sampled == (f"{PARENT}-00" not in value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        TRACE,
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-01.",
        f"01-{TRACE}-{PARENT}-01more",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT[1:]}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-0x",
        f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01",
        f"00_{TRACE}_{PARENT}_01",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_an_invalid_header_names_none(value: str) -> None:
    assert trace_of(value.encode()) is None


def test_a_record_of_an_earlier_release_has_the_trace_id_alone() -> None:
    assert trace_id_in(TRACE) == TRACE
    parent = parent_in(TRACE)
    assert (parent.trace_id, parent.span_id, parent.sampled) == (TRACE, "", True)
