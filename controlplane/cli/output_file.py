"""Output file of a command, which appears only after it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from controlplane.cli.failure import FAILED, CommandFailed
from proxy.process.own_process import make_file


@contextlib.contextmanager
def written(output: Path) -> Iterator[Callable[[bytes], None]]:
    """Return a function that writes bytes to the output file of a command.

    Raise CommandFailed if the output file cannot be written.

    If the output is a device or a pipe, the command writes to that output directly and never replaces it. If
    the output path is a symbolic link, the command replaces the target of the link and keeps the link.
    """
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as file:
                yield partial(_write_to, file)
            return
        whole = output.resolve()
        part = whole.with_name(f"{whole.name}.part")
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(make_file(part, os.O_WRONLY), "wb") as file:
                yield partial(_write_to, file)
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(FAILED, f"{output}: {error.strerror}") from None


def _write_to(file: BinaryIO, piece: bytes) -> None:
    file.write(piece)
