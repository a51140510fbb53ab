"""Tests that each state of a client connection has its own deadline."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.server.client.pace import LINGER_SECONDS, SLOW_READER_SECONDS, Pace
from proxy.server.client.read_gate import HANDLER, PIPELINE_FULL, ReadGate
from proxy.server.client.state import State
from proxy.server.loop.deadlines import NEVER, Deadlines
from proxy.server.loop.iteration import BatchedConnection
from tests.bytes.data_path import LIMITS
from tests.pure.client.test_read_gate import Transport

LIMITS_HERE = replace(LIMITS, head_timeout=15, idle_timeout=75, body_grace=5, min_body_rate=240)
START = 1000.0
BEGINS_WITH = {
    State.IDLE: 75,
    State.HEAD: 15,
    State.BODY: 5,
    State.WAITING: NEVER,
    State.DISCARD: LINGER_SECONDS,
    State.CLOSING: SLOW_READER_SECONDS,
}


class Clocked:
    """A `Pace` object under test, its connection, its read gate, and a clock that the test moves."""

    def __init__(self) -> None:
        loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: START))
        self.clock = Deadlines(loop)
        self.connection = BatchedConnection()
        self.gate = ReadGate(Transport())
        self.pace = Pace(self.connection, self.gate, self.clock, LIMITS_HERE)

    def move(self, seconds: float) -> None:
        self.clock.now += seconds

    @property
    def due_in(self) -> float:
        """Return the seconds from now to the connection's deadline."""
        return self.connection.deadline - self.clock.now


@pytest.fixture
def at() -> Clocked:
    return Clocked()


def test_the_first_request_has_the_time_of_a_head(at: Clocked) -> None:
    assert (at.pace.state, at.due_in) == (State.IDLE, 15)


@pytest.mark.parametrize(("state", "seconds"), BEGINS_WITH.items(), ids=lambda value: str(value))
def test_each_state_begins_with_its_deadline(at: Clocked, state: Any, seconds: Any) -> None:
    at.move(3)
    at.pace.enter(state)
    assert (at.pace.state, at.due_in) == (state, seconds)


def test_a_handler_sets_its_own_deadline_while_its_request_is_whole(at: Clocked) -> None:
    at.pace.enter(State.WAITING)
    at.pace.wait_until(START + 7)
    assert at.due_in == 7
    assert not at.pace.body_is_due()


# Bodies


def test_a_body_that_keeps_its_rate_has_another_second_each_time(at: Clocked) -> None:
    at.pace.enter(State.BODY)
    for _ in range(10):
        at.move(at.due_in)
        at.pace.body_arrived(240)
        assert not at.pace.body_is_slow(at.clock.now)
        assert at.due_in == 1


def test_a_body_is_slow_if_it_misses_its_rate_after_the_grace(at: Clocked) -> None:
    at.pace.enter(State.BODY)
    at.move(5)
    assert not at.pace.body_is_slow(at.clock.now)
    at.move(1)
    at.pace.body_arrived(239)
    assert at.pace.body_is_slow(at.clock.now)


def test_a_body_has_no_deadline_while_the_client_waits_for_100_continue(at: Clocked) -> None:
    at.pace.continue_awaited = True
    at.pace.enter(State.BODY)
    assert at.due_in == NEVER
    at.move(100)
    at.pace.body_continued()
    assert (at.pace.continue_awaited, at.due_in) == (False, 5)


def test_a_body_that_comes_unasked_has_its_deadline_from_then_on(at: Clocked) -> None:
    at.pace.continue_awaited = True
    at.pace.enter(State.BODY)
    at.move(100)
    at.pace.body_arrived(1)
    assert (at.pace.continue_awaited, at.due_in) == (False, 5)


def test_a_body_that_the_handler_pauses_has_the_handlers_deadline_alone(at: Clocked) -> None:
    at.pace.enter(State.BODY)
    at.gate.shut(HANDLER)
    at.pace.body_paused()
    assert (at.due_in, at.pace.body_is_due()) == (NEVER, False)
    at.pace.wait_until(START + 30)
    assert at.due_in == 30
    at.pace.body_continued()
    assert at.due_in == 30
    at.move(20)
    at.gate.open(HANDLER)
    at.pace.body_resumed()
    assert (at.due_in, at.pace.body_is_due()) == (5, True)


def test_a_body_behind_a_full_pipeline_keeps_its_deadline(at: Clocked) -> None:
    at.pace.enter(State.BODY)
    at.gate.shut(PIPELINE_FULL)
    assert at.pace.body_is_due()


def test_a_pause_of_the_body_ends_no_wait_of_the_handler(at: Clocked) -> None:
    at.pace.enter(State.WAITING)
    at.pace.wait_until(START + 7)
    at.pace.body_paused()
    at.pace.body_resumed()
    assert at.due_in == 7


# Slow readers


@pytest.mark.parametrize("state", State)
def test_the_time_of_a_slow_reader_goes_first_in_each_state(at: Clocked, state: State) -> None:
    at.pace.response_stalled(100_000)
    at.move(10)
    at.pace.enter(state)
    rests = state in (
        State.IDLE,
        State.DISCARD,
        State.CLOSING,
    )  # the response is written completely: it has its whole time
    assert at.due_in == SLOW_READER_SECONDS - (0 if rests else 10)
    at.pace.wait_until(START + 20)
    assert at.due_in > 20


@pytest.mark.parametrize(("state", "seconds"), BEGINS_WITH.items(), ids=lambda value: str(value))
def test_once_the_response_is_taken_the_state_has_its_deadline(at: Clocked, state: Any, seconds: Any) -> None:
    at.pace.enter(state)
    at.pace.response_stalled(100_000)
    at.move(10)
    at.pace.response_taken()
    assert at.due_in == (5 if state is State.HEAD else seconds)  # bytes do not extend the head's deadline


def test_a_handlers_wait_outlasts_a_slow_reader(at: Clocked) -> None:
    at.pace.enter(State.WAITING)
    at.pace.wait_until(START + 30)
    at.pace.response_stalled(100_000)
    at.move(10)
    at.pace.response_taken()
    assert at.due_in == 20


def test_a_reader_that_takes_enough_has_its_time_again(at: Clocked) -> None:
    at.pace.response_stalled(100_000)
    least = int(SLOW_READER_SECONDS * 240)
    at.move(60)
    assert not at.pace.reader_is_slow(at.clock.now, 100_000 - least)
    assert at.due_in == SLOW_READER_SECONDS
    at.move(60)
    assert at.pace.reader_is_slow(at.clock.now, 100_000 - 2 * least + 1)


# The end


def test_a_close_of_an_idle_connection_can_be_hurried(at: Clocked) -> None:
    at.pace.enter(State.CLOSING)
    at.pace.hurry()
    assert at.due_in == LINGER_SECONDS


def test_a_slow_reader_is_not_hurried(at: Clocked) -> None:
    at.pace.response_stalled(1)
    at.pace.enter(State.CLOSING)
    at.pace.hurry()
    assert at.due_in == SLOW_READER_SECONDS


def test_a_lost_connection_has_no_deadline_any_more(at: Clocked) -> None:
    at.pace.stop()
    at.pace.enter(State.IDLE)
    at.pace.wait_until(START)
    assert at.due_in == NEVER
