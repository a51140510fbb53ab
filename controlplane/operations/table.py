"""Every operation: what command line, admin API and its description are made of."""

from __future__ import annotations

from typing import Any, Final

from controlplane.operations import (
    apps,
    audit,
    fleet,
    integrity,
    operators,
    orgs,
    proxies,
    record,
    rehearsals,
    rulesets,
)
from controlplane.operations.operation import Operation, Stream

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    orgs.add,
    orgs.list_all,
    orgs.show,
    orgs.set_retention,
    fleet.list_all,
    fleet.show,
    fleet.rollout,
    proxies.add,
    proxies.grant,
    proxies.revoke,
    proxies.rotate_secret,
    proxies.disable,
    proxies.enable,
    rulesets.apply,
    rulesets.list_all,
    rulesets.show,
    rulesets.history,
    rulesets.rollback,
    integrity.head,
    integrity.checks,
    integrity.verify,
    rehearsals.check,
    rehearsals.explain,
    rehearsals.test,
    rehearsals.diff,
    apps.add,
    apps.list_all,
    apps.show,
    apps.bind,
    apps.rotate_secret,
    apps.disable,
    apps.enable,
    operators.add,
    operators.list_all,
    operators.show,
    operators.set_password,
    operators.disable,
    operators.enable,
    operators.grant,
    operators.revoke,
    operators.add_token,
    operators.list_tokens,
    operators.revoke_token,
    record.search,
    audit.search,
    audit.facets,
    audit.histogram,
    audit.event,
)

STREAMS: Final[tuple[Stream[Any], ...]] = (audit.export, audit.tail)
