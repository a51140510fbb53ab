"""Tests that an explanation gives the verdict of the rules, and the reason for this verdict."""

from __future__ import annotations

import json
from typing import Final, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.workshop.explain import Account, Attempt, Explainer, Explanation, SampleRequest
from proxy.policy.canonical import MalformedTarget
from proxy.policy.compile import compile_ruleset
from proxy.policy.decision import Decision, RequestFacts, ResponseFacts, Verdict
from proxy.policy.ruleset import Comparison, Condition, IpGate, Match, Rule, Ruleset, TimeGate
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.transforms import Transforms
from tests.pure.rules import THURSDAY_NOON_UTC, request
from tests.pure.test_meaning import RESOURCES, spelled


def explainer(rules: str, default: str = "block") -> Explainer:
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    return Explainer(parse_ruleset(f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented}"))


def explained(rules: str, target: str, method: str = "GET", default: str = "block") -> Explanation:
    return explainer(rules, default).explain(SampleRequest(method, target, now=THURSDAY_NOON_UTC))


def outcomes(account: Account) -> list[tuple[str, str]]:
    return [(attempt.rule_id, attempt.outcome) for attempt in account.attempts]


def failed(attempt: Attempt) -> tuple[str, str, tuple[str, ...]]:
    finding = attempt.findings[-1]
    return finding.part, finding.held, finding.found


PAGES: Final = """
- {id: writes, match: {methods: [POST], path: [/v1.0/**]}, verdict: block}
- {id: groups, match: {path: [/v1.0/groups]}, verdict: allow}
- {id: watch, match: {path: [/v1.0/**]}, verdict: log_only}
- {id: ada, match: {path: ["/v1.0/users/{id}"]}, conditions: [{param: id, equals: ada}], verdict: block}
- {id: office, match: {path: [/v1.0/users]}, ip: {in: [10.0.0.0/8]}, verdict: allow}
- {id: weekend, match: {path: [/v1.0/users]}, time: {days: [sat, sun]}, verdict: allow}
- {id: small, match: {path: ["/v1.0/users", "/v1.0/users/{id}"]},
   conditions: [{query: $top, at_most: 100}], verdict: allow}
- {id: rest, match: {path: [/v1.0/users/**]}, verdict: block}
- {id: never, match: {path: [/v1.0/**]}, verdict: allow}
"""


def test_each_rule_is_told_in_order_with_what_failed_until_one_decides() -> None:
    report = explainer(PAGES).explain(
        SampleRequest("GET", "/v1.0/users?$top=500", client_ip="192.0.2.1", now=THURSDAY_NOON_UTC)
    )
    (account,) = report.accounts
    assert account.paths == ("/v1.0/users",)
    assert outcomes(account) == [
        ("writes", "unmatched"),
        ("groups", "unmatched"),
        ("watch", "logs"),
        ("ada", "unmatched"),
        ("office", "unmatched"),
        ("weekend", "unmatched"),
        ("small", "unmatched"),
        ("rest", "decides"),
    ]
    by_id = {attempt.rule_id: attempt for attempt in account.attempts}
    assert failed(by_id["writes"]) == ("methods", "no", ("GET",))
    assert failed(by_id["groups"]) == ("path", "no", ())
    assert failed(by_id["office"]) == ("ip", "no", ("192.0.2.1",))
    assert failed(by_id["weekend"]) == ("time", "no", ("thu 12:00",))
    assert failed(by_id["small"]) == ("query $top", "no", ("500",))
    assert report.decision == Decision("block", "rest", ("watch",))


def test_a_parameter_that_differs_is_named_rather_than_the_path() -> None:
    (account,) = explained(PAGES, "/v1.0/users/alan").accounts
    ada = next(attempt for attempt in account.attempts if attempt.rule_id == "ada")
    assert failed(ada) == ("param id", "no", ("alan",))


def test_perhaps_is_told_and_what_each_verdict_makes_of_it() -> None:
    rules = """
- {id: allowed, match: {path: [/a]}, conditions: [{query: x, equals: "1"}], verdict: allow}
- {id: filtered, match: {path: [/a]}, conditions: [{query: x, equals: "1"}], verdict: filter,
   transforms: {strip_properties: [b]}}
- {id: blocked, match: {path: [/a]}, conditions: [{query: x, equals: "1"}], verdict: block}
"""
    (account,) = explained(rules, "/a?x=1&x=2").accounts
    assert outcomes(account) == [("allowed", "perhaps"), ("filtered", "filters"), ("blocked", "decides")]
    assert [failed(attempt) for attempt in account.attempts] == [("query x", "perhaps", ("1", "2"))] * 3


def test_every_reading_of_an_odd_target_has_its_account() -> None:
    rules = "- {id: mail, match: {path: [/v1.0/users/ada/messages]}, verdict: block}"
    report = explained(rules, "/v1.0/users/ada/messages;x=1", default="allow")
    assert report.decision == Decision("block", "mail")
    verdicts = {account.paths: account.decision and account.decision.verdict for account in report.accounts}
    assert verdicts == {
        ("/v1.0/users/ada/messages;x=1",): "allow",
        ("/v1.0/users/ada/messages",): "block",
    }


@pytest.mark.parametrize(
    ("target", "note"),
    [
        ("/users/ada/mobilePhone", "the path names a property that the rule hides"),
        ("/users/ada?$filter=mobilephone+eq+1", "the query names mobilePhone, which the rule hides"),
    ],
)
@pytest.mark.parametrize("when", ["request", "response"])
@pytest.mark.parametrize("default", ["allow", "block"])
def test_a_rule_that_blocks_for_what_it_hides_says_by_which_way(
    target: str, note: str, when: str, default: str
) -> None:
    """A response rule can also block before there is a response."""
    rules = f"""
- {{id: hide, when: {when}, match: {{path: ["/users/{{id}}"]}}, verdict: filter,
   transforms: {{strip_properties: [mobilePhone]}}, guard_queries: true}}
"""
    report = explained(rules, target, default=default)
    took_part = ("default", "hide") if when == "response" else ()
    assert report.decision == Decision("block", "hide", reason="hiddenProperty", several_rule_ids=took_part)
    assert [attempt.rule_id for attempt in report.accounts[0].attempts] == ["hide"]
    assert report.accounts[0].attempts[-1].note == note


@pytest.mark.parametrize(
    ("transforms", "query", "note"),
    [
        (
            "strip_properties: [mail, mobilePhone]",
            "$orderby=mail,displayName",
            "the query names mail, which the rule hides",
        ),
        (
            "allow_properties: [id, manager.id]",
            "$filter=id eq '1' and city eq 'x'&$orderby=manager/mail",
            "the query names city, manager.mail, which the rule hides",
        ),
        ("strip_properties: [mail]", '$search="ada"', "the query names a property that the rule hides"),
        ("allow_properties: [id]", '$search="ada"', "the query names a property that the rule hides"),
    ],
)
def test_a_query_that_probes_is_explained_with_the_properties_that_it_names(
    transforms: str, query: str, note: str
) -> None:
    rules = f"""
- {{id: hide, match: {{path: [/users]}}, verdict: filter, transforms: {{{transforms}}}, guard_queries: true}}
"""
    (account,) = explained(rules, f"/users?{query.replace(' ', '+')}").accounts
    assert [attempt.note for attempt in account.attempts] == [note]


HIDES: Final = """
- {id: hide, when: response, match: {path: ["/users/{id}", "/users/ada"]}, verdict: filter,
   transforms: {strip_properties: [mobilePhone]}}
"""


def test_what_a_response_rule_would_block_is_not_told_where_another_decides_before() -> None:
    before = """
- {id: first, when: response, match: {path: ["/users/ada/**"]}, verdict: allow}
"""
    blocks = """
- {id: no, match: {path: ["/users/**"]}, verdict: block}
"""
    let_through = explained(before + HIDES, "/users/ada/mobilePhone", default="allow")
    assert (let_through.decision, let_through.accounts[0].attempts) == (
        Decision("allow", "default", reason="default"),
        (),
    )
    blocked = explained(blocks + HIDES, "/users/ada/mobilePhone", default="allow")
    assert [attempt.rule_id for attempt in blocked.accounts[0].attempts] == ["no"]


def test_nothing_is_foreseen_where_the_body_that_a_rule_reads_is_no_json() -> None:
    reads = '{path: ["/**"]}, conditions: [{body: x, equals: 1}]'
    for rules in (
        f"- {{id: a, match: {reads}, verdict: allow}}" + HIDES,
        HIDES.replace("verdict:", "ip: {in: [10.0.0.0/8]}, verdict:")
        + f"- {{id: late, when: response, match: {reads}, verdict: block}}",
    ):
        sample = SampleRequest(
            "POST", "/users/ada/mobilePhone", client_ip="10.0.0.1", now=THURSDAY_NOON_UTC, body=b"{"
        )
        report = explainer(rules, "allow").explain(sample)
        assert report.refused is not None
        assert report.refused.reason == "malformedRequest"
        assert "hide" not in [attempt.rule_id for attempt in report.accounts[0].attempts]


@pytest.mark.parametrize(
    ("rules", "attempts"),
    [
        (
            """
- {id: a, match: {path: ["/**"]}, ip: {in: [10.0.0.0/8]}, verdict: allow}
- {id: b, match: {path: ["/**"]}, verdict: block}
"""
            + HIDES,
            [("a", "unknown"), ("b", "decides"), ("hide", "decides")],
        ),
        (
            '- {id: r, when: response, match: {path: ["/**"]}, ip: {in: [10.0.0.0/8]}, verdict: allow}'
            + HIDES,
            [("r", "unknown"), ("hide", "decides")],
        ),
        (
            HIDES.replace("verdict:", "ip: {in: [10.0.0.0/8]}, verdict:"),
            [("hide", "unknown")],
        ),
    ],
)
def test_what_is_foreseen_names_each_rule_that_it_hangs_on_once(
    rules: str, attempts: list[tuple[str, str]]
) -> None:
    sample = SampleRequest("GET", "/users/ada/mobilePhone", now=THURSDAY_NOON_UTC, unknown=frozenset({"ip"}))
    report = explainer(rules, "allow").explain(sample)
    assert report.decision is None
    assert outcomes(report.accounts[0]) == attempts


@pytest.mark.parametrize(("filtered", "verdict"), [("mobilePhone", "block"), ("displayName", "allow")])
def test_a_query_behind_a_guarded_path_is_explained_too(filtered: str, verdict: str) -> None:
    rules = """
- {id: hide, match: {path: ["/users"]}, verdict: filter, transforms: {strip_properties: [mobilePhone]},
   guard_queries: true, ip: {in: [0.0.0.0/0]}}
- {id: rest, match: {path: ["/**"]}, verdict: allow}
"""
    report = explained(rules, f"/users/$count?$filter={filtered}+eq+1")
    assert report.decision is not None
    assert report.decision.verdict == verdict
    attempt = report.accounts[0].attempts[0]
    finding = attempt.findings[-1]
    assert (finding.part, finding.found) == ("query", (f"$filter={filtered}+eq+1",))
    assert (finding.held, bool(attempt.note)) == (("yes", True) if verdict == "block" else ("no", False))


@pytest.mark.parametrize(
    ("target", "method", "headers", "body", "reason"),
    [
        ("/a/%00", "GET", (), None, "malformedTarget"),
        ("/a%2Fb", "GET", (), None, "ambiguousTarget"),
        ("/a", "POST", (), b"{", "malformedRequest"),
        ("/a", "POST", ((b"X-HTTP-Method", b"DELETE"),), None, "unsupported"),
    ],
)
def test_what_the_proxy_refuses_is_refused(
    target: str, method: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes | None, reason: str
) -> None:
    rules = """
- {id: b, match: {path: [/a/b]}, verdict: allow}
- {id: a, match: {path: [/a]}, conditions: [{body: x, equals: 1}], verdict: allow}
"""
    report = explainer(rules).explain(SampleRequest(method, target, headers, body=body))
    assert report.decision is None
    assert report.refused is not None
    assert (report.refused.status, report.refused.reason) == (400, reason)
    if reason == "malformedRequest":
        assert outcomes(report.accounts[0]) == [("b", "unmatched"), ("a", "unreadable")]


RESPONSES: Final = """
- {id: hide, match: {path: [/users]}, verdict: filter, transforms: {strip_properties: [phone]}}
- {id: secret, when: response, match: {path: [/users]}, conditions: [{property: level, in: [secret]}],
   verdict: block}
- {id: cut, when: response, match: {path: [/users]}, conditions: [{status: 200}], verdict: filter,
   transforms: {strip_properties: [mail]}}
"""


def responded(body: object, status: int = 200) -> Explanation:
    sample, response = SampleRequest("GET", "/users"), ResponseFacts(status, (), json.dumps(body).encode())
    return explainer(RESPONSES).explain(sample, response)


def test_a_response_is_evaluated_and_shown_as_the_application_gets_it() -> None:
    report = responded({"value": [{"id": 1, "phone": 2, "mail": 3, "level": "open"}]})
    assert report.decision is not None
    assert (report.decision.verdict, report.decision.rule_id) == ("filter", "cut")
    assert json.loads(report.body or b"") == {"value": [{"id": 1, "level": "open"}]}
    assert failed(report.response_accounts[0].attempts[0]) == ("property level", "no", ("open",))


def test_a_response_that_a_rule_blocks_or_a_filter_cant_vouch_for_is_not_shown() -> None:
    blocked = responded({"level": "secret"})
    took_part = ("hide", "secret")
    assert blocked.decision == Decision("block", "secret", reason="responseRule", several_rule_ids=took_part)
    assert blocked.body is None
    unfiltered = responded(["a bare list"])
    assert unfiltered.body is None
    assert unfiltered.refused is not None
    assert unfiltered.refused.reason == "filterFailed"


def test_without_a_response_the_rules_that_await_it_are_named() -> None:
    report = explainer(RESPONSES).explain(SampleRequest("GET", "/users"))
    assert report.awaiting == ("secret", "cut")


# For any rules and any request: the same verdict, and an explanation that leads to it.

PATHS: Final = (
    "/**",
    "/v1.0/users",
    "/v1.0/users/{id}",
    "/v1.0/users/{id}/**",
    "/v1.0/users/*/messages",
    "/v1.0/users/{id}/messages/**",
    "/v1.0/groups/{id}/members",
    "/v1.0/me/**",
    "/v1.0/drives/{id}/items/*",
)
PROPERTIES: Final = ("mobilePhone", "messages", "manager.mail", "id")

VERDICTS: Final[tuple[Verdict, ...]] = ("allow", "filter", "block", "log_only")
PHASES: Final[tuple[Literal["request", "response"], ...]] = ("request", "request", "response")


@st.composite
def conditions(draw: st.DrawFn, on_response: bool) -> Condition:
    sources = ["query", "header", "body"] + (["status", "property", "response_header"] if on_response else [])
    source = draw(st.sampled_from(sources))
    name = {"query": "$top", "status": ""}.get(source, "x")
    operand = 200 if source == "status" else "1"
    test = draw(
        st.sampled_from(
            [
                Comparison("equals", operand),
                Comparison("not_in", (operand,)),
                Comparison("at_most", 5),
                Comparison("exists", False),
            ]
        )
    )
    return Condition(source, name, (test,))  # type: ignore[arg-type]


@st.composite
def rule(draw: st.DrawFn, rule_id: str) -> Rule:
    verdict: Verdict = draw(st.sampled_from(VERDICTS))
    when: Literal["request", "response"] = draw(st.sampled_from(PHASES))
    path = tuple(draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=3)))
    asked = draw(st.lists(conditions(when == "response"), max_size=2))
    if any("{id}" in pattern for pattern in path) and draw(st.booleans()):
        asked.append(Condition("param", "id", (Comparison("equals", "ada@contoso.com"),)))
    names = (draw(st.sampled_from(PROPERTIES)),)
    transforms = draw(st.sampled_from([Transforms(names), Transforms(allow=names)]))
    return Rule(
        rule_id,
        Match(path, tuple(draw(st.sampled_from([(), ("GET",), ("POST", "DELETE")])))),
        verdict,
        when=when,
        conditions=tuple(asked),
        ip=draw(st.sampled_from([None, None, IpGate(("10.0.0.0/8",), None)])),
        time=draw(st.sampled_from([None, None, TimeGate(("thu",), "08:00", "11:00", "Europe/Oslo")])),
        transforms=transforms if verdict == "filter" else None,
        guard_queries=verdict == "filter" and draw(st.booleans()),
    )


