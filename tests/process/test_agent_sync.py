"""Tests that the agent applies rules only if they are complete, signed and newer than the active rules."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from proxy.agent import sync as sync_module
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.sync import Sync
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from proxy.policy.ruleset import Ruleset
from proxy.rules.credentials import Certificate, Federated, PublicKey, Secret, credentials_of
from proxy.rules.snapshot import Snapshot, read_snapshot, write_snapshot
from proxy.rules.stops import Stops
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import SYNC_PATH, SyncLinger, SyncRuleset
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.control_plane import (
    API_KEY,
    HMAC_SECRET,
    FakeControlPlane,
    hang,
    ruleset_yaml,
    sync_body,
)
from tests.fakes.ports import free_port
from tests.fakes.server import Response
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def control() -> AsyncIterator[FakeControlPlane]:
    async with FakeControlPlane() as fake:
        yield fake


class Announcements(list[tuple[str, bool]]):
    def __call__(self, snapshot: Snapshot | None, is_new: bool) -> None:
        self.append(("" if snapshot is None else snapshot.version, is_new))


@asynccontextmanager
async def syncing(
    control: FakeControlPlane, cache: Path, announced: Announcements, **changes: Any
) -> AsyncIterator[Sync]:
    options: dict[str, Any] = {"interval": 30.0, "require_signed": True}
    async with open_session(client_tls(None), DIRECT) as session:
        identity = Identity(API_KEY, HMAC_SECRET.encode())
        yield Sync(
            ControlPlane(session, lambda: identity, timeout_seconds=30.0),
            url=control.base_url + "/api/v1/agent/sync",
            cache_path=cache,
            announce=announced,
            **(options | changes),
        )
    assert control.problems == []


def changed(**members: Any) -> dict[str, Any]:
    return sync_body(**{"version": "v2", "generatedAt": "2026-11-22T00:00:00.000Z"} | members)


async def test_rules_are_persisted_before_they_are_announced(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache = tmp_path / "snapshot.json"
    seen: list[Snapshot] = []
    async with syncing(control, cache, Announcements()) as sync:
        sync._announce = lambda snapshot, is_new: seen.append(read_snapshot(cache))
        assert await sync.once()
        assert sync.check().status == "ok"
    assert seen[0].version == "v1"
    assert seen[0].proxy_id == "proxy-1"
    assert seen[0].apps[0].client_id == "client-1"
    assert [rule.id for rule in seen[0].rulesets[0].ruleset.rules] == ["r1"]
    assert cache.stat().st_mode & 0o777 == 0o600


async def test_an_unchanged_response_is_a_304_and_refreshes_the_age(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    clock = [1_800_000_000.0]
    async with syncing(control, cache, announced, clock=lambda: clock[0]) as sync:
        assert await sync.once()
    clock[0] += 100
    async with syncing(control, cache, announced, clock=lambda: clock[0]) as sync:
        assert sync.age_seconds == pytest.approx(100, abs=10)
        assert await sync.once()
        assert sync.age_seconds == pytest.approx(0, abs=10)
    assert control.sync_requests[1].value("If-None-Match")
    assert announced == [("v1", True), ("v1", False)]
    assert read_snapshot(cache).synced_at == clock[0]


async def test_a_snapshot_that_is_another_s_is_written_again_when_it_is_confirmed(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may restore the snapshot from a backup.

    The agent can then read the restored snapshot file, but cannot set the file's times.
    """
    cache = tmp_path / "snapshot.json"
    clock = [1_800_000_000.0]
    async with syncing(control, cache, Announcements(), clock=lambda: clock[0]) as sync:
        assert await sync.once()
        put_back, utime = cache.stat().st_ino, os.utime

        def of_our_own_alone(path: Path, times: tuple[float, float]) -> None:
            if path.stat().st_ino == put_back:
                raise PermissionError(errno.EPERM, "Operation not permitted")
            utime(path, times)

        monkeypatch.setattr(os, "utime", of_our_own_alone)
        clock[0] += 100
        assert await sync.once()
        assert sync.check().status == "ok"
    assert control.sync_requests[-1].value("If-None-Match")
    assert read_snapshot(cache).synced_at == clock[0]


