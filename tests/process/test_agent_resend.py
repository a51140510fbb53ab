"""Tests of quarantined batches: the agent sends them again after an operator moves them to `resend/`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.agent.resend import Resender
from tests.fakes import commands
from tests.fakes.control_plane import FakeControlPlane, accepted, error, foreign
from tests.fakes.server import Response
from tests.fakes.system import System
from tests.process.proxy_parts import (
    assert_no_gap,
    client_of,
    events,
    kill_control_plane,
    readiness,
    stored_paths,
    until,
    whole_system,
)
from tests.process.test_agent_shipper import Rig, journal_with, rig


@dataclass
class Refused:
    """Fixture with refused batches of org-1, which a test can move to `resend/` as an operator would."""

    directory: Path
    parts: Rig

    @property
    def rejected(self) -> list[Path]:
        return sorted((self.directory / "rejected").iterdir())

    @property
    def waiting(self) -> list[Path]:
        return sorted((self.directory / "resend").iterdir())

    def move_all(self) -> None:
        (self.directory / "resend").mkdir(exist_ok=True)
        for path in self.rejected:
            path.rename(self.directory / "resend" / path.name)


@pytest.fixture
async def control() -> AsyncIterator[FakeControlPlane]:
    async with FakeControlPlane() as fake:
        yield fake


@asynccontextmanager
async def refused(
    directory: Path,
    control: FakeControlPlane,
    batches: int = 1,
) -> AsyncIterator[Refused]:
    control.audit_script.extend([error(403, "notAuthorisedForTenant")] * batches)
    journal = journal_with(directory, {"org-1": 100 * batches})
    async with rig(journal, control) as parts:
        await parts.ship()
        shipper = parts.shipper
        resender = Resender(
            directory,
            shipper._control_plane,
            url=shipper._url,
            interval=0.02,
            all_taken=shipper.forget_quarantined,
        )
        running = asyncio.create_task(resender.run())
        yield Refused(directory, parts)
        assert not running.done()
        running.cancel()


async def test_what_was_moved_arrives_byte_for_byte_and_is_gone(
    tmp_path: Path,
    control: FakeControlPlane,
) -> None:
    async with refused(tmp_path, control, batches=2) as found:
        assert (len(found.rejected), control.seqs("org-1")) == (2, [])
        found.move_all()
        await until(lambda: not found.waiting)
        assert sorted(control.seqs("org-1")) == list(range(1, 201))
        assert [len(bodies) for bodies in control.bodies.values()] == [1, 1]  # the same bytes each time
        await until(lambda: found.parts.shipper.quarantined() == {})
        assert found.rejected == []


async def test_what_is_refused_again_goes_back_with_the_new_response(
    tmp_path: Path,
    control: FakeControlPlane,
) -> None:
    async with refused(tmp_path, control) as found:
        (before,) = (json.loads(path.read_bytes()) for path in found.rejected)
        control.audit_script.append(error(400, "invalidPayload"))
        found.move_all()
        await until(lambda: bool(found.rejected) and not found.waiting)
        (after,) = (json.loads(path.read_bytes()) for path in found.rejected)
        assert (before["status"], after["status"]) == (403, 400)
        assert "invalidPayload" in after["answer"]
        assert before["batch"] == after["batch"]
        assert found.parts.shipper.quarantined() != {}


@pytest.mark.parametrize(
    "response",
    [
        Response(503),
        Response(429, (("Retry-After", "0"),)),
        Response(403, (("Content-Type", "text/html"),), b"<html>no</html>"),
        accepted(batchId="another"),
        foreign(accepted(accepted=100)),
        foreign(error(403, "notAuthorisedForTenant")),
        foreign(error(409, "batchExpired")),
    ],
)
async def test_what_says_nothing_of_the_batch_keeps_it_for_the_next_time(
    tmp_path: Path,
    control: FakeControlPlane,
    response: Response,
) -> None:
    async with refused(tmp_path, control) as found:
        control.audit_script.extend([response, response])
        found.move_all()
        await until(lambda: not found.waiting)
        assert control.seqs("org-1") == list(range(1, 101))
        assert found.rejected == []
        assert len(control.attempts) == 4


async def test_who_stands_in_between_puts_off_for_minutes_at_most(
    tmp_path: Path,
    control: FakeControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("proxy.agent.shipper._STRANGERS_WAIT", 1.0)
    async with refused(tmp_path, control) as found:
        control.audit_script.append(Response(429, (("Retry-After", "86400"),), b"<html>later</html>"))
        found.move_all()
        await until(lambda: not found.waiting)
        assert control.seqs("org-1") == list(range(1, 101))
    assert f"batches in {tmp_path / 'resend'} wait for 1 s: something between this proxy" in caplog.text


@pytest.mark.parametrize(
    "response", [error(409, "batchExpired"), accepted(duplicate=True, contentDiffers=True)]
)
async def test_after_48_hours_or_if_the_id_is_taken_the_events_go_out_under_a_new_one(
    tmp_path: Path,
    control: FakeControlPlane,
    response: Response,
) -> None:
    async with refused(tmp_path, control) as found:
        control.audit_script.append(response)
        found.move_all()
        await until(lambda: not found.waiting)
        first, second = control.bodies
        assert first != second
        assert control.seqs("org-1") == list(range(1, 101))


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"batch":{}}'])
async def test_what_is_no_batch_goes_back_as_it_is_and_holds_up_nothing(
    tmp_path: Path,
    control: FakeControlPlane,
    content: bytes,
) -> None:
    async with refused(tmp_path, control) as found:
        (tmp_path / "resend").mkdir(exist_ok=True)
        (tmp_path / "resend" / "0.json").write_bytes(content)
        found.move_all()
        await until(lambda: not found.waiting)
        assert control.seqs("org-1") == list(range(1, 101))
        (back,) = found.rejected
        assert back.read_bytes() == content


# The whole system


def report(system: System, *arguments: str) -> Any:
    done = commands.run("--config", str(system.control_plane_config), *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.process
async def test_events_of_an_organisation_that_was_taken_from_the_proxy_by_mistake(tmp_path: Path) -> None:
    asked = {f"/v1.0/echo/{number}" for number in range(5)}
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        await kill_control_plane(system)
        for path in asked:
            assert (await client.get(path)).status == 200
        org = report(system, "org", "list")["orgs"][0]["name"]
        report(system, "proxy", "revoke", "demo-proxy", "--org", org)
        await system.start_control_plane()
        rejected, waiting = tmp_path / "audit" / "rejected", tmp_path / "audit" / "resend"
        await until(lambda: list(rejected.iterdir()))
        assert not asked & stored_paths(system)
        report(system, "proxy", "grant", "demo-proxy", "--org", org)

        def are_stored() -> bool:
            for file in rejected.glob("*.json"):  # more files appear until the proxy has received the grant
                file.rename(waiting / file.name)
            return asked <= stored_paths(system)

        await until(are_stored)
        await until(lambda: not list(waiting.iterdir()))
        assert_no_gap(events(system))
        await until(lambda: "quarantined" not in readiness(system)["checks"]["audit"]["detail"])
        assert readiness(system)["ready"]