@st.composite
def rulesets(draw: st.DrawFn) -> Ruleset:
    rules = [draw(rule(f"r{number}")) for number in range(draw(st.integers(0, 5)))]
    return Ruleset("any", draw(st.sampled_from(["allow", "block"])), tuple(rules))


@st.composite
def samples(draw: st.DrawFn) -> SampleRequest:
    target = draw(spelled(draw(st.sampled_from(RESOURCES)), odd=True))
    more = draw(st.sampled_from(["", "top=1", "$top=9&top=1", "$select=mobilePhone", "$top=x"]))
    return SampleRequest(
        draw(st.sampled_from(["GET", "HEAD", "POST", "delete"])),
        target + ("&" if "?" in target else "?") * bool(more) + more,
        draw(st.sampled_from([(), ((b"X", b"1"),), ((b"x", b"1, 2"),)])),
        draw(st.sampled_from(["", "10.1.2.3", "192.0.2.1"])),
        draw(st.sampled_from([THURSDAY_NOON_UTC, THURSDAY_NOON_UTC - 3 * 3600])),
        draw(st.sampled_from([None, b'{"x": "1"}', b'{"x": 1}', b"{"])),
    )


def retold(account: Account, default: Decision) -> tuple[str, set[str], set[str]]:
    """Return the verdict, deciding rules and logging rules, derived only from docs/reference/rules.md."""
    logged = {attempt.rule_id for attempt in account.attempts if attempt.outcome == "logs"}
    filtering = {attempt.rule_id for attempt in account.attempts if attempt.outcome == "filters"}
    last = account.attempts[-1] if account.attempts else None
    final = last.decision if last is not None and last.outcome == "decides" else default
    if final.verdict == "block" or not filtering:
        if final is default and logged and default.verdict == "allow":
            return "log_only", logged, logged
        return final.verdict, {final.rule_id}, logged
    return "filter", filtering | {final.rule_id}, logged


