"""Tests of audit events over the admin API: search, counts, live tail and export, by organisation."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlencode

import aiohttp
import pytest

from controlplane.operations import event_tail
from controlplane.operations.event_formats import COLUMNS
from controlplane.search.parts import PartWriter
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import Plane, ProxyClient, event
from tests.controlplane.processes import ROOT
from tests.controlplane.test_admin import call, operator
from tests.patience import PATIENCE_SECONDS

REASON = "a request rule decided the verdict"


def minute(org_id: str, number: int, **members: Any) -> dict[str, Any]:
    return event(org_id, number, time=f"2026-11-21T04:{number:02}:00.000Z", **members)


@dataclass
class Trail:
    """Two organisations with events, and operators who may read the events of one or both organisations."""

    plane: Plane
    orgs: dict[str, str]
    proxies: dict[str, ProxyClient]
    tokens: dict[str, str]
    batches: int = 0

    async def keep(self, org: str, *events: dict[str, Any]) -> None:
        self.batches += 1
        batch = {"batchId": f"b{self.batches}", "events": [*events]}
        assert (await self.proxies[org].audit(batch)).status == 202

    async def ask(self, who: str, path: str, **members: Any) -> Any:
        response = await self.get(who, path, **members)
        assert response.status == 200, response.body
        return response.json

    async def get(self, who: str, path: str, **members: Any) -> Any:
        query = urlencode(members, doseq=True)
        return await call(self.plane, self.tokens[who], "GET", f"/audit/{path}?{query}")


@pytest.fixture
async def trail(plane: Plane) -> Trail:
    orgs = {name: await plane.org(name) for name in ("acme", "beta")}
    proxies = {name: await plane.proxy(f"edge-{name}", name) for name in orgs}
    tokens = {
        "all": await operator(plane, "all", {"*": "viewer"}),
        "acme": await operator(plane, "of-acme", {"acme": "viewer"}),
        "nobody": await operator(plane, "nobody", {}),
    }
    made = Trail(plane, orgs, proxies, tokens)
    acme, beta = orgs["acme"], orgs["beta"]
    await made.keep(
        "acme",
        *(minute(acme, number) for number in range(5)),
        minute(acme, 5, verdict="block", status=403, ruleId="no mail", reason="rule"),
        minute(acme, 6, path="/v1.0/users/ada", status=404),
    )
    await made.keep("beta", minute(beta, 7, path="/v1.0/beta-only", id="event-7"))
    return made


def numbers(page: Any) -> list[int]:
    return [made["seq"] for made in page["events"]]


# Search


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, [7, 6, 5, 4, 3, 2, 1, 0]),
        ({"filter": "verdict:block"}, [5]),
        ({"filter": "-verdict:allow"}, [5]),
        ({"filter": "status:>=400 -verdict:block"}, [6]),
        ({"filter": 'rule:"no mail"'}, [5]),
        ({"filter": "org:beta"}, [7]),
        ({"filter": "org:beta", "org": "acme"}, []),
        ({"filter": "beta-only"}, [7]),
        ({"filter": "path:/v1.0/users/*"}, [6]),
        ({"filter": "time:>=2026-11-21T04:06:00Z"}, [7, 6]),
        ({"from": "2026-11-21T04:05:00Z", "to": "2026-11-21T04:07:00Z"}, [6, 5]),
        ({"filter": "users", "limit": 2}, [6, 5]),
    ],
)
async def test_one_grammar_for_finding_counting_and_taking_away(
    trail: Trail, members: dict[str, Any], wanted: list[int]
) -> None:
    assert numbers(await trail.ask("all", "events", **members)) == wanted
    members = {name: value for name, value in members.items() if name != "limit"}
    wanted = numbers(await trail.ask("all", "events", **members))
    facets = await trail.ask("all", "facets", fields=["seq", "verdict"], top=100, **members)
    assert (facets["counted"], facets["complete"]) == (len(wanted), True)
    assert sorted(int(each["value"]) for each in facets["facets"][0]["values"]) == sorted(wanted)
    histogram = await trail.ask("all", "histogram", **members)
    assert sum(bucket["count"] for bucket in histogram["buckets"]) == len(wanted)
    lines = (await trail.get("all", "export", format="ndjson", **members)).body.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == wanted


async def test_pages_follow_each_other(trail: Trail) -> None:
    first = await trail.ask("all", "events", limit=5)
    second = await trail.ask("all", "events", limit=5, cursor=first["next"])
    assert (numbers(first), numbers(second), second["next"]) == ([7, 6, 5, 4, 3], [2, 1, 0], None)


async def test_a_cursor_tells_nothing_of_how_much_there_is_elsewhere(trail: Trail) -> None:
    """A cursor holds a position among the events of all organisations, and must not reveal this position."""
    pages = [await trail.ask(who, "events", limit=3, org="acme") for who in ("all", "acme", "acme")]
    plain, sealed, again = (page["next"] for page in pages)
    assert len({plain, sealed, again}) == 3
    assert len(base64.urlsafe_b64decode(sealed)) > 28
    for who, cursor in (("acme", sealed), ("acme", again), ("all", plain)):
        assert numbers(await trail.ask(who, "events", limit=3, org="acme", cursor=cursor)) == [3, 2, 1]
    assert (await trail.get("acme", "events", cursor=plain)).code == "invalidRequest"
    assert (await trail.get("all", "events", cursor=sealed)).code == "invalidRequest"


MISTAKES: Final[tuple[tuple[str, dict[str, str], str], ...]] = (
    ("events", {"filter": "verdikt:block"}, "filter: column 1: unknown field 'verdikt'"),
    ("events", {"filter": "verdict:block status:many"}, "filter: column 22: "),
    ("facets", {"filter": '"open'}, "filter: column 1: the closing quote is missing"),
    ("histogram", {"filter": "AND"}, "filter: column 1: "),
    ("export", {"filter": "a:b"}, "filter: column 1: "),
    ("tail", {"filter": "a:b"}, "filter: column 1: "),
    ("tail", {"after": "yesterday"}, "after: "),
    ("events", {"from": "yesterday"}, "from: 'yesterday' is not a time"),
    ("histogram", {"to": "2026-02-30"}, "to: '2026-02-30' is not a time"),
    ("events", {"from": "2026-11-22", "to": "2026-11-21"}, "from: must not be after `to`"),
    ("events", {"cursor": "x"}, "cursor: this page cursor was not made by this search index"),
    ("events", {"limit": "0"}, "limit: "),
    ("events", {"limit": "1001"}, "limit: "),
    ("facets", {"fields": "colour"}, "fields: 'colour' is not one of "),
    ("facets", {"fields": "time"}, "fields: 'time' is not one of "),
    ("facets", {"top": "101"}, "top: "),
    ("export", {"format": "xlsx"}, "format: "),
    ("events", {"colour": "red"}, "colour"),
)


async def test_what_can_not_be_meant_is_400(trail: Trail) -> None:
    for path, members, says in MISTAKES:
        response = await trail.get("all", path, **members)
        assert (response.status, response.code) == (400, "invalidRequest"), (path, members)
        assert says in response.json["error"]["message"]


async def test_a_search_says_that_events_may_be_missing_while_the_index_is_filled(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await trail.ask("all", "events"))["behind"] is False
    monkeypatch.setattr("controlplane.app._MOMENT_SECONDS", 0.05)
    free = threading.Event()
    written = PartWriter.write

    def slow(*given: Any) -> None:
        free.wait(20)
        written(*given)

    monkeypatch.setattr(PartWriter, "write", slow)
    await trail.keep("acme", minute(trail.orgs["acme"], 9))
    page = await trail.ask("all", "events")
    assert (page["behind"], 9 in numbers(page)) == (True, False)
    assert re.fullmatch("the index has [0-9]{2}% of the stored events", page["notes"][0])
    free.set()
    monkeypatch.setattr("controlplane.app._WHILE_BEHIND_SECONDS", 20)
    page = await trail.ask("all", "events")
    assert (page["behind"], 9 in numbers(page)) == (False, True)


# Counts


async def test_facets_name_what_they_count(trail: Trail) -> None:
    facets = await trail.ask("all", "facets", fields=["org", "verdict", "proxy"])
    by_field = {each["field"]: each["values"] for each in facets["facets"]}
    assert [(each["name"], each["count"]) for each in by_field["org"]] == [("acme", 7), ("beta", 1)]
    assert by_field["verdict"][0] == {"value": "allow", "name": None, "count": 7}


async def test_a_histogram_has_an_interval_of_its_span(trail: Trail) -> None:
    asked = await trail.ask("all", "histogram")
    assert (asked["from"], asked["to"]) == ("2026-11-21T04:00:00.000Z", "2026-11-21T04:07:00.001Z")
    assert asked["intervalMs"] == 15_000
    assert asked["buckets"][0] == {"start": "2026-11-21T04:00:00.000Z", "count": 1}
    day = await trail.ask("all", "histogram", **{"from": "2026-11-21", "to": "2026-11-22"})
    assert day["intervalMs"] == 1_800_000
    assert day["buckets"] == [{"start": "2026-11-21T04:00:00.000Z", "count": 8}]
    narrowed = await trail.ask("all", "histogram", filter="time:2026-11-21T04:01:00Z..2026-11-21T04:02:00Z")
    assert narrowed["intervalMs"] == 5_000
    nothing = await trail.ask("nobody", "histogram")
    assert (nothing["from"], nothing["buckets"]) == (None, [])


async def test_an_event_of_a_time_to_come_does_not_flatten_a_histogram(trail: Trail) -> None:
    await trail.keep("acme", event(trail.orgs["acme"], 50, time="9999-12-31T23:59:59Z"))
    asked = await trail.ask("all", "histogram")
    assert sum(bucket["count"] for bucket in asked["buckets"]) == 8
    assert asked["intervalMs"] <= 1_800_000 * 2
    alone = await trail.ask("all", "histogram", **{"from": "9999-01-01"})
    assert sum(bucket["count"] for bucket in alone["buckets"]) <= 1


async def test_no_time_of_an_event_or_a_question_is_too_much_for_a_histogram(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event of a hostile proxy must not break the overview for operators of its organisation."""
    # A store may have times beyond the years of UTC, because earlier releases accepted them.
    monkeypatch.setattr("controlplane.ingest.EARLIEST_MS", -(1 << 62))
    monkeypatch.setattr("controlplane.ingest.LATEST_MS", 1 << 62)
    odd = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-01-01T00:00:00Z")
    for number, time in enumerate(odd):
        await trail.keep("acme", event(trail.orgs["acme"], 60 + number, time=time))
    for members in (
        {},
        {"from": "0001-01-01", "to": "9999-12-31T23:59:59.999Z"},
        {"from": "-9999999w"},
        {"to": "0001-01-01"},
        {"filter": "time:..9999-12-31T23:59:59.999Z"},
    ):
        response = await trail.get("all", "histogram", **members)
        assert response.status == 200, members


