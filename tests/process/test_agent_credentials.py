"""Tests of upstream tokens: fetched before expiry, one token at a time, and never used after expiry."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.agent.credentials.entra import Entra
from proxy.agent.credentials.environment import EnvironmentProvider
from proxy.agent.credentials.manager import CredentialManager
from proxy.agent.credentials.provider import CredentialError, UpstreamToken
from proxy.agent.credentials.static import StaticProvider
from proxy.config.tls import client_tls
from proxy.ipc.channel import ActiveUpstreamToken, Channel, Message, UpstreamTokenUnavailable, channel_pair
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.server import Response
from tests.patience import PATIENCE_SECONDS

SCOPE = "https://graph.microsoft.com/.default"


class Told:
    """Recorder of the token messages that the agent sends to workers."""

    def __init__(self) -> None:
        self.messages: list[ActiveUpstreamToken | UpstreamTokenUnavailable] = []
        self._news = asyncio.Event()

    def __call__(self, message: ActiveUpstreamToken | UpstreamTokenUnavailable) -> None:
        self.messages.append(message)
        self._news.set()

    async def count(self, count: int) -> list[ActiveUpstreamToken | UpstreamTokenUnavailable]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.messages) < count:
                self._news.clear()
                await self._news.wait()
        return self.messages


class Scripted:
    """Fake identity provider that returns prepared results, one after another."""

    def __init__(self, clock: Any, *results: float | str | Exception) -> None:
        self.results = list(results)
        self.fetches = 0
        self.in_flight = 0
        self.refused: list[bool] = []  # True for each fetch after a rejection of the last token
        self._clock = clock

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        self.refused.append(refused)
        assert self.in_flight == 0
        self.in_flight += 1
        self.fetches += 1
        await asyncio.sleep(0)
        self.in_flight -= 1
        result = self.results.pop(0) if self.results else 3600.0
        if isinstance(result, str):
            raise CredentialError(result)
        if isinstance(result, Exception):
            raise result
        return UpstreamToken(f"token-{self.fetches}", self._clock() + result)


@asynccontextmanager
async def managing(manager: CredentialManager) -> AsyncIterator[None]:
    task = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def plain_clock() -> float:
    return asyncio.get_running_loop().time() + 1e9


async def test_the_first_token_is_announced_with_its_end() -> None:
    report = Told()
    provider = Scripted(plain_clock, 3600.0)
    manager = CredentialManager(provider, announce=report, clock=plain_clock)
    assert isinstance(manager.current(), UpstreamTokenUnavailable)
    async with managing(manager):
        (first,) = await report.count(1)
    assert isinstance(first, ActiveUpstreamToken)
    assert first.token == "token-1"
    again = manager.current()
    assert isinstance(again, ActiveUpstreamToken)
    assert again.expires_at == pytest.approx(first.expires_at)
    assert manager.check().status == "ok"


async def test_a_token_is_replaced_ahead_of_its_end() -> None:
    report = Told()
    manager = CredentialManager(Scripted(plain_clock, 1.0, 1.0, 1.0), announce=report, clock=plain_clock)
    async with managing(manager):
        messages = await report.count(3)
    assert all(isinstance(message, ActiveUpstreamToken) for message in messages)
    generations = [message.generation for message in messages if isinstance(message, ActiveUpstreamToken)]
    assert generations == sorted(set(generations))


async def test_failures_are_retried_while_the_old_token_serves() -> None:
    report = Told()
    provider = Scripted(plain_clock, 1.5, "down", "down", 3600.0)
    manager = CredentialManager(provider, announce=report, clock=plain_clock, first_backoff=0.01)
    async with managing(manager):
        messages = await report.count(2)
    assert [type(message) for message in messages] == [ActiveUpstreamToken, ActiveUpstreamToken]
    assert provider.fetches == 4


async def test_past_its_end_a_token_is_never_handed_out() -> None:
    report = Told()
    provider = Scripted(plain_clock, 0.3, *["down"] * 500)
    manager = CredentialManager(provider, announce=report, clock=plain_clock, first_backoff=0.02)
    async with managing(manager):
        messages = await report.count(2)
        assert isinstance(messages[0], ActiveUpstreamToken)
        assert isinstance(messages[1], UpstreamTokenUnavailable)
        assert plain_clock() >= messages[0].expires_at
        assert isinstance(manager.current(), UpstreamTokenUnavailable)
        assert manager.check().status == "failed"
        assert messages[1].retry_after >= 1


async def test_an_error_that_nobody_foresaw_is_a_failure_that_quotes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = Told()
    provider = Scripted(plain_clock, LookupError("a-secret"), 3600.0)
    manager = CredentialManager(provider, announce=report, clock=plain_clock, first_backoff=0.01)
    async with managing(manager):
        messages = await report.count(2)
    assert isinstance(messages[0], UpstreamTokenUnavailable)
    assert messages[0].detail.startswith("unexpected LookupError at test_agent_credentials.py line ")
    assert messages[0].detail in caplog.text
    assert "a-secret" not in caplog.text
    assert isinstance(messages[1], ActiveUpstreamToken)


@pytest.mark.parametrize("hours", [2, -2])
async def test_a_clock_that_jumps_neither_takes_a_token_away_nor_lengthens_its_life(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a worker receives a token after a clock jump, it computes the token's end by the new clock."""
    monkeypatch.setattr("proxy.agent.credentials.manager._LONGEST_SLEEP", 0.01)
    jump = 0.0

    def clock() -> float:
        return plain_clock() + jump

    report = Told()
    manager = CredentialManager(Scripted(clock), announce=report, clock=clock)
    async with managing(manager):
        await report.count(1)
        jump = hours * 3600.0
        # Clock set forward: the token has expired by it, and so has its successor. Set back: both, by that
        # clock.
        await report.count(3 if hours > 0 else 2)
        now = report.messages[-1]
        assert isinstance(now, ActiveUpstreamToken)
        assert 3500 < now.expires_at - clock() <= 3600
        assert manager.check().status == "ok"


