"""Tests of the description of both APIs: it is up to date, complete, and without external references."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from controlplane.admin import api
from controlplane.admin.openapi import description
from proxy.wire.models import AUDIT_PATH, ENROL_PATH, HEARTBEAT_PATH, METRICS_PATH, SYNC_PATH
from tests.controlplane.plane import Plane
from tests.openapi_reference import PAGE

POSTED = (AUDIT_PATH, HEARTBEAT_PATH, METRICS_PATH, ENROL_PATH)


def test_every_route_is_described_and_nothing_else() -> None:
    served = {(route.method.lower(), route.path.replace(":[^/]+}", "}")) for route in api.routes()}
    served |= {("get", SYNC_PATH), *(("post", path) for path in POSTED)}
    described = {(method, path) for path, item in description()["paths"].items() for method in item}
    assert described == served - {("get", "/admin/v1/openapi.json")}


def test_every_reference_leads_somewhere() -> None:
    document = description()
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    references = set(_references(document))
    assert references - names == set()
    assert names - references == set(), "described and never used"


def test_a_member_of_the_path_is_no_member_of_the_body() -> None:
    for path, item in description()["paths"].items():
        for operation in item.values():
            in_path = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            assert not in_path & content.get("schema", {}).get("properties", {}).keys()


async def test_it_is_served_to_whoever_asks(plane: Plane) -> None:
    async with plane.session.get(f"{plane.console_url}/admin/v1/openapi.json") as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert json.loads(await response.read()) == json.loads(PAGE.read_text("utf-8"))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)
