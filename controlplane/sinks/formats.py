"""Conversion of an audit event to the format of a sink: unchanged JSON, OCSF or CEF.

The module `formats` itself does no input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from controlplane.search.query import rfc3339_ms

OCSF_VERSION: Final = "1.4.0"  # the first version whose API Activity has the profile security_control
_API_ACTIVITY: Final = 6003
_ACTIVITIES: Final = {"POST": 1, "GET": 2, "HEAD": 2, "OPTIONS": 2, "PUT": 3, "PATCH": 3, "DELETE": 4}
_OTHER: Final = 99
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE"})
_UNKNOWN: Final = "unknown"  # value of required members that the event lacks
_ACTIVITY_NAMES: Final = {1: "Create", 2: "Read", 3: "Update", 4: "Delete", _OTHER: "Other"}
_ALLOWED, _DENIED, _OTHER_ACTION = 1, 2, 99
_ACTIONS: Final = {
    "allow": (_ALLOWED, "Allowed"),
    "log_only": (_ALLOWED, "Allowed"),
    "block": (_DENIED, "Denied"),
    "filter": (_OTHER_ACTION, "filter"),
}
_INFORMATIONAL, _LOW, _MEDIUM = (1, "Informational"), (2, "Low"), (3, "Medium")
_CEF_SEVERITY: Final = {1: 1, 2: 4, 3: 6}

Members = Mapping[str, Any]
Format = Callable[[Members, bytes], bytes]


def as_event(members: Members, body: bytes) -> bytes:
    """Return the bytes of the audit event exactly as the proxy wrote them."""
    return body


def as_ocsf(members: Members, body: bytes) -> bytes:
    """Return the audit event as an API Activity event of the Open Cybersecurity Schema Framework (OCSF).

    Event members that the OCSF class API Activity cannot represent are put under `unmapped`.
    """
    return orjson.dumps(_without_nothing(_ocsf(members)))


def _ocsf(event: Members) -> dict[str, Any]:
    method = _text(event.get("method"))
    activity = _ACTIVITIES.get(method.upper(), _OTHER)
    action_id, action = _ACTIONS.get(
        _text(event.get("verdict")), (_OTHER_ACTION, _text(event.get("verdict")))
    )
    severity_id, severity = _severity(event)
    status = _number(event.get("status"))
    is_success = status is not None and status < 400
    client, app, path, rule = (event.get(name) for name in ("clientId", "appId", "path", "ruleId"))
    endpoint = {"ip": event.get("clientIp"), "uid": client}
    is_known = any(each is not None for each in endpoint.values())
    operation = " ".join(each for each in (method, _text(path)) if each)
    return {
        "metadata": {
            "version": OCSF_VERSION,
            "uid": event.get("id"),
            "correlation_uid": event.get("requestId"),
            "sequence": event.get("seq"),
            "tenant_uid": event.get("orgId"),
            "log_name": "audit",
            "profiles": ["security_control"],
            "product": {"name": "Graphward", "vendor_name": "Graphward"},
            "logged_time": _ms(event.get("receivedAt")),
        },
        "category_uid": 6,
        "category_name": "Application Activity",
        "class_uid": _API_ACTIVITY,
        "class_name": "API Activity",
        "activity_id": activity,
        "activity_name": _ACTIVITY_NAMES[activity] if activity != _OTHER else method or "Other",
        "type_uid": _API_ACTIVITY * 100 + activity,
        "type_name": f"API Activity: {_ACTIVITY_NAMES[activity]}",
        "time": _ms(event.get("time")) or _ms(event.get("receivedAt")) or 0,
        "duration": _rounded(event.get("durationMs")),
        "severity_id": severity_id,
        "severity": severity,
        "action_id": action_id,
        "action": action,
        "disposition_id": {_ALLOWED: 1, _DENIED: 2}.get(action_id, 99),
        "disposition": {_ALLOWED: "Allowed", _DENIED: "Blocked"}.get(action_id, action),
        "status_id": 1 if is_success else 2,
        "status": "Success" if is_success else "Failure",
        "status_code": None if status is None else str(status),
        "status_detail": event.get("reason"),
        "actor": {
            "app_uid": app,
            "app_name": _UNKNOWN if app is None and client is None else None,
            "user": None if client is None else {"uid": client, "type_id": 3, "type": "System"},
        },
        "api": {
            "operation": operation or _UNKNOWN,
            "request": {"uid": event.get("requestId") or event.get("id")},
            "response": {"code": status, "error": event.get("reason") if not is_success else None},
            "service": {"name": "graph", "uid": event.get("proxyId")},
        },
        "src_endpoint": endpoint if is_known else {"name": _UNKNOWN},
        "http_request": {
            "http_method": method if method in _METHODS else None,
            "uid": event.get("requestId"),
            "length": event.get("requestBytes"),
            "url": None if path is None else {"path": path, "query_string": event.get("query")},
        },
        "http_response": None if status is None else {"code": status, "length": event.get("responseBytes")},
        "firewall_rule": None
        if rule is None
        else {"uid": rule, "version": _version(event.get("rulesetVersion"))},
        "unmapped": {name: value for name, value in event.items() if name not in _MAPPED}
        | dict(_without_a_place(event, method)),
    }


def _without_a_place(event: Members, method: str) -> Iterator[tuple[str, Any]]:
    """Yield event members that OCSF's class API Activity cannot represent, such as an unusual method."""
    if method not in _METHODS:
        yield "method", event.get("method")
    if event.get("path") is None:
        yield "query", event.get("query")
    if event.get("ruleId") is None:
        yield "rulesetVersion", event.get("rulesetVersion")


