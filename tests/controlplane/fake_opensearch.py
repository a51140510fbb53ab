"""A fake for an OpenSearch cluster over real sockets: keeps documents, refuses what a cluster would.

It evaluates the part of the query language that the index uses, from what each query is documented to mean
and with none of the index's code, and responds with 400 to any member that it doesn't know.
"""

import json
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Document = dict[str, Any]
Predicate = Callable[[Document], bool]


class QueryRefusedError(Exception):
    pass


class Cluster:
    def __init__(self) -> None:
        self.url = ""
        self.authorization: str | None = None
        self.indices: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.down: list[web.Response | None] = []  # responses to the next requests; None: hang up
        self.item_statuses: dict[str, list[int]] = {}  # by _id: statuses of its next items
        self.largest_bulk = 10**9

    def documents(self, name: str = "graphward-events") -> dict[str, Document]:
        found: dict[str, Document] = self.indices[name]["documents"]
        return found

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path_qs))
        self.bodies.append(body)
        if self.down:
            response = self.down.pop(0)
            if response is None:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return response
        if self.authorization not in (None, request.headers.get("Authorization")):
            return web.json_response({"error": "Unauthorized"}, status=401)
        name, _, action = request.path.strip("/").partition("/")
        handler = self.ACTIONS.get((request.method, action))
        if handler is None:
            return web.json_response({"error": f"no handler for {request.method} {request.path}"}, status=405)
        if name not in self.indices and (request.method, action) != ("PUT", ""):
            return _error(404, "index_not_found_exception", name)
        try:
            return handler(self, name, request, body)
        except QueryRefusedError as error:
            return _error(400, "parsing_exception", str(error))

    def _create(self, name: str, request: web.Request, body: bytes) -> web.Response:
        if name in self.indices:
            return _error(400, "resource_already_exists_exception", name)
        definition = json.loads(body)
        assert definition["mappings"]["dynamic"] is False
        self.indices[name] = {
            "uuid": uuid.uuid4().hex,
            "properties": definition["mappings"]["properties"],
            "documents": {},
            "searchable": {},
        }
        return web.json_response({"acknowledged": True, "index": name})

    def _extend(self, name: str, request: web.Request, body: bytes) -> web.Response:
        """Adds fields; one that is there may not change its type."""
        properties = self.indices[name]["properties"]
        for field, kind in json.loads(body)["properties"].items():
            if properties.setdefault(field, kind)["type"] != kind["type"]:
                return _error(400, "illegal_argument_exception", f"mapper [{field}] cannot be changed")
        return web.json_response({"acknowledged": True})

    def _settings(self, name: str, request: web.Request, body: bytes) -> web.Response:
        return web.json_response({name: {"settings": {"index": {"uuid": self.indices[name]["uuid"]}}}})

    def _bulk(self, name: str, request: web.Request, body: bytes) -> web.Response:
        if request.content_type != "application/x-ndjson":
            return _error(406, "content_type", request.content_type)
        if len(body) > self.largest_bulk:
            return web.Response(status=413, text="too large")
        if not body.endswith(b"\n"):
            return _error(400, "illegal_argument_exception", "must be terminated by a newline")
        lines = body[:-1].split(b"\n")
        items = []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            operation = json.loads(action)
            assert list(operation) == ["index"]
            items.append({"index": self._index_one(name, operation["index"]["_id"], json.loads(source))})
        errors = any(item["index"]["status"] >= 300 for item in items)
        return web.json_response({"took": 1, "errors": errors, "items": items})

    def _index_one(self, name: str, uid: str, source: Document) -> dict[str, Any]:
        if len(uid.encode()) > 512:
            return {"_id": uid, "status": 400, "error": {"type": "illegal_argument_exception"}}
        statuses = self.item_statuses.get(uid)
        if statuses and (status := statuses.pop(0)) >= 300:
            return {"_id": uid, "status": status, "error": {"type": f"scripted {status}"}}
        for field, value in source.items():
            if self.indices[name]["properties"][field]["type"] in ("double", "date"):
                assert isinstance(value, int | float)
        created = uid not in self.documents(name)
        self.documents(name)[uid] = source
        return {"_id": uid, "status": 201 if created else 200}

    def _refresh(self, name: str, request: web.Request, body: bytes) -> web.Response:
        self.indices[name]["searchable"] = dict(self.documents(name))
        return web.json_response({"_shards": {"failed": 0}})

    def _search(self, name: str, request: web.Request, body: bytes) -> web.Response:
        asked = json.loads(body)
        members = {"size", "query", "sort", "_source", "track_total_hits", "search_after", "aggs"}
        _only(asked, members)
        holds = _query(asked["query"], self.indices[name]["properties"])
        hits = [document for document in self.indices[name]["searchable"].values() if holds(document)]
        response: dict[str, Any] = {"timed_out": False, "_shards": {"failed": 0}}
        if "aggs" in asked:
            response["aggregations"] = {key: _aggregate(what, hits) for key, what in asked["aggs"].items()}
        total = len(hits)
        if asked["size"]:
            assert asked["sort"] == [{"time": "desc"}, {"uid": "desc"}]
            assert asked["_source"] == ["body"]
            hits.sort(key=lambda document: (document["time"], document["uid"]), reverse=True)
            if "search_after" in asked:
                hits = [hit for hit in hits if [hit["time"], hit["uid"]] < asked["search_after"]]
        found = [
            {"_id": hit["uid"], "_source": {"body": hit["body"]}, "sort": [hit["time"], hit["uid"]]}
            for hit in hits[: asked["size"]]
        ]
        response["hits"] = {"total": {"value": total, "relation": "eq"}, "hits": found}
        return web.json_response(response)

    def _delete_by_query(self, name: str, request: web.Request, body: bytes) -> web.Response:
        asked = json.loads(body)
        _only(asked, {"query", "max_docs"})
        _only(request.query, {"conflicts", "refresh"})
        holds = _query(asked["query"], self.indices[name]["properties"])
        gone = [uid for uid, document in self.documents(name).items() if holds(document)][: asked["max_docs"]]
        for uid in gone:
            del self.documents(name)[uid]
        return web.json_response({"deleted": len(gone), "failures": []})

    ACTIONS = {  # noqa: RUF012 - a constant
        ("PUT", ""): _create,
        ("GET", "_settings"): _settings,
        ("PUT", "_mapping"): _extend,
        ("POST", "_bulk"): _bulk,
        ("POST", "_refresh"): _refresh,
        ("POST", "_search"): _search,
        ("POST", "_delete_by_query"): _delete_by_query,
    }


