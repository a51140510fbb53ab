"""Tests of a draft ruleset's effect on past requests.

Each audit event has only some facts of its request.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.workshop.explain import SampleRequest, evaluated
from controlplane.workshop.replay import Event, Group, Outcome, Replay, Rules, Tally, Unclear
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.compile import compile_ruleset
from proxy.policy.decision import Decision, RequestFacts, ResponseFacts
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.pure.rules import THURSDAY_NOON_UTC
from tests.pure.test_explain import rulesets, samples

ALLOWED: Final = Outcome("allow", "r1")


def draft(rules: str, default: str = "block") -> Ruleset:
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    return parse_ruleset(f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented or '  []'}")


def event(target: str = "/v1.0/users", method: str = "GET", **members: Any) -> Event:
    path, mark, query = target.partition("?")
    known: dict[str, Any] = {
        "id": "e1",
        "time": datetime.fromtimestamp(THURSDAY_NOON_UTC, UTC),
        "app_id": "app",
        "client_ip": "192.0.2.1",
        "request_bytes": 0,
        "upstream_status": 200,
        "verdict": "allow",
        "rule_id": "r1",
        "reason": "rule",
    }
    return Event(method=method, path=path, query=query if mark else None, **known | members)


def blocked(target: str = "/v1.0/users", method: str = "GET", **members: Any) -> Event:
    known = {"verdict": "block", "rule_id": "default", "reason": "default", "upstream_status": None}
    return event(target, method, **known | members)


def foreseen(rules: str, one: Event, default: str = "block") -> Outcome | Unclear:
    return Replay(draft(rules, default)).evaluate(one)


# -- decisions by stored facts

STORED: Final = """
- {id: small, match: {path: [/v1.0/users]}, conditions: [{query: $top, at_most: 100}], verdict: allow}
- {id: office, match: {path: [/v1.0/office]}, ip: {in: [10.0.0.0/8]}, verdict: allow}
- {id: weekend, match: {path: [/v1.0/weekend]}, time: {days: [sat, sun]}, verdict: allow}
- {id: hide, match: {methods: [GET], path: ["/v1.0/users/{id}"]}, verdict: filter,
   transforms: {strip_properties: [mail, fax]}}
