"""Program names of the proxy and the control plane: an installed command, or a module for `python -m`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COMMAND: Final = "graphward"
MODULE: Final = "python -m controlplane"


def program_of(first_argument: str) -> str:
    """Return the program name that corresponds to `sys.argv[0]`."""
    return COMMAND if Path(first_argument).name == COMMAND else MODULE


def proxy_beside(program: str) -> str:
    """Return the name of the proxy's program, in the same form as the name of the control plane's program."""
    return "graphward-proxy" if program == COMMAND else "python -m proxy"
