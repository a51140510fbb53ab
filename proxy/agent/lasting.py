"""Log of a lasting problem in few lines: one line when it begins or changes, then one every ten minutes."""

import logging
import time
from collections.abc import Callable
from typing import Final

_REPEATED_SECONDS: Final = 600.0


class LastingProblem:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._logged_at = 0.0
        self._unlogged = 0
        self.text: str | None = None  # the current problem

    def met(self, text: str, line: str, *arguments: object, level: int = logging.ERROR) -> None:
        """Report that the lasting problem has occurred, for the first time or again.

        `line` and `arguments` form the log line of the problem.
        """
        now = self._clock()
        if text == self.text and now - self._logged_at < _REPEATED_SECONDS:
            self._unlogged += 1
            return
        again = f" (and {self._unlogged} times since the last line)" if text == self.text else ""
        self._log.log(level, line + "%s", *arguments, again)
        self.text, self._logged_at, self._unlogged = text, now, 0

    def over(self) -> bool:
        """Record that the problem in this log has ended.

        Return True if a problem was recorded before.
        """
        was, self.text = self.text, None
        return was is not None
