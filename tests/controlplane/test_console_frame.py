"""Tests of the parts that all console pages share over HTTP: access, security headers and errors."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from contextlib import closing
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from controlplane.console.areas import ROUTES
from controlplane.console.pages import PageRoute
from controlplane.search.interface import SearchPage
from controlplane.search.sqlite_index import SqliteIndex
from tests.controlplane.plane import AUDIT, HEARTBEAT, RULESET, Plane, ProxyClient, batch
from tests.controlplane.test_admin import PASSWORD, operator
from tests.controlplane.visitor import visiting

PLACES = {
    "org": "acme",
    "name": "rules",
    "app": "x",
    "proxy": "x",
    "operator": "ada",
    "proposal": "x",
    "token": "x",
    "sink": "siem",
    "id": "x",
    "org_id": "x",
}


def _address(path: str) -> str:
    for place, value in PLACES.items():
        path = path.replace(f"{{{place}}}", value)
    return path


async def _signed_in(plane: Plane, session: aiohttp.ClientSession) -> None:
    await plane.org("acme")
    await _sign_in(plane, session)


async def _sign_in(plane: Plane, session: aiohttp.ClientSession) -> None:
    await operator(plane, "ada", {"*": "admin"})
    form = {"name": "ada", "password": PASSWORD, "next": "/orgs"}
    async with session.post(f"{plane.console_url}/login", data=form, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/orgs")


@pytest.fixture
async def jar() -> aiohttp.CookieJar:
    return aiohttp.CookieJar(unsafe=True)  # accept cookies of hosts that are IP addresses


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_nobody_sees_or_does_anything_before_the_sign_in(plane: Plane, route: PageRoute) -> None:
    method, path = route.method, _address(route.path)
    form = {"name": "x"} if method == "POST" else None
    async with plane.session.request(
        method, plane.console_url + path, allow_redirects=False, data=form
    ) as response:
        assert response.status == 303
        led = urlsplit(response.headers["Location"])
        assert led.path == "/login"
        assert parse_qs(led.query)["next"] == [path if method == "GET" else "/"]
        assert await response.read() == b""


async def test_a_page_may_load_connect_and_send_nowhere_else_and_is_not_kept(
    plane: Plane, jar: aiohttp.CookieJar
) -> None:
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _signed_in(plane, session)
        for path in ("/", "/orgs", "/login", "/nowhere"):
            async with session.get(plane.console_url + path, allow_redirects=False) as response:
                policy = response.headers["Content-Security-Policy"].split("; ")
                assert policy[0] == "default-src 'none'"
                assert {each for each in policy[1:] if not each.endswith(("'self'", "'none'"))} == set()
                assert "frame-ancestors 'none'" in policy
                assert response.headers["Cache-Control"] == "no-store"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert "Server" not in response.headers


async def test_what_is_static_is_kept_under_an_address_that_changes_with_it(plane: Plane) -> None:
    plain = {"Accept-Encoding": "identity"}
    async with plane.session.get(f"{plane.console_url}/login", headers=plain) as page:
        text = await page.text()
    address = text.partition('<link rel="stylesheet" href="')[2].partition('"')[0]
    async with plane.session.get(plane.console_url + address) as style:
        assert style.headers["Content-Type"] == "text/css; charset=utf-8"
        assert "immutable" in style.headers["Cache-Control"]
    async with plane.session.get(f"{plane.console_url}/static/older/console.css") as older:
        assert older.headers["Cache-Control"] == "no-cache"
    for odd in ("/static/x/frame.py", "/static/x/..%2fframe.py", "/static/x/none.css"):
        async with plane.session.get(plane.console_url + odd) as missing:
            assert b"Console" not in await missing.read()


async def test_pages_and_files_are_compressed_for_who_takes_gzip_and_two_pages_share_no_token(
    plane: Plane, jar: aiohttp.CookieJar
) -> None:
    async with aiohttp.ClientSession(cookie_jar=jar, auto_decompress=False) as session:
        await _signed_in(plane, session)
        bodies = {}
        for coding in ("gzip, deflate, br", "br", "gzip;q=0", "identity"):
            headers = {"Accept-Encoding": coding}
            async with session.get(f"{plane.console_url}/orgs", headers=headers) as page:
                bodies[coding] = await page.read()
                assert (page.headers.get("Content-Encoding") == "gzip") == (coding.startswith("gzip,"))
        compressed = bodies.pop("gzip, deflate, br")
        plain = gzip.decompress(compressed)
        assert len(compressed) * 3 < len(plain)
        tokens = {re.findall(b'name="csrf" value="([^"]+)"', body)[0] for body in (plain, *bodies.values())}
        assert len(tokens) == 4
        forms = [{"csrf": token.decode(), "name": f"org-{token[:8].decode()}"} for token in tokens]
        for form in (*forms, {"csrf": "0" * 128, "name": "y"}):
            taken = {**form, "retention": "base"}
            async with session.post(
                f"{plane.console_url}/orgs",
                data=taken,
                headers={"Accept-Encoding": "gzip"},
                allow_redirects=False,
            ) as response:
                assert response.status == (303 if form in forms else 403)
                assert "Content-Encoding" not in response.headers, "a form's response may show a secret"
        address = plain.partition(b'<link rel="stylesheet" href="')[2].partition(b'"')[0].decode()
        files = []
        for coding in ("gzip", "identity"):
            async with session.get(plane.console_url + address, headers={"Accept-Encoding": coding}) as file:
                assert file.headers["Vary"] == "Accept-Encoding"
                files.append(await file.read())
        assert gzip.decompress(files[0]) == files[1]
        assert len(files[0]) * 3 < len(files[1])


async def test_errors_are_pages_for_people_and_json_for_programs(
    plane: Plane, jar: aiohttp.CookieJar
) -> None:
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _signed_in(plane, session)
        for path, kind in (("/nowhere", "text/html"), ("/admin/v1/nowhere", "application/json")):
            async with session.get(plane.console_url + path) as response:
                assert (response.status, response.content_type) == (404, kind)
        async with session.get(f"{plane.console_url}/orgs?org=never") as response:
            assert response.status == 404
        async with session.post(f"{plane.console_url}/orgs", data={"name": "x"}) as response:
            assert (response.status, response.content_type) == (403, "text/html")
        async with session.put(f"{plane.console_url}/orgs") as response:
            assert (response.status, response.content_type) == (403, "text/html")


@pytest.mark.parametrize("name", ["path", "self", "query", "class"])
async def test_no_name_of_a_query_s_member_is_one_of_ours(
    plane: Plane, jar: aiohttp.CookieJar, name: str
) -> None:
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _signed_in(plane, session)
        for page, status in (("/apps", 200), ("/rulesets/new", 200), ("/search", 200), ("/nowhere", 404)):
            async with session.get(f"{plane.console_url}{page}?{name}=x") as response:
                assert response.status == status, page
    async with plane.session.get(f"{plane.console_url}/login?{name}=x") as response:
        assert response.status == 200


async def test_a_search_that_found_nothing_in_its_time_leads_on(
    plane: Plane, jar: aiohttp.CookieJar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteIndex, "search", AsyncMock(return_value=SearchPage((), "older")))
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _signed_in(plane, session)
        async with session.get(f"{plane.console_url}/search?q=mail") as response:
            text = await response.text()
    assert 'href="/search?q=mail&amp;cursor=older"' in text
    assert "No event matches" not in text


@pytest.mark.parametrize("came_from", ["http://[", "http://\N{ACCOUNT OF}/orgs"])
async def test_a_form_of_nobody_s_from_no_page_leads_to_the_sign_in(plane: Plane, came_from: str) -> None:
    async with plane.session.post(
        f"{plane.console_url}/orgs", headers={"Referer": came_from}, allow_redirects=False
    ) as response:
        assert (response.status, response.headers["Location"]) == (303, "/login?next=%2F")


async def test_a_fault_of_ours_is_told_to_the_log_alone(
    plane: Plane, jar: aiohttp.CookieJar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _signed_in(plane, session)
        # A page whose template fails.
        monkeypatch.setattr("controlplane.console.orgs._TIERS", None)
        async with session.get(f"{plane.console_url}/orgs") as response:
            assert response.status == 500
            assert "The control plane failed to make this page" in await response.text()
    assert "GET /orgs failed" in caplog.text


@pytest.mark.parametrize("table", ["operator_sessions", "stops"])
async def test_without_its_store_a_page_says_that_proxies_serve_on(
    plane: Plane, jar: aiohttp.CookieJar, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    """The store cannot return the session, or cannot return the data that every console page shows."""
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _signed_in(plane, session)
        with closing(sqlite3.connect(plane.settings.store.path)) as store:
            store.execute(f"ALTER TABLE {table} RENAME TO away")
        for method, path, again in (("GET", "/apps?sort=-name", "/apps?sort=-name"), ("POST", "/orgs", "/")):
            async with session.request(method, plane.console_url + path) as response:
                text = await response.text()
            assert (response.status, response.content_type) == (503, "text/html")
            assert "Proxies continue with their last rules" in text
            assert f'href="{again}">Try again' in text
            assert (response.headers["Retry-After"], response.headers["Cache-Control"]) == ("5", "no-store")
        async with session.get(f"{plane.console_url}/admin/v1/stops") as response:
            assert (response.status, response.content_type) == (503, "application/json")
    assert "Traceback" not in caplog.text


async def test_nothing_that_a_proxy_says_turns_a_page_s_line_round(
    plane: Plane, proxy: ProxyClient, jar: aiohttp.CookieJar
) -> None:
    (org,) = proxy.org_ids
    odd = "\u202e\x1b[2J"
    check = {"status": "failed", "detail": f"detail{odd}"}
    said = {"version": f"1{odd}", "checks": {f"check{odd}": check}}
    assert (await proxy.send(HEARTBEAT, json.dumps(said).encode())).status == 200
    sent = batch("odd", org, [1])
    sent["events"][0] |= {"id": "a{b}c", "appId": f"app{odd}", "verdict": "block", "path": f"/{odd}"}
    assert (await proxy.audit(sent)).status == 202
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _sign_in(plane, session)
        for path in ("/", "/proxies", "/proxies/edge-1", "/search", f"/events/{org}/a%7Bb%7Dc"):
            async with session.get(f"{plane.console_url}{path}") as response:
                text = await response.text()
                assert (response.status, odd[0] in text, odd[1] in text) == (200, False, False), path
                assert "\\u202e" in text, path


async def test_nothing_that_an_operator_says_turns_a_page_s_line_round(plane: Plane) -> None:
    odd = "\u202e\x1b[2J"
    await plane.org("acme")
    async with visiting(plane) as visitor:
        call = visitor.browser.send
        for rules in ("r1", "r2"):
            said = {
                "org": "acme",
                "yaml": RULESET.format(name="hr").replace("r1", rules),
                "note": f"why{odd}",
            }
            assert (await call("POST", "/rulesets", said)).status == 200
        assert (await call("POST", "/stops/orgs/acme", {"reason": f"why{odd}"})).status == 200
        for path in (
            "/",
            "/stops",
            "/record",
            "/rulesets",
            "/rulesets/acme/hr",
            "/rulesets/acme/hr?version=1",
        ):
            seen = await visitor.get(path)
            assert (seen.status, odd[0] in seen.text, odd[1] in seen.text) == (200, False, False), path
            assert "why\\u202e" in seen.text, path


@pytest.mark.parametrize("levels", [10, 400, 900])
async def test_whatever_was_accepted_of_an_event_has_a_page(
    plane: Plane, proxy: ProxyClient, jar: aiohttp.CookieJar, levels: int
) -> None:
    (org,) = proxy.org_ids
    sent = batch("deep", org, [1])
    sent["events"][0]["later"] = "-"
    body = json.dumps(sent).replace('"-"', "[" * levels + "]" * levels).encode()
    assert (await proxy.send(AUDIT, body)).status == 202
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        await _sign_in(plane, session)
        async with session.get(f"{plane.console_url}/events/{org}/event-1") as response:
            assert response.status == 200
            assert "event-1" in await response.text()