def agrees(account: Account, default: Decision) -> None:
    if account.decision is None or account.decision.implied:
        return  # an unreadable body, and a verdict by an implied request, have their own tests
    verdict, deciding, logged = retold(account, default)
    assert verdict == account.decision.verdict
    assert account.decision.rule_id in deciding
    assert logged == set(account.decision.logged_rule_ids)


WILD_AND_NAMED: Final = Match(("/**", "/v1.0/users/{id}"))
BESIDE_A_KEY: Final = SampleRequest("GET", "/v1.0/users('ada@contoso.com');a=b")


@settings(max_examples=150)
@given(rulesets(), samples())
@example(Ruleset("any", "allow", (Rule("r0", WILD_AND_NAMED, "block"),)), BESIDE_A_KEY)
def test_the_verdict_is_the_proxy_s_and_the_account_leads_to_it(
    ruleset: Ruleset, sample: SampleRequest
) -> None:
    report = Explainer(ruleset).explain(sample)
    decision: Decision | None = None
    try:
        facts = request(
            sample.target,
            sample.method,
            headers=sample.headers,
            client_ip=sample.client_ip,
            now=sample.now,
            body=sample.body,
        )
        decision = compile_ruleset(ruleset).plan(sample.method, facts.target).decide(facts)
    except MalformedTarget as error:
        refusal = str(error)
    else:
        refusal = ""
    assert report.decision == decision
    assert (report.refused.message if report.refused is not None else "") == refusal
    unread = [account for account in report.accounts if account.decision is None]
    assert bool(unread) <= (sample.body == b"{")
    for account in report.accounts:
        falls_to = "allow" if account.importance == "shadow" else ruleset.default
        agrees(account, Decision(falls_to, "default", reason="default"))