def _error(status: int, kind: str, reason: str) -> web.Response:
    return web.json_response({"error": {"type": kind, "reason": reason}, "status": status}, status=status)


def _only(given: Any, known: set[str]) -> None:
    if unknown := set(given) - known:
        raise QueryRefusedError(f"unknown members {sorted(unknown)}")


# -- the query language ----------------------------------------------------------------------------


def _query(query: dict[str, Any], properties: dict[str, Any]) -> Predicate:
    ((kind, what),) = query.items()
    if kind == "bool":
        return _bool(what, properties)
    makers: dict[str, Callable[[str, Any], Predicate]] = {
        "term": _term, "wildcard": _wildcard, "range": _range, "match_phrase": _phrase,
        "match_phrase_prefix": _phrase_prefix, "terms": _terms,
    }  # fmt: skip
    if kind == "exists":
        _only(what, {"field"})
        return lambda document: bool(_values(document, what["field"]))
    if kind not in makers:
        raise QueryRefusedError(f"unknown query [{kind}]")
    ((field, condition),) = what.items()
    if field not in properties:
        raise QueryRefusedError(f"no mapping for [{field}]")
    return makers[kind](field, condition)


def _bool(what: dict[str, Any], properties: dict[str, Any]) -> Predicate:
    _only(what, {"filter", "must_not", "should", "minimum_should_match"})
    wanted = [_query(part, properties) for part in what.get("filter", [])]
    excluded = [_query(part, properties) for part in what.get("must_not", [])]
    either = [_query(part, properties) for part in what.get("should", [])]
    assert not either or what["minimum_should_match"] == 1
    return lambda document: (
        all(holds(document) for holds in wanted)
        and not any(holds(document) for holds in excluded)
        and (not either or any(holds(document) for holds in either))
    )


