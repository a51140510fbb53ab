"""Tests of a search without results: the response names likely mistakes, but only names the actor may see."""

from __future__ import annotations

import pytest

from controlplane.operations.absences import Known, notes
from controlplane.operations.held import Held, Keeper
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
        ("app:pay*", ['app:"pay*" compares IDs, not names; write payroll']),
        ("app:a-*", []),
        (
            "rule:no-mial",
            ['no rule "no-mial"; did you mean "no-mail"? (in the current rulesets)'],
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


HELD = "organisations acme and beta hold events from 2026-11-21T04:00:00.000Z to 2026-11-21T04:07:00.000Z"


async def test_only_a_search_that_found_nothing_has_notes(named: Trail) -> None:
    assert (await named.ask("all", "events", filter="org:acme"))["notes"] == []
    for path in ("events", "facets", "histogram"):
        found = (await named.ask("all", path, filter="app:payrol"))["notes"]
        assert found[:2] == ['no app "payrol"; did you mean "payroll"?', HELD]


async def test_nothing_found_says_what_was_looked_at_and_what_is_missing(named: Trail) -> None:
    notes = (await named.ask("all", "events", filter="status:418"))["notes"]
    assert notes == [HELD, "6 event numbers of beta never arrived, so events that match may be missing"]
    of_acme = (await named.ask("all", "events", filter="status:418 org:acme"))["notes"]
    assert of_acme == [
        "organisation acme holds events from 2026-11-21T04:00:00.000Z to 2026-11-21T04:06:00.000Z"
    ]
    await named.plane.org("empty")
    (nothing,) = (await named.ask("all", "events", org="empty"))["notes"]
    assert nothing.startswith(
        "organisation empty holds no event: no event has arrived since it was added at 2026-"
    )


async def test_a_time_before_anything_is_held_is_said_beside_what_was_found(named: Trail) -> None:
    found = await named.ask("all", "events", **{"from": "-90d"}, org="acme")
    assert len(found["events"]) == 7
    assert found["notes"] == ["from: no event before 2026-11-21T04:00:00.000Z is stored"]
    assert (await named.ask("all", "events", **{"from": "2026-11-21T04:00:00Z"}))["notes"] == []


DAY = 86_400_000
NOW = 100 * DAY


@pytest.mark.parametrize(
    ("created", "oldest", "from_", "said"),
    [
        (
            0,
            80 * DAY,
            None,
            ["organisation acme keeps 30 days: events before 1970-03-12T00:00:00.000Z are gone"],
        ),
        (0, 80 * DAY, 75 * DAY, ["from: no event before 1970-03-22T00:00:00.000Z is stored"]),
        (0, 69 * DAY, 69 * DAY, []),  # the purge has not run yet
        (90 * DAY, 91 * DAY, None, []),
        (90 * DAY, 91 * DAY, 80 * DAY, ["from: no event before 1970-04-02T00:00:00.000Z is stored"]),
        (
            0,
            80 * DAY,
            10 * DAY,
            [
                "from: no event before 1970-03-22T00:00:00.000Z is stored",
                "organisation acme keeps 30 days: events before 1970-03-12T00:00:00.000Z are gone",
            ],
        ),
    ],
)
def test_what_retention_purged_is_told_from_what_was_never_there(
    created: int, oldest: int, from_: int | None, said: list[str]
) -> None:
    kept = Held((Keeper("acme", created, "base"),), (oldest, NOW), NOW, {})
    assert list(kept.notes_on_nothing(from_))[1:] == said
    assert list(kept.notes_on_found(from_)) == (said if from_ is not None else [])


@pytest.mark.parametrize(
    ("created", "oldest", "gaps"),
    [
        ([90], 91, [("absent", 90)]),
        ([95], 91, [("absent", 91)]),  # events from before the organisation was created
        ([0], 80, [("absent", 0), ("purged", 70)]),
        ([0], None, [("absent", 0), ("purged", 70)]),
        ([0], 69, [("absent", 0), ("purged", 69)]),
        ([0, 90], 95, [("absent", 0), ("purged", 70)]),
        ([0, 60], 65, [("absent", 0), ("purged", 65), ("partly purged", 70)]),
    ],
)
def test_a_time_without_events_is_before_the_first_or_purged_or_quiet(
    created: list[int], oldest: int | None, gaps: list[tuple[str, int]]
) -> None:
    keepers = tuple(Keeper(f"org-{day}", day * DAY, "base") for day in created)
    kept = Held(keepers, None if oldest is None else (oldest * DAY, NOW), NOW, {})
    assert [(gap.state, gap.until_ms // DAY) for gap in kept.gaps()] == gaps


async def test_what_is_held_is_a_question_of_its_own(named: Trail) -> None:
    asked = await named.ask("all", "held", org="acme")
    assert (asked["oldest"], asked["newest"]) == ("2026-11-21T04:00:00.000Z", "2026-11-21T04:06:00.000Z")
    assert [gap["state"] for gap in asked["gaps"]] == ["absent"]
    assert asked["notes"] == [
        "organisation acme holds events from 2026-11-21T04:00:00.000Z to 2026-11-21T04:06:00.000Z"
    ]
    assert (await named.ask("nobody", "held")) == {"oldest": None, "newest": None, "gaps": [], "notes": []}


def test_of_many_organisations_few_are_named() -> None:
    kept = Held(tuple(Keeper(f"org-{each}", 0, "base") for each in range(5)), None, NOW, {})
    said = list(kept.notes_on_nothing(None))
    assert said[0] == "5 organisations hold no event"
    assert [note.split()[:2] for note in said[1:]] == [
        ["organisation", "org-0"],
        ["organisation", "org-1"],
        ["organisation", "org-2"],
        ["2", "other"],
    ]


async def test_a_rule_of_an_earlier_version_is_no_mistake(named: Trail) -> None:
    """A search for a rule of an earlier ruleset version is valid, because some event names the rule."""
    assert (await named.ask("all", "events", filter='rule:"no mail"'))["notes"] == []


async def test_an_exclusion_of_what_there_is_not_is_said_beside_what_was_found(named: Trail) -> None:
    found = await named.ask("all", "events", filter="-app:payrol")
    assert found["events"]
    assert found["notes"] == ['no app "payrol"; did you mean "payroll"?']


async def test_a_time_to_come_is_said(named: Trail) -> None:
    found = await named.ask("all", "events", **{"from": "2027-01-01"})
    assert found["notes"][:2] == ["from: 2027-01-01T00:00:00.000Z is in the future", HELD]


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
            assert "unknown parameter" not in seen.text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/search?query=x", "This page ignores the unknown parameter query."),
        ("/search?q=a&filter=b", "This page ignores the unknown parameter filter."),
        ("/search?q=a&q=b", "q is given 2 times. This page uses the first: a"),
        ("/proxies?status=failed", "This page ignores the unknown parameter status."),
        ("/proxies?health=bad", "Unknown health bad. It must be one of "),
        ("/record?user=ada", "This page ignores the unknown parameter user."),
        ("/?last=1y", "Unknown period 1y: last must be one of "),
        ("/apps?name=x", "This page ignores the unknown parameter name."),
        (
            "/orgs?limit=1",
            "This page ignores the unknown parameter limit. It takes cursor, org, search, sort.",
        ),
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
    assert "unknown parameter" not in seen.text
