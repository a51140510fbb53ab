"""Tests of the admin API: permissions of operators, reports of errors, and the operator log."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from controlplane.admin import gate
from controlplane.operations.actor import Role
from controlplane.requests import read_body
from controlplane.secrets import digest, hash_password, is_password, mint
from controlplane.store.interface import LogQuery, Operator, OperatorToken, StoreError
from tests.controlplane.plane import CHEAP, FakeClock, Plane, ProxyClient, Response, batch, started
from tests.fakes.certificates import CertificateAuthority

PASSWORD = "correct horse battery staple"
HASHED = CHEAP.hash(PASSWORD)


@dataclass
class Browser:
    """HTTP client that keeps the session cookie and sends the headers of a browser."""

    session: aiohttp.ClientSession
    url: str
    cookie: str = ""
    csrf: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    async def send(
        self, method: str, path: str, members: object = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        sent = {"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": self.csrf, **self.headers, **(headers or {})}
        if self.cookie:
            sent["Cookie"] = self.cookie
        sent = {name: value for name, value in sent.items() if value}
        async with self.session.request(
            method, f"{self.url}/admin/v1{path}", json=members, headers=sent
        ) as response:
            if "Set-Cookie" in response.headers:
                self.cookie = response.headers["Set-Cookie"].partition(";")[0]
            return Response(response.status, response.headers.copy(), await response.read())

    async def sign_in(self, name: str, password: str = PASSWORD) -> Response:
        response = await self.send("POST", "/session", {"name": name, "password": password})
        if response.status == 200:
            self.csrf = response.json["csrfToken"]
        return response


@pytest.fixture
async def browser(plane: Plane) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Browser(session, plane.console_url)


async def operator(plane: Plane, name: str, roles: Mapping[str, Role]) -> str:
    """Create an operator with a role for each named organisation.

    Return an API token of the new operator.
    """
    org_ids = {org.name: org.org_id for org in await plane.store.orgs()} | {"*": "*"}
    added = Operator(
        f"id-of-{name}",
        name,
        HASHED,
        True,
        plane.clock.wall_ms(),
        {org_ids[org]: role for org, role in roles.items()},
    )
    await plane.store.add_operator(added)
    token = mint("gwt")
    now = plane.clock.wall_ms()
    await plane.store.add_token(
        OperatorToken(f"token-of-{name}", added.operator_id, "tests", now, now + 3_600_000), digest(token)
    )
    return token


async def call(
    plane: Plane, token: str, method: str, path: str, members: object = None, **headers: str
) -> Response:
    async with plane.session.request(
        method,
        f"{plane.console_url}/admin/v1{path}",
        json=members,
        headers={"Authorization": f"Bearer {token}", **headers},
    ) as response:
        return Response(response.status, response.headers.copy(), await response.read())


async def lines(plane: Plane) -> list[tuple[str, str, dict[str, Any], str | None]]:
    """Return the lines of the operator log, oldest first."""
    found = await plane.store.operator_log(LogQuery(limit=1000))
    return [(each.operator, each.operation, json.loads(each.request), each.outcome) for each in found[::-1]]


async def test_an_operation_is_called_with_a_token_and_kept_on_record(plane: Plane) -> None:
    token = await operator(plane, "ada", {"*": "admin"})
    added = await call(plane, token, "POST", "/orgs", {"name": "acme", "retention": "1y"})
    assert (added.status, added.json["name"], added.json["retention"]) == (200, "acme", "1y")
    assert (await call(plane, token, "GET", "/orgs/acme")).json["orgId"] == added.json["orgId"]
    changed = await call(plane, token, "PUT", "/orgs/acme/retention", {"retention": "7y"})
    assert changed.json["retention"] == "7y"
    assert await lines(plane) == [
        ("ada", "org.add", {"name": "acme", "retention": "1y"}, "done"),
        ("ada", "org.set-retention", {"org": "acme", "retention": "7y"}, "done"),
    ]


@pytest.mark.parametrize("name", ["br{ce}", "{name}", "sl/sh", "per%2Fcent", "q?x#y", "a+b c"])
async def test_whatever_a_name_is_it_is_found_by_its_path(plane: Plane, name: str) -> None:
    token = await operator(plane, "ada", {"*": "admin"})
    assert (await call(plane, token, "POST", "/orgs", {"name": name})).status == 200
    assert (await call(plane, token, "GET", f"/orgs/{quote(name, safe='')}")).json["name"] == name


async def test_what_can_not_be_meant_is_400_and_names_the_member(plane: Plane) -> None:
    token = await operator(plane, "ada", {"*": "admin"})
    for members, named in (
        ({}, "name: is missing"),
        ({"name": 7}, "name: "),
        ({"name": "acme", "retention": "5y"}, "retention: "),
        ({"name": "acme", "colour": "red"}, "colour: unknown member, known are name, retention"),
        ({"name": ""}, "a name must have"),
        ([], "JSON object"),
    ):
        response = await call(plane, token, "POST", "/orgs", members)
        assert (response.status, response.code) == (400, "invalidRequest"), members
        assert named in response.json["error"]["message"] or members == []
    assert (await call(plane, token, "POST", "/orgs?name=acme", {})).status == 400
    assert (await call(plane, token, "GET", "/orgs?colour=red")).status == 400
    assert await plane.store.orgs() == []


@pytest.mark.parametrize("number", [2**63, -1])
async def test_a_head_that_no_chain_can_have_is_400(plane: Plane, number: int) -> None:
    org = await plane.org("acme")
    token = await operator(plane, "ada", {"*": "admin"})
    checkpoint = [{"orgId": org, "number": number, "link": "00" * 32}]
    response = await call(plane, token, "POST", "/audit/verify", {"checkpoint": checkpoint})
    assert (response.status, response.code) == (400, "invalidRequest")
    assert "checkpoint[0].number" in response.json["error"]["message"]


async def test_without_an_identity_everything_is_401(plane: Plane) -> None:
    for method, path in (("GET", "/orgs"), ("POST", "/orgs"), ("GET", "/session")):
        response = await call(plane, "gwt_unknown", method, path)
        assert (response.status, response.code) == (401, "unauthenticated")
        assert response.headers["WWW-Authenticate"] == "Bearer"


async def test_a_token_ends_in_time_and_with_its_operator(plane: Plane, clock: FakeClock) -> None:
    ada, alan = await operator(plane, "ada", {"*": "admin"}), await operator(plane, "alan", {"*": "viewer"})
    assert (await call(plane, alan, "GET", "/orgs")).status == 200
    await plane.store.set_operator_enabled("id-of-alan", False)
    assert (await call(plane, alan, "GET", "/orgs")).status == 401
    assert (await call(plane, ada, "GET", "/orgs")).status == 200
    clock.advance(hours=1)
    assert (await call(plane, ada, "GET", "/orgs")).status == 401


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(
    plane: Plane, browser: Browser
) -> None:
    await operator(plane, "ada", {"*": "admin"})
    response = await browser.sign_in("ada")
    attributes = response.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(attributes)
    # plain HTTP on loopback: no browser would keep a __Host- cookie
    assert attributes[0].startswith("graphward=")
    assert "Secure" not in attributes
    assert response.json["operator"] == "ada"
    assert (await browser.send("GET", "/orgs")).status == 200
    assert (await browser.send("POST", "/orgs", {"name": "acme"})).status == 200
    first = browser.cookie
    await browser.sign_in("ada")
    assert browser.cookie != first
    assert (await browser.send("GET", "/orgs", headers={"Cookie": first})).status == 200
    browser.cookie = first
    # a sign-in ends the session that the request came with
    assert (await browser.send("GET", "/orgs")).status == 401


async def test_no_session_begins_with_a_password_that_was_replaced_meanwhile(
    plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a password is replaced while a sign-in checks it, the sign-in gets no session."""
    await operator(plane, "ada", {"*": "admin"})
    compared, replaced = threading.Event(), threading.Event()

    def slowly(hashed: str, password: str) -> bool:
        compared.set()
        replaced.wait(10)
        return is_password(hashed, password)

    monkeypatch.setattr("controlplane.admin.gate.is_password", slowly)
    signing_in = asyncio.create_task(browser.sign_in("ada"))
    await asyncio.to_thread(compared.wait)
    await plane.store.set_password("id-of-ada", hash_password("another long password"))
    replaced.set()
    assert (await signing_in).status == 401
    assert (await browser.send("GET", "/session")).status == 401


