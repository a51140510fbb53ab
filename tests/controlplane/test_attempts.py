"""Failed sign-ins are counted by name and by network, in a window that slides."""

from __future__ import annotations

import pytest

from controlplane.admin import attempts
from controlplane.admin.attempts import Attempts
from tests.controlplane.plane import FakeClock


def test_a_success_makes_up_for_what_one_failed_before(clock: FakeClock) -> None:
    counted = Attempts(clock)
    for _ in range(20):
        for _ in range(4):
            assert counted.begin("ada", "192.0.2.1") == 0
        counted.forgive("ada", "192.0.2.1")
        clock.advance(seconds=300)


def test_the_wait_is_true_to_the_second(clock: FakeClock) -> None:
    counted = Attempts(clock)
    for _ in range(5):
        assert counted.begin("ada", "192.0.2.1") == 0
        clock.advance(seconds=10)
    assert counted.begin("ADA", "192.0.2.1") == 850
    clock.advance(seconds=849)
    assert counted.begin("ada", "192.0.2.1") == 1
    clock.advance(seconds=1)
    assert counted.begin("ada", "192.0.2.1") == 0


def test_half_an_ipv6_address_is_one_network(clock: FakeClock) -> None:
    counted = Attempts(clock)
    waits = [counted.begin("ada", f"2001:db8::{number:x}") for number in range(6)]
    assert [wait > 0 for wait in waits] == [False] * 5 + [True]
    assert counted.begin("ada", "2001:db8:0:1::1") == 0


def test_a_name_is_not_guessed_from_everywhere(clock: FakeClock) -> None:
    counted = Attempts(clock)
    waits = [counted.begin("ada", f"192.0.2.{number}") for number in range(51)]
    assert [wait > 0 for wait in waits] == [False] * 50 + [True]
    assert counted.begin("alan", "192.0.2.200") == 0


def test_strangers_fill_no_memory(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST_REMEMBERED", 30)
    counted = Attempts(clock)
    for number in range(1000):
        counted.begin(f"name-{number}", f"198.51.100.{number}")
    assert len(counted._failed.entries) <= 30


def test_who_must_wait_pushes_nothing_out_of_memory_and_fills_none(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_MOST_REMEMBERED", 60)
    counted = Attempts(clock)
    for _ in range(5):
        assert counted.begin("ada", "192.0.2.1") == 0
    waits = [counted.begin(f"{number}-{chr(0x390) * 16_000}", "192.0.2.2") for number in range(500)]
    assert [wait > 0 for wait in waits] == [False] * 20 + [True] * 480
    assert counted.begin("ada", "192.0.2.1") > 0
    assert len(repr(counted._failed.entries)) < 60 * 2000
