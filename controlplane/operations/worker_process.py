"""Run long computations in a separate process, so that the server's event loop does not block.

`pickle` must be able to serialise the function, its arguments and its result.
"""

from __future__ import annotations

import asyncio
import atexit
from collections import Counter
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar, cast

from controlplane.operations.actor import Actor
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.run_process import ProcessDied, RunProcess
from controlplane.store.interface import StoreBusy

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_SECONDS: Final = 60.0  # seconds of a run; many times what the largest sensible ruleset needs
_LONGEST_OF_A_PAGE: Final = 10.0  # seconds for waiting and for working
_LONGEST_OF_A_FILE: Final = 20.0
_ASK_LESS: Final = "send fewer rules, cases or values"
_SEND_LESS: Final = "record or export fewer requests, and send a file of those"
# seconds that an idle process is kept, because a start costs a second of processor time
_IDLE_SECONDS: Final = 300.0
_MOST_WAITING: Final = 16  # waiting runs, each of which may hold a ruleset of 8 MiB and take seconds
_MOST_OF_ONE: Final = 4


class _Queue:
    """Queue of functions for one worker process and one purpose, such as dry runs.

    The queue runs one function at a time. The queue starts a worker process for its first function, and runs
    later functions in the same worker process. Each operator has only one function at a time that competes
    for the worker process. So an operator with many functions does not delay other operators.
    """

    def __init__(self, advice: str = _ASK_LESS) -> None:
        self._advice = advice  # advice to the operator if a run takes too long
        self._process: RunProcess | None = None  # the idle process; None while a run uses it
        self._ends_idle: asyncio.TimerHandle | None = None
        self._waiting: Counter[str] = Counter()  # runs of each operator
        self._slots: dict[str, asyncio.Lock] = {}
        self._slot = asyncio.Lock()

    async def do(
        self, caller: str, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._waiting.total() >= _MOST_WAITING or self._waiting[caller] >= _MOST_OF_ONE:
            raise StoreBusy("too many dry runs are waiting: try again in a moment")
        if not self._waiting:
            self._slot = asyncio.Lock()  # bound to the event loop that runs now
        self._waiting[caller] += 1
        try:
            async with self._slots.setdefault(caller, asyncio.Lock()), self._slot:
                returned, outcome = await self._run(seconds, function, args, kwargs)
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller], self._slots[caller]
        if not returned:
            raise cast(Exception, outcome)
        return cast(T, outcome)

    async def _run(
        self, seconds: float, function: Callable[..., object], args: object, kwargs: object
    ) -> tuple[bool, object]:
        """Run the function in the worker process that belongs to the queue.

        Kill the worker process if the function reaches the deadline, or if the caller disconnects.
        """
        process = self._taken(function.__module__)
        try:
            outcome = await process.run(function, args, kwargs, seconds)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and not process.is_ready:
                self._give_back(process)  # the next run finds the process ready
                raise
            process.kill()
            if isinstance(error, TimeoutError):
                said = f"this takes longer than {seconds:g} s: {self._advice}"
                raise InvalidRequest(said) from None
            if isinstance(error, ProcessDied):
                said = f"the worker process ended {error}: try again in a moment"
                raise StoreBusy(said) from None
            raise
        self._give_back(process)
        return outcome

    def _taken(self, module: str) -> RunProcess:
        """Return a worker process for one run of a function.

        Raise StoreBusy if a new worker process is needed and can't be started.
        """
        if self._ends_idle is not None:
            self._ends_idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            if process.is_alive:
                return process
            process.kill()  # the host killed it, perhaps because memory ran out
        try:
            return RunProcess(module)
        except OSError as error:
            raise StoreBusy(f"can't start a process for this request: {error.strerror}") from None

    def _give_back(self, process: RunProcess) -> None:
        self._process = process
        self._ends_idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self.end_idle)

    def end_idle(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()


_trials: Final = _Queue()
_changes: Final = _Queue()
_pages: Final = _Queue()
_files: Final = _Queue(_SEND_LESS)


async def run_trial(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the function that does a dry run in a worker process.

    Raise StoreBusy if too many dry runs already wait. Raise InvalidRequest if the dry run takes longer than
    `LONGEST_SECONDS`.
    """
    return await _trials.do(actor.name, LONGEST_SECONDS, function, *args, **kwargs)


async def run_on_file(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function on an uploaded file in a worker process.

    Operations on rules use a different worker process, so uploaded files do not delay operations on rules.
    """
    return await _files.do(actor.name, _LONGEST_OF_A_FILE, function, *args, **kwargs)


async def run_change(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function of an operation that makes a change, in the worker process for such operations.

    Dry runs, which viewers may start, use a different worker process, so dry runs do not delay changes.
    """
    return await _changes.do(actor.name, LONGEST_SECONDS, function, *args, **kwargs)


async def run_for_page(actor: Actor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Run a function for a console page.

    If the function fails, the page is shown without the function's result.

    Return None if the function fails, or if it takes too long for the page.
    """
    try:
        async with asyncio.timeout(_LONGEST_OF_A_PAGE):
            return await _pages.do(actor.name, _LONGEST_OF_A_PAGE, function, *args, **kwargs)
    except (TimeoutError, StoreBusy, InvalidRequest):
        return None


@atexit.register
def end_processes() -> None:
    """Kill the worker processes that are idle.

    If a request is cancelled, the worker process that runs the request's function is killed.
    """
    for queue in (_trials, _changes, _pages, _files):
        queue.end_idle()
