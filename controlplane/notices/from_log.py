"""Pure functions: make notices about emergency stops and published rules from operator log lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from controlplane.notices.notice import Kind, Notice, notice_id
from controlplane.store.interface import LogLine

_STOPS: Final = {"kill.all": "stopped everything", "unkill.all": "lifted the stop of everything"}
_STOPPING: Final = frozenset({*_STOPS, "kill.app", "kill.org", "unkill.app", "unkill.org"})
_PUBLISHING: Final = frozenset({"ruleset.apply", "ruleset.rollback", "proposal.approve"})
_PUBLISHED: Final = ("published ", "rolled back ")
_MEMBERS: Final = ("reason", "note", "app", "ruleset", "org")


def notice_of(line: LogLine) -> Notice | None:
    """Return a notice about a logged change, or None if the change was refused or changed nothing."""
    if line.outcome != "done":
        return None
    if line.operation in _STOPPING:
        return _notice(line, "emergencyStop", line.result or _STOPS.get(line.operation) or line.operation)
    if line.operation in _PUBLISHING and line.result and line.result.startswith(_PUBLISHED):
        return _notice(line, "publish", line.result)
    return None


def _notice(line: LogLine, kind: Kind, what: str) -> Notice:
    asked = _members(line.request)
    reason = asked.get("reason") or asked.get("note")
    because = f": {reason}" if reason else ""
    data = {"operator": line.operator, "operation": line.operation, "result": line.result, **asked}
    return Notice(
        notice_id("operator log", line.position, line.time_ms, line.operation),
        kind,
        "happened",
        line.time_ms,
        line.org_ids,
        line.operation,
        f"{line.operator} {what}{because}",
        data,
    )


def _members(request: str) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(request, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return {name: found[name] for name in _MEMBERS if isinstance(found.get(name), str) and found[name]}
