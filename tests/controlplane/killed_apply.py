"""Run the command `apply`, and kill it after CHANGES changes of its transaction.

python -m tests.controlplane.killed_apply CHANGES ARGUMENTS…
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from controlplane.cli import main
from controlplane.store.in_transaction import InTransaction
from controlplane.store.operators import OperatorTables

_end_log_line = OperatorTables.end_log_line
_left = int(sys.argv[1])


async def end_log_line(self: OperatorTables, *arguments: Any) -> None:
    global _left
    await _end_log_line(self, *arguments)
    if isinstance(self._database, InTransaction):
        _left -= 1
        if not _left:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    OperatorTables.end_log_line = end_log_line  # type: ignore[method-assign,assignment]
    sys.exit(main(sys.argv[2:]))