async def test_the_etag_survives_a_restart(tmp_path: Path, control: FakeControlPlane) -> None:
    for _ in range(2):
        async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
            assert await sync.once()
    assert control.sync_requests[1].value("If-None-Match")


def _without(member: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: {name: value for name, value in body.items() if name != member}


TWICE = sync_body()["apps"] * 2
BAD_YAML = [sync_body()["rulesets"][0] | {"version": 2, "yaml": "version: 1\nname: x\nrules: [{id: }]\n"}]


@pytest.mark.parametrize(
    "spoil",
    [
        _without("version"),
        _without("apps"),
        _without("rulesets"),
        lambda body: body | {"generatedAt": "yesterday"},
        lambda body: body | {"generatedAt": "2020-01-01T00:00:00.000Z"},
        lambda body: body | {"generatedAt": "9999-12-31T00:00:00.000Z"},
        lambda body: body | {"apps": TWICE},
        lambda body: body | {"apps": [{"appId": 7}]},
        lambda body: [],
    ],
)
async def test_a_signed_response_that_makes_no_sense_is_refused_whole(
    tmp_path: Path, control: FakeControlPlane, spoil: Callable[[dict[str, Any]], Any]
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        before = cache.read_bytes()
        control.sync_body = spoil(changed())
        assert not await sync.once()
        assert sync.check().status == "degraded"
        assert sync.snapshot is not None
        assert sync.snapshot.version == "v1"
        assert cache.read_bytes() == before
        control.sync_body = changed()
        assert await sync.once()
        assert sync.check().status == "ok"
    assert announced[-1] == ("v1", False) or announced[-1][0] == "v2"


def _of_two_organisations(**members: Any) -> dict[str, Any]:
    """Return a sync body with two organisations, each with one application and its own ruleset."""
    body = sync_body()
    app, ruleset = body["apps"][0], body["rulesets"][0]
    second = {"orgId": "org-2"}
    return changed(
        orgs=[*body["orgs"], second | {"name": "second"}],
        apps=[app, app | second | {"appId": "app-2", "clientId": "client-2", "rulesetId": "ruleset-2"}],
        rulesets=[ruleset, ruleset | second | {"rulesetId": "ruleset-2"}],
        **members,
    )


async def test_an_organisation_s_bad_ruleset_keeps_nothing_of_another_s_as_it_was(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """Although the sync contains a bad ruleset, it updates the application's secret.

    Only the bad ruleset stays at its active version.
    """
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        control.sync_body = _of_two_organisations()
        assert await sync.once()
        body = _of_two_organisations(version="v3")
        body["rulesets"][0] |= {"version": 2, "yaml": ruleset_yaml("new")}
        body["rulesets"][1] |= {"version": 2, "yaml": BAD_YAML[0]["yaml"]}
        body["apps"] = [app | {"secretVersion": 7} for app in body["apps"]]
        control.sync_body = body
        for _ in range(2):
            assert not await sync.once()
            assert "line 3" in sync.check().detail
            assert sync.check().status == "degraded"
        snapshot = read_snapshot(cache)
        assert [app.secret_version for app in snapshot.apps] == [7, 7]
        assert [(each.version, each.ruleset.name) for each in snapshot.rulesets] == [(2, "new"), (1, "rules")]
        assert snapshot.version == "v2"  # v3 is only partly active, so a 304 must not confirm it
        assert not control.sync_requests[-1].value("If-None-Match")
        body["apps"] = body["apps"][1:]  # the other one was removed
        assert not await sync.once()
        assert [app.app_id for app in read_snapshot(cache).apps] == ["app-2"]
        control.sync_body = _of_two_organisations(version="v4")
        assert await sync.once()
        assert sync.check().status == "ok"
    assert announced == [("v2", True), ("v2", True), ("v2", False), ("v2", True), ("v4", True)]


async def test_an_application_is_evaluated_as_before_where_its_new_ruleset_is_bad(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        app = sync_body()["apps"][0] | {"rulesetId": "ruleset-9"}
        newcomer = app | {"appId": "app-9", "clientId": "client-9"}
        bad = [BAD_YAML[0] | {"rulesetId": "ruleset-9"}]
        control.sync_body = changed(apps=[app, newcomer], rulesets=bad)
        assert not await sync.once()
        snapshot = read_snapshot(cache)
        (held,) = snapshot.rulesets
        assert [each.ruleset_id for each in snapshot.apps] == [held.ruleset_id, None]


async def test_a_bad_ruleset_is_told_with_its_place(tmp_path: Path, control: FakeControlPlane) -> None:
    control.sync_body = sync_body(rulesets=BAD_YAML)
    async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
        assert not await sync.once()
        assert "line 3" in sync.check().detail
        assert sync.check().status == "failed"


FOREIGN = Response(200, (), json.dumps(sync_body(version="forged")).encode())


@pytest.mark.parametrize(
    "response",
    [
        FOREIGN,
        Response(200, (("X-Hmac-Signature", "0" * 64),), FOREIGN.body),
        Response(304),
        Response(200),
        Response(500),
        Response(401),
        Response(302, (("Location", "/elsewhere"),)),
        Response(200, (), b"\x00" * 100),
        hang,
    ],
)
async def test_unsigned_broken_or_missing_responses_change_nothing(
    tmp_path: Path, control: FakeControlPlane, response: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        control.sync_script.append(response)
        before = cache.read_bytes(), cache.stat().st_mtime
        with monkeypatch.context() as limits:
            if response is hang:  # a short time-out for this request alone: the others must succeed
                limits.setattr(sync._control_plane, "_timeout", aiohttp.ClientTimeout(total=0.2))
            assert not await sync.once()
        assert (cache.read_bytes(), cache.stat().st_mtime) == before
        assert sync.check().status == "degraded"
        assert await sync.once()
    assert announced[0] == ("v1", True)
    assert "forged" not in [version for version, _ in announced]


async def test_a_signed_response_to_another_request_is_refused(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache = tmp_path / "snapshot.json"
    recorded: list[Response] = []
    real = control.signed

    def record(request: Any, response: Response) -> Response:
        recorded.append(real(request, response))
        return recorded[-1]

    async with syncing(control, cache, Announcements()) as sync:
        control.signed = record  # type: ignore[method-assign]
        assert await sync.once()
        sync._control_plane._clock = lambda: time.time() - 5
        control.sync_script.append(recorded[0])
        assert not await sync.once()
        assert "not signed" in sync.check().detail


@pytest.mark.parametrize("spoil", [str.upper, lambda s: s[:-1], lambda s: "", lambda s: s + "0"])
async def test_any_other_spelling_of_the_response_s_signature_is_refused(
    tmp_path: Path, control: FakeControlPlane, spoil: Callable[[str], str]
) -> None:
    control.spoil_signature = spoil
    async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
        assert not await sync.once()
        assert sync.snapshot is None


async def test_unsigned_responses_are_taken_only_where_the_settings_say_so(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.sign_responses = False
    async with syncing(control, tmp_path / "snapshot.json", Announcements(), require_signed=False) as sync:
        assert await sync.once()
        assert await sync.once()


async def test_an_unsigned_304_makes_the_next_request_a_whole_one(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
        assert await sync.once()
        control.sync_script.append(Response(304))
        assert not await sync.once()
        assert await sync.once()
    assert [bool(each.value("If-None-Match")) for each in control.sync_requests] == [False, True, False]


async def test_generated_at_never_goes_back_not_even_across_a_lost_snapshot(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache = tmp_path / "snapshot.json"
    control.sync_body = changed()
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
    cache.write_bytes(b"damaged")
    control.sync_body = sync_body()
    async with syncing(control, cache, Announcements()) as sync:
        assert sync.snapshot is None
        assert not await sync.once()
        assert "older" in sync.check().detail
        control.sync_body = changed(orgs=[])
        assert await sync.once()


async def test_an_unchanged_ruleset_is_not_parsed_again(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    real = sync_module._parse

    def parse(delivered: SyncRuleset) -> Ruleset:
        parsed.append(delivered.name)
        return real(delivered)

    monkeypatch.setattr(sync_module, "_parse", parse)
    rulesets = sync_body()["rulesets"]
    for _ in range(2):
        async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
            assert await sync.once()
            second = rulesets[0] | {
                "rulesetId": "ruleset-2",
                "name": "second",
                "yaml": ruleset_yaml("second"),
            }
            control.sync_body = changed(rulesets=[*rulesets, second])
            assert await sync.once()
    assert parsed == ["rules", "second"]


async def test_too_large_a_response_is_refused(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "_MAX_BODY", 200)
    async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
        assert not await sync.once()
        assert "larger" in sync.check().detail


@pytest.mark.parametrize(("asked", "interval"), [(30, 30.0), (7, 7.0), (3600, 30.0), (0, 30.0), (None, 30.0)])
async def test_the_control_plane_can_only_shorten_the_interval(
    tmp_path: Path, control: FakeControlPlane, asked: float | None, interval: float
) -> None:
    control.sync_body = sync_body(metadata={"syncIntervalSeconds": asked})
    async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
        assert await sync.once()
        assert sync.interval == interval
        assert all(0.9 * interval <= sync._pause() <= interval for _ in range(100))


async def test_how_long_to_linger_outlives_a_restart_and_a_304(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.sync_body = sync_body(metadata={"linger": {"seconds": 3, "orgs": {"org-1": 12.5}}})
    for _ in range(2):
        async with syncing(control, tmp_path / "snapshot.json", Announcements()) as sync:
            assert await sync.once()
            assert sync.linger == SyncLinger(3, {"org-1": 12.5})
    assert control.sync_requests[1].value("If-None-Match")


async def test_a_failed_sync_says_what_to_do_and_points_to_the_doctor(
    tmp_path: Path, control: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    refused = {"error": {"code": "unknownApiKey", "message": "no proxy has this key"}}
    control.sync_script.append(Response(401, body=json.dumps(refused).encode()))
    theirs = CertificateAuthority(tmp_path / "theirs").server()
    async with FakeControlPlane(tls=theirs) as stranger:
        causes = {
            control.base_url: "401 unknownApiKey: no proxy has this key; put the API key of `proxy add` into",
            stranger.base_url: "is refused: unable to get local issuer certificate; name the authority that "
            "issued it in Agent.CaFile (PEM)",
            f"http://127.0.0.1:{free_port()}": "Connection refused; start the program that should listen "
            "there, or correct the port in RuleSync.SaasBaseUrl",
            "http://control.invalid": "control.invalid does not resolve: ",
        }
        for url, report in causes.items():
            async with open_session(client_tls(None), DIRECT) as session:
                sync = Sync(
                    ControlPlane(session, lambda: Identity(API_KEY, HMAC_SECRET.encode())),
                    url=f"{url}{SYNC_PATH}",
                    cache_path=tmp_path / "snapshot.json",
                    interval=30,
                    require_signed=True,
                    announce=Announcements(),
                )
                await sync.once()
            line = caplog.records[-1].getMessage()
            assert line.startswith("sync failed, there are no rules yet: ")
            assert report in line
            assert "correct RuleSync.SaasBaseUrl, or make" in line or not url.endswith(".invalid")
            assert line.endswith("(for details, run the same command with --doctor)")


async def test_failures_are_retried_sooner_than_the_interval(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.sync_script.extend([Response(500)] * 2)
    async with syncing(control, tmp_path / "snapshot.json", Announcements(), interval=30.0) as sync:
        task = asyncio.create_task(sync.run())
        await asyncio.wait_for(control.until(lambda: len(control.sync_requests) >= 3), PATIENCE_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_full_disk_leaves_the_rules_in_force(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        control.sync_body = changed(orgs=[])

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(sync_module, "write_snapshot", full)
            assert not await sync.once()
        assert announced == [("v1", True)]
        assert await sync.once()
        assert announced[-1] == ("v2", True)


# Stops and shadow rulesets


STOPPED = {"everything": True, "orgs": [], "apps": []}


def with_app(**members: Any) -> dict[str, Any]:
    return changed(apps=[sync_body()["apps"][0] | members])


@pytest.mark.parametrize(
    "report",
    [{"everything": True}, {"orgs": ["org-1"]}, {"apps": ["app-1"], "laterMember": 1}],
)
async def test_stops_are_persisted_in_a_way_that_earlier_releases_obey(
    tmp_path: Path, control: FakeControlPlane, report: dict[str, Any]
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        assert not read_snapshot(cache).stops
        control.sync_body = changed(stops=report)
        assert await sync.once()
        snapshot = read_snapshot(cache)
        assert snapshot.stops.concern("org-1", "app-1")
        assert snapshot.stops.concern("org-2", "app-2") == report.get("everything", False)
        assert not snapshot.apps[0].enabled  # an earlier release reads only this member
        control.sync_body = changed() | {"version": "v3"}
        assert await sync.once()
        assert not read_snapshot(cache).stops
        assert read_snapshot(cache).apps[0].enabled
    assert announced == [("v1", True), ("v2", True), ("v3", True)]


async def test_stops_come_and_go_though_a_ruleset_is_bad(tmp_path: Path, control: FakeControlPlane) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        control.sync_body = changed(rulesets=BAD_YAML, stops=STOPPED)
        assert not await sync.once()
        assert read_snapshot(cache).stops.everything
        assert announced == [("v1", True), ("v1", True)]
        control.sync_body = changed(rulesets=BAD_YAML)
        assert not await sync.once()
        assert not read_snapshot(cache).stops


async def test_a_stop_does_not_wait_for_a_response_that_can_be_taken(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        control.sync_body = changed(apps=TWICE, stops=STOPPED)
        assert not await sync.once()
        assert read_snapshot(cache).stops.everything
        assert announced == [("v1", True), ("v1", True)]
        control.sync_body = changed(apps=TWICE)  # a refused response lifts no stop
        assert not await sync.once()
        assert read_snapshot(cache).stops.everything
        control.sync_body = sync_body()  # the state before these changes, when the proxy had an ETag
        assert await sync.once()
        assert not read_snapshot(cache).stops


async def test_a_worker_s_complaint_waits_for_no_response(tmp_path: Path, control: FakeControlPlane) -> None:
    """The control plane may delay its response for half a minute."""
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        cache.unlink()
        asked, responded = asyncio.Event(), asyncio.Event()

        async def silent() -> Response:
            asked.set()
            await responded.wait()
            return Response(503)

        control.sync_script.append(silent)
        asking = asyncio.create_task(sync.once())
        await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
        await sync.write_again()
        assert not asking.done()
        assert read_snapshot(cache).version == "v1"
        assert announced == [("v1", True), ("v1", False)]
        responded.set()
        assert not await asking


async def test_two_stops_that_can_not_be_taken_hold_both(tmp_path: Path, control: FakeControlPlane) -> None:
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        (tmp_path / f".snapshot.json.{os.getpid()}.tmp").mkdir()
        control.sync_body = changed(apps=TWICE, stops={"orgs": ["org-7"]})
        assert not await sync.once()
        (tmp_path / f".snapshot.json.{os.getpid()}.tmp").rmdir()
        control.sync_body = changed(apps=TWICE, stops={"apps": ["app-7"]})
        assert not await sync.once()
        assert read_snapshot(cache).stops == Stops(orgs=frozenset(("org-7",)), apps=frozenset(("app-7",)))
        assert not sync.stopped_beside


async def test_an_application_that_is_disabled_does_not_wait_for_a_response_that_can_be_taken(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        disabled = [sync_body()["apps"][0] | {"enabled": False}]
        twice = sync_body()["rulesets"] * 2
        control.sync_body = changed(rulesets=twice, apps=disabled)
        assert not await sync.once()
        assert read_snapshot(cache).stops == Stops(apps=frozenset(("app-1",)))
        control.sync_body = changed(rulesets=twice, apps=[])  # does not mention the stop
        assert not await sync.once()
        assert read_snapshot(cache).stops == Stops(apps=frozenset(("app-1",)))
        control.sync_body = changed()
        assert await sync.once()
        assert not read_snapshot(cache).stops


async def test_what_can_not_be_written_is_stopped_all_the_same(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        (tmp_path / f".snapshot.json.{os.getpid()}.tmp").mkdir()  # a directory in place of the temporary file
        control.sync_body = changed(stops=STOPPED)
        assert not await sync.once()
        assert sync.stopped_beside.everything
        assert announced == [("v1", True), ("v1", True)]
        assert not await sync.once()
        assert len(announced) == 2
        control.sync_body = changed()  # no stop is lifted before this can be written
        assert not await sync.once()
        assert sync.stops.everything
        (tmp_path / f".snapshot.json.{os.getpid()}.tmp").rmdir()
        assert await sync.once()
        assert not sync.stops
        assert announced == [("v1", True), ("v1", True), ("v2", False)]


async def test_a_mark_that_can_not_be_read_keeps_no_stop_away(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """The agent refuses rules if its stored `generatedAt` is unreadable, because the rules may be old."""
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        mark = tmp_path / "snapshot.json.generated-at"
        mark.unlink()
        mark.mkdir()
        control.sync_body = changed(stops=STOPPED)
        assert not await sync.once()
        held = read_snapshot(cache)
        assert (held.version, held.stops.everything) == ("v1", True)


async def test_a_stop_is_told_though_there_are_no_rules(tmp_path: Path, control: FakeControlPlane) -> None:
    """The agent can't write the rules snapshot. The workers may have rules that an earlier agent wrote."""
    cache, announced = tmp_path / "snapshot.json", Announcements()
    cache.mkdir()
    async with syncing(control, cache, announced) as sync:
        control.sync_body = changed(stops=STOPPED)
        assert not await sync.once()
        assert sync.stopped_beside.everything
        assert announced == [("", True)]
        cache.rmdir()
        assert await sync.once()
        assert not sync.stopped_beside
        assert read_snapshot(cache).stops.everything
        assert announced == [("", True), ("v2", True)]


async def test_a_clock_that_was_days_ahead_refuses_nothing(tmp_path: Path, control: FakeControlPlane) -> None:
    """The agent applied rules while the agent's clock was wrong, and then the clock was corrected."""
    cache, ahead = tmp_path / "snapshot.json", [3 * 86400.0]
    async with syncing(control, cache, Announcements(), clock=lambda: time.time() + ahead[0]) as sync:
        control.sync_body = sync_body(generatedAt=rfc3339(int((time.time() + ahead[0]) * 1000)))
        assert await sync.once()
        ahead[0] = 0.0
        control.sync_body = changed(stops=STOPPED, generatedAt=rfc3339(int((time.time() + 3 * 86400) * 1000)))
        assert not await sync.once()  # the control plane's own clock may need time to be corrected
        assert "is in the future" in sync.check().detail
        assert read_snapshot(cache).stops.everything  # no stop is delayed by this
        control.sync_body = changed(generatedAt=rfc3339(int(time.time() * 1000)))
        assert await sync.once()
        assert read_snapshot(cache).version == "v2"
        assert not sync.stops


async def test_a_mark_of_a_time_to_come_refuses_nothing(tmp_path: Path, control: FakeControlPlane) -> None:
    """A flipped bit can move the stored `generatedAt` thousands of years into the future."""
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        mark = tmp_path / "snapshot.json.generated-at"
        mark.write_text("6" + mark.read_text()[1:])
        control.sync_body = changed()
        assert await sync.once()
        assert mark.read_text().startswith("20")


async def test_a_stop_that_nobody_signed_is_none(tmp_path: Path, control: FakeControlPlane) -> None:
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        control.sign_responses = False
        control.sync_body = changed(stops=STOPPED)
        assert not await sync.once()
        assert not read_snapshot(cache).stops


@pytest.mark.parametrize("named", ["ruleset-1", None])
async def test_a_shadow_ruleset_is_part_of_the_rules(
    tmp_path: Path, control: FakeControlPlane, named: str | None
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        control.sync_body = with_app(shadowRulesetId=named)
        assert await sync.once()
        assert read_snapshot(cache).apps[0].shadow_ruleset_id == named
    assert announced == [("v1", True), ("v2", named is not None)]


CREDENTIALS: Final = [
    {"kind": "secret", "id": "crd-1", "endsAt": "2026-11-22T00:00:00.000Z", "hash": "$argon2id$standin"},
    {
        "kind": "federated",
        "id": "crd-2",
        "endsAt": None,
        "issuer": "https://issuer.example/v2.0",
        "subject": "workload",
        "audience": "api://AzureADTokenExchange",
        "reuse": "untilEnd",
        "keys": {"keys": [{"kty": "EC", "kid": "one"}]},
    },
    {"kind": "publicKey", "id": "crd-3", "endsAt": None, "key": {"kty": "RSA"}, "thumbprints": ["x5t"]},
    {"kind": "certificate", "id": "crd-4", "endsAt": None, "certificate": "MAA=", "thumbprint": "abc"},
]
UNREADABLE: Final = [
    {"kind": "passkey", "id": "crd-5", "endsAt": None},
    {"kind": "secret", "id": "crd-6", "endsAt": "tomorrow", "hash": "$argon2id$standin"},
    {"kind": "federated", "id": "crd-7", "endsAt": None, "issuer": "https://issuer.example"},
]


async def test_credentials_are_part_of_the_rules_and_one_that_can_not_be_read_proves_nobody(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        assert credentials_of(read_snapshot(cache).apps[0]) is None
        control.sync_body = with_app(credentials=[*UNREADABLE, *CREDENTIALS])
        assert await sync.once()
        assert credentials_of(read_snapshot(cache).apps[0]) == (
            Secret("crd-1", 1795305600.0, "$argon2id$standin"),
            Federated(
                *("crd-2", None, "https://issuer.example/v2.0", "workload", "api://AzureADTokenExchange"),
                reuse="untilEnd",
                keys={"keys": [{"kty": "EC", "kid": "one"}]},
            ),
            PublicKey("crd-3", None, {"kty": "RSA"}, ("x5t",)),
            Certificate("crd-4", None, b"0\0", "abc"),
        )
        control.sync_body = with_app(credentials=[]) | {"version": "v3"}
        assert await sync.once()
        assert credentials_of(read_snapshot(cache).apps[0]) == ()
        # The control plane's clock decides that they have ended, whatever the local clock is.
        ended = [UNREADABLE[0], *CREDENTIALS[2:]]
        control.sync_body = with_app(credentials=[], endedCredentials=ended) | {"version": "v4"}
        assert await sync.once()
        assert credentials_of(read_snapshot(cache).apps[0]) == (
            PublicKey("crd-3", 0.0, {"kty": "RSA"}, ("x5t",)),
            Certificate("crd-4", 0.0, b"0\0", "abc"),
        )
    assert announced == [("v1", True), ("v2", True), ("v3", True), ("v4", True)]


async def test_what_an_earlier_release_left_out_is_asked_for_again(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """A snapshot that an earlier release wrote lacks the stops, but has the current version of the rules.

    A 304 response would leave this incomplete snapshot unchanged, so the agent requests the rules without
    their version.
    """
    cache = tmp_path / "snapshot.json"
    control.sync_body = changed(stops=STOPPED)
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
    written = read_snapshot(cache)
    write_snapshot(cache, msgspec.structs.replace(written, stops=Stops(), read=0))
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        assert await sync.once()
        assert read_snapshot(cache).stops.everything
    asked_for_less = [request.value("If-None-Match") != "" for request in control.sync_requests]
    assert asked_for_less == [False, False, True]


async def test_rules_that_an_earlier_release_read_otherwise_are_read_again(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """The rules' text is unchanged, but the snapshot has the rules as an earlier release parsed them."""
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
    written = read_snapshot(cache)
    (held,) = written.rulesets
    other = msgspec.structs.replace(held, ruleset=msgspec.structs.replace(held.ruleset, rules=()))
    write_snapshot(cache, msgspec.structs.replace(written, rulesets=(other,), read=1))
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        assert read_snapshot(cache).rulesets == (held,)
    assert held.ruleset.rules
