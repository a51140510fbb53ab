"""Tests of the page on which the console shows a ruleset's text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from controlplane.console import ruleset_text
from controlplane.console.line_diff import pieces, same_lines
from controlplane.console.ruleset_text import DiffLine, RulePlace, as_it_is, listing, rule_places, text_diff

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
    assert [line.number for line in listing(TEXT, rule_places(TEXT)) or () if line.rule_id] == [5, 9]


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
    """Return the coloured lines of a ruleset's text page, with a bar where a colour starts or ends."""
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


def test_nothing_in_a_text_turns_its_lines_round() -> None:
    text = 'name: a\t# \u202e\nrules:\n- {id: r, description: "b\u2066"}'
    (first, _, rule) = listing(text) or ()
    assert first.html == '<span class="y-key">name</span>: a\t<span class="y-comment"># \\u202e</span>'
    assert "\\u2066" in rule.html
    assert [place.description for place in rule_places(text)] == ["b\\u2066"]
    assert as_it_is("a\t\n\u202e\r") == "a\t\n\\u202e\r"
    ((old, new),) = text_diff("a\u202e", "b\u202e") or ()
    assert (old.text, new.text) == ("a\\u202e", "b\\u202e")


def test_changed_lines_come_with_a_few_around_them() -> None:
    groups = text_diff("\n".join("abcdefghijklmnop"), "\n".join("aBcdefghijklmnoP"))
    assert groups is not None
    assert [[line.sign + line.text for line in group] for group in groups] == [
        [" a", "-b", "+B", " c", " d", " e"],
        [" m", " n", " o", "-p", "+P"],
    ]
    assert groups[0][1:3] == (DiffLine("-", 2, None, "b"), DiffLine("+", None, 2, "B"))


def _marked(old: str, new: str) -> list[str]:
    """Return the changed lines of two texts, with the parts that differ in brackets."""
    return [
        "".join(f"[{each.text}]" if each.changed else each.text for each in line.pieces) or line.text
        for group in text_diff(old, new) or ()
        for line in group
    ]


@pytest.mark.parametrize(
    ("old", "new", "marked"),
    [
        ("path: [/a, /a/manager, /b]", "path: [/a, /b]", ["path: [/a, /[a/manager, /]b]", "path: [/a, /b]"]),
        ("verdict: allow", "verdict: block", ["verdict: [allow]", "verdict: [block]"]),
        (
            "in: [ada, bo, cy, d]",
            "in: [eve, bo, cyd, d]",
            ["in: [[ada], bo, [cy], d]", "in: [[eve], bo, [cyd], d]"],
        ),
        ("all: of it is new", "nothing alike", ["all: of it is new", "nothing alike"]),
        ("a: 1\nlong: [x, y]", "long: [x, y, z]", ["a: 1", "long: [x, y]", "long: [x, y[, z]]"]),
    ],
)
def test_what_differs_within_a_line_is_marked(old: str, new: str, marked: list[str]) -> None:
    assert _marked(old, new) == marked


@given(st.text("ab,/ ", max_size=40), st.text("ab,/ ", max_size=40))
def test_pieces_are_the_whole_line_and_what_is_not_marked_is_in_both(old: str, new: str) -> None:
    one, other = pieces(old, new)
    assert ("".join(each.text for each in one), "".join(each.text for each in other)) == (old, new)
    kept = ["".join(each.text for each in line if not each.changed) for line in (one, other)]
    assert kept[0] == kept[1]


def test_a_long_line_is_marked_in_linear_time() -> None:
    (removed, added) = pieces("x, " * 100_000, "y; " * 100_000)
    assert [len(each) for each in (removed, added)] == [2, 2]


def test_a_change_of_every_rule_is_told_rule_by_rule() -> None:
    rule = "  - id: rule-{0}\n    match:\n      path: [/v1.0/{0}]\n    verdict: allow"
    old = "\n".join(map(rule.format, range(1000)))
    (group,) = text_diff(old, old.replace("v1.0", "beta")) or ()
    assert [line.sign for line in group[:6]] == [" ", " ", "-", "+", " ", " "]
    assert sum(line.sign == "+" for line in group) == 1000


_TEXTS = st.lists(st.sampled_from("abcdefgh"), max_size=30)


@given(_TEXTS, _TEXTS)
def test_lines_in_common_are_the_same_in_both_and_nothing_is_told_twice(
    old: list[str], new: list[str]
) -> None:
    runs = same_lines(old, new) or []
    for run in runs:
        assert old[run.a : run.a + run.size] == new[run.b : run.b + run.size]
    for run, later in pairwise(runs):
        assert run.size
        assert run.a + run.size <= later.a
        assert run.b + run.size <= later.b
        assert (run.a + run.size, run.b + run.size) != (later.a, later.b) or not later.size
    assert runs[-1] == (len(old), len(new), 0)


@given(_TEXTS, st.integers(0, 30))
def test_what_is_taken_out_is_all_that_differs(old: list[str], at: int) -> None:
    new = old[:at] + old[at + 1 :]
    assert sum(run.size for run in same_lines(old, new) or []) == len(new)


def test_texts_that_would_take_long_to_compare_are_not() -> None:
    assert text_diff("x\n" * 2000, "x\ny\n" * 1000) is None


def test_texts_too_long_to_compare_are_not() -> None:
    assert text_diff("\n" * 5000, "") is None
    assert text_diff("same", "same") == ()
    for end in ("\n", "\r", "\u2028"):
        assert listing(end * 20_000) is None, "whatever ends a line"
