"""Runner of the `--doctor` checks, in parallel.

Each check has its own time limit, and a failure in one check does not affect the other checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from proxy.wire.finding import Finding

Look = Callable[[], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Look
    seconds: float


async def run(checks: Sequence[Check]) -> list[Finding]:
    """Run the checks of `--doctor`, and return their findings in the order of the checks."""
    found = await asyncio.gather(*map(_one, checks))
    return [finding for findings in found for finding in findings]


async def _one(check: Check) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(check.seconds):
            return await check.look()
    except TimeoutError:
        return [
            Finding(
                check.name, "fail", f"no response within {check.seconds:g} s", "find out what it waits for"
            )
        ]
    except Exception as error:
        # A fault in one check must not end the doctor. The finding still shows what could not be checked.
        what = f"can't be checked: {type(error).__name__}: {error}"
        return [Finding(check.name, "fail", what, "examine the item in the message")]


def in_thread(look: Callable[[], Sequence[Finding]]) -> Look:
    """Return a check that runs the given check in a thread, because the given check waits for the disk."""

    async def looked() -> Sequence[Finding]:
        return await asyncio.to_thread(look)

    return looked
