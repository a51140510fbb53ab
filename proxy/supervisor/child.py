"""One process of the supervisor: its state, and how long its silence or its end may take."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from proxy.ipc.counters import ALIVE_AT, Counters

HUNG_SECONDS: Final = 10.0  # a process whose loop has not turned for so long is replaced
START_SECONDS: Final = 60.0  # the same before it is ready, when it may wait for the disk
LAST_WORDS_SECONDS: Final = 2.0  # for a worker that is about to be killed to record what is under way
QUICK_DEATH_SECONDS: Final = 5.0  # a process that lives shorter is started again later
MAX_RESTART_DELAY: Final = 5.0  # seconds


class ChildState(Enum):
    WAITING = "no process: to be started at `start_at`"
    STARTING = "not ready yet"
    READY = "has said that it is ready"
    ABORTED = "found hung, and asked to record what is under way and end"
    KILLED = "has SIGKILL"


class Remedy(Enum):
    """The measure against a process that hangs."""

    ABORT = "abort"
    KILL = "kill"


@dataclass(eq=False)
class Child:
    """One process, and how to start it again.

    `draining_since` is beside the state: a process that has SIGTERM may still become ready, hang or be
    killed. No other one replaces it.
    """

    name: str
    run: Callable[[Callable[[], None]], int] | None  # None: of the version before, which nobody starts again
    counters: Counters  # where it writes that its loop turns
    state: ChildState = ChildState.WAITING
    pid: int = 0  # if it is not waiting
    started: float = 0.0  # monotonic seconds, as all times here
    draining_since: float | None = None
    start_at: float = 0.0  # if it is waiting
    quick_deaths: int = 0
    ready_fd: int | None = None  # it writes here once it is ready
    _alive_at: int = field(default=0, init=False)  # what it wrote last
    _silent: float = field(default=0.0, init=False)  # seconds
    _patience: float = field(default=START_SECONDS, init=False)

    def has_started(self, pid: int, ready_fd: int, now: float) -> None:
        """Take the id of the new process, and the pipe that it writes to when it is ready."""
        self.state, self.pid, self.started, self.ready_fd = ChildState.STARTING, pid, now, ready_fd
        self.draining_since = None
        self._alive_at, self._silent, self._patience = 0, 0.0, START_SECONDS

    def read_ready(self) -> bool:
        """Return True once, when the process has said that it is ready."""
        if self.ready_fd is None:
            return False
        try:
            said = os.read(self.ready_fd, 1)
        except BlockingIOError:
            return False
        self._close_ready_fd()
        if not said:
            return False
        self._patience = HUNG_SECONDS
        if self.state is ChildState.STARTING:
            self.state = ChildState.READY
        return True

    def remedy(self, elapsed: float, *, may_be_silent: bool) -> Remedy | None:
        """Return what to do about the silence of the process, `elapsed` seconds after the last look.

        Silence is measured by changes of what the process writes, so that no jump of the clock looks like a
        hang.
        """
        alive_at = self.counters.values[ALIVE_AT]
        if alive_at != self._alive_at or self.state is ChildState.WAITING or may_be_silent:
            self._alive_at, self._silent = alive_at, 0.0
            return None
        self._silent += elapsed
        if self.state in (ChildState.STARTING, ChildState.READY) and self._silent > self._patience:
            return Remedy.ABORT
        if self.state is ChildState.ABORTED and self._silent > self._patience + LAST_WORDS_SECONDS:
            return Remedy.KILL
        return None

    def is_late(self, now: float, patience: float) -> bool:
        """Return True if the process has SIGTERM for more than `patience` seconds, and no SIGKILL yet."""
        if self.draining_since is None or self.state in (ChildState.WAITING, ChildState.KILLED):
            return False
        return now - self.draining_since > patience

    def has_ended(self) -> None:
        """Forget the process that was reaped."""
        self.state, self.pid = ChildState.WAITING, 0
        self._close_ready_fd()

    def start_again(self, now: float) -> None:
        """Set the time of the next start: at once, or later if it died young."""
        if now - self.started < QUICK_DEATH_SECONDS:
            self.put_off(now)
        else:
            self.quick_deaths, self.start_at = 0, now

    def put_off(self, now: float) -> None:
        """Set the time of the next start after one that failed: the more failed in a row, the later."""
        self.draining_since = None
        self.quick_deaths += 1
        doubled = 0.1 * 2 ** min(self.quick_deaths, 10)
        delay = min(MAX_RESTART_DELAY, doubled) if self.quick_deaths > 1 else 0.0
        self.start_at = now + delay

    def _close_ready_fd(self) -> None:
        if self.ready_fd is not None:
            os.close(self.ready_fd)
            self.ready_fd = None
