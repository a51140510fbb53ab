"""Tests of OCSF and CEF: each attribute has its place, and no value breaks the format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from controlplane.search.query import parse_filter
from controlplane.sinks.formats import FORMATS, as_cef, as_ocsf
from controlplane.sinks.interface import Limits, Refusal, SinkEvent
from controlplane.sinks.selection import Selection, batches
from controlplane.store.interface import UNREADABLE, StoredEvent
from tests.controlplane.search_events import ORG, OTHER_ORG, START_MS, event

SCHEMA: Final = json.loads((Path(__file__).parents[1] / "fixtures" / "ocsf_api_activity.json").read_text())


def ocsf(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(as_ocsf(event(1, **changes), b""))
    return made


def test_an_event_is_api_activity_of_ocsf() -> None:
    found = ocsf(verdict="block", status=403, method="POST", reason="rule", traceId="t1", query="$top=1")
    assert found["metadata"]["version"] == SCHEMA["version"] == "1.4.0"
    assert found["metadata"]["product"] == {"name": "Graphward", "vendor_name": "Graphward"}
    assert (found["category_uid"], found["class_uid"], found["activity_id"], found["type_uid"]) == (
        6,
        6003,
        1,
        600301,
    )
    assert found["time"] == START_MS + 1000
    assert (found["action_id"], found["disposition_id"], found["status_id"], found["severity_id"]) == (
        2,
        2,
        2,
        3,
    )
    assert found["status_code"] == "403"
    assert found["http_request"]["url"] == {"path": "/v1.0/users", "query_string": "$top=1"}
    assert found["unmapped"] == {"verdict": "block", "traceId": "t1"}


def faults(value: Any, name: str, place: str = "") -> Iterator[str]:
    """Yield each difference between the object and the published OCSF schema `name`."""
    schema = SCHEMA["objects"][name]
    attributes = schema["attributes"]
    for each in value.keys() - attributes.keys():
        yield f"{place}{each} is not allowed"
    for each in (key for key, about in attributes.items() if about.get("isRequired")):
        if each not in value:
            yield f"{place}{each} is missing"
    one_of = schema.get("constraints", {}).get("at_least_one")
    if one_of and not set(one_of) & value.keys():
        yield f"{place}: has none of {one_of}"
    for key, about in attributes.items():
        if key not in value:
            continue
        found = value[key]
        if "enum" in about and str(found) not in about["enum"]:
            yield f"{place}{key}: {found} is not one of {about['enum']}"
        if about["type"] in ("integer_t", "long_t", "timestamp_t") and not isinstance(found, int):
            yield f"{place}{key}: {found!r} is not a number"
        if about["type"] == "string_t" and not isinstance(found, list | str):
            yield f"{place}{key}: {found!r} is not text"
        if "object" in about:
            yield from faults(found, about["object"], f"{place}{key}.")


def test_every_event_is_valid_by_the_published_schema() -> None:
    """The file tests/fixtures/ocsf_api_activity.json has the attributes of the OCSF class and its objects."""
    whole = event(
        1, receivedAt="2026-11-26T12:00:01.000Z", clientIp="192.0.2.1", clientId="c", appId="a", query="q=1",
        reason="rule", ruleId="r", rulesetVersion=3, requestBytes=1, responseBytes=2, traceId="t",
        requestId="019ab4f2-0000-7000-8000-0123456789ab", credentialId="crd-1",
    )  # fmt: skip
    events = [
        *(whole | {"verdict": each} for each in ("allow", "block", "filter", "log_only")),
        *(whole | {"method": each} for each in ("GET", "PATCH", "MERGE", "", None)),
        *({key: value for key, value in whole.items() if key != name} for name in whole),
        *(whole | {name: None} for name in whole),
        whole | {"time": "yesterday", "receivedAt": None},
        whole | {"clientIp": None, "clientId": None, "appId": None, "method": None, "path": None},
        {"id": "e", "orgId": ORG},
    ]
    for each in events:
        found = orjson.loads(as_ocsf(each, b""))
        assert list(faults(found, "api_activity")) == [], each
    assert ocsf(method="PATCH")["unmapped"]["method"] == "PATCH"


@pytest.mark.parametrize(
    ("method", "activity"),
    [("GET", 2), ("HEAD", 2), ("POST", 1), ("PUT", 3), ("PATCH", 3), ("DELETE", 4), ("MERGE", 99)],
)
def test_a_method_is_an_activity(method: str, activity: int) -> None:
    found = ocsf(method=method)
    assert (found["activity_id"], found["type_uid"]) == (activity, 600300 + activity)


def test_members_that_are_missing_are_left_out() -> None:
    found = orjson.loads(as_ocsf({"id": "e", "orgId": ORG, "status": 200, "verdict": "allow"}, b""))
    assert "http_response" in found
    assert "firewall_rule" not in found
    assert None not in found.values()


def test_cef_escapes_what_would_break_it() -> None:
    line = as_cef(
        event(1, verdict="a|b\\c\nd", path="/x=1|2\\\r\n", clientId="c=d", traceId="t"), b""
    ).decode()
    assert line.startswith("CEF:0|Graphward|Graphward|1|a\\|b\\\\c d|request a\\|b\\\\c d|1|")
    extension = re.split(r"(?<!\\)\|", line, maxsplit=7)[7]
    assert "request=/x\\=1|2\\\\\\n " in extension
    assert "suser=c\\=d" in extension
    assert f"rt={START_MS + 1000}" in extension
    assert "cs6Label=traceId cs6=t" in extension
    assert "cn2Label=durationMs cn2=12" in extension
    assert "\n" not in line
    assert as_cef(event(1, verdict="block"), b"").decode().split("|")[6] == "6"


def test_damaged_or_strange_events_are_named() -> None:
    chosen = Selection(parse_filter("method:GET"), frozenset({ORG}), FORMATS["ocsf"])
    bodies = [(ORG, UNREADABLE), (ORG, b"[1]"), (OTHER_ORG, UNREADABLE), (ORG, orjson.dumps(event(4)))]
    made = chosen.of([StoredEvent(at, *each) for at, each in enumerate(bodies, 1)])
    assert [(each.position, isinstance(each, Refusal)) for each in made] == [(1, True), (2, True), (4, False)]


def test_batches_keep_to_both_limits() -> None:
    events = [SinkEvent(at, ORG, b"", b"x" * size) for at, size in enumerate((4, 4, 4, 20, 1))]
    cut = [[each.position for each in batch] for batch in batches(events, Limits(2, 10))]
    assert cut == [[0, 1], [2], [3], [4]]
