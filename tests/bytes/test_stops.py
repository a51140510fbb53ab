"""Tests of a stopped application: it gets no token and no response, and its running response is aborted."""

import asyncio
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from proxy.rules.stops import NOTHING_STOPPED, Stops
from proxy.server.callers.rulebook import Rulebook
from tests.bytes.data_path import (
    CLIENT_ID,
    CLIENT_SECRET,
    ORG_ID,
    DataPath,
    UpstreamPeer,
    data_path,
    ok,
    read_reply,
    responding,
)

OF_ALL_KINDS = [
    Stops(everything=True),
    Stops(orgs=frozenset((ORG_ID,))),
    Stops(apps=frozenset(("app-1",))),
]


def stop(proxy: DataPath, stops: Stops) -> None:
    """Stop applications as a sync from the control plane does.

    An emergency stop also sets `enabled` to False, because older releases read only `enabled` and not the
    stops.
    """
    book: Rulebook = proxy.context.rulebook
    caller = replace(book.callers[CLIENT_ID], enabled=not stops.concern(ORG_ID, "app-1"))
    proxy.context.use(replace(book, callers={CLIENT_ID: caller}, stops=stops))


def token_request(secret: str = CLIENT_SECRET) -> bytes:
    form = urlencode(
        {"grant_type": "client_credentials", "client_id": CLIENT_ID, "client_secret": secret}
    ).encode()
    head = "POST /proxy/token HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    return f"{head}Content-Length: {len(form)}\r\n\r\n".encode() + form


@pytest.mark.parametrize("stops", OF_ALL_KINDS)
async def test_a_kept_connection_gets_403_from_the_next_request_on(tmp_path: Path, stops: Stops) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        stop(proxy, stops)
        for _ in range(2):  # a remembered token, and one that is checked
            writer.write(proxy.request())
            reply = await read_reply(reader)
            assert (reply.status, reply.json()["error"]["code"]) == (403, "emergencyStop")
        stop(proxy, NOTHING_STOPPED)
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        writer.close()
        assert len(proxy.upstream.heads) == 2
        report = [(event["status"], event["verdict"], event["reason"]) for event in proxy.events()]
    refused = (403, "block", "stopped")
    assert report == [(200, "allow", "default"), refused, refused, (200, "allow", "default")]


@pytest.mark.parametrize("stops", OF_ALL_KINDS)
async def test_who_has_the_secret_is_told_why_there_is_no_token(tmp_path: Path, stops: Stops) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        assert (await proxy.ask(token_request())).status == 200
        stop(proxy, stops)
        refused = await proxy.ask(token_request())
        assert (refused.status, refused.json()["error"]) == (403, "emergency_stop")
        assert refused.value("Cache-Control") == "no-store"
        # A stop is revealed only to the application that it concerns.
        wrong = await proxy.ask(token_request("wrong"))
        assert (wrong.status, wrong.json()["error"]) == (401, "invalid_client")
        report = [(event["status"], event["reason"]) for event in proxy.events()]
    assert report == [(200, "tokenIssued"), (403, "stopped"), (401, "tokenRefused")]


@pytest.mark.parametrize("stops", [Stops(orgs=frozenset(("org-2",))), Stops(apps=frozenset(("app-2",)))])
async def test_others_are_served_on(tmp_path: Path, stops: Stops) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        stop(proxy, stops)
        assert (await proxy.ask(proxy.request())).status == 200
        assert (await proxy.ask(token_request())).status == 200


async def test_a_stop_goes_before_what_else_is_wrong_with_a_token_of_ours(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        book = proxy.context.rulebook
        revoked = replace(book.callers[CLIENT_ID], secret_version=2)
        proxy.context.use(replace(book, callers={CLIENT_ID: revoked}, stops=Stops(everything=True)))
        assert (await proxy.ask(proxy.request())).status == 403
        # A token of another issuer is refused as usual.
        assert (await proxy.ask(proxy.request().replace(b"Bearer ey", b"Bearer ez"))).status == 401


async def test_a_request_that_waits_for_its_response_is_refused_at_once(tmp_path: Path) -> None:
    came = asyncio.Event()

    async def silent(peer: UpstreamPeer) -> None:
        await peer.head()
        came.set()
        await peer.reader.read()  # until the proxy closes the connection

    async with data_path(silent, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await came.wait()
        stop(proxy, Stops(everything=True))
        reply = await read_reply(reader)
        assert (reply.status, reply.json()["error"]["code"]) == (403, "emergencyStop")
        writer.close()
        (event,) = proxy.events()
    assert (event["status"], event["reason"], event["verdict"]) == (403, "stopped", "block")


async def test_a_response_that_has_begun_is_cut(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def endless(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await peer.reader.read()
        gone.set()

    async with data_path(endless, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await reader.readuntil(b"abc\r\n")
        stop(proxy, Stops(apps=frozenset(("app-1",))))
        assert b"0\r\n\r\n" not in await reader.read()  # a client cannot take it for a whole response
        await gone.wait()
        writer.close()
        (event,) = proxy.events()
    assert (event["status"], event["reason"], event["verdict"]) == (200, "stopped", "allow")


async def test_a_body_on_its_way_up_is_cut_too(tmp_path: Path) -> None:
    came = asyncio.Event()

    async def taking(peer: UpstreamPeer) -> None:
        await peer.head()
        came.set()
        await peer.reader.read()

    async with data_path(taking, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(method="PUT", fields=b"Content-Length: 10000000\r\n", body=b"x" * 100_000))
        await came.wait()
        stop(proxy, Stops(everything=True))
        assert (await read_reply(reader)).status == 403
        writer.close()