- {id: noted, match: {path: [/v1.0/users/**]}, verdict: log_only}
- {id: failing, when: response, match: {path: [/v1.0/groups]}, conditions: [{status: 404}], verdict: block}
- {id: groups, match: {path: [/v1.0/groups]}, verdict: allow}
"""


@pytest.mark.parametrize(
    ("one", "after"),
    [
        (event("/v1.0/users?$top=5"), Outcome("allow", "small")),
        (event("/v1.0/users?$top=500"), Outcome("block", "default")),
        (event("/v1.0/office", client_ip="10.1.2.3"), Outcome("allow", "office")),
        (event("/v1.0/office"), Outcome("block", "default")),
        (event("/v1.0/weekend"), Outcome("block", "default")),
        (event("/V1.0/Users('ada')"), Outcome("filter", "hide", ("strip:fax", "strip:mail"))),
        (event("/v1.0/users/ada/mail"), Outcome("block", "hide")),
        (event("/v1.0/users/ada", "DELETE"), Outcome("block", "default")),
        (event("/v1.0/groups"), Outcome("allow", "groups")),
        (event("/v1.0/groups", upstream_status=404), Outcome("block", "failing")),
        (event("/v1.0/users/a%2Fmail"), Outcome("refused", "ambiguousTarget")),
    ],
)
def test_what_an_event_holds_is_evaluated_by_the_rules_themselves(one: Event, after: Outcome) -> None:
    assert foreseen(STORED, one) == after


def test_a_batch_is_not_blocked_for_want_of_a_rule() -> None:
    assert foreseen("", event("/v1.0/$batch", "POST")) == Outcome("allow", "default")
    assert foreseen("", event("/v1.0/users", "POST")) == Outcome("block", "default")


# -- unstored facts are unclear only if they change the verdict

CONSISTENT: Final = """
- {id: eventual, match: {path: [/v1.0/users]},
   conditions: [{header: ConsistencyLevel, equals: eventual}], verdict: allow}
- {id: rest, match: {path: [/v1.0/users]}, verdict: REST}
"""


def test_a_header_that_decides_is_missing() -> None:
    after = foreseen(CONSISTENT.replace("REST", "block"), event())
    assert isinstance(after, Unclear)
    assert set(after.possible) == {Outcome("allow", "eventual"), Outcome("block", "rest")}
    assert after.missing == ("header ConsistencyLevel",)


def test_a_header_that_only_says_which_rule_allows_is_not() -> None:
    after = foreseen(CONSISTENT.replace("REST", "allow"), event())
    assert isinstance(after, Outcome)
    assert after.effect == ("allow", ())


def test_a_header_that_is_there_or_isn_t_decides_nothing_where_both_are_allowed() -> None:
    rules = """
- {id: with, match: {path: [/v1.0/users]}, conditions: [{header: X, exists: true}], verdict: allow}
- {id: without, match: {path: [/v1.0/users]}, conditions: [{header: X, exists: false}], verdict: allow}
"""
    assert foreseen(rules, event()) in (Outcome("allow", "with"), Outcome("allow", "without"))


def test_one_of_two_opposite_conditions_holds_or_both_perhaps() -> None:
    rules = """
- {id: same, match: {path: [/v1.0/users]}, conditions: [{header: X, exists: false}], verdict: block}
- {id: is, match: {path: [/v1.0/users]}, conditions: [{header: X, equals: a}], verdict: block}
- {id: not, match: {path: [/v1.0/users]}, conditions: [{header: X, not_equals: a}], verdict: block}
"""
    after = foreseen(rules, event(), default="allow")
    assert isinstance(after, Outcome)
    assert after.verdict == "block"


@pytest.mark.parametrize(
    ("one", "missing"),
    [
        (event(method="POST", request_bytes=9), ("body x",)),
        (blocked(method="POST"), ("body x",)),  # a possible body was not read
        (event("/v1.0/found"), ("the response's x",)),
        (event("/v1.0/typed"), ("the response's header Content-Type",)),
        (blocked("/v1.0/status"), ("the response's status",)),
        (event("/v1.0/ip", client_ip=None), ("the client's address",)),
        (event("/v1.0/query?sig=***"), ("the masked value of sig",)),
        (event("/v1.0/" + "x" * 3000 + "…[cut]"), ("the rest of a target that was too long to be stored",)),
    ],
)
def test_what_is_missing_is_named(one: Event, missing: tuple[str, ...]) -> None:
    rules = """
- {id: body, match: {methods: [POST], path: [/v1.0/users]}, conditions: [{body: x, equals: 1}],
   verdict: allow}
- {id: found, when: response, match: {path: [/v1.0/found]}, conditions: [{property: x, equals: 1}],
   verdict: block}
- {id: typed, when: response, match: {path: [/v1.0/typed]},
   conditions: [{response_header: Content-Type, prefix: text}], verdict: block}
- {id: status, when: response, match: {path: [/v1.0/status]}, conditions: [{status: 404}], verdict: block}
- {id: ip, match: {path: [/v1.0/ip]}, ip: {not_in: [10.0.0.0/8]}, verdict: block}
- {id: query, match: {path: [/v1.0/query]}, conditions: [{query: sig, equals: x}], verdict: block}
- {id: rest, match: {path: [/v1.0/found, /v1.0/typed, /v1.0/status, /v1.0/ip, /v1.0/query]}, verdict: allow}
"""
    after = foreseen(rules, one)
    assert isinstance(after, Unclear)
    assert after.missing == missing


def test_a_body_that_was_not_there_is_known() -> None:
    rules = "- {id: r, match: {path: [/a]}, conditions: [{body: x, exists: false}], verdict: allow}"
    assert foreseen(rules, event("/a", "POST")) == Outcome("allow", "r")


def test_an_upstream_that_failed_gave_no_response_to_evaluate() -> None:
    rules = """
- {id: never, when: response, match: {path: [/v1.0/users]}, conditions: [{status: 500}], verdict: block}
- {id: users, match: {path: [/v1.0/users]}, verdict: allow}
"""
    assert foreseen(rules, event(upstream_status=500, reason="upstreamError")) == Outcome("allow", "users")
    assert foreseen(rules, event(upstream_status=None, reason="upstreamTimeout")) == Outcome("allow", "users")


def test_a_part_that_was_not_tried_for_another_s_sake_stays_unclear() -> None:
    part = event(verdict="block", reason="dependencyFailed", upstream_status=None)
    after = foreseen("- {id: users, match: {path: [/v1.0/users]}, verdict: allow}", part)
    assert isinstance(after, Unclear)
    assert after.missing == ("the sub-request of its batch that it depends on",)
    assert foreseen("", part) == Outcome("block", "default")


def test_a_body_too_large_to_read_is_refused_only_while_rules_read_it() -> None:
    refused = event(
        method="POST", verdict="block", rule_id=None, reason="payloadTooLarge", upstream_status=None
    )
    reads = "- {id: r, match: {path: [/v1.0/users]}, conditions: [{body: x, exists: true}], verdict: allow}"
    assert foreseen(reads, refused) == refused.outcome(None) == Outcome("refused", "payloadTooLarge")
    assert foreseen("- {id: r, match: {path: [/v1.0/**]}, verdict: allow}", refused) == ALLOWED._replace(
        by="r"
    )


def test_more_unknowns_than_are_tried_leave_it_unclear() -> None:
    """A replay evaluates each event in bounded time, even if the draft ruleset reads many unknown facts."""
    filters = "\n".join(
        f"- {{id: r{number}, match: {{path: [/v1.0/users]}}, conditions: [{{header: X{number}, equals: a}}],"
        f" verdict: filter, transforms: {{strip_properties: [p{number}]}}}}"
        for number in range(7)
    )
    after = foreseen(filters, event())
    assert isinstance(after, Unclear)
    assert after.missing == tuple(f"header X{number}" for number in range(7))
    assert len(after.possible) == 16, "as many as are told"


# -- facts that follow from the verdict at the time


def test_the_rules_that_evaluated_it_tell_which_way_a_header_was() -> None:
    then = Rules(draft(CONSISTENT.replace("REST", "block")))
    now = Replay(
        draft(CONSISTENT.replace("REST", "block") + "- {id: new, match: {path: [/a]}, verdict: allow}")
    )
    as_allowed = event(rule_id="eventual")
    as_blocked = blocked(rule_id="rest", reason="rule")
    assert isinstance(now.evaluate(as_allowed), Unclear)
    assert now.evaluate(as_allowed, then) == Outcome("allow", "eventual")
    assert now.evaluate(as_blocked, then) == Outcome("block", "rest")


def test_rules_that_can_t_have_evaluated_it_tell_nothing() -> None:
    others = Rules(draft("- {id: other, match: {path: [/a]}, verdict: allow}"))
    now = Replay(draft(CONSISTENT.replace("REST", "block")))
    assert isinstance(now.evaluate(event(), others), Unclear)


# -- counts


def counted(rules: str, *events: Event) -> Tally:
    replay, tally = Replay(draft(rules)), Tally()
    for one in events:
        if one.reached_rules:
            tally.add(one, one.outcome(None), replay.evaluate(one))
        else:
            tally.pass_over()
    return tally


def shape(group: Group) -> tuple[str, str | None, str, tuple[str, ...], int]:
    key = group.key
    return key.change, key.app, key.before.by, tuple(each.by for each in key.after), group.count


def test_changes_are_grouped_by_rule_and_application_and_samples_are_few() -> None:
    rules = """
- {id: users, match: {path: [/v1.0/users, "/v1.0/users/{id}"]}, verdict: allow}
- {id: mail, match: {path: [/v1.0/mail]}, verdict: filter, transforms: {strip_properties: [body]}}
"""
    tally = counted(
        rules,
        *(event(f"/v1.0/groups/{number}") for number in range(5)),
        event("/v1.0/groups/1", app_id="other"),
        event("/v1.0/users"),
        event("/v1.0/users", rule_id="users"),
        blocked("/v1.0/users/ada"),
        event("/v1.0/mail", verdict="filter", rule_id="mail", transforms=("strip:subject", "strip:body")),
        event("/v1.0/mail", verdict="filter", rule_id="mail", transforms=("strip:body",)),
        event("/v1.0/users", verdict="log_only", rule_id="noted"),
        blocked("/v1.0/users", rule_id=None, reason="invalidToken"),
        blocked("/v1.0/users", rule_id=None, reason="noRuleset"),
    )
    assert [shape(group) for group in tally.sorted_groups()] == [
        ("newlyBlocked", "app", "r1", ("default",), 5),
        ("newlyBlocked", "other", "r1", ("default",), 1),
        ("newlyAllowed", "app", "default", ("users",), 1),
        ("newlyAllowed", "app", "noRuleset", ("users",), 1),
        ("transforms", "app", "mail", ("mail",), 1),
        ("recordedAs", "app", "noted", ("users",), 1),
    ]
    assert (tally.events, tally.unasked, tally.unchanged, tally.by_another_rule) == (14, 1, 3, 1)
    assert (tally.changed, tally.unclear, tally.ungrouped) == (10, 0, 0)
    first = tally.sorted_groups()[0]
    assert [sample.target for sample in first.samples] == [f"/v1.0/groups/{number}" for number in range(3)]


def test_a_block_after_a_filter_is_no_other_for_what_the_filter_hid() -> None:
    rules = "- {id: r1, match: {path: [/v1.0/users]}, verdict: block}"
    tally = counted(rules, blocked(rule_id="r1", transforms=("strip:mail",), upstream_status=200))
    assert (tally.unchanged, tally.by_another_rule) == (1, 0)


# -- for any rules and any request: never another verdict than the whole request's


@settings(max_examples=80)
@given(
    rulesets(), samples(), st.sampled_from([200, 404]), st.sampled_from([b'{"x": "1"}', b'{"x": 7}', b"{}"])
)
def test_what_is_said_of_a_part_is_true_of_the_whole(
    ruleset: Ruleset, sample: SampleRequest, status: int, body: bytes
) -> None:
    """The audit event in this test contains fewer facts than the request.

    The replay reports either the recorded outcome alone, or several possible outcomes that include the
    recorded outcome. If the replay uses the rules that evaluated the request originally, the replayed outcome
    equals the recorded outcome.
    """
    if sample.body == b"{" or not sample.client_ip:
        return  # the body is read as JSON; the stored target is an address
    try:
        target = canonicalise(sample.target)
    except MalformedTarget:
        return
    request = RequestFacts(sample.method, target, sample.headers, sample.client_ip, sample.now, sample.body)
    plan = compile_ruleset(ruleset).plan(sample.method, target)
    before = evaluated(plan, request, None)
    asked = isinstance(before, Decision) and before.verdict != "block"
    whole = evaluated(plan, request, ResponseFacts(status, ((b"x", b"1"),), body))
    decided = whole if isinstance(whole, Decision) else None
    stored = event(
        sample.target,
        sample.method,
        time=datetime.fromtimestamp(sample.now, UTC),
        client_ip=sample.client_ip,
        request_bytes=len(sample.body or b""),
        upstream_status=status if asked else None,
        verdict="block" if decided is None else decided.verdict,
        rule_id=None if decided is None else decided.rule_id,
        reason=whole.reason,
        transforms=None if decided is None or decided.transforms is None else decided.transforms.names,
    )
    replay = Replay(ruleset)
    most_reported = patch("controlplane.workshop.replay._MOST_REPORTED", 20_000)
    with patch("proxy.policy.unknown.MAX_WAYS", 20_000), most_reported:
        for _ in range(2):  # the second time from memory
            after = replay.evaluate(stored)
            possible = (after,) if isinstance(after, Outcome) else after.possible
            assert stored.outcome(None).effect in [each.effect for each in possible]
        unchanged = replay.evaluate(stored, Rules(ruleset))
    assert isinstance(unchanged, Outcome)
    assert unchanged.effect == stored.outcome(None).effect


# -- events that name removed properties, not the filter

FILTERS: Final = """
- {id: hide, match: {path: ["/v1.0/users/**"]}, verdict: filter, transforms: {strip_properties: [mail, fax]}}
- {id: internal, when: response, match: {path: ["/v1.0/users/{id}"]}, verdict: filter,
   conditions: [{status: 200}], transforms: {strip_properties: [phone]}}
"""


def filtered(removed: tuple[str, ...], *rules: str) -> Event:
    return event("/v1.0/users/ada", verdict="filter", rule_id=rules[-1], rule_ids=rules, transforms=removed)


@pytest.mark.parametrize("removed", [(), ("strip:mail",), ("strip:fax", "strip:mail", "strip:phone")])
def test_the_filter_in_force_is_the_one_of_the_rules_of_then(removed: tuple[str, ...]) -> None:
    rules = Rules(draft(FILTERS))
    one = filtered(removed, "hide", "internal")
    before = one.outcome(rules)
    assert before == Outcome("filter", "internal", ("strip:fax", "strip:mail", "strip:phone"))
    tally = Tally()
    tally.add(one, before, Replay(draft(FILTERS)).evaluate(one, rules))
    assert (tally.unchanged, tally.changed, tally.unclear) == (1, 0, 0)


def test_a_draft_that_hides_less_changes_also_what_had_nothing_to_hide() -> None:
    one, tally = filtered((), "hide"), Tally()
    less = draft(FILTERS.replace("mail, fax", "mail"))
    tally.add(one, one.outcome(Rules(draft(FILTERS))), Replay(less).evaluate(one))
    (group,) = tally.sorted_groups()
    assert group.key.change == "transforms"
    assert group.key.before.transforms == ("strip:fax", "strip:mail")


@pytest.mark.parametrize("former", [None, Rules(draft(FILTERS.replace("hide", "other")))])
def test_a_filter_whose_rules_are_not_known_any_more_is_unclear(former: Rules | None) -> None:
    one, tally = filtered(("strip:mail",), "hide"), Tally()
    before = one.outcome(former)
    assert before == Outcome("filter", "hide", None)
    tally.add(one, before, Replay(draft(FILTERS)).evaluate(one))
    (group,) = tally.sorted_groups()
    assert (group.key.change, tally.unclear) == ("unclear", 1)
    tally = Tally()
    tally.add(one, before, Outcome("block", "default"))
    assert [group.key.change for group in tally.sorted_groups()] == ["newlyBlocked"]


def test_events_of_earlier_releases_name_the_filter_themselves() -> None:
    one = event("/v1.0/users/ada", verdict="filter", rule_id="hide", transforms=("strip:mail", "strip:fax"))
    assert one.outcome(None) == Outcome("filter", "hide", ("strip:fax", "strip:mail"))


# -- closed gaps


def gap_of(rules: str, one: Event) -> tuple[str, str] | None:
    replay = Replay(draft(rules))
    gap = replay.gap(one, replay.evaluate(one))
    return None if gap is None else (gap.cause, gap.line)


GROUPS: Final = (
    '- {id: r1, match: {methods: [GET], path: [/v1.0/groups, "/v1.0/groups/{id}"]}, verdict: allow}'
)


def test_a_query_that_implies_what_no_rule_allows_is_told_apart_from_the_path_alone() -> None:
    replay = Replay(draft(GROUPS))
    plain, expanding = event("/v1.0/groups/g1"), event("/v1.0/groups/g1?$expand=members")
    for first, then in ((plain, expanding), (expanding, plain)):
        again = Replay(draft(GROUPS))
        assert {first.target: again.evaluate(first), then.target: again.evaluate(then)} == {
            plain.target: replay.evaluate(plain),
            expanding.target: replay.evaluate(expanding),
        }
    assert replay.evaluate(plain) == ALLOWED
    assert replay.evaluate(expanding) == Outcome("block", "default")


def test_a_request_that_relied_on_what_it_implies_is_named_with_the_line_to_add() -> None:
    cause = "$expand implies GET /v1.0/groups/{id}/members"
    line = 'match: {methods: [GET], path: ["/v1.0/groups/{id}/members"]}'
    assert gap_of(GROUPS, event("/v1.0/groups/g1?$expand=members")) == (cause, line)
    assert gap_of(GROUPS, event("/v1.0/groups?$expand=members")) == (cause, line)
    added = f"{GROUPS}\n- {{id: r2, {line}, verdict: allow}}"
    assert foreseen(added, event("/v1.0/groups/g1?$expand=members")) == ALLOWED
    assert foreseen(added, event("/v1.0/groups?$expand=members")) == ALLOWED


def test_a_rule_that_refuses_what_is_implied_needs_no_line() -> None:
    rules = f'{GROUPS}\n- {{id: no, match: {{path: ["/v1.0/groups/{{id}}/members"]}}, verdict: block}}'
    assert gap_of(rules, event("/v1.0/groups/g1?$expand=members")) == (
        "$expand implies GET /v1.0/groups/{id}/members",
        "",
    )


def test_a_request_that_relied_on_an_operation_in_a_key_s_place_is_named_with_the_path_to_write_out() -> None:
    rules = '- {id: r1, match: {methods: [GET], path: ["/v1.0/users/{u}/chats/{c}"]}, verdict: allow}'
    one = event("/v1.0/users/u1/chats/getAllMessages")
    line = 'match: {methods: [GET], path: ["/v1.0/users/{id}/chats/getallmessages"]}'
    assert gap_of(rules, one) == ("`r1` no longer takes the operation getallmessages for a key", line)
    assert foreseen(f"{rules}\n- {{id: r2, {line}, verdict: allow}}", one) == Outcome("allow", "r2")


def test_what_was_blocked_before_or_is_allowed_still_used_no_gap() -> None:
    assert gap_of(GROUPS, blocked("/v1.0/groups/g1?$expand=members")) is None
    assert gap_of(GROUPS, event("/v1.0/groups/g1")) is None
    assert gap_of(GROUPS, event("/v1.0/devices")) is None


def test_groups_of_changes_have_their_gap() -> None:
    replay, tally = Replay(draft(GROUPS)), Tally()
    for target in ("/v1.0/groups/g1?$expand=members", "/v1.0/groups/g2?$expand=members", "/v1.0/devices"):
        one = event(target)
        after = replay.evaluate(one)
        tally.add(one, one.outcome(None), after, replay.gap(one, after))
    found = {group.key.gap.cause if group.key.gap else "": group.count for group in tally.sorted_groups()}
    assert found == {"$expand implies GET /v1.0/groups/{id}/members": 2, "": 1}


def test_what_a_body_implied_is_evaluated_by_its_own_address() -> None:
    """Bodies are not stored, but the event names the implied request that decided the verdict."""
    one = blocked(
        "/v1.0/groups",
        "POST",
        rule_id="no",
        reason="impliedRequest",
        implied_request="members@odata.bind: POST /v1.0/groups/{any}/members/$ref",
    )
    groups = "- {id: r1, match: {path: [/v1.0/groups]}, verdict: allow}"
    members = "- {id: no, match: {path: ['/v1.0/groups/{id}/members/**']}, verdict: block}"
    opened = "- {id: ok, match: {path: ['/v1.0/groups/{id}/members/**']}, verdict: allow}"
    assert foreseen(f"{members}\n{groups}", one) == Outcome("block", "no")
    assert foreseen(groups, one) == Outcome("block", "default")
    assert foreseen(f"{opened}\n{groups}", one) == Outcome("allow", "r1")
