"""Tests of rules with `until`, the time at which a rule ends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.workshop.advice import ruleset_advice
from controlplane.workshop.cases import run_cases
from controlplane.workshop.explain import Explainer, SampleRequest
from controlplane.workshop.replay import Event, Outcome, Replay
from controlplane.workshop.ruleset_diff import diff_rulesets
from proxy.policy.decision import Decision
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from tests.pure.rules import compiled, decide, decide_response

END = datetime(2027, 1, 31, tzinfo=UTC).timestamp()
DAY = 86400


def grant(until: str = "2027-01-31T00:00:00Z", verdict: str = "allow", more: str = "") -> str:
    return f"""\
- id: grant
  match: {{path: [/v1.0/users]}}
  until: {until}
  verdict: {verdict}
{more}"""


def ruleset(rule: str, default: str = "block") -> str:
    indented = "\n".join("  " + line for line in rule.splitlines())
    return f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented}\n"


def parsed(rule: str, default: str = "block") -> Ruleset:
    return parse_ruleset(ruleset(rule, default))


@pytest.mark.parametrize(
    ("now", "verdict"), [(0, "allow"), (END - 0.001, "allow"), (END, "block"), (END + 9e8, "block")]
)
def test_a_grant_holds_before_its_end_and_no_more_at_it(now: float, verdict: str) -> None:
    assert decide(compiled(grant()), "/v1.0/users", now=now).verdict == verdict


@pytest.mark.parametrize(
    "until",
    [
        "2027-01-31T00:00:00Z",
        "'2027-01-31T00:00:00Z'",
        "2027-01-31t00:00:00z",
        "2027-01-31T01:00:00+01:00",
        "2027-01-30T18:30:00.000-05:30",
    ],
)
def test_the_same_moment_in_every_spelling(until: str) -> None:
    assert parsed(grant(until)) == parsed(grant())
    assert not diff_rulesets(parsed(grant(until)), parsed(grant()))


@pytest.mark.parametrize(
    ("verdict", "before", "after"),
    [("block", "block", "allow"), ("filter", "filter", "allow"), ("log_only", "log_only", "allow")],
)
def test_a_rule_of_any_verdict_ends(verdict: str, before: str, after: str) -> None:
    more = "  transforms: {strip_properties: [mail]}\n" if verdict == "filter" else ""
    rules = compiled(grant(verdict=verdict, more=more), "allow")
    assert decide(rules, "/v1.0/users", now=END - 1).verdict == before
    assert decide(rules, "/v1.0/users", now=END).verdict == after


def test_a_response_rule_ends() -> None:
    rules = compiled(grant(verdict="block", more="  when: response\n"), "allow")
    assert decide_response(rules, "/v1.0/users").verdict == "block"
    ended = compiled(grant("2020-01-01T00:00:00Z", "block", "  when: response\n"), "allow")
    assert decide_response(ended, "/v1.0/users").verdict == "allow"


def test_a_filter_that_has_ended_blocks_no_path_that_names_what_it_hid() -> None:
    rules = compiled(
        grant(verdict="filter", more="  transforms: {strip_properties: [mail]}\n").replace(
            "/v1.0/users", '"/v1.0/users/{id}"'
        ),
        "allow",
    )
    assert decide(rules, "/v1.0/users/ada/mail", now=END - 1).verdict == "block"
    assert decide(rules, "/v1.0/users/ada/mail", now=END).verdict == "allow"


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("2027-01-31", "needs a date, a time and an offset from UTC"),
        ("2027-01-31T00:00:00", "needs a date, a time and an offset from UTC"),
        ("2027-01-31 00:00:00Z", "must be an RFC 3339 time"),
        ("2027-02-30T00:00:00Z", "the date in `until` does not exist"),
        ("2027-01-31T24:00:00Z", "must be an RFC 3339 time"),
        ("2027-01-31T23:59:60Z", "must be an RFC 3339 time"),
        ("tomorrow", "must be an RFC 3339 time"),
        ("1800000000", "needs a date, a time and an offset"),
        ("0001-01-01T00:00:00+23:00", "between the years"),
        ("９027-01-31T00:00:00Z", "must be an RFC 3339 time"),
        ("[2027-01-31T00:00:00Z]", "expected text, found a list"),
        ("", "`until` needs a moment"),
    ],
)
def test_what_is_no_moment_is_named_with_its_place(until: str, message: str) -> None:
    with pytest.raises(InvalidRuleset) as raised:
        parsed(grant(until))
    (problem,) = raised.value.problems
    assert (problem.line, problem.where) == (7, "rules[0].until")
    assert message in problem.message


def hints(rule: str, now: float, default: str = "block") -> list[tuple[int, str]]:
    text = ruleset(rule, default)
    found = ruleset_advice(text, parse_ruleset(text), now)
    return [(one.line, one.message) for one in found if one.where == "rules[0].until"]


def test_check_names_a_rule_that_has_ended() -> None:
    ((line, message),) = hints(grant(), END)
    assert line == 7
    assert message.startswith("this rule ended at 2027-01-31T00:00:00Z: it no longer allows anything")


@pytest.mark.parametrize(
    ("left", "said"),
    [(14 * DAY, "14 days"), (DAY, "1 day"), (DAY - 1, "23 hours"), (60, "less than an hour")],
)
def test_check_names_a_rule_that_ends_within_fourteen_days(left: int, said: str) -> None:
    ((_, message),) = hints(grant(), END - left)
    assert message == f"this rule ends at 2027-01-31T00:00:00Z, {said} from now"


def test_check_is_silent_on_a_grant_that_ends_later() -> None:
    assert hints(grant(), END - 14 * DAY - 1) == []


def test_check_warns_of_a_block_that_ends_by_itself_however_late() -> None:
    ((_, message),) = hints(grant(verdict="block"), 0)
    assert message.startswith("this block ends by itself at 2027-01-31T00:00:00Z: after that, later rules")


def test_check_takes_no_rule_for_unreachable_behind_one_that_ends() -> None:
    text = ruleset(grant() + "- {id: later, match: {path: [/v1.0/users]}, verdict: block}")
    assert ruleset_advice(text, parse_ruleset(text), 0) == ()


def test_explain_says_that_a_rule_ended() -> None:
    sample = SampleRequest("GET", "/v1.0/users", now=END + 60)
    ((attempt,),) = [account.attempts for account in Explainer(parsed(grant())).explain(sample).accounts]
    (finding,) = attempt.findings
    assert (finding.part, finding.held) == ("until", "no")
    assert (finding.asked, finding.found) == (
        "a time before 2027-01-31T00:00:00Z",
        ("2027-01-31T00:01:00Z",),
    )


def test_a_case_says_its_time_or_proves_nothing() -> None:
    case = "cases:\n  - request: GET /v1.0/users\n    expect: {verdict: allow}\n"
    (failure,) = run_cases(parsed(grant()), case).failures
    assert "the rule grant depends on the time" in failure.message
    timed = case.replace("    expect", "    time: 2027-01-30T00:00:00Z\n    expect")
    assert run_cases(parsed(grant()), timed).failures == ()


def event(moment: float) -> Event:
    return Event(
        id="1",
        time=datetime.fromtimestamp(moment, UTC),
        method="GET",
        path="/v1.0/users",
        verdict="allow",
        rule_id="grant",
        client_ip="192.0.2.1",
        upstream_status=200,
        reason="rule",
        request_bytes=0,
    )


def test_replay_evaluates_each_event_at_its_own_time() -> None:
    draft = Replay(parsed(grant()))
    outcomes = [draft.evaluate(event(moment)) for moment in (END - 1, END, END - 0.5)]
    assert [one.verdict for one in outcomes if isinstance(one, Outcome)] == ["allow", "block", "allow"]
    assert draft.ended_before(END) == (("grant", END),)
    assert draft.ended_before(END - 1) == ()


def test_an_unknown_time_is_what_the_verdict_hangs_on() -> None:
    sample = SampleRequest("GET", "/v1.0/users", unknown=frozenset({"time"}))
    report = Explainer(parsed(grant())).explain(sample)
    assert report.missing == ("the time of the request",)
    assert {one.verdict for one in report.possible if isinstance(one, Decision)} == {"allow", "block"}
