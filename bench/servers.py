"""Server under measurement: it runs on its own core, and its processor time is read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.tools import ROOT
from tests.fakes.lifeline import end_with_parent

START_SECONDS: Final = 20
SETTLE_SECONDS: Final = 10
_TICK: Final = 1_000_000 / os.sysconf("SC_CLK_TCK")  # microseconds per clock tick of /proc


def _on_core(core: int) -> None:
    """Pin the process to one processor core. The child process calls this function before exec."""
    os.sched_setaffinity(0, {core})
    end_with_parent()


class ServerFailed(Exception):
    """Error because a measured server did not start or failed a check.

    The text of the error contains the output of the server.
    """


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Processor time of a process, in microseconds."""

    user: float = 0.0
    system: float = 0.0

    @property
    def total(self) -> float:
        return self.user + self.system

    def __add__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.user + other.user, self.system + other.system)

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.user - other.user, self.system - other.system)


class Server:
    """Runs a server command in its own session, with the server and its children on one core."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        *,
        core: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        self.started = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(_on_core, core),
            )

    def __enter__(self) -> Self:
        try:
            self._until_it_listens()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _until_it_listens(self) -> None:
        while time.monotonic() - self.started < START_SECONDS:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            time.sleep(0.01)
        raise ServerFailed(
            f"{self.name} does not accept connections: {self.log.read_text(errors='replace')[-1000:]}"
        )

    def processes(self) -> dict[int, str]:
        """Return ids and names of all processes in the session, regardless of their parents."""
        return {pid: stat.name for pid, stat in _session(self._process.pid).items()}

    def cpu(self) -> dict[str, CpuTime]:
        """Return the total processor time of all processes with the same name, for each name."""
        times: dict[str, CpuTime] = {}
        for stat in _session(self._process.pid).values():
            times[stat.name] = times.get(stat.name, CpuTime()) + stat.cpu
        return times

    def settle(self) -> None:
        """Wait until the server has finished the work that the load caused, so that all of it is measured."""
        give_up = time.monotonic() + SETTLE_SECONDS
        before = self._total()
        while time.monotonic() < give_up:
            time.sleep(0.2)
            now = self._total()
            if now - before <= _TICK:
                return
            before = now

    def _total(self) -> float:
        return sum(each.total for each in self.cpu().values())


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    cpu: CpuTime


def _session(session: int) -> dict[int, _Stat]:
    found: dict[int, _Stat] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            text = Path(entry.path, "stat").read_text()
            name = text[text.index("(") + 1 : text.rindex(")")]
            fields = text[text.rindex(")") + 2 :].split()  # fields from the third one of proc(5) on
            if int(fields[3]) == session:
                cpu = CpuTime(int(fields[11]) * _TICK, int(fields[12]) * _TICK)
                found[int(entry.name)] = _Stat(name, cpu)
    return found


def free_ports(count: int) -> list[int]:
    """Return ports that no program used a moment ago.

    The function binds all ports at the same time, so that no port occurs twice.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
