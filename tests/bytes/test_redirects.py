"""Tests of redirects to another host under a filter: the client never receives the redirect's address."""

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.bytes.data_path import UpstreamPeer, data_path

RULES = """
version: 1
name: test
default: block
rules:
  - {id: cut, match: {path: ["/v1.0/users/{id}"]}, verdict: filter, transforms: {strip_properties: [phone]}}
  - {id: groups, match: {path: ["/v1.0/groups/**"]}, verdict: allow}
  - id: secret
    when: response
    match: {path: ["/v1.0/groups/{id}/secret"]}
    conditions: [{property: visibility, equals: Private}]
    verdict: block
  - id: cut-redirects
    when: response
    match: {path: ["/v1.0/groups/{id}/late"]}
    conditions: [{status: 302}]
    verdict: filter
    transforms: {strip_properties: [phone]}
"""
ELSEWHERE = [
    b"https://files.example/x?sig=SECRET",
    b"HTTPS://FILES.example/x?sig=SECRET",
    b"//files.example/x?sig=SECRET",
    b"///files.example/x?sig=SECRET",
    b"http://UPSTREAM@files.example/?sig=SECRET",
    b"http://UPSTREAM:pw@files.example/?sig=SECRET",
    b"http://UPSTREAM.files.example/?sig=SECRET",
    b"http://UPSTREAM\\@files.example/?sig=SECRET",
    b"\\\\files.example/?sig=SECRET",
    b"/\\files.example/?sig=SECRET",
    b"http://127.0.0.1:1/x?sig=SECRET",
    b"http://127.0.0.1/x?sig=SECRET",
    b"http:files.example/?sig=SECRET",
    b"http:/files.example/?sig=SECRET",
    b"/x\ty?sig=SECRET",
    b"data:text/plain,SECRET",
    b"http://[::1/?sig=SECRET",
    b"/v1.0/users/2\r\nLocation: https://files.example/?sig=SECRET",
]
OWN = [b"http://UPSTREAM/v1.0/users/2", b"HTTP://UPSTREAM/v1.0/users/2", b"//UPSTREAM/v1.0/users/2"]
RELATIVE = [b"/v1.0/users/2", b"2?a=b:c", b"?p=http://files.example/", b"#top"]


def redirecting(location: bytes | None, status: int = 302) -> Callable[[UpstreamPeer], Awaitable[None]]:
    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        host = head.split(b"Host: ")[1].split(b"\r\n")[0]
        field = b"" if location is None else b"Location: %b\r\n" % location.replace(b"UPSTREAM", host)
        peer.send(b"HTTP/1.1 %d X\r\n%bContent-Length: 0\r\n\r\n" % (status, field))

    return script


