"""The search index in an OpenSearch cluster (or another that speaks its REST API): `_bulk` in, `_search` out.

The mapping names all that is indexed (`dynamic: false`), so that an event's unknown fields can't make it
grow, and the event's own text travels beside it unparsed and comes back byte for byte.
"""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from yarl import URL

from controlplane.search.document import Document, UnsearchableError, read_document, text_words
from controlplane.search.interface import (
    MAX_LIMIT,
    CursorError,
    Event,
    Facets,
    Histogram,
    IndexUnavailableError,
    SearchPage,
    SearchQuery,
)
from controlplane.search.known_event import Parsed
from controlplane.search.query import (
    FIELDS,
    Between,
    Exactly,
    Field,
    FieldTerm,
    HasTerm,
    Match,
    Term,
    TextTerm,
    fold,
)
from controlplane.store.interface import MOST_AHEAD_MS, StoredEvent
from proxy.config.tls import client_tls
from proxy.policy.json_text import readable
from proxy.policy.redaction import shortened

log = logging.getLogger(__name__)

DEFAULT_INDEX: Final = "graphward-events"
BULK_BYTES: Final = 5 * 1024 * 1024
MAX_PREFIX_WORDS: Final = 1000  # words that one word* stands for
_ITEM_ATTEMPTS: Final = 5
_FIRST_PAUSE_SECONDS: Final = 0.2
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60, connect=10)
_MOST_KEYWORD: Final = 8191  # characters; Lucene takes 32766 bytes of a term
_MOST_ID_BYTES: Final = 512  # of a document's _id
_TOO_LARGE: Final = 413
_LEAST_LIMIT: Final = 1024 * 1024  # bytes of a request; a cluster's own limit is 100 MB unless it was changed

_KEYWORD: Final = {"type": "keyword", "ignore_above": _MOST_KEYWORD}
_TYPES: Final[Mapping[str, Mapping[str, object]]] = {
    "text": _KEYWORD,
    "texts": _KEYWORD,
    "number": {"type": "double"},
    "time": {"type": "date", "format": "epoch_millis"},
}
INDEX_DEFINITION: Final = {
    "settings": {
        "analysis": {
            # The words are cut by us, the same way for every index: here they are only distinguished again.
            "analyzer": {"words": {"type": "custom", "tokenizer": "whitespace", "filter": ["lowercase"]}}
        }
    },
    "mappings": {
        "dynamic": False,
        "properties": {
            **{field.name: _TYPES[field.kind] for field in FIELDS.values()},
            "uid": {"type": "keyword"},
            "position": {"type": "long"},
            "text": {"type": "text", "analyzer": "words", "norms": False},
            "body": {"type": "keyword", "index": False, "doc_values": False},
        },
    },
}