_MAPPED: Final = frozenset(
    {
        *("id", "time", "orgId", "proxyId", "appId", "clientId", "clientIp", "requestId", "method", "path"),
        *("query", "status", "ruleId", "durationMs", "requestBytes", "responseBytes", "seq", "reason"),
        *("rulesetVersion", "receivedAt"),
    }
)


def as_cef(members: Members, body: bytes) -> bytes:
    """Return the audit event in the Common Event Format (CEF), version 0, in UTF-8."""
    severity_id, _ = _severity(members)
    verdict = _text(members.get("verdict"))
    header = ("CEF:0", "Graphward", "Graphward", "1", verdict, f"request {verdict}")
    fields = ((key, value) for key, value in _cef_extension(members) if value)
    extension = " ".join(f"{key}={_in_extension(value)}" for key, value in fields)
    parts = (*map(_in_header, header), str(_CEF_SEVERITY[severity_id]), extension)
    return "|".join(parts).encode("utf-8", "replace")


# Extension keys of CEF, and the member of the event that each has.
_CEF: Final = {
    "externalId": "id",
    "act": "verdict",
    "src": "clientIp",
    "suser": "clientId",
    "requestMethod": "method",
    "outcome": "status",
    "reason": "reason",
    "in": "requestBytes",
    "out": "responseBytes",
    "dvchost": "proxyId",
}
# Custom keys of CEF, which have no fixed meaning: each has a label.
_LABELLED: Final = {
    "cs1": ("organisation", "orgId"),
    "cs2": ("application", "appId"),
    "cs3": ("rule", "ruleId"),
    "cs4": ("rulesetVersion", "rulesetVersion"),
    "cs5": ("requestId", "requestId"),
    "cs6": ("traceId", "traceId"),
    "cn1": ("upstreamStatus", "upstreamStatus"),
    "cn2": ("durationMs", "durationMs"),
}


def _cef_extension(event: Members) -> Iterator[tuple[str, str]]:
    yield "rt", _text(_ms(event.get("time")))
    query = _text(event.get("query"))
    yield "request", _text(event.get("path")) + (f"?{query}" if query else "")
    yield from ((key, _text(event.get(name))) for key, name in _CEF.items())
    for key, (label, name) in _LABELLED.items():
        value = event.get(name)
        if value is not None:
            yield f"{key}Label", label
            yield key, _text(_rounded(value) if key.startswith("cn") else value)


def _in_header(text: str) -> str:
    """Escape backslashes and pipes in a CEF header field.

    The function removes line ends from the CEF header field.
    """
    return _on_one_line(text).replace("\\", "\\\\").replace("|", "\\|")


def _in_extension(text: str) -> str:
    """Escape backslashes, equals signs and line ends in the value of a CEF extension field."""
    text = text.replace("\\", "\\\\").replace("=", "\\=")
    return text.replace("\r\n", "\\n").replace("\n", "\\n").replace("\r", "\\r")


def _on_one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


FORMATS: Final[Mapping[str, Format]] = {"event": as_event, "ocsf": as_ocsf, "cef": as_cef}


def severity_of(event: Members) -> int:
    """Return the severity of an audit event on the OCSF scale: 1 informational, 2 low, 3 medium."""
    return _severity(event)[0]


def _severity(event: Members) -> tuple[int, str]:
    status = _number(event.get("status")) or 0
    if event.get("verdict") == "block":
        return _MEDIUM
    return _LOW if status >= 400 or event.get("verdict") == "filter" else _INFORMATIONAL


def _without_nothing(value: Any) -> Any:
    """Return the JSON value without the object members that are None or empty objects."""
    if not isinstance(value, dict):
        return value
    kept = {name: _without_nothing(each) for name, each in value.items()}
    return {name: each for name, each in kept.items() if each is not None and each != {}}


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rounded(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ms(value: object) -> int | None:
    return rfc3339_ms(value) if isinstance(value, str) else None


def _version(value: object) -> str | None:
    return None if value is None else str(value)
