"""Every operation: what command line, admin API and its description are made of."""

from __future__ import annotations

from typing import Any, Final

from controlplane.operations import fleet, orgs, rehearsals
from controlplane.operations.operation import Operation, Stream

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    orgs.add,
    orgs.list_all,
    orgs.show,
    orgs.set_retention,
    fleet.list_all,
    fleet.show,
    fleet.rollout,
    rehearsals.check,
    rehearsals.explain,
    rehearsals.test,
    rehearsals.diff,
)

STREAMS: Final[tuple[Stream[Any], ...]] = ()
