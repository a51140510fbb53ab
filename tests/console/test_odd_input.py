"""Tests that no input of a page causes an internal error."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from controlplane.console.areas import ROUTES
from tests.console.conftest import Served
from tests.console.seed import PASSWORD
from tests.patience import PATIENCE_SECONDS

ODD = (
    "\x00",
    "'",
    '"><script>alert(1)</script>',
    "a" * 5000,
    "\U0001f4a5",
    "../..",
    "%",
    "-1",
    "9" * 20,
    "{{7*7}}",
)
HERE = {"org": "contoso", "name": "hr-sync", "operator": "ada"}
PAGES = tuple(
    re.sub(r"{(\w+)}", lambda place: HERE.get(place[1], "x"), route.path)
    for route in ROUTES
    if route.method == "GET"
)
QUERY = ("cursor", "from", "last", "new", "old", "operator", "q", "to", "version")
# Forms about objects that do not exist, so that they change nothing for other tests.
FORMS = (
    "/login",
    "/nowhere",
    "/theme",
    *(re.sub(r"{\w+}", "x", route.path) for route in ROUTES if route.method == "POST"),
)
MEMBERS = (
    "app",
    "expiresInDays",
    "graceSeconds",
    "name",
    "next",
    "org",
    "retention",
    "role",
    "scope",
    "to",
    "token",
    "version",
    "yaml",
)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, timeout=PATIENCE_SECONDS) as client:
        client.post("/login", data={"name": "ada", "password": PASSWORD})
        yield client


@pytest.mark.parametrize("path", PAGES)
def test_odd_text_in_an_address_is_refused_or_harmless(client: httpx.Client, path: str) -> None:
    for odd in ODD:
        query = dict.fromkeys(QUERY, odd)
        for asked in (query, {"org": odd}):
            response = client.get(path, params=asked)
            assert response.status_code < 500, asked
            assert "<script>alert" not in response.text


@pytest.mark.parametrize("path", FORMS)
def test_odd_text_in_a_form_is_refused_or_harmless(client: httpx.Client, path: str) -> None:
    token = re.search(r'name="csrf" value="(\w+)"', client.get("/orgs").text)
    assert token
    for odd in ODD:
        response = client.post(path, data={**dict.fromkeys(MEMBERS, odd), "csrf": token[1]})
        assert response.status_code < 500, odd
        assert "<script>alert" not in response.text
    for content_type in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": content_type, "X-CSRF-Token": token[1]}
        assert client.post(path, content=b"\xff", headers=headers).status_code < 500
