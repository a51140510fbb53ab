"""Tests of enrolment: a proxy enrols once despite kills, renews its keys, and never undoes a revocation."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from controlplane.operations.actor import local_actor
from controlplane.operations.enrolment import AddEnrolmentToken, add
from controlplane.operations.perform import perform
from proxy.agent import cures
from proxy.agent import enrolment as enrolment_module
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.enrolment import Enrolment, EnrolmentOptions, name_to_ask_for
from proxy.config.tls import client_tls
from proxy.outbound.call import CallFailed, call
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from proxy.startup.identity_file import (
    Enrolled,
    Enrolling,
    IdentityState,
    IdentityUnusable,
    Keys,
    Proving,
    Renewing,
    keys_in,
    read_identity,
    write_identity,
)
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import FakeClock, context_of, started
from tests.fakes.control_plane import error, hang
from tests.fakes.enrolling import ENROL, TOKEN, EnrollingControlPlane
from tests.fakes.server import Response
from tests.patience import PATIENCE_SECONDS

SYNC = "/api/v1/agent/sync"


@pytest.fixture
async def control() -> AsyncIterator[EnrollingControlPlane]:
    async with EnrollingControlPlane() as fake:
        yield fake
        assert fake.problems == []


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session(client_tls(None), DIRECT) as opened:
        yield opened


class Proxy:
    """The enrolment of one proxy in one directory, started again after each kill."""

    def __init__(self, control: EnrollingControlPlane, session: aiohttp.ClientSession, path: Path) -> None:
        self.control = control
        self.session = session
        self.path = path
        self.ahead = 0.0  # seconds by which its clock is ahead
        self.token = TOKEN
        self.enrolment = self.another()

    def start(self) -> None:
        self.enrolment.close()
        self.enrolment = self.another()

    def another(self) -> Enrolment:
        options = EnrolmentOptions(self.control.base_url, self.path, self.token)
        return Enrolment(options, self.session, lambda: time.time() + self.ahead)

    async def until_at_rest(self) -> None:
        """Run enrolment steps until the proxy has keys and no request is in flight."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await self.enrolment.once()
                if isinstance(self.state, Enrolled) and self.enrolment._pause() > 0:
                    return

    @property
    def state(self) -> IdentityState | None:
        return read_identity(self.path)

    @property
    def api_key(self) -> str:
        return self.enrolment.present().api_key

    async def is_accepted(self) -> bool:
        calls = ControlPlane(self.session, self.enrolment.present)
        response = await calls.get(self.control.base_url + SYNC, {}, max_bytes=1 << 20)
        return (response.status, response.is_signed) == (200, True)


@pytest.fixture
def proxy(control: EnrollingControlPlane, session: aiohttp.ClientSession, tmp_path: Path) -> Proxy:
    return Proxy(control, session, tmp_path / "var" / "identity.json")


