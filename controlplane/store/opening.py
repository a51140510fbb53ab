"""Open a database connection in a new thread.

If the caller is cancelled, close the connection and end the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def open_in_thread(
    thread: ThreadPoolExecutor, opens: Callable[[], T], closes: Callable[[T], object]
) -> T:
    """Call `opens` in the executor's thread, and return the result of the call.

    The executor must have exactly one thread.

    If the caller is cancelled or `opens` fails, the connection is closed in its thread, and the thread ends.
    """
    opening = thread.submit(opens)
    try:
        return await asyncio.wrap_future(opening)
    except BaseException:
        thread.submit(_close, opening, closes)
        thread.shutdown(wait=False)
        raise


def _close(opening: Future[T], closes: Callable[[T], object]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        closes(opening.result())
