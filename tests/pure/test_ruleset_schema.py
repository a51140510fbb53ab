"""Tests that the JSON Schema for editors accepts every ruleset, and marks texts of a wrong form."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pytest
from hypothesis import given

from proxy.policy import yaml_document
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset, ruleset_json_schema
from tests.pure.json_schema import is_valid
from tests.pure.test_advice import SAMPLES
from tests.pure.test_explain import rulesets

SCHEMA: Final = ruleset_json_schema()
GOOD: Final = """\
version: 1
name: test
rules:
  - id: r
    match: {methods: [GET], path: ["/a/{id}"]}
    conditions: [{param: id, equals: 5}]
    ip: {in: [10.0.0.0/8]}
    time: {days: [mon], from: "08:00", to: "24:00", timezone: Europe/Oslo}
    verdict: filter
    transforms: {strip_properties: [a.b]}
    guard_queries: true
"""


def is_taken(text: str) -> bool:
    return is_valid(yaml_document.parse(text).value, SCHEMA)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_are_taken(sample: Path) -> None:
    assert is_taken(sample.read_text("utf-8"))


GOOD_CHANGES: Final = [
    ("", ""),
    (
        "{param: id, equals: 5}",
        "{query: $top, at_most: 1.5}, {header: X-Y, in: [a, 1, true]}, {body: a.b, exists: true}",
    ),
    ("id: r", "id: r\n    when: response\n    description: why"),
    (
        "[{param: id, equals: 5}]",
        "[{status: 404}, {status: [1, 2]}, {status: true, at_least: 5}]\n    when: response",
    ),
    ("[GET]", "[get, X-OWN]"),
    ("[10.0.0.0/8]", "['2001:db8::/32', 10.0.0.0/255.0.0.0, 192.0.2.1], not_in: ['::ffff:10.0.0.1']"),
    ('{days: [mon], from: "08:00", to: "24:00", timezone: Europe/Oslo}', "{days: [mon, tue]}"),
    ("strip_properties: [a.b]", "allow_properties: [id, '@odata.id']"),
    ("strip_properties: [a.b]", "items: {keep: [{property: a, equals: b}, {property: c, exists: true}]}"),
    ("strip_properties: [a.b]", "strip_properties: [a.b], items: {keep: [{property: a, equals: 1}]}"),
    ("name: test", "name: test\ndefault: allow"),
]


@pytest.mark.parametrize(("old", "new"), GOOD_CHANGES)
def test_what_is_a_ruleset_is_taken(old: str, new: str) -> None:
    text = GOOD.replace(old, new)
    parse_ruleset(text)
    assert is_taken(text)


@given(rulesets())
def test_so_is_any(ruleset: Ruleset) -> None:
    text = msgspec.json.encode(_as_document(ruleset)).decode()
    assert parse_ruleset(text) == ruleset
    assert is_taken(text)


BAD_CHANGES: Final = [
    ("version: 1", "version: 2"),
    ("name: test", "name: ''"),
    ("name: test", "nam: test"),
    ("name: test", "name: test\ndefault: filter"),
    ("id: r", "id: -r"),
    ("id: r", "id: r\n    surprise: 1"),
    ("id: r", "id: r\n    when: later"),
    ("verdict: filter", "verdict: maybe"),
    ("verdict: filter", "verdict: allow"),
    ("    transforms: {strip_properties: [a.b]}\n", ""),
    ("{strip_properties: [a.b]}", "{}"),
    ("[a.b]}", "[a.b], allow_properties: [c]}"),
    ("strip_properties: [a.b]", "items: {keep: []}"),
    ("strip_properties: [a.b]", "items: {}"),
    ("[a.b]", "[a b]"),
    ("[a.b]", "[]"),
    ("guard_queries: true", "guard_queries: 1"),
    ("/a/{id}", "a"),
    ("/a/{id}", "/a?x=1"),
    ('path: ["/a/{id}"]', "path: /a"),
    ("[GET]", "[]"),
    ("[GET]", "['G T']"),
    ("{param: id, equals: 5}", "{param: id}"),
    ("{param: id, equals: 5}", "{equals: 5}"),
    ("{param: id, equals: 5}", "{param: id, query: x, equals: 5}"),
    ("{param: id, equals: 5}", "{status: true}"),
    ("{param: id, equals: 5}", "{param: id, equals: [5]}"),
    ("{param: id, equals: 5}", "{param: id, in: 5}"),
    ("{param: id, equals: 5}", "{param: id, in: []}"),
    ("{param: id, equals: 5}", "{param: id, at_most: five}"),
    ("{param: id, equals: 5}", "{param: id, equals: }"),
    ("{param: id, equals: 5}", "{header: a b, equals: 5}"),
    ("{in: [10.0.0.0/8]}", "{}"),
    ("10.0.0.0/8", "office"),
    ('from: "08:00", ', ""),
    ('"24:00"', '"24:01"'),
    ('"08:00"', '"24:00"'),
    ('"08:00"', '"8:00"'),
    ("[mon]", "[monday]"),
    ('days: [mon], from: "08:00", to: "24:00", ', ""),
]


@pytest.mark.parametrize(("old", "new"), BAD_CHANGES)
def test_what_is_none_is_marked(old: str, new: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    with pytest.raises(InvalidRuleset):
        parse_ruleset(text)
    assert not is_taken(text)


def _as_document(ruleset: Ruleset) -> dict[str, object]:
    rules = []
    for rule in ruleset.rules:
        document: dict[str, object] = {
            "id": rule.id,
            "when": rule.when,
            "match": {
                "path": rule.match.path,
                **({"methods": rule.match.methods} if rule.match.methods else {}),
            },
            "conditions": [
                {
                    condition.source: condition.name or True,
                    **{test.operator: test.operand for test in condition.tests},
                }
                for condition in rule.conditions
            ],
            "verdict": rule.verdict,
        }
        if rule.ip is not None:
            document["ip"] = {"in": rule.ip.inside}
        if rule.time is not None:
            time = rule.time
            document["time"] = {
                "days": time.days,
                "from": time.start,
                "to": time.end,
                "timezone": time.timezone,
            }
        if rule.transforms is not None:
            document["transforms"] = (
                {"strip_properties": rule.transforms.strip}
                if rule.transforms.allow is None
                else {"allow_properties": rule.transforms.allow}
            )
            document["guard_queries"] = rule.guard_queries
        rules.append(document)
    return {"version": 1, "name": ruleset.name, "default": ruleset.default, "rules": rules}
