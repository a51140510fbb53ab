"""Tests of upstream connections: the states after which a connection serves another request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.bytes.data_path import (
    asking,
    ok,
    read_reply,
    until,
)
from tests.patience import PATIENCE_SECONDS

CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
BEGINNING: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"


UPLOAD: Final = ("/v1.0/upload", "POST", CHUNKED, b"1\r\nx\r\n")


async def test_a_request_and_its_response_on_a_connection(tmp_path: Path) -> None:
    async with asking(tmp_path) as (proxy, reader, upstream):
        assert repr(upstream) == "<UpstreamConnection open request=done response=awaited>"
        for piece, state in [(BEGINNING[:9], "head"), (BEGINNING[9:], "body"), (b"llo", "ended")]:
            upstream.data_received(piece)
            proxy.context.iteration.end()
            assert repr(upstream) == f"<UpstreamConnection open request=done response={state}>"
        assert (await read_reply(reader)).body == b"hello"
        assert upstream.reusable
        # The next request waits for the end of the loop iteration.
        (client,) = proxy.connections
        client.data_received(proxy.request())
        proxy.context.iteration.take()
        assert repr(upstream) == "<UpstreamConnection open request=queued response=awaited>"
        assert not upstream.reusable
        proxy.context.iteration.send()
        assert repr(upstream) == "<UpstreamConnection open request=done response=awaited>"


async def test_a_connection_tells_how_it_ended(tmp_path: Path) -> None:
    async with asking(tmp_path) as (proxy, reader, upstream):
        upstream.data_received(b"HTTP/1.1 200 OK\r\n\r\nhello")
        proxy.context.iteration.end()
        assert not upstream.eof_received()
        assert repr(upstream) == "<UpstreamConnection half-closed request=done response=body>"
        upstream.transport.close()
        await until(lambda: upstream.closed)
        assert repr(upstream) == "<UpstreamConnection closed request=idle response=ended>"
        assert (await read_reply(reader)).body == b"hello"
        assert not upstream.reusable


@pytest.mark.parametrize("split", [0, 9, len(BEGINNING)])
async def test_a_response_that_begins_before_the_requests_end_is_the_connections_last(
    tmp_path: Path, split: int
) -> None:
    """The proxy cannot determine at which byte the upstream stopped reading the request (RFC 9112 §9.3)."""
    async with asking(tmp_path, *UPLOAD) as (proxy, reader, upstream):
        assert repr(upstream) == "<UpstreamConnection open request=body response=awaited>"
        upstream.data_received(BEGINNING[:split] or BEGINNING)
        if split:  # otherwise it is read in the same loop iteration as the request's end
            proxy.context.iteration.end()
        (client,) = proxy.connections
        client.data_received(b"0\r\n\r\n")
        assert "request=late" in repr(upstream)
        if split:
            upstream.data_received(BEGINNING[split:] + b"llo")
        else:
            upstream.data_received(b"llo")
        assert (await read_reply(reader)).body == b"hello"
        assert "response=ended" in repr(upstream)
        assert not upstream.reusable
        await until(lambda: upstream.closed)


@pytest.mark.parametrize("informational", [b"100 Continue", b"103 Early Hints"])
async def test_an_informational_response_to_a_request_under_way_is_not_early(
    tmp_path: Path, informational: bytes
) -> None:
    async with asking(tmp_path, *UPLOAD) as (proxy, reader, upstream):
        upstream.data_received(b"HTTP/1.1 %b\r\n\r\n" % informational)
        proxy.context.iteration.end()
        assert repr(upstream) == "<UpstreamConnection open request=body response=awaited>"
        (client,) = proxy.connections
        client.data_received(b"0\r\n\r\n")
        assert repr(upstream) == "<UpstreamConnection open request=done response=awaited>"
        upstream.data_received(ok(b"{}"))
        proxy.context.iteration.end()
        assert upstream.reusable
        assert (await read_reply(reader)).status == int(informational[:3])
        assert (await read_reply(reader)).json() == {}


async def test_a_response_that_ends_before_the_request_is_the_connections_last(tmp_path: Path) -> None:
    async with asking(tmp_path, *UPLOAD) as (proxy, reader, upstream):
        upstream.data_received(ok(b"{}"))
        proxy.context.iteration.end()
        assert repr(upstream) == "<UpstreamConnection open request=body response=ended>"
        assert not upstream.reusable
        assert (await read_reply(reader)).json() == {}
        await asyncio.wait_for(until(lambda: upstream.closed), PATIENCE_SECONDS)