class OpenSearchIndex:
    """`url` is the cluster's address, with the index's name as its path unless that is graphward-events."""

    def __init__(
        self, url: str, *, username: str = "", password: str = "", ca_file: Path | None = None
    ) -> None:
        given = URL(url)
        self._name = given.path.strip("/") or DEFAULT_INDEX
        self._base = given.with_user(None).with_path("/").with_query(None).with_fragment(None)
        user, secret = username or given.user or "", password or given.password or ""
        self._headers = {"Authorization": _basic(user, secret)} if user else {}
        self._tls = client_tls(ca_file) if given.scheme == "https" else True
        self._session: aiohttp.ClientSession | None = None
        self._outbox_name: str | None = None
        self._preparing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<OpenSearchIndex {self._base / self._name}>"

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def outbox_name(self) -> str:
        """By the index's own UUID: one that was deleted and made anew has another."""
        async with self._preparing:
            if self._outbox_name is None:
                self._outbox_name = f"opensearch:{await self._prepared()}"
            return self._outbox_name

    async def _prepared(self) -> str:
        path = f"{self._name}/_settings"
        status, response = await self._ask("GET", path, accept=(404,))
        if status == 404:
            # 400: another process was quicker.
            await self._ask("PUT", self._name, orjson.dumps(INDEX_DEFINITION), accept=(400,))
            _, response = await self._ask("GET", path)
        else:
            # Made by an earlier release, it may lack a field; what is there already stays as it is.
            await self._ask("PUT", f"{self._name}/_mapping", orjson.dumps(INDEX_DEFINITION["mappings"]))
        try:
            (index,) = response.values()
            return str(index["settings"]["index"]["uuid"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._unavailable("its settings name no index uuid") from None

    # -- writing --

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        await self.outbox_name()  # the mapping comes first: a bulk request would make an index without one
        items: dict[str, bytes] = {}
        for event in events:
            try:
                document = read_document(event)
            except UnsearchableError as error:
                log.error("event at position %d is not searchable: %s", event.position, error)
                continue
            uid = _uid(document.org_id, document.event_id)
            items[uid] = _bulk_item(uid, document)
        for chunk in _chunks(items):
            await self._write_chunk(chunk)

    async def write_parsed(self, batches: Sequence[Parsed], after: int = 0) -> None:
        await self.write(
            [
                StoredEvent(position, batch.org_id, bytes(body))
                for batch in batches
                for position, body in enumerate(batch.bodies, batch.position)
            ]
        )

    async def _write_chunk(self, items: Mapping[str, bytes]) -> None:
        pause = _FIRST_PAUSE_SECONDS
        left = items
        too_large: set[str] = set()
        for attempt in range(_ITEM_ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            left = await self._bulk(left, too_large)
            self._doubt_limit(items, too_large)
            if not left:
                for uid in too_large:
                    log.error("search index: event %s set aside, too large for the cluster", uid)
                return
        raise self._unavailable(f"it is too busy for {len(left)} events")

    def _doubt_limit(self, items: Mapping[str, bytes], too_large: set[str]) -> None:
        """Raise IndexUnavailableError if 413 was the response to each event and one of them is small: then
        something in between responds, and no event is left out of the index because of that."""
        if too_large >= items.keys() and min(map(len, items.values())) < _LEAST_LIMIT:
            raise self._unavailable("each event alone got 413, as by something in between")

    async def _bulk(self, items: Mapping[str, bytes], too_large: set[str]) -> dict[str, bytes]:
        """Return what the cluster asks for again; add to `too_large` what it refuses by its size."""
        body = b"".join(items.values())
        status, response = await self._ask(
            "POST", f"{self._name}/_bulk", body, kind="application/x-ndjson", accept=(_TOO_LARGE,)
        )
        if status == _TOO_LARGE:
            return await self._bulk_halves(items, too_large)
        try:
            results = [next(iter(result.values())) for result in response["items"]]
            states = [(result["_id"], int(result["status"]), result.get("error")) for result in results]
        except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
            raise self._unavailable("its response to _bulk is not understood") from None
        if [uid for uid, _, _ in states] != list(items):
            raise self._unavailable("its response to _bulk names other events")
        again = {}
        for uid, status, error in states:
            if status == 429 or status >= 500:
                again[uid] = items[uid]
            elif status >= 300:
                log.error("search index: event %s set aside, status %d: %s", uid, status, _excerpt(error))
        return again

    async def _bulk_halves(self, items: Mapping[str, bytes], too_large: set[str]) -> dict[str, bytes]:
        if len(items) == 1:
            too_large.update(items)
            return {}
        uids = list(items)
        middle = len(uids) // 2
        again = await self._bulk({uid: items[uid] for uid in uids[:middle]}, too_large)
        return again | await self._bulk({uid: items[uid] for uid in uids[middle:]}, too_large)

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        of_org = {"term": {"org": org_id}}
        body = {"query": {"bool": {"filter": [of_org, *_due(before_ms, newest)]}}, "max_docs": limit}
        path = f"{self._name}/_delete_by_query"
        await self.outbox_name()
        parameters = {"conflicts": "proceed", "refresh": "true"}
        _, response = await self._ask("POST", path, orjson.dumps(body), parameters)
        try:
            return int(response["deleted"])
        except (KeyError, TypeError, ValueError):
            raise self._unavailable("its response to _delete_by_query is not understood") from None

    # -- reading --

    async def search(self, query: SearchQuery) -> SearchPage:
        limit = max(1, min(query.limit, MAX_LIMIT))
        body: dict[str, object] = {
            "size": limit + 1,
            "query": query_dsl(query),
            "sort": [{"time": "desc"}, {"uid": "desc"}],
            "_source": ["body"],
            "track_total_hits": False,
        }
        if query.cursor is not None:
            body["search_after"] = _read_cursor(query.cursor)
        else:
            # An event that was accepted a moment ago belongs on the first page, and clusters take their time.
            await self.outbox_name()
            await self._ask("POST", f"{self._name}/_refresh")
        response = await self._search(body)
        try:
            hits = response["hits"]["hits"]
            events = tuple(hit["_source"]["body"].encode() for hit in hits[:limit])
            following = _cursor(hits[limit - 1]["sort"]) if len(hits) > limit else None
        except (AttributeError, IndexError, KeyError, TypeError):
            raise self._unavailable("its response to _search is not understood") from None
        return SearchPage(events, following)

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        ends = {"least": {"min": {"field": "time"}}, "most": {"max": {"field": "time"}}}
        body = {"size": 0, "query": {"bool": {"filter": _of_orgs(org_ids)}}, "aggs": ends}
        response = await self._search(body)
        try:
            least, most = (response["aggregations"][name]["value"] for name in ends)
            return None if least is None else (int(least), int(most))
        except (KeyError, TypeError, ValueError):
            raise self._unavailable("its response to _search is not understood") from None

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets:
        aggregations = {name: {"terms": {"field": FIELDS[name].name, "size": top}} for name in fields}
        body = {"size": 0, "query": query_dsl(query), "track_total_hits": True, "aggs": aggregations}
        response = await self._search(body)
        try:
            counts = {
                name: tuple(
                    (_facet_value(FIELDS[name], bucket["key"]), int(bucket["doc_count"]))
                    for bucket in response["aggregations"][name]["buckets"]
                )
                for name in fields
            }
            return Facets(counts, int(response["hits"]["total"]["value"]), complete=True)
        except (KeyError, TypeError, ValueError):
            raise self._unavailable("its response to _search is not understood") from None

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram:
        per_interval = {"field": "time", "fixed_interval": f"{interval_ms}ms", "min_doc_count": 1}
        body = {"size": 0, "query": query_dsl(query), "aggs": {"times": {"date_histogram": per_interval}}}
        response = await self._search(body)
        try:
            buckets = response["aggregations"]["times"]["buckets"]
            counted = tuple((int(bucket["key"]), int(bucket["doc_count"])) for bucket in buckets)
        except (KeyError, TypeError, ValueError):
            raise self._unavailable("its response to _search is not understood") from None
        return Histogram(counted, complete=True)

    async def _search(self, body: Mapping[str, object]) -> Any:
        await self.outbox_name()
        _, response = await self._ask("POST", f"{self._name}/_search", orjson.dumps(body))
        if (
            not isinstance(response, dict)
            or response.get("timed_out")
            or response.get("_shards", {}).get("failed")
        ):
            raise self._unavailable("it could not search all of its shards")
        return response

    # -- HTTP --

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        parameters: Mapping[str, str] | None = None,
        *,
        kind: str = "application/json",
        accept: tuple[int, ...] = (),
    ) -> tuple[int, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, headers=self._headers)
        headers = {"Content-Type": kind} if body is not None else {}
        try:
            async with self._session.request(
                method,
                self._base.joinpath(path),
                data=body,
                params=parameters,
                headers=headers,
                ssl=self._tls,
                allow_redirects=False,
            ) as response:
                text = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(str(error) or type(error).__name__) from error
        if status >= 300 and status not in accept:
            raise self._unavailable(f"{method} {path} got a response {status}: {_excerpt(text)}")
        try:
            return status, json.loads(readable(text)) if text else None
        except ValueError:
            if status in accept:
                return status, None
            raise self._unavailable(
                f"{method} {path} got a response with something that is not JSON"
            ) from None

    def _unavailable(self, what: str) -> IndexUnavailableError:
        return IndexUnavailableError(f"search index at {self._base}: {what}")


def _basic(user: str, password: str) -> str:
    """RFC 7617 §2, in UTF-8."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _excerpt(response: object) -> str:
    text = response.decode("utf-8", "replace") if isinstance(response, bytes) else json.dumps(response)
    return shortened(text, 300)


# -- documents -------------------------------------------------------------------------------------


def _due(before_ms: int, newest: int | None) -> Iterator[Mapping[str, object]]:
    """The conditions under which retention takes an event, for a bool query."""
    older = {"range": {"time": {"lt": before_ms, "format": "epoch_millis"}}}
    if newest is None:
        yield older
        return
    ahead = {"range": {"time": {"gt": before_ms + MOST_AHEAD_MS, "format": "epoch_millis"}}}
    received = {"range": {"position": {"lte": newest}}}
    # Earlier releases indexed no positions: of their events the time alone is known.
    unknown = {"bool": {"must_not": [{"exists": {"field": "position"}}], "filter": [older]}}
    either = {"bool": {"should": [older, ahead], "minimum_should_match": 1}}
    known = {"bool": {"filter": [received, either]}}
    yield {"bool": {"should": [known, unknown], "minimum_should_match": 1}}


def _uid(org_id: str, event_id: str) -> str:
    uid = f"{org_id}:{event_id}"
    return uid if len(uid.encode()) <= _MOST_ID_BYTES else hashlib.sha256(uid.encode()).hexdigest()


def _bulk_item(uid: str, document: Document) -> bytes:
    source = {
        **document.values,
        "time": document.time_ms,
        "uid": uid,
        "position": document.position,
        "text": [" ".join(listed) for listed in text_words(document.values)],
        "body": document.body.decode(),
    }
    return orjson.dumps({"index": {"_id": uid}}) + b"\n" + orjson.dumps(source) + b"\n"


def _chunks(items: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    chunk: dict[str, bytes] = {}
    size = 0
    for uid, item in items.items():
        if chunk and size + len(item) > BULK_BYTES:
            yield chunk
            chunk, size = {}, 0
        chunk[uid] = item
        size += len(item)
    if chunk:
        yield chunk


# -- queries ---------------------------------------------------------------------------------------


def query_dsl(query: SearchQuery) -> dict[str, object]:
    """The filter as a query that selects and doesn't score. The organisation is part of the query itself."""
    wanted = _of_orgs(query.org_ids)
    bounds = {"gte": query.from_ms, "lt": query.to_ms}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    if given:
        wanted.append({"range": {"time": {**given, "format": "epoch_millis"}}})
    excluded: list[object] = []
    for term in query.filter.terms:
        (excluded if term.negated else wanted).append(_term_dsl(term))
    return {"bool": {"filter": wanted, "must_not": excluded}}


def _of_orgs(org_ids: Sequence[str] | None) -> list[object]:
    return [] if org_ids is None else [{"terms": {"org": list(org_ids)}}]


def _term_dsl(term: Term) -> dict[str, object]:
    if isinstance(term, HasTerm):
        return {"exists": {"field": term.field.name}}
    if isinstance(term, TextTerm):
        phrase = " ".join(term.words)
        if term.prefix:
            return {"match_phrase_prefix": {"text": {"query": phrase, "max_expansions": MAX_PREFIX_WORDS}}}
        return {"match_phrase": {"text": {"query": phrase}}}
    return _field_dsl(term)


def _field_dsl(term: FieldTerm) -> dict[str, object]:
    matches = [_match_dsl(term.field, match) for match in term.matches]
    return matches[0] if len(matches) == 1 else {"bool": {"should": matches, "minimum_should_match": 1}}


def _match_dsl(field: Field, match: Match) -> dict[str, object]:
    if isinstance(match, Exactly):
        return {"term": {field.name: {"value": match.text, "case_insensitive": True}}}
    if isinstance(match, Between):
        bounds: dict[str, object] = {"format": "epoch_millis"} if field.kind == "time" else {}
        if match.low is not None:
            bounds["gt" if match.low_open else "gte"] = match.low
        if match.high is not None:
            bounds["lt" if match.high_open else "lte"] = match.high
        return {"range": {field.name: bounds}}
    pattern = "*".join(map(_wildcard_escaped, match.pieces))
    return {"wildcard": {field.name: {"value": pattern, "case_insensitive": True}}}


def _wildcard_escaped(piece: str) -> str:
    return "".join("\\" + char if char in "\\*?" else char for char in fold(piece))


def _facet_value(field: Field, key: object) -> str:
    return f"{key:g}" if field.kind == "number" and isinstance(key, float) else str(key)


def _cursor(sort: Sequence[object]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(sort)).decode().rstrip("=")


def _read_cursor(cursor: str) -> list[object]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        sort = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError:
        sort = None
    match sort:
        case [int(), str()]:
            return [*sort]
    raise CursorError("this cursor was not made by this index")
