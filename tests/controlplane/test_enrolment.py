"""Tests of proxies that enrol with a token, renew their keys, and are retired."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from controlplane.connections import Connection, Connections
from controlplane.names import InvalidName, new_id
from controlplane.operations import deletions, enrolment, fleet, proxies
from controlplane.operations.actor import Actor, Forbidden, local_actor
from controlplane.operations.operation import Operation
from controlplane.operations.perform import perform
from controlplane.retention import WitnessedTime
from controlplane.retirement import Retirement
from controlplane.secrets import digest
from controlplane.store.interface import (
    Enrolled,
    Enrolment,
    EnrolmentToken,
    LogQuery,
    NewKeys,
    NotFound,
    Org,
    Renewal,
)
from controlplane.store.open_store import open_store
from controlplane.store.pages import ListQuery
from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import (
    HEARTBEAT,
    NOON_MS,
    FakeClock,
    Plane,
    ProxyClient,
    Response,
    batch,
    context_of,
)

ENGINES = ("sqlite", "postgres")
ENROL = "/api/v1/enrol"
ADMIN = local_actor("test")
DAY = 24.0  # hours
BEAT = json.dumps({"version": "0.2.0", "uptimeSeconds": 1, "checks": {}, "lastSeq": {}, "auditPending": 0})


async def do(plane: Plane, operation: Operation[Any, Any], asked: Any, actor: Actor = ADMIN) -> Any:
    return await perform(operation, context_of(plane), actor, asked)


async def token(plane: Plane, **members: Any) -> enrolment.NewEnrolmentToken:
    asked = enrolment.AddEnrolmentToken(**{"orgs": ("acme",), "uses": 9, **members})
    made: enrolment.NewEnrolmentToken = await do(plane, enrolment.add, asked)
    return made


async def enrol(
    plane: Plane, secret: str, name: str = "edge-7f9c", enrolment_id: str = "", *, body: bytes | None = None
) -> Response:
    asked = {"name": name, "enrolmentId": enrolment_id or str(uuid4()), "version": "0.2.0"}
    async with plane.session.post(
        plane.base_url + ENROL,
        data=json.dumps(asked).encode() if body is None else body,
        headers={"Authorization": f"Bearer {secret}"},
    ) as response:
        return Response(response.status, response.headers, await response.read())


def client(plane: Plane, answer: Any) -> ProxyClient:
    keys = answer["proxyId"], answer["apiKey"], answer["hmacSecret"]
    return ProxyClient(plane.session, plane.base_url, plane.clock, *keys)


async def renew(proxy: ProxyClient, renewal_id: str = "") -> Response:
    return await proxy.send(ENROL, json.dumps({"renewalId": renewal_id or str(uuid4())}).encode())


async def lines(plane: Plane) -> list[tuple[str, str, str | None, str | None]]:
    found = await plane.store.operator_log(LogQuery(limit=50))
    return [(each.operator, each.operation, each.outcome, each.result) for each in found]


async def test_a_token_gives_a_proxy_its_identity_and_keys_that_work(plane: Plane) -> None:
    org_id = await plane.org("acme")
    made = await token(plane, name="k8s", uses=1, rotate_days=30)
    response = await enrol(plane, made.token)
    assert response.status == 201
    assert response.json == {
        "proxyId": response.json["proxyId"],
        "name": "edge-7f9c",
        "orgs": [{"orgId": org_id, "name": "acme"}],
        "apiKey": response.json["apiKey"],
        "hmacSecret": response.json["hmacSecret"],
        "rotateAt": "2026-12-21T12:00:00.000Z",
    }
    assert response.headers["Cache-Control"] == "no-store"
    proxy = client(plane, response.json)
    assert (await proxy.sync()).json["metadata"]["rotateAt"] == "2026-12-21T12:00:00.000Z"
    assert (await proxy.audit(batch("b1", org_id, [1, 2]))).status == 202
    assert (await lines(plane))[0] == ("enrolment:k8s", "proxy.enrol", "done", "enrolled edge-7f9c, 1 of 1")

    refused = await enrol(plane, made.token)
    assert (refused.status, refused.code) == (401, "invalidEnrolmentToken")
    assert "used up" in refused.json["error"]["message"]
    assert (await lines(plane))[0][1:3] == ("proxy.enrol", "forbidden")
    shown = await do(plane, enrolment.show, enrolment.EnrolmentTokenReference("k8s"))
    assert (shown.state, shown.used, [each.name for each in shown.proxies]) == ("used up", 1, ["edge-7f9c"])
    details = await do(plane, fleet.show, fleet.ProxyReference("edge-7f9c"))
    assert (details.enrolment_token, details.rotation_is_due) == ("k8s", False)


async def test_a_lost_response_costs_no_further_use_until_the_proxy_was_seen(plane: Plane) -> None:
    await plane.org("acme")
    made, enrolment_id = await token(plane, uses=1), str(uuid4())
    first = await enrol(plane, made.token, enrolment_id=enrolment_id)
    assert (await enrol(plane, made.token, enrolment_id=enrolment_id)).code == "rateLimited"
    plane.clock.advance(seconds=1)
    again = await enrol(plane, made.token, enrolment_id=enrolment_id.upper())
    assert (again.status, again.json["proxyId"]) == (201, first.json["proxyId"])
    assert again.json["apiKey"] != first.json["apiKey"]
    assert (await client(plane, first.json).sync()).code == "unknownApiKey"

    assert (await client(plane, again.json).sync()).status == 200
    plane.clock.advance(seconds=1)
    hijack = await enrol(plane, made.token, enrolment_id=enrolment_id)
    assert (hijack.status, hijack.code) == (400, "invalidPayload")
    assert (await client(plane, again.json).sync()).status == 200


async def test_a_token_ends_at_its_moment_and_a_stranger_learns_nothing(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await plane.org("acme")
    made = await token(plane, expires="2h")
    plane.clock.advance(hours=2, seconds=-0.001)
    assert (await enrol(plane, made.token)).status == 201
    plane.clock.advance(seconds=0.001)
    assert "has expired" in (await enrol(plane, made.token)).json["error"]["message"]

    codes = [(await enrol(plane, f"gwe_{number}")).code for number in range(20)]
    assert codes == ["invalidEnrolmentToken"] * 20
    limited = await enrol(plane, "gwe_x")
    assert (limited.status, int(limited.headers["Retry-After"]) > 0) == (429, True)
    holder = await enrol(plane, made.token)  # the holder of a real token learns its state, and this is logged
    assert "has expired" in holder.json["error"]["message"]
    assert [each[1:3] for each in await lines(plane)].count(("proxy.enrol", "forbidden")) == 2
    other = await token(plane)
    # failures of unauthenticated clients do not delay it
    assert (await enrol(plane, other.token, "edge-2")).status == 201
    for value in ("", "Basic x", "Bearer", "Bearer " + "x" * 300):
        async with plane.session.post(plane.base_url + ENROL, headers={"Authorization": value}) as response:
            assert response.status == 401
    async with plane.session.post(plane.base_url + ENROL) as response:
        assert (await response.json())["error"]["code"] == "invalidEnrolmentToken"
    assert made.token not in caplog.text
    assert other.token not in caplog.text


async def test_an_operator_takes_keys_back_whatever_renewal_is_under_way(plane: Plane) -> None:
    await plane.org("acme")
    old = client(plane, (await enrol(plane, (await token(plane)).token)).json)
    await old.sync()

    async def rotated(grace_seconds: int) -> ProxyClient:
        asked = proxies.RotateProxySecret("edge-7f9c", grace_seconds=grace_seconds)
        made = await do(plane, proxies.rotate_secret, asked)
        return replace(old, api_key=made.api_key, hmac_secret=made.hmac_secret)

    enrolment_id = str(uuid4())
    made = await token(plane)
    await enrol(plane, made.token, "other", enrolment_id)  # the response is lost
    await do(plane, proxies.rotate_secret, proxies.RotateProxySecret("other"))
    plane.clock.advance(seconds=1)
    assert (await enrol(plane, made.token, "other", enrolment_id)).code == "invalidPayload"

    by_operator = await rotated(86_400)
    refused = await renew(old)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await lines(plane))[0][:3] == ("proxy:edge-7f9c", "proxy.renew-keys", "forbidden")
    assert [(await each.sync()).status for each in (old, by_operator)] == [200, 200]

    renewed = client(plane, (await renew(by_operator)).json)
    last = await rotated(0)  # while signatures of renewals with older keys are already verified
    for thief in (old, by_operator, renewed):
        for seconds in (-0.05, 0.1):  # the clocks of two hosts differ
            plane.clock.advance(seconds=seconds)
            signed_s = plane.clock.wall_ms() // 1000 + 7200
            asked = Renewal(old.proxy_id, digest(thief.api_key), signed_s, "192.0.2.1")
            assert await plane.store.renew_keys(asked, NewKeys(b"k", b"s")) == "replaced"
    assert [(await each.sync()).status for each in (old, by_operator, renewed, last)] == [401, 401, 401, 200]


async def test_a_renewal_whose_response_was_lost_never_locks_the_proxy_out(plane: Plane) -> None:
    await plane.org("acme")
    old = client(plane, (await enrol(plane, (await token(plane, rotate_days=1)).token)).json)
    await old.sync()
    plane.clock.advance(hours=DAY)
    assert (await renew(old)).status == 200  # the response is lost, and the host is off for a month
    plane.clock.advance(hours=30 * DAY)
    assert (await old.sync()).status == 200
    shown = await do(plane, fleet.show, fleet.ProxyReference("edge-7f9c"))
    assert (shown.old_keys_until, shown.renewed_keys_are_unused) == (None, True)
    new = client(plane, (await renew(old)).json)
    assert (await new.sync()).status == 200
    shown = await do(plane, fleet.show, fleet.ProxyReference("edge-7f9c"))
    assert (shown.old_keys_until, shown.renewed_keys_are_unused) == ("2026-12-22T13:00:00.000Z", False)
    plane.clock.advance(hours=1)
    assert [(await each.sync()).status for each in (old, new)] == [401, 200]


async def test_repetitions_are_fewer_each_time_and_leave_one_line(plane: Plane) -> None:
    await plane.org("acme")
    made, enrolment_id = await token(plane), str(uuid4())

    async def repeated(ask: Callable[[], Awaitable[Response]]) -> list[Response]:
        given = []
        for _ in range(64):
            response = await ask()
            if response.status == 429:
                assert 1 <= int(response.headers["Retry-After"]) <= 3600
            else:
                given.append(response)
            plane.clock.advance(seconds=1)
        return given

    enrolled = await repeated(lambda: enrol(plane, made.token, enrolment_id=enrolment_id))
    assert len(enrolled) == 7  # after 0, 1, 3, 7, 15, 31 and 63 s
    old = client(plane, enrolled[-1].json)
    await old.sync()
    renewed = await repeated(lambda: renew(old))
    assert len(renewed) == 7
    assert [each[1:3] for each in await lines(plane)][:4] == [
        *[("proxy.renew-keys", "done")] * 2,
        *[("proxy.enrol", "done")] * 2,
    ]
    new = client(plane, renewed[-1].json)
    await new.sync()
    assert len(await repeated(lambda: renew(new))) == 0  # no renewal is due
    plane.clock.advance(hours=1)
    assert (await renew(new)).status == 200


async def test_a_copy_of_a_renewal_gives_nobody_keys(plane: Plane) -> None:
    await plane.org("acme")
    proxy = client(plane, (await enrol(plane, (await token(plane)).token)).json)
    await proxy.sync()
    body = json.dumps({"renewalId": str(uuid4())}).encode()
    headers = proxy.headers(body)
    new = client(plane, (await proxy.send(ENROL, body, headers=headers)).json)
    for seconds in (0, 1, 250):
        plane.clock.advance(seconds=seconds)
        assert (await proxy.send(ENROL, body, headers=headers)).code == "rateLimited"
    assert (await new.sync()).status == 200
    assert (await proxy.send(ENROL, body, headers=headers)).code == "unknownApiKey"


async def test_whoever_enrols_stays_a_stranger_and_keeps_no_connection(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enrolment request, even with a valid token, does not make the client's connection authenticated.

    The control plane closes the connection after the response. Only a signed request authenticates a
    connection.
    """
    await plane.org("acme")
    made = await token(plane, name="leaked")
    proved = []

    def note(_: Connections, connection: Connection) -> None:
        if connection.transport is not None and not connection.transport.is_closing():
            proved.append(connection)

    monkeypatch.setattr(Connections, "proved", note)
    enrolled = await enrol(plane, made.token, name="edge-2")
    await do(plane, enrolment.revoke, enrolment.RevokeEnrolmentToken("leaked"))
    for response in (enrolled, await enrol(plane, made.token), await enrol(plane, "gwe_unknown")):
        assert response.headers["Connection"] == "close"
    assert not proved
    assert "Connection" not in (await client(plane, enrolled.json).sync()).headers
    assert proved


