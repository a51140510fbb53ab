"""State of each component of one proxy, which the heartbeat, readiness check and metrics report."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.agent.credentials.manager import CredentialManager
from proxy.agent.journal import JournalStatus
from proxy.agent.report import Report
from proxy.agent.statefile import Gap
from proxy.agent.sync import Sync
from proxy.agent.traces import TraceExporter
from proxy.agent.vault import Held, ending_check
from proxy.ipc.counters import (
    ALIVE_AT,
    CREDENTIAL_READY,
    KILL_FILE,
    SIGNING_KEY_READY,
    SNAPSHOT_GENERATION,
    SPOOL_READY,
    TAKES_REQUESTS,
    UPSTREAM_ERRORS,
    CounterPages,
    Counters,
)
from proxy.startup.identities import DEFAULT_IDENTITY, Assignments
from proxy.wire.models import Check, CheckStatus

_ALIVE_SECONDS: Final = 10  # seconds; each worker writes its page every second
_GAP_SHOWN_SECONDS: Final = 86400.0
_UPSTREAM_WINDOW_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class AuditStatus:
    """State of the audit events on this host.

    Each AuditStatus is made on the journal's thread.
    """

    journal: JournalStatus
    backlog: int  # records still in the spool
    stalled: str | None
    not_going_out: dict[str, str]  # per organisation, the reason why its events are not sent
    quarantined: dict[str, str]  # per organisation, the latest refused batch
    rejected_files: int = 0  # refused batches on disk, including those from before this start
    reused_ids: int = 0  # batches since the start whose id the control plane already had for other events

    @property
    def pending(self) -> int:
        return self.journal.pending + self.backlog

    @property
    def is_all_delivered(self) -> bool:
        """Return True if the control plane provably stored every audit event."""
        return not self.pending and self.stalled is None and not self.rejected_files

    def oldest_seconds(self, now: float) -> float:
        oldest = self.journal.oldest_ms
        return 0.0 if oldest is None else max(0.0, now - oldest / 1000)


class Health:
    def __init__(
        self,
        counters: CounterPages,
        sync: Sync,
        credentials: Sequence[CredentialManager],
        assignments: Assignments,
        held: Sequence[Held],
        audit: Callable[[], AuditStatus | str],
        reports: Sequence[Report],
        *,
        workers: int,
        max_staleness: float,
        kill_file: Path,
        identity: Callable[[], Check] | None,
        issuers: Callable[[], Check | None],
        traces: TraceExporter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._counters = counters
        self._sync = sync
        self._credentials = credentials  # one for each identity
        self._assignments = assignments
        self.held = held  # secrets from the vault
        self._audit = audit
        self._reports = reports
        self._workers = workers
        self._max_staleness = max_staleness
        self._kill_file = kill_file
        self._issuers = issuers
        self._identity = identity  # None if the settings hold the keys
        self.traces = traces  # None if no spans are sent
        self._clock = clock
        self._upstream_seen: list[tuple[float, int, int]] = []

    def checks(self) -> dict[str, Check]:
        return {
            "sync": self._sync.check(),
            "audit": self._audit_check(),
            "reports": self._reports_check(),
            "spool": self._spool_check(),
            **self._credential_checks(),
            "workers": self._workers_check(),
            "upstream": self._upstream_check(),
            "stops": self._stops_check(),
            **({"vault": self._vault_check()} if self.held else {}),
            **({"secrets": ending_check(self.held, self._clock())} if self.held else {}),
            **({"issuers": issuers} if (issuers := self._issuers()) is not None else {}),
            **({"identity": self._identity()} if self._identity is not None else {}),
            **({"traces": self.traces.check()} if self.traces is not None else {}),
        }

    def not_ready(self) -> list[str]:
        """Return the reasons why requests would be refused now; empty if the proxy serves requests."""
        reasons = []
        alive = self._alive()
        # The state counts for each worker. A worker that takes requests but has not received its data yet
        # refuses them until then.
        taking = [page for page in alive if page.values[TAKES_REQUESTS]]
        evaluated = taking or alive
        age = self._sync.age_seconds
        # Workers may have their data from an earlier agent. This agent may be new, or its settings may be
        # wrong.
        if age is None and not _all_have(taking, SNAPSHOT_GENERATION):
            reasons.append("there are no rules" + self._why_not_enrolled())
        elif not all(page.values[SNAPSHOT_GENERATION] for page in evaluated):
            reasons.append("not every worker has rules yet")
        elif age is not None and self._max_staleness and age > self._max_staleness:
            when = f"{age:.0f} s ago" if math.isfinite(age) else "at a time in the future"
            reasons.append(f"the rules were confirmed {when}, over RuleSync.MaxStalenessSeconds")
        failed = self._credential_checks()["credentials"].status == "failed"
        if failed and not _all_have(taking, CREDENTIAL_READY):
            reasons.append("there is no upstream token")
        elif not all(page.values[CREDENTIAL_READY] for page in evaluated):
            reasons.append("not every worker has an upstream token yet")
        if not all(page.values[SIGNING_KEY_READY] for page in evaluated):
            reasons.append("not every worker has a key for tokens yet")
        if not alive:
            reasons.append("no worker is alive")
        elif not any(page.values[SPOOL_READY] for page in alive):
            reasons.append("there is no room for audit events")
        return reasons

    def _why_not_enrolled(self) -> str:
        check = None if self._identity is None else self._identity()
        return f": {check.detail}" if check is not None and check.status == "failed" else ""

    async def first_attempts(self) -> None:
        """Wait until the first attempt to fetch a token has ended for every identity."""
        for each in self._credentials:
            await each.first_attempt()

    def rules_are_enforced(self) -> bool:
        """Return True if every live worker evaluates requests with the newest rules."""
        snapshot, alive = self._sync.snapshot, self._alive()
        return (
            snapshot is not None
            and bool(alive)
            and all(page.values[SNAPSHOT_GENERATION] == snapshot.generation for page in alive)
        )

    def _alive(self) -> list[Counters]:
        now = int(self._clock())
        return [page for page in self._counters.workers if abs(now - page.values[ALIVE_AT]) <= _ALIVE_SECONDS]

    def _audit_check(self) -> Check:
        status = self._audit()
        if isinstance(status, str):
            return Check("failed", f"no events are collected: {status}")
        details = [
            *self._gap_details(status.journal.gaps),
            *(f"organisation {org_id}: {problem}" for org_id, problem in status.not_going_out.items()),
            *(
                f"organisation {org_id} refused and quarantined: {what}"
                for org_id, what in status.quarantined.items()
            ),
        ]
        if status.rejected_files and not status.quarantined:
            details.append(f"{status.rejected_files} refused batches are still in rejected/")
        if abs(self._clock() - status.journal.restarted_at) < _GAP_SHOWN_SECONDS:
            details.append("the audit state was lost: sequence numbers began again at 1")
        if status.journal.unplaced:
            details.append(f"{status.journal.unplaced} events of unknown organisations are missing")
        if status.journal.lost_ends:
            details.append(f"{status.journal.lost_ends} spool streams were deleted before their end")
        if status.stalled is not None:
            return Check("failed", "; ".join([f"events stay in the spool: {status.stalled}", *details]))
        return Check("degraded", "; ".join(details)) if details else Check("ok")

    def _reports_check(self) -> Check:
        late = [f"{each.name} not delivered: {each.problem}" for each in self._reports if each.problem]
        return Check("degraded", "; ".join(late)) if late else Check("ok")

    def _gap_details(self, gaps: tuple[Gap, ...]) -> list[str]:
        now = self._clock()
        return [
            f"organisation {gap.org_id} seq {gap.first}-{gap.last} missing: {gap.cause}"
            for gap in gaps
            if abs(now - gap.noticed_at) < _GAP_SHOWN_SECONDS
        ]

    def _spool_check(self) -> Check:
        alive = self._alive()
        full = sum(1 for page in alive if not page.values[SPOOL_READY])
        if not full:
            return Check("ok")
        status: CheckStatus = "failed" if full == len(alive) else "degraded"
        return Check(status, f"{full} of {len(alive)} workers have no room for audit events")

    def _credential_checks(self) -> dict[str, Check]:
        """Return one health check of all identities and, if there are several, one of each identity.

        The health check of all identities fails if no application can be served. If only some identities
        fail, the proxy is ready, and the applications of the failed identities get 503.
        """
        checks = {each.name: each.check() for each in self._credentials}
        if len(checks) == 1:
            return {"credentials": checks[DEFAULT_IDENTITY]}
        snapshot = self._sync.snapshot
        apps = snapshot.apps if snapshot is not None else ()
        used = self._assignments.in_use(each for each in apps if each.enabled)
        status: CheckStatus = "ok"
        if used and all(checks[name].status == "failed" for name in used):
            status = "failed"
        elif any(check.status != "ok" for check in checks.values()):
            status = "degraded"
        report = "; ".join(
            f"identity {name}: {check.detail}" for name, check in checks.items() if check.detail
        )
        of_each = {f"credentials/{name}": check for name, check in checks.items()}
        return {"credentials": Check(status, report), **of_each}

    def _vault_check(self) -> Check:
        checks = [each.check() for each in self.held]
        worst = max(checks, key=lambda check: ("ok", "degraded", "failed").index(check.status))
        return Check(worst.status, "; ".join(check.detail for check in checks if check.detail))

    def _workers_check(self) -> Check:
        alive = self._alive()
        dead = self._workers - len(alive)  # below 0 during a reload, when the old workers still drain
        if dead > 0:
            return Check(
                "degraded" if alive else "failed", f"{dead} of {self._workers} workers are not alive"
            )
        generation = self._sync.snapshot.generation if self._sync.snapshot is not None else 0
        behind = sum(1 for page in alive if page.values[SNAPSHOT_GENERATION] != generation)
        if behind:
            return Check("degraded", f"{behind} of {len(alive)} workers do not have the newest rules yet")
        return Check("ok")

    def _stops_check(self) -> Check:
        """Return the health check that reports the emergency stops of operators.

        Emergency stops are not faults of the proxy, but the health check keeps them visible.
        """
        stops = self._sync.stops
        report = []
        if stops:
            report.append(f"the control plane stops {stops.described()}")
        alive = self._alive()
        obeying = [page.values[KILL_FILE] for page in alive if page.values[KILL_FILE]]
        if obeying:
            what = "everything" if max(obeying) > 1 else "the applications and organisations in its lines"
            report.append(f"{self._kill_file} stops {what}, at {len(obeying)} of {len(alive)} workers")
        return Check("degraded", "; ".join(report)) if report else Check("ok")

    def _upstream_check(self) -> Check:
        """Return how many requests of the last minute failed at the upstream."""
        now = time.monotonic()
        requests, errors = self._counters.requests, self._counters.total(UPSTREAM_ERRORS)
        self._upstream_seen.append((now, requests, errors))
        while len(self._upstream_seen) > 2 and self._upstream_seen[1][0] < now - _UPSTREAM_WINDOW_SECONDS:
            self._upstream_seen.pop(0)
        _, requests_before, errors_before = self._upstream_seen[0]
        asked, failed = requests - requests_before, errors - errors_before
        if not failed:
            return Check("ok")
        return Check("failed" if failed * 2 > asked else "degraded", f"{failed} of {asked} requests failed")


def _all_have(pages: Sequence[Counters], index: int) -> bool:
    return bool(pages) and all(page.values[index] for page in pages)
