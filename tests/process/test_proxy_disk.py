"""Tests of a full audit disk: requests are refused, sent responses are recorded, and service recovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.audit.spool import budget_lock
from tests.fakes import commands
from tests.fakes.system import System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import (
    Client,
    Load,
    assert_no_gap,
    client_of,
    events,
    kill_all,
    kill_control_plane,
    log_of,
    metrics,
    processes,
    readiness,
    stored_paths,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

ENVIRONMENT = {"Audit__SegmentBytes": "262144"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a small disk, of a few MB, for the audit events."""
    disk = tmp_path / "audit"
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m,mode=700", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"a small disk can't be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Use all free bytes of the disk.

    A second call of `fill` also uses the disk bytes that other programs freed since the first call.
    """
    filler = disk / "something-else"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


async def until_refused(load: Load) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while 503 not in load.statuses():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def assert_not_ready(system: System) -> None:
    stranger = Client(system, system.client_context(), "no-token")
    reply = await stranger.get("/v1.0/echo/1")
    stranger.close()
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "notReady")
    assert int(reply.headers["retry-after"]) > 0


def served(load: Load) -> set[str]:
    return {path for path, status in load.responded.items() if status == 200}


async def settled(system: System, load: Load) -> None:
    """Check that every response has an event, and that refused requests never reach the upstream."""
    await until(lambda: served(load) <= stored_paths(system))
    found = events(system)
    assert_no_gap(found)
    paths = [event["path"] for event in found if event["path"].startswith("/v1.0/echo/")]
    assert len(paths) == len(set(paths))
    refused = {path for path, status in load.responded.items() if status == 503}
    assert refused.isdisjoint(paths)
    assert refused.isdisjoint(request.path for request in system.graph.requests)
    assert load.statuses() == {200, 503}


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path, small_disk: Path) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        before = processes(system)
        await kill_control_plane(system)  # so that no delivery frees space
        async with Load(system, clients=16) as load:  # the kernel spreads the clients over both workers
            await load.responses(50)
            filler = fill(small_disk)
            await until_refused(load)
            # The space of a removed segment would end the test's condition for a moment.
            await until(lambda: fill(small_disk) and readiness(system)["status"] == 503)
            assert readiness(system)["reasons"] == ["there is no room for audit events"]
            await assert_not_ready(system)
            assert metrics(system)["graphward_not_ready_total"] > 0
            filler.unlink()
            await system.start_control_plane()
            count = load.served
            await until(lambda: load.served > count + 50)
            await until(lambda: readiness(system)["ready"])
        await settled(system, load)
        assert processes(system) == before  # no process was restarted
    assert "no room for audit events" in log_of(system)
    assert "there is room for audit events again" in log_of(system)
    assert "Traceback" not in log_of(system)
    assert "SIGBUS" not in log_of(system)


def shown(system: System) -> dict[str, Any]:
    """Return the state of the proxy that operators see in the control plane."""
    done = commands.run("--config", str(system.control_plane_config), "proxy", "show", "demo-proxy", "--json")
    return dict(json.loads(done.stdout))


def audit_detail(system: System) -> str:
    return str(shown(system)["heartbeat"]["checks"]["audit"].get("detail", ""))


async def test_a_disk_that_does_not_response_silences_neither_heartbeat_nor_readiness(tmp_path: Path) -> None:
    """The test replaces a file with a FIFO, whose opening blocks like a disk that does not respond."""
    async with whole_system(tmp_path) as system, client_of(system) as client:
        assert (await client.get("/v1.0/echo/1")).status == 200
        await until(lambda: stored_paths(system) >= {"/v1.0/echo/1"})
        (journal,) = (tmp_path / "audit" / "journal").glob("*/*.ndjson")
        os.mkfifo(tmp_path / "hangs")
        (tmp_path / "hangs").rename(journal)
        await until(lambda: "the disk has not responded for" in audit_detail(system))
        ready = readiness(system)
        assert (ready["ready"], ready["checks"]["audit"]["status"]) == (True, "failed")
        assert metrics(system)["graphward_audit_missing_total"] == 0
        assert (await client.get("/v1.0/echo/2")).status == 200
        os.close(os.open(journal, os.O_WRONLY))
        await until(lambda: stored_paths(system) >= {"/v1.0/echo/2"})
        await until(lambda: "has not responded" not in audit_detail(system))
    assert "Traceback" not in log_of(system)


@pytest.mark.timeout(300)
async def test_a_disk_that_events_alone_have_filled_empties_again(tmp_path: Path, small_disk: Path) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        await kill_control_plane(system)
        # only the workers fill the disk, until the agent is replaced
        os.kill(processes(system)["agent"], signal.SIGSTOP)
        async with Load(system) as load:
            await until_refused(load)
            await system.start_control_plane()
            count = load.served
            # The supervisor replaces the agent first, and the next agent delivers what fills the disk.
            await until(lambda: load.served > count + 50, 2 * PATIENCE_SECONDS)
        await settled(system, load)
        await until(lambda: readiness(system)["ready"])


async def test_a_proxy_that_starts_on_a_full_disk_serves_once_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        await kill_all(system)
        filler = fill(small_disk)
        await system.start_proxy(until_ready=False)
        await until(lambda: "there is no room for audit events" in readiness(system)["reasons"])
        filler.unlink()
        await until(lambda: readiness(system)["ready"])
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
        await until(lambda: "/v1.0/echo/1" in stored_paths(system))


# A disk that becomes read-only, as a file system does after a device error


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Make the disk read-only, so that no file on the disk can be opened for writing.

    Processes can still write to files on the disk that are already mapped into memory.
    """
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


