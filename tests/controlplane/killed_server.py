"""A control plane that kills its process if a batch ID begins with `kill-before` or `kill-after`.

The process ends before or after it commits the batch of audit events.
"""

from __future__ import annotations

import os
import signal
import sys

from controlplane.cli import main
from controlplane.store.audit import AuditTables
from controlplane.store.interface import NewBatch, Outcome, RateLimits, Stored

_commit_batch = AuditTables.commit_batch


async def commit_or_die(self: AuditTables, batch: NewBatch, limits: RateLimits) -> Outcome:
    if batch.batch_id.startswith("kill-before"):
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = await _commit_batch(self, batch, limits)
    if batch.batch_id.startswith("kill-after") and isinstance(outcome, Stored):
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


if __name__ == "__main__":
    AuditTables.commit_batch = commit_or_die  # type: ignore[method-assign]
    sys.exit(main())
