"""Measure a replay: evaluate a thousand stored events with a draft ruleset, and count the verdicts.

The replayed events are bytes, in the form that the command `ruleset replay` reads from the store.
"""

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from controlplane.workshop.replay import Event, Replay, Tally
from proxy.policy.ruleset_yaml import parse_ruleset

RULES = """
version: 1
name: directory
rules:
  - {id: eventual, match: {path: [/v1.0/groups]}, conditions: [{CONDITION}], verdict: allow}
  - {id: hide, match: {path: [/v1.0/users, "/v1.0/users/{id}"]}, verdict: filter, guard_queries: true,
     transforms: {strip_properties: [mobilePhone]}}
  - {id: members, match: {path: ["/v1.0/groups/{id}/members"]}, verdict: allow}
"""
KNOWN = "query: $top, at_most: 100"
NOT_STORED = "header: ConsistencyLevel, equals: eventual"
COUNT = 1000


def event(number: int) -> bytes:
    user = UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)
    target = [
        f"/v1.0/users/{user}",
        f"/v1.0/users?$top={number % 100}&$select=id,displayName",
        f"/v1.0/groups/{user}/members",
        "/v1.0/groups?$top=50",
        f"/v1.0/users('{user}')",
    ][number % 5]
    path, _, query = target.partition("?")
    members: dict[str, Any] = {
        "id": str(user),
        "time": f"2026-11-21T04:25:58.{number:03}Z",
        "orgId": str(UUID(int=1)),
        "proxyId": str(UUID(int=2)),
        "appId": str(UUID(int=3)),
        "clientIp": "10.1.2.3",
        "method": "GET",
        "path": path,
        "query": query or None,
        "status": 200,
        "upstreamStatus": 200,
        "verdict": "allow",
        "ruleId": "all",
        "loggedRuleIds": [],
        "transforms": [],
        "reason": "rule",
        "requestBytes": 0,
        "responseBytes": 700,
        "rulesetVersion": 1,
        "seq": number,
    }
    return json.dumps(members).encode()


@pytest.mark.parametrize("asked", [KNOWN, NOT_STORED])
def test_replay_a_thousand_events(benchmark: BenchmarkFixture, asked: str) -> None:
    replay = Replay(parse_ruleset(RULES.replace("CONDITION", asked)))
    decode = msgspec.json.Decoder(Event).decode
    bodies = [event(number) for number in range(COUNT)]

    def evaluated() -> Tally:
        tally = Tally()
        for body in bodies:
            one = decode(body)
            tally.add(one, one.outcome(None), replay.evaluate(one))
        return tally

    tally = benchmark(evaluated)
    assert tally.events == COUNT
    assert tally.unclear == (COUNT // 5 if asked == NOT_STORED else 0)
