"""Tests of the SQLite search index on real files: results, order, organisations and recovery."""

import asyncio
import os
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.search.fair_queue import FairQueue
from controlplane.search.interface import (
    IndexDamagedError,
    IndexMovedError,
    IndexUnavailableError,
    SearchIndex,
    SearchQuery,
)
from controlplane.search.part_search import TimeLimit
from controlplane.search.query import FIELDS, MAX_VALUES, Filter, QueryError, parse_filter, words
from controlplane.search.sql import Key
from controlplane.search.sqlite_index import SqliteIndex, _Connection
from controlplane.store.migrate import migrate
from tests.controlplane.search_events import (
    EVENTS,
    ORG,
    OTHER_ORG,
    SAMPLES,
    START_MS,
    TERMS,
    accepted,
    event,
    matches,
    numbers,
)
from tests.controlplane.search_store import StoredIndex, opened


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[SqliteIndex]:
    async with opened(tmp_path / "store.db.search.sqlite") as index:
        yield index


async def found(index: SearchIndex, text: str, org: str | None = ORG, **more: Any) -> list[int]:
    """Return the sequence numbers of the events that the search finds, newest event first."""
    page = await index.search(SearchQuery(None if org is None else (org,), parse_filter(text), **more))
    return numbers(page.events)


async def test_a_list_or_text_that_was_cut_is_found_by_its_mark(index: SqliteIndex) -> None:
    made = [
        event(1, loggedRuleIds=["log-1", "log-2", "…[998 more]"]),
        event(2, path="/v1.0/" + "a" * 9000 + "…[50000 more]"),
        event(3, transforms=["strip:mail", "…[1 more]"], loggedRuleIds=["log-1"]),
        event(4, loggedRuleIds=["more"]),
    ]
    await index.write(accepted(*made))
    for text, wanted in (
        ("logged:*more]*", [1]),
        ('logged:"…[998 more]"', [1]),
        ("path:*more]*", [2]),
        ("transform:*more]*", [3]),
        ("logged:log-1", [3, 1]),
    ):
        assert await found(index, text) == wanted, text


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


async def test_a_page_of_the_largest_events_of_a_proxy_is_whole(index: SqliteIndex) -> None:
    await index.write(accepted(*(event(n, query="x" * 15_000) for n in range(1000))))
    assert len((await index.search(SearchQuery((ORG,), limit=1000))).events) == 1000


