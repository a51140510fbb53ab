"""Tests of links in responses: media types, the Link header, and links that lead past the proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.ipc.counters import FOREIGN_LINKS
from tests.bytes.data_path import Script, UpstreamPeer, data_path


def responding_with(kind: bytes, body: bytes, fields: bytes = b"") -> Script:
    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        host = head.partition(b"Host: ")[2].partition(b"\r\n")[0]
        sent, lines = body.replace(b"HOST", host), fields.replace(b"HOST", host)
        peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n%b"
            % (kind, lines, len(sent), sent)
        )

    return script


@pytest.mark.parametrize(
    "kind",
    [
        b"application/json",
        b"text/json; charset=utf-8",
        b"application/json;odata=minimalmetadata",
        b"application/vnd.contoso+json",
    ],
)
@pytest.mark.parametrize("name", [b"@odata.nextLink", b"odata.nextLink", b"@nextLink"])
async def test_a_next_link_leads_back_whatever_json_it_stands_in(
    tmp_path: Path, kind: bytes, name: bytes
) -> None:
    body = b'{"value":[],"%b":"HTTP://HOST/v1.0/users?x"}' % name
    link = b'Link: <http://HOST/v1.0/users?x>; rel="next"\r\n'
    async with data_path(responding_with(kind, body, link), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.body == b'{"value":[],"%b":"http://proxy.example/v1.0/users?x"}' % name
        assert reply.value("link") == '<http://proxy.example/v1.0/users?x>; rel="next"'
        assert proxy.context.counters.values[FOREIGN_LINKS] == 0


async def test_a_link_without_a_relation_stays(tmp_path: Path) -> None:
    link = b'Link: <http://HOST/v1.0/k>, <http://HOST/v1.0/n>; title="x"; rel=next, <http://HOST/v1.0/m>\r\n'
    async with data_path(responding_with(b"text/plain", b"x", link), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        graph = f"http://127.0.0.1:{proxy.upstream.port}"
        assert reply.value("link") == (
            f'<{graph}/v1.0/k>, <http://proxy.example/v1.0/n>; title="x"; rel=next, <{graph}/v1.0/m>'
        )


async def test_a_next_link_to_another_host_stays_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"value":[],"@odata.nextLink":"https://us.graph.example/v1.0/users?x"}'
    async with data_path(responding_with(b"application/json", body), tmp_path) as proxy:
        for _ in range(2):
            assert (await proxy.ask(proxy.request())).body == body
        assert proxy.context.counters.values[FOREIGN_LINKS] == 2
        report = [each for each in caplog.messages if "us.graph.example" in each]
        assert len(report) == 1
        assert "Upstream.OtherBaseUrls" in report[0]
