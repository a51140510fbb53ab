"""Tests of the editor's completions at a position in a ruleset's text.

The character `|` in a test text marks the position of the cursor.
"""

from __future__ import annotations

import pytest

from controlplane.model.schema_file import read_schema
from controlplane.workshop.completions import MOST_OPTIONS, SchemaWords, completions, schema_words
from tests.pure.model_schema import SMALL

NAMES = SchemaWords(
    types=("group", "message", "messageRule", "user"),
    relations=("manager", "members", "messages"),
    properties=("displayName", "mail", "mobilePhone"),
    operations=("addPassword", "sendMail"),
    roots=("groups", "users"),
)
RULE = "version: 1\nname: a\nrules:\n  - id: b\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ver|", ("version",)),
        ("version: 1\ndefault: |", ("block", "allow")),
        (f"{RULE}    ver|", ("verdict",)),
        (f"{RULE}    verdict: f|", ("filter",)),
        (f"{RULE}    verdict: filter|", ()),
        (f"{RULE}    match:\n      op|", ("operation",)),
        (f"{RULE}    match: {{re|", ("resource",)),
        (f"{RULE}    match: {{methods: [GET, p|", ("POST", "PATCH", "PUT")),
        (f"{RULE}    match:\n      methods:\n        - d|", ("DELETE",)),
        (f"{RULE}    match: {{resource: [mes|", ("message", "messageRule")),
        (f"{RULE}    match: {{resource: [group.mem|", ("group.members",)),
        (f"{RULE}    match: {{operation: [add|", ("addPassword",)),
        (f"{RULE}    match: {{pack: [mai|", ("mail", "mailbox-settings")),
        (f'{RULE}    match: {{path: ["/|', ("v1.0", "beta")),
        (f'{RULE}    match: {{path: ["/v1.0/u|', ("users",)),
        (f'{RULE}    match: {{path: ["/v1.0/users/{{id}}/mem|', ("members",)),
        (f"{RULE}    match:\n      path:\n        - /v1.0/gr|", ("groups",)),
        (f"{RULE}    transforms:\n      strip|", ("strip_properties",)),
        (f"{RULE}    transforms: {{strip_properties: [mob|", ("mobilePhone",)),
        (f"{RULE}    transforms:\n      allow_properties:\n        - dis|", ("displayName",)),
        (f"{RULE}    conditions:\n      - {{par|", ("param",)),
        (f"{RULE}    time: {{days: [mon, t|", ("tue", "thu")),
        (f"{RULE}  - i|", ("id", "time", "verdict")[:1]),
        ("# ver|", ()),
        (f"{RULE}    description: some wor|", ()),
    ],
)
def test_words_are_those_of_the_place(text: str, words: tuple[str, ...]) -> None:
    at = text.index("|")
    found = completions(text.replace("|", ""), at, NAMES)
    assert found.words[: len(words) or None] == words
    assert found.start <= at


def test_names_come_from_the_schema_of_the_organisation() -> None:
    names = schema_words(read_schema(SMALL))
    assert "mobilePhone" in names.properties
    assert {"user", "group"} <= set(names.types)
    assert len(completions("rules:\n  - transforms: {strip_properties: [", 41, names).words) <= MOST_OPTIONS
