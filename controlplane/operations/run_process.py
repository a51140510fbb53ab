"""Worker process that runs functions of the control plane one at a time, and can be killed at any time.

Functions, their arguments and their results are sent over a socket as pickles. If the control plane is killed
while a function runs, SIGALRM ends the worker process soon after the function's deadline.
"""

from __future__ import annotations

import asyncio
import importlib
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from controlplane.operations.operation import InvalidRequest

_START_SECONDS: Final = 60.0  # seconds for the imports; many times what they take on a busy host
# seconds from a run's deadline to SIGALRM; the control plane kills the process earlier
_MARGIN_SECONDS: Final = 5.0
_PIECE: Final = 1 << 20  # bytes of one read
# bytes of a pickle from which a thread decodes it, so that the event loop is not blocked
_LONG: Final = 1 << 18
_FRAME: Final = Struct("!Q")  # size of the message that follows
_READY: Final = b"."  # one byte, so that a cancelled wait cannot have read a part of it
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from controlplane.operations.run_process import serve; "
    "serve(int(sys.argv[1]), sys.argv[2])"
)

Outcome = tuple[bool, Any]
"""True and the result of a function, or False and its exception."""


class RunFailed(Exception):
    """Error because the function that ran in the worker process raised an unexpected exception.

    The message of the error is the traceback of the exception in the worker process.
    """


class ProcessDied(Exception):
    """Error because the worker process ended before it returned a result.

    The message of the error says how the process ended.
    """


class RunProcess:
    """Starts a worker process for the control plane, sends functions to it, and receives their results.

    The worker process starts at once, and is ready when it has finished its imports.
    """

    def __init__(self, module: str) -> None:
        """Start a worker process that imports the module.

        Raise OSError if the process can't be started.
        """
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, "-c", _PROGRAM, str(fd), module, *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd],
            )
        self.is_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def run(self, function: Callable[..., object], args: Any, kwargs: Any, seconds: float) -> Outcome:
        """Run the function in the worker process, and return its outcome.

        Raise TimeoutError if the run takes longer than `seconds`, and ProcessDied if the process ends. After
        an exception, kill the worker process, because the process can't be used again. If the call is
        cancelled before the process is ready, the process can still be used.
        """
        message = pickle.dumps((seconds, function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        loop = asyncio.get_running_loop()
        try:
            await self._await_ready()
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._socket, _framed(message))
                outcome = await self._received()
        except (ConnectionError, EOFError):
            raise ProcessDied(self._how_it_ended()) from None
        if len(outcome) < _LONG:
            return _outcome_in(outcome)
        return await asyncio.to_thread(_outcome_in, outcome)

    async def _await_ready(self) -> None:
        if self.is_ready:
            return
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._read(len(_READY))
        except TimeoutError:
            raise ProcessDied("because the worker process did not start in time") from None
        self.is_ready = True

    async def _received(self) -> bytes:
        (size,) = _FRAME.unpack(await self._read(_FRAME.size))
        return await self._read(size)

    async def _read(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        pieces: list[bytes] = []
        while size:
            piece = await loop.sock_recv(self._socket, min(size, _PIECE))
            if not piece:
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _how_it_ended(self) -> str:
        self.kill()
        code = self._process.returncode
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

    def kill(self) -> None:
        """End the worker process in any state, and release its resources."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _framed(message: bytes) -> bytes:
    return _FRAME.pack(len(message)) + message


def _outcome_in(message: bytes) -> Outcome:
    outcome: Outcome = pickle.loads(message)  # noqa: S301 - from a process that we started
    return outcome


# -- code that runs in the process


def serve(fd: int, module: str) -> None:
    """Run functions in the worker process until the control plane closes its end of the socket."""
    # it reaches the whole process group; the control plane acts on it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    importlib.import_module(module)
    with socket.socket(fileno=fd) as control_plane, control_plane.makefile("rwb") as stream:
        stream.write(_READY)
        stream.flush()
        while size := stream.read(_FRAME.size):
            outcome = _run(stream.read(_FRAME.unpack(size)[0]))
            stream.write(_framed(outcome))
            stream.flush()


def _run(message: bytes) -> bytes:
    try:
        seconds, function, args, kwargs = pickle.loads(message)  # noqa: S301 - from our own control plane
        # The kernel ends the process, even during a long match in C that runs no Python.
        signal.setitimer(signal.ITIMER_REAL, seconds + _MARGIN_SECONDS)
        outcome = pickle.dumps((True, function(*args, **kwargs)), pickle.HIGHEST_PROTOCOL)
    except InvalidRequest as refused:
        outcome = pickle.dumps((False, refused))
    except Exception:
        outcome = pickle.dumps((False, RunFailed(traceback.format_exc())))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome
