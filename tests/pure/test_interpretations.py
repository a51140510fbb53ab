"""Tests of path interpretations.

The proxy evaluates an interpretation of a path if the upstream accepts it, or if a rule names the path that
results from it.
"""

from __future__ import annotations

import json

import pytest

from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.decision import RequestFacts
from proxy.policy.interpretations import (
    BACKSLASH,
    DECODED_AGAIN,
    ENCODED_SLASH,
    EVERY,
    GRAPH,
    GRAPH_NAMES,
    bits,
    parse_interpretation,
)
from tests.pure.rules import compiled

ONE_MESSAGE = '- {id: one, match: {path: ["/v1.0/me/messages/{m}"]}, verdict: allow}'
BELOW = '- {id: below, match: {path: ["/v1.0/me/messages/{m}/**"]}, verdict: block}'


def verdict(rules: str, target: str, default: str = "block", taken: int = GRAPH) -> str:
    """Return the rules' verdict on a GET request to the target, or `refused` if the target is malformed."""
    try:
        read = canonicalise(target, taken)
        return compiled(rules, default).plan("GET", read).decide(RequestFacts("GET", read, (), "", 0)).verdict
    except MalformedTarget:
        return "refused"


SLASHED = [
    "AAMkAD%252FxY%252BzA%253D",
    "AAMkAD%252fxY",
    "AAMk%252F%252FxY",
    "AAMk%252F",
    "%252FAAMk",
    "AAMk%252FxY==",
]


@pytest.mark.parametrize("key", SLASHED)
@pytest.mark.parametrize("rules", [ONE_MESSAGE, f"{ONE_MESSAGE}\n{BELOW}"])
@pytest.mark.parametrize("default", ["block", "allow"])
def test_an_id_with_a_slash_is_one_segment_to_graph(key: str, rules: str, default: str) -> None:
    assert verdict(rules, f"/v1.0/me/messages/{key}", default) == "allow"


def test_it_is_no_property_that_a_whitelist_hides() -> None:
    rules = f"""
- {{id: me, match: {{path: [/v1.0/me]}}, verdict: filter, transforms: {{allow_properties: [id]}}}}
{ONE_MESSAGE}
"""
    assert verdict(rules, "/v1.0/me/messages/AAMk%252FxY") == "allow"
    assert verdict(rules, "/v1.0/me/messages/AAMk/xY") == "block"


@pytest.mark.parametrize("key", ["AAMk%252FxY", "AAMk%252fxY"])
def test_an_upstream_that_decodes_again_reads_two_segments(key: str) -> None:
    taken = GRAPH | DECODED_AGAIN
    assert verdict(ONE_MESSAGE, f"/v1.0/me/messages/{key}", taken=taken) == "refused"


@pytest.mark.parametrize(
    "key",
    [
        "a;b",
        "a%3Bb",
        "19:abc@thread.v2;messageid=12",
        "caf%25E9.docx",
        "100%2541",
        "%EF%BC%A1%EF%BC%A2",
        "%E5%A0%B1%E5%91%8A%EF%BC%8F%E8%8D%89%E6%A1%88.docx",
        "%E7%AC%AC%EF%BC%91%E7%AB%A0%EF%BC%9A",
        "a%EF%BC%9Fb",
        "a%EF%BC%85b",
        "%F0%9F%98%80",
        "o'neil",
        "O''Neil",
        "a..b",
        "a.",
        "~a",
        "AAMk+x%2Bz==",
        "a%7Cb",
    ],
)
@pytest.mark.parametrize("path", ["/v1.0/x/{}", "/v1.0/x/{}/y", "/v1.0/drives/5/root:/{}"])
def test_no_reading_that_graph_never_takes_refuses_what_a_rule_allows(key: str, path: str) -> None:
    rules = f"""
- {{id: it, match: {{path: [{json.dumps(path.format("{id}"))}]}}, verdict: allow}}
- {{id: below, match: {{path: [/v1.0/**]}}, verdict: block}}
"""
    assert verdict(rules, path.format(key)) == "allow"


