"""Tests that no process of the system survives the program that started it, even after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.lifeline import end_with_parent
from tests.fakes.system import ROOT

pytestmark = pytest.mark.process

MARK = "GRAPHWARD_TEST_STARTED_BY"
SECONDS = 60

# The control plane is forked from a server of commands; the proxy is a child.
SYSTEM = """
import asyncio, sys
from pathlib import Path
from tests.fakes.system import System

async def main():
    async with System(Path(sys.argv[1]), {}, workers=1):
        print("it is up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

# The proxy ends at once, because these settings are invalid.
BROKEN_DEMO = """
import sys
import tests.demo
from tests.fakes.system import System
System._proxy_settings = lambda self, keys: "[Nothing]\\nA = 1\\n"
sys.exit(tests.demo.main())
"""


class Started:
    """Program in its own session, like a program started in a terminal, together with all its descendants."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory / "tmp"
        self.directory.mkdir()
        self.log = directory / "log"
        self._mark = f"{MARK}={directory}".encode()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, MARK: str(directory), "TMPDIR": str(self.directory)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def left(self) -> dict[int, str]:
        """Return the command line of each process of the program that still runs, descendants included."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # the process has ended
                continue
        return found

    def until_started(self, module: str) -> None:
        self._until(lambda: any(f"-m {module} " in each for each in self.left().values()))

    def until_said(self, words: str) -> None:
        self._until(lambda: words in self.log.read_text("utf-8", "replace"))

    def until_nothing_is_left(self) -> None:
        end = time.monotonic() + SECONDS
        while left := self.left():
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.log.read_text("utf-8", "replace")
            assert time.monotonic() < end, self.log.read_text("utf-8", "replace")
            time.sleep(0.05)

    def end(self) -> None:
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(SECONDS)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path, "-m", "tests.demo")
    yield started
    started.end()


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGHUP], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT, signal.SIGHUP]],
    ids=["closed terminal", "SIGTERM", "Ctrl-C twice, then closed"],
)
def test_a_demo_that_is_stopped_while_it_starts_leaves_nothing(
    demo: Started, signals: list[signal.Signals]
) -> None:
    demo.until_started("controlplane")
    for number in signals:
        os.killpg(demo.process.pid, number)
    demo.process.wait(SECONDS)
    assert demo.left() == {}
    assert list(demo.directory.iterdir()) == []
    assert "Traceback" not in demo.log.read_text("utf-8", "replace")


def test_a_demo_whose_terminal_is_closed_while_it_runs_leaves_nothing(demo: Started) -> None:
    demo.until_said("Ctrl-C stops everything")
    os.killpg(demo.process.pid, signal.SIGHUP)
    demo.process.wait(SECONDS)
    assert demo.left() == {}
    assert list(demo.directory.iterdir()) == []


def test_a_demo_that_is_killed_while_it_starts_leaves_no_process(demo: Started) -> None:
    demo.until_started("proxy")
    demo.process.kill()
    demo.until_nothing_is_left()


def test_a_system_whose_starter_is_killed_leaves_no_process(tmp_path: Path) -> None:
    started = Started(tmp_path, "-c", SYSTEM, str(tmp_path))
    try:
        started.until_said("it is up")
        assert len(started.left()) > 4  # starter, commands, control plane, supervisor, worker and agent
        started.process.kill()
        started.until_nothing_is_left()
    finally:
        started.end()


def test_a_demo_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    started = Started(tmp_path, "-c", BROKEN_DEMO)
    try:
        assert started.process.wait(SECONDS) != 0
        assert started.left() == {}
        assert list(started.directory.iterdir()) == []
    finally:
        started.end()
