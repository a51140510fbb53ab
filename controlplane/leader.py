"""Jobs that one control plane, the leader, does for all control planes that share a store.

Each job of the leader works in small steps, and doing a step twice is harmless. If a leader is delayed, it
may finish one of its steps when another control plane has already taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from controlplane.store.interface import Peers

_log = logging.getLogger(__name__)


async def lead(peers: Peers, start: Callable[[], Sequence[asyncio.Task[None]]]) -> None:
    """Start the jobs when this control plane becomes the leader, and cancel them when it stops leading."""
    while True:
        await peers.until_leading()
        _log.info("this control plane is the leader: it writes the search index and runs retention")
        jobs = start()
        try:
            await peers.until_not_leading()
            _log.warning("this control plane is no longer the leader")
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
