"""Tests of the replay of a draft on stored events, and of explanations of stored events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from controlplane.operations import recorded, replays
from controlplane.operations.actor import Actor, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import CheckRuleset, Source, check
from controlplane.operations.event_explanations import ExplainEvent, explain_event
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.replays import Replayed, ReplayRuleset, replay, slot, together
from controlplane.operations.suggestions import SuggestRuleset, suggest_ruleset
from controlplane.store import blocks
from controlplane.store.interface import NotFound, StoreBusy
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.controlplane.plane import Plane, ProxyClient, context_of
from tests.controlplane.plane import event as stored_event

OPERATOR = local_actor("ada")
RULES = """version: 1
name: hr
rules:
  - id: eventual
    match: {path: [/v1.0/users]}
    conditions: [{header: ConsistencyLevel, equals: eventual}]
    verdict: allow
  - id: groups
    match: {path: ["/v1.0/groups/**"]}
    verdict: allow
"""
DRAFT = RULES.replace("/v1.0/groups/**", "/v1.0/groups/{id}")


class Traffic:
    """Events of one application, which happened an hour or more before noon."""

    def __init__(self, plane: Plane, proxy: ProxyClient, app_id: str, number: int = 0) -> None:
        self._plane = plane
        self._proxy = proxy
        self._app_id = app_id
        self._number = number

    async def send(self, events: Iterable[dict[str, Any]]) -> None:
        batch = []
        for members in events:
            self._number += 1
            known = {"appId": self._app_id, "time": "2026-11-21T11:00:00.000Z", "rulesetVersion": 1}
            known |= {"clientIp": "10.1.2.3", "upstreamStatus": 200, "requestBytes": 0, "reason": "rule"}
            org_id = self._proxy.org_ids[0]
            batch.append(stored_event(org_id, self._number, **known | members))
        response = await self._proxy.audit({"batchId": f"b{self._number}", "events": batch})
        assert response.status == 202


@pytest.fixture
async def traffic(plane: Plane, proxy: ProxyClient) -> Traffic:
    await plane.ruleset("acme", "hr", RULES)
    app = (await plane.inventory.add_app("payroll", "acme", "hr")).app
    return Traffic(plane, proxy, app.app_id)


async def replayed(context: OperationContext, actor: Actor = OPERATOR, **members: Any) -> Replayed:
    known: dict[str, Any] = {"source": Source(yaml=DRAFT), "org": "acme", **members}
    return await replay.perform(context, actor, ReplayRuleset(**known))


def group_path(number: int, *more: str) -> dict[str, Any]:
    return {"path": "/".join(["/v1.0/groups", str(number), *more]), "ruleId": "groups"}


def shapes(report: Replayed) -> list[tuple[str, str | None, str, tuple[str, ...], int]]:
    return [
        (each.change, each.app, each.before.by, tuple(one.by for one in each.after), each.count)
        for each in report.groups
    ]


async def test_events_that_a_draft_would_evaluate_otherwise_are_told_by_rule_and_application(
    plane: Plane, traffic: Traffic
) -> None:
    await traffic.send(group_path(number) for number in range(20))
    await traffic.send(group_path(number, "members") for number in range(5))
    await traffic.send([{"path": "/v1.0/x", "verdict": "block", "reason": "invalidToken", "status": 401}])
    report = await replayed(context_of(plane))
    assert shapes(report) == [("newlyBlocked", "payroll", "groups", ("default",), 5)]
    assert (report.events, report.unasked, report.unchanged, report.changed, report.unclear) == (
        26,
        1,
        20,
        5,
        0,
    )
    assert (report.looked_at, report.expected, report.next) == (26, 26, None)
    assert report.from_ == "2026-11-20T12:00:00.000Z"
    assert [sample.target for sample in report.groups[0].samples] == [
        f"/v1.0/groups/{number}/members" for number in range(3)
    ]
    assert report.groups[0].first == report.groups[0].last == "2026-11-21T11:00:00.000Z"


async def test_a_draft_is_compared_with_the_active_version_if_one_was_published_since(
    plane: Plane, traffic: Traffic
) -> None:
    await traffic.send(group_path(number, "members") for number in range(5))
    await traffic.send([{"ruleId": "eventual", "path": "/v1.0/users", "rulesetVersion": 7}])
    await plane.ruleset("acme", "hr", DRAFT)
    context = context_of(plane)

    async def against_active(yaml: str) -> Replayed:
        return await replayed(context, source=Source(yaml=yaml), against="active")

    comment_only = await against_active(f"# nothing else\n{DRAFT}")
    assert (comment_only.changed, comment_only.unclear, comment_only.unchanged) == (0, 0, 6)
    assert shapes(await replayed(context))[0] == ("newlyBlocked", "payroll", "groups", ("default",), 5)

    rollback = await against_active(RULES)
    assert shapes(rollback) == [("newlyAllowed", "payroll", "default", ("groups",), 5)]
    (group,) = rollback.groups
    assert group.recorded is not None
    assert (group.recorded.verdict, group.recorded.by) == ("allow", "groups")
    # the header leads to the same decision in both rulesets
    assert (rollback.unclear, rollback.unchanged) == (0, 1)

    other_header = await against_active(DRAFT.replace("equals: eventual", "equals: other"))
    assert (other_header.changed, other_header.unclear) == (0, 1)


async def test_rules_that_ended_within_the_time_are_named(plane: Plane, traffic: Traffic) -> None:
    """Replay evaluates each event at the time when the event happened."""
    await traffic.send([group_path(1), {**group_path(2), "time": "2026-11-21T11:30:00.000Z"}])
    until = "    until: 2026-11-21T11:15:00Z\n    verdict: allow\n"
    draft = RULES.removesuffix("    verdict: allow\n") + until
    report = await replayed(context_of(plane), source=Source(yaml=draft))
    assert shapes(report) == [("newlyBlocked", "payroll", "groups", ("default",), 1)]
    assert [(each.rule_id, each.until) for each in report.ended] == [("groups", "2026-11-21T11:15:00Z")]
    before = await replayed(context_of(plane), source=Source(yaml=draft), to="2026-11-21T11:10:00Z")
    assert (before.changed, before.ended) == (0, ())


async def test_what_the_rules_of_then_tell_is_not_unclear(plane: Plane, traffic: Traffic) -> None:
    """The event has no header fields, but the stored ruleset version shows how a header was evaluated."""
    blocked = {"verdict": "block", "ruleId": "default", "reason": "default", "upstreamStatus": None}
    await traffic.send([{"ruleId": "eventual"}, blocked])
    report = await replayed(context_of(plane))
    assert (report.unchanged, report.unclear) == (2, 0)
    await traffic.send([{"ruleId": "eventual", "rulesetVersion": 7}, {**blocked, "appId": None}])
    report = await replayed(context_of(plane), every_app=True)
    assert (report.unchanged, report.unclear) == (2, 2)
    assert {group.missing for group in report.groups} == {("header ConsistencyLevel",)}


async def test_only_the_time_the_application_and_the_filter_asked_for_are_evaluated(
    plane: Plane, traffic: Traffic
) -> None:
    await plane.inventory.add_app("other", "acme", "hr")
    times = [f"2026-11-21T{hour:02}:30:00.000Z" for hour in range(6, 12)]
    await traffic.send({**group_path(1, "members"), "time": time} for time in times)
    context = context_of(plane)
    for asked, events in (
        ({"hours": 2.0}, 2),
        ({"from_": "2026-11-21T07:30:00Z", "to": "2026-11-21T09:30:00Z"}, 2),
        ({"from_": "-3h"}, 3),
        ({"to": "-3h"}, 3),
        ({"app": "payroll"}, 6),
        ({"app": "other"}, 0),
        ({"filter": "path:/v1.0/groups/*"}, 6),
        ({"filter": "app:payroll -path:*members"}, 0),
    ):
        assert (await replayed(context, **asked)).events == events, asked


async def test_only_applications_that_the_draft_would_be_in_force_for_are_evaluated(
    plane: Plane, proxy: ProxyClient, traffic: Traffic
) -> None:
    await plane.ruleset("acme", "other", RULES.replace("name: hr", "name: other"))
    elsewhere = (await plane.inventory.add_app("bound-elsewhere", "acme", "other")).app
    await traffic.send([group_path(1, "members")])
    await Traffic(plane, proxy, elsewhere.app_id, 10).send([group_path(2, "members")])
    context = context_of(plane)
    new = Source(yaml=DRAFT.replace("name: hr", "name: new"))
    for members, apps, events in (
        ({}, ("payroll",), 1),
        ({"every_app": True}, (), 2),
        ({"app": "bound-elsewhere"}, ("bound-elsewhere",), 1),
        ({"source": new}, (), 2),  # no app is assigned to it yet
    ):
        report = await replayed(context, **members)
        assert (report.apps, report.events) == (apps, events), members


async def test_further_ways_of_change_are_counted_once_there_is_no_room_to_tell_them(
    plane: Plane, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "MAX_GROUPS", 1)
    await traffic.send([group_path(1, "members"), group_path(2, "members")])
    report = await replayed(context_of(plane))
    (group,) = report.groups
    other = msgspec.structs.replace(report, groups=(msgspec.structs.replace(group, app_id="another"),))
    both = together(report, other)
    assert (both.groups, both.ungrouped) == ((group,), 2)
    assert together(report, report).groups[0].count == 4


async def test_a_long_replay_goes_on_where_the_last_response_ended(
    plane: Plane, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay counts each event once, even if it takes long and new events arrive during the replay."""
    monkeypatch.setattr(blocks, "MAX_SLICE_BYTES", 1)  # one batch at a time
    for hour in (9, 11, 10):
        time = f"2026-11-21T{hour:02}:00:00.000Z"
        await traffic.send({**group_path(number, "members"), "time": time} for number in range(10))
    context = context_of(plane)
    report = await replayed(context, limit=1)
    assert (report.events, report.expected, report.groups[0].first) == (10, 30, "2026-11-21T11:00:00.000Z")
    plane.clock.advance(hours=20)
    await traffic.send([{**group_path(1, "members"), "time": "2026-11-22T07:00:00.000Z"}])
    while report.next is not None:
        report = together(report, await replayed(context, limit=1, cursor=report.next))
    assert (report.events, report.changed, report.looked_at) == (30, 30, 30)
    (group,) = report.groups
    assert (group.count, group.first, group.last) == (
        30,
        "2026-11-21T09:00:00.000Z",
        "2026-11-21T11:00:00.000Z",
    )
    assert len(group.samples) == 3


