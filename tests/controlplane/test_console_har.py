"""Tests of HAR files in the console's editor: uploaded by a form, replayed and turned into rules."""

from __future__ import annotations

import gzip
import json

import aiohttp

from controlplane.operations.dry_runs import Source
from controlplane.operations.har_files import ReplayHar, replay_har
from controlplane.operations.perform import perform
from tests.controlplane.inventory import OPERATOR
from tests.controlplane.plane import Plane, context_of
from tests.controlplane.visitor import Visitor, visiting
from tests.pure.har_files import SECRETS, entry

RULES = """\
version: 1
name: hr
rules:
  - {id: no-mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}
"""
FILTERS = """\
version: 1
name: hr
rules:
  - id: few
    match: {path: ["/v1.0/users", "/v1.0/users/**"]}
    verdict: filter
    transforms: {allow_properties: [id]}
    guard_queries: false
"""
ENTRIES = [
    entry("/v1.0/users/1?$select=displayName,id", response={"id": "1", "displayName": "Ada"}),
    entry("/v1.0/users/1", "PATCH", body={"jobTitle": "x"}, status=204),
    entry("/v1.0/users/1/messages?$search=secret", response={"value": []}),
]


async def send(visitor: Visitor, what: str, har: bytes) -> tuple[int, str]:
    form = aiohttp.FormData({"csrf": visitor.browser.csrf, "do": what, "yaml": RULES, "base": "1"})
    form.add_field("har", har, filename="a.har", content_type="application/json")
    async with visitor.browser.session.post(
        f"{visitor.browser.url}/rulesets/contoso/hr/edit",
        data=form,
        headers={"Cookie": visitor.browser.cookie, "Sec-Fetch-Site": "same-origin"},
    ) as response:
        return response.status, await response.text()


async def test_a_file_is_replayed_and_becomes_rules_and_shows_no_secret(plane: Plane) -> None:
    await plane.org("contoso")
    await plane.ruleset("contoso", "hr", RULES)
    file = json.dumps({"log": {"entries": ENTRIES}}).encode()
    async with visiting(plane) as visitor:
        status, page = await send(visitor, "replay-har", file)
        assert status == 200
        assert "3 requests in the file" in page
        assert "GET /v1.0/users/1/messages" in page
        status, rules = await send(visitor, "suggest-har", file)
        assert status == 200
        assert "allow_properties: [displayName, id]" in rules, "though another method goes to the same path"
        assert not any(secret in page + rules for secret in SECRETS)
        for odd in (b"", b"{", b'{"log": {"entries": []}}', b"\xff\xfe"):
            status, _ = await send(visitor, "replay-har", odd)
            assert status in (400, 422), odd
        status, page = await send(visitor, "replay-har", gzip.compress(file))
        assert status == 422
        assert "the file is compressed with gzip; decompress it" in page
        assert "no-mail" in page, "the draft is still there"


async def test_a_long_response_in_a_file_is_not_looked_at(plane: Plane) -> None:
    await plane.org("contoso")
    items = [{"id": "x"}] * 200_000
    sent = ReplayHar(
        source=Source(yaml=FILTERS),
        har=json.dumps({"log": {"entries": [entry("/v1.0/users", response={"value": items}), ENTRIES[0]]}}),
    )
    found = await perform(replay_har, context_of(plane), OPERATOR, sent)
    assert found.remarks[-1] == (
        "unknown for 1 entry: the body of the response has more than 1 MiB or 10,000 objects and is left out"
        " (entry 1)"
    )
    assert [each.after[0].verdict for each in found.groups] == ["filter"]
    assert [(each.requests, each.removed) for each in found.groups] == [(2, ("displayName",))]
