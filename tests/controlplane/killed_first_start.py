"""Run the first commands of a new control plane repeatedly, and kill each run.

Each run is killed one step later than the previous run.

Each access to a file in the control plane's directory counts as one step, and so does each migration of the
database. After each kill, the program runs the same command again in the same directory. The program prints
the exit status of each repeated command on a separate line. The program stops when a command finishes before
it reaches the step at which it would be killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from controlplane.clock import SystemClock
from controlplane.master_key import open_vault
from controlplane.settings import read_settings
from controlplane.store import migrate
from controlplane.store.sqlite import SqliteStore

_EVENTS = frozenset(
    {"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.truncate", "sqlite3.connect"}
)
_MOST = 500


class _Killer:
    """Kills its own process before a given step of the first start of the control plane."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = os.fsencode(folder)
        self._left = steps
        self._apply = migrate._apply
        migrate._apply = self._applied  # type: ignore[assignment]
        sys.addaudithook(self._audited)

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not isinstance(arguments[0], str | bytes | Path):
            return
        if os.fsencode(arguments[0]).startswith(self._folder):
            self._step()

    def _applied(self, *arguments: Any) -> None:
        self._step()
        self._apply(*arguments)


async def _begin(config: Path) -> None:
    """Prepare the store and the master key as a first start does before it serves requests."""
    settings = read_settings(config)
    store = await SqliteStore.open(settings.store.path, SystemClock(), settings.secrets.key_file)
    try:
        await open_vault(settings.secrets, store)
    finally:
        await store.close()


def _run(config: Path, folder: Path, steps: int | None) -> int:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if steps is not None:
            _Killer(folder, steps)
        try:
            asyncio.run(_begin(config))
        except Exception:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def _all(root: Path, settings: str) -> None:
    for steps in range(_MOST):
        folder = root / str(steps)
        folder.mkdir()
        config = folder / "controlplane.toml"
        config.write_text(settings)
        status = _run(config, folder / "var", steps)
        if os.WIFEXITED(status):
            return
        print(os.waitstatus_to_exitcode(_run(config, folder / "var", None)), flush=True)
    sys.exit("it never came to its end")


if __name__ == "__main__":
    _all(Path(sys.argv[1]), Path(sys.argv[2]).read_text())
