"""Pure functions that turn an audit event into one row of a list in the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson

from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, REASONS, VERDICTS
from proxy.wire.log_line import one_line

_LONGEST: Final = 400  # largest number of characters of a path and query in a list


@dataclass(frozen=True, slots=True)
class EventRow:
    """A line for an audit event, with texts that are safe to display.

    Characters that change the direction of a line, or hide a part of it, are replaced by escapes.
    """

    href: str  # path of the event's page
    time: str
    verdict: str
    status: str
    method: str
    path: str  # path with its query
    app: str
    rule: str
    reason: str
    org: str
    ip: str
    duration: str


def event_row(body: bytes, names: Mapping[str, str]) -> EventRow:
    """Return the text line with which a list shows an audit event.

    `names` has the names of organisations and applications, by ID.
    """
    event: dict[str, Any] = orjson.loads(body)
    org_id = text_of(event, "orgId")
    org = names.get(org_id, org_id)
    path = full_path(event)
    app_id = text_of(event, "appId")
    verdict = text_of(event, "verdict")
    return EventRow(
        href=event_path(org, text_of(event, "id")),
        time=text_of(event, "time"),
        verdict=verdict if verdict in VERDICTS else "",
        status=text_of(event, "status"),
        method=shown(text_of(event, "method")),
        path=shown(path if len(path) <= _LONGEST else path[: _LONGEST - 1] + "…"),
        app=shown(names.get(app_id, app_id)),
        rule=shown(text_of(event, "ruleId")),
        reason=_reason(event),
        org=shown(org),
        ip=shown(text_of(event, "clientIp")),
        duration=milliseconds(event.get("durationMs")),
    )


def _reason(event: Mapping[str, Any]) -> str:
    reason, problem = text_of(event, "reason"), text_of(event, "credentialProblem")
    return CREDENTIAL_PROBLEMS.get(problem) or REASONS.get(reason) or shown(reason)


def event_path(org: str, event_id: str) -> str:
    return f"/events/{quote(org, safe='')}/{quote(event_id, safe='')}"


def full_path(event: Mapping[str, Any]) -> str:
    query = text_of(event, "query")
    return text_of(event, "path") + (f"?{query}" if query else "")


def text_of(event: Mapping[str, Any], key: str) -> str:
    value = event.get(key)
    return "" if value is None else value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
        return "(nested too deeply to be shown here)"


def shown(text: str) -> str:
    return one_line(text)


def milliseconds(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"
