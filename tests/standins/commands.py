"""The control plane's command line, each command a process forked from one that has everything imported.

Tests and demo run a thousand of them, and starting Python and importing is most of what one costs.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
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

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_SECONDS: Final = 60
_MAX_MESSAGE: Final = 128 * 1024  # a command's arguments and environment
_starting = threading.Lock()
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m controlplane` with these arguments, in the project's folder and with nothing to read.

    Raises subprocess.TimeoutExpired after TIMEOUT_SECONDS."""
    message = json.dumps([arguments, {**os.environ, **(environment or {})}]).encode()
    ended, ends = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with os.fdopen(ended, "rb") as status:
            try:
                socket.send_fds(_connection(), [message], [out.fileno(), err.fileno(), ends])
            finally:
                os.close(ends)
            if not select.select([status], [], [], TIMEOUT_SECONDS)[0]:
                raise subprocess.TimeoutExpired(arguments, TIMEOUT_SECONDS)
            told = status.read()
        texts = [_content(out), _content(err)]
    return subprocess.CompletedProcess(arguments, int(told) if told else -signal.SIGKILL, *texts)


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
    """Forks for every message, until the other side is gone; what is still running then ends too."""
    for module in pkgutil.walk_packages(controlplane.__path__, "controlplane."):
        importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: the pipe tells of their end
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, 3)
        if not message:
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            connection.close()
            _become(*json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(
    arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int, status: int
) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(out, 1)
    os.dup2(err, 2)
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