async def test_a_disk_that_turns_read_only_refuses_and_recovers(tmp_path: Path, small_disk: Path) -> None:
    async with whole_system(tmp_path, workers=1, environment=ENVIRONMENT) as system:
        before = processes(system)
        async with Load(system) as load:
            await load.responses(50)
            with read_only(small_disk):
                await until_refused(load)
                await until(lambda: readiness(system)["status"] == 503)
                assert readiness(system)["reasons"] == ["there is no room for audit events"]
                assert "Read-only file system" in readiness(system)["checks"]["audit"]["detail"]
            count = load.served
            await until(lambda: load.served > count + 50)
            await until(lambda: readiness(system)["ready"])
        await settled(system, load)
        assert processes(system) == before
    assert "Traceback" not in log_of(system)


async def test_a_proxy_that_starts_on_a_read_only_disk_serves_once_it_can_write(
    tmp_path: Path, small_disk: Path
) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        await kill_control_plane(system)
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/before")).status == 200
        await kill_all(system)
        await system.start_control_plane()
        with read_only(small_disk):
            await system.start_proxy(until_ready=False)
            await until(lambda: "there is no room for audit events" in readiness(system)["reasons"])
            await until(lambda: "Read-only" in readiness(system)["checks"]["audit"]["detail"])
            agent = processes(system)["agent"]
        await until(lambda: readiness(system)["ready"])
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/after")).status == 200
        await until(lambda: {"/v1.0/echo/before", "/v1.0/echo/after"} <= stored_paths(system))
        assert_no_gap(events(system))
        assert processes(system)["agent"] == agent  # the agent kept rules, token and health up to date
    assert "Traceback" not in log_of(system)


# A disk that does not respond, as when its device or network hangs


@contextlib.contextmanager
def silent(retention: Path) -> Iterator[None]:
    """Make allocations of new blocks on the disk hang.

    Processes can still write to files that are already mapped into memory.
    """
    with budget_lock(retention):
        yield


async def test_a_disk_that_does_not_response_refuses_before_anything_goes_up(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1, environment=ENVIRONMENT) as system:
        before = processes(system)
        async with Load(system, clients=16) as load:
            await load.responses(50)
            with silent(tmp_path / "audit"):
                await until_refused(load)
                await until(lambda: readiness(system)["status"] == 503)
                assert readiness(system)["reasons"] == ["there is no room for audit events"]
                assert "no room" in readiness(system)["checks"]["spool"]["detail"]
            count = load.served
            await until(lambda: load.served > count + 50)
            await until(lambda: readiness(system)["ready"])
        assert load.broken == []
        await settled(system, load)
        assert processes(system) == before
    assert "there is no room for audit events: the disk has not responded" in log_of(system)
    assert "there is room for audit events again" in log_of(system)
    assert "Traceback" not in log_of(system)


async def test_a_proxy_that_starts_while_the_disk_does_not_response_serves_once_it_does(
    tmp_path: Path,
) -> None:
    async with whole_system(tmp_path) as system:
        await kill_all(system)
        with silent(tmp_path / "audit"):
            await system.start_proxy(until_ready=False)
            await until(lambda: "there is no room for audit events" in readiness(system)["reasons"])
            before = processes(system)
            await assert_not_ready(system)
        await until(lambda: readiness(system)["ready"])
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
        assert processes(system) == before
    assert "Traceback" not in log_of(system)


# Files that were damaged while no process ran


