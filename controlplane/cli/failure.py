"""How a command ends that can't do what it was asked."""

from __future__ import annotations

FAILED = 1
INVALID_INPUT = 2


class CommandFailed(Exception):
    """Ends the command with these lines on standard error and this exit status."""

    def __init__(self, status: int, *lines: str) -> None:
        super().__init__(*lines)
        self.status = status
        self.lines = lines
