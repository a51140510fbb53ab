"""Tests of every search engine, with real servers: results, their order, and access by organisation."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.search.clickhouse import ClickHouseIndex
from controlplane.search.interface import MAX_TOP, CursorError, SearchIndex, SearchQuery
from controlplane.search.postgresql import PostgresIndex
from controlplane.search.postgresql_table import STATE, TABLE
from controlplane.search.query import FIELDS, MAX_VALUES, QueryError, parse_filter
from controlplane.settings import read_settings
from proxy.config import SettingsError, describe
from proxy.wire.audit_event import rfc3339
from tests.controlplane import search_store
from tests.controlplane.plane import write_settings
from tests.controlplane.search_events import (
    CASES,
    EVENTS,
    ORG,
    OTHER_ORG,
    SAMPLES,
    START_MS,
    TERMS,
    Accepted,
    accepted,
    event,
    matches,
    numbers,
)
from tests.fakes.clickhouse import HOW_TO_GET, IS_HERE, SERVER_URL, clickhouse

CLICKHOUSE = pytest.param(
    "clickhouse", marks=pytest.mark.skipif(not (IS_HERE or SERVER_URL), reason=HOW_TO_GET)
)


Opener = Callable[[], AbstractAsyncContextManager[SearchIndex]]


@pytest.fixture(scope="module", params=["sqlite", "postgresql", CLICKHOUSE])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Yield a function that opens empty search indexes."""
    if request.param == "sqlite":
        yield partial(_in_sqlite, tmp_path_factory)
    elif request.param == "postgresql":
        with request.getfixturevalue("postgres").new_database("search") as url:
            yield partial(_in_postgresql, url)
    elif SERVER_URL:
        yield partial(_in_clickhouse, SERVER_URL)
    else:
        with clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
            yield partial(_in_clickhouse, running.url)


@asynccontextmanager
async def _in_sqlite(directories: pytest.TempPathFactory) -> AsyncIterator[SearchIndex]:
    async with search_store.opened(directories.mktemp("search") / "store.db.search.sqlite") as index:
        yield index


@asynccontextmanager
async def _in_postgresql(url: str) -> AsyncIterator[SearchIndex]:
    index = PostgresIndex(url)
    yield index
    await index.close()
    with psycopg.connect(url) as raw:
        raw.execute(f"DROP TABLE IF EXISTS {STATE}, {TABLE}".encode())


@asynccontextmanager
async def _in_clickhouse(url: str) -> AsyncIterator[SearchIndex]:
    database = f"test_{uuid.uuid4().hex}"
    index = ClickHouseIndex(f"{url}/{database}", tiers=_no_tiers)
    yield index
    await index._command(f"DROP DATABASE IF EXISTS {database}")
    await index.close()


async def _no_tiers() -> Mapping[str, int]:
    return {}


@pytest.fixture
async def index(engine: Opener) -> AsyncIterator[SearchIndex]:
    async with engine() as opened:
        yield opened


async def found(index: SearchIndex, text: str, org: str | None = ORG, **more: Any) -> list[int]:
    """Return the sequence numbers of the matching events, newest event first."""
    page = await index.search(SearchQuery(None if org is None else (org,), parse_filter(text), **more))
    return numbers(page.events)


# -- what is found ---------------------------------------------------------------------------------


async def test_what_a_filter_finds(index: SearchIndex) -> None:
    """The test searches in one organisation, and in an operator's view of all organisations."""
    await index.write(accepted(*SAMPLES))
    for text, wanted in CASES:
        assert await found(index, text) == wanted, text
    for text, wanted in CASES[::8]:
        assert await found(index, text, org=None) == wanted, text


_positions = count(1, 100)