def test_a_condition_sees_an_id_as_graph_reads_it() -> None:
    rules = """
- {id: it, match: {path: ["/v1.0/x/{id}"]}, conditions: [{param: id, in: ["a;b", "100%41"]}], verdict: allow}
"""
    assert verdict(rules, "/v1.0/x/a;b") == "allow"
    assert verdict(rules, "/v1.0/x/100%2541") == "allow"
    assert verdict(rules, "/v1.0/x/a;b", taken=EVERY) == "block"


NAMED = [
    "/v1.0/users/ada%252Fmessages",
    "/v1.0/users/ada%25252fmessages",
    "/v1.0/users%252Fada%252Fmessages",
    "/v1.0/us%2565rs/ada/messages",
    "/v1.0/us%2565rs/a%2564a/messages",
    "/v1.0/users/ada/messages;x=y",
    "/v1.0/users/;/ada/messages",
    "/v1.0/users/a%2564a/;/messages",
    "/v1.0/users/ada%EF%BC%8Fmessages",
    "/v1.0/x/%252e%252e/users/a%2564a/messages",
    "/v1.0/groups%252F..%252Fusers/ada/messages",
    "/v1.0/users/ada/messages/x%252F..",
    "/v1.0/users/x%252F..%252Fada/messages",
    "/v1.0/contoso.com/users/ada%252Fmessages",
]


@pytest.mark.parametrize("target", NAMED)
@pytest.mark.parametrize("default", ["block", "allow"])
def test_a_block_that_names_what_another_reading_leads_to_still_counts(target: str, default: str) -> None:
    rules = """
- {id: no, match: {path: ["/v1.0/users/{id}/messages"]}, verdict: block}
- {id: rest, match: {path: [/v1.0/**]}, verdict: allow}
"""
    assert verdict(rules, target, default) in ("block", "refused")


@pytest.mark.parametrize("target", NAMED)
@pytest.mark.parametrize("other", ["/v1.0/*/*/*", "/v1.0/users/*/*", "/v1.0/*/*/**"])
@pytest.mark.parametrize("own_first", [True, False])
def test_another_path_of_the_rule_takes_nothing_from_the_one_that_names_it(
    target: str, other: str, own_first: bool
) -> None:
    own = "/v1.0/users/{id}/messages"
    rules = f"""
- {{id: no, match: {{path: {json.dumps([own, other] if own_first else [other, own])}}}, verdict: block}}
- {{id: rest, match: {{path: [/v1.0/**]}}, verdict: allow}}
"""
    assert verdict(rules, target) in ("block", "refused")


@pytest.mark.parametrize(
    "target", ["/v1.0/users/b%256Fb", "/v1.0/users/bob;x", "/v1.0/users/ada%252F..%252Fbob"]
)
def test_a_condition_on_a_segment_names_it_too(target: str) -> None:
    rules = """
- {id: no, match: {path: ["/v1.0/users/{id}"]}, conditions: [{param: id, equals: bob}], verdict: block}
- {id: rest, match: {path: [/v1.0/**]}, verdict: allow}
"""
    assert verdict(rules, target) in ("block", "refused")
    assert verdict(rules, "/v1.0/users/b%256Fa") == "allow"


@pytest.mark.parametrize("way", ["ada%252FmobilePhone", "ada/mobile%2550hone", "ada%252F$value"])
def test_a_hidden_property_is_named_in_any_reading(way: str) -> None:
    rules = """
- id: it
  match: {path: ["/v1.0/users/{id}"]}
  verdict: filter
  transforms: {strip_properties: [mobilePhone]}
- {id: rest, match: {path: [/v1.0/**]}, verdict: allow}
"""
    assert verdict(rules, f"/v1.0/users/{way}") in ("block", "refused")


