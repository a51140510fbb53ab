"""Shipper that delivers journals as signed batches, separately for each organisation.

The shipper retries with back-off, splits large batches, and quarantines refused batches.

`_after` applies the effect of every response. docs/reference/events.md has these effects as a table.
"""

import asyncio
import contextlib
import functools
import logging
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from proxy.agent.control_plane import ControlPlane, Response
from proxy.agent.journal import Journal
from proxy.agent.lasting import LastingProblem
from proxy.agent.proof import Accepted, AuditOutcome, Refused, audit_outcome, description
from proxy.agent.statefile import Batch
from proxy.outbound.call import CallFailed
from proxy.outbound.retry import FIRST_BACKOFF, backoff, retry_after, sleep_until_set
from proxy.policy.redaction import shortened
from proxy.wire.models import SyncLinger

log = logging.getLogger(__name__)

T = TypeVar("T")


LARGEST_BODY: Final = 4_500_000  # bytes; the control plane takes 5 MiB
_STRANGERS_WAIT: Final = 300.0  # seconds; the longest delay that an unproven 429 can cause
_SMALLEST_BODY: Final = 64 * 1024
_ENVELOPE: Final = 128  # bytes of a body that are not events
# Least seconds to collect events of each organisation. This makes at most 40 batches a minute in all; a proxy
# may send 60.
_LEAST_LINGER: Final = 1.5
_MOST_LINGER: Final = 300.0  # seconds; the longest delay of events that a control plane can request
_PAUSE_AT_STOP: Final = 1.0  # seconds between two attempts during a stop
_LARGE_AT_ONCE: Final = 4  # number of batches larger than ordinary ones in memory at the same time


@dataclass(slots=True)
class _Delivery:
    """Delivery state of one organisation; the state is kept in memory and not in the journal."""

    org_id: str
    pending: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0  # number of failed attempts in a row
    not_before: float = 0.0  # monotonic seconds; the control plane requested no attempt before this time
    largest_body: int = LARGEST_BODY
    trouble: LastingProblem = field(default_factory=lambda: LastingProblem(log))
    quarantined: str | None = None  # the latest batch that was refused for good


