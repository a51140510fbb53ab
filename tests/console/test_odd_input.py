"""Whatever a page is asked with, its answer is no fault of the control plane's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.console.conftest import Served
from tests.console.seed import PASSWORD

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
PAGES = (
    "/",
    "/apps",
    "/live",
    "/operators/ada",
    "/orgs",
    "/proxies",
    "/audit/integrity",
    "/record",
    "/rulesets",
    "/search",
    "/stops",
)
FORMS = (
    "/apps",
    "/login",
    "/nowhere",
    "/operators",
    "/operators/ada/roles",
    "/operators/ada/roles/revoke",
    "/operators/ada/tokens",
    "/operators/ada/tokens/revoke",
    "/orgs",
    "/orgs/x/retention",
    "/stops",
    "/stops/lift",
    "/theme",
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
    "token",
)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, timeout=20) as client:
        client.post("/login", data={"name": "ada", "password": PASSWORD})
        yield client


@pytest.mark.parametrize("path", PAGES)
def test_odd_text_in_an_address_is_refused_or_harmless(client: httpx.Client, path: str) -> None:
    for odd in ODD:
        query = dict.fromkeys(("cursor", "from", "last", "operator", "q", "to"), odd)
        for asked in (query, {"org": odd}):
            answer = client.get(path, params=asked)
            assert answer.status_code < 500, asked
            assert "<script>alert" not in answer.text


@pytest.mark.parametrize("path", FORMS)
def test_odd_text_in_a_form_is_refused_or_harmless(client: httpx.Client, path: str) -> None:
    token = re.search(r'name="csrf" value="(\w+)"', client.get("/orgs").text)
    assert token
    for odd in ODD:
        answer = client.post(path, data={**dict.fromkeys(MEMBERS, odd), "csrf": token[1]})
        assert answer.status_code < 500, odd
        assert "<script>alert" not in answer.text
    for content_type in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": content_type, "X-CSRF-Token": token[1]}
        assert client.post(path, content=b"\xff", headers=headers).status_code < 500
