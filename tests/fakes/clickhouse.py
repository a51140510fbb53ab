"""ClickHouse for tests: its own engine behind HTTP, or the server at the address in CLICKHOUSE_URL."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port

_ROOT: Final = Path(__file__).parents[2]
_PYTHON: Final = _ROOT / ".venv-clickhouse" / "bin" / "python"
_SERVER: Final = Path(__file__).with_name("clickhouse_server.py")


IS_HERE: Final = any(_PYTHON.parents[1].glob("lib/*/site-packages/chdb"))
SERVER_URL: Final = os.environ.get("CLICKHOUSE_URL", "")
HOW_TO_GET: Final = "no ClickHouse here: ./dev setup installs its engine, or CLICKHOUSE_URL names a server"


class ClickHouse:
    """A ClickHouse engine on the files of a directory.

    After the engine ends, its data files remain in the directory.
    """

    def __init__(self, directory: Path, password: str = "") -> None:
        self._directory = directory
        self._password = password
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        arguments = [str(self._directory), str(self._port), self._password]
        self._process = subprocess.Popen(
            [_PYTHON, _SERVER, *arguments], stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("listening"), "it did not start: see above"

    def stop_short(self) -> None:
        """Suspend the server: until the server is resumed, it accepts connections but sends no response."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process of the server immediately."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def clickhouse(directory: Path, password: str = "") -> Iterator[ClickHouse]:
    running = ClickHouse(directory, password)
    try:
        yield running
    finally:
        running.kill()
