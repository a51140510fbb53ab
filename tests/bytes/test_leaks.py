"""Tests that a hidden property never reaches the application.

Properties that the rules do not hide reach the client unchanged.

The tests hide each property of each published Graph response in turn. The tests replace the value of the
hidden property with a canary, which is a recognisable text. No byte of the canary may reach the client in any
form of the upstream response.
"""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brotli
import pytest

from tests.bytes.data_path import DataPath, Reply, UpstreamPeer, data_path, ok, read_reply, responding
from tests.fakes.examples import Example, examples

CANARY = "c4n4ry-81f5"
RESPONDED = [each for each in examples() if 200 <= each.status < 300]


def rules(transforms: str, *paths: str) -> str:
    quoted = ", ".join(f'"{path}"' for path in paths or ("/v1.0/**",))
    return f"""
version: 1
name: leaks
default: allow
rules:
  - id: hide
    match: {{path: [{quoted}]}}
    verdict: filter
    transforms: {{{transforms}}}
"""


class Responses:
    """A fake upstream that responds to every request with the last response that the test has set."""

    def __init__(self) -> None:
        self.response = b""
        self.requests = 0

    async def script(self, peer: UpstreamPeer) -> None:
        while True:
            head = await peer.head()
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length: "):
                    await peer.body(int(line[16:]))
            self.requests += 1
            peer.send(self.response)


class Client:
    """A client connection that stays open, and that the client reopens if the proxy has closed it."""

    def __init__(self, proxy: DataPath, upstream: Responses) -> None:
        self._proxy = proxy
        self._upstream = upstream
        self._streams: Any = None

    async def ask(
        self, response: bytes, target: str, method: str = "GET", fields: bytes = b"", body: bytes = b""
    ) -> Reply:
        self._upstream.response = response
        if self._streams is None:
            self._streams = await self._proxy.connect()
        reader, writer = self._streams
        writer.write(self._proxy.request(target, method, fields, body))
        reply = await read_reply(reader, to_head=method == "HEAD")
        while reply.status < 200:
            reply = await read_reply(reader, to_head=method == "HEAD")
        if reply.value("connection") == "close":
            self.close()
        if self._proxy.context.spool.needs_maintenance:
            self._proxy.context.spool.maintain()  # the worker does this about once a second
        return reply

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def properties(example: Example) -> list[str]:
    """Return the property names of a response's items, or of the response itself if it has no items."""
    document = json.loads(example.response_body)
    items = document["value"] if isinstance(document.get("value"), list) else [document]
    names = {name: None for item in items if isinstance(item, dict) for name in item}
    return [name for name in names if "@" not in name and "." not in name]


def with_canary(example: Example, name: str) -> tuple[Any, Any]:
    """Return the response with the canary in the named property, and the response without that property."""
    document = json.loads(example.response_body)
    left = copy.deepcopy(document)
    for whole, rest in zip(_items(document), _items(left), strict=True):
        if name in whole:
            whole[name] = _canary_like(whole[name])
            whole[f"{name}@odata.type"] = f"#{CANARY}"
        for key in (name, f"{name}@odata.type"):
            rest.pop(key, None)
        for key in [key for key in rest if key.startswith(f"{name}@")]:
            del rest[key]
    return document, left


def _items(document: Any) -> list[dict[str, Any]]:
    if isinstance(document.get("value"), list):
        return [item for item in document["value"] if isinstance(item, dict)]
    return [document]


def _canary_like(value: Any) -> Any:
    if isinstance(value, dict):
        return {"a": {"b": CANARY}, CANARY: 1}
    return [CANARY, {"a": CANARY}] if isinstance(value, list) else CANARY


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def published(example: Example, body: bytes, *fields: bytes, status: int | None = None) -> bytes:
    lines = [f"{name}: {value}".encode() for name, value in example.response_headers]
    if not any(line.lower().startswith(b"content-type:") for line in lines):
        lines.append(b"Content-Type: application/json")
    head = b"\r\n".join([b"HTTP/1.1 %d OK" % (status or example.status), *lines, *fields])
    return head + b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + framed + b"0\r\n\r\n"


def no_canary(reply: Reply) -> None:
    seen = reply.head + reply.body
    for unpacked in (seen, *_unpacked(reply.body)):
        assert CANARY.encode() not in unpacked


