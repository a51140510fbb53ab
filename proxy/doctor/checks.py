"""Runs checks side by side, each within a time of its own, and lets none bring down the others."""

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
    """In the order of the checks, however long each takes."""
    found = await asyncio.gather(*map(_one, checks))
    return [finding for findings in found for finding in findings]


async def _one(check: Check) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(check.seconds):
            return await check.look()
    except TimeoutError:
        return [
            Finding(
                check.name, "fail", f"no response within {check.seconds:g} s", "look at what it waits for"
            )
        ]
    except Exception as error:
        # A doctor that falls over its patient's state helps nobody; what it is about is still told.
        what = f"can't be looked at: {type(error).__name__}: {error}"
        return [Finding(check.name, "fail", what, "look at what the message names")]


def in_thread(look: Callable[[], Sequence[Finding]]) -> Look:
    """Of a check that waits for the disk."""

    async def looked() -> Sequence[Finding]:
        return await asyncio.to_thread(look)

    return looked