@pytest.mark.parametrize("seconds", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("text", ["", "path:*se*s*", '-"v1 0" -users', "users", "-x", "status:200"])
async def test_pages_that_end_with_their_time_hold_each_event_once(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch, seconds: int, text: str
) -> None:
    """The time ranges of the index parts overlap, and each call of the test's clock adds one second."""

    class Ticks(TimeLimit):
        def __init__(self, _: float, may_end: Callable[[Key], bool]) -> None:
            super().__init__(seconds, may_end, count().__next__)

    monkeypatch.setattr("controlplane.search.parts.PART_BITS", 3)
    made = [event(n, orgId=(ORG, OTHER_ORG)[n % 2], ruleId=f"r{n}") for n in range(40)]
    made[3] |= {"path": "/x/users"}
    written = made[0::3][:7] + made[20::3][:7] + made[1::3][:7] + made[21::3][:7] + made[2::3][:7]
    await index.write(accepted(*written))
    wanted = parse_filter(text)
    monkeypatch.setattr("controlplane.search.part_search.TimeLimit", Ticks)
    for limit in (3, 1000):
        seen = [page async for page in pages(index, SearchQuery(None, wanted), limit)]
        held = sorted((one["seq"] for one in written if matches(wanted, one)), reverse=True)
        assert [number for page in seen for number in page] == held


async def test_a_page_ends_with_its_time_and_the_next_one_goes_on(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ticks(TimeLimit):
        """A clock that advances by one second each time that the search reads the clock."""

        def __init__(self, _: float, may_end: Callable[[Key], bool]) -> None:
            super().__init__(6, may_end, count().__next__)

    await index.write(accepted(*map(event, range(6))))
    monkeypatch.setattr("controlplane.search.part_search.TimeLimit", Ticks)
    seen = [page async for page in pages(index, SearchQuery((ORG,), parse_filter("path:*s*r*")), limit=100)]
    assert [number for page in seen for number in page] == [5, 4, 3, 2, 1, 0]
    assert len(seen) > 1


async def test_many_pages_of_one_organisation_hold_up_another_by_one_at_most(index: SqliteIndex) -> None:
    await index.write(accepted(event(0), event(1, orgId=OTHER_ORG)))
    done: list[str] = []

    async def search(org: str) -> None:
        await found(index, "", org)
        done.append(org)

    many = [asyncio.create_task(search(OTHER_ORG)) for _ in range(8)]
    await asyncio.sleep(0)
    await asyncio.gather(search(ORG), *many)
    assert done.index(ORG) <= 2


# -- writing ---------------------------------------------------------------------------------------


async def test_what_retention_took_from_the_store_is_found_no_more(index: StoredIndex) -> None:
    """A search does not return expired events, even before a purge removes them from the index."""
    await index.write(accepted(*(event(number) for number in range(3))))
    with closing(sqlite3.connect(index.store)) as store:
        store.execute("DELETE FROM blocks WHERE position = 2")
        store.execute("UPDATE blocks SET body = CAST('[null]' AS BLOB) WHERE position = 3")
        store.commit()
    assert await found(index, "") == [0]
    assert await found(index, "seq:1..2") == []


async def test_an_index_that_is_ahead_of_its_store_is_built_again(tmp_path: Path) -> None:
    """A restored store will assign positions that the index already uses for other events."""
    path = tmp_path / "search.sqlite"
    async with opened(path) as index:
        await index.write(accepted(event(1), event(2)))
        name = await index.outbox_name()
    with closing(sqlite3.connect(tmp_path / "store.db")) as store:
        store.execute("DELETE FROM blocks WHERE position = 2")
        store.execute("UPDATE last_position SET position = 1")
        store.commit()
    async with opened(path) as index:
        assert await index.outbox_name() != name
        await index.write(accepted(event(1), event(3)))
        assert await found(index, "") == [3, 1]


async def test_an_index_that_a_busy_server_writes_meanwhile_is_not_ahead_of_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a command opens the index, the server stores and indexes a further batch."""
    path = tmp_path / "search.sqlite"
    run = _Connection.run
    late = [accepted(event(2), first_position=2)]
    async with opened(path) as server:
        await server.write(accepted(event(1)))

        async def run_late(self: _Connection, begin: str, job: Any, *given: object) -> Any:
            if begin == "BEGIN IMMEDIATE" and late:
                await server.write(late.pop())
            return await run(self, begin, job, *given)

        monkeypatch.setattr(_Connection, "run", run_late)
        async with opened(path) as command:
            assert not late
            assert await command.outbox_name() == await server.outbox_name()
            assert await found(command, "") == [2, 1]


async def test_nothing_is_written_to_an_index_that_lacks_what_came_before(tmp_path: Path) -> None:
    """Another process created the index again and wrote only the first events to it."""
    path = tmp_path / "search.sqlite"
    async with opened(path) as server:
        await server.write(accepted(event(1), event(2)))
        old_name = await server.outbox_name()
        with sqlite3.connect(path) as file:
            file.execute("PRAGMA user_version = 1")
        file.close()
        async with opened(path) as command:
            await command.write(accepted(event(1)))
            with pytest.raises(IndexMovedError) as moved:
                await server.write(accepted(event(3), first_position=3), after=2)
            assert moved.value.reached == 1
            assert await server.outbox_name() == await command.outbox_name() != old_name
            with pytest.raises(IndexMovedError):
                await server.write(accepted(event(3), first_position=3), after=2)
            await server.write(accepted(event(1), event(2), event(3)), after=1)
            assert await found(command, "") == [3, 2, 1]


async def test_nothing_is_written_to_an_index_of_another_release(index: SqliteIndex, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db.search.sqlite") as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(IndexUnavailableError, match="another release"):
        await index.write(accepted(event(1)))


async def test_two_writers_at_once_write_each_event_once(tmp_path: Path) -> None:
    """Two index writers, one of a server and one of a command, write the same outbox to the index at once."""
    path = tmp_path / "search.sqlite"
    batches = [
        accepted(*(event(n) for n in range(s, s + 20)), first_position=s + 1) for s in range(0, 100, 20)
    ]

    async def write_all(index: SqliteIndex) -> None:
        for batch in batches:
            await index.write(batch)

    async with opened(path) as first, opened(path) as second:
        await asyncio.gather(write_all(first), write_all(second))
        assert await found(first, "verdict:allow") == list(reversed(range(100)))
        assert await first.outbox_name() == await second.outbox_name()


async def test_a_new_file_is_made_once_however_many_open_it(tmp_path: Path) -> None:
    path = tmp_path / "search.sqlite"
    migrate(tmp_path / "store.db")
    indexes = await asyncio.gather(*(SqliteIndex.open(path, tmp_path / "store.db") for _ in range(5)))
    names = {await index.outbox_name() for index in indexes}
    for index in indexes:
        await index.close()
    assert len(names) == 1


async def test_a_new_file_has_a_new_name_in_the_outbox_and_a_reopened_one_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "search.sqlite"
    async with opened(path) as index:
        name = await index.outbox_name()
        await index.write(accepted(event(1)))
    async with opened(path) as index:
        assert (await index.outbox_name(), await found(index, "")) == (name, [1])
    path.unlink()
    async with opened(path) as index:
        assert await index.outbox_name() != name
        assert await found(index, "") == []


async def test_an_index_that_was_opened_twice_still_holds_its_log_against_other_processes(
    tmp_path: Path,
) -> None:
    """POSIX file locks belong to a process, not to a file descriptor.

    If any part of a process closes a file, the process releases all its locks on this file.
    """
    path = tmp_path / "search.sqlite"
    sql = "SELECT coalesce(sum(count), 0) FROM parts"
    count = f"import sqlite3; print(*sqlite3.connect({str(path)!r}).execute({sql!r}))"

    async def seen_by_another_process() -> bytes:
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", count, stdout=asyncio.subprocess.PIPE
        )
        return (await other.communicate())[0].strip()

    async with opened(path) as first, opened(path):
        assert await seen_by_another_process() == b"(0,)"
        await first.write(accepted(event(1)))
        assert await seen_by_another_process() == b"(1,)"


async def test_a_file_of_another_format_is_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "search.sqlite"
    with sqlite3.connect(path) as old:
        old.execute("CREATE TABLE segments (old)")
        old.execute("CREATE VIRTUAL TABLE words USING fts5(old)")
        old.execute("PRAGMA user_version = 99")
    old.close()
    async with opened(path) as index:
        await index.write(accepted(event(1)))
        assert await found(index, "") == [1]
    assert "from another release: rebuilding it" in caplog.text


async def test_a_file_of_the_release_before_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "search.sqlite"
    async with opened(path) as index:
        await index.write(accepted(event(1)))
        old_name = await index.outbox_name()
    with sqlite3.connect(path) as old:
        old.execute("PRAGMA user_version = 4")
    old.close()
    async with opened(path) as index:
        assert await index.outbox_name() != old_name
        assert await found(index, "") == []
        await index.write(accepted(event(1)))
        assert await found(index, "") == [1]


async def test_the_file_is_readable_by_its_owner_only(index: SqliteIndex, tmp_path: Path) -> None:
    await index.write(accepted(event(1)))
    modes = {
        entry.name: entry.stat().st_mode & 0o777
        for entry in os.scandir(tmp_path)
        if ".search.sqlite" in entry.name
    }
    assert len(modes) >= 2
    assert set(modes.values()) == {0o600}


async def test_a_file_that_is_no_database_is_an_unavailable_index(tmp_path: Path) -> None:
    path = tmp_path / "search.sqlite"
    path.write_bytes(b"not a database at all" * 500)
    with pytest.raises(IndexDamagedError, match=r"search\.sqlite.*remove this file"):
        await SqliteIndex.open(path, tmp_path / "store.db")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE words_0_data SET block = x'a5a5a5a5a5a5a5a5'",
        "UPDATE codes_0 SET value = 'x'",
        "UPDATE codes_0 SET field = 'x'",
        "DELETE FROM codes_0",
        "DELETE FROM incarnation",
        "DROP TABLE rows_0",
    ],
)
async def test_what_makes_no_sense_any_more_is_damage(
    index: SqliteIndex, tmp_path: Path, damage: str
) -> None:
    await index.write(accepted(*map(event, range(5))))
    with closing(sqlite3.connect(tmp_path / "store.db.search.sqlite")) as file:
        file.execute(damage)
        file.commit()
    query = SearchQuery((ORG,), parse_filter("verdict:allow users"), from_ms=START_MS + 1)
    report = []
    for ask in (
        lambda: index.search(query),
        lambda: index.facets(query, ["verdict"]),
        lambda: index.histogram(query, 1000),
        lambda: index.write(accepted(event(5), first_position=6), after=5),
    ):
        try:
            await ask()
        except IndexUnavailableError as error:
            report.append(str(error))
    assert report or damage == "DELETE FROM codes_0"
    assert all("store.db.search.sqlite" in each for each in report)


async def test_a_failed_write_leaves_nothing_and_the_next_one_works(
    index: SqliteIndex, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "store.db.search.sqlite") as beside:
        beside.execute("CREATE TRIGGER broken BEFORE INSERT ON parts BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(IndexUnavailableError, match="full"):
        await index.write(accepted(event(1)))
    with beside:
        beside.execute("DROP TRIGGER broken")
    beside.close()
    await index.write(accepted(event(1)))
    assert await found(index, "verdict:allow") == [1]


async def test_a_purge_goes_through_all_parts_and_drops_the_empty_ones(
    index: SqliteIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.search.parts.PART_BITS", 2)
    numbers_as_they_came = (7, 0, 6, 1, 5, 2, 4, 3, 9, 8, 10, 14, 15, 11, 12, 13)
    for position, number in enumerate(numbers_as_they_came, 1):
        await index.write(accepted(event(number, path=f"/v1.0/users/u{number}"), first_position=position))
    assert await found(index, "") == list(reversed(range(16)))
    assert await index.purge(ORG, START_MS + 5000, limit=100) == 5
    assert await found(index, "") == list(reversed(range(5, 16)))
    assert await found(index, "u4") == []
    assert await found(index, "path:*u7") == [7]
    assert await index.purge(ORG, START_MS + 99_000, limit=100) == 11
    assert await found(index, "") == []
    assert await index.span((ORG,)) is None
    # The newest part is removed with the first event of the part behind it.
    assert tables_of_parts(tmp_path / "store.db.search.sqlite") == {"4"}
    await index.write(accepted(event(20), first_position=20))
    assert tables_of_parts(tmp_path / "store.db.search.sqlite") == {"5"}
    assert await found(index, "users") == [20]


def tables_of_parts(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as file:
        names = file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return {number for (name,) in names if (number := re.sub(r"\D", "", name))}


async def test_events_of_impossible_times_are_found_and_counted_by_their_times(index: SqliteIndex) -> None:
    """The index keys can represent event times in the years 1970 to 2248."""
    times = ("1883-11-18T12:00:00Z", "1970-01-01T00:00:00Z", event(0)["time"], "2250-01-01T00:00:00Z",
             "9999-12-31T23:59:59Z")  # fmt: skip
    await index.write(accepted(*(event(n, time=time) for n, time in enumerate(times))))
    assert await found(index, "") == [4, 3, 2, 1, 0]
    for text, wanted in (
        ("time:<1900-01-01", [0]),
        ("time:>=1970-01-01", [4, 3, 2, 1]),
        ("time:2249-01-01..2251-01-01", [3]),
    ):
        assert await found(index, text) == wanted, text
    year_ms = 365 * 86_400_000
    assert await found(index, "", to_ms=0) == [0]
    assert await found(index, "", from_ms=280 * year_ms) == [4, 3]
    assert await found(index, "", from_ms=0, to_ms=281 * year_ms) == [3, 2, 1]
    found_times = [start for start, _ in (await index.histogram(SearchQuery((ORG,)), 3_600_000)).buckets]
    assert (len(found_times), found_times[0] < 0, found_times[-1] > 8000 * year_ms) == (5, True, True)


async def test_an_index_that_another_process_made_anew_is_read_with_its_own_dictionary(
    tmp_path: Path,
) -> None:
    path = tmp_path / "search.sqlite"
    async with opened(path) as server:
        await server.write(accepted(event(1, verdict="allow"), event(2, verdict="block")))
        assert await found(server, "verdict:block") == [2]
        with sqlite3.connect(path) as file:
            file.execute("PRAGMA user_version = 1")
        file.close()
        async with opened(path) as command:
            await command.write(accepted(event(2, verdict="block"), first_position=2))
        assert await found(server, "verdict:block") == [2]
        facets = await server.facets(SearchQuery((ORG,)), ["verdict", "path"])
        assert facets.fields["verdict"] == (("block", 1),)


async def test_events_of_many_organisations_that_come_together_stay_apart(
    index: SqliteIndex, tmp_path: Path
) -> None:
    """FTS5 gets the events of all organisations in row ID order, so it writes one index segment."""
    made = [event(n, orgId=f"org-{n % 7}", path=f"/v1.0/users/u{n}") for n in range(70)]
    await index.write(accepted(*made))
    for number in range(7):
        expected = [n for n in reversed(range(70)) if n % 7 == number]
        assert await found(index, "v1", org=f"org-{number}") == expected
        assert await index.span((f"org-{number}",)) == (
            START_MS + number * 1000,
            START_MS + (63 + number) * 1000,
        )
    with closing(sqlite3.connect(tmp_path / "store.db.search.sqlite")) as file:
        ((segments,),) = file.execute("SELECT count(DISTINCT segid) FROM words_0_idx").fetchall()
    assert segments == 1


# -- counts ----------------------------------------------------------------------------------------


async def test_counts_say_when_they_are_not_of_everything(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.search.part_counts.MATCHES", 3)
    await index.write(accepted(*(event(n, clientIp=f"10.0.0.{n}") for n in range(6))))
    facets = await index.facets(SearchQuery((ORG,)), ["ip"])
    assert (len(facets.fields["ip"]), facets.counted, facets.complete) == (3, 3, False)
    histogram = await index.histogram(SearchQuery((ORG,), parse_filter("users")), 3_600_000)
    assert (histogram.complete, sum(count for _, count in histogram.buckets)) == (False, 3)
    # The index keeps counts of these fields.
    facets = await index.facets(SearchQuery((ORG,)), ["verdict"])
    assert (facets.fields["verdict"], facets.counted, facets.complete) == ((("allow", 6),), 6, True)
    histogram = await index.histogram(SearchQuery((ORG,)), 3_600_000)
    assert (histogram.complete, sum(count for _, count in histogram.buckets)) == (True, 6)


@pytest.mark.parametrize(("looks", "counted"), [(1, 0), (3, 2), (4, 3), (6, 4), (1000, 6)])
async def test_counts_say_how_far_they_came_in_their_time(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch, looks: int, counted: int
) -> None:
    """The search index has two parts.

    In each part of the index, newer part first, the test's search reads three events.
    """

    class Looks(TimeLimit):
        def __init__(self, seconds: float, may_end: Callable[[Key], bool]) -> None:
            times = iter([0.0] * (looks + 1) + [seconds])
            super().__init__(seconds, may_end, clock=lambda: next(times, seconds))

    monkeypatch.setattr("controlplane.search.part_search.TimeLimit", Looks)
    monkeypatch.setattr("controlplane.search.parts.PART_BITS", 2)
    await index.write(accepted(*map(event, range(3)), first_position=1))
    await index.write(accepted(*map(event, range(3, 6)), first_position=5))
    query = SearchQuery((ORG,), parse_filter("path:*se*s*"))
    histogram = await index.histogram(query, 3_600_000)
    assert sum(count for _, count in histogram.buckets) == counted
    assert histogram.complete is (counted == 6)
    facets = await index.facets(query, ["verdict"])
    assert (facets.counted, facets.complete) == (counted, counted == 6)


async def test_the_words_of_an_event_are_cut_once_for_all_terms(index: SqliteIndex) -> None:
    text = "/".join(["a"] * 500)
    await index.write(accepted(*(event(n, path=text) for n in range(4))))
    dear = " ".join(f'-"{"a " * 20}b{n}"' for n in range(30))
    with patch("controlplane.search.predicates.words", wraps=words) as cut:
        assert await found(index, f'{dear} "a a"') == [3, 2, 1, 0]
    assert sum(call.args[0] == text for call in cut.call_args_list) == 4


async def test_many_counts_of_one_organisation_hold_up_another_by_one_at_most(index: SqliteIndex) -> None:
    await index.write(accepted(event(0), event(1, orgId=OTHER_ORG)))
    done: list[str] = []

    async def count(org: str) -> None:
        await index.histogram(SearchQuery((org,)), 3_600_000)
        done.append(org)

    many = [asyncio.create_task(count(OTHER_ORG)) for _ in range(8)]
    await asyncio.sleep(0)
    await asyncio.gather(count(ORG), *many)
    assert done.index(ORG) <= 2
    assert sorted(done) == sorted([ORG, *[OTHER_ORG] * 8])


async def test_who_leaves_while_waiting_gives_the_turn_on() -> None:
    slots = FairQueue()
    done: list[str] = []

    async def take(key: str) -> None:
        async with slots.of(key):
            done.append(key)
            await asyncio.sleep(0)

    async with slots.of("first"):
        waiting = [asyncio.create_task(take(key)) for key in ("a", "a", "b", "c")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        await asyncio.sleep(0)
    waiting[1].cancel()  # its turn has come
    await asyncio.gather(*waiting, return_exceptions=True)
    await take("d")
    assert done == ["c", "d"]


async def test_who_leaves_keeps_the_place_until_the_work_is_done() -> None:
    places = FairQueue(2)
    done = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        await done[number].wait()

    first, _, third = (asyncio.create_task(places.run("a", partial(work, number))) for number in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert begun == [0, 1]
    for each in done:
        each.set()
    await third
    assert begun == [0, 1, 2]


async def test_the_newest_are_counted_whatever_they_arrived_with(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of four proxies and two organisations overlap in time."""
    monkeypatch.setattr("controlplane.search.part_counts.MATCHES", 10)
    monkeypatch.setattr("controlplane.search.parts.PART_BITS", 3)
    for proxy in range(4):
        org = ORG if proxy % 2 else OTHER_ORG
        made = [event(n, proxyId=f"proxy-{proxy}", orgId=org, seq=n) for n in range(proxy, 40, 4)]
        await index.write(accepted(*made, first_position=proxy * 100 + 1))
    facets = await index.facets(SearchQuery(None), ["proxy", "org"])
    assert (facets.counted, facets.complete) == (10, False)
    assert dict(facets.fields["proxy"]) == {"proxy-0": 2, "proxy-1": 2, "proxy-2": 3, "proxy-3": 3}
    assert dict(facets.fields["org"]) == {ORG: 5, OTHER_ORG: 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "verdict:block",
        "-verdict:allow",
        "path:/v1.0/users/*",
        "path:*x*",
        "x",
        "-x",
        "duration:>50",
        "ip:*1",
        "verdict:block status:200..250",
        "-rule:default",
        "has:reason",
    ],
)
async def test_counts_are_those_of_the_events(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Compare the stored counts with the indexed rows in several index parts, before and after a purge."""
    monkeypatch.setattr("controlplane.search.parts.PART_BITS", 9)
    made = [
        event(
            n,
            verdict=("allow", "block", "filter")[n % 3],
            path=f"/v1.0/Users/{'x' if n % 5 else 'y'}{n % 2500}" if n % 7 else "/v1.0/users",
            query="$top=1" if n % 2 else None,
            status=200 + n % 300,
            durationMs=n / 40,
            clientIp=f"10.0.{n % 250}.{n % 11}",
            loggedRuleIds=["a", "b"][: n % 3],
            ruleIds=["a", "default", "b"][: n % 4],
            traceId=f"{n:032x}" if n % 3 else None,
        )
        for n in range(1200)
    ]
    for at in range(0, 1200, 600):
        await index.write(accepted(*made[at : at + 600], first_position=at + 1))
    wanted = parse_filter(text)
    await require_counts(index, wanted, [one for one in made if matches(wanted, one)])
    assert await index.purge(ORG, START_MS + 700_000, limit=10_000) == 700
    await require_counts(index, wanted, [one for one in made[700:] if matches(wanted, one)])


async def require_counts(index: SqliteIndex, wanted: Filter, held: list[dict[str, Any]]) -> None:
    kept = ["verdict", "status", "ruleid", "app", "reason", "method", "org"]
    of_rows = ["ip", "logged", "trace", "path", "query", "duration", "verdict"]
    for fields in (kept, of_rows):
        facets = await index.facets(SearchQuery((ORG,), wanted), fields, top=100)
        assert (facets.counted, facets.complete) == (len(held), True)
        for name in fields:
            values = [one.get(FIELDS[name].event_key) for one in held]
            flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
            of_text = Counter(str(each).lower() for each in flat if each is not None)
            found = {value.lower(): number for value, number in facets.fields[name]}
            assert found.items() <= of_text.items(), name
            assert len(found) == min(100, len(of_text))
    for interval_ms in (1000, 60_000, 3_600_000):
        for from_ms, to_ms in ((None, None), (START_MS + 1, START_MS + 1_000_001)):
            histogram = await index.histogram(SearchQuery((ORG,), wanted, from_ms, to_ms), interval_ms)
            times = (START_MS + one["seq"] * 1000 for one in held)
            within = (time for time in times if from_ms is None or from_ms <= time < (to_ms or 0))
            assert dict(histogram.buckets) == Counter(time // interval_ms * interval_ms for time in within)
            assert histogram.complete


async def test_paths_are_counted_while_retention_has_come_to_the_store_and_not_to_the_index(
    index: StoredIndex,
) -> None:
    await index.write(accepted(event(1, path="/v1.0/Users", query="$Top=1"), event(2, path="/Beta/Me")))
    with closing(sqlite3.connect(index.store)) as store:
        store.execute("UPDATE blocks SET body = CAST('[null]' AS BLOB) WHERE position = 1")
        store.commit()
    facets = await index.facets(SearchQuery((ORG,)), ["path", "query"])
    assert facets.fields == {"path": (("/Beta/Me", 1),), "query": ()}


# -- every filter, every event ---------------------------------------------------------------------


@given(
    made=st.lists(EVENTS, min_size=1, max_size=24),
    filters=st.lists(st.lists(TERMS, max_size=3).map(" ".join), min_size=1, max_size=12),
    data=st.data(),
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
async def test_it_finds_what_the_filter_means(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[dict[str, Any]],
    filters: list[str],
    data: st.DataObject,
) -> None:
    """The test writes all events at once or one by one, into one index part or several."""
    events = [event(number) | changes for number, changes in enumerate(made)]
    at_once = data.draw(st.sampled_from([1, 3, 20]))
    tokens = data.draw(st.sampled_from([1, 32]))
    with (
        patch("controlplane.search.parts.PART_BITS", data.draw(st.sampled_from([2, 20]))),
        patch("controlplane.search.part_terms._MOST_TOKENS", tokens),
        patch("controlplane.search.part_search._SHARE", data.draw(st.sampled_from([0, 4, 1000]))),
        patch("controlplane.search.part_search._FEW", data.draw(st.sampled_from([0, 2, 1000]))),
        patch("controlplane.search.parts._MOST_LISTED", data.draw(st.sampled_from([0, 64]))),
    ):
        async with opened(tmp_path_factory.mktemp("search") / "search.sqlite") as index:
            arrived = accepted(*data.draw(st.permutations(events)))
            for start in range(0, len(arrived), at_once):
                await index.write(arrived[start : start + at_once])
            for text in filters:
                try:
                    wanted = parse_filter(text)
                except QueryError:
                    continue
                expected = [one["seq"] for one in reversed(events) if matches(wanted, one)]
                org = data.draw(st.sampled_from([ORG, None]))
                page = await index.search(SearchQuery(None if org is None else (org,), wanted))
                assert numbers(page.events) == expected, text


async def test_the_largest_filters_are_within_what_sqlite_takes(index: SqliteIndex) -> None:
    await index.write(accepted(*SAMPLES))
    for terms in (
        ["duration:>3"],
        ["-rule:x"],
        ["-a"],
        ["a*"],
        ["rule:" + "a*b" * 4],
        ["status:>=0"],
        ["-path:*x"],
    ):
        await found(index, " ".join(terms * MAX_VALUES))
        await found(index, " ".join(terms * MAX_VALUES), org=None)
    assert await found(index, "status:" + ",".join(["403"] * MAX_VALUES)) == [10, 2]
    assert await found(index, "-rule:" + ",".join(["no-mail"] * (MAX_VALUES - 1)) + " verdict:block") == [10]


async def test_a_pattern_that_many_values_match_is_within_what_sqlite_takes(index: SqliteIndex) -> None:
    await index.write(accepted(event(1, clientIp="10.0.0.1"), event(2, clientIp="192.0.2.1")))
    with closing(sqlite3.connect(index._reader._path)) as file:
        file.executemany(
            "INSERT INTO codes_0 VALUES (?, 'ip', ?)", [(1000 + n, f'"10.{n}"') for n in range(40_000)]
        )
        file.commit()
    assert await found(index, "ip:10.*") == [1]
    assert await found(index, "-ip:10.*") == [2]