async def test_names_neither_collide_nor_look_like_another(plane: Plane) -> None:
    await plane.org("acme")
    await plane.proxy("Edge-1", "acme")
    made, enrolment_id = await token(plane), str(uuid4())
    answer = (await enrol(plane, made.token, "edge-1", enrolment_id)).json
    assert answer["name"] == f"edge-1-{enrolment_id[-8:]}"
    await plane.proxy("еdge-2", "acme")
    answer = (await enrol(plane, made.token, "EDGE-2", other_id := str(uuid4()))).json
    assert answer["name"] == f"EDGE-2-{other_id[-8:]}"
    odd = ["", "e\u0434ge", "edge 1", "edge-1\r\nX-Api-Key: x", "-edge", "x" * 101, str(uuid4()), "a\0b"]
    responses = [await enrol(plane, made.token, name) for name in odd]
    assert {(each.status, each.code) for each in responses} == {(400, "invalidPayload")}
    bodies = [b"", b"[]", b"{}", b'{"name": "x", "enrolmentId": "1"}', b"[" * 4000, b"\xff"]
    assert {(await enrol(plane, made.token, body=each)).code for each in bodies} == {"invalidPayload"}
    assert (await enrol(plane, made.token, body=b" " * 4097)).status == 413
    shown = await do(plane, enrolment.show, enrolment.EnrolmentTokenReference(made.name))
    assert shown.used == 2


