"""Data types for a parsed ruleset, made of plain values that can be encoded and decoded fast."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from proxy.policy.comparison import Comparison as Comparison
from proxy.policy.comparison import Condition as Condition
from proxy.policy.comparison import Operator as Operator
from proxy.policy.comparison import Scalar as Scalar
from proxy.policy.transforms import Transforms

REQUEST_SOURCES = ("param", "query", "header", "body")
RESPONSE_SOURCES = ("status", "response_header", "property")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DEFAULT_RULE_ID = "default"
RULE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class Match(msgspec.Struct, frozen=True):
    """The `match` of a rule, with `path` or with names of schema elements (types, members and operations).

    A rule names types, members and operations in one or more of the fields `resource`, `operation` and
    `pack`.
    """

    path: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # empty: any method
    resource: tuple[str, ...] = ()
    operation: tuple[str, ...] = ()
    pack: tuple[str, ...] = ()

    @property
    def names_things(self) -> bool:
        """True if the rule can only be compiled against a schema, because the rule names schema elements."""
        return bool(self.resource or self.operation or self.pack)


class IpGate(msgspec.Struct, frozen=True):
    inside: tuple[str, ...] | None = None
    outside: tuple[str, ...] | None = None


class TimeGate(msgspec.Struct, frozen=True):
    """A gate that is open on `days` from `start` until just before `end` (HH:MM).

    If `end` is earlier than `start`, the time gate stays open past midnight, until `end` on the next day.
    """

    days: tuple[str, ...] = DAYS
    start: str = "00:00"
    end: str = "24:00"
    timezone: str = "UTC"


class BodyOnly(msgspec.Struct, frozen=True):
    """Paths of the properties that a request body may have under a rule.

    If `wants_another` is True, the check succeeds only if the body has a property that is not in `names`.
    """

    names: tuple[str, ...]
    wants_another: bool


class Until(msgspec.Struct, frozen=True):
    """The end of a rule: the rule matches before the end time, and not at that time or later."""

    end: float  # Unix time in seconds


class Rule(msgspec.Struct, frozen=True):
    id: str
    match: Match
    verdict: Literal["allow", "filter", "block", "log_only"]
    description: str = ""
    when: Literal["request", "response"] = "request"
    conditions: tuple[Condition, ...] = ()
    ip: IpGate | None = None
    time: TimeGate | None = None
    until: Until | None = None
    body_only: tuple[str, ...] | None = None  # property paths that the body may have
    transforms: Transforms | None = None
    guard_queries: bool = False


class Ruleset(msgspec.Struct, frozen=True):
    name: str
    default: Literal["allow", "block"] = "block"
    rules: tuple[Rule, ...] = ()
    version: int = 1
