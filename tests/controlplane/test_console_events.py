"""Tests of console texts for audit events: filter terms, shell commands and rule lines."""

from __future__ import annotations

import subprocess
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.console import terms
from controlplane.console.curl import curl_of
from controlplane.console.event_rows import event_row
from controlplane.console.events import is_envelope
from controlplane.operations.rule_text import rule_lines
from controlplane.search.query import FIELDS, Between, Exactly, FieldTerm, parse_filter

TEXTS = sorted(name for name, field in FIELDS.items() if field.kind in ("text", "texts"))


@given(st.sampled_from(TEXTS), st.text(max_size=30), st.booleans())
def test_a_term_holds_for_its_very_value_or_there_is_none(field: str, value: str, negated: bool) -> None:
    made = terms.term(field, value, negated=negated)
    if made is not None:
        (parsed,) = parse_filter(made).terms
        assert parsed == FieldTerm(FIELDS[field], (Exactly(value),), negated)
    else:
        assert any(not char.isprintable() for char in value)


def test_a_number_is_asked_for_as_one() -> None:
    assert terms.term("status", "403") == "status:403"
    (parsed,) = parse_filter(terms.term("duration", "12.5") or "").terms
    assert parsed == FieldTerm(FIELDS["duration"], (Between(12.5, 12.5),))


@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.text(max_size=8), st.booleans()), max_size=5))
def test_what_is_put_in_is_taken_out_again(given_terms: list[tuple[str, str, bool]]) -> None:
    made = [terms.term(field, value, negated=negated) for field, value, negated in given_terms]
    text = " ".join(each for each in made if each is not None)
    before = parse_filter(text)
    added = terms.with_term(text, "status:403")
    assert parse_filter(added).terms == (*before.terms, *parse_filter("status:403").terms)
    assert terms.has(added, "status:403")
    assert parse_filter(terms.without_term(added, "status:403")) == before


def test_a_term_takes_the_place_of_its_opposite() -> None:
    assert terms.with_term('a -verdict:block "x verdict:block"', "verdict:block") == (
        'a "x verdict:block" verdict:block'
    )
    assert terms.with_term("verdict:block", "-verdict:block") == "-verdict:block"


# The shell command


def event(**members: Any) -> dict[str, Any]:
    return {"method": "GET", "path": "/v1.0/users", "query": None, **members}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"method": "POST", "path": "/v1.0/$batch"}, True),
        ({"method": "POST", "path": "/v1.0/%24BATCH"}, True),
        ({"method": "POST", "path": "/v1.0/$batch", "ruleId": "batches"}, False),
        ({"method": "POST", "path": "/v1.0/$batch", "verdict": "block"}, False),
        ({"path": "/v1.0/$batch"}, False),
        ({"method": "POST", "path": "/v1.0/%00"}, False),
    ],
)
def test_an_outer_batch_request_that_no_rule_decided_is_told_apart(
    members: dict[str, Any], said: bool
) -> None:
    assert is_envelope(event(**{"verdict": "allow", "ruleId": "default", **members})) is said


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1.0/users", "$top=5&$filter=startswith(mobilePhone,'+47')"),
        ("/v1.0/users('it''s')", None),
        ("/a b", 'x="$(touch /tmp/x)"`id`;|&<>\\'),
        ("/../..//{a,b}[1-9]", "a=~&b=!x"),
        ("/\x1b[31mred\x07\r\n", "é=…"),
        ("/-o/etc/passwd", "@file"),
        ("/%2e%2e/%00", "a=%20"),
    ],
)
def test_a_shell_gives_curl_the_very_target_and_nothing_else(path: str, query: str | None) -> None:
    command = curl_of(event(path=path, query=query, method="GET;id"))
    assert command is not None
    assert command.isascii()
    assert command.isprintable()
    words = subprocess.run(
        ["/bin/sh", "-c", f"curl() {{ printf '%s\\0' \"$@\"; }}\n{command}"],
        env={"PROXY": "https://proxy.example", "TOKEN": "t o'ken"},
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")[:-1]
    *options, url = [word.decode() for word in words]
    assert options == [
        "--globoff", "--path-as-is", "--request", "GET;id",
        "--header", "Authorization: Bearer t o'ken", "--url",
    ]  # fmt: skip
    target = path if query is None else f"{path}?{query}"
    plain = "".join(char if "!" <= char <= "~" else _percent(char) for char in target)
    assert url == f"https://proxy.example{plain}"


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


@pytest.mark.parametrize("path", ["*", "", "http://else.example/", "/long…[cut]"])
def test_what_is_not_known_whole_is_no_command(path: str) -> None:
    assert curl_of(event(path=path)) is None


def test_a_body_that_is_not_stored_is_named() -> None:
    assert "--data @body.json" in (curl_of(event(method="POST")) or "")
    assert "--head" in (curl_of(event(method="HEAD")) or "")


# A list line


def test_nothing_of_an_event_disturbs_a_list() -> None:
    row = event_row(
        orjson.dumps(
            {
                "id": "a/b?c#d",
                "orgId": "o",
                "path": "/\x1b[31m\u202etxt\n",
                "ruleId": "r\u2028",
                "verdict": "x onload=",
                "status": True,
                "durationMs": "fast",
                "method": ["GET"],
            }
        ),
        {"o": "a/ org"},
    )
    assert row.href == "/events/a%2F%20org/a%2Fb%3Fc%23d"
    assert row.path == "/\\u001b[31m\\u202etxt\\u000a"
    assert (row.verdict, row.status, row.duration, row.method) == ("", "true", "", '["GET"]')


# A rule line


RULES = """\
version: 1
name: hr
rules:
  # the first
  - id: one
    match: {path: [/a]}
    verdict: allow

  # about the second
  - {id: two, match: {path: [/b]}, verdict: block}
  - match: {path: [/c]}
    verdict: block
    id: three
"""


@pytest.mark.parametrize(("rule", "lines"), [("one", (5, 7)), ("two", (10, 10)), ("three", (11, 13))])
def test_the_lines_of_a_rule(rule: str, lines: tuple[int, int]) -> None:
    assert rule_lines(RULES, rule) == lines


@pytest.mark.parametrize("text", ["", "rules: 5", "rules: [5]", "{", "- id: one", RULES])
def test_a_rule_that_is_not_there_has_no_lines(text: str) -> None:
    assert rule_lines(text, "four") is None
