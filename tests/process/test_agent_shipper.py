"""Tests of the delivery of audit events: how each response of the control plane affects a batch.

Slow delivery of one organisation's events never delays the events of another organisation.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.journal import Journal
from proxy.agent.shipper import LARGEST_BODY, Shipper
from proxy.audit.record import decode, event_of, lines_of
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.retry import retry_after
from proxy.outbound.session import open_session
from proxy.wire.models import SyncLinger
from tests.fakes import server
from tests.fakes.control_plane import (
    API_KEY,
    HMAC_SECRET,
    FakeControlPlane,
    accepted,
    break_off,
    error,
    foreign,
    hang,
)
from tests.fakes.server import Response
from tests.process.agent_parts import MIB, one_thread, payload

NOW_MS = 4_000_000_000_000  # events of the future never count as a backlog


def journal_with(directory: Path, counts: dict[str, int], **fields: Any) -> Journal:
    journal = Journal(directory, max_bytes=512 * MIB)
    add(journal, counts, **fields)
    return journal


def add(journal: Journal, counts: dict[str, int], **fields: Any) -> None:
    for org_id, count in counts.items():
        for _ in range(count):
            seq = journal.next_seq(org_id)
            data = payload(seq, org_id, **({"time_ms": NOW_MS} | fields))
            journal.add(org_id, lines_of([event_of(decode(data), 1, seq, "proxy-1")]), 1)
    journal.commit()


@dataclass
class Rig:
    journal: Journal
    shipper: Shipper
    control: FakeControlPlane

    async def ship(self, condition: Callable[[], bool] | None = None) -> None:
        """Deliver events until no event is left, or until the condition is true."""
        self.shipper.notify(self.journal.pending())
        if condition is not None:
            await self.control.until(condition)
            return
        await asyncio.gather(*self.shipper._tasks.values())
        assert self.journal.pending() == {}


@asynccontextmanager
async def rig(
    journal: Journal,
    control: FakeControlPlane,
    *,
    timeout_seconds: float = 30.0,
    require_signed: bool = True,
    **changes: Any,
) -> AsyncIterator[Rig]:
    options: dict[str, Any] = {
        "url": control.base_url + "/api/v1/agent/audit",
        "max_batch_size": 100,
        "replay_interval": 0.05,
        "catch_up": True,
        "asked": lambda: None,
        "least_linger": 0.0,
    }
    identity = Identity(API_KEY, HMAC_SECRET.encode())
    with one_thread() as disk:
        async with open_session(client_tls(None), DIRECT) as session:
            calls = ControlPlane(
                session, lambda: identity, require_signed=require_signed, timeout_seconds=timeout_seconds
            )
            shipper = Shipper(journal, disk, calls, **(options | changes))
            yield Rig(journal, shipper, control)
            await shipper.stop(0.0)
    assert control.problems == []


@pytest.fixture
async def control() -> AsyncIterator[FakeControlPlane]:
    async with FakeControlPlane() as fake:
        yield fake


async def test_all_events_arrive_once_and_in_order(tmp_path: Path, control: FakeControlPlane) -> None:
    journal = journal_with(tmp_path, {"org-1": 350, "org-2": 20})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 351))
    assert control.seqs("org-2") == list(range(1, 21))
    assert [len(json.loads(body)["events"]) for bodies in control.bodies.values() for body in bodies].count(
        100
    ) == 3


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (None, {"org-1": 3.0, "org-2": 3.0}),
        (SyncLinger(2.0, {"org-1": 12.0}), {"org-1": 12.0, "org-2": 4.0}),
        (SyncLinger(0.0, {}), {"org-1": 3.0, "org-2": 3.0}),
        (SyncLinger(-1.0, {"org-1": 1e9}), {"org-1": 300.0, "org-2": 3.0}),
    ],
    ids=["an earlier control plane", "an organisation with many proxies", "nothing", "no sense"],
)
async def test_a_small_batch_waits_as_long_as_the_control_plane_asks(
    tmp_path: Path, control: FakeControlPlane, asked: SyncLinger | None, waits: dict[str, float]
) -> None:
    journal = journal_with(tmp_path, {"org-1": 1, "org-2": 1})
    async with rig(journal, control, asked=lambda: asked, least_linger=1.5) as parts:
        parts.shipper.notify(journal.pending())
        assert {org_id: parts.shipper._linger(org_id) for org_id in waits} == waits


async def test_neither_a_full_batch_nor_a_stop_waits(tmp_path: Path, control: FakeControlPlane) -> None:
    journal = journal_with(tmp_path, {"org-1": 5})
    lingering = SyncLinger(200.0, {"org-1": 300.0})
    async with rig(journal, control, asked=lambda: lingering, max_batch_size=5) as parts:
        await parts.ship()
        add(journal, {"org-1": 1})
        parts.shipper.notify(journal.pending())
        await parts.shipper.stop(10.0)
    assert control.seqs("org-1") == [1, 2, 3, 4, 5, 6]


async def test_the_body_is_the_envelope_of_the_contract(tmp_path: Path, control: FakeControlPlane) -> None:
    journal = journal_with(tmp_path, {"org-1": 2})
    async with rig(journal, control) as parts:
        await parts.ship()
    (body,) = next(iter(control.bodies.values()))
    assert set(json.loads(body)) == {"batchId", "events"}
    assert body.count(b"\n") == 0


@pytest.mark.parametrize(
    "failure",
    [
        Response(500),
        Response(502),
        Response(503),
        error(401, "timestampOutOfRange"),
        error(429, "rateLimited", ("Retry-After", "0")),
        error(429, "rateLimited"),
        Response(302, (("Location", "http://127.0.0.1:1/"),)),
        Response(200, (), b"<html>captive portal</html>"),
        Response(404),
        break_off,
    ],
)
async def test_a_failure_keeps_the_batch_and_sends_the_same_bytes_again(
    tmp_path: Path, control: FakeControlPlane, failure: Any
) -> None:
    control.audit_script.extend([failure, failure])
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 8))
    assert [len(bodies) for bodies in control.bodies.values()] == [1]


async def test_a_server_that_hangs_is_left_and_the_batch_sent_again(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.audit_script.append(hang)
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control, timeout_seconds=0.2) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 8))
    assert [len(bodies) for bodies in control.bodies.values()] == [1]


async def test_a_control_plane_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    async with FakeControlPlane() as first:
        port = first.port
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, first) as parts:
        parts.shipper.notify(journal.pending())
        while not parts.shipper.problems():  # noqa: ASYNC110 - no event is set for a call without a response
            await asyncio.sleep(0.01)
        assert "org-1" in parts.shipper.problems()
        async with FakeControlPlane(port=port) as second:
            await second.until(lambda: len(second.seqs("org-1")) == 7)
            await asyncio.gather(*parts.shipper._tasks.values())
            assert parts.shipper.problems() == {}


async def test_retry_after_is_never_undercut(tmp_path: Path, control: FakeControlPlane) -> None:
    control.audit_script.append(error(429, "rateLimited", ("Retry-After", "2")))
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
    (first, *_, status), (second, *_) = control.attempts
    assert status == 429
    assert second - first >= 2.0


async def test_who_stands_in_between_puts_off_for_minutes_at_most(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent delays the delivery for longer than usual only after a 429 that the control plane signed."""
    monkeypatch.setattr("proxy.agent.shipper._STRANGERS_WAIT", 0.5)
    control.audit_script.append(Response(429, (("Retry-After", "999999999"),), b"<html>later</html>"))
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == [1, 2, 3, 4, 5, 6, 7]


