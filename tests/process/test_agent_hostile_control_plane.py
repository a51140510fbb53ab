"""Tests that no invalid, huge, slow or unrelated response of a control plane breaks the agent."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import brotli
import pytest

from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.credentials.entra import Entra
from proxy.agent.credentials.provider import CredentialError
from proxy.config.tls import client_tls
from proxy.ipc.channel import Rules
from proxy.outbound.call import CallFailed
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from tests.fakes.certificates import CertificateAuthority, speak_old_tls
from tests.fakes.control_plane import API_KEY, HMAC_SECRET, FakeControlPlane, accepted, hang
from tests.fakes.server import RawResponse, Response
from tests.process.agent_parts import spool_writer, write
from tests.process.test_agent_process import a_proxy
from tests.process.test_agent_shipper import journal_with, rig
from tests.process.test_agent_sync import Announcements, changed, syncing

SYNC = "/api/v1/agent/sync"
IDENTITY = Identity(API_KEY, HMAC_SECRET.encode())


@pytest.fixture
async def control() -> AsyncIterator[FakeControlPlane]:
    async with FakeControlPlane() as fake:
        yield fake


NESTED = [
    b'{"error":' * 100_000,
    b'{"x":' + b"[" * 100_000,
    b'{"error":{"code":"a","message":"b","x":' + b"[" * 9999,
]


@pytest.mark.parametrize("body", NESTED)
@pytest.mark.parametrize("status", [200, 304, 401, 503])
async def test_no_depth_of_an_unsigned_response_ends_the_sync(
    tmp_path: Path, control: FakeControlPlane, status: int, body: bytes
) -> None:
    async with syncing(control, tmp_path / "snapshot.json", Announcements(), require_signed=False) as sync:
        control.sync_script.append(Response(status, (), body))
        assert not await sync.once()
        assert await sync.once()


@pytest.mark.parametrize("etag", ['"\xff"', '"\x7f"', '"\x01"', '"a\tb"', '"' + "x" * 7000 + '"', ""])
async def test_an_etag_that_cannot_be_sent_back_is_not_kept(
    tmp_path: Path, control: FakeControlPlane, etag: str
) -> None:
    """The signature of a response does not cover the ETag of the response.

    If the agent stored a malformed ETag, the agent or every later sync would fail.
    """

    async def response() -> Response:
        body = json.dumps(control.sync_body).encode()
        return control.signed(control.sync_requests[-1], Response(200, (("ETag", etag),), body))

    control.sync_script.append(response)
    async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
        assert await sync.once()
        assert sync.snapshot is not None
        assert sync.snapshot.etag is None
        assert await sync.once()


@pytest.mark.parametrize("body", NESTED)
@pytest.mark.parametrize("status", [401, 429, 500])
async def test_no_depth_of_a_response_stops_deliveries(
    tmp_path: Path, control: FakeControlPlane, status: int, body: bytes
) -> None:
    control.audit_script.append(Response(status, (("Retry-After", "0"),), body))
    async with rig(journal_with(tmp_path, {"org-1": 3}), control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == [1, 2, 3]


async def test_a_signed_acceptance_of_another_batch_is_none(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.audit_script.append(accepted(batchId="another"))
    async with rig(journal_with(tmp_path, {"org-1": 3}), control) as parts:
        await parts.ship()
    assert len(control.attempts) == 2
    assert control.attempts[0][2] == control.attempts[1][2]


@pytest.mark.parametrize(("count", "duplicate"), [(3, False), (1, False), (1, True)])
async def test_events_whose_ids_somebody_used_before_are_named(
    tmp_path: Path,
    control: FakeControlPlane,
    caplog: pytest.LogCaptureFixture,
    count: int,
    duplicate: bool,
) -> None:
    control.audit_script.append(accepted(accepted=count, duplicate=duplicate))
    async with rig(journal_with(tmp_path, {"org-1": 3}), control) as parts:
        await parts.ship()
    assert ("already had 2 of 3 events" in caplog.text) is (count == 1 and not duplicate)


def _bomb(coding: str, size: int) -> bytes:
    content = bytes(size)
    if coding == "br":
        return bytes(brotli.compress(content, quality=1))
    return gzip.compress(content) if coding == "gzip" else zlib.compress(content)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_a_response_that_unfolds_without_end_is_cut(control: FakeControlPlane, coding: str) -> None:
    bomb = _bomb(coding, 50_000_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(bomb)}\r\n\r\n"
    control.raw_responses[SYNC] = RawResponse(head.encode() + bomb)
    async with open_session(client_tls(None), DIRECT) as session:
        calls = ControlPlane(session, lambda: IDENTITY)
        tracemalloc.start()
        try:
            with pytest.raises(CallFailed):
                await calls.get(control.base_url + SYNC, {}, max_bytes=64 * 1024)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


NO_RESPONSES = {
    "nothing": b"",
    "noise": bytes(range(256)) * 300,
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a status line of other bytes": b"HTTP/1.1 \xff\xfe OK\r\n\r\n",
    "a length of other bytes": b"HTTP/1.1 200 OK\r\nContent-Length: \xff\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n{",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
    "a chunk of a false size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n{",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "no gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    "fields without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 100_000,
    "a field without end": b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 1_000_000,
    "only interim responses": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10_000,
    "a body without end": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000,
}


@pytest.mark.parametrize("name", NO_RESPONSES)
async def test_what_is_no_response_is_a_failed_call(control: FakeControlPlane, name: str) -> None:
    control.raw_responses[SYNC] = RawResponse(NO_RESPONSES[name])
    async with open_session(client_tls(None), DIRECT) as session:
        calls = ControlPlane(session, lambda: IDENTITY, timeout_seconds=10)
        with pytest.raises(CallFailed) as failed:
            await calls.get(control.base_url + SYNC, {}, max_bytes=64 * 1024)
        assert str(failed.value).encode()  # the error must be encodable, or no heartbeat could report it
        del control.raw_responses[SYNC]
        assert (await calls.get(control.base_url + SYNC, {}, max_bytes=64 * 1024)).is_signed


async def test_a_dripping_response_is_cut_by_total_time(control: FakeControlPlane) -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    control.sync_script.append(Response(200, stream=drip, chunked=True))
    async with open_session(client_tls(None), DIRECT) as session:
        calls = ControlPlane(session, lambda: IDENTITY, timeout_seconds=0.3)
        with pytest.raises(CallFailed, match="timed out"):
            await calls.get(control.base_url + SYNC, {}, max_bytes=64 * 1024)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_takes_the_credentials_nowhere(control: FakeControlPlane, status: int) -> None:
    async with FakeControlPlane(record=True) as elsewhere, open_session(client_tls(None), DIRECT) as session:
        control.sync_script.append(Response(status, (("Location", elsewhere.base_url + SYNC),)))
        response = await ControlPlane(session, lambda: IDENTITY).get(
            control.base_url + SYNC, {}, max_bytes=65536
        )
        assert (response.status, response.is_signed) == (status, False)
        assert elsewhere.requests == []


@pytest.mark.parametrize("fault", ["expired", "another host's", "a stranger's"])
async def test_a_certificate_that_proves_nothing_gets_no_request(tmp_path: Path, fault: str) -> None:
    authority = CertificateAuthority(tmp_path / "ours")
    trusted = authority.ca_file
    if fault == "expired":
        certificate = authority.server(days=-1)
    elif fault == "another host's":
        certificate = authority.server(names=("elsewhere.example",))
    else:
        certificate = CertificateAuthority(tmp_path / "theirs").server()
    async with (
        FakeControlPlane(tls=certificate, record=True) as control,
        open_session(client_tls(trusted), DIRECT) as session,
    ):
        with pytest.raises(CallFailed, match=r"[Cc]ertificate"):
            await ControlPlane(session, lambda: IDENTITY).post(control.base_url + SYNC, b"{}")
        assert control.requests == []


@pytest.mark.parametrize("trusts", ["the system's authorities", "a file of its own"])
async def test_a_stranger_s_certificate_or_old_tls_gets_no_request(tmp_path: Path, trusts: str) -> None:
    authority = CertificateAuthority(tmp_path / "theirs")
    ours = CertificateAuthority(tmp_path / "ours").ca_file if trusts == "a file of its own" else None
    certificate = authority.server()
    async with (
        FakeControlPlane(tls=certificate, record=True) as control,
        open_session(client_tls(ours), DIRECT) as session,
    ):
        with pytest.raises(CallFailed, match=r"certificate of 127\.0\.0\.1 is refused"):
            await ControlPlane(session, lambda: IDENTITY).post(control.base_url + SYNC, b"{}")
        assert control.requests == []
    old = certificate.server_context()
    speak_old_tls(old)
    reached: list[object] = []
    server = await asyncio.start_server(lambda *streams: reached.append(streams), "127.0.0.1", 0, ssl=old)
    async with server, open_session(client_tls(authority.ca_file if ours else None), DIRECT) as session:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(CallFailed) as failed:
            await ControlPlane(session, lambda: IDENTITY).post(f"https://127.0.0.1:{port}{SYNC}", b"{}")
    assert not reached
    assert "certificate" not in str(failed.value), "it was looked at: the version was agreed upon"


@pytest.mark.parametrize("body", NESTED)
@pytest.mark.parametrize("status", [200, 400, 503])
async def test_no_depth_of_an_identity_provider_s_response_is_more_than_a_failure(
    control: FakeControlPlane, status: int, body: bytes
) -> None:
    control.raw_responses["/t/oauth2/v2.0/token"] = RawResponse(
        f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    async with open_session(client_tls(None), DIRECT) as session:
        entra = Entra(session, authority_url=control.base_url, tenant_id="t", client_id="c", scope="s")
        with pytest.raises(CredentialError):
            await entra.by_secret("s")


@pytest.mark.process
async def test_calls_that_hang_or_kill_keep_no_rules_from_coming(tmp_path: Path) -> None:
    """Check that rules arrive if other calls hang, and after responses that are nested too deeply."""
    async with a_proxy(tmp_path) as running:
        worker, control, pid = running.workers[0], running.control, running.pid
        await worker.until(lambda report: any(isinstance(each, Rules) for each in report))
        control._heartbeat = control._metrics = lambda request: hang()  # type: ignore[method-assign]
        control.sync_script.extend(Response(status, (), NESTED[1]) for status in (401, 503, 200))
        control.audit_script.append(Response(503, (), NESTED[1]))
        write(spool_writer(running.settings.audit.local_retention_path), range(5))
        worker.report.clear()
        control.sync_body = changed(orgs=[])
        await worker.until(lambda report: any(isinstance(each, Rules) for each in report))
        await control.until(lambda: len(control.seqs("org-1")) == 5)
        assert running._process.is_alive()
        assert running.pid == pid