# One event


async def test_an_event_with_what_is_known_about_it(trail: Trail) -> None:
    plane, acme = trail.plane, trail.orgs["acme"]
    yaml = "version: 1\nname: hr\nrules:\n  - id: r1\n    match: {path: [/a]}\n    verdict: allow\n"
    await plane.ruleset("acme", "hr", yaml)
    await plane.ruleset("acme", "hr", yaml + "  # later\n  - {id: r2, match: {path: [/b]}, verdict: block}\n")
    crm = (await plane.inventory.add_app("crm", "acme", "hr")).app
    proxy_id = trail.proxies["acme"].proxy_id
    evaluated = {
        "appId": crm.app_id,
        "proxyId": proxy_id,
        "ruleId": "r1",
        "reason": "rule",
        "rulesetVersion": 1,
    }
    await trail.keep("acme", event(acme, 20, id="a/b ?c", **evaluated))
    found = await trail.ask("acme", "events/acme/a%2Fb%20%3Fc")
    assert found["event"] == event(acme, 20, id="a/b ?c", **evaluated)
    assert (found["reason"], found["orgName"], found["appName"]) == (REASON, "acme", "crm")
    assert found["proxyName"] == "edge-acme"
    ruleset = found["ruleset"]
    assert (ruleset["name"], ruleset["version"], ruleset["versionInForce"]) == ("hr", 1, 2)
    assert (ruleset["yaml"], ruleset["ruleLines"]) == (yaml, [4, 6])