@pytest.mark.parametrize("location", ELSEWHERE)
async def test_a_redirect_elsewhere_is_withheld_under_a_filter(
    tmp_path: Path, location: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with data_path(redirecting(location), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/1"))
        assert (reply.status, reply.value("location")) == (502, None)
        [event] = proxy.events()
        assert b"SECRET" not in reply.body
        assert "SECRET" not in json.dumps(event) + caplog.text
        assert (event["reason"], event["upstreamStatus"]) in (
            ("filterFailed", 302),
            ("upstreamProtocol", None),
        )
        if b"\t" not in location:
            assert reply.json()["error"]["code"] == "filterFailed"


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", ["/v1.0/users/1", "/v1.0/groups/1/secret"])
async def test_every_redirect_is_withheld_if_the_body_decides(tmp_path: Path, status: int, path: str) -> None:
    async with data_path(redirecting(ELSEWHERE[0], status), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(path))
        assert (reply.status, reply.json()["error"]["code"]) == (502, "filterFailed")


async def test_a_response_rule_that_filters_by_status_withholds_a_redirect(tmp_path: Path) -> None:
    async with data_path(redirecting(ELSEWHERE[0]), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/groups/1/late"))
        assert (reply.status, reply.json()["error"]["code"]) == (502, "filterFailed")


@pytest.mark.parametrize("location", OWN + RELATIVE)
async def test_a_redirect_to_the_upstream_passes_by_way_of_the_proxy(tmp_path: Path, location: bytes) -> None:
    async with data_path(redirecting(location), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/1"))
        expected = "http://proxy.example/v1.0/users/2" if location in OWN else location.decode()
        assert (reply.status, reply.value("location")) == (302, expected)


@pytest.mark.parametrize(("location", "status"), [(None, 302), (None, 304), (ELSEWHERE[0], 304)])
async def test_what_is_not_a_redirect_passes(tmp_path: Path, location: bytes | None, status: int) -> None:
    async with data_path(redirecting(location, status), tmp_path, RULES) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/users/1"))).status == status


async def test_a_redirect_elsewhere_passes_under_allow(tmp_path: Path) -> None:
    async with data_path(redirecting(ELSEWHERE[0]), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/groups/1"))
        assert (reply.status, reply.value("location")) == (302, ELSEWHERE[0].decode())


@pytest.mark.parametrize("status", [301, 302, 307])
@pytest.mark.parametrize(
    ("location", "host"),
    [
        (b"https://files.example/x/SECRET?sig=SECRET#SECRET", "files.example"),
        (b"https://FILES.example.:8443/x?sig=SECRET", "files.example:8443"),
        (b"//files.example?sig=SECRET", "files.example"),
        (b"https://user:SECRET@files.example/x", "unreadable"),
        (b"data:text/plain,SECRET", "unreadable"),
    ],
)
@pytest.mark.parametrize("path", ["/v1.0/groups/1", "/v1.0/users/1"])
async def test_the_event_has_the_host_of_a_redirect_elsewhere_and_nothing_else_of_it(
    tmp_path: Path, status: int, location: bytes, host: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with data_path(redirecting(location, status), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(path))
        assert reply.status == (status if "groups" in path else 502)
        [event] = proxy.events()
        assert (event["redirect"], event["upstreamStatus"]) == (host, status)
        assert "SECRET" not in json.dumps(event) + caplog.text


@pytest.mark.parametrize("location", [None, *OWN, *RELATIVE])
async def test_the_event_of_another_response_has_no_redirect(tmp_path: Path, location: bytes | None) -> None:
    async with data_path(redirecting(location), tmp_path, RULES) as proxy:
        await proxy.ask(proxy.request("/v1.0/groups/1"))
        [event] = proxy.events()
        assert "redirect" not in event


@pytest.mark.parametrize(("path", "expected"), [("/users/1", 502), ("/groups/1", 302)])
@pytest.mark.parametrize("name", ["Location", "LOCATION", "location"])
async def test_a_redirect_elsewhere_in_a_batch_is_withheld_under_a_filter(
    tmp_path: Path, path: str, expected: int, name: str
) -> None:
    response = {"id": "1", "status": 302, "headers": {name: ELSEWHERE[0].decode()}}
    content = json.dumps({"responses": [response]}).encode()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        field = b"Content-Type: application/json\r\nContent-Length: %d" % len(content)
        peer.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (field, content))

    body = json.dumps({"requests": [{"id": "1", "method": "GET", "url": path}]}).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert reply.json()["responses"][0]["status"] == expected
        assert (b"SECRET" in reply.body) == (expected == 302)
        events = proxy.events()
        assert [event.get("redirect") for event in events if event["parentRequestId"]] == ["files.example"]
        assert "SECRET" not in json.dumps(events)


@pytest.mark.parametrize(("path", "expected"), [("/users/1", 502), ("/groups/1", 307)])
async def test_a_batch_that_is_redirected_as_a_whole_is_withheld_under_a_filter(
    tmp_path: Path, path: str, expected: int
) -> None:
    body = json.dumps({"requests": [{"id": "1", "method": "GET", "url": path}]}).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    async with data_path(redirecting(ELSEWHERE[0], 307), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert reply.status == expected
