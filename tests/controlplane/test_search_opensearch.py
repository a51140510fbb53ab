"""The OpenSearch index against a fake for a cluster: what is sent, what is found, what a failure does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from controlplane.search import opensearch
from controlplane.search.interface import CursorError, IndexUnavailableError, SearchIndex, SearchQuery
from controlplane.search.opensearch import OpenSearchIndex
from controlplane.search.query import parse_filter
from tests.controlplane.fake_opensearch import Cluster, cluster
from tests.controlplane.search_events import (
    ORG,
    OTHER_ORG,
    SAMPLES,
    START_MS,
    Accepted,
    accepted,
    event,
    matches,
    numbers,
)
from tests.fakes.certificates import CertificateAuthority


@pytest.fixture
async def fake() -> AsyncIterator[Cluster]:
    async with cluster() as running:
        yield running


@pytest.fixture
async def index(fake: Cluster) -> AsyncIterator[OpenSearchIndex]:
    async with closing(OpenSearchIndex(fake.url)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opensearch, "_FIRST_PAUSE_SECONDS", 0.0)


@asynccontextmanager
async def closing(index: OpenSearchIndex) -> AsyncIterator[OpenSearchIndex]:
    try:
        yield index
    finally:
        await index.close()


async def found(index: SearchIndex, text: str, org: str | None = ORG, **more: Any) -> list[int]:
    page = await index.search(SearchQuery(None if org is None else (org,), parse_filter(text), **more))
    return numbers(page.events)


def uid(number: int) -> str:
    return f"{ORG}:{event(number)['id']}"


# -- searching -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "verdict:BLOCK,filter",
        "-verdict:allow",
        "app:crm -method:POST",
        "status:>=400",
        "status:>404",
        "status:400..428",
        "duration:>250",
        "duration:250..251",
        "path:/v1.0/users/*",
        "path:/v1.0/users/*/messages",
        "-path:/v1.0/*",
        "path:*folder*",
        "path:*?*",
        r"rule:*\\*",
        "rule:no-*",
        "has:logged",
        "-has:logged has:upstream",
        "logged:wat*2",
        "logged:*ch*watch*",
        "transform:strip:mobilephone",
        f"id:{event(4)['id']}",
        "has:time",
        f"time:>{event(7)['time']}",
        "messages",
        "mail",
        "mail*",
        "-messages path:/v1.0/users/*",
        "ada@contoso.com",
        '"from name eq"',
        '"messages from"',
        'query:""',
        "rule:" + "R" * 200,
        r'''rule:"a rule, with 'quotes' and \"others\" 100%"''',
    ],
)
async def test_the_same_filter_finds_the_same_events_as_everywhere(index: OpenSearchIndex, text: str) -> None:
    await index.write(accepted(*SAMPLES))
    wanted = [made["seq"] for made in reversed(SAMPLES) if matches(parse_filter(text), made)]
    assert await found(index, text) == wanted
    assert await found(index, text, org=None) == wanted


async def test_the_body_comes_back_byte_for_byte(index: OpenSearchIndex) -> None:
    body = orjson.dumps(event(1))[:-1] + b', "unknown" : [1.0, {"\\u00e9":"\xc3\xa9"}] }'
    await index.write([Accepted(1, ORG, body)])
    assert (await index.search(SearchQuery((ORG,)))).events == (body,)


async def test_unknown_fields_of_an_event_are_not_given_to_the_mapping(
    index: OpenSearchIndex, fake: Cluster
) -> None:
    await index.write(accepted(event(1, surprise={"deep": 1})))
    properties = fake.indices["graphward-events"]["properties"]
    (document,) = fake.documents().values()
    assert set(document) <= set(properties)


async def test_pages_hold_each_event_once_while_new_ones_arrive(index: OpenSearchIndex) -> None:
    same_time = {"time": event(0)["time"]}
    await index.write(accepted(*(event(n, **same_time) for n in range(0, 20, 2))))
    seen: list[int] = []
    cursor = None
    for late in (31, 33, 35, 37):
        page = await index.search(SearchQuery((ORG,), limit=3, cursor=cursor))
        seen += numbers(page.events)
        await index.write(accepted(event(late)))
        cursor = page.next
    assert cursor is None
    assert sorted(seen) == list(range(0, 20, 2))


@pytest.mark.parametrize("cursor", ["", "x", "W10", "WzEsMl0", "e30", "ÿÿ", "WzEsIngiLDJd"])
async def test_a_foreign_cursor_is_refused(index: OpenSearchIndex, cursor: str) -> None:
    with pytest.raises(CursorError):
        await index.search(SearchQuery((ORG,), cursor=cursor))


@pytest.mark.parametrize(
    "text", ["", f"org:{OTHER_ORG}", "-app:x", "path:*", "has:path", f"id:{event(1)['id']}", "secret*", "-x"]
)
async def test_the_organisation_is_part_of_every_query(
    index: OpenSearchIndex, fake: Cluster, text: str
) -> None:
    await index.write(accepted(event(0), event(1, orgId=OTHER_ORG, path="/v1.0/secret")))
    query = SearchQuery((ORG,), parse_filter(text))
    await index.search(query)
    facets = await index.facets(query, ["org", "path"])
    histogram = await index.histogram(query, 1000)
    searches = [
        json.loads(body)
        for (_, path), body in zip(fake.requests, fake.bodies, strict=True)
        if path.endswith("_search")
    ]
    assert len(searches) == 3
    assert all(body["query"]["bool"]["filter"][0] == {"terms": {"org": [ORG]}} for body in searches)
    assert "secret" not in str(facets)
    assert sum(count for _, count in histogram.buckets) <= 1


async def test_facets_and_histogram(index: OpenSearchIndex) -> None:
    await index.write(accepted(*SAMPLES))
    await index.search(SearchQuery((ORG,)))
    facets = await index.facets(SearchQuery((ORG,), parse_filter("-app:crm")), ["verdict", "status"], top=2)
    assert facets.fields == {
        "verdict": (("allow", 6), ("block", 2)),
        "status": (("200", 4), ("403", 2)),
    }
    assert (facets.counted, facets.complete) == (9, True)
    histogram = await index.histogram(SearchQuery((ORG,), to_ms=START_MS + 3000), 2000)
    assert histogram.buckets == ((START_MS, 2), (START_MS + 2000, 1))


async def test_the_span_is_that_of_the_organisations_asked_for(index: OpenSearchIndex) -> None:
    assert await index.span((ORG,)) is None
    await index.write(accepted(event(1), event(5), event(9, orgId=OTHER_ORG)))
    await index.search(SearchQuery(None))
    assert await index.span((ORG,)) == (START_MS + 1000, START_MS + 5000)
    assert await index.span(None) == (START_MS + 1000, START_MS + 9000)


async def test_purge_takes_what_is_older_of_one_organisation(index: OpenSearchIndex, fake: Cluster) -> None:
    await index.write(accepted(*(event(n) for n in range(4)), event(0, orgId=OTHER_ORG)))
    assert await index.purge(ORG, START_MS + 3000, limit=2) == 2
    assert await index.purge(ORG, START_MS + 3000, limit=2) == 1
    assert await index.purge(ORG, START_MS + 3000, limit=2) == 0
    left = {(document["org"], document["seq"]) for document in fake.documents().values()}
    assert left == {(ORG, 3), (OTHER_ORG, 0)}


# -- writing ---------------------------------------------------------------------------------------


async def test_an_event_that_comes_again_is_one_document(index: OpenSearchIndex, fake: Cluster) -> None:
    await index.write(accepted(event(1), event(1), event(1, orgId=OTHER_ORG)))
    await index.write(accepted(event(1)))
    assert set(fake.documents()) == {uid(1), f"{OTHER_ORG}:{event(1)['id']}"}


async def test_an_id_longer_than_the_cluster_takes_is_one_document_too(
    index: OpenSearchIndex, fake: Cluster
) -> None:
    long = event(1, id="é" * 300)
    await index.write(accepted(long))
    await index.write(accepted(long, event(2, id="é" * 301)))
    assert len(fake.documents()) == 2
    assert await found(index, "id:" + "é" * 300) == [1]


async def test_items_that_the_cluster_is_too_busy_for_are_sent_again_and_only_they(
    index: OpenSearchIndex, fake: Cluster
) -> None:
    fake.item_statuses = {uid(2): [429, 503]}
    await index.write(accepted(event(1), event(2), event(3)))
    assert len(fake.documents()) == 3
    sent = [
        body.count(b'{"index"')
        for (_, path), body in zip(fake.requests, fake.bodies, strict=True)
        if path.endswith("_bulk")
    ]
    assert sent == [3, 1, 1]


async def test_a_cluster_that_stays_too_busy_makes_the_write_fail(
    index: OpenSearchIndex, fake: Cluster
) -> None:
    fake.item_statuses = {uid(2): [429] * 100}
    with pytest.raises(IndexUnavailableError, match="too busy for 1 events"):
        await index.write(accepted(event(1), event(2)))


async def test_an_item_that_will_never_fit_is_set_aside_and_blocks_nothing(
    index: OpenSearchIndex, fake: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.item_statuses = {uid(2): [400]}
    await index.write(accepted(event(1), event(2), event(3)))
    assert set(fake.documents()) == {uid(1), uid(3)}
    assert f"event {uid(2)} set aside, status 400" in caplog.text


async def test_a_request_over_the_clusters_limit_is_halved_down_to_the_one_event(
    index: OpenSearchIndex, fake: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.largest_bulk = 4000
    await index.write(accepted(*(event(n) for n in range(5)), event(5, path="/" + "x" * 4000), event(6)))
    assert {document["seq"] for document in fake.documents().values()} == {0, 1, 2, 3, 4, 6}
    assert f"event {uid(5)} set aside, too large" in caplog.text


async def test_no_event_is_left_out_because_something_in_between_responses_413_to_everything(
    index: OpenSearchIndex, fake: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    limit, fake.largest_bulk = fake.largest_bulk, 0
    for events in (accepted(event(1)), accepted(*(event(n) for n in range(5)))):
        with pytest.raises(IndexUnavailableError, match="something in between"):
            await index.write(events)
    assert "set aside" not in caplog.text
    fake.largest_bulk = limit
    await index.write(accepted(*(event(n) for n in range(5))))
    assert len(fake.documents()) == 5


async def test_an_event_that_no_cluster_takes_blocks_nothing_on_its_own(
    index: OpenSearchIndex,
    fake: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opensearch, "_LEAST_LIMIT", 4000)
    fake.largest_bulk = 4000
    await index.write(accepted(event(1, path="/" + "x" * 4000)))
    assert fake.documents() == {}
    assert f"event {uid(1)} set aside, too large" in caplog.text


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"status":"queued"}', b'{"deleted":null}'])
async def test_a_purge_that_was_responded_by_something_in_between_is_not_done(
    index: OpenSearchIndex, fake: Cluster, body: bytes
) -> None:
    await index.write(accepted(event(1)))
    fake.down = [web.Response(status=200, body=body, content_type="application/json")]
    with pytest.raises(IndexUnavailableError, match="_delete_by_query"):
        await index.purge(ORG, START_MS + 3_600_000, limit=10)
    assert len(fake.documents()) == 1


async def test_large_writes_go_in_several_requests(
    index: OpenSearchIndex, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opensearch, "BULK_BYTES", 5000)
    await index.write(accepted(*(event(n) for n in range(20))))
    assert len(fake.documents()) == 20
    assert max(len(body) for body in fake.bodies[3:]) <= 5000


@pytest.mark.parametrize(
    "response",
    [
        None,
        web.Response(status=429),
        web.Response(status=503, text="no master"),
        web.Response(status=403, text="read-only index"),
        web.Response(status=302, headers={"Location": "http://elsewhere.example/"}),
        web.Response(text="<html>a proxy's page</html>"),
        web.json_response([]),
        web.json_response({"items": []}),
        web.json_response({"items": [{"index": {"_id": "another", "status": 201}}]}),
    ],
    ids=["hang-up", "429", "503", "403", "302", "html", "list", "no-items", "other-item"],
)
async def test_any_other_failure_makes_the_write_fail_so_that_it_is_tried_again(
    index: OpenSearchIndex, fake: Cluster, response: web.Response | None
) -> None:
    await index.outbox_name()
    fake.down = [response]
    with pytest.raises(IndexUnavailableError):
        await index.write(accepted(event(1)))
    fake.down = []
    await index.write(accepted(event(1)))
    assert list(fake.documents()) == [uid(1)]


async def test_a_search_over_a_part_of_the_shards_is_no_response(
    index: OpenSearchIndex, fake: Cluster
) -> None:
    await index.write(accepted(event(1)))
    page = await index.search(SearchQuery((ORG,), limit=1))
    assert page.next is None
    for partial in ({"timed_out": True}, {"timed_out": False, "_shards": {"failed": 1}}):
        fake.down = [
            web.json_response({"_shards": {}}),
            web.json_response({**partial, "hits": {"hits": []}}),
        ]
        with pytest.raises(IndexUnavailableError, match="shards"):
            await index.search(SearchQuery((ORG,)))


# -- the cluster -----------------------------------------------------------------------------------


async def test_the_outbox_name_follows_the_index_itself(fake: Cluster) -> None:
    async with closing(OpenSearchIndex(fake.url)) as index:
        name = await index.outbox_name()
    async with closing(OpenSearchIndex(fake.url)) as index:
        assert await index.outbox_name() == name
    fake.indices.clear()
    async with closing(OpenSearchIndex(fake.url)) as index:
        assert await index.outbox_name() != name


async def test_an_index_of_an_earlier_release_learns_the_fields_that_are_new(fake: Cluster) -> None:
    async with closing(OpenSearchIndex(fake.url)) as index:
        await index.write(accepted(event(1)))
    del fake.indices["graphward-events"]["properties"]["shadow"]
    async with closing(OpenSearchIndex(fake.url)) as index:
        await index.write(accepted(event(2, shadowVerdict="block")))
        assert await found(index, "shadow:block") == [2]
        assert await found(index, "-has:shadow") == [1]


async def test_the_path_of_the_address_names_the_index(fake: Cluster) -> None:
    async with closing(OpenSearchIndex(fake.url + "/audit-2")) as index:
        await index.write(accepted(event(1)))
    assert list(fake.indices) == ["audit-2"]


@pytest.mark.parametrize("in_address", [True, False])
async def test_credentials_are_sent_and_never_shown(
    fake: Cluster, in_address: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fake.authorization = "Basic d3JpdGVyOnBAc3Mvd29yZA=="
    address = fake.url.replace("//", "//writer:p%40ss%2Fword@") if in_address else fake.url
    username, password = ("", "") if in_address else ("writer", "p@ss/word")
    async with closing(OpenSearchIndex(address, username=username, password=password)) as index:
        await index.write(accepted(event(1)))
        fake.down = [web.Response(status=500)]
        with pytest.raises(IndexUnavailableError) as caught:
            await index.write(accepted(event(2)))
        for shown in (str(caught.value), repr(index), caplog.text):
            assert "ss/word" not in shown
            assert "ss%2Fword" not in shown
    async with closing(OpenSearchIndex(fake.url)) as index:
        with pytest.raises(IndexUnavailableError, match="401"):
            await index.write(accepted(event(1)))


async def test_the_clusters_certificate_is_checked(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    async with cluster(authority.server().server_context()) as fake:
        async with closing(OpenSearchIndex(fake.url, ca_file=authority.ca_file)) as index:
            await index.write(accepted(event(1)))
        assert list(fake.documents()) == [uid(1)]
        requests = len(fake.requests)
        async with closing(OpenSearchIndex(fake.url)) as index:
            with pytest.raises(IndexUnavailableError, match=r"(?i)certificate"):
                await index.write(accepted(event(2)))
        assert len(fake.requests) == requests
