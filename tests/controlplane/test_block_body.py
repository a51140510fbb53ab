"""Tests that blocks of events are read back byte for byte, in this release's form and in earlier forms."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress

import pytest

from controlplane.store.block_body import events_of, packed, unpacked

EVENTS = [
    b'{"id":"01a0c450-6c00-7000-8000-070000000001","time":"2026-09-21T14:13:20.000Z","method":"GET"}',
    b'{ "id" : "two",\n "time":"2026-09-21T14:13:20.000Z", "seq": 1e0, "path": "/\xc3\xa9" }',
    b"null",
]
STORED = (  # two events, as the first release with this form stored them
    "AYuG0qCITjYxNdA1S0aNaFCcQwAospBTjoGlrpFhiKGJlaExMDhgKQclooDWKIDsUbBSUCopz1fS4QLSSIkPqxEKEL8rGKYa6ChAY1pBSf/wSiWF2lgA"
)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_events_come_back_as_they_were_stored(count: int) -> None:
    body = packed(EVENTS[:count])
    assert [bytes(each) for each in events_of(body)] == EVENTS[:count]


def test_a_single_event_takes_half_of_the_room() -> None:
    assert len(packed(EVENTS[:1])) < len(EVENTS[0]) / 2


def test_a_block_that_was_stored_before_is_still_read() -> None:
    assert unpacked(b64decode(STORED)) == b"[" + b",".join(EVENTS[:2]) + b"]"


def test_a_block_of_an_earlier_release_is_read() -> None:
    assert [json.loads(bytes(each))["id"] for each in events_of(b'[{"id":"a"},{"id":"b"}]')] == ["a", "b"]


def test_what_can_not_be_deflated_stays_as_it_is() -> None:
    assert packed([b"1"]) == b"[1]"


def test_a_damaged_block_is_an_error_and_nothing_else() -> None:
    body = packed(EVENTS)
    for size in range(1, len(body)):
        with pytest.raises(ValueError, match="block"):
            unpacked(body[:size])
        flipped = body[:size] + bytes([body[size] ^ 0x55]) + body[size + 1 :]
        with suppress(ValueError):
            events_of(flipped)