async def test_a_purged_event_and_one_that_never_was_are_not_found(trail: Trail) -> None:
    await trail.plane.store.purge_events(trail.orgs["acme"], 1 << 60, 3)
    for event_id in ("event-0", "no-such-event", "event-7"):
        response = await trail.get("all", f"events/acme/{event_id}")
        assert (response.status, response.code) == (404, "notFound")
    assert (await trail.ask("all", "events/acme/event-3"))["event"]["seq"] == 3


async def test_an_id_is_looked_up_in_what_the_actor_may_see(trail: Trail) -> None:
    async def found(who: str, text: str) -> tuple[list[int], list[str]]:
        response = await call(trail.plane, trail.tokens[who], "POST", "/audit/lookup", {"text": text})
        assert response.status == 200, response.body
        return numbers(response.json), response.json["notes"]

    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    await trail.keep(
        "acme",
        *(minute(trail.orgs["acme"], number, id=f"of-batch-{number}", traceId=trace) for number in (8, 9)),
    )
    assert await found("all", "event-7") == ([7], [])
    assert await found("all", f"00-{trace}-00f067aa0ba902b7-01") == ([9, 8], [])
    for who, text in (("acme", "event-7"), ("acme", "event-99"), ("nobody", "event-1")):
        seen, (note,) = await found(who, text)
        assert seen == []
        assert f"no event of the organisations that you can look at has {text}" in note
    refused = await call(trail.plane, trail.tokens["all"], "POST", "/audit/lookup", {"text": " \n "})
    assert refused.status == 400