async def test_a_sign_out_ends_the_session_itself(plane: Plane, browser: Browser) -> None:
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    cookie = browser.cookie
    assert (await browser.send("DELETE", "/session")).status == 204
    browser.cookie = cookie
    assert (await browser.send("GET", "/orgs")).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "0" * 64},
        {"X-CSRF-Token": "ä"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "", "Origin": "null"},
        {"Sec-Fetch-Site": "", "Origin": "http://["},
        {"Sec-Fetch-Site": "", "Origin": "http://\N{ACCOUNT OF}"},
    ],
)
async def test_another_site_changes_nothing(plane: Plane, browser: Browser, headers: dict[str, str]) -> None:
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    response = await browser.send("POST", "/orgs", {"name": "acme"}, headers)
    assert (response.status, response.code) == (403, "forbidden")
    assert await plane.store.orgs() == []


async def test_another_session_s_token_is_none(plane: Plane, browser: Browser) -> None:
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    stranger = Browser(browser.session, browser.url)
    await stranger.sign_in("ada")
    response = await browser.send("POST", "/orgs", {"name": "acme"}, {"X-CSRF-Token": stranger.csrf})
    assert response.status == 403


async def test_another_site_can_not_sign_a_browser_in(plane: Plane, browser: Browser) -> None:
    await operator(plane, "ada", {"*": "admin"})
    browser.headers = {"Sec-Fetch-Site": "cross-site"}
    assert (await browser.sign_in("ada")).status == 403
    # the header of http://x:y@console/, to which a page may link
    browser.headers["Authorization"] = "Basic eDp5"
    assert (await browser.sign_in("ada")).status == 403


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8091", True),
        ("[::1]:8091", True),
        ("LOCALHOST:9", True),
        ("graphward.localhost", True),
        ("evil.example:8091", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("10.0.0.1", False),
        ("[", False),
        ("", False),
    ],
)
async def test_a_name_that_another_site_resolved_to_this_host_is_none_of_ours(
    plane: Plane, host: str, known: bool
) -> None:
    """Test that the server refuses a foreign host name that resolves to the server's address.

    If evil.example resolves to 127.0.0.1, a browser treats its page and the console as one origin.
    """
    for path in ("/login", "/admin/v1/openapi.json"):
        async with plane.session.get(plane.console_url + path, headers={"Host": host}) as response:
            assert response.status == (200 if known else 403)