BODIES: Final = (b'{"x": "1"}', b'{"value": [{"x": 2}, {"x": 1, "id": 3}]}', b"no JSON", b"")


@settings(max_examples=150)
@given(rulesets(), samples(), st.sampled_from([200, 206, 404]), st.sampled_from(BODIES))
@example(
    Ruleset("any", "allow", (Rule("r0", WILD_AND_NAMED, "block", when="response"),)), BESIDE_A_KEY, 200, b""
)
def test_and_so_it_is_of_a_response(
    ruleset: Ruleset, sample: SampleRequest, status: int, body: bytes
) -> None:
    response = ResponseFacts(status, ((b"x", b"1"),), body)
    report = Explainer(ruleset).explain(sample, response)
    before = Explainer(ruleset).explain(sample).decision
    if before is None or before.verdict == "block":
        assert report.decision == before
        return
    facts = RequestFacts(
        sample.method,
        request(sample.target).target,
        sample.headers,
        sample.client_ip,
        sample.now,
        sample.body,
    )
    plan = compile_ruleset(ruleset).plan(sample.method, facts.target)
    assert report.decision == plan.decide_response(facts, before, response)
    for account in report.response_accounts:
        agrees_on_response(account, before)


def agrees_on_response(account: Account, before: Decision) -> None:
    """Check that the decision on a response agrees with the rules that the explanation lists.

    If a response rule with `allow` decides, no later rule is tested, and the verdict on the request stays.
    """
    assert account.decision is not None
    verdict, deciding, logged = retold(account, Decision("allow", "default", reason="default"))
    if verdict in ("block", "filter"):
        assert account.decision.verdict == verdict
        assert account.decision.rule_id in deciding
    elif verdict == "log_only" and before.reason == "default":
        assert account.decision.verdict == "log_only"
    else:
        assert (account.decision.verdict, account.decision.rule_id) == (before.verdict, before.rule_id)
    assert logged | set(before.logged_rule_ids) == set(account.decision.logged_rule_ids)


