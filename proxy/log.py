"""Where this process's log lines go: standard error."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from proxy.wire.log_line import LineFormatter


def configure(level: str, style: Literal["text", "json"], process: str) -> None:
    """Sets up logging of this process, replacing what it inherited."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(style, process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
