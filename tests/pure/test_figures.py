"""Tests of the format of numbers, shares and counts for people."""

from __future__ import annotations

import pytest

from proxy.wire.figures import counted, number, percent


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (29_774, "29,774"), (1_000_000, "1,000,000"), (12.6, "13")]
)
def test_digits_of_a_number_are_grouped_with_commas(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "proxy", "1 proxy"),
        (2, "proxy", "2 proxies"),
        (0, "worker", "0 workers"),
        (1_200, "day", "1,200 days"),
        (3, "batch", "3 batches"),
        (2, "address", "2 addresses"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_an_irregular_plural_is_given() -> None:
    assert counted(2, "person", "people") == "2 people"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0%"),
        (0, 9, "0%"),
        (1, 8, "12.5%"),
        (1, 2, "50%"),
        (1, 100_000, "<0.1%"),
        (99_999, 100_000, ">99.9%"),
        (5, 5, "100%"),
    ],
)
def test_a_share_is_neither_nothing_nor_all_unless_it_is(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text