def test_an_account_repeats_nothing_endlessly() -> None:
    words, values = "x" * 5000, ["y" * 5000] * 5000
    rule = (
        f"- {{id: a, match: {{path: [/users]}}, conditions: [{{body: b, equals: {words}}}], verdict: allow}}"
    )
    sample = SampleRequest("POST", "/users", body=json.dumps({"b": values}).encode())
    (finding,) = explainer(rule).explain(sample).accounts[0].attempts[0].findings
    assert len(finding.asked) == 1000
    assert len(finding.found) == 100
    assert {len(value) for value in finding.found} == {1000}


@pytest.mark.parametrize(
    ("location", "refused"),
    [
        (b"https://files.example/x?sig=SECRET", True),
        (b"//files.example/x", True),
        (b"https://graph.microsoft.com@files.example/", True),
        (b"https://GRAPH.microsoft.com:443/v1.0/users", False),
        (b"/v1.0/users", False),
    ],
)
def test_a_redirect_to_another_host_is_withheld_under_a_filter(location: bytes, refused: bool) -> None:
    response = ResponseFacts(302, [(b"Location", location)], b"")
    report = explainer(RESPONSES).explain(SampleRequest("GET", "/users"), response)
    withheld = report.refused is not None and report.refused.reason == "filterFailed"
    assert withheld == refused
