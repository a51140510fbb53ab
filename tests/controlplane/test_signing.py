"""Tests of every specified statement about the signatures of agent requests, with edge cases."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json

import pytest
from multidict import CIMultiDict

from controlplane.store.audit import AuditTables
from controlplane.store.interface import StoreError
from tests.controlplane.plane import (
    AUDIT,
    HEARTBEAT,
    METRICS,
    SYNC,
    FakeClock,
    Plane,
    ProxyClient,
    Response,
    batch,
)


@pytest.mark.parametrize("path", [SYNC, HEARTBEAT, AUDIT, METRICS])
async def test_a_signed_request_is_accepted(proxy: ProxyClient, path: str) -> None:
    body = {
        SYNC: b"",
        AUDIT: json.dumps(batch("b1", proxy.org_ids[0], [1])).encode(),
        HEARTBEAT: b'{"version": "1"}',
        METRICS: b'{"windowStart": "2026-11-21T12:00:00.000Z"}',
    }[path]
    response = await proxy.send(path, body)
    assert response.status == (202 if path == AUDIT else 200)


async def test_the_raw_bytes_are_signed(proxy: ProxyClient) -> None:
    spaced = b' {"version" : "1",\r\n"uptimeSeconds":1.50}\n '
    assert (await proxy.send(HEARTBEAT, spaced)).status == 200
    for changed in (
        spaced.strip(),
        spaced + b"\n",
        spaced.replace(b"\r\n", b"\n"),
        json.dumps(json.loads(spaced)).encode(),
    ):
        response = await proxy.send(HEARTBEAT, spaced, data=changed)
        assert (response.status, response.code) == (401, "invalidSignature")


@pytest.mark.parametrize("skew", [-300, -1, 0, 1, 300])
async def test_a_timestamp_within_300_seconds_is_accepted(proxy: ProxyClient, skew: int) -> None:
    timestamp = str(proxy.clock.wall_ms() // 1000 + skew)
    assert (await proxy.send(SYNC, timestamp=timestamp)).status == 200


@pytest.mark.parametrize("skew", [-301, 301, -86400, 86400 * 365])
async def test_a_timestamp_beyond_300_seconds_is_refused_though_the_signature_holds(
    proxy: ProxyClient, skew: int
) -> None:
    timestamp = str(proxy.clock.wall_ms() // 1000 + skew)
    response = await proxy.send(SYNC, timestamp=timestamp)
    assert (response.status, response.code) == (401, "timestampOutOfRange")


async def test_the_timestamp_is_compared_with_the_host_clock_even_where_that_jumps(
    proxy: ProxyClient, clock: FakeClock
) -> None:
    clock.wall -= 365 * 86_400_000
    assert (await proxy.send(SYNC)).status == 200
    before = await proxy.send(SYNC, timestamp=str(clock.steady // 1000))
    assert before.code == "timestampOutOfRange"


def _spellings(now: int) -> list[str]:
    arabic = "".join(chr(0x660 + int(digit)) for digit in str(now))
    return [
        "+{n}",
        "-{n}",
        "{n}.0",
        "{n}e0",
        "0x1",
        "1_795_262_400",
        arabic,
        "9" * 5000,
        "NaN",
        "{n} {n}",
        "{n},{n}",
    ]


@pytest.mark.parametrize("spelling", _spellings(1_795_262_400))
async def test_a_timestamp_is_plain_digits(proxy: ProxyClient, spelling: str) -> None:
    timestamp = spelling.format(n=proxy.clock.wall_ms() // 1000)
    response = await proxy.send(SYNC, timestamp=timestamp)
    assert (response.status, response.code) == (401, "timestampOutOfRange")


async def test_an_uppercase_digest_is_a_mismatch(proxy: ProxyClient) -> None:
    headers = proxy.headers(b"")
    headers["X-Hmac-Signature"] = headers["X-Hmac-Signature"].upper()
    response = await proxy.send(SYNC, headers=headers)
    assert (response.status, response.code) == (401, "invalidSignature")


@pytest.mark.parametrize(
    "wrong", ["", "0" * 64, "0" * 63, "0" * 65, "ä" * 64, "sha256=" + "0" * 57, "g" * 64]
)
async def test_a_wrong_signature_is_a_mismatch(proxy: ProxyClient, wrong: str) -> None:
    headers = proxy.headers(b"")
    headers["X-Hmac-Signature"] = wrong
    response = await proxy.send(SYNC, headers=headers)
    assert (response.status, response.code) == (401, "invalidSignature")


async def test_a_signature_of_another_proxy_is_a_mismatch(plane: Plane, proxy: ProxyClient) -> None:
    other = await plane.proxy("edge-2", "acme")
    headers = proxy.headers(b"")
    headers["X-Hmac-Signature"] = other.headers(b"")["X-Hmac-Signature"]
    assert (await proxy.send(SYNC, headers=headers)).code == "invalidSignature"


@pytest.mark.parametrize("key", ["", "unknown", "gwk_" + "A" * 43, "k" * 8000, "ключ"])
async def test_an_unknown_api_key_is_refused(proxy: ProxyClient, key: str) -> None:
    headers = proxy.headers(b"")
    headers["X-Api-Key"] = key
    response = await proxy.send(SYNC, headers=headers)
    assert (response.status, response.code) == (401, "unknownApiKey")


async def test_a_disabled_proxy_is_unknown_until_it_is_enabled(plane: Plane, proxy: ProxyClient) -> None:
    await plane.inventory.set_proxy_enabled("edge-1", False)
    assert (await proxy.send(SYNC)).code == "unknownApiKey"
    await plane.inventory.set_proxy_enabled("edge-1", True)
    assert (await proxy.send(SYNC)).status == 200


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("X-Api-Key", "unknownApiKey"),
        ("X-Timestamp", "timestampOutOfRange"),
        ("X-Hmac-Signature", "invalidSignature"),
    ],
)
@pytest.mark.parametrize("twice", [True, False])
async def test_each_header_is_given_exactly_once(
    proxy: ProxyClient, name: str, code: str, twice: bool
) -> None:
    headers = proxy.headers(b"")
    if twice:
        headers.add(name, headers[name])
    else:
        del headers[name]
    response = await proxy.send(SYNC, headers=headers)
    assert (response.status, response.code) == (401, code)


async def test_header_names_have_no_case(proxy: ProxyClient) -> None:
    headers = CIMultiDict({name.lower(): value for name, value in proxy.headers(b"").items()})
    assert (await proxy.send(SYNC, headers=headers)).status == 200


async def test_authorization_hmac_is_not_read(proxy: ProxyClient) -> None:
    headers = proxy.headers(b"")
    headers["Authorization"] = "HMAC key-id=somebody-else, signature=nonsense"
    assert (await proxy.send(SYNC, headers=headers)).status == 200
    only = {"Authorization": f"HMAC key-id={proxy.api_key}, signature={headers['X-Hmac-Signature']}"}
    assert (await proxy.send(SYNC, headers=only)).code == "unknownApiKey"


async def test_a_401_says_no_more_than_its_code(proxy: ProxyClient) -> None:
    bad = proxy.headers(b"")
    bad["X-Hmac-Signature"] = "0" * 64
    response = await proxy.send(SYNC, headers=bad)
    everything = f"{dict(response.headers)}{response.body!r}"
    assert proxy.signature(bad["X-Timestamp"], b"") not in everything
    assert proxy.hmac_secret not in everything
    assert "aiohttp" not in everything
    assert set(response.json) == {"error"}
    assert set(response.json["error"]) == {"code", "message"}


async def test_a_compressed_body_is_refused_though_its_bytes_are_signed(proxy: ProxyClient) -> None:
    body = gzip.compress(b'{"version": "1"}')
    headers = proxy.headers(body)
    headers["Content-Encoding"] = "gzip"
    response = await proxy.send(HEARTBEAT, body, headers=headers)
    assert (response.status, response.code) == (400, "invalidPayload")
    # A decompression bomb is refused as cheaply: it is never decompressed.
    unsigned = {"Content-Encoding": "gzip", "X-Api-Key": "unknown"}
    assert (await proxy.send(AUDIT, gzip.compress(bytes(10_000_000)), headers=unsigned)).status == 401


async def test_a_sync_has_no_body(proxy: ProxyClient) -> None:
    response = await proxy.send(SYNC, b"{}")
    assert (response.status, response.code) == (400, "invalidPayload")


@pytest.mark.parametrize("fault", ["X-Api-Key", "X-Timestamp", "X-Hmac-Signature"])
async def test_a_body_is_not_asked_for_before_the_head_is_good(proxy: ProxyClient, fault: str) -> None:
    """A sender that uses `Expect: 100-continue` gets the refusal before it sends a byte of the body."""
    headers = proxy.headers(b"")
    headers[fault] = "wrong"
    host, port = proxy.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"POST {AUDIT} HTTP/1.1", "Host: x", "Content-Length: 5000000", "Expect: 100-continue"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
    writer.close()
    await writer.wait_closed()


async def test_a_good_head_is_told_to_continue(proxy: ProxyClient) -> None:
    body = json.dumps(batch("b1", proxy.org_ids[0], [1])).encode()
    host, port = proxy.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"POST {AUDIT} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Expect: 100-continue"]
    lines += [f"{name}: {value}" for name, value in proxy.headers(body).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert await reader.readline() == b"\r\n"
    writer.write(body)
    assert await reader.readline() == b"HTTP/1.1 202 Accepted\r\n"
    writer.close()
    await writer.wait_closed()


async def test_signatures_are_compared_in_constant_time(
    proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    compare = hmac.compare_digest

    def watched(left: str, right: str) -> bool:
        compared.append(right)
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    headers = proxy.headers(b"")
    headers["X-Hmac-Signature"] = hashlib.sha256(b"").hexdigest()
    assert (await proxy.send(SYNC, headers=headers)).status == 401
    assert compared == [headers["X-Hmac-Signature"]]


# Responses


def _is_signed(proxy: ProxyClient, sent: CIMultiDict[str], response: Response) -> bool:
    """Return True if the response's signature proves that the response is for this very request."""
    signed = f"response.{sent['X-Hmac-Signature']}.".encode() + response.body
    expected = hmac.new(proxy.hmac_secret.encode(), signed, hashlib.sha256).hexdigest()
    return response.headers.get("X-Hmac-Signature") == expected


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (SYNC, b"", 200),
        (HEARTBEAT, b'{"version": "1"}', 200),
        (HEARTBEAT, b"[]", 400),
        (METRICS, b'{"windowStart": "2026-11-21T12:00:00.000Z"}', 200),
        (METRICS, b"[]", 400),
        (AUDIT, b"GOOD", 202),
        (AUDIT, b"FOREIGN", 403),
        (AUDIT, b'{"batchId": "b1", "events": []}', 400),
        (AUDIT, b'{"batchId":"b1","events":[{"id": tru', 400),
        (AUDIT, b"no JSON", 400),
    ],
)
async def test_every_response_to_a_request_whose_signature_holds_is_signed(
    proxy: ProxyClient, path: str, body: bytes, status: int
) -> None:
    if body in (b"GOOD", b"FOREIGN"):
        org = proxy.org_ids[0] if body == b"GOOD" else "another"
        body = json.dumps(batch("b1", org, [1])).encode()
    sent = proxy.headers(body)
    response = await proxy.send(path, body, headers=sent)
    assert response.status == status
    assert _is_signed(proxy, sent, response)
    assert len(response.headers.getall("X-Hmac-Signature")) == 1  # type: ignore[attr-defined]
    if path == AUDIT and b"b1" in body:
        assert response.json["batchId"] == "b1"