def _unpacked(body: bytes) -> Iterator[bytes]:
    for unpack in (gzip.decompress, zlib.decompress, brotli.decompress):
        try:
            yield unpack(body)
        except (OSError, EOFError, zlib.error, brotli.error):
            continue


BATCH = json.dumps({"requests": [{"id": "1", "method": "GET", "url": "/things/1"}]}).encode()
BATCH_FIELDS = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(BATCH)


@pytest.mark.parametrize("example", RESPONDED, ids=[each.id for each in RESPONDED])
async def test_each_property_of_each_published_response_can_be_hidden(
    tmp_path: Path, example: Example
) -> None:
    upstream = Responses()
    async with data_path(upstream.script, tmp_path, rewrite_links=False) as proxy:
        client = Client(proxy, upstream)
        for slot, name in enumerate(properties(example)):
            everywhere = slot % 2 == 0
            proxy.use(
                rules(f"strip_properties: [{name if slot % 3 else name.upper()}]")
                if everywhere
                else rules(f"strip_properties: [{name}]", "/v1.0/things", "/v1.0/things/{id}")
            )
            document, left = with_canary(example, name)
            body = json.dumps(document, ensure_ascii=slot % 5 == 0).encode()
            target = example.target if everywhere and example.method == "GET" else "/v1.0/things/1"
            if name.lower() in target.lower():
                target = "/v1.0/things/1"
            for response in (
                published(example, body),
                published(example, gzip.compress(body, 1), b"Content-Encoding: gzip"),
                published(example, zlib.compress(body), b"Content-Encoding: deflate"),
                published(example, raw_deflate(body), b"Content-Encoding: deflate"),
                published(example, brotli.compress(body, quality=1), b"Content-Encoding: br"),
                chunked(body, 700),
            ):
                reply = await client.ask(response, target)
                no_canary(reply)
                assert reply.status // 100 == 2
                assert reply.json() == left
            part = {
                "id": "1",
                "status": 200,
                "headers": {"Content-Type": "application/json"},
                "body": document,
            }
            reply = await client.ask(
                ok(json.dumps({"responses": [part]}).encode()), "/v1.0/$batch", "POST", BATCH_FIELDS, BATCH
            )
            no_canary(reply)
            assert reply.json()["responses"][0]["body"] == left
            reply = await client.ask(
                published(example, b"").replace(b"Length: 0", b"Length: 77"), target, "HEAD"
            )
            assert reply.value("content-length") is None
            before = upstream.requests
            for own in (
                name,
                f"{name}/$value",
                name.upper(),
                f"%{ord(name[0]):02x}{name[1:]}",
                f"{name}/$count",
                f"/{name}",
            ):
                for suffix in ("", "?$top=1"):
                    reply = await client.ask(ok(body), f"/v1.0/things/1/{own}{suffix}")
                    assert reply.status == 403
                    no_canary(reply)
            assert upstream.requests == before
        client.close()


@pytest.mark.parametrize("example", RESPONDED[::3], ids=[each.id for each in RESPONDED[::3]])
async def test_what_an_allow_list_leaves_out_does_not_arrive_either(tmp_path: Path, example: Example) -> None:
    upstream = Responses()
    async with data_path(upstream.script, tmp_path, rewrite_links=False) as proxy:
        client = Client(proxy, upstream)
        names = properties(example)
        for name in names:
            others = [each for each in names if each != name]
            if not others:
                continue
            proxy.use(rules(f"allow_properties: [{', '.join(others)}]", "/v1.0/things", "/v1.0/things/{id}"))
            document, _ = with_canary(example, name)
            reply = await client.ask(ok(json.dumps(document).encode()), "/v1.0/things/1")
            no_canary(reply)
            assert reply.status == 200
            assert set(others) >= {each for item in _items(reply.json()) for each in item if "@" not in each}
        client.close()


