"""Tests of a proxy without free processes or descriptors: the proxy serves, and a reload changes nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from pathlib import Path

import pytest

from tests.fakes.system import System
from tests.process.proxy_parts import (
    Load,
    alive,
    client_of,
    log_of,
    processes,
    readiness,
    status_becomes,
    until,
    whole_system,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

# Root has no limit of processes, so a file has the number that the supervisor may still start.
FORKS_LEFT = """
import errno, os, pathlib
file, fork = pathlib.Path(os.environ["FORKS_LEFT"]), os.fork

def counted():
    if file.exists():
        left = int(file.read_text())
        if not left:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        file.write_text(str(left - 1))
    return fork()

os.fork = counted
"""
# None of the supervisor's own descriptors is below 1024, the limit of select.
MANY_DESCRIPTORS = """
import os, resource
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1200), limits[1]))
while os.dup(0) < 1030:
    pass
"""
# Fault inside a worker while a file of that name exists.
WRONG = """
import os, pathlib, threading
marks = pathlib.Path(os.environ["MARKS"])

def fail_while(name, call, error):
    def failing(*arguments, **options):
        is_worker = pathlib.Path("/proc/self/comm").read_text().startswith("gw-worker")
        if is_worker and (marks / name).exists():
            raise error
        return call(*arguments, **options)
    return failing

