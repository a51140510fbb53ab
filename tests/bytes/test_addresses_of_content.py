"""Tests of file metadata over sockets: the proxy removes addresses of blocked content and never logs them."""

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.bytes.data_path import UpstreamPeer, data_path

RULES = """
version: 1
name: test
default: allow
rules:
  - {id: content, match: {path: ["/v1.0/drives/{d}/items/{i}/content"]}, verdict: block}
"""
ADDRESS = "https://files.example/x?tempauth=SECRET"
ITEM = {"id": "i", "@microsoft.graph.downloadUrl": ADDRESS, "@content.downloadUrl": ADDRESS, "size": 1}
BARE = {"id": "i", "size": 1}
SPELLED = [
    json.dumps(ITEM).encode(),
    json.dumps(ITEM).replace("@", "\\u0040").encode(),
    json.dumps(ITEM).replace("downloadUrl", "DownloadURL").encode(),
    json.dumps(ITEM, indent=2).encode(),
    json.dumps({**ITEM, "children": [ITEM], "remoteItem": ITEM}).encode(),
    b'{"@content.downloadUrl":"SECRET","id":"i","@content.downloadUrl":["SECRET"],"size":1}',
]


def responding(
    content: bytes, content_type: bytes = b"application/json", status: int = 200, field: bytes = b""
) -> Callable[[UpstreamPeer], Awaitable[None]]:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n"
        peer.send(head % (status, content_type, len(content), field) + content)

    return script


@pytest.mark.parametrize("content", SPELLED)
@pytest.mark.parametrize(
    "path", ["/v1.0/drives/d/items/i", "/v1.0/drives/d/root", "/v1.0/shares/u!x/driveItem"]
)
async def test_no_spelling_of_an_address_reaches_the_client(
    tmp_path: Path, content: bytes, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with data_path(responding(content), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(path))
        assert reply.status == 200
        assert b"SECRET" not in reply.body
        assert {"id", "size"} <= reply.json().keys()
        [event] = proxy.events()
        assert (event["verdict"], event["ruleId"], event["reason"]) == ("filter", "content", "impliedRequest")
        assert event["impliedRequest"].endswith("/content")
        assert "strip:@content.downloadUrl" in event["transforms"]
        assert "SECRET" not in json.dumps(event) + caplog.text


async def test_an_address_by_its_own_path_is_blocked(tmp_path: Path) -> None:
    async with data_path(responding(b'{"@odata.context":"c","value":"SECRET"}'), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/drives/d/items/i/thumbnails/0/large/url"))
        assert (reply.status, reply.json()["error"]["code"]) == (403, "policyBlocked")
        [event] = proxy.events()
        assert (event["ruleId"], event["reason"]) == ("content", "hiddenProperty")


@pytest.mark.parametrize("path", ["/url", "/url/$value"])
async def test_an_address_as_plain_text_is_withheld(tmp_path: Path, path: str) -> None:
    async with data_path(responding(b"https://x/?SECRET", b"text/plain"), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(f"/v1.0/drives/d/items/i/thumbnails/0/large{path}"))
        assert reply.status in (403, 502)
        assert b"SECRET" not in reply.body


async def test_metadata_that_cannot_be_read_is_withheld(tmp_path: Path) -> None:
    async with data_path(responding(b'{"@content.downloadUrl":"SECRET"'), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/drives/d/items/i"))
        assert (reply.status, reply.json()["error"]["code"]) == (502, "filterFailed")
        assert b"SECRET" not in reply.body


async def test_a_redirect_of_metadata_elsewhere_is_withheld(tmp_path: Path) -> None:
    script = responding(b"", status=302, field=b"Location: %b\r\n" % ADDRESS.encode())
    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/drives/d/items/i"))
        assert (reply.status, reply.value("location")) == (502, None)
        [event] = proxy.events()
        assert event["redirect"] == "files.example"
        assert "SECRET" not in json.dumps(event)


async def test_the_parts_of_a_batch_have_no_addresses_either(tmp_path: Path) -> None:
    responses = [{"id": name, "status": 200, "body": ITEM} for name in ("1", "2")]
    script = responding(json.dumps({"responses": responses}).encode())
    parts = [
        {"id": "1", "method": "GET", "url": "/drives/d/items/i"},
        {"id": "2", "method": "GET", "url": "/users/u"},
    ]
    body = json.dumps({"requests": parts}).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert [each["body"] for each in reply.json()["responses"]] == [BARE, ITEM]
        assert "SECRET" not in json.dumps(proxy.events())


@pytest.mark.parametrize("path", ["/v1.0/drives/d", "/v1.0/users/u", "/v1.0/me/drive/items/i"])
async def test_other_metadata_passes_byte_for_byte(tmp_path: Path, path: str) -> None:
    content = SPELLED[1]
    async with data_path(responding(content), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(path))
        assert reply.body == content
        [event] = proxy.events()
        assert (event["verdict"], event["reason"]) == ("allow", "default")