# Access by organisation


@pytest.mark.parametrize("text", ["", "org:beta", "beta-only", "-verdict:block", "id:event-7", "path:*"])
async def test_nothing_of_a_foreign_organisation_is_found_counted_or_taken_away(
    trail: Trail, text: str
) -> None:
    acme, beta = trail.orgs["acme"], trail.orgs["beta"]
    for path in ("events", "facets", "histogram", "export"):
        more = {"fields": ["org", "path", "seq"]} if path == "facets" else {}
        response = await trail.get("acme", path, filter=text, **more)
        assert response.status == 200
        assert b"beta-only" not in response.body
        assert beta.encode() not in response.body
        foreign = await trail.get("acme", path, filter=text, org="beta")
        never = await trail.get("acme", path, filter=text, org="gamma")
        assert (foreign.status, never.status) == (404, 404)
        assert foreign.body.replace(b"beta", b"gamma") == never.body
    response = await trail.get("acme", "events/beta/event-7")
    assert response.status == 404
    assert numbers(await trail.ask("nobody", "events", filter=text)) == []
    assert acme not in str(await trail.ask("nobody", "facets", fields=["org"], filter=text))


# Export


async def test_an_export_has_every_page(trail: Trail) -> None:
    acme = trail.orgs["acme"]
    for first in range(100, 2600, 500):
        await trail.keep("acme", *(event(acme, number) for number in range(first, first + 500)))
    response = await trail.get("acme", "export", format="ndjson")
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert response.headers["Content-Disposition"] == 'attachment; filename="audit-events.ndjson"'
    seqs = [json.loads(line)["seq"] for line in response.body.splitlines()]
    assert sorted(seqs) == [*range(7), *range(100, 2600)]
    response = await trail.get("acme", "export", format="csv")
    assert len(response.body.splitlines()) == len(seqs) + 1


async def test_the_response_to_an_export_names_filter_time_and_heads(trail: Trail) -> None:
    filter_, from_ = "path:/v1.0/users ü", "2026-11-21T00:00:00.000Z"
    response = await trail.get("acme", "export", filter=filter_, **{"from": from_})
    head = await trail.plane.store.chain_head(trail.orgs["acme"])
    assert head is not None
    given = {name: value for name, value in response.headers.items() if name.startswith("Graphward-")}
    assert unquote(given["Graphward-Filter"]) == filter_
    assert given["Graphward-Filter"].isascii()
    assert given["Graphward-From"] == from_
    assert "Graphward-To" not in given
    assert given["Graphward-Exported-At"] == rfc3339(trail.plane.clock.wall_ms())
    link = f"number={head.newest.record.number};link={head.newest.link.hex()}"
    assert given["Graphward-Chain-Head"] == f"{trail.orgs['acme']};{link}"
    several = await trail.get("all", "export", filter=f"path:/v1.0/{'ü' * 200}")
    assert several.headers["Graphward-Chain-Head"].count(";number=") == 2
    assert several.headers["Graphward-Filter"].startswith("sha256=")
    split_line = await trail.get("acme", "export", filter="path:/a\r\nSet-Cookie:1")
    assert "Set-Cookie" not in split_line.headers