no_thread = RuntimeError("can't start new thread")
threading.Thread.start = fail_while("no-threads", threading.Thread.start, no_thread)
pathlib.Path.lstat = fail_while("no-look", pathlib.Path.lstat, no_thread)
os.statvfs = fail_while("a-fault", os.statvfs, ValueError("a fault"))
"""
NOT_RELOADED = "not reloaded, the active settings stay in use: "


@pytest.fixture
def forks_left(tmp_path: Path) -> Path:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(FORKS_LEFT, "utf-8")
    return tmp_path / "forks-left"


def environment_of(forks_left: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(forks_left.parent / "shim"), "FORKS_LEFT": str(forks_left)}


@pytest.fixture
def goes_wrong(tmp_path: Path) -> Path:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(WRONG, "utf-8")
    return tmp_path


def environment_with(goes_wrong: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(goes_wrong / "shim"),
        "MARKS": str(goes_wrong),
        "Proxy__KillFile": str(goes_wrong / "stop"),
    }


def let_fork(forks_left: Path, times: int | None) -> None:
    if times is None:
        forks_left.unlink()
    else:
        forks_left.write_text(str(times))


def descriptors(system: System) -> set[str]:
    """Return the targets of the supervisor's file descriptors."""
    found = set()
    for each in Path(f"/proc/{system.proxy.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed after the directory was listed
            found.add(f"{each.name} {each.readlink()}")
    return found


async def settled(system: System) -> set[str]:
    """Wait until all children reported ready, and return the supervisor's file descriptors."""
    await until(lambda: not any("pipe:" in each for each in descriptors(system)))
    return descriptors(system)


async def refused_reload(system: System, times: int) -> None:
    os.kill(system.proxy.process.pid, signal.SIGHUP)
    await until(lambda: log_of(system).count(NOT_RELOADED) == times)


async def test_without_processes_to_be_had_what_serves_goes_on(tmp_path: Path, forks_left: Path) -> None:
    async with whole_system(tmp_path, environment=environment_of(forks_left)) as system:
        before, held = processes(system), await settled(system)
        async with client_of(system) as client:
            for at in range(3):  # fails at the agent, at the first worker and at the second
                let_fork(forks_left, at)
                await refused_reload(system, at + 1)
            assert "can't be started: Resource temporarily unavailable" in log_of(system)
            assert processes(system) == before
            assert descriptors(system) == held
            assert (await client.get("/v1.0/echo/1")).status == 200

        os.kill(before["worker-0"], signal.SIGKILL)
        again = "cannot start worker-0, trying again: Resource temporarily unavailable"
        await until(lambda: log_of(system).count(again) >= 2)
        assert processes(system) == {name: pid for name, pid in before.items() if name != "worker-0"}
        assert descriptors(system) == held
        let_fork(forks_left, None)
        await until(lambda: "worker-0" in processes(system))
        async with Load(system) as load:
            os.kill(system.proxy.process.pid, signal.SIGHUP)
            await until(lambda: "proxy.supervisor: reloaded" in log_of(system))
            await load.responses(20)
        assert (load.broken, load.refused_connects, load.statuses()) == ([], 0, {200})
        assert len(await settled(system)) == len(held)
    assert "Traceback" not in log_of(system)


async def test_without_descriptors_to_be_had_what_serves_goes_on(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        supervisor = system.proxy.process.pid
        limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        before, held = processes(system), await settled(system)
        for spare in range(9):  # each step from the settings file to the last pipe
            _leave(supervisor, spare, limits[1])
            await refused_reload(system, spare + 1)
            assert descriptors(system) == held
        lines = [line for line in log_of(system).splitlines() if NOT_RELOADED in line]
        assert all(line.endswith("Too many open files") for line in lines)
        assert processes(system) == before
        _leave(supervisor, 1, limits[1])
        os.kill(before["agent"], signal.SIGKILL)
        await until(lambda: "cannot start agent, trying again: Too many open files" in log_of(system))
        assert alive(before["worker-0"])
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
        await until(lambda: readiness(system)["ready"])
        os.kill(supervisor, signal.SIGHUP)
        await until(lambda: "proxy.supervisor: reloaded" in log_of(system))
        assert len(await settled(system)) == len(held)
    assert "Traceback" not in log_of(system)


async def test_an_upgrade_to_more_workers_than_there_are_descriptors_for_changes_nothing(
    tmp_path: Path,
) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        supervisor, before = system.proxy.process.pid, processes(system)
        good = system.proxy_config.read_text("utf-8")
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (256, 256))
        system.proxy_config.write_text(good.replace("Workers = 2", "Workers = 100"), "utf-8")
        os.kill(supervisor, signal.SIGUSR2)
        await until(lambda: "--check of the new version ended with status 2" in log_of(system))
        assert "Proxy.Workers: 100 workers in addition to the running ones need" in log_of(system)
        assert processes(system) == before
        assert (await client.get("/v1.0/echo/1")).status == 200
        system.proxy_config.write_text(good.replace("Workers = 2", "Workers = 3"), "utf-8")
        os.kill(supervisor, signal.SIGUSR2)
        await until(lambda: "proxy.supervisor: reloaded" in log_of(system))
        assert len(processes(system, "worker")) == 3
    assert "Traceback" not in log_of(system)


async def test_without_threads_to_be_had_a_worker_gives_tokens_and_heeds_the_local_stop(
    goes_wrong: Path,
) -> None:
    async with whole_system(goes_wrong, workers=1, environment=environment_with(goes_wrong)) as system:
        (goes_wrong / "no-threads").touch()
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
            (goes_wrong / "stop").touch()
            await status_becomes(client, "/v1.0/echo/2", 403)
    assert "can't start new thread" not in log_of(system)


async def test_a_local_stop_is_heeded_though_it_could_not_be_looked_for(goes_wrong: Path) -> None:
    async with whole_system(goes_wrong, workers=1, environment=environment_with(goes_wrong)) as system:
        (goes_wrong / "no-look").touch()
        await until(lambda: "stop, trying again" in log_of(system))
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
            (goes_wrong / "stop").touch()
            (goes_wrong / "no-look").unlink()
            await status_becomes(client, "/v1.0/echo/2", 403)
    assert log_of(system).count("stop, trying again") == 1


async def test_a_worker_that_loses_its_upkeep_ends_and_is_replaced(goes_wrong: Path) -> None:
    async with whole_system(goes_wrong, workers=1, environment=environment_with(goes_wrong)) as system:
        (goes_wrong / "a-fault").touch()
        await until(lambda: "worker-0 ended with status 1, starting another process" in log_of(system))
        (goes_wrong / "a-fault").unlink()
        await until(lambda: readiness(system)["ready"])
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
    assert "this worker ends after an internal error" in log_of(system)
    assert "replacing worker-0" not in log_of(system)


async def test_as_many_descriptors_as_workers_take_can_be_had(tmp_path: Path) -> None:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(MANY_DESCRIPTORS, "utf-8")
    environment = {"PYTHONPATH": str(tmp_path / "shim")}
    async with whole_system(tmp_path, environment=environment) as system:
        supervisor = system.proxy.process.pid
        assert any(int(each.split()[0]) > 1023 for each in descriptors(system))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for pid in (supervisor, *processes(system).values()):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
        os.kill(supervisor, signal.SIGHUP)
        await until(lambda: "proxy.supervisor: reloaded" in log_of(system))
        assert readiness(system)["ready"]
    assert "Traceback" not in log_of(system)


def _leave(pid: int, spare: int, hard: int) -> None:
    """Set the supervisor's limit on open file descriptors so that it can open only `spare` more."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limit = 0
    while limit - len([fd for fd in used if fd < limit]) < spare or limit <= max(used):
        limit += 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