async def test_keys_are_renewed_with_an_overlap_and_never_more_than_two_pairs(plane: Plane) -> None:
    await plane.org("acme")
    first = client(plane, (await enrol(plane, (await token(plane, rotate_days=1)).token)).json)
    await first.sync()
    plane.clock.advance(hours=DAY)
    lost = await renew(first)
    assert lost.status == 200
    assert lost.json["rotateAt"] == "2026-11-23T12:00:00.000Z"
    assert first.hmac_secret != lost.json["hmacSecret"]
    plane.clock.advance(seconds=1)
    answer = await renew(first)  # the response was lost, so its keys never work again
    second = client(plane, answer.json)
    assert [(await each.sync()).status for each in (first, client(plane, lost.json), second)] == [
        200,
        401,
        200,
    ]

    plane.clock.advance(hours=0.9)
    assert (await first.sync()).status == 200
    assert (await renew(first)).code == "unknownApiKey"  # the newer keys are in use
    plane.clock.advance(hours=0.1)
    assert (await first.sync()).code == "unknownApiKey"

    third = client(plane, (await renew(second)).json)
    assert [(await each.sync()).status for each in (second, third)] == [200, 200]
    forged = replace(third, hmac_secret=second.hmac_secret)  # each key works only with its own secret
    assert (await forged.sync()).code == "invalidSignature"
    by_hand = await plane.proxy("by-hand", "acme")
    assert (await renew(by_hand)).status == 403
    assert (await third.send(ENROL, BEAT.encode())).code == "invalidPayload"
    renewals = [each[2] for each in await lines(plane) if each[1] == "proxy.renew-keys"]
    assert renewals == ["forbidden", "done", "forbidden", "done", "done"]