@given(
    made=st.lists(EVENTS, min_size=8, max_size=24),
    filters=st.lists(st.lists(TERMS, min_size=1, max_size=3).map(" ".join), min_size=8, max_size=12),
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
async def test_it_finds_what_the_filter_means(
    index: SearchIndex, made: list[dict[str, Any]], filters: list[str]
) -> None:
    org = str(uuid.uuid4())
    events = [event(number) | changes | {"orgId": org} for number, changes in enumerate(made)]
    await index.write(accepted(*events, first_position=next(_positions)))
    for text in filters:
        try:
            wanted = parse_filter(text)
        except QueryError:
            continue
        expected = [one["seq"] for one in reversed(events) if matches(wanted, one)]
        assert numbers((await index.search(SearchQuery((org,), wanted))).events) == expected, text


async def test_the_largest_filters_are_taken(index: SearchIndex) -> None:
    await index.write(accepted(*SAMPLES))
    for term in ("duration:>3", "-rule:x", "-a", "a*", "rule:" + "a*b" * 4, "-path:*x"):
        await found(index, " ".join([term] * MAX_VALUES))
    assert await found(index, "status:" + ",".join(["403"] * MAX_VALUES)) == [10, 2]
    assert await found(index, "-rule:" + ",".join(["no-mail"] * (MAX_VALUES - 1)) + " verdict:block") == [10]


async def test_the_body_comes_back_byte_for_byte(index: SearchIndex) -> None:
    body = orjson.dumps(event(1))[:-1] + b', "unknown" : [1.0, 1e40, {"\\u00e9\\u0000":"\xc3\xa9\\n"}] }'
    await index.write([Accepted(1, ORG, body)])
    assert (await index.search(SearchQuery((ORG,)))).events == (body,)


async def test_from_is_included_and_to_is_not(index: SearchIndex) -> None:
    await index.write(accepted(*(event(n) for n in range(5))))
    assert await found(index, "", from_ms=START_MS + 1000, to_ms=START_MS + 3000) == [2, 1]
    assert await found(index, "", from_ms=-(2**70), to_ms=2**70) == [4, 3, 2, 1, 0]


async def test_fields_of_the_wrong_type_do_not_stop_the_others(index: SearchIndex) -> None:
    odd = event(
        1,
        durationMs="fast",
        path={"a": 1},
        query=5,
        transforms="strip:x",
        loggedRuleIds=[1, "watch", None],
        status=200.0,
        upstreamStatus=True,
        requestBytes=2**63,
        responseBytes=-5,
        time="soon",
        rulesetVersion=7,
        method="G\x00T",
        ruleId="\n",
        verdict="maybe",
        clientId="x y",
    )
    await index.write(accepted(odd))
    for text in ("logged:watch", "status:200", "ruleset:7", "-verdict:allow", "-has:path", "seq:1", "ip:10*"):
        assert await found(index, text) == [1], text


@pytest.mark.parametrize("body", [b"", b"[]", b'{"id":5}', b"\xff", b'{"id":"\\ud800"}'], ids=range(5))
async def test_an_event_that_cannot_be_indexed_is_logged_and_stops_nothing(
    index: SearchIndex, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await index.write([Accepted(1, ORG, body), *accepted(event(2), first_position=2)])
    assert await found(index, "") == [2]
    assert "position 1 is not searchable" in caplog.text


# -- pages -----------------------------------------------------------------------------------------


async def pages(index: SearchIndex, query: SearchQuery, limit: int) -> AsyncIterator[list[int]]:
    cursor = None
    while True:
        page = await index.search(
            SearchQuery(query.org_ids, query.filter, query.from_ms, query.to_ms, limit, cursor)
        )
        yield numbers(page.events)
        cursor = page.next
        if cursor is None:
            return


async def test_pages_hold_each_event_once_while_new_ones_arrive(index: SearchIndex) -> None:
    await index.write(accepted(*(event(n) for n in range(0, 20, 2))))
    seen: list[int] = []
    late = iter(accepted(*(event(n) for n in (19, 5, 13, 99, 1)), first_position=11))
    async for page in pages(index, SearchQuery((ORG,), parse_filter("verdict:allow")), limit=3):
        seen += page
        if (arriving := next(late, None)) is not None:
            await index.write([arriving])
    assert seen == sorted(set(seen), reverse=True)
    assert set(range(0, 20, 2)) <= set(seen)


async def test_events_of_one_millisecond_are_all_kept_and_paged_by_their_acceptance(
    index: SearchIndex,
) -> None:
    for number in range(4):
        made = event(number, time=rfc3339(START_MS))
        await index.write([Accepted(5 + number * (1 << 33), ORG, orjson.dumps(made))])
    assert [page async for page in pages(index, SearchQuery((ORG,)), limit=3)] == [[3, 2, 1], [0]]


async def test_the_last_page_says_so_even_if_it_is_full(index: SearchIndex) -> None:
    await index.write(accepted(event(1), event(2)))
    assert (await index.search(SearchQuery((ORG,), limit=2))).next is None
    assert (await index.search(SearchQuery((ORG,), limit=1))).next is not None


async def test_a_page_ends_where_its_events_are_large(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sqlite_index", "postgresql", "clickhouse"):
        monkeypatch.setattr(f"controlplane.search.{module}.MAX_PAGE_BYTES", 20_000)
    await index.write(accepted(*(event(n, new="x" * 10_000 if n in (2, 3, 5) else "") for n in range(8))))
    for limit in (7, 5):
        found = [page async for page in pages(index, SearchQuery((ORG,)), limit=limit)]
        assert found == [[7, 6, 5, 4, 3], [2, 1, 0]]


async def test_a_foreign_cursor_is_refused(index: SearchIndex) -> None:
    for cursor in ("", "x", "ÿ" * 11, "'; DROP TABLE events"):
        with pytest.raises(CursorError):
            await index.search(SearchQuery((ORG,), cursor=cursor))


# -- organisations ---------------------------------------------------------------------------------

FOREIGN = event(
    1, orgId=OTHER_ORG, path="/v1.0/users/secret-person", ruleId="secret-rule", appId="secret-app"
)


async def test_no_filter_finds_another_organisations_event(index: SearchIndex) -> None:
    await index.write(accepted(event(0), FOREIGN))
    for text in (
        "",
        "secret-person",
        "secret*",
        "-app:x",
        "path:*secret*",
        f"org:{OTHER_ORG},{ORG} secret-person",
        "-org:x",
        "-has:parent",
        f"id:{FOREIGN['id']}",
        'app:"x"" OR ""o=*"'.replace('""', '\\"'),
        'rule:"\' OR 1=1 --"',
        '-rule:"\' OR 1=1 --"',
        '-rule:"\\\\\' OR 1=1 --"',
        "-time:<2000-01-01",
    ):
        query = SearchQuery((ORG,), parse_filter(text))
        page = await index.search(query)
        assert all(orjson.loads(body)["orgId"] == ORG for body in page.events), text
        facets = await index.facets(query, ["org", "app"])
        assert facets.counted <= 1, text
        assert "secret" not in str(facets), text
        histogram = await index.histogram(query, 1000)
        assert sum(number for _, number in histogram.buckets) <= 1, text


async def test_several_organisations_are_searched_and_no_other(index: SearchIndex) -> None:
    third = "01933d2a-0000-7000-8000-00000000000c"
    await index.write(accepted(event(1), event(2, orgId=OTHER_ORG), event(3, orgId=third)))
    assert numbers((await index.search(SearchQuery((ORG, third)))).events) == [3, 1]
    assert (await index.search(SearchQuery(()))).events == ()
    many = (*(str(uuid.uuid4()) for _ in range(400)), third)
    assert numbers((await index.search(SearchQuery(many))).events) == [3]


async def test_the_organisation_is_the_stores_and_compared_exactly(index: SearchIndex) -> None:
    """The index takes an event's organisation from the store, not from the event.

    Ids that differ by case are distinct.
    """
    await index.write([Accepted(1, OTHER_ORG.upper(), orjson.dumps(event(1)))])
    assert await found(index, "") == []
    assert await found(index, "", org=OTHER_ORG) == []
    assert await found(index, f"org:{OTHER_ORG}", org=OTHER_ORG.upper()) == [1]


async def test_one_id_in_two_organisations_is_two_events(index: SearchIndex) -> None:
    await index.write(accepted(event(1), event(1, orgId=OTHER_ORG, seq=2)))
    assert await found(index, "") == [1]
    assert await found(index, "", org=OTHER_ORG) == [2]


# -- counts ----------------------------------------------------------------------------------------


async def test_facets(index: SearchIndex) -> None:
    await index.write(accepted(*SAMPLES))
    query = SearchQuery((ORG,), parse_filter("-app:crm"))
    facets = await index.facets(query, ["verdict", "status", "logged"], top=2)
    assert facets.fields == {
        "verdict": (("allow", 6), ("block", 2)),
        "status": (("200", 4), ("403", 2)),
        "logged": (("watch", 1), ("watch-2", 1)),
    }
    assert (facets.counted, facets.complete) == (9, True)


async def test_of_values_that_are_as_frequent_the_first_in_the_order_of_text_come(index: SearchIndex) -> None:
    names = [f"{'aB'[number % 2]}{number * 37 % 100}" for number in range(100)]
    made = [
        event(number, path=f"/v1.0/{name}", appId=name, clientIp=f"10.0.0.{number}", loggedRuleIds=[name])
        for number, name in enumerate(names)
    ]
    await index.write(accepted(*made))
    facets = await index.facets(SearchQuery((ORG,)), ["app", "path", "logged", "ip"], top=5)
    expected = [(name, 1) for name in sorted(names)[:5]]
    assert facets.fields["app"] == facets.fields["logged"] == tuple(expected)
    assert facets.fields["path"] == tuple((f"/v1.0/{name}", 1) for name, _ in expected)
    assert [ip for ip, _ in facets.fields["ip"]] == sorted(f"10.0.0.{number}" for number in range(100))[:5]


async def test_values_count_without_regard_to_case_and_keep_a_spelling(index: SearchIndex) -> None:
    others = [event(n, path="/v1.0/Users", appId="App-1", transforms=["Hide:x", "hide:x"]) for n in (1, 2)]
    await index.write(accepted(*others, event(3, transforms=["hide:X"])))
    facets = await index.facets(SearchQuery((ORG,)), ["path", "app", "transform"], top=1)
    counts = {name: [(value.lower(), times) for value, times in each] for name, each in facets.fields.items()}
    assert counts == {"path": [("/v1.0/users", 3)], "app": [("app-1", 3)], "transform": [("hide:x", 5)]}
    assert facets.fields["app"] == (("App-1", 3),)


async def test_histogram(index: SearchIndex) -> None:
    times = [-1, 0, 999, 1000, 5000, 5001]
    await index.write(accepted(*(event(n, time=rfc3339(ms)) for n, ms in enumerate(times))))
    histogram = await index.histogram(SearchQuery((ORG,)), 1000)
    assert histogram.buckets == ((-1000, 1), (0, 2), (1000, 1), (5000, 2))
    assert histogram.complete
    assert (await index.histogram(SearchQuery((ORG,), from_ms=1000), 1000)).buckets == ((1000, 1), (5000, 2))


async def test_counts_say_if_they_are_not_of_everything(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("part_counts.MATCHES", "postgresql.COUNTED_MATCHES", "clickhouse.COUNTED_MATCHES"):
        monkeypatch.setattr(f"controlplane.search.{bound}", 3)
    await index.write(accepted(*(event(n, clientIp=f"10.0.0.{n}") for n in range(6))))
    facets = await index.facets(SearchQuery((ORG,)), ["ip"])
    assert {ip for ip, _ in facets.fields["ip"]} == {"10.0.0.3", "10.0.0.4", "10.0.0.5"}
    assert (facets.counted, facets.complete) == (3, False)


async def test_counts_are_those_of_the_events(index: SearchIndex) -> None:
    made = [
        event(
            n,
            verdict=("allow", "block", "filter")[n % 3],
            path=f"/v1.0/Users/{'x' if n % 5 else 'y'}{n % 250}" if n % 7 else "/v1.0/users",
            query="$top=1" if n % 2 else None,
            status=200 + n % 300,
            durationMs=n / 40,
            clientIp=f"10.0.{n % 250}.{n % 11}",
            loggedRuleIds=["a", "b"][: n % 3],
            ruleIds=["a", "default", "b"][: n % 4],
            traceId=f"{n:032x}" if n % 3 else None,
        )
        for n in range(600)
    ]
    await index.write(accepted(*made))
    fields = ["verdict", "status", "ip", "logged", "ruleid", "trace", "path", "query", "duration", "org"]
    for text in ("", "-verdict:allow", "path:/v1.0/users/*", "path:*x*", "-x", "duration:>5", "ip:*1"):
        wanted = parse_filter(text)
        facets = await index.facets(SearchQuery((ORG,), wanted), fields, top=MAX_TOP)
        held = [one for one in made if matches(wanted, one)]
        assert (facets.counted, facets.complete) == (len(held), True)
        for name in fields:
            values = [one.get(FIELDS[name].event_key) for one in held]
            flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
            expected = Counter(str(each).lower().removesuffix(".0") for each in flat if each is not None)
            counts = {value.lower().removesuffix(".0"): number for value, number in facets.fields[name]}
            assert counts.items() <= expected.items(), (text, name)
            assert len(counts) == min(MAX_TOP, len(expected))
        histogram = await index.histogram(SearchQuery((ORG,), wanted), 60_000)
        times = (START_MS + one["seq"] * 1000 for one in held)
        assert dict(histogram.buckets) == Counter(time // 60_000 * 60_000 for time in times)


async def test_the_span_is_that_of_the_organisations_asked_for(index: SearchIndex) -> None:
    assert await index.span(None) is None
    await index.write(accepted(event(1), event(5), event(9, orgId=OTHER_ORG)))
    assert await index.span((ORG,)) == (START_MS + 1000, START_MS + 5000)
    assert await index.span((ORG, OTHER_ORG)) == (START_MS + 1000, START_MS + 9000)
    assert await index.span(None) == (START_MS + 1000, START_MS + 9000)
    assert await index.span(()) is None


# -- repeated and purged events ----------------------------------------------------------------------


async def test_an_event_that_comes_again_changes_nothing(index: SearchIndex) -> None:
    await index.write(accepted(event(1)))
    await index.write(accepted(event(1)))
    assert (await index.facets(SearchQuery((ORG,)), ["seq"])).counted == 1
    await index.write(accepted(event(1), event(2)))
    assert await found(index, "") == [2, 1]


async def test_purge_takes_the_oldest_of_one_organisation(index: SearchIndex) -> None:
    mine = [event(n) for n in range(6)]
    others = [event(n, orgId=OTHER_ORG) for n in range(6)]
    await index.write(accepted(*mine, *others))
    before = START_MS + 4000
    assert await index.purge(ORG, before, limit=3) == 3
    assert await found(index, "") == [5, 4, 3]
    assert await index.purge(ORG, before, limit=3) == 1
    assert await index.purge(ORG, before, limit=3) == 0
    assert await found(index, "users") == [5, 4]
    assert await found(index, "", org=OTHER_ORG) == [5, 4, 3, 2, 1, 0]


async def test_purge_keeps_what_came_late_and_takes_a_time_that_can_not_be_true(index: SearchIndex) -> None:
    """The first three events were received before the time of the purge, the last two events after it."""
    times = [START_MS, START_MS + 9_000, START_MS + 86_400_000, START_MS, START_MS + 86_400_000]
    await index.write(accepted(*(event(n, time=rfc3339(ms)) for n, ms in enumerate(times))))
    assert await index.purge(ORG, START_MS + 8_000, limit=9, newest=3) == 2
    assert sorted(await found(index, "")) == [1, 3, 4]


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ('Kind = "opensearch"', "sqlite, postgresql, clickhouse"),
        ('Kind = "clickhouse"', "SearchIndex.Url: is missing: give an http:// or https:// address"),
        ('Kind = "postgresql"', "SearchIndex.Url: is missing: give postgresql://user:password@host/database"),
        ('Kind = "sqlite"\nUrl = "http://h"', "SearchIndex.Url: must not be given, because Kind is sqlite"),
        (
            'Kind = "postgresql"\nUrl = "postgresql://h/db"\nPassword = "p~ssword"',
            "SearchIndex.Password: must not be given, because Kind is postgresql: Url holds the user and",
        ),
        ('Kind = "clickhouse"\nUrl = "http://u:p~ssword@here"', "without user"),
        (
            'Kind = "postgresql"\nUrl = "mysql://u:p~ssword@here/db"',
            "SearchIndex.Url: the URL must begin with postgresql://",
        ),
    ],
)
def test_an_index_that_can_not_be_is_refused_at_the_start(tmp_path: Path, section: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(problem)) as caught:
        read_settings(write_settings(tmp_path, SearchIndex=section), {})
    assert "p~ssword" not in str(caught.value)


def test_the_password_of_an_address_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:p~ssword@db.example/events\n")
    section = f'Kind = "postgresql"\nUrlFile = "{tmp_path / "url"}"'
    settings = read_settings(write_settings(tmp_path, SearchIndex=section), {})
    assert settings.search_index.url == "postgresql://u:p~ssword@db.example/events"
    index = PostgresIndex(settings.search_index.url)
    assert "p~ssword" not in f"{describe(settings)} {settings!r} {index!r}"
