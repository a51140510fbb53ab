"""Tests that the proxy reads from a client connection while it has no reason to pause."""

import asyncio
from itertools import permutations

import pytest

from proxy.server.client.read_gate import HANDLER, PIPELINE_FULL, YIELD, ReadGate

REASONS = (HANDLER, PIPELINE_FULL, YIELD)


class Transport(asyncio.ReadTransport):
    """A fake transport that logs when a read gate pauses or resumes reading."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closing = False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return self.closing


def test_a_new_gate_is_open() -> None:
    transport = Transport()
    gate = ReadGate(transport)
    assert not any(gate.is_shut_by(reason) for reason in REASONS)
    assert (transport.calls, repr(gate)) == ([], "<ReadGate open>")


@pytest.mark.parametrize("given", list(permutations(REASONS)))
@pytest.mark.parametrize("ended", list(permutations(REASONS)))
def test_the_first_reason_pauses_and_the_end_of_the_last_resumes(
    given: tuple[int, ...], ended: tuple[int, ...]
) -> None:
    transport = Transport()
    gate = ReadGate(transport)
    for reason in given:
        gate.shut(reason)
        assert transport.calls == ["pause"]
    for reason in ended:
        assert transport.calls == ["pause"]
        assert gate.is_shut_by(reason)
        gate.open(reason)
        assert not gate.is_shut_by(reason)
    assert transport.calls == ["pause", "resume"]


def test_a_reason_that_is_given_twice_ends_at_once() -> None:
    transport = Transport()
    gate = ReadGate(transport)
    gate.shut(HANDLER)
    gate.shut(HANDLER)
    gate.open(HANDLER)
    assert transport.calls == ["pause", "resume"]


def test_the_end_of_a_reason_that_does_not_hold_changes_nothing() -> None:
    transport = Transport()
    gate = ReadGate(transport)
    gate.open(HANDLER)
    assert transport.calls == []
    gate.shut(YIELD)
    gate.open(HANDLER)
    assert transport.calls == ["pause"]


def test_a_transport_that_closes_is_not_resumed() -> None:
    transport = Transport()
    gate = ReadGate(transport)
    gate.shut(YIELD)
    transport.closing = True
    gate.open(YIELD)
    assert transport.calls == ["pause"]
    assert not gate.is_shut_by(YIELD)


def test_the_representation_names_every_reason() -> None:
    gate = ReadGate(Transport())
    gate.shut(YIELD)
    gate.shut(HANDLER)
    assert repr(gate) == "<ReadGate handler, yield>"