def test_the_refusal_says_which_reading_it_is_for_and_what_to_send() -> None:
    plan = compiled(ONE_MESSAGE).plan("GET", target := canonicalise("/v1.0/me/messages/AAMk%2FxY"))
    with pytest.raises(MalformedTarget, match=r"%2F.*sent as %252F"):
        plan.decide(RequestFacts("GET", target, (), "", 0))
    with pytest.raises(MalformedTarget, match="control character after a second decoding"):
        canonicalise("/v1.0/me/messages/x%2500")


def test_an_upstream_that_takes_no_encoded_slash_lets_it_be_part_of_an_id() -> None:
    assert verdict(ONE_MESSAGE, "/v1.0/me/messages/AAMk%2FxY", taken=BACKSLASH) == "allow"
    assert verdict(ONE_MESSAGE, "/v1.0/me/messages/AAMk%2FxY", taken=ENCODED_SLASH) == "refused"


def test_each_interpretation_has_a_name_for_the_settings() -> None:
    assert bits(GRAPH_NAMES) == GRAPH
    names = ("encoded-slash", "backslash", "decoded-again", "path-parameters", "compatibility-characters")
    assert bits(map(parse_interpretation, names)) == EVERY
    with pytest.raises(ValueError, match="must be one of encoded-slash, backslash"):
        parse_interpretation("twice")


OFF = "displayName eq '50%20off'"
OFFER = f"""
- id: offer
  match: {{path: [/v1.0/groups]}}
  conditions: [{{query: $filter, equals: "{OFF}"}}]
  verdict: VERDICT
"""


@pytest.mark.parametrize(
    ("ruling", "default", "taken", "expected"),
    [
        ("allow", "block", GRAPH, "allow"),
        ("allow", "block", GRAPH | DECODED_AGAIN, "block"),  # may request '50 off'
        ("block", "allow", GRAPH, "block"),
    ],
)
def test_a_text_with_a_percent_sign_is_one_text_to_graph(
    ruling: str, default: str, taken: int, expected: str
) -> None:
    target = "/v1.0/groups?$filter=displayName%20eq%20'50%2520off'"
    assert verdict(OFFER.replace("VERDICT", ruling), target, default, taken) == expected


@pytest.mark.parametrize(
    "name", ["$expand", "%24EXPAND", "%2524expand", "$$expand", "+$expand", "$exp%C2%ADand"]
)
def test_a_block_for_an_option_holds_for_every_spelling_of_its_name(name: str) -> None:
    rules = """
- {id: no, match: {path: [/v1.0/users]}, conditions: [{query: $expand, exists: true}], verdict: block}
"""
    assert verdict(rules, f"/v1.0/users?{name}=manager", "allow") == "block"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("x=1", "allow"),
        ("%2524expand=manager", "allow"),
        ("+$expand=manager", "block"),
        ("$expand=a", "block"),
    ],
)
def test_an_option_that_only_looks_like_another_is_not_there(query: str, expected: str) -> None:
    """Graph ignores the custom option `%24expand`; a server may remove spaces around an option's name."""
    rules = """
- {id: plain, match: {path: [/v1.0/users]}, conditions: [{query: $expand, exists: false}], verdict: allow}
"""
    assert verdict(rules, f"/v1.0/users?{query}") == expected


@pytest.mark.parametrize(
    "query",
    [
        "$filter=startswith(mobile%2550hone,'555')",
        "%2524filter=startswith(mobilePhone,'555')",
        "+$filter=startswith(mobilePhone,'555')",
    ],
)
def test_a_query_that_probes_only_when_decoded_again_is_blocked(query: str) -> None:
    rules = """
- id: hide
  match: {path: [/v1.0/users]}
  verdict: filter
  transforms: {strip_properties: [mobilePhone]}
  guard_queries: true
"""
    assert verdict(rules, f"/v1.0/users?{query}") == "block"
