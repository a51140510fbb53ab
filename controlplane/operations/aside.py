"""Work that takes the processor for long, done in a thread so that the server's event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from controlplane.store.interface import StoreBusy

P = ParamSpec("P")
T = TypeVar("T")

_MOST_WAITING: Final = 8  # a ruleset may have 8 MiB and take seconds to read

# One: Python runs no two of them at once anyway, and each that runs slows down the event loop.
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="rehearsal")
_waiting: set[asyncio.Future[object]] = set()


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Raises StoreBusy where too much waits already."""
    if len(_waiting) >= _MOST_WAITING:
        raise StoreBusy("too many rehearsals are waiting: try again in a moment")
    future = asyncio.get_running_loop().run_in_executor(_thread, lambda: function(*args, **kwargs))
    _waiting.add(future)  # type: ignore[arg-type]
    future.add_done_callback(_waiting.discard)
    return await future
