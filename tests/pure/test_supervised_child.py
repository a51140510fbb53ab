"""Tests of a supervised process's state after its messages, its silence, and the supervisor's actions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from proxy.ipc.counters import ALIVE_AT, CounterPages
from proxy.supervisor.child import (
    HUNG_SECONDS,
    LAST_WORDS_SECONDS,
    MAX_RESTART_DELAY,
    QUICK_DEATH_SECONDS,
    START_SECONDS,
    Child,
    ChildState,
    Remedy,
)

NOW: Final = 1000.0
PID: Final = 4242
A_BIT: Final = 0.1


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            continue


@pytest.fixture
def child(pipe: tuple[int, int]) -> Child:
    child = Child("worker-0", lambda ready: 0, CounterPages(1).workers[0])
    child.has_started(PID, pipe[0], NOW)
    return child


def _be_ready(child: Child, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"1")
    assert child.read_ready()


def _remedy(child: Child, elapsed: float) -> Remedy | None:
    return child.remedy(elapsed, may_be_silent=False)


@pytest.mark.parametrize("retired", [False, True])
def test_a_process_is_ready_when_it_says_so_also_if_it_is_to_end(
    child: Child, pipe: tuple[int, int], retired: bool
) -> None:
    if retired:
        child.draining_since = NOW
    assert not child.read_ready()
    _be_ready(child, pipe)
    assert child.state is ChildState.READY
    assert not child.read_ready()


def test_a_process_that_ends_without_a_word_was_never_ready(child: Child, pipe: tuple[int, int]) -> None:
    os.close(pipe[1])
    assert not child.read_ready()
    assert child.state is ChildState.STARTING


@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.parametrize(("ready", "patience"), [(False, START_SECONDS), (True, HUNG_SECONDS)])
def test_a_silent_process_is_aborted_and_then_killed(
    child: Child, pipe: tuple[int, int], ready: bool, patience: float, retired: bool
) -> None:
    if ready:
        _be_ready(child, pipe)
    if retired:
        child.draining_since = NOW
    assert _remedy(child, patience) is None
    assert _remedy(child, A_BIT) is Remedy.ABORT
    child.state = ChildState.ABORTED
    child.draining_since = NOW  # SIGTERM does not change that
    assert _remedy(child, A_BIT) is None
    assert _remedy(child, LAST_WORDS_SECONDS) is Remedy.KILL
    child.state = ChildState.KILLED
    assert _remedy(child, patience) is None


def test_what_a_process_says_ends_its_silence(child: Child) -> None:
    assert _remedy(child, START_SECONDS) is None
    child.counters.values[ALIVE_AT] = 1
    assert _remedy(child, START_SECONDS) is None
    assert _remedy(child, START_SECONDS) is None
    assert child.remedy(START_SECONDS, may_be_silent=True) is None
    assert _remedy(child, START_SECONDS + A_BIT) is Remedy.ABORT


@pytest.mark.parametrize("state", list(ChildState))
def test_a_process_is_late_if_it_outlives_its_time_and_has_no_sigkill_yet(
    child: Child, state: ChildState
) -> None:
    child.state = state
    assert not child.is_late(NOW + 60, 5.0)
    child.draining_since = NOW
    assert not child.is_late(NOW + 5.0, 5.0)
    # A waiting child has no process that could be late.
    assert child.is_late(NOW + 5.1, 5.0) is (state not in (ChildState.WAITING, ChildState.KILLED))


def test_a_process_that_dies_young_waits_longer_each_time(child: Child, pipe: tuple[int, int]) -> None:
    delays = []
    for _ in range(12):
        child.has_ended()
        assert (child.state, child.pid) == (ChildState.WAITING, 0)
        child.start_again(NOW)
        delays.append(child.start_at - NOW)
        child.has_started(PID, os.dup(pipe[1]), NOW)
    assert delays[0] == 0.0
    assert delays == sorted(delays)
    assert delays[-1] == MAX_RESTART_DELAY
    child.has_ended()
    child.start_again(NOW + QUICK_DEATH_SECONDS)
    assert child.start_at == NOW + QUICK_DEATH_SECONDS


def test_a_start_that_fails_makes_a_retired_child_wait_for_the_next(
    child: Child, pipe: tuple[int, int]
) -> None:
    child.draining_since = NOW
    child.has_ended()
    child.put_off(NOW)
    assert child.state is ChildState.WAITING
    assert not child.is_late(NOW + 60, 5.0)
    assert child.start_at == NOW
    child.has_started(PID, os.dup(pipe[1]), NOW)
    assert not child.is_late(NOW + 60, 5.0)