async def test_the_response_to_a_renewal_is_signed_by_the_secret_of_the_key_that_asked(plane: Plane) -> None:
    await plane.org("acme")
    old = client(plane, (await enrol(plane, (await token(plane)).token)).json)
    body = json.dumps({"renewalId": str(uuid4())}).encode()
    headers = old.headers(body)
    response = await old.send(ENROL, body, headers=headers)
    signed = b"response." + headers["X-Hmac-Signature"].encode() + b"." + response.body
    expected = hmac.new(old.hmac_secret.encode(), signed, hashlib.sha256).hexdigest()
    assert response.headers["X-Hmac-Signature"] == expected


async def test_rotation_by_hand_with_a_grace_keeps_the_keys_that_the_proxy_has(plane: Plane) -> None:
    await plane.org("acme")
    old = await plane.proxy("edge-1", "acme")
    await old.sync()

    async def rotate(grace_seconds: int) -> ProxyClient:
        asked = proxies.RotateProxySecret("edge-1", grace_seconds=grace_seconds)
        made = await do(plane, proxies.rotate_secret, asked)
        return replace(old, api_key=made.api_key, hmac_secret=made.hmac_secret)

    never_used, new = await rotate(3600), await rotate(7200)
    assert [(await each.sync()).status for each in (old, never_used)] == [200, 401]
    shown = await do(plane, fleet.show, fleet.ProxyReference("edge-1"))
    assert shown.old_keys_until == "2026-11-21T14:00:00.000Z"
    assert (await new.sync()).status == 200
    plane.clock.advance(hours=1)
    assert (await old.sync()).status == 401
    now = await rotate(0)
    assert [(await each.sync()).status for each in (new, now)] == [401, 200]