async def test_a_token_that_has_ended_already_is_a_failure() -> None:
    report = Told()
    manager = CredentialManager(
        Scripted(plain_clock, -5.0), announce=report, clock=plain_clock, first_backoff=0.01
    )
    async with managing(manager):
        messages = await report.count(2)
    assert [type(message) for message in messages] == [UpstreamTokenUnavailable, ActiveUpstreamToken]


async def test_a_refused_token_is_fetched_again_once() -> None:
    report = Told()
    provider = Scripted(plain_clock)
    manager = CredentialManager(provider, announce=report, clock=plain_clock)
    async with managing(manager):
        (first,) = await report.count(1)
        assert isinstance(first, ActiveUpstreamToken)
        for _ in range(50):
            manager.rejected(first.generation)
        manager.rejected(first.generation - 1)
        _, second = await report.count(2)
        assert isinstance(second, ActiveUpstreamToken)
        assert second.generation > first.generation
        manager.rejected(first.generation)  # late: from a worker that had not yet received the new token
        manager.rejected(second.generation)  # too soon after the last rejection
        for _ in range(20):
            await asyncio.sleep(0)
        assert provider.refused == [False, True]


async def test_a_static_token_has_no_end() -> None:
    report = Told()
    manager = CredentialManager(StaticProvider("the-token"), announce=report)
    async with managing(manager):
        (first,) = await report.count(1)
    assert isinstance(first, ActiveUpstreamToken)
    assert first.token == "the-token"


@asynccontextmanager
async def provider_for(identity: FakeIdentityProvider, **changes: Any) -> AsyncIterator[EnvironmentProvider]:
    options: dict[str, Any] = {
        "authority_url": identity.base_url,
        "tenant_id": TENANT,
        "client_id": CLIENT_ID,
        "scope": SCOPE,
    }
    async with open_session(client_tls(None), DIRECT) as session:
        yield EnvironmentProvider(Entra(session, **(options | changes)), CLIENT_SECRET)


async def test_client_credentials_are_exchanged_for_a_token() -> None:
    async with FakeIdentityProvider() as identity, provider_for(identity) as provider:
        token = await provider.fetch()
        assert identity.accepts(token.token)
        assert token.expires_at == pytest.approx(time.time() + 3599, abs=2)
        assert CLIENT_SECRET not in repr(provider)
        assert token.token not in repr(token)
        (request,) = identity.requests
        assert request.value("Content-Type").startswith("application/x-www-form-urlencoded")