async def test_a_stop_does_not_undercut_retry_after(tmp_path: Path, control: FakeControlPlane) -> None:
    control.audit_script.append(error(429, "rateLimited", ("Retry-After", "60")))
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship(lambda: bool(control.attempts))
        await parts.shipper.stop(1.0)
    assert len(control.attempts) == 1
    assert journal.pending() == {"org-1": 7}


async def test_a_last_stop_repeats_what_fails_and_asks_no_sooner_than_it_was_told(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.audit_script.extend([Response(503), break_off, error(429, "rateLimited", ("Retry-After", "2"))])
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control, replay_interval=600.0) as parts:
        await parts.ship(lambda: bool(control.attempts))
        await parts.shipper.stop(30.0, retry=True)
    assert control.seqs("org-1") == list(range(1, 8))
    (*_, (limited, *_), (last, *_)) = control.attempts
    assert last - limited >= 2.0


async def test_a_last_stop_leaves_in_time_what_cannot_be_sent_until_then(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.audit_script.append(error(429, "rateLimited", ("Retry-After", "60")))
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship(lambda: bool(control.attempts))
        began = asyncio.get_running_loop().time()
        await parts.shipper.stop(30.0, retry=True)
        assert asyncio.get_running_loop().time() - began < 25.0  # less than the 30 s that the stop may last
    assert journal.pending() == {"org-1": 7}


@pytest.mark.parametrize("status", [400, 403])
async def test_a_batch_refused_for_good_is_set_aside_with_the_response(
    tmp_path: Path, control: FakeControlPlane, status: int
) -> None:
    control.audit_script.append(error(status, "notAuthorisedForTenant"))
    journal = journal_with(tmp_path, {"org-1": 150})
    async with rig(journal, control) as parts:
        await parts.ship()
        assert "notAuthorisedForTenant" in parts.shipper.quarantined()["org-1"]
    assert control.seqs("org-1") == list(range(101, 151))
    (path,) = (tmp_path / "rejected").iterdir()
    kept = json.loads(path.read_bytes())
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept["status"] == status
    assert "notAuthorisedForTenant" in kept["answer"]
    assert (kept["firstSeq"], kept["lastSeq"]) == (1, 100)
    (sent,) = control.bodies[path.stem]
    assert kept["batch"] == json.loads(sent)
    assert journal.status().rejected_batches == 1


@pytest.mark.parametrize("status", [400, 403, 413])
@pytest.mark.parametrize("page", [b"<html>welcome", b'{"batchId":17}', b"[]"])
async def test_a_refusal_by_something_between_is_no_word_about_a_batch(
    tmp_path: Path, control: FakeControlPlane, status: int, page: bytes
) -> None:
    control.audit_script.extend([Response(status, (("Content-Type", "text/html"),), page)] * 2)
    journal = journal_with(tmp_path, {"org-1": 1})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == [1]
    assert list((tmp_path / "rejected").iterdir()) == []


@pytest.mark.parametrize("times", [1, 3])
async def test_409_sends_the_same_events_under_a_new_id(
    tmp_path: Path, control: FakeControlPlane, times: int
) -> None:
    """If the proxy's clock is wrong again, the new batch id expires too.

    The agent pauses between its delivery attempts.
    """
    control.audit_script.extend([error(409, "batchExpired")] * times)
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert len({attempt[2] for attempt in control.attempts}) == times + 1
    assert control.seqs("org-1") == list(range(1, 8))


async def test_a_batch_id_that_the_control_plane_has_for_other_events_is_replaced(
    tmp_path: Path, control: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    control.audit_script.append(accepted(accepted=3, duplicate=True, contentDiffers=True))
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
        assert parts.shipper.reused_ids == 1
    first, second = control.attempts
    assert first[2] != second[2]
    assert control.seqs("org-1") == list(range(1, 8))
    assert "the control plane has other events under this id" in caplog.text


FOREIGN = {
    "an empty 202": Response(202, (("Via", "1.1 gateway"), ("X", "y")), b" "),
    "a 202 that names the batch": foreign(accepted(accepted=7)),
    "a duplicate": foreign(accepted(duplicate=True)),
    **{
        f"a {status} without a signature": foreign(error(status, code))
        for status, code in (
            (400, "invalidPayload"),
            (403, "notAuthorisedForTenant"),
            (409, "batchExpired"),
            (429, "rateLimited"),
        )
    },
    "a signed 403 about another batch": error(403, "notAuthorisedForTenant", batchId="another"),
    "a signed 409 about no batch": error(409, "batchExpired", batchId=None),
    "a signed refusal as 202": error(202, "notAuthorisedForTenant"),
    "a signed failure as 400": error(400, "unavailable"),
}


@pytest.mark.parametrize("name", FOREIGN)
async def test_an_unproven_response_leaves_the_batch_as_it_is(
    tmp_path: Path, control: FakeControlPlane, name: str
) -> None:
    control.audit_script.extend([FOREIGN[name]] * 2)
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship(lambda: len(control.attempts) == 2)
        await parts.ship()
        assert parts.shipper.problems() == {}
    assert control.seqs("org-1") == list(range(1, 8))
    assert len({batch_id for _, _, batch_id, _ in control.attempts}) == 1
    assert list((tmp_path / "rejected").iterdir()) == []


async def test_an_unproven_413_splits_and_sets_nothing_aside(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """A gateway in front of the control plane may have its own limit for the size of request bodies.

    A control plane can't sign its 413 for a body that it did not read.
    """
    control.audit_script.extend([foreign(error(413, "batchTooLarge"))] * 6)
    journal = journal_with(tmp_path, {"org-1": 8})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 9))
    assert list((tmp_path / "rejected").iterdir()) == []
    assert len(next(iter(control.bodies.values()))) == 1


@pytest.mark.parametrize(
    ("response", "least", "most"),
    [
        (error(429, "rateLimited", ("Retry-After", "86400"), retryAfterSeconds=1), 1.0, 20.0),
        (foreign(error(429, "rateLimited", ("Retry-After", "0"), retryAfterSeconds=86400)), 0.0, 20.0),
    ],
)
async def test_of_two_waits_the_signed_one_counts(
    tmp_path: Path, control: FakeControlPlane, response: Response, least: float, most: float
) -> None:
    control.audit_script.append(response)
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
    (first, *_), (second, *_) = control.attempts
    assert least <= second - first <= most


async def test_without_required_signatures_what_names_the_batch_is_believed(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """A control plane that implements only the specification does not have to sign its responses."""
    control.sign_responses = False
    html = Response(202, (("Content-Type", "text/html"),), b"<html>one moment</html>")
    control.audit_script.extend([html, foreign(accepted(batchId="another")), error(409, "batchExpired")])
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control, require_signed=False) as parts:
        await parts.ship()
    ids = [batch_id for _, _, batch_id, _ in control.attempts]
    assert ids == [ids[0]] * 3 + [ids[3]]
    assert ids[3] != ids[0]
    assert control.seqs("org-1") == list(range(1, 8))


async def test_413_halves_until_it_fits(tmp_path: Path, control: FakeControlPlane) -> None:
    control.audit_script.extend([error(413, "batchTooLarge")] * 3)
    journal = journal_with(tmp_path, {"org-1": 80})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 81))
    assert len({batch_id for _, _, batch_id, _ in control.attempts}) == len(control.attempts)
    sizes = [len(json.loads(body)["events"]) for bodies in control.bodies.values() for body in bodies]
    assert sizes[:3] == [80, 40, 20]