async def test_a_revoked_token_ends_with_the_proxies_that_came_by_it(plane: Plane) -> None:
    await plane.org("acme")
    await plane.org("globex")
    made = await token(plane, name="leaked")
    first = client(plane, (await enrol(plane, made.token)).json)
    await first.sync()
    revoked = await do(plane, enrolment.revoke, enrolment.RevokeEnrolmentToken("leaked"))
    assert revoked.state == "revoked"
    assert (await enrol(plane, made.token)).code == "invalidEnrolmentToken"
    plane.clock.advance(seconds=1)
    second = client(plane, (await renew(first)).json)  # its proxies stay

    await plane.store.grant(first.proxy_id, (await plane.inventory.org("globex")).org_id)
    acme = (await plane.inventory.org("acme")).org_id
    with_proxies = enrolment.RevokeEnrolmentToken("leaked", with_proxies=True)
    context = context_of(plane)
    with pytest.raises(Forbidden):  # one of them serves an organisation of another operator
        await enrolment.revoke.perform(context, Actor("ada", {acme: "admin"}), with_proxies)
    with pytest.raises(Forbidden):
        await enrolment.revoke.perform(context, Actor("bob", {acme: "editor"}), with_proxies)
    assert (await second.sync()).status == 200
    await do(plane, enrolment.revoke, with_proxies)
    assert [(await each.sync()).code for each in (first, second)] == ["unknownApiKey"] * 2
    assert (await renew(second)).code == "unknownApiKey"
    logged = (await plane.store.operator_log(LogQuery(limit=1)))[0]
    assert (logged.request, logged.result) == (
        '{"token":"***","withProxies":true}',
        "revoked enrolment token leaked, and disabled 1 proxy that enrolled with it",
    )


