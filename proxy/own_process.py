"""What this process keeps to itself, its memory and the files that it makes, and how many it may open."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def keep_to_itself() -> None:
    """No core dump, and no other process of the same user looks into memory, environment or descriptors of
    this process or its children; root still does. Files are made for their owner alone."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The limit doesn't hold where dumps are piped into a program (core(5)); this does, and for ptrace(2) too.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def raise_open_files() -> None:
    """As far as it may, for this process and its children: each client is a descriptor, and each worker takes
    several of the supervisor's. Select can't wait for those beyond 1023; poll can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