async def test_behind_a_proxy_the_public_name_is_ours(tmp_path: Path, clock: FakeClock) -> None:
    console = 'Listen = "127.0.0.1:0"\nPublicBaseUrl = "https://console.example"'
    async with started(tmp_path, clock, Console=console) as plane:
        for host, status in (("console.example", 200), ("other.example", 403)):
            async with plane.session.get(f"{plane.console_url}/login", headers={"Host": host}) as response:
                assert response.status == status


async def test_a_session_ends_half_an_hour_after_its_last_use(
    plane: Plane, browser: Browser, clock: FakeClock
) -> None:
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    for _ in range(3):
        clock.advance(seconds=1799)
        assert (await browser.send("GET", "/orgs")).status == 200
    clock.advance(seconds=1800)
    assert (await browser.send("GET", "/orgs")).status == 401


async def test_a_session_reads_on_while_nothing_can_be_written(
    plane: Plane, browser: Browser, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreError("disk full")

    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    clock.advance(seconds=120)
    monkeypatch.setattr(type(plane.store), "use_session", full)
    assert (await browser.send("GET", "/orgs")).status == 200


async def test_and_after_twelve_hours_however_much_it_is_used(
    plane: Plane, browser: Browser, clock: FakeClock
) -> None:
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    for _ in range(47):
        clock.advance(seconds=900)
        assert (await browser.send("GET", "/orgs")).status == 200
    clock.advance(seconds=900)
    assert (await browser.send("GET", "/orgs")).status == 401


async def test_guessing_ends_soon_and_says_nothing_about_who_exists(
    plane: Plane, browser: Browser, clock: FakeClock
) -> None:
    await operator(plane, "ada", {"*": "admin"})
    responses = {}
    for name in ("ada", "nobody"):
        responses[name] = [await browser.sign_in(name, "wrong") for _ in range(6)]
    for known, unknown in zip(*responses.values(), strict=True):
        assert (known.status, known.body) == (unknown.status, unknown.body)
    assert [each.status for each in responses["ada"]] == [401] * 5 + [429]
    assert responses["ada"][-1].headers["Retry-After"] == "900"
    assert (await browser.sign_in("ada")).status == 429  # the right password is refused too
    clock.advance(seconds=900)
    assert (await browser.sign_in("ada")).status == 200
    assert [each[:2] for each in await lines(plane)][:6] == [("ada", "session.sign-in")] * 5 + [
        ("unknown", "session.sign-in")
    ]


async def test_who_is_nobody_costs_as_much_as_who_is_somebody(
    plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a password check computes one hash of the same cost, even if the operator does not exist."""
    await operator(plane, "ada", {"*": "admin"})
    await operator(plane, "disabled", {"*": "viewer"})
    await plane.store.set_operator_enabled("id-of-disabled", False)
    await plane.store.add_operator(Operator("id", "without", None, True, 0, {}))
    compared: list[str] = []

    def compare(hashed: str, password: str) -> bool:
        compared.append(hashed.rpartition("$")[0].rpartition("$")[0])
        return False

    monkeypatch.setattr("controlplane.admin.gate.is_password", compare)
    responses = [
        await browser.sign_in(name) for name in ("ada", "disabled", "without", "nobody", "id-of-ada")
    ]
    assert {(response.status, response.body) for response in responses} == {(401, responses[0].body)}
    assert len(compared) == 5
    assert len(set(compared)) == 1  # the same algorithm and parameters


async def test_many_guesses_at_once_are_no_more_than_one_after_the_other(
    plane: Plane, browser: Browser
) -> None:
    await operator(plane, "ada", {"*": "admin"})
    responses = await asyncio.gather(*(browser.sign_in("ada", f"guess {number}") for number in range(12)))
    assert sorted(response.status for response in responses) == [401] * 5 + [429] * 7


async def test_a_sign_in_for_which_no_hash_is_made_does_not_count(
    plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign-in that is refused without a password check does not count as a failed password guess."""
    with monkeypatch.context() as patched:
        patched.setattr(gate, "_MOST_HASHES_WAITING", 0)
        assert {(await browser.sign_in("ada", "wrong")).status for _ in range(6)} == {503}
    assert (await browser.sign_in("ada", "wrong")).status == 401


async def test_a_flood_of_names_of_nobody_does_not_fill_the_record(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.admin.gate._MOST_UNKNOWN_RECORDED", 3)
    monkeypatch.setattr("controlplane.admin.gate.is_password", lambda *_: False)
    async with started(tmp_path, clock) as plane:
        browser = Browser(plane.session, plane.console_url)
        await operator(plane, "ada", {"*": "admin"})
        for name in ("nobody-1", "nobody-2", "nobody-3", "nobody-4", "ada"):
            assert (await browser.sign_in(name)).status == 401
        clock.advance(seconds=900)
        assert (await browser.sign_in("nobody-5")).status == 401
    async with started(tmp_path, clock) as plane:  # a stop waits for lines that are not yet logged
        assert [each[0] for each in await lines(plane)] == ["unknown"] * 3 + ["ada", "unknown"]


async def test_one_address_guesses_in_few_names(plane: Plane, browser: Browser) -> None:
    statuses = [(await browser.sign_in(f"nobody-{number}", "wrong")).status for number in range(21)]
    assert statuses == [401] * 20 + [429]


async def test_who_is_disabled_reads_no_further_in_a_response_that_goes_on(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.admin.api._LOOKED_AGAIN_SECONDS", 0)
    token = await operator(plane, "ada", {"acme": "viewer"})
    url, headers = f"{plane.console_url}/admin/v1/audit/tail", {"Authorization": f"Bearer {token}"}
    async with plane.session.get(url, headers=headers) as response:
        await response.content.readuntil(b"\n\n")
        await proxy.audit(batch("b1", proxy.org_ids[0], [1]))
        assert b"event-1" in await response.content.readuntil(b"\n\n")
        await plane.store.set_operator_enabled("id-of-ada", False)
        await proxy.audit(batch("b2", proxy.org_ids[0], [2]))
        rest = bytearray()
        with pytest.raises(aiohttp.ClientPayloadError):  # a truncated export does not look complete
            await _read_into(rest, response)
        assert b"event-2" not in rest


async def _read_into(rest: bytearray, response: aiohttp.ClientResponse) -> None:
    async for piece in response.content.iter_any():
        rest += piece


async def test_over_tls_the_cookie_is_bound_to_this_very_host(tmp_path: Path, clock: FakeClock) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = authority.server()
    section = (
        f'Listen = "127.0.0.1:0"\nCertFile = "{certificate.cert_file}"\nKeyFile = "{certificate.key_file}"'
    )
    async with started(tmp_path, clock, Console=section) as plane:
        assert plane.console_url.startswith("https://")
        await operator(plane, "ada", {"*": "admin"})
        connector = aiohttp.TCPConnector(ssl=authority.client_context())
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            browser = Browser(session, plane.console_url)
            response = await browser.sign_in("ada")
            attributes = response.headers["Set-Cookie"].split("; ")
            assert attributes[0].startswith("__Host-graphward=")
            assert {"HttpOnly", "SameSite=Lax", "Path=/", "Secure"} <= set(attributes)
            assert (await browser.send("GET", "/orgs")).status == 200


async def test_a_form_of_another_site_is_none_of_ours(plane: Plane, browser: Browser) -> None:
    """A page of another site can send a form with the operator's cookie, but can't read the form's token."""
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    url, headers = f"{plane.console_url}/orgs", {"Cookie": browser.cookie}
    for fields in ({"name": "acme"}, {"name": "acme", "csrf": "0" * 64}):
        async with browser.session.post(url, data=fields, headers=headers) as response:
            assert response.status == 403
    assert await plane.store.orgs() == []
    fields = {"name": "acme", "csrf": browser.csrf}
    async with browser.session.post(url, data=fields, headers=headers, allow_redirects=False) as response:
        assert response.status == 303
    assert [org.name for org in await plane.store.orgs()] == ["acme"]


async def test_a_stranger_s_body_is_small_and_nobody_s_is_endless(
    plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.admin.gate._MAX_BODY_BYTES", 100_000)
    response = await browser.send("POST", "/session", {"name": "x" * 20_000, "password": "y"})
    assert (response.status, response.code) == (413, "payloadTooLarge")
    token = await operator(plane, "ada", {"*": "admin"})
    assert (await call(plane, token, "POST", "/rulesets/check", {"yaml": "#" * 90_000})).status == 200
    large = {"yaml": "#" * 100_000}
    assert (await call(plane, token, "POST", "/rulesets/check", large)).status == 413


class SlowBodies:
    """Request bodies that pause after the server has read the head, until the test continues them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self.go_on = asyncio.Event()
        monkeypatch.setattr("controlplane.admin.gate.read_body", self._read)

    async def _read(self, *arguments: Any) -> bytes:
        self.begun.put_nowait(None)
        return await read_body(*arguments)

    async def of(self, text: bytes) -> AsyncIterator[bytes]:
        yield text[:1]
        await self.go_on.wait()
        yield text[1:]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowBodies:
    return SlowBodies(monkeypatch)


async def send_slowly(plane: Plane, slow: SlowBodies, path: str, **headers: str) -> tuple[int, str]:
    async with plane.session.post(
        f"{plane.console_url}{path}",
        data=slow.of(b'{"name":"slow"}'),
        headers={"Content-Type": "application/json", **headers},
        allow_redirects=False,
    ) as response:
        return response.status, response.headers.get("Location", "")


@pytest.mark.parametrize("ends", ["the operator", "the role"])
async def test_who_asks_is_who_would_once_the_body_is_there(
    plane: Plane, slow: SlowBodies, ends: str
) -> None:
    token = await operator(plane, "ada", {"*": "admin"})
    other = await operator(plane, "eve", {"*": "admin"})
    sending = asyncio.create_task(send_slowly(plane, slow, "/admin/v1/orgs", Authorization=f"Bearer {other}"))
    await slow.begun.get()
    if ends == "the operator":
        assert (await call(plane, token, "POST", "/operators/eve/disable")).status == 200
    else:
        assert (await call(plane, token, "DELETE", "/operators/eve/roles/*")).status == 200
    slow.go_on.set()
    assert (await sending)[0] == (401 if ends == "the operator" else 403)
    assert await plane.store.orgs() == []


async def test_a_form_of_a_session_that_ended_meanwhile_changes_nothing(
    plane: Plane, browser: Browser, slow: SlowBodies
) -> None:
    await operator(plane, "ada", {"*": "admin"})
    await browser.sign_in("ada")
    await slow.begun.get()
    headers = {"Cookie": browser.cookie, "X-CSRF-Token": browser.csrf, "Sec-Fetch-Site": "same-origin"}
    sending = asyncio.create_task(send_slowly(plane, slow, "/orgs", **headers))
    await slow.begun.get()
    assert (await browser.send("DELETE", "/session")).status == 204
    slow.go_on.set()
    status, where = await sending
    assert (status, where.partition("?")[0]) == (303, "/login")
    assert await plane.store.orgs() == []


async def test_large_bodies_of_one_operator_leave_room_for_those_of_others(
    plane: Plane, slow: SlowBodies
) -> None:
    """The server buffers large request bodies in limited memory.

    Small requests, such as an emergency stop, always have room in the buffer memory.
    """
    token = await operator(plane, "ada", {"*": "admin"})
    other = await operator(plane, "eve", {"*": "admin"})
    check = "/admin/v1/rulesets/check"
    sending = [
        asyncio.create_task(send_slowly(plane, slow, check, Authorization=f"Bearer {token}"))
        for _ in range(2)
    ]
    for _ in sending:
        await slow.begun.get()
    large = {"yaml": "#" * 100_000}
    refused = await call(plane, token, "POST", "/rulesets/check", large)
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "unavailable", "5")
    assert (await call(plane, token, "POST", "/rulesets/check", {"yaml": "#" * 60_000})).status == 200
    assert (await call(plane, other, "POST", "/rulesets/check", large)).status == 200
    slow.go_on.set()
    await asyncio.gather(*sending)
    assert (await call(plane, token, "POST", "/rulesets/check", large)).status == 200


async def test_the_agent_api_s_listener_has_no_admin_api(plane: Plane) -> None:
    for path in ("/admin/v1/orgs", "/admin/v1/session"):
        async with plane.session.get(plane.base_url + path) as response:
            assert response.status == 404
    async with plane.session.get(plane.console_url + "/api/v1/agent/sync") as response:
        assert response.status == 404


async def test_responses_are_kept_rendered_and_framed_by_nobody(plane: Plane) -> None:
    response = await call(plane, "", "GET", "/orgs")
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in response.headers
