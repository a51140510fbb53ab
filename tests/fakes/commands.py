"""Run control plane commands in processes that are forked from a process with all modules imported.

Tests and the demo run about a thousand commands. Most of the time of a command is the start of Python and the
imports. A command line without a command, which starts the control plane's server, also runs in a forked
process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NoReturn

import controlplane
from tests.fakes.lifeline import end_with_parent

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_SECONDS: Final = 60
_PRINTS_TABLES: Final = ("rich.progress", "rich.table")
_MAX_MESSAGE: Final = 128 * 1024  # bytes of a command's arguments and environment
_starting = threading.Lock()
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m controlplane` with the given arguments, in the project's directory and with empty input.

    Raise subprocess.TimeoutExpired if the command runs longer than TIMEOUT_SECONDS.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _forked(arguments, environment, out, err, apart=False) as status:
            if not select.select([status], [], [], TIMEOUT_SECONDS)[0]:
                raise subprocess.TimeoutExpired(arguments, TIMEOUT_SECONDS)
            report = status.read()
        texts = [_content(out), _content(err)]
    return subprocess.CompletedProcess(arguments, int(report) if report else -signal.SIGKILL, *texts)


class Server:
    """A running control plane process, with the methods of asyncio's Process class that the tests use.

    The control plane's process is not a child of the test process. The control plane runs in its own session.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str], log: IO[bytes]) -> None:
        """Start the control plane's process and connect to it.

        Create the object only in a running event loop: its constructor needs the loop.
        """
        self._status = _forked(arguments, environment, log, log, apart=True)
        self.pid = int(self._status.readline())
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._process, self._ended)

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process)
        os.close(self._process)
        with self._status:
            report = self._status.read()
        self._end.set_result(int(report) if report else -signal.SIGKILL)


def _forked(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None,
    out: IO[bytes],
    err: IO[bytes],
    *,
    apart: bool,
) -> IO[bytes]:
    """Start a command in a forked process, and return a stream that reports on the process.

    The stream yields the exit status at the end of the process. If `apart` is true, the process has its own
    session, and the stream yields the process id first.
    """
    message = json.dumps([arguments, {**os.environ, **(environment or {})}, apart]).encode()
    said, says = os.pipe()
    try:
        socket.send_fds(_connection(), [message], [out.fileno(), err.fileno(), says])
    finally:
        os.close(says)
    return os.fdopen(said, "rb")


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _connection() -> socket.socket:
    global _server
    with _starting:
        if _server is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            _server = ours, process
            atexit.register(_stop, ours, process)
        return _server[0]


def _stop(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait()


def serve(connection: socket.socket) -> NoReturn:
    """Fork a process for each message until the other side closes the socket.

    When the socket is closed, end all processes that were forked.
    """
    for module in pkgutil.walk_packages(controlplane.__path__, "controlplane."):
        importlib.import_module(module.name)
    _warm_up()
    gc.collect()
    gc.freeze()  # the garbage collector of a child copies no shared pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for them: the pipe reports their end
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, 3)
        if not message:
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            connection.close()
            _become(*json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _warm_up() -> None:
    """Run a command once, so that the caches that the command fills exist before any fork."""
    from controlplane.cli import main

    for name in _PRINTS_TABLES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        config = Path(directory) / "controlplane.toml"
        config.write_text('[Store]\nPath = "store.db"\n[Secrets]\nMasterKeyFile = "master.key"\n', "utf-8")
        assert main(["--config", str(config), "org", "add", "warm"]) == 0


def _become(
    arguments: Sequence[str], environment: Mapping[str, str], apart: bool, out: int, err: int, status: int
) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if apart:
        os.setsid()
        end_with_parent()
        os.write(status, b"%d\n" % os.getpid())
    os.dup2(out, 1)
    os.dup2(err, 2)
    # Inherited streams are opened again by their kind: a file or a pipe.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        from controlplane.cli import main

        code = main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(status, b"%d" % code)
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
