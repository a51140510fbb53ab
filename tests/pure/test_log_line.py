"""Tests that the escaped output of a foreign text contains all of the text."""

from __future__ import annotations

import json

import pytest

from proxy.wire.log_line import escaped, one_line


@pytest.mark.parametrize(
    "char",
    [
        "\u200b",
        "\u200d",
        "\ufeff",
        "\xad",
        "\u2060",
        "\u2800",
        "\u3164",
        "\u034f",
        "\u180e",
        "\U000e0041",
        "\u202e",
    ],
)
def test_what_cannot_be_seen_is_escaped_and_means_the_same(char: str) -> None:
    text = f"pay{char}roll"
    shown = escaped(text)
    assert shown.isascii()
    assert json.loads(f'"{shown}"') == text
    assert one_line(text) == shown


@pytest.mark.parametrize("text", ["Отчёты", "手机", "é", "e\u0301", "❤\ufe0f"])
def test_what_can_be_seen_stays(text: str) -> None:
    assert escaped(text) == text
