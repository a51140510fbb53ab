"""A search that finds nothing says what may be wrong with the question, and never what others own."""

from __future__ import annotations

import pytest

from controlplane.operations.absences import Known, notes
from controlplane.search.query import parse_filter
from tests.controlplane.plane import Plane
from tests.controlplane.test_admin_audit import Trail, trail  # noqa: F401 - a fixture
from tests.controlplane.visitor import visiting

KNOWN = Known(
    {"app": {"a-1": "payroll", "a-2": "Crm"}, "proxy": {"p-1": "edge"}, "org": {"o-1": "acme"}},
    frozenset(("no-mail", "default")),
)


@pytest.mark.parametrize(
    ("filter_", "said"),
    [
        ("app:payrol", ['no app "payrol"; did you mean "payroll"?']),
        ("app:zzz", ['no app "zzz"']),
        ("app:a-1 proxy:p-1 org:o-1", []),
        ("proxy:egde", ['no proxy "egde"; did you mean "edge"?']),
        ("org:acmee", ['no organisation "acmee"; did you mean "acme"?']),
        ("app:a-1,crn", ['no app "crn"; did you mean "Crm"?']),
        ("-app:payrol", ['no app "payrol"; did you mean "payroll"?']),
        ("app:pay*", ['app:"pay*" compares ids, and not names; write payroll']),
        ("app:a-*", []),
        (
            "rule:no-mial",
            ['no rule "no-mial"; did you mean "no-mail"? (in the rulesets as they are now)'],
        ),
        ("rule:NO-MAIL rule:default", []),
        ("reason:rul", ['no reason "rul"; did you mean "rule"?']),
        ('verdict:"blocked"', ['no verdict "blocked"; did you mean "block"?']),
        ("method:GETT", ['no method "GETT"; did you mean "GET"?']),
        ("method:get", []),
        ("status:999", ["status: a status is between 100 and 599"]),
        ("status:<100", []),
        ("status:<99", ["status: a status is between 100 and 599"]),
        ("status:500..400", ["status: the range ends before it begins"]),
        ("time:2026-11-22..2026-11-21", ["time: the range ends before it begins"]),
        ("status:200..499 path:/x mail", []),
    ],
)
def test_what_cannot_be_met_is_named(filter_: str, said: list[str]) -> None:
    assert list(notes(parse_filter(filter_), KNOWN)) == said


@pytest.fixture
async def named(trail: Trail) -> Trail:  # noqa: F811
    await trail.plane.ruleset("acme", "hr")
    await trail.plane.inventory.add_app("payroll", "acme", "hr")
    await trail.plane.ruleset("beta", "crm")
    await trail.plane.inventory.add_app("payslips", "beta", "crm")
    return trail


async def test_only_a_search_that_found_nothing_has_notes(named: Trail) -> None:
    assert (await named.ask("all", "events", filter="org:acme"))["notes"] == []
    assert (await named.ask("all", "events", filter="app:payrol"))["notes"] == [
        'no app "payrol"; did you mean "payroll"?'
    ]
    for path in ("facets", "histogram"):
        assert (await named.ask("all", path, filter="app:payrol"))["notes"] == [
            'no app "payrol"; did you mean "payroll"?'
        ]


async def test_a_rule_of_an_earlier_version_is_no_mistake(named: Trail) -> None:
    """An event names it."""
    assert (await named.ask("all", "events", filter='rule:"no mail"'))["notes"] == []


async def test_an_exclusion_of_what_there_is_not_is_said_beside_what_was_found(named: Trail) -> None:
    found = await named.ask("all", "events", filter="-app:payrol")
    assert found["events"]
    assert found["notes"] == ['no app "payrol"; did you mean "payroll"?']


async def test_a_time_to_come_is_said(named: Trail) -> None:
    found = await named.ask("all", "events", **{"from": "2027-01-01"})
    assert found["notes"] == ["from: 2027-01-01T00:00:00.000Z is in the future"]


@pytest.mark.parametrize("filter_", ["app:payslip", "org:bet", "proxy:edge-bet"])
async def test_names_of_other_organisations_are_told_to_nobody(named: Trail, filter_: str) -> None:
    found = await named.ask("acme", "events", filter=filter_)
    assert found["notes"]
    assert not any(name in str(found) for name in ("payslips", "beta"))


# -- the console


async def test_the_search_page_says_it(plane: Plane) -> None:
    await plane.org("acme")
    async with visiting(plane) as visitor:
        for path in ("/search", "/live"):
            seen = await visitor.get(f"{path}?q=org:acmee")
            assert "No organisation &#34;acmee&#34;; did you mean &#34;acme&#34;?" in seen.text


async def test_the_api_s_name_of_the_filter_is_taken(named: Trail) -> None:
    async with visiting(named.plane) as visitor:
        for path in ("/search", "/live"):
            seen = await visitor.get(f"{path}?filter=path:/v1.0/beta-only")
            assert 'value="path:/v1.0/beta-only"' in seen.text
            assert "/v1.0/users/ada" not in seen.text
            assert "does not know" not in seen.text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/search?query=x", "This page does not know query and shows the same without it."),
        ("/search?q=a&filter=b", "This page does not know filter and shows the same without it."),
        ("/search?q=a&q=b", "q is given 2 times. This page takes the first: a"),
        ("/proxies?status=failed", "This page does not know status and shows the same without it."),
        ("/proxies?health=bad", "Health is never bad. It is one of "),
        ("/record?user=ada", "This page does not know user and shows the same without it."),
        ("/?last=1y", "There is no period 1y: last is one of "),
        ("/apps?name=x", "This page does not know name and shows the same without it."),
        ("/orgs?limit=1", "shows the same without it. It knows cursor, org, search, sort."),
    ],
)
async def test_a_page_says_what_of_its_query_it_does_not_know(plane: Plane, path: str, said: str) -> None:
    async with visiting(plane) as visitor:
        seen = await visitor.get(path)
    assert seen.status == 200
    assert said in seen.text


@pytest.mark.parametrize(
    "path",
    [
        "/search?q=verdict:block&from=-1h&to=now&counts=1",
        "/live?q=x&paused=1",
        "/proxies?health=ok",
        "/record?operator=ada&operation=app&from=-1h&to=now",
        "/?last=24h",
        "/stops?app=x",
        "/rulesets/new?target=/v1.0/users",
    ],
)
async def test_what_a_page_s_links_use_is_known(plane: Plane, path: str) -> None:
    async with visiting(plane) as visitor:
        seen = await visitor.get(path)
    assert "does not know" not in seen.text
