"""Counts which applications, rules and credentials the events of a batch used.

The functions in this module do no input or output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from proxy.policy.ruleset import RULE_ID

DAY_MS: Final = 86_400_000
CREDENTIAL_ID: Final = re.compile(r"crd-[0-9a-f]{12}")
KEPT_DAYS: Final = 90  # number of days for which counts are kept
MOST_RULES: Final = 1000  # rules of a ruleset that are counted on one day; a faulty proxy can send more


class Use(NamedTuple):
    """Number of requests on one day, and the time of the newest request."""

    requests: int
    last_ms: int


class AppDay(NamedTuple):
    app_id: str
    day: int  # days since 1970-01-01


class RuleDay(NamedTuple):
    app_id: str
    rule_id: str
    day: int


class CredentialOfApp(NamedTuple):
    app_id: str
    credential_id: str  # empty: the proxy does not report the credential


@dataclass(frozen=True, slots=True)
class Uses:
    """Numbers of uses of each application, rule and credential in the events of a batch."""

    apps: Mapping[AppDay, Use]
    rules: Mapping[RuleDay, Use]
    credentials: Mapping[CredentialOfApp, int]  # time of the newest token that each credential obtained


NOTHING_USED: Final = Uses({}, {}, {})


class UsedEvent(Protocol):
    """Members of an audit event that name the application, the rules and the credential of a request.

    If nothing has checked the event, each attribute of the event may have any type.
    """

    @property
    def app_id(self) -> Any: ...
    @property
    def rule_id(self) -> Any: ...
    @property
    def logged_rule_ids(self) -> Any: ...
    @property
    def reason(self) -> Any: ...
    @property
    def credential_id(self) -> Any: ...


def day_of(ms: int) -> int:
    return ms // DAY_MS


def uses_of(events: Iterable[UsedEvent], times: Sequence[int | None], received_ms: int) -> Uses:
    """Count the uses of applications, rules and credentials in the events.

    `times` has None for each event with an implausible time.
    """
    decided: dict[tuple[str, str | None, int], int] = {}
    logged: dict[tuple[str, str, int], int] = {}
    newest: dict[tuple[str, str | None, int], int] = {}
    credentials: dict[CredentialOfApp, int] = {}
    for event, time_ms in zip(events, times, strict=True):
        app_id, rule_id = event.app_id, event.rule_id
        if time_ms is None or not isinstance(app_id, str):
            continue
        seen_ms = time_ms if time_ms < received_ms else received_ms
        key = app_id, rule_id if _is_rule_id(rule_id) else None, seen_ms // DAY_MS
        decided[key] = decided.get(key, 0) + 1
        newest[key] = max(seen_ms, newest.get(key, seen_ms))
        if event.reason == "tokenIssued":
            credential = CredentialOfApp(app_id, _credential_id(event.credential_id))
            credentials[credential] = max(seen_ms, credentials.get(credential, seen_ms))
        for rule in _logged(event) if event.logged_rule_ids else ():
            of_rule = app_id, rule, seen_ms // DAY_MS
            if of_rule not in logged and len(logged) >= MOST_RULES:
                continue
            logged[of_rule] = logged.get(of_rule, 0) + 1
            newest[of_rule] = max(seen_ms, newest.get(of_rule, seen_ms))
    apps: dict[AppDay, Use] = {}
    rules: dict[RuleDay, Use] = {}
    for (app_id, rule_id, day), count in decided.items():
        use = Use(count, newest[app_id, rule_id, day])
        apps[AppDay(app_id, day)] = _added(apps.get(AppDay(app_id, day)), use)
        if rule_id is not None:
            rules[RuleDay(app_id, rule_id, day)] = use
    for of_rule, count in logged.items():
        rules[RuleDay(*of_rule)] = _added(rules.get(RuleDay(*of_rule)), Use(count, newest[of_rule]))
    return Uses(apps, rules, credentials)


def _credential_id(given: object) -> str:
    """Return the credential ID if it has the form of the control plane's IDs; otherwise an empty text."""
    return given if isinstance(given, str) and CREDENTIAL_ID.fullmatch(given) else ""


def _logged(event: UsedEvent) -> Iterable[str]:
    """Return the IDs of the rules that logged the event.

    The result omits the rule that decided the request of the event.
    """
    ids = event.logged_rule_ids
    if not isinstance(ids, list | tuple):
        return ()
    return {each for each in ids if _is_rule_id(each) and each != event.rule_id}


def _is_rule_id(given: object) -> bool:
    return isinstance(given, str) and RULE_ID.fullmatch(given) is not None


def _added(known: Use | None, use: Use) -> Use:
    if known is None:
        return use
    return Use(known.requests + use.requests, max(known.last_ms, use.last_ms))
