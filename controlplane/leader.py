"""Jobs that one control plane does for all that share a store, for as long as it leads.

Every job that runs here does its work in small steps, each of which may be done twice: a leader that was held
up may finish one step after another control plane has taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from controlplane.store.interface import Peers

_log = logging.getLogger(__name__)


async def lead(peers: Peers, start: Callable[[], Sequence[asyncio.Task[None]]]) -> None:
    """Start the jobs when this control plane begins to lead, and cancel them when it leads no more."""
    while True:
        await peers.until_leading()
        _log.info("this control plane leads: it keeps the search index and retention going")
        jobs = start()
        try:
            await peers.until_not_leading()
            _log.warning("this control plane leads no more")
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