TEXTS: Final = (
    "=cmd|'/C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1+1", '=HYPERLINK("http://x")',
    '"quoted", and\r\nmore', "a\0=b", "plain", "ü…", "'", ";=1", "a;=1;+1", "a; =1",
    "\ufeff=1", "\u00a0=1", " =1",
)  # fmt: skip


async def test_no_text_of_an_export_is_a_formula_or_another_cell(trail: Trail) -> None:
    acme = trail.orgs["acme"]
    made = [
        event(acme, 30 + at, path=text, query=text, transforms=[text, text], durationMs=-1.5)
        for at, text in enumerate(TEXTS)
    ]
    await trail.keep("acme", *made)
    response = await trail.get("acme", "export", format="csv", filter="seq:>=30")
    rows = list(csv.DictReader(io.StringIO(response.body.decode(), newline="")))
    assert sorted(row["seq"] for row in rows) == sorted(str(each["seq"]) for each in made)
    for row in rows:
        text = TEXTS[int(row["seq"]) - 30]
        assert row["durationMs"] == "-1.5"
        for name in ("path", "query", "transforms"):
            assert row[name][:1] not in ("=", "+", "-", "@", "\t", "\r", "\n", "＝"), text
            for cell in row[name].split(";"):  # if the cell begins another list
                assert cell.lstrip(" \u00a0\ufeff")[:1] not in ("=", "+", "-", "@"), text
            kept = row[name].replace("'", "")
            assert kept.startswith(text.replace("\0", "\ufffd").replace("'", ""))
    lines = (await trail.get("acme", "export", format="ndjson", filter="seq:>=30")).body.splitlines()
    assert {json.loads(line)["path"] for line in lines} == set(TEXTS)


def test_every_column_is_documented() -> None:
    section = (ROOT / "docs/reference/events.md").read_text("utf-8").split("## Fields of an event")[1]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", section.split("\n## ")[0])))
    assert tuple(named) == COLUMNS


async def test_an_event_of_several_lines_is_one_line(trail: Trail) -> None:
    acme = trail.orgs["acme"]
    pretty = json.dumps({"batchId": "pretty", "events": [event(acme, 40, path="/a\nb")]}, indent=2).encode()
    assert (await trail.proxies["acme"].send("/api/v1/agent/audit", pretty)).status == 202
    (line,) = (await trail.get("acme", "export", format="ndjson", filter="seq:40")).body.splitlines()
    assert json.loads(line)["path"] == "/a\nb"


# Live tail


