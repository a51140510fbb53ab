"""Processes that end when the program that started them ends, however that comes about."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # loaded here: a child between fork and exec must load nothing


def end_with_parent() -> None:
    """Have the kernel send SIGTERM once the parent has ended, a SIGKILL included: for `preexec_fn`.

    A child in a session of its own gets no signal of the terminal, and nobody is left to pass one on.
    """
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the kernel was asked
        os._exit(1)
