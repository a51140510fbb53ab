"""Work that takes the processor for long, done in a thread so that the server's event loop goes on."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, ParamSpec, TypeVar

from controlplane.operations.actor import Actor
from controlplane.operations.operation import InvalidRequest
from controlplane.store.interface import StoreBusy

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_SECONDS: Final = 60.0  # many times what the largest ruleset needs for anything that is meant well
_LONGEST_OF_A_PAGE: Final = 10.0  # for waiting and for working
_STOPS_WITHIN_SECONDS: Final = 1.0  # else it is told so again
_MOST_WAITING: Final = 16  # a ruleset may have 8 MiB and take seconds to read
_MOST_OF_ONE: Final = 4


class _Stop(BaseException):
    """Raised within work that takes too long; no `except Exception` there holds it up."""


class _Queue:
    """One at a time: Python runs no two at once anyway, and each that runs slows down the event loop.

    Operators take turns, so that who asks for much waits behind nobody's but his own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running = threading.Lock()  # who asks may be gone, and the next have his turn, before that
        self._waiting: Counter[str] = Counter()  # by who asks
        self._turns: dict[str, asyncio.Lock] = {}
        self._turn = asyncio.Lock()

    async def do(self, asker: str, function: Callable[[], T], seconds: float) -> T:
        if self._waiting.total() >= _MOST_WAITING or self._waiting[asker] >= _MOST_OF_ONE:
            raise StoreBusy("too many rehearsals are waiting: try again in a moment")
        if not self._waiting:
            self._turn = asyncio.Lock()  # of the event loop that runs now
        self._waiting[asker] += 1
        try:
            async with self._turns.setdefault(asker, asyncio.Lock()), self._turn:
                outcome: Future[T] = Future()
                self._start(outcome, lambda: self._limited(function, seconds))
                return await asyncio.wrap_future(outcome)
        finally:
            self._waiting[asker] -= 1
            if not self._waiting[asker]:
                del self._waiting[asker], self._turns[asker]

    def _start(self, outcome: Future[T], function: Callable[[], T]) -> threading.Thread:
        """A thread that no stop of the server waits for, as it would for an executor's."""
        thread = threading.Thread(target=_settle, args=(outcome, function), name=self._name, daemon=True)
        thread.start()
        return thread

    def _limited(self, function: Callable[[], T], seconds: float) -> T:
        """In a thread of its own, which can be stopped without this one."""
        outcome: Future[T] = Future()
        with self._running:
            worker = self._start(outcome, function)
            worker.join(seconds)
            while worker.is_alive() and worker.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(worker.ident), ctypes.py_object(_Stop)
                )
                # Within a finaliser or a weak reference's callback Python drops it, and the work goes on.
                worker.join(_STOPS_WITHIN_SECONDS)
        try:
            return outcome.result(0)
        except (_Stop, TimeoutError):
            said = f"this takes longer than {seconds:g} s: ask with fewer rules, cases or values"
            raise InvalidRequest(said) from None


def _settle(outcome: Future[T], function: Callable[[], T]) -> None:
    if not outcome.set_running_or_notify_cancel():  # who asked has left already
        return
    try:
        outcome.set_result(function())
    except BaseException as error:
        outcome.set_exception(error)


_rehearsals: Final = _Queue("rehearsal")
_changes: Final = _Queue("change")
_pages: Final = _Queue("page")


async def aside(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Raises StoreBusy where too much waits already, and InvalidRequest where it takes too long."""
    return await _rehearsals.do(actor.name, lambda: function(*args, **kwargs), LONGEST_SECONDS)


async def in_earnest(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for what changes something: who only tries things out, as viewers may, is not before it."""
    return await _changes.do(actor.name, lambda: function(*args, **kwargs), LONGEST_SECONDS)


async def for_a_page(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The same for what a page can do without: None where it isn't there soon."""
    try:
        async with asyncio.timeout(_LONGEST_OF_A_PAGE):
            return await _pages.do(actor.name, lambda: function(*args, **kwargs), _LONGEST_OF_A_PAGE)
    except (TimeoutError, StoreBusy, InvalidRequest):
        return None
