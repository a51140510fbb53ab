"""`until`, `body_only` and `items` on the data path, through real sockets."""

from __future__ import annotations

from pathlib import Path

from tests.bytes.data_path import data_path, ok, responding

GRANTS = """
version: 1
name: test
rules:
  - id: ended
    match: {path: [/v1.0/drives]}
    until: 2020-01-31T00:00:00Z
    verdict: allow
  - id: lasting
    match: {path: [/v1.0/sites]}
    until: 2998-01-31T00:00:00+01:00
    verdict: allow
"""


async def test_a_grant_that_has_ended_lets_nothing_through(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, GRANTS) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/drives"))).status == 403
        assert (await proxy.ask(proxy.request("/v1.0/sites"))).status == 200
    assert [(event["verdict"], event["ruleId"]) for event in proxy.events()] == [
        ("block", "default"),
        ("allow", "lasting"),
    ]