class Shipper:
    def __init__(
        self,
        journal: Journal,
        disk: Executor,
        control_plane: ControlPlane,
        *,
        url: str,
        max_batch_size: int,
        replay_interval: float,
        catch_up: bool,
        asked: Callable[[], SyncLinger | None],
        least_linger: float = _LEAST_LINGER,
    ) -> None:
        """`asked` returns the collection time that the control plane sent, or None if it sent no such time.

        The agent collects events for this time before it sends a batch that is not full.
        """
        self._journal = journal
        self._disk = disk
        self._control_plane = control_plane
        self._url = url
        self._max_batch_size = max_batch_size
        self._replay_interval = replay_interval
        self._catch_up = catch_up
        self._asked = asked
        self._least_linger = least_linger
        self._deliveries: dict[str, _Delivery] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._stopping = asyncio.Event()
        # Monotonic seconds; during a stop, no attempt is repeated after this time.
        self._retries_end = -math.inf
        self.delivered = 0  # events since the start
        # Batches since the start whose id the control plane already had for other events.
        self.reused_ids = 0

    def notify(self, pending: dict[str, int]) -> None:
        """Update the number of events in each organisation's journal."""
        for org_id, count in pending.items():
            delivery = self._deliveries.setdefault(org_id, _Delivery(org_id))
            delivery.pending = count
            if count >= self._max_batch_size:
                delivery.wake.set()
            task = self._tasks.get(org_id)
            if count and (task is None or task.done()):
                if task is not None and (error := task.exception()):
                    log.error("delivery of audit events for organisation %s failed: %r", org_id, error)
                self._tasks[org_id] = asyncio.create_task(self._deliver(delivery), name=f"ship {org_id}")

    def problems(self) -> dict[str, str]:
        """Return, for each organisation, the reason why the proxy does not send the organisation's events."""
        return {org_id: held.trouble.text for org_id, held in self._deliveries.items() if held.trouble.text}

    def quarantined(self) -> dict[str, str]:
        """Return, per organisation, the latest batch that was refused for good since the agent started."""
        return {org_id: held.quarantined for org_id, held in self._deliveries.items() if held.quarantined}

    def forget_quarantined(self) -> None:
        """Clear the records of all quarantined batches, because an operator has handled these batches."""
        for held in self._deliveries.values():
            held.quarantined = None

    async def stop(self, deadline: float, *, retry: bool = False) -> None:
        """Send the events that can be sent within the deadline.

        Repeat failed deliveries only if `retry` is set.
        """
        if retry:
            self._retries_end = time.monotonic() + deadline
        self._stopping.set()
        for delivery in self._deliveries.values():
            delivery.wake.set()
        tasks = [task for task in self._tasks.values() if not task.done()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _on_disk(self, call: Callable[..., T], *args: object, **named: object) -> T:
        work = functools.partial(call, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    async def _deliver(self, delivery: _Delivery) -> None:
        """Send batches until the organisation has no pending events.

        A later call of `notify` starts `_deliver` again for the organisation.
        """
        wait = 0.0
        while delivery.pending:
            try:
                if not wait:  # after a wait, the batch already exists and was delayed long enough
                    await self._gather_events(delivery)
                wait = await self._send_one(delivery)
            except OSError as error:
                wait = self._put_off(delivery, f"local disk: {error}")
            if (
                wait
                and await sleep_until_set(self._stopping, wait)
                and not await self._retry_in_time(delivery)
            ):
                return

    async def _retry_in_time(self, delivery: _Delivery) -> bool:
        """Wait before the next attempt of a stopping proxy, at least as long as the control plane requested.

        Return False if the next attempt would be after the proxy's deadline for stopping.
        """
        now = time.monotonic()
        at = max(now + _PAUSE_AT_STOP, delivery.not_before)
        if at >= self._retries_end:
            return False
        await asyncio.sleep(at - now)
        return True

    async def _gather_events(self, delivery: _Delivery) -> None:
        """Let a small batch grow, so that a trickle of events stays below the control plane's limits."""
        delivery.wake.clear()
        if delivery.pending < self._max_batch_size and not self._stopping.is_set():
            await sleep_until_set(delivery.wake, self._linger(delivery.org_id))

    def _linger(self, org_id: str) -> float:
        active = max(1, sum(1 for each in self._deliveries.values() if each.pending))
        asked = self._asked()
        of_proxy = self._least_linger if asked is None else _bounded(asked.seconds, self._least_linger)
        of_org = 0.0 if asked is None else _bounded(asked.orgs.get(org_id, 0.0), 0.0)
        return max(of_proxy * active, of_org)

    async def _send_one(self, delivery: _Delivery) -> float:
        """Try to send one batch of an organisation.

        Return the seconds to wait before the next attempt to send a batch; 0 for no wait.
        """
        oldest = await self._on_disk(self._journal.oldest_ms, delivery.org_id)
        age = 0.0 if oldest is None else time.time() - oldest / 1000
        behind = self._catch_up and age > self._replay_interval
        batch = await self._on_disk(
            self._journal.plan,
            delivery.org_id,
            max_events=None if behind else self._max_batch_size,
            max_bytes=delivery.largest_body - _ENVELOPE,
        )
        if batch is None:
            delivery.pending = 0
            return 0.0
        async with self._large if batch.count > self._max_batch_size else contextlib.nullcontext():
            body = await self._on_disk(self._journal.body, delivery.org_id, batch)
            if body is None:
                return 0.0
            wait = await self._attempt(delivery, batch, body)
        pending = await self._on_disk(self._journal.pending)
        delivery.pending = pending.get(delivery.org_id, 0)
        return wait

    async def _attempt(self, delivery: _Delivery, batch: Batch, body: bytes) -> float:
        try:
            response = await self._control_plane.post(self._url, body)
        except CallFailed as failure:
            return self._put_off(delivery, f"control plane: {failure}")
        return await self._after(response, delivery, batch, body)

    async def _after(self, response: Response, delivery: _Delivery, batch: Batch, body: bytes) -> float:
        """Apply the control plane's response to the batch.

        Return the seconds to wait before the next attempt to send a batch.
        """
        match audit_outcome(response, batch.batch_id):
            case Accepted(content_differs=True):
                return await self._reused(delivery, batch)
            case Accepted() as accepted:
                return await self._accepted(accepted, delivery, batch)
            case Refused(status=400 | 403) as refused:
                return await self._quarantine(response, refused, delivery, batch, body)
            case Refused(status=409):
                return await self._expired(delivery, batch)
            case outcome if response.status == 413:
                return await self._too_large(response, outcome, delivery, batch, body)
            case outcome if response.status == 429:
                return self._limited(response, outcome, delivery)
            case outcome:
                return self._put_off(delivery, outcome.text)

    async def _accepted(self, accepted: Accepted, delivery: _Delivery, batch: Batch) -> float:
        if not accepted.duplicate and accepted.count < batch.count:
            # This is expected after a new batch id. Otherwise another proxy has used these events' ids
            # before.
            log.warning(
                "audit batch %s of organisation %s: the control plane already had %d of %d events",
                batch.batch_id, delivery.org_id, batch.count - accepted.count, batch.count,
            )  # fmt: skip
        await self._on_disk(self._journal.done, delivery.org_id, batch)
        if delivery.trouble.over():
            log.info("delivery of audit events of organisation %s works again", delivery.org_id)
        delivery.failures = 0
        # The limit that refused large batches may be gone. If not, one batch of eleven is split.
        delivery.largest_body = min(LARGEST_BODY, delivery.largest_body + delivery.largest_body // 16)
        self.delivered += batch.count
        return 0.0

    async def _reused(self, delivery: _Delivery, batch: Batch) -> float:
        """Send the events of the batch under a new batch ID.

        The control plane already has other events under the old batch ID, so the events of this batch would
        be lost.
        """
        self.reused_ids += 1
        log.error(
            "audit batch %s of organisation %s: the control plane has other events under this id; "
            "the batch's %d events are sent again under a new id. Do two proxies run with the same keys?",
            batch.batch_id, delivery.org_id, batch.count,
        )  # fmt: skip
        return await self._renewed(delivery, batch, "control plane has other events under each new batch id")

    async def _expired(self, delivery: _Delivery, batch: Batch) -> float:
        """Send the events under a new batch ID, because the old ID was used more than 48 hours ago."""
        return await self._renewed(delivery, batch, "control plane responded with 409 again")

    async def _renewed(self, delivery: _Delivery, batch: Batch, if_again: str) -> float:
        await self._on_disk(self._journal.renew, delivery.org_id, batch)
        delivery.failures += 1
        return 0.0 if delivery.failures == 1 else self._put_off(delivery, if_again)

    async def _quarantine(
        self, response: Response, refused: Refused, delivery: _Delivery, batch: Batch, body: bytes
    ) -> float:
        path = await self._on_disk(
            self._journal.quarantine,
            delivery.org_id,
            batch,
            body,
            response.status,
            shortened(response.body.decode("utf-8", "replace"), 4096),
        )
        delivery.failures = 0
        delivery.trouble.over()
        first, last = self._journal.numbers_sent(delivery.org_id, batch)
        delivery.quarantined = f"{batch.count} events, seq {first}-{last}: {refused.text}"
        log.error(
            "audit batch %s of organisation %s was refused permanently and quarantined in %s: %s",
            batch.batch_id, delivery.org_id, path, refused.text,
        )  # fmt: skip
        return 0.0

    async def _too_large(
        self,
        response: Response,
        outcome: AuditOutcome,
        delivery: _Delivery,
        batch: Batch,
        body: bytes,
    ) -> float:
        """Split a batch that was too large, and send its two halves.

        A "too large" response needs no signature. A gateway with a smaller limit, or a control plane that
        stopped reading and cannot sign, may also send a "too large" response. Splitting a batch loses no
        event. A batch is quarantined only if the response proves that the control plane refused the batch.
        """
        delivery.largest_body = max(_SMALLEST_BODY, min(delivery.largest_body, len(body) // 2))
        if await self._on_disk(self._journal.split, delivery.org_id, batch):
            log.warning(
                "audit batch %s of %d bytes was too large, so the proxy splits the batch: %s",
                batch.batch_id, len(body), description(response),
            )  # fmt: skip
            return 0.0
        if isinstance(outcome, Refused):
            return await self._quarantine(response, outcome, delivery, batch, body)
        return self._put_off(delivery, description(response))

    def _limited(self, response: Response, outcome: AuditOutcome, delivery: _Delivery) -> float:
        wait = max(
            asked_wait(response, outcome, self._replay_interval), min(FIRST_BACKOFF, self._replay_interval)
        )
        delivery.trouble.met(
            description(response),
            "audit events of organisation %s wait for %.0f s: %s",
            delivery.org_id, wait, description(response),
            level=logging.INFO if isinstance(outcome, Refused) else logging.ERROR,
        )  # fmt: skip
        delivery.not_before = time.monotonic() + wait
        # Never sooner, but a little later, so that the proxies of a fleet do not all return at the same
        # moment.
        return wait + random.uniform(0, min(0.25, wait / 10))  # noqa: S311 - not a secret

    def _put_off(self, delivery: _Delivery, problem: str) -> float:
        """Keep all events for the next delivery attempt, which follows within one replay interval."""
        delivery.trouble.met(
            problem, "audit events of organisation %s are kept: %s", delivery.org_id, problem
        )
        wait = backoff(delivery.failures, self._replay_interval)
        delivery.failures += 1
        return wait


def _bounded(seconds: float, least: float) -> float:
    return max(least, min(seconds, _MOST_LINGER))


def asked_wait(response: Response, outcome: AuditOutcome, interval: float) -> float:
    """Return the seconds that a 429 response requests, or one interval if the response requests no time.

    The Retry-After header itself is not signed.
    """
    if isinstance(outcome, Refused) and outcome.retry_after is not None:
        return outcome.retry_after
    asked = retry_after(response.headers.get("Retry-After"), time.time())
    if asked is None:
        return interval
    if isinstance(outcome, Refused):
        return asked
    # An intermediary does not have this proxy's limits.
    return min(asked, max(_STRANGERS_WAIT, interval))
