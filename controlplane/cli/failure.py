"""Failure of a command, with its message and exit status."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from proxy.config.given_text import NotUtf8

T = TypeVar("T")

FAILED = 1
INVALID_INPUT = 2


class CommandFailed(Exception):
    """Exception that ends the command with the given lines on standard error and the given exit status."""

    def __init__(self, status: int, *lines: str) -> None:
        super().__init__(*lines)
        self.status = status
        self.lines = lines


def given(file: Path, read: Callable[[bytes], T]) -> T:
    """Return the result of `read` for a file that the command line names.

    Raise CommandFailed if the file can't be read.
    """
    try:
        return read(file.read_bytes())
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error.strerror}") from None
    except NotUtf8 as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: can't be read: {error}") from None


@contextlib.contextmanager
def named_as_options(options: Mapping[str, str]) -> Iterator[None]:
    """If an API error is about a request field, name the command-line option that set the field."""
    try:
        yield
    except CommandFailed as failed:
        if failed.status != INVALID_INPUT:
            raise
        raise CommandFailed(INVALID_INPUT, *(_named(line, options) for line in failed.lines)) from None


def _named(problem: str, options: Mapping[str, str]) -> str:
    member, colon, rest = problem.partition(": ")
    return f"{options[member]}{colon}{rest}" if member in options else problem
