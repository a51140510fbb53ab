"""Names of both programs: as installed commands, or as modules if the control plane was started as one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COMMAND: Final = "graphward"
MODULE: Final = "python -m controlplane"


def program_of(first_argument: str) -> str:
    """Return the name of the program that is the first word of `sys.argv`."""
    return COMMAND if Path(first_argument).name == COMMAND else MODULE


def proxy_beside(program: str) -> str:
    """Return the name of the proxy's program, in the same form as the control plane's."""
    return "graphward-proxy" if program == COMMAND else "python -m proxy"