@pytest.mark.parametrize("example", RESPONDED[::6], ids=[each.id for each in RESPONDED[::6]])
async def test_a_property_of_what_is_expanded_can_be_hidden_by_its_path(
    tmp_path: Path, example: Example
) -> None:
    upstream = Responses()
    async with data_path(upstream.script, tmp_path) as proxy:
        client = Client(proxy, upstream)
        for name in properties(example):
            proxy.use(rules(f"strip_properties: [things.{name}, things.parts.{name}]", "/v1.0/boxes/{id}"))
            document, left = with_canary(example, name)
            for whole, rest in zip(_items(document), _items(left), strict=True):
                body = {"id": "b", "things": [whole, {"parts": [whole]}], "things@odata.count": 2}
                reply = await client.ask(ok(json.dumps(body).encode()), "/v1.0/boxes/1?$expand=things")
                no_canary(reply)
                assert reply.json() == {
                    "id": "b",
                    "things": [rest, {"parts": [rest]}],
                    "things@odata.count": 2,
                }
        client.close()


# Responses in forms that a filter cannot handle safely


PLAIN = json.dumps({"id": "1", "secret": CANARY, "name": "x"}).encode()
LIST = json.dumps({"value": [{"id": "1", "secret": CANARY}]}).encode()


def _whole(
    body: bytes, *fields: bytes, status: bytes = b"200 OK", content_type: bytes = b"application/json"
) -> bytes:
    lines = b"".join(each + b"\r\n" for each in (b"Content-Type: " + content_type, *fields))
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)


def _hostile() -> Iterator[tuple[str, bytes]]:
    for content_type in (
        b"text/plain",
        b"text/html",
        b"application/xml",
        b"application/octet-stream",
        b"",
        b"image/png",
        b"multipart/mixed; boundary=x",
        b"application/x-ndjson",
        b"application/jsonx",
        b"json",
    ):
        yield f"type {content_type!r}", _whole(PLAIN, content_type=content_type)
    yield "no type", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(PLAIN), PLAIN)
    for coding in (
        b"zstd",
        b"compress",
        b"x",
        b"gzip, zstd",
        b"gzip;q=1",
        b"\xff",
        b"gzip gzip",
        b"br, br, br, br",
        b"aes128gcm",
        b"gzip",
    ):
        yield f"coding {coding!r}", _whole(PLAIN, b"Content-Encoding: " + coding)
    packed = gzip.compress(PLAIN, 1)
    yield "gzip cut", _whole(packed[:-9], b"Content-Encoding: gzip")
    yield "gzip with a wrong checksum", _whole(packed[:-8] + b"\x00" * 8, b"Content-Encoding: gzip")
    yield "gzip and more", _whole(packed + PLAIN, b"Content-Encoding: gzip")
    yield "gzip and zeros", _whole(packed + b"\x00" * 8, b"Content-Encoding: gzip")
    yield "deflate and more", _whole(zlib.compress(PLAIN) + PLAIN, b"Content-Encoding: deflate")
    yield "br and more", _whole(brotli.compress(PLAIN) + PLAIN, b"Content-Encoding: br")
    yield "br cut", _whole(brotli.compress(PLAIN)[:-2], b"Content-Encoding: br")
    yield "packed and not said", _whole(packed)
    yield "packed twice and said once", _whole(gzip.compress(packed), b"Content-Encoding: gzip")
    yield (
        "a bomb",
        _whole(gzip.compress(PLAIN[:-1] + b',"a":"' + b"0" * 5_000_000 + b'"}'), b"Content-Encoding: gzip"),
    )
    bomb = gzip.compress(gzip.compress(b"0" * 50_000_000))
    yield "a bomb in a bomb", _whole(bomb, b"Content-Encoding: gzip, gzip")
    yield "over the limit", _whole(PLAIN[:-1] + b',"a":"' + b"0" * 2_000_000 + b'"}')
    for name, body in (
        ("cut", PLAIN[:-1]),
        ("cut within", PLAIN[:-12]),
        ("and more", PLAIN + b"x"),
        ("twice", PLAIN + PLAIN),
        ("lines", PLAIN + b"\n" + PLAIN),
        ("UTF-16", PLAIN.decode().encode("utf-16")),
        ("UTF-16 BE", PLAIN.decode().encode("utf-16-be")),
        ("UTF-32", PLAIN.decode().encode("utf-32")),
        ("not UTF-8", PLAIN[:-1] + b',"x":"\xff"}'),
        ("NaN", PLAIN[:-1] + b',"x":NaN}'),
        ("comment", b"/* x */" + PLAIN),
        ("single quotes", PLAIN.replace(b'"', b"'")),
        ("trailing comma", PLAIN[:-1] + b",}"),
        ("array", b"[" + PLAIN + b"]"),
        ("string", json.dumps(CANARY).encode()),
        ("number in value", b'{"value":"%b"}' % CANARY.encode()),
        ("list of strings", b'{"value":["%b"]}' % CANARY.encode()),
        ("list in list", b'{"value":[["%b"]]}' % CANARY.encode()),
        ("two values", b'{"value":[],"value":[{"secret":"%b"}]}' % CANARY.encode()),
        ("value in another case", b'{"Value":["%b"],"value":[]}' % CANARY.encode()),
        ("deep", b'{"a":' * 5000 + PLAIN + b"}" * 5000),
        ("deep list", b'{"x":' + b"[" * 5000 + b"]" * 5000 + b',"secret":"%b"}' % CANARY.encode()),
        ("control character", PLAIN[:-1] + b',"x":"\x01"}'),
        ("XSSI guard", b")]}',\n" + PLAIN),
        ("overlong", PLAIN.replace(b"secret", b"s\xc1\xa5cret")),
        ("empty name", PLAIN.replace(b'"secret"', b"secret")),
        ("NUL before", b"\x00" + PLAIN),
        ("NUL after", PLAIN + b"\x00"),
    ):
        yield name, _whole(body)
    partial = b"206 Partial Content"
    yield "partial", _whole(PLAIN, b"Content-Range: bytes 0-50/51", status=partial)
    ranges = b"--x\r\n\r\n" + PLAIN + b"\r\n--x--"
    yield "byte ranges", _whole(ranges, status=partial, content_type=b"multipart/byteranges; boundary=x")
    short = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 25\r\n\r\n"
    yield "length too small", short + PLAIN
    yield "chunk broken", chunked(PLAIN, 9)[:-5] + b"zz\r\n"
    yield (
        "interim responses before",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + _whole(PLAIN[:-1]),
    )