class Responding(FakeIdentityProvider):
    """Fake identity provider that sends prepared responses."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self._said = response

    async def response(self, request: Any) -> Response:
        return self._said


def ok(**members: Any) -> Response:
    body = {"token_type": "Bearer", "expires_in": 3599, "access_token": "abc.def"} | members
    return Response(
        200, (), json.dumps({name: value for name, value in body.items() if value is not ...}).encode()
    )


@pytest.mark.parametrize(
    "response",
    [
        ok(access_token=""),
        ok(access_token=" "),
        ok(access_token=None),
        ok(access_token=...),
        ok(access_token="two words"),
        ok(access_token="line\r\nbreak"),
        ok(access_token="é"),
        ok(access_token=7),
        ok(access_token="abc" * 50_000),
        ok(expires_in=...),
        ok(expires_in=None),
        ok(expires_in=0),
        ok(expires_in=-1),
        ok(expires_in=0.05),
        ok(expires_in=1),
        ok(expires_in="1"),
        ok(expires_in="soon"),
        ok(expires_in="1e3"),
        ok(expires_in="١٢"),
        ok(expires_in=1e300),
        ok(expires_in=True),
        ok(token_type="mac"),
        Response(200, (), b""),
        Response(200, (), b"[]"),
        Response(200, (), b"<html>"),
        Response(200, (), b"\xff\xfe"),
        Response(200, (), b'{"access_token": "abc'),
        Response(200, (), b'{"access_token": "abc", "expires_in": 3599}' + b" " * 300_000),
        Response(201, (), ok().body),
        Response(204),
        Response(302, (("Location", "/"),)),
        Response(400, (), b'{"error": "invalid_client", "error_description": "fake~client.secret"}'),
        Response(500),
    ],
)
async def test_what_is_no_token_is_a_failure_without_a_secret_in_it(response: Response) -> None:
    async with Responding(response) as identity, provider_for(identity) as provider:
        with pytest.raises(CredentialError) as failure:
            await provider.fetch()
        assert CLIENT_SECRET not in str(failure.value)
        assert "abc" not in str(failure.value)


async def test_an_identity_provider_whose_tokens_end_at_once_is_asked_as_after_any_failure() -> None:
    report = Told()
    async with Responding(ok(expires_in=0.05)) as identity, provider_for(identity) as provider:
        manager = CredentialManager(provider, announce=report, clock=lambda: 1000.0, first_backoff=60.0)
        async with managing(manager):
            (message,) = await report.count(1)
            assert isinstance(message, UpstreamTokenUnavailable)
            assert message.retry_after >= 15
        assert len(identity.requests) == 1


async def test_the_longest_token_and_the_longest_reason_reach_a_worker() -> None:
    longest = "a" * 16_384
    ends = channel_pair()
    got: asyncio.Queue[Message] = asyncio.Queue()
    with ends[0], ends[1]:
        worker, agent = Channel(ends[0], got.put_nowait), Channel(ends[1], lambda message: None)
        async with Responding(ok(access_token=longest)) as identity, provider_for(identity) as provider:
            agent.send(ActiveUpstreamToken("default", 1, (await provider.fetch()).token, 2000.0))
        agent.send(UpstreamTokenUnavailable("default", str(CredentialError("\ud800" * 200_000)), 1.0))
        async with asyncio.timeout(PATIENCE_SECONDS):
            credential, reason = await got.get(), await got.get()
        worker.close()
        agent.close()
    assert isinstance(credential, ActiveUpstreamToken)
    assert credential.token == longest
    assert isinstance(reason, UpstreamTokenUnavailable)
    assert reason.detail.startswith("\\ud800")


async def test_a_lifetime_in_quotes_is_understood() -> None:
    async with Responding(ok(expires_in="60")) as identity, provider_for(identity) as provider:
        assert (await provider.fetch()).expires_at == pytest.approx(time.time() + 60, abs=2)


async def test_a_throttling_identity_provider_is_left_alone_as_long_as_it_asks() -> None:
    async with FakeIdentityProvider() as identity, provider_for(identity) as provider:
        identity.mode = "throttled"
        with pytest.raises(CredentialError) as failure:
            await provider.fetch()
        assert failure.value.retry_after == 7
        assert "temporarily_unavailable" in str(failure.value)


async def test_an_identity_provider_that_is_not_there_is_a_failure() -> None:
    async with FakeIdentityProvider() as identity:
        identity.mode = "down"
        async with provider_for(identity) as provider:
            with pytest.raises(CredentialError):
                await provider.fetch()


async def test_neither_secret_nor_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    report = Told()
    async with FakeIdentityProvider() as identity, provider_for(identity) as provider:
        identity.mode = "garbage"
        manager = CredentialManager(provider, announce=report, clock=lambda: 1000.0, first_backoff=0.01)
        async with managing(manager):
            await report.count(1)
            identity.mode = "ok"
            while not isinstance(report.messages[-1], ActiveUpstreamToken):
                await report.count(len(report.messages) + 1)
        token = identity.tokens[0]
    said = caplog.text + repr(report.messages) + repr(manager.check())
    assert CLIENT_SECRET not in said
    assert token not in said
