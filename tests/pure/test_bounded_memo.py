"""Tests that a memo never exceeds its limits for the number of entries and the length of keys."""

from __future__ import annotations

import pytest

from proxy.policy.bounded_memo import BoundedMemo, WhenFull

_KEYS = (b"a", b"b", b"c", b"d")


@pytest.mark.parametrize(
    ("when_full", "left"),
    [
        (WhenFull.CLEAR, [b"d"]),
        (WhenFull.KEEP, [b"a", b"b", b"c"]),
        (WhenFull.DROP_OLDEST, [b"b", b"c", b"d"]),
    ],
)
def test_a_full_memo_forgets_what_it_was_told_to_forget(when_full: WhenFull, left: list[bytes]) -> None:
    memo: BoundedMemo[bytes, int] = BoundedMemo(3, None, when_full)
    kept = [memo.keep(key, at) for at, key in enumerate(_KEYS)]
    assert list(memo.entries) == left
    assert kept == [True, True, True, when_full is not WhenFull.KEEP]


@pytest.mark.parametrize("when_full", list(WhenFull))
def test_a_full_memo_replaces_the_value_of_a_key_in_its_place(when_full: WhenFull) -> None:
    memo: BoundedMemo[bytes, int] = BoundedMemo(2, None, when_full)
    for key, value in ((b"a", 1), (b"b", 2), (b"a", 3)):
        assert memo.keep(key, value)
    assert list(memo.entries.items()) == [(b"a", 3), (b"b", 2)]


@pytest.mark.parametrize("when_full", list(WhenFull))
def test_a_key_that_is_too_long_is_not_kept_and_takes_no_room(when_full: WhenFull) -> None:
    memo: BoundedMemo[bytes, int] = BoundedMemo(1, 4, when_full)
    assert memo.keep(b"four", 1)
    assert not memo.keep(b"five5", 2)
    assert memo.entries == {b"four": 1}