async def test_an_expired_a_limited_and_a_failed_batch_are_responded_signed_and_by_name(
    plane: Plane, proxy: ProxyClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sent(batch_id: str) -> Response:
        body = json.dumps(batch(batch_id, proxy.org_ids[0], [1])).encode()
        headers = proxy.headers(body)
        response = await proxy.send(AUDIT, body, headers=headers)
        assert _is_signed(proxy, headers, response)
        return response

    for number in range(60):
        assert (await sent(f"b{number}")).status == 202
    limited = await sent("b60")
    assert (limited.status, limited.json["batchId"]) == (429, "b60")
    assert str(limited.json["error"]["retryAfterSeconds"]) == limited.headers["Retry-After"]
    clock.advance(hours=49)
    expired = await sent("b1")
    assert (expired.status, expired.json["batchId"]) == (409, "b1")

    async def fails(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(AuditTables, "commit_batch", fails)
    assert (await sent("b61")).status == 503


async def test_nothing_is_signed_for_a_request_that_was_not_verified(proxy: ProxyClient) -> None:
    """A caller without the secret must not get a signed response for a request of the proxy."""
    body = json.dumps(batch("b1", proxy.org_ids[0], [1])).encode()
    good = proxy.headers(body)
    wrong = CIMultiDict({**good, "X-Hmac-Signature": "0" * 64})
    late = CIMultiDict({**good, "X-Timestamp": "1"})
    foreign = CIMultiDict({**good, "X-Api-Key": "another"})
    too_large = body + b" " * (5 * 1024 * 1024)
    for headers, sent, status in (
        (wrong, body, 401),
        (late, body, 401),
        (foreign, body, 401),
        (good, body + b" ", 401),
        (good, too_large, 413),  # a recorded head before a body that is not read
    ):
        response = await proxy.send(AUDIT, sent, headers=headers)
        assert response.status == status
        assert "X-Hmac-Signature" not in response.headers
        assert "batchId" not in response.json
