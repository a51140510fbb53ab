"""Tests of audit batches: their form, size and organisations.

The control plane counts each batch only once.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.wire.audit_event import uuid7
from tests.controlplane.plane import AUDIT, FakeClock, Plane, ProxyClient, batch, event, started

CAP = 5 * 1024 * 1024
DAY_MS = 24 * 3_600_000


async def test_a_batch_is_stored_byte_for_byte_before_its_202(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    odd = json.dumps(event(org, 1))[:-1] + ', "unknown":  {"n": 1.50, "e":"\\u00e9\\ud83d\\ude00"}, "x": [ ]}'
    body = f'{{"batchId": "b1", "events": [{odd}, {json.dumps(event(org, 2))}]}}'.encode()
    response = await proxy.send(AUDIT, body)
    assert response.status == 202
    assert response.json == {"batchId": "b1", "accepted": 2, "duplicate": False}
    stored = await plane.store.events_after(0, 10)
    assert stored[0].body == odd.encode()
    assert [(event.position, event.org_id) for event in stored] == [(1, org), (2, org)]


# Shape

REQUIRED = ("id", "time", "orgId", "method", "path", "status", "verdict")


def _without(member: str) -> dict[str, Any]:
    return {name: value for name, value in event("ORG", 1).items() if name != member}


BAD_EVENTS: dict[str, Any] = {
    **{
        f"no {member}": _without(member)
        for member in ("id", "time", "orgId", "method", "path", "status", "verdict")
    },
    "id empty": event("ORG", 1, id=""),
    "id number": event("ORG", 1, id=7),
    "id null": event("ORG", 1, id=None),
    "id with a NUL": event("ORG", 1, id="a\0b"),
    "org number": event("ORG", 1, orgId=7),
    "time number": event("ORG", 1, time=1795262400),
    "time without zone": event("ORG", 1, time="2026-11-21T04:25:58.123"),
    "time nonsense": event("ORG", 1, time="yesterday"),
    "time month 13": event("ORG", 1, time="2026-13-21T04:25:58.123Z"),
    "time past 9999 in UTC": event("ORG", 1, time="9999-12-31T23:00:00-05:00"),
    "time past 9999, with a member of another type": event(
        "ORG", 1, time="9999-12-31T23:59:59.999-00:01", durationMs="x"
    ),
    "time before 1 in UTC": event("ORG", 1, time="0001-01-01T00:00:00+14:00"),
    "status text": event("ORG", 1, status="200"),
    "status negative": event("ORG", 1, status=-1),
    "status true": event("ORG", 1, status=True),
    "status huge": event("ORG", 1, status=10**400),
    "verdict unknown": event("ORG", 1, verdict="permit"),
    "verdict case": event("ORG", 1, verdict="Allow"),
    "seq negative": event("ORG", 1, seq=-1),
    "seq text": event("ORG", 1, seq="1"),
    "seq past 64 bits": event("ORG", 1, seq=2**63),
    "not an object": "event",
    "null": None,
}


@pytest.mark.parametrize("name", BAD_EVENTS)
async def test_an_event_of_a_wrong_shape_is_400_and_nothing_is_stored(
    plane: Plane, proxy: ProxyClient, name: str
) -> None:
    (org,) = proxy.org_ids
    body = json.dumps({"batchId": "b1", "events": [event(org, 2), BAD_EVENTS[name]]}).replace(
        '"ORG"', f'"{org}"'
    )
    response = await proxy.send(AUDIT, body.encode())
    assert (response.status, response.code) == (400, "invalidPayload")
    assert await plane.stored() == []


async def test_the_first_and_the_last_time_of_utc_are_taken(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    given = ["0001-01-01T00:00:00Z", "0001-01-01T01:00:00+01:00", "9999-12-31T23:59:59.999Z"]
    events = [event(org, number, time=time) for number, time in enumerate(given)]
    assert (await proxy.audit({"batchId": "b1", "events": events})).status == 202
    assert [kept["time"] for _, kept in await plane.stored()] == given


DEEP = 10_000
BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"hello",
    "truncated": b'{"batchId": "b1", "events": [',
    "two values": b"{}{}",
    "array": b"[]",
    "null": b"null",
    "number": b"1",
    "no batch id": b'{"events": [EVENT]}',
    "batch id null": b'{"batchId": null, "events": [EVENT]}',
    "batch id empty": b'{"batchId": "", "events": [EVENT]}',
    "batch id number": b'{"batchId": 1, "events": [EVENT]}',
    "batch id too long": b'{"batchId": "' + b"x" * 257 + b'", "events": [EVENT]}',
    "batch id is a lone surrogate": b'{"batchId": "\\ud800", "events": [EVENT]}',
    "no events": b'{"batchId": "b1"}',
    "events empty": b'{"batchId": "b1", "events": []}',
    "events object": b'{"batchId": "b1", "events": {}}',
    "not UTF-8": b'{"batchId": "b1\xff", "events": [EVENT]}',
    "not UTF-8 in an unknown member": b'{"batchId": "b1", "x": "\xff", "events": [EVENT]}',
    "encoded surrogate": b'{"batchId": "b1", "x": "\xed\xa0\x80", "events": [EVENT]}',
    "lone surrogate in an unknown member": b'{"batchId": "b1", "x": "\\udc00", "events": [EVENT]}',
    "byte order mark": b'\xef\xbb\xbf{"batchId": "b1", "events": [EVENT]}',
    "UTF-16": '{"batchId": "b1", "events": []}'.encode("utf-16"),
    "NaN": b'{"batchId": "b1", "x": NaN, "events": [EVENT]}',
    "Infinity": b'{"batchId": "b1", "x": -Infinity, "events": [EVENT]}',
    "number past every range": b'{"batchId": "b1", "x": 1e999999, "events": [EVENT]}',
    "5000 digits": b'{"batchId": "b1", "x": ' + b"9" * 5000 + b', "events": [EVENT]}',
    "deep array": b'{"x": ' + b"[" * DEEP + b"]" * DEEP + b', "batchId": "b1", "events": [EVENT]}',
    "deep object": b'{"batchId": "b1", "x": '
    + b'{"a":' * DEEP
    + b"1"
    + b"}" * DEEP
    + b', "events": [EVENT]}',
    "deep and open": b'{"batchId": "b1", "events": ' + b"[" * DEEP,
    "NUL": b'{"batchId": "b1", "events": [EVENT]}\0',
    "raw control character": b'{"batchId": "b\n1", "events": [EVENT]}',
    "trailing comma": b'{"batchId": "b1", "events": [EVENT],}',
    "comment": b'{"batchId": "b1", /* */ "events": [EVENT]}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a_body_that_is_no_batch_is_400(
    plane: Plane, proxy: ProxyClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = json.dumps(event(proxy.org_ids[0], 1)).encode()
    response = await proxy.send(AUDIT, BAD_BODIES[name].replace(b"EVENT", good))
    assert (response.status, response.code) == (400, "invalidPayload")
    assert await plane.stored() == []
    assert not any(record.exc_info for record in caplog.records)


async def test_the_last_of_two_equal_keys_counts_everywhere(plane: Plane, proxy: ProxyClient) -> None:
    """If an event has a JSON key twice, the authorisation check and the store both use the last value."""
    (org,) = proxy.org_ids
    foreign = await plane.org("other")
    twice = json.dumps(event(org, 1)).replace('"orgId"', f'"orgId": "{org}", "orgId"', 1)
    good = twice.replace(f'"orgId": "{org}"', f'"orgId": "{foreign}"', 1)
    assert (await proxy.send(AUDIT, f'{{"batchId": "b1", "events": [{good}]}}'.encode())).status == 202
    bad = f'"orgId": "{foreign}"'.join(twice.rsplit(f'"orgId": "{org}"', 1))
    response = await proxy.send(AUDIT, f'{{"batchId": "b2", "events": [{bad}]}}'.encode())
    assert response.status == 403
    assert [stored_org for stored_org, _ in await plane.stored()] == [org]


async def test_odd_but_valid_values_are_kept(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    odd = event(
        org, 0, id="\x01\u2028é😀", path="/" + "x" * 65536, query="\x1b[31m\r\n", seq=2**63 - 1, ruleId=None
    )
    assert (await proxy.audit({"batchId": "\0é", "events": [odd]})).status == 202
    assert await plane.stored() == [(org, odd)]


# Size


def _of_size(org: str, size: int) -> bytes:
    body = json.dumps({"batchId": "big", "events": [event(org, 1, note="")]}).encode()
    return body.replace(b'"note": ""', b'"note": "' + b"x" * (size - len(body)) + b'"')


async def test_five_mebibytes_are_accepted_and_one_byte_more_is_413(plane: Plane, proxy: ProxyClient) -> None:
    body = _of_size(proxy.org_ids[0], CAP + 1)
    response = await proxy.send(AUDIT, body)
    assert (response.status, response.code) == (413, "batchTooLarge")
    body = _of_size(proxy.org_ids[0], CAP)
    assert len(body) == CAP
    # The refused batch left no trace of its id.
    response = await proxy.send(AUDIT, body)
    assert (response.status, response.json["duplicate"]) == (202, False)


async def test_a_chunked_body_is_cut_at_the_cap(plane: Plane, proxy: ProxyClient) -> None:
    body = _of_size(proxy.org_ids[0], CAP + 1)

    async def chunks() -> Any:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    response = await proxy.send(AUDIT, body, data=chunks())
    assert (response.status, response.code) == (413, "batchTooLarge")
    assert await plane.stored() == []


async def test_a_chunked_body_under_the_cap_is_accepted(proxy: ProxyClient) -> None:
    body = json.dumps(batch("b1", proxy.org_ids[0], range(5))).encode()

    async def chunks() -> Any:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    assert (await proxy.send(AUDIT, body, data=chunks())).json["accepted"] == 5


async def test_size_is_not_told_to_a_stranger(proxy: ProxyClient) -> None:
    response = await proxy.send(AUDIT, bytes(CAP + 1), headers={"X-Api-Key": "stranger"})
    assert (response.status, response.code) == (401, "unknownApiKey")


# Organisations


async def test_a_mix_of_organisations_is_400(plane: Plane) -> None:
    first, second = await plane.org("one"), await plane.org("two")
    proxy = await plane.proxy("both", "one", "two")
    mixed = {"batchId": "b1", "events": [event(first, 1), event(second, 2)]}
    response = await proxy.audit(mixed)
    assert (response.status, response.code) == (400, "mixedOrganisations")
    assert await plane.stored() == []
    assert (await proxy.audit(batch("b1", first, [1]))).json["duplicate"] is False
    assert (await proxy.audit(batch("b2", second, [2]))).status == 202


@pytest.mark.parametrize("unknown", [False, True])
async def test_a_foreign_organisation_is_403_and_does_not_tell_whether_it_exists(
    plane: Plane, proxy: ProxyClient, unknown: bool
) -> None:
    foreign = "01934d7a-0000-7000-8000-000000000000" if unknown else await plane.org("other")
    response = await proxy.audit(batch("b1", foreign, [1]))
    assert (response.status, response.code) == (403, "notAuthorisedForTenant")
    assert foreign not in response.body.decode()
    assert await plane.stored() == []
    # The batch id leaves no trace either.
    assert (await proxy.audit(batch("b1", proxy.org_ids[0], [1]))).json["duplicate"] is False


async def test_an_organisation_name_is_no_org_id(proxy: ProxyClient) -> None:
    assert (await proxy.audit(batch("b1", "acme", [1]))).status == 403


async def test_a_revoked_organisation_is_403_at_once(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    assert (await proxy.audit(batch("b1", org, [1]))).status == 202
    await plane.inventory.revoke("edge-1", "acme")
    assert (await proxy.audit(batch("b2", org, [2]))).code == "notAuthorisedForTenant"
    # A replay does not bypass the check either.
    assert (await proxy.audit(batch("b1", org, [1]))).code == "notAuthorisedForTenant"


# Each batch counts once


async def test_a_replay_is_a_duplicate(plane: Plane, proxy: ProxyClient) -> None:
    sent = batch("b1", proxy.org_ids[0], range(3))
    assert (await proxy.audit(sent)).json == {"batchId": "b1", "accepted": 3, "duplicate": False}
    for _ in range(3):
        response = await proxy.audit(sent)
        assert (response.status, response.json) == (202, {"batchId": "b1", "accepted": 3, "duplicate": True})
    assert len(await plane.stored()) == 3


async def test_concurrent_copies_of_a_batch_store_one(plane: Plane, proxy: ProxyClient) -> None:
    sent = batch("b1", proxy.org_ids[0], range(50))
    responses = await asyncio.gather(*(proxy.audit(sent) for _ in range(20)))
    assert [response.status for response in responses] == [202] * 20
    assert sorted(response.json["duplicate"] for response in responses) == [False] + [True] * 19
    assert len(await plane.stored()) == 50


async def test_the_idempotency_window_is_48_hours_from_the_first_acceptance(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    sent = batch("b1", proxy.org_ids[0], [1])
    await proxy.audit(sent)
    clock.advance(hours=47)
    assert (await proxy.audit(sent)).json["duplicate"] is True
    clock.advance(hours=1)
    assert (await proxy.audit(sent)).json["duplicate"] is True
    clock.advance(seconds=0.001)
    response = await proxy.audit(sent)
    assert (response.status, response.code) == (409, "batchExpired")
    # Under a new id the same events are accepted and stored once only.
    response = await proxy.audit({**sent, "batchId": "b1-again"})
    assert (response.status, response.json) == (
        202,
        {"batchId": "b1-again", "accepted": 0, "duplicate": False},
    )
    assert len(await plane.stored()) == 1


@pytest.mark.parametrize("ahead_days", [0, 365])
async def test_an_id_with_a_time_is_refused_without_end_although_it_is_kept_for_days(
    plane: Plane, proxy: ProxyClient, clock: FakeClock, ahead_days: int
) -> None:
    """The control plane refuses a batch id from a proxy whose clock was ahead when it made the id."""
    sent = batch(uuid7(clock.wall + ahead_days * DAY_MS, 1), proxy.org_ids[0], [1])
    assert (await proxy.audit(sent)).json["accepted"] == 1
    clock.advance(hours=48)
    assert (await proxy.audit(sent)).json["duplicate"] is True
    for days in (1, ahead_days + 8, 365):
        clock.advance(hours=24 * days)
        await plane.store.purge_batches(clock.wall, 10)
        assert (await proxy.audit(sent)).code == "batchExpired"
    assert await plane.store.purge_batches(clock.wall, 10) == 0  # the store had removed the id
    assert len(await plane.stored()) == 1


async def test_a_late_batch_with_an_old_id_is_stored_under_a_new_one(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    (org,) = proxy.org_ids
    old, young = uuid7(clock.wall - 8 * DAY_MS - 1, 1), uuid7(clock.wall - 8 * DAY_MS, 1)
    assert (await proxy.audit(batch(old, org, [1]))).code == "batchExpired"
    assert (await proxy.audit(batch(uuid7(clock.wall, 1), org, [1]))).json["accepted"] == 1
    assert (await proxy.audit(batch(young, org, [2]))).json["accepted"] == 1
    # Within the 48 hours the batch is a duplicate, although its own time is too old.
    clock.advance(hours=1)
    assert (await proxy.audit(batch(young, org, [2]))).json["duplicate"] is True


@pytest.mark.parametrize("jump_hours", [-365 * 24, 365 * 24])
async def test_a_jump_of_the_host_clock_moves_no_window(
    plane: Plane, proxy: ProxyClient, clock: FakeClock, jump_hours: int
) -> None:
    sent = batch("b1", proxy.org_ids[0], [1])
    await proxy.audit(sent)
    clock.wall += jump_hours * 3_600_000
    assert (await proxy.audit(sent)).json["duplicate"] is True
    clock.advance(hours=48, seconds=1)
    assert (await proxy.audit(sent)).code == "batchExpired"


async def test_batch_ids_are_remembered_across_restarts(tmp_path: Path, clock: FakeClock) -> None:
    async with started(tmp_path, clock) as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        sent = batch("b1", org, range(3))
        await proxy.audit(sent)
    clock.advance(hours=47)
    async with started(tmp_path, clock) as plane:
        proxy.base_url, proxy.session = plane.base_url, plane.session
        assert (await proxy.audit(sent)).json == {"batchId": "b1", "accepted": 3, "duplicate": True}
    clock.advance(hours=2)
    async with started(tmp_path, clock) as plane:
        proxy.base_url, proxy.session = plane.base_url, plane.session
        assert (await proxy.audit(sent)).code == "batchExpired"
        assert len(await plane.stored()) == 3


async def test_one_batch_id_of_two_proxies_and_two_tenants_does_not_collide(plane: Plane) -> None:
    first, second = await plane.org("one"), await plane.org("two")
    proxies = [await plane.proxy("p1", "one"), await plane.proxy("p2", "one"), await plane.proxy("p3", "two")]
    responses = [
        await proxies[0].audit(batch("b", first, [1])),
        await proxies[1].audit(batch("b", first, [2])),
        await proxies[2].audit(batch("b", second, [1])),
    ]
    assert [response.json["duplicate"] for response in responses] == [False] * 3
    assert [org for org, _ in await plane.stored()] == [first, first, second]


async def test_an_event_id_counts_once_in_its_organisation_and_freely_in_another(plane: Plane) -> None:
    first, second = await plane.org("one"), await plane.org("two")
    proxy = await plane.proxy("both", "one", "two")
    assert (await proxy.audit(batch("b1", first, [1, 1, 2]))).json["accepted"] == 2
    assert (await proxy.audit(batch("b2", first, [2, 3]))).json["accepted"] == 1
    assert (await proxy.audit(batch("b3", second, [1, 2, 3]))).json["accepted"] == 3


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 500, 777])
async def test_batches_of_every_size_are_stored_whole_and_in_order(
    plane: Plane, proxy: ProxyClient, count: int
) -> None:
    assert (await proxy.audit(batch("b1", proxy.org_ids[0], range(count)))).json["accepted"] == count
    assert [each["seq"] for _, each in await plane.stored()] == list(range(count))
