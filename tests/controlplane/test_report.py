"""Tests of the audit report on a real store: its text in each state of completeness, and its files."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.integrity import chain_key
from controlplane.operations import apps
from controlplane.operations.actor import Actor, local_actor
from controlplane.operations.integrity import Verify, verification
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.report import begin, signed_report
from controlplane.operations.report_answer import answered
from controlplane.operations.report_period import ReportAsked, period_of
from controlplane.report.answer import Answer
from controlplane.report.report_file import ReportFiles, claimed_key, verify
from controlplane.report.sections import sections
from controlplane.report.signed import NotVerified, Signer, key_pem
from controlplane.store.interface import NotFound, Retention, StoreBusy
from tests.controlplane.plane import (
    HEARTBEAT,
    NOON_MS,
    Plane,
    ProxyClient,
    context_of,
    event,
)
from tests.controlplane.visitor import visiting

OPERATOR = local_actor("ada")
BLOCKED: dict[str, Any] = {"verdict": "block", "ruleId": "no-mail", "status": 403, "upstreamStatus": None}
PASSED: dict[str, Any] = {"ruleId": "r1", "reason": "rule", "upstreamStatus": 200}
MAIL = "/v1.0/users/ada/messages"


@pytest.fixture
async def proxy(plane: Plane) -> ProxyClient:
    """Return a proxy of a new organisation. The organisation and the proxy were registered two days ago."""
    plane.clock.advance(hours=-48)
    await plane.org("acme")
    proxy = await plane.proxy("edge-1", "acme")
    plane.clock.advance(hours=48)
    return proxy


@pytest.fixture
async def app_id(plane: Plane, proxy: ProxyClient) -> str:
    await plane.ruleset("acme", "hr")
    return (await plane.inventory.add_app("payroll", "acme", "hr")).app.app_id


class Trail:
    """Events of one application in the last hours, and a heartbeat that reports all of them as delivered."""

    def __init__(self, plane: Plane, proxy: ProxyClient, app_id: str) -> None:
        self.plane = plane
        self.proxy = proxy
        self.app_id = app_id
        self.sent = 0

    async def send(self, *members: dict[str, Any], skip: int = 0) -> None:
        self.sent += skip
        events = []
        for each in members:
            self.sent += 1
            known = {"appId": self.app_id, "time": "2026-11-21T11:00:00.000Z", "rulesetVersion": 1}
            known |= {"proxyId": self.proxy.proxy_id}
            events.append(event(self.proxy.org_ids[0], self.sent, **known | PASSED | each))
        response = await self.proxy.audit({"batchId": f"b{self.sent}", "events": events})
        assert response.status == 202

    async def beat(self, **members: Any) -> None:
        body = {"lastSeq": {self.proxy.org_ids[0]: self.sent}, "auditPending": 0, **members}
        assert (await self.proxy.send(HEARTBEAT, json.dumps(body).encode())).status < 300


@pytest.fixture
def trail(plane: Plane, proxy: ProxyClient, app_id: str) -> Trail:
    return Trail(plane, proxy, app_id)


async def answer(plane: Plane, actor: Actor = OPERATOR, **members: Any) -> Answer:
    context = context_of(plane)
    period = await period_of(context, actor, ReportAsked(org="acme", **{"from_": "-1d", **members}))
    return await answered(context, actor, period, lambda progress: None)


async def test_nobody_read_mail_and_nothing_is_missing(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"}, *[{"path": MAIL, **BLOCKED}] * 3)
    await trail.beat()
    found = await answer(trail.plane)
    first, second = found.headline
    assert first == (
        "Complete: no gap is known in the trail of acme between 2026-11-20 12:00:00 UTC and"
        " 2026-11-21 11:55:00 UTC. The oldest stored event is of 2026-11-21 11:00:00 UTC."
    )
    assert second == (
        "No application read or changed mail of acme through Graphward between 2026-11-20 12:00:00 UTC and"
        " 2026-11-21 11:55:00 UTC. 3 requests were blocked."
    )
    assert (found.complete, found.events, found.chain.intact) == (True, 4, True)
    (row,) = found.activity
    assert (row.app, row.access, row.outcome, row.count) == ("payroll", "read", "blocked", 3)
    assert [(each.name, each.count) for each in row.rules] == [("no-mail", 3)]
    assert found.rules[0].seen[0].version == "1"


async def test_who_read_mail_is_named_with_what_was_removed(trail: Trail) -> None:
    await trail.send(
        {"path": MAIL, "verdict": "filter", "transforms": ["strip:body"]},
        {"path": "/v1.0/users", "query": "$expand=messages"},
        {"path": "/v1.0/me/sendMail", "method": "POST", "status": 202, "upstreamStatus": 202},
        {"path": MAIL, "status": 404, "upstreamStatus": 404},
    )
    await trail.beat()
    found = await answer(trail.plane, classes=("mail", "files"))
    mail, files = found.statements
    assert found.headline[1:] == (mail.text, files.text)
    assert mail.text.startswith("payroll (2 requests) read mail of acme through Graphward in this period.")
    assert "payroll (1 request) also changed mail." in mail.text
    assert "1 request failed at the graph API." in mail.text
    assert files.text.startswith("No application read or changed files of acme")
    passed = next(each for each in found.activity if each.outcome == "passed" and each.access == "read")
    assert [(each.rule, each.what) for each in passed.removed] == [("r1", "body")]


async def test_a_search_whose_types_are_not_recorded_is_no_proof(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/search/query", "method": "POST"})
    await trail.beat()
    found = await answer(trail.plane)
    line = found.headline[1]
    assert line.startswith("No application is known to have read or changed mail of acme")
    reason = "because the trail does not hold bodies of requests"
    assert f"1 request of payroll may have reached mail, {reason}" in line
    (table,) = [each for each in sections(found) if each.title == "Requests for mail"]
    assert table.columns[-1] == "Why possibly"
    assert table.rows[0][-1].startswith(reason)


async def test_without_any_event_that_is_a_statement(trail: Trail) -> None:
    await trail.beat()
    found = await answer(trail.plane)
    assert found.headline[1].startswith("No application read or changed mail of acme through Graphward")
    assert (found.events, found.complete) == (0, True)


async def test_a_trail_that_nothing_wrote_proves_nothing(plane: Plane) -> None:
    await plane.org("acme")
    plane.clock.advance(hours=48)
    await plane.proxy("edge-1", "acme")
    found = await answer(plane)
    none = "No proxy of acme has ever sent an event or a heartbeat, so nothing recorded its requests."
    assert found.gaps == (none,)
    shown = "The stored trail shows no application that read or changed mail of acme"
    assert found.headline[0].startswith("Incomplete between 2026-11-22 12:00:00 UTC and ")
    assert found.headline[0].endswith(f"{none} No event of the organisation is stored.")
    assert found.headline[1].startswith(shown)


@pytest.mark.parametrize(
    ("from_", "gap"),
    [
        ("2026-11-19T11:59:00Z", "acme was registered 2026-11-19 12:00:00 UTC, after the period begins."),
        ("2026-09-01", "acme keeps events for 30 days, since 2026-12-22 12:00:00 UTC"),
    ],
)
async def test_a_period_before_the_trail_is_a_gap(trail: Trail, from_: str, gap: str) -> None:
    await trail.send({"path": "/v1.0/users"})
    if from_ == "2026-09-01":
        trail.plane.clock.advance(hours=61 * 24)
    await trail.beat()
    found = await answer(trail.plane, from_=from_)
    assert any(each.startswith(gap) for each in found.gaps), found.gaps


async def test_a_disabled_proxy_that_was_silent_is_a_gap(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    await trail.beat()
    trail.plane.clock.advance(hours=72)
    await trail.plane.inventory.set_proxy_enabled(trail.proxy.proxy_id, False)
    assert "is disabled, and its last heartbeat came" in (await answer(trail.plane)).gaps[0]


async def test_a_wrong_clock_is_a_gap(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    body = json.dumps({"lastSeq": {trail.proxy.org_ids[0]: trail.sent}, "auditPending": 0}).encode()
    late = str(trail.plane.clock.wall_ms() // 1000 - 180)
    assert (await trail.proxy.send(HEARTBEAT, body, timestamp=late)).status < 300
    assert "The clock of edge-1 was 3 min behind at its last heartbeat" in (await answer(trail.plane)).gaps[0]


async def test_what_an_allow_list_keeps_is_not_shown_as_removed(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/groups", "transforms": ["allow:id", "allow:displayName", "items"]})
    await trail.beat()
    (row,) = (await answer(trail.plane, classes=("directory",))).activity
    assert [each.what for each in row.removed] == ["everything but id, displayName", "list items"]


async def test_a_missing_number_makes_it_incomplete(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    await trail.send({"path": "/v1.0/users"}, skip=6)
    await trail.beat()
    found = await answer(trail.plane)
    name = found.proxies[0].name
    assert not found.complete
    gap = f"6 events of {name} never arrived: numbers 2–7. The time of a missing event is not known."
    assert found.gaps == (gap,)
    assert gap in found.headline[0]


@pytest.mark.parametrize(
    ("heartbeat", "words"),
    [
        (
            {"auditPending": 9, "oldestPendingSeconds": 3600},
            "had not delivered 9 events at its last heartbeat",
        ),
        ({"auditPending": 9, "oldestPendingSeconds": 10}, ""),  # the pending events are newer than the period
        (None, "has never sent a heartbeat"),
        ({"lastSeq": None, "auditPending": None}, "did not report its undelivered events"),
    ],
)
async def test_what_a_proxy_still_holds_makes_it_incomplete(
    trail: Trail, heartbeat: dict[str, Any] | None, words: str
) -> None:
    await trail.send({"path": "/v1.0/users"})
    if heartbeat is not None:
        await trail.beat(**heartbeat)
    found = await answer(trail.plane)
    assert found.complete is not bool(words)
    assert words in " ".join(found.gaps)


async def test_a_proxy_that_is_silent_at_the_end_makes_it_incomplete(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    await trail.beat()
    trail.plane.clock.advance(hours=1)
    found = await answer(trail.plane)
    assert "fell silent: its last heartbeat came 2026-11-21 12:00:00 UTC, before the end" in found.gaps[0]
    assert (await answer(trail.plane, to="2026-11-21T11:30:00Z")).complete


async def test_a_proxy_that_stopped_in_order_leaves_no_gap_until_it_speaks_again(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    await trail.beat(ended=True)
    trail.plane.clock.advance(hours=1)
    found = await answer(trail.plane)
    assert found.complete, found.gaps
    assert [each.ended for each in found.proxies] == [True]
    assert "2026-11-21 12:00:00 UTC, shut down normally" in str([*sections(found)])
    await trail.plane.inventory.set_proxy_enabled(trail.proxy.proxy_id, False)
    assert (await answer(trail.plane)).complete
    await trail.plane.inventory.set_proxy_enabled(trail.proxy.proxy_id, True)
    await trail.send({"path": "/v1.0/users"})  # the proxy is back, and crashes before its first heartbeat
    trail.plane.clock.advance(hours=1)
    assert "fell silent" in (await answer(trail.plane)).gaps[0]


async def purge(trail: Trail, days: int) -> int:
    """Delete events that are older than `days` days, as retention does."""
    store = trail.plane.store
    store.sign_links(chain_key(await context_of(trail.plane).vault()))
    before_ms = trail.plane.clock.wall_ms() - days * 86_400_000
    return await store.purge_events(trail.proxy.org_ids[0], before_ms, 100)


# deleted events stay deleted if the retention period becomes longer
@pytest.mark.parametrize("retention", ["base", "7y"])
async def test_what_retention_deleted_makes_it_incomplete(trail: Trail, retention: Retention) -> None:
    await trail.send({"path": MAIL}, {"path": "/v1.0/users"})
    trail.plane.clock.advance(hours=31 * 24)
    assert await purge(trail, 30) == 2
    await trail.plane.store.set_retention(trail.proxy.org_ids[0], retention)
    await trail.beat()
    (gap,) = (await answer(trail.plane, from_="2026-11-20", to="2026-12-01")).gaps
    assert gap == (
        "Retention has deleted 2 events, the last time 2026-12-22 12:00:00 UTC. They may be from as late as"
        " 2026-11-21 12:05:00 UTC, and the period begins 2026-11-20 00:00:00 UTC."
    )
    assert (await answer(trail.plane)).complete


async def test_an_older_event_that_came_late_hides_no_purge(trail: Trail) -> None:
    clock = trail.plane.clock
    clock.advance(hours=20 * 24)
    await trail.send({"path": MAIL, "time": "2026-12-11T11:00:00.000Z"})
    clock.advance(hours=8 * 24)
    await trail.send({"path": "/v1.0/users", "time": "2026-11-22T00:00:00.000Z"})
    clock.advance(hours=24 * 24)
    assert await purge(trail, 30) == 1
    await trail.beat()
    found = await answer(trail.plane, from_="2026-12-01", to="2026-12-19")
    assert found.retention.oldest is not None
    assert found.retention.oldest < found.from_
    assert found.gaps[0].startswith("Retention has deleted 1 event,")


async def test_a_ruleset_that_was_bound_later_did_not_decide_before(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    await trail.plane.ruleset("acme", "sales")
    bind = apps.BindApp(app="payroll", ruleset="sales")
    trail.plane.clock.advance(hours=1)
    await perform(apps.bind, context_of(trail.plane), OPERATOR, bind)
    (rules,) = (await answer(trail.plane, to="2026-11-21T12:00:00Z")).rules
    assert (rules.ruleset, rules.in_force) == ("sales", ())
    assert rules.switches == ("2026-11-21 13:00:00 UTC: switched payroll from hr to sales",)
    assert [(each.ruleset, each.version) for each in rules.seen] == [("hr", "1")]
    trail.plane.clock.advance(hours=1)
    await trail.send({"path": "/v1.0/users", "time": "2026-11-21T13:30:00.000Z"})
    (rules,) = (await answer(trail.plane)).rules
    assert [(each.version, each.from_) for each in rules.in_force] == [(1, "2026-11-21T13:00:00.000Z")]
    assert [(each.ruleset, each.events) for each in rules.seen] == [(None, 2)]


async def test_a_broken_chain_makes_it_incomplete(trail: Trail) -> None:
    await trail.send({"path": MAIL, **BLOCKED}, {"path": MAIL, "time": "2026-11-21T11:30:00.000Z"})
    await trail.beat()
    trail.plane.store.sign_links(b"the key of somebody else")
    assert await trail.plane.store.purge_events(trail.proxy.org_ids[0], NOON_MS + 1, 1) == 1
    found = await answer(trail.plane)
    assert not found.complete
    assert not found.chain.intact
    assert found.gaps[0].startswith("The chain of stored events is broken: ")


async def test_a_report_is_of_what_its_reader_may_see(plane: Plane, trail: Trail) -> None:
    other = await plane.org("beta")
    stranger = Actor("eve", {other: "viewer"})
    with pytest.raises(NotFound):
        await answer(plane, stranger)
    with pytest.raises(InvalidRequest, match="to: must not be in the future"):
        await answer(plane, to="2027-01-01")
    with pytest.raises(InvalidRequest, match="to: must be after 1970"):
        await answer(plane, from_="1000-01-01", to="1969-01-01")


async def test_reports_wait_for_each_other_and_one_of_an_actor_is_made(trail: Trail) -> None:
    await trail.send({"path": "/v1.0/users"})
    context = context_of(trail.plane)
    asked = [ReportAsked(org="acme", from_=f"2026-11-2{day}") for day in (0, 1)]
    made = []
    for name in ("ada", "bob", "cleo", "dan"):
        actor = local_actor(name)
        first, other = [await period_of(context, actor, each) for each in asked]
        made.append(begin(context, actor, first))
        assert begin(context, actor, first) is made[-1]
        with pytest.raises(StoreBusy, match="you already have a report in progress"):
            begin(context, actor, other)
    walking = verification(context, OPERATOR, Verify("acme"))  # a verification delays no report
    await anext(walking)
    others = asyncio.gather(*(each.files() for each in made))
    await walking.aclose()
    assert len({each.json for each in await others}) == len(made)


# -- the console


async def test_the_console_shows_the_report_and_offers_its_files(plane: Plane, trail: Trail) -> None:
    await trail.send({"path": MAIL, **BLOCKED}, {"path": "/v1.0/users", "transforms": ["strip:<b>"]})
    await trail.beat()
    async with visiting(plane) as visitor:
        form = await visitor.get("/audit/report")
        assert "Make the report" in form.text
        none = await visitor.get("/audit/report?org=acme&from=-90d&to=")
        assert (none.status, "No class is chosen: choose at least one." in none.text) == (422, True)
        assert "Choose an organisation." in (await visitor.get("/audit/report?mail=yes")).text
        fixed = await visitor.get("/audit/report?org=acme&from=-1d&mail=yes&directory=yes")
        page = await visitor.get(
            str(fixed.led_to)
        )  # the times are fixed, so that a reload shows the same report
        assert page.status == 200
        assert "No application read or changed mail of acme" in page.text
        assert "&lt;b&gt; by r1 (1)" in page.text
        (link,) = re.findall(r'href="(/admin/v1/audit/report[^"]*format=html)"', page.text)
        file = await visitor.get(link.replace("&amp;", "&"))
        key = (await visitor.get("/admin/v1/audit/report-key")).text
        assert verify(file.text.encode(), json.loads(key)["key"]).report.org == "acme"


# -- the files


async def files_of(trail: Trail) -> ReportFiles:
    await trail.send({"path": MAIL, **BLOCKED})
    await trail.beat()
    context = context_of(trail.plane)
    period = await period_of(context, OPERATOR, ReportAsked(org="acme", from_="-1d"))
    return await signed_report(context, OPERATOR, period, lambda progress: None)


def changed(file: bytes, old: bytes, new: bytes) -> bytes:
    assert old in file
    return file.replace(old, new, 1)


async def test_both_files_prove_themselves_and_no_changed_byte_passes(trail: Trail) -> None:
    files = await files_of(trail)
    key = claimed_key(files.json)
    for file in (files.json, files.html):
        assert verify(file, key).report.headline[1].startswith("No application read or changed mail")
    for file in (files.json, files.html):
        for at in range(0, len(file), 97):
            damaged = file[:at] + bytes((file[at] ^ 1,)) + file[at + 1 :]
            with pytest.raises(NotVerified):
                verify(damaged, key)
        for damaged in (file[:-1], file + b"\n", file.replace(b'"', b"'", 1)):
            with pytest.raises(NotVerified):
                verify(damaged, key)


async def test_what_differs_is_said(trail: Trail) -> None:
    files = await files_of(trail)
    key = claimed_key(files.json)
    other = Signer(bytes(32)).key
    page = changed(files.html, b"1 request was blocked", b"0 request was blocked")
    cases = [
        (page, key, "the HTML page differs from the page that was signed; line "),
        (
            changed(files.json, b'"complete":true', b'"complete":false'),
            key,
            "the signature of the file is not valid",
        ),
        (changed(files.html, b'"count":1', b'"count":0'), key, "the signature of the file is not valid"),
        (files.json, other, f"another key signed the file: the file names {key}, but --key is {other}"),
        (b"<html></html>", key, "neither the JSON nor the HTML"),
        (
            Signer(bytes(32)).sign(b'{"kind":"x","key":"%b"}' % other.encode()),
            other,
            "not an audit report: its kind is x",
        ),
    ]
    for file, known, words in cases:
        with pytest.raises(NotVerified, match=re.escape(words)):
            verify(file, known)
    with pytest.raises(NotVerified, match=r"0 request was blocked.* the data says .*1 request was blocked"):
        verify(page, key)


async def test_openssl_checks_the_signature_too(trail: Trail, tmp_path: Path) -> None:
    """Verify a report with the command from docs/how-to/prove-what-happened.md."""
    file = (await files_of(trail)).json
    payload, mark, rest = file.removeprefix(b'{"signed":').rpartition(b',"signature":"')
    assert mark
    (tmp_path / "payload").write_bytes(payload)
    (tmp_path / "signature").write_bytes(bytes.fromhex(rest.decode().strip().removesuffix('"}')))
    (tmp_path / "key.pem").write_text(key_pem(claimed_key(file)))
    command = "openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in payload -sigfile signature"
    done = await asyncio.to_thread(
        subprocess.run, command.split(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "Signature Verified Successfully")
