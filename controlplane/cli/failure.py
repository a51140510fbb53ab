"""How a command ends that can't do what it was asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

FAILED = 1
INVALID_INPUT = 2


class CommandFailed(Exception):
    """Ends the command with these lines on standard error and this exit status."""

    def __init__(self, status: int, *lines: str) -> None:
        super().__init__(*lines)
        self.status = status
        self.lines = lines


@contextlib.contextmanager
def named_as_options(options: Mapping[str, str]) -> Iterator[None]:
    """What is wrong with a request's member is told of the option of the command line that it came from."""
    try:
        yield
    except CommandFailed as failed:
        if failed.status != INVALID_INPUT:
            raise
        raise CommandFailed(INVALID_INPUT, *(_named(line, options) for line in failed.lines)) from None


def _named(problem: str, options: Mapping[str, str]) -> str:
    member, colon, rest = problem.partition(": ")
    return f"{options[member]}{colon}{rest}" if member in options else problem
