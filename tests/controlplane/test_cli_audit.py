"""Tests of `audit search`: accepted events are found at once, and wrong input gives a one-line error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.clock import SystemClock
from tests.controlplane.plane import FakeClock, Plane, ProxyClient, event, started, write_settings
from tests.controlplane.processes import cli, facts, server

pytestmark = pytest.mark.process


def search(config: Path, *arguments: str) -> dict[str, Any]:
    done = cli(config, "audit", "search", *arguments, "--json")
    page: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0
    assert done.stderr.splitlines() == page.get("notes", [])
    return page


def numbers(page: dict[str, Any]) -> list[int]:
    return [made["seq"] for made in page["events"]]


async def ingest(plane: Plane, org: str, *events: dict[str, Any]) -> None:
    proxy = await plane.proxy(f"edge-{org}", org)
    response = await proxy.audit({"batchId": "b1", "events": [*events]})
    assert response.status == 202


def minute(org_id: str, number: int, **members: Any) -> dict[str, Any]:
    return event(org_id, number, time=f"2026-11-21T04:{number:02}:00.000Z", **members)


@pytest.fixture
async def config(tmp_path: Path) -> Path:
    """Settings of a stopped control plane, whose store contains events of two organisations."""
    async with started(tmp_path, FakeClock()) as plane:
        acme, beta = await plane.org("acme"), await plane.org("beta")
        await plane.ruleset("acme", "hr")
        crm = (await plane.inventory.add_app("crm", "acme", "hr")).app
        await ingest(
            plane,
            "acme",
            *(minute(acme, number) for number in range(5)),
            minute(acme, 5, verdict="block", status=403, ruleId="r 7", appId=crm.app_id),
            minute(acme, 6, path="/v1.0/users/ada", status=404, ruleId="\x1b[31mred"),
        )
        await ingest(plane, "beta", minute(beta, 7, path="/v1.0/beta-only"))
    return tmp_path / "controlplane.toml"


def test_newest_first_by_pages(config: Path) -> None:
    first = search(config, "--org", "acme", "--limit", "4")
    assert numbers(first) == [6, 5, 4, 3]
    second = search(config, "--org", "acme", "--limit", "4", "--cursor", first["next"])
    assert numbers(second) == [2, 1, 0]
    assert second["next"] is None


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], [7, 6, 5, 4, 3, 2, 1, 0]),
        (["verdict:block"], [5]),
        (["-verdict:allow"], [5]),
        (["status:>=400", "-verdict:block"], [6]),
        (["status:>=400 -verdict:block"], [6]),
        (["app:crm"], [5]),
        (['rule:"r 7"'], [5]),
        (["org:beta"], [7]),
        (["org:beta", "--org", "acme"], []),
        (["beta-only", "--org", "acme"], []),
        (["path:/v1.0/users/*"], [6]),
        (["--from", "2026-11-21T04:05:00Z", "--to", "2026-11-21T04:07:00Z"], [6, 5]),
        (["--from", "2026-11-22"], []),
        (["-path:/v1.0/users", "-rule:x"], [7, 6]),
    ],
)
def test_filters(config: Path, arguments: list[str], wanted: list[int]) -> None:
    assert numbers(search(config, *arguments)) == wanted


def test_events_are_printed_as_they_were_sent(config: Path) -> None:
    (found,) = search(config, "verdict:block")["events"]
    assert found == minute(found["orgId"], 5, verdict="block", status=403, ruleId="r 7", appId=found["appId"])


def test_for_a_person_lists_have_names_first_and_ids_last(config: Path) -> None:
    org = facts(config, "org", "set-retention", "beta", "1y")
    verified, heads, record = (
        cli(config, *command).stdout
        for command in (("audit", "verify"), ("audit", "head"), ("record", "search"))
    )
    for table in (verified, heads):
        assert table.split()[0] == "org"
        assert (org["name"] in table, org["orgId"] in table) == (True, False)
    assert record.splitlines()[0].split()[-3:] == ["address", "orgs", "request"]
    assert record.splitlines()[1].endswith("  beta  org beta, retention 1y")
    assert "beta: verified. 1 stored event, received from 2026-11-21 " in verified.splitlines()[-1]
    assert cli(config, "org", "list").stdout.split()[:4] == ["name", "retention", "createdAt", "orgId"]
    done = cli(config, "record", "search", "--from", "yesterday")
    assert (done.returncode, done.stderr[:29]) == (2, "--from: 'yesterday' is not a ")


def test_for_a_person_it_is_a_table_that_no_event_can_disturb(config: Path) -> None:
    done = cli(config, "audit", "search", "--limit", "3")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    for shown in ("acme", "beta", "crm", "/v1.0/beta-only", "403", "\\u001b[31mred", "more: --cursor "):
        assert shown in done.stdout
    assert cli(config, "audit", "search", "verdict:filter").stdout == "no events\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verdikt:block"], "FILTER: column 1: unknown field 'verdikt': did you mean verdict?"),
        (["verdict:block", "status:many"], "FILTER: column 22: 'many' is not a number"),
        (['"open'], "FILTER: column 1: the closing quote is missing"),
        (["a\nb:c"], "FILTER: column 3: unknown field 'b'"),
        (["--from", "yesterday"], "--from: 'yesterday' is not a time"),
        (["--to", "2026-02-30"], "--to: '2026-02-30' is not a time"),
        (["--cursor", "x"], "--cursor: this page cursor was not made by this search index"),
        (["--limit", "0"], "--limit"),
        (["--from", ""], "--from: is empty"),
        (["--from", "-1h", "--to", "-2h"], "--from: must not be after `to`"),
        (["--limt", "5"], "No such option: --limt"),
    ],
)
def test_mistakes_are_one_line_and_status_2(config: Path, arguments: list[str], says: str) -> None:
    done = cli(config, "audit", "search", *arguments, "--json")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert says in done.stderr


def test_an_unknown_organisation_or_a_broken_index_is_status_1(config: Path) -> None:
    unknown = cli(config, "audit", "search", "--org", "nobody")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)
    (index,) = (config.parent / "var").glob("*.search.sqlite")
    for path in (config.parent / "var").glob("*.search.sqlite*"):
        path.unlink()
    index.write_bytes(b"no database" * 1000)
    broken = cli(config, "audit", "search")
    assert (broken.returncode, len(broken.stderr.splitlines())) == (1, 1)
    assert index.name in broken.stderr


def test_a_deleted_index_is_built_again_by_the_search(config: Path) -> None:
    for path in (config.parent / "var").glob("*.search.sqlite*"):
        path.unlink()
    assert numbers(search(config, "--org", "acme")) == [6, 5, 4, 3, 2, 1, 0]


async def test_what_was_just_accepted_is_found_while_the_server_runs(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    acme = facts(config, "org", "add", "acme")["orgId"]
    minted = facts(config, "proxy", "add", "edge-1", "--org", "acme")
    async with server(config) as running, aiohttp.ClientSession() as session:
        proxy = ProxyClient(
            session,
            running.address,
            SystemClock(),
            minted["proxyId"],
            minted["apiKey"],
            minted["hmacSecret"],
        )
        for number in range(8):
            response = await proxy.audit({"batchId": f"b{number}", "events": [minute(acme, number)]})
            assert response.status == 202
            page = await asyncio.to_thread(search, config, "verdict:allow")
            assert numbers(page) == list(reversed(range(number + 1)))


def test_a_name_that_there_is_not_is_said_beside_an_empty_result(config: Path) -> None:
    said = 'no app "crn"; did you mean "crm"?'
    done = cli(config, "audit", "search", "app:crn")
    held = "organisations acme and beta hold events from 2026-11-21T04:00:00.000Z to 2026-11-21T04:07:00.000Z"
    notes = done.stderr.splitlines()
    assert (done.returncode, notes[:2]) == (0, [said, held])
    page = cli(config, "audit", "search", "app:crn", "--json")
    assert json.loads(page.stdout) == {"events": [], "next": None, "notes": [said]}
    assert json.loads(cli(config, "audit", "search", "app:crm", "--json").stdout).keys() == {"events", "next"}
    for command in ("facets", "histogram"):
        assert said in cli(config, "audit", command, "app:crn").stderr
    for form in ("csv", "ndjson"):
        exported = cli(config, "audit", "export", "app:crn", "--format", form)
        assert (exported.returncode, exported.stderr.splitlines()) == (0, ["no event matches", *notes])