@dataclass
class Reader:
    """Reads server-sent events as a browser does (WHATWG HTML section 9.2.6), over successive connections."""

    trail: Trail
    who: str
    filter: str = ""
    last_event_id: str = ""
    got: list[int] = field(default_factory=list)
    other: list[tuple[str, str]] = field(default_factory=list)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {self.trail.tokens[self.who]}"}
        if self.last_event_id:
            headers["Last-Event-ID"] = self.last_event_id
        url = f"{self.trail.plane.console_url}/admin/v1/audit/tail"
        async with self.trail.plane.session.get(
            url, params={"filter": self.filter}, headers=headers
        ) as response:
            assert response.status == 200, await response.read()
            assert response.headers["Content-Type"] == "text/event-stream"
            await self.read(response, blocks=1)  # the stream sends its start position at once
            yield response

    async def read(self, response: aiohttp.ClientResponse, *, blocks: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(blocks):
                fields = {}
                while line := (await response.content.readline()).decode().rstrip("\n"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
                if not fields:
                    return
                self.last_event_id = fields.get("id", self.last_event_id)
                if "data" in fields and "event" not in fields:
                    self.got.append(json.loads(fields["data"])["seq"])
                elif fields.keys() & {"event", ""}:
                    self.other.append((fields.get("event", ""), fields.get("data", fields.get("", ""))))

    async def take(self, response: aiohttp.ClientResponse, count: int) -> list[int]:
        """Return the sequence numbers of the next events."""
        before = len(self.got)
        await self.read(response, blocks=count)
        return self.got[before:]


@pytest.mark.parametrize("who", ["all", "acme"])
async def test_each_event_comes_once_however_often_the_connection_breaks(trail: Trail, who: str) -> None:
    acme = trail.orgs["acme"]
    reader = Reader(trail, who, "org:acme -path:/none")
    for first in range(100, 160, 20):
        async with reader.connected() as response:
            expected = 0 if first == 100 else 10
            if expected:
                await reader.take(response, expected)
            await trail.keep("acme", *(event(acme, number) for number in range(first, first + 10)))
            # The connection ends between events that arrived together.
            await reader.take(response, 4)
        await trail.keep("acme", *(event(acme, number) for number in range(first + 10, first + 14)))
    async with reader.connected() as response:
        await reader.take(response, 10)
    assert reader.got == [n for first in (100, 120, 140) for n in range(first, first + 14)]
    assert not [name for name, _ in reader.other if name]


async def test_a_tail_has_nothing_of_a_foreign_organisation_and_tells_nothing_of_how_much_there_is(
    trail: Trail,
) -> None:
    acme, beta = trail.orgs["acme"], trail.orgs["beta"]
    reader = Reader(trail, "acme")
    async with reader.connected() as response:
        await trail.keep("beta", *(event(beta, number) for number in range(50, 60)))
        await trail.keep("acme", event(acme, 60))
        assert await reader.take(response, 1) == [60]
    assert not reader.last_event_id.isdigit()
    for org in ("beta", "gamma"):
        assert (await trail.get("acme", "tail", org=org)).status == 404
    # A position of another reader, or a plain number, is not accepted.
    assert (await trail.get("acme", "tail", after="12")).status == 400


async def test_a_heartbeat_comes_where_nothing_happens(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_tail, "HEARTBEAT_SECONDS", 0.05)
    reader = Reader(trail, "acme", "verdict:filter")
    async with reader.connected() as response:
        await reader.read(response, blocks=2)
    assert reader.other == [("", "still here")] * 2
    assert reader.got == []


async def test_a_tail_ends_after_a_while_so_that_who_may_no_longer_look_does_not(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(event_tail, "LONGEST_TAIL_SECONDS", 0.2)
    reader = Reader(trail, "acme")
    async with reader.connected() as response, asyncio.timeout(PATIENCE_SECONDS):
        await response.read()


async def test_who_was_away_for_too_long_is_told(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.live_tail.MOST_BEHIND", 3)
    reader = Reader(trail, "all", last_event_id="1")
    async with reader.connected() as response:
        await reader.read(response, blocks=4)
    assert [name for name, _ in reader.other] == ["gap"]
    assert reader.got == [5, 6, 7]


async def test_there_is_an_end_to_how_many_follow(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.live_tail.MOST_OF_ONE", 1)
    monkeypatch.setattr(event_tail, "HEARTBEAT_SECONDS", 0.05)
    reader = Reader(trail, "acme")
    async with reader.connected(), Reader(trail, "all").connected():
        refused = await trail.get("acme", "tail")
        assert (refused.status, refused.code) == (503, "unavailable")
        assert "Retry-After" in refused.headers
    for _ in range(500):  # the slot is free after the server noticed the end of the connection
        if await _status(trail, "acme") == 200:
            return
        await asyncio.sleep(0.02)
    pytest.fail("no place became free")


async def _status(trail: Trail, who: str) -> int:
    headers = {"Authorization": f"Bearer {trail.tokens[who]}"}
    url = f"{trail.plane.console_url}/admin/v1/audit/tail"
    async with trail.plane.session.get(url, headers=headers) as response:
        return response.status


async def test_who_takes_nothing_is_cut_off(
    trail: Trail, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controlplane.admin.api._STALLED_SECONDS", 0.2)
    acme = trail.orgs["acme"]
    host, _, port = trail.plane.console_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        b"GET /admin/v1/audit/tail HTTP/1.1\r\nHost: localhost\r\n"
        b"Authorization: Bearer %b\r\n\r\n" % trail.tokens["acme"].encode()
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    for number in range(70, 100):
        await trail.keep("acme", event(acme, number, note="x" * 400_000))
        if "aborted the response to GET /admin/v1/audit/tail: " in caplog.text:
            break
    for _ in range(500):
        if "aborted the response to GET /admin/v1/audit/tail: " in caplog.text:
            break
        await asyncio.sleep(0.02)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await _read_for_ever(reader)
    writer.close()


async def _read_for_ever(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            await reader.readexactly(65_536)
