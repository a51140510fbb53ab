"""Heartbeats: one message to the control plane with the state of every component of this proxy."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from proxy import __version__
from proxy.agent.health import AuditStatus, Health
from proxy.agent.report import Report
from proxy.agent.sync import Sync
from proxy.outbound.retry import jittered
from proxy.policy.redaction import shortened
from proxy.rules.snapshot import Snapshot
from proxy.wire.models import Heartbeat

_MAX_DETAIL: Final = 2000
_LOOK_SECONDS: Final = 0.2
_TOKEN_SECONDS: Final = 2.0  # seconds that the first heartbeat waits for the first attempt at each token
_LAST_SECONDS: Final = 2.0  # seconds; time limit of the last heartbeat, within the supervisor's margin


class HeartbeatSender:
    def __init__(
        self,
        report: Report,
        *,
        sync: Sync,
        health: Health,
        audit: Callable[[], Awaitable[AuditStatus | None]],
        public_base_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._report = report
        self._sync = sync
        self._health = health
        self._audit = audit
        self._public_base_url = public_base_url or None
        self._clock = clock
        self._started = time.monotonic()
        self._enforced: Snapshot | None = None  # the last snapshot that all workers were seen to enforce

    async def run(self) -> None:
        # Wait first, because a start must not look like a failure.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOKEN_SECONDS):
                await self._health.first_attempts()
        while True:
            await self.once()
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait for one heartbeat interval.

        If the workers begin to apply other rules, end the wait early, so that the next heartbeat soon reports
        the new rules.
        """
        ends = time.monotonic() + jittered(self._sync.interval, 0.9)
        report = self._enforced
        while (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            enforced = self._looked()
            if enforced is not None and (report is None or enforced.generation != report.generation):
                return

    def _looked(self) -> Snapshot | None:
        if self._health.rules_are_enforced():
            self._enforced = self._sync.snapshot
        return self._enforced

    async def once(self) -> bool:
        return await self._report.post(msgspec.json.encode(await self.message()))

    async def last(self, status: AuditStatus) -> None:
        """Send a last heartbeat when the proxy stops.

        The heartbeat states the undelivered events, or that all events are delivered.
        """
        message = self._message(status)
        if status.is_all_delivered:
            message = msgspec.structs.replace(message, ended=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._report.post(msgspec.json.encode(message))

    async def message(self) -> Heartbeat:
        return self._message(await self._audit())

    def _message(self, status: AuditStatus | None) -> Heartbeat:
        snapshot, enforced, age = self._sync.snapshot, self._looked(), self._sync.age_seconds
        checks = {
            name: msgspec.structs.replace(check, detail=shortened(check.detail, _MAX_DETAIL))
            for name, check in self._health.checks().items()
        }
        return Heartbeat(
            version=__version__,
            uptime_seconds=round(time.monotonic() - self._started, 3),
            loaded_rules=snapshot.rule_count if snapshot is not None else 0,
            sync_version=snapshot.version if snapshot is not None else None,
            checks=checks,
            last_seq=status.journal.last_seq if status is not None else {},
            audit_pending=status.pending if status is not None else 0,
            oldest_pending_seconds=round(status.oldest_seconds(self._clock()), 3) if status else 0.0,
            sync_age_seconds=round(age, 3) if age is not None else None,
            rulesets={each.ruleset_id: each.version for each in enforced.rulesets} if enforced else None,
            public_base_url=self._public_base_url,
        )