async def test_a_cursor_tells_a_tenant_nothing_of_others(
    plane: Plane, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay cursor holds a position that counts the events of every organisation."""
    monkeypatch.setattr(blocks, "MAX_SLICE_BYTES", 1)
    for number in range(3):
        await traffic.send([group_path(number)])
    context = context_of(plane)
    org_id = (await plane.inventory.org("acme")).org_id
    viewer = Actor("viewer", {org_id: "viewer"})
    report = await replayed(context, viewer, limit=1)
    assert report.next is not None
    assert set(report.next) - set("0123456789-"), "no numbers to be read"
    events = report.events
    while report.next is not None:
        report = await replayed(context, viewer, limit=1, cursor=report.next)
        events += report.events
    assert events == 3
    forged = "0-1795262400000-1795262400000-7"
    with pytest.raises(InvalidRequest, match="cursor"):
        await replayed(context, viewer, cursor=forged)


@pytest.mark.parametrize(
    "members",
    [
        {"from_": "-9999999w", "to": "9999-12-31T23:59:59Z"},
        {"from_": "0001-01-01"},
        {"cursor": "0-999999999999999-999999999999999-999999999999999"},
    ],
)
async def test_no_time_is_too_long_ago_or_too_far_ahead(
    plane: Plane, traffic: Traffic, members: dict[str, Any]
) -> None:
    await traffic.send([group_path(1)])
    assert (await replayed(context_of(plane), **members)).events == 1


async def test_what_another_s_proxy_calls_an_event_ends_no_replay(plane: Plane, traffic: Traffic) -> None:
    odd: list[dict[str, Any]] = [
        {"time": "0001-01-01T00:00:00Z"},
        {"time": "9999-12-31T23:59:59+00:00"},
        {"query": 7},
        {"appId": []},
    ]
    odd += [{"path": "nowhere"}, {"path": "/%"}, {"method": "\u2028"}, {"upstreamStatus": 1e300}]
    await traffic.send({"ruleId": "r", **members} for members in odd)
    gated = DRAFT.replace("verdict: allow", "time: {days: [mon], timezone: Asia/Tokyo}\n    verdict: allow")
    report = await replayed(context_of(plane), every_app=True, from_="0001-01-01", source=Source(yaml=gated))
    assert (report.looked_at, report.events) == (8, 4)
    with pytest.raises(InvalidRequest, match="did not come from a proxy"):
        await explain_event.perform(context_of(plane), OPERATOR, ExplainEvent(org="acme", id="event-1"))


async def test_a_block_that_began_long_before_the_time_is_looked_through(
    plane: Plane, traffic: Traffic
) -> None:
    """A proxy that was offline for a week delivers one batch that covers the whole week."""
    times = ("2026-11-14T11:00:00.000Z", "2026-11-21T11:00:00.000Z")
    await traffic.send({**group_path(1, "members"), "time": time} for time in times)
    assert (await replayed(context_of(plane))).events == 1


async def test_the_event_loop_goes_on(
    plane: Plane, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "SLICE_SECONDS", 0)
    await traffic.send(group_path(number) for number in range(500))
    running = asyncio.create_task(replayed(context_of(plane)))
    slots = 0
    while not running.done():
        await asyncio.sleep(0)
        slots += 1
    assert running.result().events == 500
    assert slots > 500


async def test_two_of_one_operator_and_six_in_all_go_through_events_at_once(
    plane: Plane, traffic: Traffic
) -> None:
    context = context_of(plane)
    others = [local_actor(f"operator-{number}") for number in range(5)]
    with slot(OPERATOR), slot(others[0]):
        await replayed(context)
        with slot(OPERATOR):
            with pytest.raises(StoreBusy):
                await replayed(context)
            with pytest.raises(StoreBusy):
                await suggest_ruleset.perform(context, OPERATOR, SuggestRuleset(org="acme", app="payroll"))
            with slot(others[1]), slot(others[2]):
                await replayed(context, others[3])
                with slot(others[3]), pytest.raises(StoreBusy):
                    await replayed(context, others[4])
    await replayed(context)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"hours": 1.0, "from_": "-2h"}, "give the period either as hours, or as from and to"),
        ({"from_": "noon"}, "from: 'noon' is not a time"),
        ({"from_": "-1h", "to": "-2h"}, "from: must not be after `to`"),
        ({"filter": "verdikt:block"}, "filter: column 1: unknown field 'verdikt'"),
        ({"cursor": "x"}, "cursor: is not a cursor that a replay returned"),
        ({"source": Source(yaml="rules: []", label="hr.yaml")}, "hr.yaml:1:1: "),
    ],
)
async def test_what_can_t_be_replayed_is_told(
    plane: Plane, traffic: Traffic, members: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await replayed(context_of(plane), **members)
    assert refused.value.problems[0].startswith(said)


async def test_another_organisation_s_traffic_is_unknown(plane: Plane, traffic: Traffic) -> None:
    stranger = Actor("stranger", {await plane.org("globex"): "admin"})
    with pytest.raises(NotFound):
        await replayed(context_of(plane), stranger)
    await traffic.send([group_path(1)])
    with pytest.raises(NotFound):
        await explain_event.perform(context_of(plane), stranger, ExplainEvent(org="acme", id="event-1"))


# -- suggested rules --------------------------------------------------------------------------------


async def test_a_suggested_ruleset_blocks_nothing_of_the_traffic_that_it_was_made_of(
    plane: Plane, traffic: Traffic
) -> None:
    seen = [
        *(f"GET /v1.0/users/{number}/messages" for number in range(5)),
        "GET /v1.0/users?$top=20&$select=id",
        "PATCH /v1.0/users('ada')",
        "POST /v1.0/$batch",
        "GET /v1.0/me/drive/root:/a/b:/content",
        "DELETE /v1.0/groups/1/members/2/$ref",
    ]
    for request in seen:
        method, _, target = request.partition(" ")
        path, _, query = target.partition("?")
        await traffic.send([{"method": method, "path": path, "query": query or None, "ruleId": "r1"}])
    blocked = {"verdict": "block", "ruleId": "no", "path": "/v1.0/secrets"}
    await traffic.send([blocked, {"verdict": "block", "reason": "invalidToken", "path": "/v1.0/x"}])
    context = context_of(plane)
    asked = SuggestRuleset(org="acme", app="payroll")
    found = await suggest_ruleset.perform(context, OPERATOR, asked)
    assert (found.requests, found.blocked, found.left_out, found.complete) == (10, 1, 0, True)
    assert found.yaml.splitlines()[:3] == [
        ("# Suggested from 10 requests of payroll, 2026-11-20T12:00:00.000Z to 2026-11-21T12:00:00.000Z."),
        (
            "# This allows only the recorded requests, but from anywhere at any time: "
            "read it before it goes live."
        ),
        "# Left out: 1 request that was blocked.",
    ]
    assert {path for rule in found.rules for path in rule.paths} == {
        "/v1.0/users",
        "/v1.0/users/{user-id}/messages",
        "/v1.0/users/ada",
        "/v1.0/me/drive/items/{item-id}/content",
        "/v1.0/groups/{group-id}/members/{member-id}/$ref",
    }
    assert (await check.perform(context, OPERATOR, CheckRuleset(yaml=found.yaml))).warnings == ()
    report = await replayed(context, source=Source(yaml=found.yaml))
    assert (report.groups, report.unchanged, report.unasked) == ((), 11, 1)
    both = await suggest_ruleset.perform(
        context, OPERATOR, SuggestRuleset(org="acme", app="payroll", include_blocked=True, name="all")
    )
    assert (both.blocked, both.requests) == (0, 11)
    assert "/v1.0/secrets" in both.yaml
    assert "name: all" in both.yaml


async def test_what_a_suggested_filter_blocks_is_left_out_and_never_shown_whole(
    plane: Plane, traffic: Traffic
) -> None:
    """The id of a person in this test is also the name of a property."""
    hidden = {"verdict": "filter", "ruleId": "r", "transforms": ["strip:mail"]}
    paths = ("/v1.0/users/mail", "/v1.0/users/7", "/v1.0/groups")
    await traffic.send({**hidden, "path": path} for path in paths)
    context = context_of(plane)
    found = await suggest_ruleset.perform(context, OPERATOR, SuggestRuleset(org="acme", app="payroll"))
    verdicts = {rule.match.path[0]: rule.verdict for rule in parse_ruleset(found.yaml).rules}
    assert verdicts == {"/v1.0/users/{user-id}": "filter", "/v1.0/groups": "filter"}
    assert "# Left out, and so blocked: 1 request that a filter below blocks." in found.yaml
    assert found.yaml.count("guard_queries: true") == 2
    assert (found.requests, found.left_out) == (2, 1)
    report = await replayed(context, source=Source(yaml=found.yaml))
    assert [(group.change, group.count) for group in report.groups] == [("newlyBlocked", 1)]


async def test_a_suggested_filter_hides_what_its_rule_was_to_hide(plane: Plane, traffic: Traffic) -> None:
    """The audit event of a response without hidden properties names no transform."""
    text = """version: 1
name: hr
rules:
  - {id: hide, match: {path: ["/v1.0/users/**"]}, verdict: filter, transforms: {strip_properties: [a, b]}}
"""
    await plane.ruleset("acme", "hr", text)
    filtered: dict[str, Any] = {"verdict": "filter", "path": "/v1.0/users/7", "rulesetVersion": 2}
    filtered["ruleId"] = "hide"
    filtered["ruleIds"] = ["hide"]
    await traffic.send([{**filtered, "transforms": []}, {**filtered, "transforms": ["strip:b"]}])
    await traffic.send([{**filtered, "path": "/v1.0/groups", "ruleId": "gone", "ruleIds": ["gone"]}])
    asked = SuggestRuleset(org="acme", app="payroll")
    found = await suggest_ruleset.perform(context_of(plane), OPERATOR, asked)
    (rule,) = parse_ruleset(found.yaml).rules
    assert rule.transforms is not None
    assert (rule.match.path, rule.transforms.strip) == (("/v1.0/users/{user-id}",), ("a", "b"))
    assert (found.requests, found.left_out) == (2, 1)


async def test_a_suggestion_out_of_a_part_of_the_events_says_so(
    plane: Plane, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MAX_SLICE_BYTES", 1)
    await traffic.send([{"path": "/v1.0/old", "ruleId": "r", "time": "2026-11-21T10:00:00.000Z"}])
    await traffic.send([{"path": "/v1.0/new", "ruleId": "r", "time": "2026-11-21T11:00:00.000Z"}])
    asked = SuggestRuleset(org="acme", app="payroll", limit=1)
    found = await suggest_ruleset.perform(context_of(plane), OPERATOR, asked)
    assert not found.complete
    assert [rule.paths for rule in found.rules] == [("/v1.0/new",)]


# -- one event explained


async def test_an_event_is_explained_under_the_version_that_evaluated_it(
    plane: Plane, traffic: Traffic
) -> None:
    await traffic.send([group_path(1, "members"), {"ruleId": "eventual"}])
    await plane.ruleset("acme", "hr", DRAFT)
    context = context_of(plane)
    report = await explain_event.perform(context, OPERATOR, ExplainEvent(org="acme", id="event-1"))
    assert (report.judged_by, report.verdict, report.rule_id) == ("hr@1", "allow", "groups")
    assert (report.recorded.verdict, report.recorded.by, report.fits) == ("allow", "groups", True)
    assert [rule.outcome for rule in report.readings[0].rules] == ["unmatched", "decides"]

    report = await explain_event.perform(context, OPERATOR, ExplainEvent(org="acme", id="event-2"))
    assert (report.verdict, report.missing) == (None, ("header ConsistencyLevel",))
    assert [(one.verdict, one.rule_id) for one in report.possible] == [
        ("block", "default"),
        ("allow", "eventual"),
    ]
    first = report.readings[0].rules[0]
    assert (first.outcome, first.asked[-1].part, first.asked[-1].holds) == (
        "unknown",
        "header ConsistencyLevel",
        "unknown",
    )
    assert report.fits


async def test_an_event_is_explained_under_a_draft(plane: Plane, traffic: Traffic) -> None:
    await traffic.send([group_path(1, "members")])
    asked = ExplainEvent(org="acme", id="event-1", source=Source(yaml=DRAFT, label="draft"))
    report = await explain_event.perform(context_of(plane), OPERATOR, asked)
    assert (report.judged_by, report.verdict, report.rule_id, report.fits) == (
        "draft",
        "block",
        "default",
        False,
    )


async def test_an_event_whose_rules_are_gone_or_that_never_was_says_so(
    plane: Plane, traffic: Traffic
) -> None:
    await traffic.send([{"rulesetVersion": 9}, {"path": "/v1.0/" + "x" * 3000 + "…[cut]"}])
    context = context_of(plane)
    with pytest.raises(NotFound, match="name a ruleset"):
        await explain_event.perform(context, OPERATOR, ExplainEvent(org="acme", id="event-1"))
    with pytest.raises(InvalidRequest, match="can't be evaluated: its target was too long to store in full"):
        await explain_event.perform(context, OPERATOR, ExplainEvent(org="acme", id="event-2"))
    with pytest.raises(NotFound, match="it may have been purged"):
        await explain_event.perform(context, OPERATOR, ExplainEvent(org="acme", id="event-9"))


async def test_a_request_that_no_rule_was_asked_about_says_why(plane: Plane, traffic: Traffic) -> None:
    await traffic.send([{"verdict": "block", "reason": "invalidToken", "status": 401}])
    asked = ExplainEvent(org="acme", id="event-1", source=Source(yaml=DRAFT))
    report = await explain_event.perform(context_of(plane), OPERATOR, asked)
    assert not report.reached_rules
    assert report.recorded.by == "invalidToken"
    assert report.recorded_reason.startswith("the request's proxy token is expired")


# -- events that name removed properties, which may be fewer than the filter hides

FILTERING = """version: 1
name: hr
rules:
  - id: people
    match: {path: ["/v1.0/users/**"]}
    verdict: filter
    transforms: {strip_properties: [mail, fax]}
"""


async def test_a_filter_is_compared_by_the_rules_of_then_and_not_by_what_it_removed(
    plane: Plane, traffic: Traffic
) -> None:
    await plane.ruleset("acme", "hr", FILTERING)  # version 2
    hidden = {"verdict": "filter", "ruleId": "people", "ruleIds": ["people"], "rulesetVersion": 2}
    removed: list[list[str]] = [[], ["strip:mail"], ["strip:mail", "strip:fax"]]
    await traffic.send(
        {**hidden, "path": f"/v1.0/users/{number}", "transforms": each} for number, each in enumerate(removed)
    )
    context = context_of(plane)
    report = await replayed(context, source=Source(yaml=FILTERING))
    assert (report.unchanged, report.changed, report.unclear) == (3, 0, 0)
    report = await replayed(context, source=Source(yaml=FILTERING.replace(", fax", "")))
    (group,) = report.groups
    assert (group.change, group.count) == ("transforms", 3)
    assert group.before.transforms == ("strip:fax", "strip:mail")
    found = await suggest_ruleset.perform(context, OPERATOR, SuggestRuleset(org="acme", app="payroll"))
    (rule,) = parse_ruleset(found.yaml).rules
    assert rule.transforms is not None
    assert sorted(rule.transforms.strip) == ["fax", "mail"]


async def test_a_filter_whose_version_is_not_known_any_more_is_unclear(
    plane: Plane, traffic: Traffic
) -> None:
    gone = {"verdict": "filter", "ruleId": "people", "ruleIds": ["people"], "rulesetVersion": 9}
    await traffic.send([{**gone, "path": "/v1.0/users/1", "transforms": ["strip:mail"]}])
    report = await replayed(context_of(plane), source=Source(yaml=FILTERING))
    (group,) = report.groups
    assert (group.change, group.before.transforms) == ("unclear", None)
