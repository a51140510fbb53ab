"""One process that the supervisor started: its state, and time limits for its heartbeats and its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from proxy.ipc.counters import ALIVE_AT, Counters

HUNG_SECONDS: Final = 10.0  # seconds without a loop iteration after which a process is replaced
START_SECONDS: Final = 60.0  # the same before it is ready, because it may wait for the disk
LAST_WORDS_SECONDS: Final = 2.0  # seconds for a worker to record its open requests before it is killed
QUICK_DEATH_SECONDS: Final = 5.0  # seconds; a process that ends sooner is restarted with a delay
MAX_RESTART_DELAY: Final = 5.0  # seconds


class ChildState(Enum):
    WAITING = "no process; starts at `start_at`"
    STARTING = "not ready yet"
    READY = "reported that it is ready"
    ABORTED = "hung; got SIGABRT to record its open requests and end"
    KILLED = "got SIGKILL"


class Remedy(Enum):
    """Action of the supervisor against a process that hangs."""

    ABORT = "abort"
    KILL = "kill"


@dataclass(eq=False)
class Child:
    """A child process of the supervisor, with the function that starts the process again.

    `draining_since` does not depend on the other states of the child process. A process that received SIGTERM
    may still become ready, hang or be killed. The supervisor does not replace a process that is draining.
    """

    name: str
    # None for a process of the previous version, which can't be restarted.
    run: Callable[[Callable[[], None]], int] | None
    counters: Counters  # page where the process shows that its loop runs
    state: ChildState = ChildState.WAITING
    pid: int = 0  # 0 while it waits for a start
    started: float = 0.0  # monotonic seconds, like all times here
    draining_since: float | None = None
    start_at: float = 0.0  # time of the next start while it waits
    quick_deaths: int = 0
    ready_fd: int | None = None  # the process writes here once it is ready
    _alive_at: int = field(default=0, init=False)  # the last value that the process wrote
    _silent: float = field(default=0.0, init=False)  # seconds
    _patience: float = field(default=START_SECONDS, init=False)

    def has_started(self, pid: int, ready_fd: int, now: float) -> None:
        """Store the ID of the started process, and the pipe that the process writes to when it is ready."""
        self.state, self.pid, self.started, self.ready_fd = ChildState.STARTING, pid, now, ready_fd
        self.draining_since = None
        self._alive_at, self._silent, self._patience = 0, 0.0, START_SECONDS

    def read_ready(self) -> bool:
        """Return True on the first call after the child process has reported that it is ready."""
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
        """Return the action against a process that is silent for too long, or None.

        `elapsed` is the number of seconds since the last check.

        The supervisor detects silence by changes of the value that the process writes, so a jump of the clock
        does not look like a hang.
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
        """Return True if the process got SIGTERM more than `patience` seconds ago and no SIGKILL yet."""
        if self.draining_since is None or self.state in (ChildState.WAITING, ChildState.KILLED):
            return False
        return now - self.draining_since > patience

    def has_ended(self) -> None:
        """Clear the data of a child process that was reaped."""
        self.state, self.pid = ChildState.WAITING, 0
        self._close_ready_fd()

    def start_again(self, now: float) -> None:
        """Set the next start of the process: immediately, or later if it ended soon after its last start."""
        if now - self.started < QUICK_DEATH_SECONDS:
            self.put_off(now)
        else:
            self.quick_deaths, self.start_at = 0, now

    def put_off(self, now: float) -> None:
        """Set the time of the process's next start after a start that failed.

        Each further failed start in a row increases the delay before the next start.
        """
        self.draining_since = None
        self.quick_deaths += 1
        doubled = 0.1 * 2 ** min(self.quick_deaths, 10)
        delay = min(MAX_RESTART_DELAY, doubled) if self.quick_deaths > 1 else 0.0
        self.start_at = now + delay

    def _close_ready_fd(self) -> None:
        if self.ready_fd is not None:
            os.close(self.ready_fd)
            self.ready_fd = None