async def test_a_snapshot_that_went_bad_is_named_and_never_in_force(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system:
        await kill_all(system)
        snapshot = tmp_path / "snapshot.json"
        content = snapshot.read_bytes()
        snapshot.write_bytes(content[: len(content) // 2])
        await kill_control_plane(system)
        await system.start_proxy(until_ready=False)
        await until(lambda: "there are no rules" in readiness(system)["reasons"])
        await assert_not_ready(system)
        assert snapshot.read_bytes() == content[: len(content) // 2]
        await system.start_control_plane()
        await until(lambda: readiness(system)["ready"])
        unusable = f"cannot use the rules snapshot on disk: {snapshot}: the checksum does not match"
        assert unusable in log_of(system)
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
            assert (await client.get("/v1.0/secrets/1")).status == 403


async def test_torn_ends_of_spool_journal_and_state_cost_no_event(tmp_path: Path) -> None:
    """A power loss during writes leaves uncommitted data and an incomplete record."""
    async with whole_system(tmp_path, workers=1) as system:
        asked: set[str] = set()
        await kill_control_plane(system)
        for slot, tear in enumerate((_tear_journal, _tear_state, _tear_spool)):
            async with client_of(system) as client:
                for at in range(20):
                    path = f"/v1.0/echo/{slot}-{at}"
                    assert (await client.get(path)).status == 200
                    asked.add(path)
            await kill_all(system)
            tear(tmp_path / "audit")
            await system.start_proxy(until_ready=False)
            await until(lambda: _serves(system))
        await system.start_control_plane()
        await until(lambda: asked <= stored_paths(system))
        found = [event["path"] for event in events(system) if event["path"].startswith("/v1.0/echo/")]
        assert len(found) == len(set(found))
        assert_no_gap(events(system))
        assert "missing" not in readiness(system)["checks"]["audit"]["detail"]


def _serves(system: System) -> bool:
    report = readiness(system)
    return bool(report["checks"]) and not {"there are no rules", "no worker is alive"} & set(
        report["reasons"]
    )


def _tear_journal(audit: Path) -> None:
    for journal in (audit / "journal").rglob("*.ndjson"):
        with journal.open("ab") as file:
            file.write(b'{"seq":99,"time":"2026-11-21T04:25:58.123Z"}\n{"seq":100,"ti')


def _tear_state(audit: Path) -> None:
    """Overwrite half of the state file's older slot, as an interrupted save does."""
    older = min(("state.0", "state.1"), key=lambda name: int((audit / name).read_bytes().split(b" ")[2]))
    content = (audit / older).read_bytes()
    (audit / older).write_bytes(b"graphward-audit-state 1 99999 200 " + b"0" * 300 + content[400:])


def _tear_spool(audit: Path) -> None:
    """Append half a record to each spool segment: a checksum, an ordinal and text, without a length."""
    for segment in (audit / "spool").glob("*.seg"):
        content = bytearray(segment.read_bytes())
        end = len(content.rstrip(b"\0"))
        end = (end + 7) & ~7
        content[end + 4 : end + 80] = b"\xaa" * 12 + b'[7,1700000000000,"org-1","half of a record'.ljust(64)
        segment.write_bytes(content)


async def test_a_directory_that_was_lost_leaves_a_trace(tmp_path: Path) -> None:
    """The audit directory is lost, with its unsent events.

    After the loss, the proxy assigns the sequence numbers of the lost events to other events.
    """
    async with whole_system(tmp_path, workers=1) as system:
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/before")).status == 200
            await until(lambda: "/v1.0/echo/before" in stored_paths(system))
        assert shown(system)["sequences"][0]["repeatedCount"] == 0
        await kill_all(system)
        shutil.rmtree(tmp_path / "audit")
        await system.start_proxy()
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/after")).status == 200
            await until(lambda: "/v1.0/echo/after" in stored_paths(system))
        assert shown(system)["sequences"][0]["repeatedCount"] > 0


async def test_a_lost_audit_directory_is_named_by_proxy_and_control_plane(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system:
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
        await until(lambda: len(events(system)) == 2)
        assert readiness(system)["checks"]["audit"]["status"] == "ok"
        await system.proxy.stop()
        shutil.rmtree(tmp_path / "audit")
        await system.start_proxy()
        await until(lambda: "numbers began again at 1" in readiness(system)["checks"]["audit"]["detail"])
        async with client_of(system):
            await until(lambda: len(events(system)) == 3)
        shown = await system.cli("proxy", "show", "demo-proxy")
        assert any("reused sequence numbers of earlier events" in reason for reason in shown["reasons"])
