"""Rules about things: types, relations, properties and operations of a schema, and packs of them."""

import pytest

from proxy.policy.ruleset import Match, Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.schemas import needs_schemas


def ruleset_of(match: str, rest: str = "") -> Ruleset:
    return parse_ruleset(
        f"version: 1\nname: any\nrules:\n- {{id: r, match: {match}, verdict: block{rest}}}\n"
    )


def problems_of(match: str, rest: str = "") -> list[tuple[int, int, str, str]]:
    with pytest.raises(InvalidRuleset) as caught:
        ruleset_of(match, rest)
    return [(one.line, one.column, one.where, one.message) for one in caught.value.problems]


# -- the words


def test_a_match_names_things_in_place_of_a_path() -> None:
    ruleset = ruleset_of("{resource: [message, group.members], operation: [addKey], pack: [mail]}")
    (rule,) = ruleset.rules
    assert rule.match == Match((), (), ("message", "group.members"), ("addKey",), ("mail",))
    assert needs_schemas(ruleset)


def test_a_ruleset_of_paths_alone_needs_no_schema() -> None:
    assert not needs_schemas(ruleset_of("{path: [/v1.0/users], methods: [GET]}"))


@pytest.mark.parametrize(
    ("match", "column", "where", "message"),
    [
        ("{methods: [GET]}", 18, "rules[0].match", "a match needs `path`, or one or more of"),
        ("{path: [/a], pack: [mail]}", 37, "rules[0].match.pack", "never stand in one rule"),
        ("{resource: [a b]}", 30, "rules[0].match.resource[0]", "a resource is a type, or a type and"),
        ("{resource: [/users]}", 30, "rules[0].match.resource[0]", "a resource is a type, or a type and"),
        ("{operation: ['f(x)']}", 31, "rules[0].match.operation[0]", "a name of letters"),
        ("{pack: []}", 25, "rules[0].match.pack", "the list is empty"),
        ("{resource: message}", 29, "rules[0].match.resource", "a list is wanted here, not text"),
        ("{ressource: [message]}", 19, "rules[0].match.ressource", "did you mean `resource`?"),
    ],
)
def test_a_match_that_cannot_be_meant_is_an_error_at_its_place(
    match: str, column: int, where: str, message: str
) -> None:
    found = problems_of(match)
    assert (4, column, where) in [one[:3] for one in found]
    assert any(message in one[3] for one in found)


def test_a_rule_about_things_has_no_parameters() -> None:
    found = problems_of("{resource: [message]}", ", conditions: [{param: id, equals: a}]")
    assert [one[3] for one in found] == ["a rule without a path has no parameters"]