async def test_the_first_start_enrols_and_every_later_one_uses_what_is_in_the_file(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    with pytest.raises(CallFailed, match="not enrolled: the control plane has not responded yet"):
        proxy.enrolment.present()
    await proxy.until_at_rest()
    assert proxy.enrolment.check().status == "ok"
    assert await proxy.is_accepted()
    (request,) = [each for each in control.requests if each.path == ENROL]
    assert request.value("Authorization") == f"Bearer {TOKEN}"
    assert json.loads(request.body).keys() == {"name", "enrolmentId", "version"}
    assert stat.S_IMODE(os.stat(proxy.path).st_mode) == 0o600
    proxy.start()
    assert proxy.enrolment.is_enrolled.is_set()
    assert proxy.enrolment.proxy_id == "proxy-1"
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert len(control.proxies) == 1
    assert "secret" not in repr(proxy.state)


async def test_a_refused_token_is_told_with_its_cure_and_tried_again_slowly(
    control: EnrollingControlPlane, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    control.uses_left[TOKEN] = 0
    await proxy.enrolment.once()
    for _ in range(3):
        await proxy.enrolment.once()
        assert 200 < proxy.enrolment._pause() <= 300
    assert proxy.enrolment.check().status == "failed"
    (record,) = caplog.records
    assert "invalidEnrolmentToken" in record.message
    assert "proxy enrol-token add" in record.message
    assert "--doctor" in record.message
    assert TOKEN not in record.message
    control.uses_left[TOKEN] = 1  # an operator raised the limit
    await proxy.until_at_rest()
    assert await proxy.is_accepted()


@pytest.mark.parametrize(
    ("response", "least", "most", "words"),
    [
        (Response(503), 0.5, 1, "503"),
        (Response(302, (("Location", "http://127.0.0.1:9/"),)), 0.5, 1, "302"),
        (Response(201, body=b"<html>"), 0.5, 1, "but without the keys of this proxy"),
        (Response(404), 270, 300, "SaasBaseUrl"),
        (error(400, "invalidPayload"), 270, 300, "invalidPayload"),
        (error(429, "rateLimited", ("Retry-After", "7")), 6.3, 7, "rateLimited"),
        (error(429, "rateLimited", ("Retry-After", "86400")), 270, 300, "rateLimited"),
    ],
)
async def test_what_comes_in_place_of_an_identity(
    control: EnrollingControlPlane, proxy: Proxy, response: Response, least: float, most: float, words: str
) -> None:
    control.enrol_script.append(response)
    await proxy.enrolment.once()
    assert not await proxy.enrolment.once()
    assert least <= proxy.enrolment._pause() <= most
    assert words in proxy.enrolment.check().detail
    await proxy.until_at_rest()
    assert len(control.proxies) == 1


async def test_a_control_plane_that_is_away_is_asked_again_with_back_off(proxy: Proxy) -> None:
    await proxy.control.__aexit__(None, None, None)
    pauses = []
    for _ in range(9):
        await proxy.enrolment.once()
        pauses.append(proxy.enrolment._pause())
    assert pauses[1] <= 1
    assert 30 <= pauses[-1] <= 60
    assert "not enrolled: no connection to 127.0.0.1" in proxy.enrolment.check().detail


async def test_a_revoked_proxy_does_not_enrol_again_although_its_token_is_good(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    control.uses_left[TOKEN] = 5
    await proxy.until_at_rest()
    control.revoke(control.proxies[0])
    calls = ControlPlane(proxy.session, proxy.enrolment.present)
    refused = await calls.get(control.base_url + SYNC, {}, max_bytes=1 << 20)
    assert refused.identity is not None
    cure = cures.of_refusal(refused.error_code, refused.identity.file)
    assert f"the keys in {proxy.path} are revoked" in cure
    for _ in range(3):
        await proxy.enrolment.once()
        proxy.start()
    assert len(control.proxies) == 1
    proxy.path.unlink()  # an operator removed the file
    proxy.start()
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert proxy.enrolment.proxy_id == "proxy-2"


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":1,"identity":{"state":"other"}}', b"\0" * 300])
async def test_a_file_that_is_no_identity_is_never_replaced(
    control: EnrollingControlPlane, proxy: Proxy, content: bytes
) -> None:
    proxy.path.parent.mkdir(exist_ok=True)
    proxy.path.write_bytes(content)
    proxy.start()
    for _ in range(3):
        await proxy.enrolment.once()
    assert proxy.path.read_bytes() == content
    assert (control.proxies, proxy.enrolment._pause()) == ([], 3600)
    assert "delete the file to enrol this proxy again" in proxy.enrolment.check().detail


def test_a_file_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    write_identity(path, Enrolled(Keys("p", "n", "k", "s", 1.0)))
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(IdentityUnusable, match="the identity has format 2, but this release reads format 1"):
        read_identity(path)


@pytest.mark.parametrize(
    ("host_name", "asked"),
    [
        ("edge-7f9c.example", "edge-7f9c.example"),
        ("", "proxy"),
        ("-_-", "proxy"),
        ("büro 1", "b-ro-1"),
        ("a" * 62 + "-b", "a" * 62),
        ("01234567-89ab-cdef-0123-456789abcdef", "proxy"),
    ],
)
def test_the_name_is_that_of_the_machine_as_far_as_the_control_plane_allows(
    host_name: str, asked: str
) -> None:
    assert name_to_ask_for(host_name) == asked


# Kills


class Killed(BaseException):
    """Simulated kill of the process: no code of the process runs after the kill."""


def killed_at_write(monkeypatch: pytest.MonkeyPatch, number: int, *, written: bool) -> None:
    """Kill the process at one write of the key file, either before the write or when the file is on disk."""
    count = 0

    def write(path: Path, state: IdentityState) -> None:
        nonlocal count
        count += 1
        if count < number or written:
            write_identity(path, state)
        if count == number:
            raise Killed

    monkeypatch.setattr(enrolment_module, "write_identity", write)


async def killed(proxy: Proxy) -> None:
    """Run enrolment steps until the simulated kill, then start the proxy again."""
    with pytest.raises(Killed):
        await proxy.until_at_rest()


async def killed_when(proxy: Proxy, handled: asyncio.Event) -> None:
    """Kill the process after the control plane processed its request, but before the response arrives."""
    task = asyncio.create_task(proxy.until_at_rest())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await handled.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def response_lost(control: EnrollingControlPlane) -> asyncio.Event:
    handled = asyncio.Event()

    async def never() -> None:
        control.before_enrol_response = None
        handled.set()
        await hang()

    control.before_enrol_response = never
    return handled


@pytest.mark.parametrize(("number", "written"), [(1, False), (1, True), (2, False), (2, True)])
async def test_a_kill_at_any_write_of_an_enrolment_makes_no_second_proxy(
    control: EnrollingControlPlane, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, number: int, written: bool
) -> None:
    with monkeypatch.context() as patch:
        killed_at_write(patch, number, written=written)
        await killed(proxy)
    proxy.start()
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert len(control.proxies) == 1


async def test_a_lost_response_makes_no_second_proxy(control: EnrollingControlPlane, proxy: Proxy) -> None:
    await killed_when(proxy, response_lost(control))
    assert len(control.proxies) == 1
    proxy.start()
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert len(control.proxies) == 1


async def test_a_full_disk_delays_an_enrolment_and_loses_nothing(
    control: EnrollingControlPlane, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, state: IdentityState) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(enrolment_module, "write_identity", full)
        await proxy.enrolment.once()
        said = proxy.enrolment.check().detail
        assert control.requests == []
        assert "No space left on device" in said
        assert "Agent.IdentityPath must be" in said
    await proxy.enrolment.once()
    with monkeypatch.context() as patch:
        patch.setattr(enrolment_module, "write_identity", full)
        await proxy.enrolment.once()  # the response arrived but can't be stored, so its keys are not used
    assert not proxy.enrolment.is_enrolled.is_set()
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert len(control.proxies) == 1


def rotate_in(control: EnrollingControlPlane, seconds: float) -> None:
    control.rotate_at = rfc3339(int((time.time() + seconds) * 1000))


async def until_due(control: EnrollingControlPlane, proxy: Proxy) -> str:
    """Enrol the proxy, then move the clock to the time of the key renewal.

    Return the API key that the proxy has before the renewal.
    """
    rotate_in(control, 100)
    await proxy.until_at_rest()
    # later by at most a tenth, so that a fleet spreads its renewals
    assert 90 < proxy.enrolment._pause() <= 111
    control.rotate_at = None
    proxy.ahead = 112
    return proxy.api_key


async def test_keys_are_renewed_when_they_are_due_and_in_use_only_once_they_are_proved(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    before = await until_due(control, proxy)
    for expected in ("renewing", "proving"):
        await proxy.enrolment.once()
        assert json.loads(proxy.path.read_bytes())["identity"]["state"] == expected
        assert proxy.api_key == before
        assert await proxy.is_accepted()
    await proxy.until_at_rest()
    assert proxy.api_key != before
    assert await proxy.is_accepted()
    state = proxy.state
    assert isinstance(state, Enrolled)
    assert state.earlier is not None
    assert state.earlier.api_key == before
    renewal = [each for each in control.requests if each.path == ENROL][-1]
    assert renewal.values("Authorization") == []
    assert json.loads(renewal.body).keys() == {"renewalId"}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("written", [False, True])
async def test_a_kill_at_any_write_of_a_renewal_leaves_a_proxy_that_works(
    control: EnrollingControlPlane, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, number: int, written: bool
) -> None:
    before = await until_due(control, proxy)
    with monkeypatch.context() as patch:
        killed_at_write(patch, number, written=written)
        await killed(proxy)
    proxy.start()
    assert await proxy.is_accepted()
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert proxy.api_key != before


@pytest.mark.parametrize("lost", ["renewal", "proof"])
async def test_a_lost_response_of_a_renewal_leaves_a_proxy_that_works(
    control: EnrollingControlPlane, proxy: Proxy, lost: str
) -> None:
    before = await until_due(control, proxy)
    if lost == "renewal":
        await killed_when(proxy, response_lost(control))
    else:
        handled = asyncio.Event()

        async def never() -> Response:
            handled.set()
            return await hang()

        control.sync_script.append(never)
        await killed_when(proxy, handled)
    proxy.start()
    assert await proxy.is_accepted()
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert proxy.api_key != before
    assert len(control.proxies) == 1


async def test_new_keys_that_are_refused_leave_the_old_ones_in_use(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    """The control plane refuses the proxy's new keys, because it was restored from an older backup."""
    before = await until_due(control, proxy)
    await proxy.enrolment.once()
    await proxy.enrolment.once()
    secret = control.proxies[0].keys[before]
    control.proxies[0].keys = {before: secret}
    assert not await proxy.enrolment.once()
    assert (proxy.api_key, await proxy.is_accepted()) == (before, True)
    assert proxy.enrolment.check().status == "degraded"
    await proxy.until_at_rest()
    assert proxy.api_key != before


async def renewed(control: EnrollingControlPlane, proxy: Proxy) -> tuple[str, str]:
    """Renew the proxy's keys once. Return the proxy's API keys before and after the renewal."""
    before = await until_due(control, proxy)
    await proxy.until_at_rest()
    return before, proxy.api_key


async def refused_by(control: EnrollingControlPlane, proxy: Proxy) -> str:
    """Send a request to the control plane as the agent does.

    Return the error code of the control plane's response.
    """
    calls = ControlPlane(proxy.session, proxy.enrolment.present, refused=proxy.enrolment.report_refusal)
    return (await calls.get(control.base_url + SYNC, {}, max_bytes=1 << 20)).error_code


@pytest.mark.parametrize("renewal", ["not due", "under way"])
async def test_keys_before_a_restored_backup_are_used_and_renewed_at_once(
    control: EnrollingControlPlane, proxy: Proxy, renewal: str, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = control.proxies
    before, after = await renewed(control, proxy)
    if renewal == "under way":
        state = proxy.state
        assert isinstance(state, Enrolled)
        proxy.enrolment.close()
        write_identity(proxy.path, Renewing(state.keys, str(uuid4()), state.earlier))
    known = {before: secrets[0].keys[before]}
    secrets[0].keys = dict(known)
    proxy.start()  # the file alone must hold the pair of keys
    assert await refused_by(control, proxy) == "unknownApiKey"
    await proxy.until_at_rest()
    assert await proxy.is_accepted()
    assert proxy.api_key not in (before, after)
    assert proxy.enrolment.check().status == "ok"
    assert len(control.proxies) == 1
    assert [each for each in caplog.messages if "perhaps after a restored backup" in each]


async def test_keys_before_the_present_ones_do_not_undo_a_revocation(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    before, after = await renewed(control, proxy)
    kept = dict(control.proxies[0].keys)
    control.revoke(control.proxies[0])
    held = proxy.path.read_bytes()
    assert await refused_by(control, proxy) == "unknownApiKey"
    for _ in range(2):
        assert not await proxy.enrolment.once()
        assert 270 <= proxy.enrolment._pause() <= 300
        await refused_by(control, proxy)
        assert not proxy.enrolment._changed.is_set()  # setting it would end the pause
    assert (proxy.path.read_bytes(), proxy.api_key) == (held, after)
    for reason in ("revoked", "another machine with a copy", "restored from a backup"):
        assert reason in proxy.enrolment.check().detail
    asked = [each for each in control.requests if each.path == ENROL]
    control.proxies[0].keys = kept  # the effect of `proxy enable`
    assert await proxy.enrolment.once()
    assert (proxy.api_key, proxy.enrolment.check().status) == (after, "ok")
    assert [each for each in control.requests if each.path == ENROL] == asked
    assert before in kept


async def test_one_file_is_the_identity_of_one_proxy_at_a_time(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    control.uses_left[TOKEN] = 5
    second = proxy.another()
    assert not second.is_enrolled.is_set()
    await proxy.until_at_rest()
    await second.once()
    assert (
        "another proxy uses this identity file: give each proxy its own"
        " Agent.IdentityPath" in second.check().detail
    )
    assert 0 < second._pause() <= 10
    assert len(control.proxies) == 1
    proxy.enrolment.close()  # the end of its process closes it too
    await second.once()
    assert (second.proxy_id, second.check().status) == ("proxy-1", "ok")
    second.close()


async def test_a_link_in_place_of_the_file_is_refused_and_stays(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    await proxy.until_at_rest()
    volume = proxy.path.with_name("real.json")
    proxy.path.rename(volume)
    proxy.path.symlink_to(volume)
    proxy.start()
    await proxy.enrolment.once()
    assert f"is a symbolic link: write {volume} into Agent.IdentityPath" in proxy.enrolment.check().detail
    assert proxy.path.is_symlink()
    assert len(control.proxies) == 1


@pytest.mark.parametrize("planted", ["link", "file"])
def test_an_unfinished_file_of_somebody_else_gets_no_keys(tmp_path: Path, planted: str) -> None:
    path, elsewhere = tmp_path / "identity.json", tmp_path / "elsewhere"
    elsewhere.write_text("before")
    unfinished = tmp_path / f".identity.json.{os.getpid()}.tmp"
    if planted == "link":
        unfinished.symlink_to(elsewhere)
    else:
        unfinished.write_text("before")
        unfinished.chmod(0o644)
    write_identity(path, Enrolled(Keys("p", "n", "k", "s", 1.0)))
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert elsewhere.read_text() == "before"


async def test_a_connection_that_breaks_is_named_in_plain_words(proxy: Proxy) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(breaks, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(CallFailed, match=r"^the server closed the connection before it responded$"):
            await call(proxy.session, "GET", f"http://127.0.0.1:{port}/", b"", {})


async def test_a_renewal_that_somebody_else_responds_to_changes_nothing(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    before = await until_due(control, proxy)
    await proxy.enrolment.once()
    forged = {"proxyId": "proxy-1", "name": "n", "orgs": [], "apiKey": "gwk_x", "hmacSecret": "gwh_x"}
    control.enrol_script.append(Response(200, body=json.dumps(forged).encode()))
    assert not await proxy.enrolment.once()
    assert proxy.api_key == before
    assert "not signed" in proxy.enrolment.check().detail


async def test_what_a_sync_says_takes_precedence_unless_it_is_of_the_keys_before(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    await until_due(control, proxy)
    proxy.ahead = 0

    def told(seconds: float) -> None:
        proxy.enrolment.report_sync(None, rfc3339(int((time.time() + seconds) * 1000)))

    told(1000)
    assert 990 < proxy.enrolment._pause() <= 1101
    told(-1000)
    assert proxy.enrolment._pause() <= 111


async def test_keys_of_a_clock_that_was_ahead_are_renewed_all_the_same(
    control: EnrollingControlPlane, proxy: Proxy
) -> None:
    proxy.ahead = 10 * 365 * 86400
    rotate_in(control, 100)
    await proxy.until_at_rest()
    proxy.ahead = 0
    assert 90 < proxy.enrolment._pause() <= 400


async def test_the_real_control_plane_enrols_renews_and_revokes(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    clock = FakeClock(int(time.time() * 1000))
    async with started(tmp_path, clock) as plane:
        await plane.org("acme")
        asked = AddEnrolmentToken(("acme",), uses=2, rotate_days=1, name="pods")
        made = await perform(add, context_of(plane), local_actor("test"), asked)
        path = tmp_path / "identity.json"

        started_once: list[Enrolment] = []

        def proxy() -> Enrolment:
            for each in started_once:
                each.close()
            options = EnrolmentOptions(plane.base_url, path, made.token)
            started_once.append(Enrolment(options, session, lambda: clock.wall_ms() / 1000))
            return started_once[-1]

        async def status(keys: Keys | None) -> int:
            assert keys is not None
            identity = Identity(keys.api_key, keys.hmac_secret.encode())
            calls = ControlPlane(session, lambda: identity, clock=lambda: clock.wall_ms() / 1000)
            return (await calls.get(plane.base_url + SYNC, {}, max_bytes=1 << 20)).status

        async def until(condition: Callable[[IdentityState | None], bool]) -> Enrolment:
            running = proxy()
            for _ in range(9):
                await running.once()
                if condition(read_identity(path)):
                    return running
                clock.advance(seconds=1)
            raise AssertionError(running.check())

        await until(lambda state: isinstance(state, Enrolling))
        await until(lambda state: isinstance(state, Enrolled))
        first = keys_in(path)
        assert first is not None
        write_identity(path, Enrolling(str(uuid4())))  # the identity of another proxy
        await until(lambda state: isinstance(state, Enrolled))
        second = keys_in(path)
        assert second is not None
        assert first.proxy_id != second.proxy_id
        assert await status(second) == 200

        clock.advance(hours=25)
        await until(lambda state: isinstance(state, Proving))
        write_identity(path, Renewing(second, str(uuid4())))  # simulates a lost response
        clock.advance(seconds=1)
        await until(lambda state: isinstance(state, Proving))
        assert await status(second) == 200
        await until(lambda state: isinstance(state, Enrolled))
        third = keys_in(path)
        assert [await status(each) for each in (second, third)] == [200, 200]
        clock.advance(hours=1, seconds=1)
        assert [await status(each) for each in (second, third)] == [401, 200]

        await plane.inventory.set_proxy_enabled(second.name, False)
        clock.advance(hours=25)
        running = proxy()
        await running.once()
        await running.once()
        assert f"the keys in {path} are revoked" in running.check().detail
        assert keys_in(path) == third
