"""Tests of audit events: their ids, their times, and fields with a closed list of values."""

import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import audit_event


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_uuid7_carries_time_version_variant_and_every_random_bit(ms: int, random74: int) -> None:
    text = audit_event.uuid7(ms, random74)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == ms
    assert (parsed.int >> 64 & 0xFFF) << 62 | parsed.int & (2**62 - 1) == random74


def test_ids_of_one_millisecond_order_by_the_worker_s_counter() -> None:
    prefix = 0x2_1234_5678 << 40
    ids = [audit_event.uuid7(1_700_000_000_000, prefix | n) for n in range(0, 5000, 7)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


@given(st.integers(0, 4_102_444_800_000))
def test_rfc3339_has_milliseconds_and_reads_back(ms: int) -> None:
    text = audit_event.rfc3339(ms)
    assert len(text) == 24
    assert text.endswith("Z")
    assert (
        round((datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) == ms
    )


def test_rfc3339_example_of_the_contract() -> None:
    assert audit_event.rfc3339(1_795_235_158_123) == "2026-11-21T04:25:58.123Z"


def test_required_fields_are_fields() -> None:
    assert set(audit_event.REQUIRED_FIELDS) <= set(audit_event.EVENT_FIELDS)
    assert len(set(audit_event.EVENT_FIELDS)) == len(audit_event.EVENT_FIELDS)