async def test_whoever_finds_a_token_revokes_it_from_any_of_its_organisations(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await plane.org("acme")
    globex = await plane.org("globex")
    asked = enrolment.AddEnrolmentToken(("acme", "globex"), name="both", uses=9)
    made = await do(plane, enrolment.add, asked)
    async with plane.session.post(
        f"{plane.base_url}/admin/v1/enrolment-tokens/{made.token}/revoke"
    ) as response:
        assert response.status >= 400
    assert made.token not in caplog.text
    context = context_of(plane)
    found = enrolment.RevokeEnrolmentToken(made.token)
    with pytest.raises(Forbidden):
        await enrolment.revoke.perform(context, Actor("eve", {globex: "editor"}), found)
    with pytest.raises(NotFound, match="no enrolment token has this secret"):
        await enrolment.revoke.perform(context, Actor("mallory", {"other": "admin"}), found)
    ended = await enrolment.revoke.perform(context, Actor("ada", {globex: "admin"}), found)
    assert (ended.name, ended.state) == ("both", "revoked")


async def test_a_refusal_names_the_organisation_and_no_log_keeps_a_token(plane: Plane) -> None:
    acme, globex = await plane.org("acme"), await plane.org("globex")
    made = await token(plane, orgs=("acme", "globex"), name="two")
    proxy = client(plane, (await enrol(plane, made.token)).json)
    alone = enrolment.RevokeEnrolmentToken(made.token)
    ada = Actor("ada", {acme: "admin", globex: "viewer"})
    asked = enrolment.RevokeEnrolmentToken(made.token, with_proxies=True)
    with pytest.raises(Forbidden, match="the role admin in globex, which proxy edge-7f9c serves"):
        await enrolment.revoke.perform(context_of(plane), ada, asked)
    await do(plane, enrolment.revoke, alone)
    assert (await proxy.sync()).status == 200
    with pytest.raises(InvalidName):
        await token(plane, name=made.token)
    logged = "".join(each.request for each in await plane.store.operator_log(LogQuery(limit=50)))
    assert made.token not in logged
    assert '"name":"gwe_***"' in logged


@pytest.mark.parametrize("where", ["store", "server"])
async def test_the_command_revokes_a_token_that_was_found(
    plane: Plane, commands: Commands, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    await plane.org("acme")
    found = (await token(plane, name="leaked")).token
    with caplog.at_level("INFO"):
        ended = await commands.facts(where, "proxy", "enrol-token", "revoke", found, "--yes")
    assert (ended["name"], ended["state"]) == ("leaked", "revoked")
    logged = "".join(each.request for each in await plane.store.operator_log(LogQuery(limit=50)))
    assert found not in logged + caplog.text
    status, _, err = await commands.run(where, "proxy", "enrol-token", "revoke", f"{found}x", "--yes")
    assert (status, err) == (1, "no enrolment token has this secret\n")


async def test_a_silent_proxy_is_retired_by_witnessed_time_and_comes_back_by_a_call(plane: Plane) -> None:
    org_id = await plane.org("acme")
    gone = client(plane, (await enrol(plane, (await token(plane, retire_days=7)).token)).json)
    await gone.send(HEARTBEAT, BEAT.encode())
    stays = await plane.proxy("stays", "acme")
    witnessed = WitnessedTime()
    retirement = Retirement(plane.store, plane.clock, witnessed)
    end_ms = NOON_MS + 7 * 86_400_000
    assert (await stays.send(HEARTBEAT, BEAT.encode())).status == 200
    # one proxy of a token and one of an operator, on hosts whose clocks are ahead
    for proxy in (gone, stays):
        witnessed.agree(proxy.proxy_id, end_ms + 1)
    plane.clock.advance(hours=7 * DAY)
    assert await retirement.retire() == 0  # too early, by the control plane's own clock
    plane.clock.advance(seconds=0.001)
    if not plane.store.is_shared:  # otherwise the database's clock is the second witness
        witnessed.agree(stays.proxy_id, end_ms)
        assert await retirement.retire() == 0  # one proxy alone does not move the time
    witnessed.agree(stays.proxy_id, end_ms + 1)
    assert await retirement.retire() == 1
    assert (await lines(plane))[0] == (
        "control plane", "proxy.retire", "done", "retired edge-7f9c: no message for 7 days",
    )  # fmt: skip

    counts = await do(plane, fleet.count, fleet.CountFleet())
    assert (counts.total, counts.retired) == (1, 1)
    listed = await do(plane, fleet.list_all, fleet.ListFleet())
    assert [each.name for each in listed.proxies] == ["stays"]
    retired = await do(plane, fleet.list_all, fleet.ListFleet(retired=True))
    assert [(each.name, each.retired_at is not None) for each in retired.proxies] == [("edge-7f9c", True)]
    assert [each.name for each in (await plane.store.tally(9)).proxies] == ["stays"]

    assert (await gone.audit(batch("owed", org_id, [1]))).status == 202
    assert (await lines(plane))[0][:2] == ("proxy:edge-7f9c", "proxy.return")
    assert (await plane.store.list_proxies(ListQuery())).total == 2
    assert stays.proxy_id


async def test_many_at_once_never_get_more_identities_than_the_token_allows(
    tmp_path: Path, clock: FakeClock, engine: dict[str, str]
) -> None:
    """Run two control planes over one database, or two connections of one program to one SQLite file."""
    url = engine["Store"].split('"')[1] if engine else ""
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            stores.append(await open_store(tmp_path / "store.db", url, clock, None))
            stack.push_async_callback(stores[-1].close)
        await stores[0].add_org(Org("org-acme", "acme", "base", NOON_MS))
        made = EnrolmentToken(
            "t1", "k8s", ("org-acme",), 5, 0, NOON_MS, "ada", NOON_MS + 1, rotate_days=None, retire_days=None
        )
        await stores[0].add_enrolment_token(made, b"digest")

        async def one(number: int) -> bool:
            asked = Enrolment(b"digest", str(uuid4()), new_id(clock), f"edge-{number}", "192.0.2.1", "{}")
            keys = NewKeys(f"key {number}".encode(), b"sealed")
            outcome = await stores[number % 2].enrol(asked, lambda _: keys)
            return isinstance(outcome, Enrolled)

        outcomes = await asyncio.gather(*map(one, range(24)))
        assert sum(outcomes) == 5
        assert len(await stores[1].proxies(None)) == 5
        (after,) = await stores[1].enrolment_tokens()
        assert (after.used, after.state_at(NOON_MS)) == (5, "used up")


async def test_a_deleted_proxy_leaves_its_events_and_a_free_name(plane: Plane) -> None:
    org_id = await plane.org("acme")
    made = await token(plane)
    gone = client(plane, (await enrol(plane, made.token)).json)
    await gone.send(HEARTBEAT, BEAT.replace('"auditPending": 0', '"auditPending": 3').encode())
    assert (await gone.audit(batch("b1", org_id, [1, 4]))).status == 202
    plane.clock.advance(seconds=1)
    old_keys = client(plane, (await renew(gone)).json)
    effect = await do(plane, deletions.effect, deletions.EffectOfDeletion("proxy", "edge-7f9c"))
    assert "3 as of its last heartbeat" in effect.goes[1]
    reference = proxies.ProxyReference("edge-7f9c")
    with pytest.raises(Forbidden):
        await deletions.delete_proxy.perform(context_of(plane), Actor("bob", {org_id: "editor"}), reference)
    deleted = await do(plane, deletions.delete_proxy, proxies.ProxyReference("edge-7f9c"))
    assert (deleted.kind, deleted.id, deleted.name) == ("proxy", gone.proxy_id, "edge-7f9c")
    assert [(await each.sync()).code for each in (gone, old_keys)] == ["unknownApiKey"] * 2
    assert len(await plane.stored()) == 2
    with pytest.raises(NotFound, match="proxy edge-7f9c was deleted on 2026-11-21"):
        await do(plane, proxies.rotate_secret, proxies.RotateProxySecret("edge-7f9c"))
    assert (await enrol(plane, made.token)).json["name"] == "edge-7f9c"
    (report,) = (await plane.store.latest_reports([gone.proxy_id], 0)).values()
    assert report.heartbeat is not None  # a report of the earlier period says what did not arrive
