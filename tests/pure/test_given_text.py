"""Tests of the decoder for files of people: it skips a byte order mark, and its error names UTF-16."""

from __future__ import annotations

import pytest

from proxy.config.given_text import NotUtf8, decoded, first_line, secret_of, surroundings, text_of

MINTED = "gwh_" + "Ab1-_" * 8 + "xyz"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"a", "a"),
        (b"\xef\xbb\xbf", ""),
        (b"\xef\xbb\xbfname = 1\n", "name = 1\n"),
        ("\ufeff\ufeffx".encode(), "\ufeffx"),  # the second is a character, not a mark
        ("blå".encode(), "blå"),
    ],
)
def test_utf8_with_and_without_a_mark_is_one_text(data: bytes, text: str) -> None:
    assert decoded(data) == text


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-32-le", "UTF-32"),
        ("utf-32-be", "UTF-32"),
    ],
)
def test_other_encodings_are_refused_by_name(codec: str, name: str) -> None:
    with pytest.raises(NotUtf8, match=f"the text is {name}: save it as UTF-8"):
        decoded("[Proxy]\n".encode(codec))


@pytest.mark.parametrize(("data", "place"), [(b"abc\xff", 4), (b"\xef\xbb\xbfab\xff", 6)])
def test_what_is_not_utf8_is_refused_with_its_place(data: bytes, place: int) -> None:
    with pytest.raises(NotUtf8, match=rf"not UTF-8 \(byte {place}\)"):
        decoded(data)


def test_line_ends_of_any_editor_are_one() -> None:
    assert text_of(b"\xef\xbb\xbfa\r\nb\rc\n") == "a\nb\nc\n"


def test_a_secret_loses_its_mark_and_its_line_end_and_nothing_else() -> None:
    assert secret_of("\ufeff right long \r\n") == " right long "
    assert first_line(b"\xef\xbb\xbfa right long password\r\nand a note\n") == "a right long password"


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (" ", "", "spaces or line ends"),
        ("", "\u00a0", "spaces or line ends"),
        ("\t", "\n", "spaces or line ends"),
        ('"', '"', "quotes"),
        ("'", "'", "quotes"),
        ("“", "”", "quotes"),
        ("\u200b", "", "invisible characters"),
        ("\ufeff", "", "invisible characters"),
        ('" ', '"', "quotes and spaces or line ends"),
    ],
)
@pytest.mark.parametrize("prefix", ["gwh", "gwk", "gws"])
def test_what_stands_around_a_minted_secret_is_named(before: str, after: str, kind: str, prefix: str) -> None:
    secret = prefix + MINTED[3:]
    assert surroundings(f"{before}{secret}{after}") == kind
    assert surroundings(secret) == ""


@pytest.mark.parametrize("secret", ["' my own '", "", " ", '"', "gwh_", "x gwh_aaaaaaaaaaaaa"])
def test_another_products_secret_may_hold_anything(secret: str) -> None:
    assert surroundings(secret) == ""
