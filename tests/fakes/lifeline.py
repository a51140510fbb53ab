"""Child processes that end when their parent process ends, even by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # loaded here: a child between fork and exec must not load libraries


def end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process once its parent has ended: for `preexec_fn`.

    A child in another session gets no signals from the terminal, and no other process forwards these signals
    to the child.
    """
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)