async def test_a_413_for_a_while_does_not_keep_batches_small(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.audit_script.extend([error(413, "batchTooLarge")] * 5)
    journal = journal_with(tmp_path, {"org-1": 20_000})
    async with rig(journal, control, max_batch_size=1000) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 20_001))
    sizes = [len(json.loads(body)["events"]) for bodies in control.bodies.values() for body in bodies]
    assert max(sizes[-3:]) > 5 * min(sizes)


async def test_a_single_event_that_is_too_large_is_set_aside(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.audit_script.append(error(413, "batchTooLarge"))
    journal = journal_with(tmp_path, {"org-1": 1})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert len(list((tmp_path / "rejected").iterdir())) == 1


async def test_organisations_do_not_wait_for_each_other(tmp_path: Path, control: FakeControlPlane) -> None:
    blockers: list[Callable[[], Awaitable[Response]] | Response] = [
        hang, error(429, "rateLimited", ("Retry-After", "600")), Response(503), error(400, "invalidPayload")
    ]  # fmt: skip
    for number, blocker in enumerate(blockers):
        control.organisation_scripts[f"bad-{number}"] = deque([blocker] * 500)
    counts = {f"bad-{number}": 300 for number in range(len(blockers))} | {"good": 1000}
    journal = journal_with(tmp_path, counts)
    async with rig(journal, control, max_batch_size=50) as parts:
        await parts.ship(lambda: len(control.seqs("good")) == 1000)


async def test_a_backlog_grows_batches_by_bytes_and_the_present_does_not(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEPT_BODY_BYTES", 6 * MIB)
    journal = journal_with(tmp_path, {"org-1": 20_000}, time_ms=1_000_000_000_000)
    async with rig(journal, control) as parts:
        await parts.ship()
        sizes = {len(body) for bodies in control.bodies.values() for body in bodies}
        assert max(sizes) <= LARGEST_BODY
        assert max(sizes) > 3_500_000
        assert len(control.attempts) <= 5
        add(journal, {"org-1": 150})
        control.attempts.clear()
        await parts.ship()
        assert len(control.attempts) == 2
    assert control.seqs("org-1") == list(range(1, 20_151))


async def test_without_catch_up_a_backlog_goes_out_in_ordinary_batches(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    journal = journal_with(tmp_path, {"org-1": 1000}, time_ms=1_000_000_000_000)
    async with rig(journal, control, catch_up=False) as parts:
        await parts.ship()
    assert len(control.attempts) == 10


async def test_after_a_restart_the_batch_in_flight_has_the_same_id_and_bytes(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    control.down = True
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship(lambda: len(control.attempts) >= 2)
    add(journal, {"org-1": 100})
    control.down = False
    async with rig(Journal(tmp_path, max_bytes=512 * MIB), control) as parts:
        await parts.ship()
    assert {len(bodies) for bodies in control.bodies.values()} == {1}
    assert control.seqs("org-1") == list(range(1, 108))
    assert len(control.events["org-1"]) == 107


async def test_a_response_that_was_lost_after_the_store_counts_once(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    real = control._audit_response
    lost = False

    async def store_then_break(org_id: str) -> Response:
        return await real(org_id)

    async def respond_then_lose(request: Any, real_response: Any = control.response) -> Response:
        nonlocal lost
        response: Response = await real_response(request)
        if request.path.endswith("/audit") and not lost:
            lost = True
            raise ConnectionAbortedError("lost on the way back")
        return response

    control._audit_response = store_then_break  # type: ignore[method-assign]
    control.response = respond_then_lose  # type: ignore[method-assign]
    journal = journal_with(tmp_path, {"org-1": 7})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 8))
    assert len(control.attempts) == 2


async def test_a_disk_that_is_full_for_a_while_loses_nothing(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_with(tmp_path, {"org-1": 250})
    failures = 3
    save = journal._state_file.save

    def full(body: bytes) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError(28, "No space left on device")
        save(body)

    monkeypatch.setattr(journal._state_file, "save", full)
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 251))


async def test_journal_files_go_once_they_are_delivered(tmp_path: Path, control: FakeControlPlane) -> None:
    journal = Journal(tmp_path, max_bytes=4 * MIB)
    add(journal, {"org-1": 2000})
    assert len(list((tmp_path / "journal" / "org-1").iterdir())) > 5
    async with rig(journal, control) as parts:
        await parts.ship()
    assert len(list((tmp_path / "journal" / "org-1").iterdir())) <= 1
    add(journal, {"org-1": 10})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == list(range(1, 2011))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("17", 17.0),
        (" 17\t", 17.0),
        ("999999999", 86400.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.0),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30.0),
        (None, None),
        ("", None),
        ("-5", None),
        ("1_0", None),
        ("1.5", None),
        ("１７", None),
        ("soon", None),
        ("9" * 5000, None),
        ("Tue, 99 Nov 2023 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, 1_700_000_000.0) == seconds


async def test_events_of_an_earlier_identity_go_out_with_the_numbers_of_the_present_one(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """The events of a new proxy get numbers from 1, so the control plane reports no number as missing."""
    journal = journal_with(tmp_path, {"org-1": 30, "org-2": 4}, path='/v1.0/a","seq":7,"b')
    journal.number_for("proxy-1", None)
    async with rig(journal, control, max_batch_size=10) as parts:
        control.organisation_scripts["org-1"] = deque([Response(202), *[Response(503)] * 9])
        await parts.ship(lambda: len(control.attempts) > 4)
    begun = journal.state.organisations["org-1"].batches[0].batch_id
    assert (control.seqs("org-1"), control.seqs("org-2")) == (list(range(1, 11)), [1, 2, 3, 4])
    first = [event["id"] for event in control.events.pop("org-1")]
    control.events.pop("org-2")
    del control.organisation_scripts["org-1"]
    journal.number_for("proxy-2", None)
    add(journal, {"org-1": 5, "org-2": 5})
    journal = Journal(tmp_path, max_bytes=512 * MIB)  # started again
    journal.number_for("proxy-2", "proxy-1")
    assert journal.status().last_seq == {"org-1": 25, "org-2": 5}
    async with rig(journal, control, max_batch_size=10) as parts:
        await parts.ship()
    assert (control.seqs("org-1"), control.seqs("org-2")) == (list(range(1, 26)), [1, 2, 3, 4, 5])
    assert control.events["org-1"][0]["path"] == '/v1.0/a","seq":7,"b'
    assert len({event["id"] for event in control.events["org-1"]} - set(first)) == 25
    assert begun not in {attempt[2] for attempt in control.attempts[-4:]}
    control.events.clear()
    journal.number_for("proxy-3", None)
    add(journal, {"org-1": 2})
    async with rig(journal, control) as parts:
        await parts.ship()
    assert control.seqs("org-1") == [1, 2]


async def test_a_gap_has_the_numbers_that_the_control_plane_knows(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    journal = journal_with(tmp_path, {"org-1": 3})
    journal.number_for("proxy-1", None)
    journal.skip("org-1", 2, "of the earlier identity")
    async with rig(journal, control) as parts:
        await parts.ship()
        journal.number_for("proxy-2", None)
        journal.skip("org-1", 2, "of this one")
        add(journal, {"org-1": 1})
        control.organisation_scripts["org-1"] = deque([error(403, "notAuthorisedForTenant")])
        await parts.ship()
    (gap,) = journal.status().gaps
    assert (gap.first, gap.last, gap.cause) == (1, 2, "of this one")
    assert "seq 3-3" in parts.shipper.quarantined()["org-1"]


def test_the_state_of_an_earlier_release_names_no_identity(tmp_path: Path) -> None:
    journal = journal_with(tmp_path, {"org-1": 3})
    journal.number_for("proxy-1", None)
    assert journal.status().last_seq == {"org-1": 3}
    other = journal_with(tmp_path / "other", {"org-1": 3})
    other.number_for("proxy-2", "proxy-1")
    add(other, {"org-1": 1})
    assert other.status().last_seq == {"org-1": 4}, "all of them are pending"
