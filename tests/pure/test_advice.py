"""A ruleset that is sound and still overlooks something."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.policy.advice import ruleset_advice
from proxy.policy.ruleset_yaml import parse_ruleset

CONF = Path(__file__).parents[2] / "conf"
FILES = [*CONF.glob("demo/*.yaml"), *CONF.glob("rulesets/*.yaml")]
SAMPLES = [file for file in FILES if not file.name.endswith(".test.yaml")]
RULES = """\
version: 1
name: test
rules:
  - id: hide
    match: {{path: [/v1.0/users]{methods}}}
    verdict: {verdict}
{more}"""
STRIP = "    transforms: {strip_properties: [mobilePhone]}\n"
ALLOW = "    transforms: {allow_properties: [id]}\n"


def advice(more: str, verdict: str = "filter", methods: str = "") -> list[tuple[int, int, str]]:
    text = RULES.format(more=more, verdict=verdict, methods=methods)
    parse_ruleset(text)
    return [(each.line, each.column, each.where) for each in ruleset_advice(text)]


@pytest.mark.parametrize("transforms", [STRIP, ALLOW, STRIP + "    when: response\n"])
@pytest.mark.parametrize("methods", ["", ", methods: [GET]", ", methods: [post, get]", ", methods: [HEAD]"])
def test_a_filter_on_reads_that_is_silent_about_queries_is_named(transforms: str, methods: str) -> None:
    assert advice(transforms, methods=methods) == [(7, 17, "rules[0].transforms")]


@pytest.mark.parametrize("choice", ["true", "false"])
def test_a_filter_that_has_chosen_is_not(choice: str) -> None:
    assert advice(f"{STRIP}    guard_queries: {choice}\n") == []


def test_neither_is_what_hides_nothing_from_a_query() -> None:
    assert advice("", verdict="allow") == []
    assert advice(STRIP, methods=", methods: [POST, PATCH]") == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_have_overlooked_nothing(sample: Path) -> None:
    assert ruleset_advice(sample.read_text("utf-8")) == ()
