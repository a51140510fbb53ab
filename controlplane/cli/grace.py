"""Define the option `--grace`, the time for which an old secret stays valid."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from controlplane.cli.failure import INVALID_INPUT, CommandFailed

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Grace = Annotated[
    str,
    typer.Option(
        "--grace", metavar="TIME", help="Time for which the old secret stays valid, such as 30m, 24h or 7d."
    ),
]


def grace_seconds(text: str, most: int) -> int:
    """Convert a grace period in the form of `--grace` to seconds.

    Raise CommandFailed if the grace period is invalid, or longer than `most` seconds.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise CommandFailed(
            INVALID_INPUT, f"--grace: must be a number with s, m, h or d, such as 24h, not {text!r}"
        )
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > most:
        raise CommandFailed(INVALID_INPUT, f"--grace: must be at most {most // 86_400}d, not {text}")
    return seconds