HOSTILE = list(_hostile())


@pytest.mark.parametrize(("name", "response"), HOSTILE, ids=[name for name, _ in HOSTILE])
async def test_what_cannot_be_filtered_is_502_and_never_the_original(
    tmp_path: Path, name: str, response: bytes
) -> None:
    upstream = Responses()
    async with data_path(
        upstream.script, tmp_path, rules("strip_properties: [secret]", "/v1.0/things/{id}")
    ) as proxy:
        for fields in (
            b"Connection: close\r\n",
            b"Connection: close\r\nRange: bytes=0-50\r\nAccept-Encoding: *\r\n",
        ):
            upstream.response = response
            text = await proxy.raw(proxy.request("/v1.0/things/1", fields=fields))
            assert b"HTTP/1.1 502 " in text
            assert CANARY.encode() not in text
            assert CANARY[:6].encode() not in text
        assert {each["status"] for each in proxy.events()} == {502}


SPELLINGS = [
    b'"secret"',
    b'"SECRET"',
    b'"Secret"',
    b'"\\u0073ecret"',
    b'"secre\\u0074"',
    b'"\\u0053\\u0045\\u0043\\u0052\\u0045\\u0054"',
    b'"\\u0073\\u0065\\u0063\\u0072\\u0065\\u0074"',
    b'"secret" ',
    b'"secret"\t',
    b'\n"secret"\r\n',
    b'"secret@odata.type"',
    b'"secret@odata.mediaReadLink"',
    b'"SECRET@x"',
    b'"secret@"',
    b'"\\u0073ecret@x.y"',
    b'"secret\\u0040x"',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_however_a_name_is_spelled_it_is_the_hidden_one(tmp_path: Path, spelling: bytes) -> None:
    upstream = Responses()
    async with data_path(upstream.script, tmp_path, rules("strip_properties: [secret]")) as proxy:
        client = Client(proxy, upstream)
        member = spelling + b':{"x":["' + CANARY.encode() + b'"]}'
        for item in (
            b"{%b}",
            b'{"a":1,%b}',
            b'{%b,"a":1}',
            b'{"a":1,%b,"b":2}',
            b'{%b,"a":1,%b}',
            b'{"b":[{}],%b,"a":"secret"}',
        ):
            item = item.replace(b"%b", member)
            for body in (item, b'{"value":[%b]}' % item, b'{"value":[{"a":1},%b,{}]}' % item):
                reply = await client.ask(ok(body), "/v1.0/things")
                assert reply.status == 200
                no_canary(reply)
                json.loads(reply.body)
        client.close()


@pytest.mark.parametrize(
    "status", [b"200 OK", b"201 Created", b"202 Accepted", b"203 X", b"205 X", b"207 X", b"226 X", b"299 X"]
)
async def test_every_successful_status_is_filtered(tmp_path: Path, status: bytes) -> None:
    upstream = Responses()
    async with data_path(upstream.script, tmp_path, rules("strip_properties: [secret]")) as proxy:
        client = Client(proxy, upstream)
        reply = await client.ask(
            _whole(PLAIN, status=status),
            "/v1.0/things/1",
            fields=b"Prefer: return=minimal\r\nIf-Match: *\r\n",
        )
        assert (reply.status, reply.json()) == (int(status[:3]), {"id": "1", "name": "x"})
        part = {"id": "1", "status": 200, "headers": {}, "body": json.loads(PLAIN)}
        batch = json.dumps({"responses": [part]}).encode()
        reply = await client.ask(_whole(batch, status=status), "/v1.0/$batch", "POST", BATCH_FIELDS, BATCH)
        no_canary(reply)
        assert reply.json()["responses"][0]["body"] == {"id": "1", "name": "x"}
        client.close()


@pytest.mark.parametrize(
    "response",
    [
        _whole(b'{"responses":[{"id":"1","status":200,"body":%b}]}' % PLAIN, status=b"206 Partial Content"),
        _whole(b'{"responses":[{"id":"1","status":206,"body":"%b"}]}' % CANARY.encode()),
        _whole(b'{"responses":[{"id":"1","status":200,"body":"%b"}]}' % CANARY.encode()),
        _whole(b'{"responses":[{"id":"1","status":200,"body":["%b"]}]}' % CANARY.encode()),
        _whole(b'{"responses":[{"id":"2","status":200,"body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"id":"1","status":404,"status":200,"body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"id":"1","Status":404,"status":200,"body":{},"Body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"id":"1","status":200,"body":{},"body":%b}]}' % PLAIN),
        _whole(b'{"responses":[],"responses":[{"id":"1","status":200,"body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"id":"1","status":"404","body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"id":"1","status":200.0,"body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"id":"1","body":%b}]}' % PLAIN),
        _whole(b'{"responses":[{"status":200,"body":%b}]}' % PLAIN),
        _whole(b'{"value":%b}' % PLAIN),
        _whole(PLAIN),
        _whole(b"[" + PLAIN + b"]"),
        _whole(PLAIN, content_type=b"text/plain"),
        _whole(b"--x\r\n\r\n" + PLAIN, content_type=b"multipart/mixed; boundary=x"),
        _whole(gzip.compress(b'{"responses":[{"id":"1","status":200,"body":%b}]}' % PLAIN)),
    ],
)
async def test_a_batch_whose_response_cannot_be_read_passes_nothing(tmp_path: Path, response: bytes) -> None:
    upstream = Responses()
    async with data_path(upstream.script, tmp_path, rules("strip_properties: [secret]")) as proxy:
        client = Client(proxy, upstream)
        reply = await client.ask(response, "/v1.0/$batch", "POST", BATCH_FIELDS, BATCH)
        no_canary(reply)
        assert reply.status == 502 or {each["status"] for each in reply.json()["responses"]} <= {502}
        client.close()


# Properties that are not hidden


VALUES = [
    "0",
    "-0",
    "-0.0",
    "0e1",
    "0e+1",
    "0E-1",
    "1E400",
    "-1e-400",
    "1.0",
    "1.10",
    "100",
    "1e2",
    "1E+2",
    "1e-2",
    "123456789012345678901234567890",
    "0.1000000000000000055511151231257827021181583404541015625",
    "9007199254740993",
    "-9223372036854775809",
    "18446744073709551616",
    "1" * 5000,
    "0." + "0" * 1000 + "1",
    "true",
    "false",
    "null",
    '""',
    '" "',
    '"a\\u0000b"',
    '"\\u00e9"',
    '"é"',
    '"\\u00E9"',
    '"\\/"',
    '"/"',
    '"\\ud83d\\ude00"',
    '"😀"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\b\\f\\n\\r\\t\\"\\\\"',
    '"\u2028\u2029"',
    '"\x7f"',
    '"\\u007f"',
    '"<>&\'"',
    '"\\u003c"',
    "[]",
    "[ ]",
    "[\n]",
    "{}",
    "{ }",
    '{"a":1,"a":2}',
    '{"":0}',
    '{"b":1,"a":2}',
    "[1,2 ,3]",
    "[[[[[[]]]]]]",
    '{"a":{"a":{"a":{}}}}',
    '{"\\u0061":1}',
    '{"hidde":1}',
    '{"hiddenx":1}',
    '{"hidden":1}',
    '"hidden"',
    '["hidden"]',
    '"\\"hidden\\":1"',
    '"\u00e4\u0308"',
    '"\ufeff"',
    '"\\u0068idden"',
    '{"value":[{"a":1}]}',
    '"@odata.nextLink"',
    '"https://graph.microsoft.com/v1.0/users?$skip=1"',
    '"' + "x" * 70000 + '"',
]


async def test_every_value_arrives_with_its_own_bytes_through_a_filter_and_through_none(
    tmp_path: Path,
) -> None:
    upstream = Responses()
    async with data_path(
        upstream.script, tmp_path, rules("strip_properties: [hidden]", "/v1.0/filtered")
    ) as proxy:
        client = Client(proxy, upstream)
        for text in VALUES:
            value = text.encode("utf-8", "surrogatepass")
            for body in (value, b' {"a" : %b ,\r\n\t"b":[%b] }\n' % (value, value), b"\n%b " % value):
                reply = await client.ask(ok(body), "/v1.0/free")
                assert reply.body == body
            for space in (b"", b" ", b"\r\n\t"):
                kept = b'"a"%b:%b%b' % (space, space, value)
                hidden = b'"hidden"%b:%b%b' % (space, space, value)
                for before, after in (
                    (b"{%b,%b}" % (hidden, kept), b"{%b}" % kept),
                    (b"{%b,%b}" % (kept, hidden), b"{%b}" % kept),
                    (b"{%b,%b,%b}" % (kept, hidden, kept), b"{%b,%b}" % (kept, kept)),
                    (b"{%b}" % kept, b"{%b}" % kept),
                    (b'{"value":[{%b,%b}]}' % (hidden, kept), b'{"value":[{%b}]}' % kept),
                ):
                    reply = await client.ask(ok(before), "/v1.0/filtered")
                    assert reply.status == 200, (before, reply)
                    assert reply.body == after
        client.close()


@pytest.mark.parametrize("example", RESPONDED, ids=[each.id for each in RESPONDED])
async def test_published_responses_arrive_byte_for_byte(tmp_path: Path, example: Example) -> None:
    response = published(
        example, example.response_body.replace(b"https://graph.microsoft.com", b"https://graph.example")
    )
    async with data_path(responding(response), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request(example.target, "GET" if example.method == "GET" else "DELETE"))
        assert reply.head + reply.body == response


@pytest.mark.parametrize("example", examples(), ids=[each.id for each in examples()])
async def test_published_requests_arrive_byte_for_byte(tmp_path: Path, example: Example) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await peer.body(len(example.request_body))
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path) as proxy:
        sent = [
            (name, value)
            for name, value in example.request_headers
            if name.lower() not in ("authorization", "host")
        ]
        fields = "".join(f"{name}: {value}\r\n" for name, value in sent).encode()
        fields += b"Content-Length: %d\r\n" % len(example.request_body)
        request = proxy.request(example.target, example.method, fields, example.request_body)
        assert (await proxy.ask(request)).status == 200
        sent_lines = request.split(b"\r\n", 3)  # request line, Host, Authorization, and the rest
        received = bytes(proxy.upstream.received[0]).split(b"\r\n", 3)
        assert (received[0], received[3]) == (sent_lines[0], sent_lines[3])
