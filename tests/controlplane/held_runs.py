"""Functions that run in other processes, and wait until a test releases the processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from controlplane.operations import rulesets


class Latch:
    """A lock that functions in other processes wait for, until a test releases the lock."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "latch")
        self.begun = str(directory / "begun")  # a pipe whose reader learns that a run has begun
        os.mkfifo(self.begun)
        self._file = open(self.path, "w")  # noqa: SIM115 - closed by `release`
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def await_begin(self) -> int:
        """Block until a process reports through the pipe `begun` that it waits for this latch (a lock).

        Return the id of the process that waits for the latch.
        """
        return int(Path(self.begun).read_text())

    def release(self) -> None:
        self._file.close()


def wait_for(path: str, begun: str | None = None) -> bool:
    """Block until the test releases the latch."""
    if begun is not None:
        Path(begun).write_text(str(os.getpid()))
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return True


def read_slowly(path: str, begun: str, *arguments: Any) -> Any:
    """Read a ruleset in the same way as `apply`, as soon as the test releases the latch."""
    wait_for(path, begun)
    return rulesets.read_ruleset(*arguments)


def stubborn() -> None:
    """Run for ever, and ignore every exception."""
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
