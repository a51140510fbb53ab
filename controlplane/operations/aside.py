"""Work that takes the processor for long, done in a thread so that the server's event loop goes on."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from controlplane.operations.operation import InvalidRequest
from controlplane.store.interface import StoreBusy

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_SECONDS: Final = 60.0  # many times what the largest ruleset needs for anything that is meant well
_MOST_WAITING: Final = 8  # a ruleset may have 8 MiB and take seconds to read


class _Stop(BaseException):
    """Raised within work that takes too long; no `except Exception` there holds it up."""


class _Queue:
    """One at a time: Python runs no two at once anyway, and each that runs slows down the event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: set[asyncio.Future[Any]] = set()

    async def do(self, function: Callable[[], T]) -> T:
        if len(self._waiting) >= _MOST_WAITING:
            raise StoreBusy("too many rehearsals are waiting: try again in a moment")
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._limited, function)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return await future

    def _limited(self, function: Callable[[], T]) -> T:
        """In a thread of its own, which can be stopped without this one, and which no stop waits for."""
        outcome: Future[T] = Future()
        worker = threading.Thread(target=_settle, args=(outcome, function), name=self._name, daemon=True)
        worker.start()
        worker.join(LONGEST_SECONDS)
        if worker.is_alive() and worker.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(_Stop))
            worker.join()
        try:
            return outcome.result(0)
        except (_Stop, TimeoutError):
            said = f"this takes longer than {LONGEST_SECONDS:g} s: ask with fewer rules, cases or values"
            raise InvalidRequest(said) from None


def _settle(outcome: Future[T], function: Callable[[], T]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:
        outcome.set_exception(error)


_rehearsals: Final = _Queue("rehearsal")
_changes: Final = _Queue("change")


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Raises StoreBusy where too much waits already, and InvalidRequest where it takes too long."""
    return await _rehearsals.do(lambda: function(*args, **kwargs))


async def in_earnest(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for what changes something: who only tries things out, as viewers may, is not before it."""
    return await _changes.do(lambda: function(*args, **kwargs))
