"""A ruleset's text as the console shows it."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup

from controlplane.console import ruleset_text
from controlplane.console.ruleset_text import DiffLine, RulePlace, listing, rule_places, text_diff

TEXT = """\
# <b>
version: 1
name: a
rules:
  - id: first
    description: "what: it's for"
    match: {path: [/a]}
    verdict: block
  - match: {path: [/b]}
    id: second
    verdict: allow
"""


def test_rules_are_where_they_begin_whatever_key_comes_first() -> None:
    assert rule_places(TEXT) == (
        RulePlace("first", "block", "what: it's for", 5),
        RulePlace("second", "allow", "", 9),
    )
    assert [line.number for line in listing(TEXT) or () if line.rule_id] == [5, 9]


def test_a_text_that_is_no_yaml_has_lines_and_no_rules() -> None:
    assert rule_places("a: [") == ()
    assert [str(line.html) for line in listing("a: [\n&") or ()] == [
        '<span class="y-key">a</span>: [',
        "&amp;",
    ]


def test_what_is_coloured_is_the_text_and_no_markup_of_its_writer() -> None:
    shown = [str(line.html) for line in listing(TEXT) or ()]
    assert shown[0] == '<span class="y-comment"># &lt;b&gt;</span>'
    assert '<span class="y-string">&#34;what: it&#39;s for&#34;</span>' in shown[5]


def _coloured(text: str) -> list[str]:
    """Lines with a bar where a colour begins or ends."""
    return [Markup(re.sub("<[^>]*>", "|", line.html)).unescape() for line in listing(text) or ()]


@pytest.mark.parametrize(
    ("line", "coloured"),
    [
        ("- id: a#b # c", "- |id|: a#b |# c|"),
        (r'{a: "b\"c", "d": "e"}', r'{|a|: |"b\"c"|, |"d"|: |"e"|}'),
        ("[a, 'b''c','d']", "[a, |'b''c'|,|'d'|]"),
        ("path: /users('ada')/it's # so", "|path|: /users('ada')/it's |# so|"),
        ("1a: b.c: 08:00", "1a: |b.c|: 08:00"),
        (r'"no end, "and\" so on', r'|"no end, "|and\" so on'),
    ],
)
def test_colours_are_of_what_yaml_takes_for_a_comment_a_text_or_a_key(line: str, coloured: str) -> None:
    assert _coloured(line) == [coloured]


@pytest.mark.parametrize("piece", ["a", "a.", '"\\', '\\" ', '"a', "' ''x"])
def test_colouring_takes_linear_time(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset_text, "_MOST_COLOURED", 1_000_000)
    line = piece * (200_000 // len(piece))
    assert [each.replace("|", "") for each in _coloured(line)] == [line]


def test_a_line_of_which_nobody_sees_the_end_has_no_colours() -> None:
    assert [str(line.html) for line in listing("key: " + "a" * 1_000_000 + "\nb: c") or ()] == [
        "key: " + "a" * 1_000_000,
        '<span class="y-key">b</span>: c',
    ]


def test_changed_lines_come_with_a_few_around_them() -> None:
    groups = text_diff("\n".join("abcdefghijklmnop"), "\n".join("aBcdefghijklmnoP"))
    assert groups is not None
    assert [[line.sign + line.text for line in group] for group in groups] == [
        [" a", "-b", "+B", " c", " d", " e"],
        [" m", " n", " o", "-p", "+P"],
    ]
    assert groups[0][1:3] == (DiffLine("-", 2, None, "b"), DiffLine("+", None, 2, "B"))


def test_texts_too_long_to_compare_are_not() -> None:
    assert text_diff("\n" * 5000, "") is None
    assert text_diff("same", "same") == ()
    for end in ("\n", "\r", "\u2028"):
        assert listing(end * 20_000) is None, "whatever ends a line"