def _values(document: Document, field: str) -> list[Any]:
    value = document.get(field)
    return value if isinstance(value, list) else [] if value is None else [value]


def _term(field: str, condition: Any) -> Predicate:
    if isinstance(condition, str):
        return lambda document: condition in _values(document, field)
    _only(condition, {"value", "case_insensitive"})
    assert condition["case_insensitive"] is True
    wanted = condition["value"].lower()
    return lambda document: any(value.lower() == wanted for value in _values(document, field))


def _terms(field: str, condition: Any) -> Predicate:
    return lambda document: any(value in condition for value in _values(document, field))


def _wildcard(field: str, condition: Any) -> Predicate:
    _only(condition, {"value", "case_insensitive"})
    assert condition["case_insensitive"] is True
    pattern = ""
    for escaped, char in re.findall(r"(\\?)(.)", condition["value"], re.DOTALL):
        pattern += {"*": ".*", "?": "."}.get(char, re.escape(char)) if not escaped else re.escape(char)
    found = re.compile(pattern, re.DOTALL | re.IGNORECASE)
    return lambda document: any(found.fullmatch(value) for value in _values(document, field))


def _range(field: str, condition: Any) -> Predicate:
    _only(condition, {"gt", "gte", "lt", "lte", "format"})
    assert (field == "time") == (condition.get("format") == "epoch_millis")
    tests: dict[str, Callable[[float, float], bool]] = {
        "gt": lambda value, bound: value > bound,
        "gte": lambda value, bound: value >= bound,
        "lt": lambda value, bound: value < bound,
        "lte": lambda value, bound: value <= bound,
    }
    bounds = {name: bound for name, bound in condition.items() if name != "format"}
    return lambda document: any(
        all(tests[name](value, bound) for name, bound in bounds.items()) for value in _values(document, field)
    )


def _phrase(field: str, condition: Any) -> Predicate:
    _only(condition, {"query"})
    return _words(field, condition["query"], prefix=False)


def _phrase_prefix(field: str, condition: Any) -> Predicate:
    _only(condition, {"query", "max_expansions"})
    return _words(field, condition["query"], prefix=True)


def _words(field: str, text: str, *, prefix: bool) -> Predicate:
    wanted = text.lower().split()

    def holds(document: Document) -> bool:
        for value in _values(document, field):
            words = value.lower().split()
            for start in range(len(words) - len(wanted) + 1):
                run = words[start : start + len(wanted)]
                if run[:-1] == wanted[:-1] and (
                    run[-1].startswith(wanted[-1]) if prefix else run[-1] == wanted[-1]
                ):
                    return True
        return False

    return holds


def _aggregate(what: dict[str, Any], hits: list[Document]) -> dict[str, Any]:
    ((kind, how),) = what.items()
    counts: dict[Any, int] = {}
    if kind == "terms":
        _only(how, {"field", "size"})
        for hit in hits:
            for value in _values(hit, how["field"]):
                counts[value] = counts.get(value, 0) + 1
        top = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))[: how["size"]]
        return {"buckets": [{"key": key, "doc_count": count} for key, count in top]}
    if kind in ("min", "max"):
        _only(how, {"field"})
        values = [value for hit in hits for value in _values(hit, how["field"])]
        return {"value": (min if kind == "min" else max)(values) if values else None}
    assert kind == "date_histogram"
    _only(how, {"field", "fixed_interval", "min_doc_count"})
    assert how["min_doc_count"] == 1
    interval = int(how["fixed_interval"].removesuffix("ms"))
    for hit in hits:
        start = hit["time"] // interval * interval
        counts[start] = counts.get(start, 0) + 1
    return {"buckets": [{"key": key, "doc_count": count} for key, count in sorted(counts.items())]}


@asynccontextmanager
async def cluster(tls: ssl.SSLContext | None = None) -> AsyncIterator[Cluster]:
    made = Cluster()
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()
