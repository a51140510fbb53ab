"""The model of a ruleset as plain values, quick to encode and decode."""

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
    """Either `path`, or one or more of `resource`, `operation` and `pack`, which name things of a schema."""

    path: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # none: any
    resource: tuple[str, ...] = ()
    operation: tuple[str, ...] = ()
    pack: tuple[str, ...] = ()

    @property
    def names_things(self) -> bool:
        """Return True if the rule can be compiled against a schema only."""
        return bool(self.resource or self.operation or self.pack)


class IpGate(msgspec.Struct, frozen=True):
    inside: tuple[str, ...] | None = None
    outside: tuple[str, ...] | None = None


class TimeGate(msgspec.Struct, frozen=True):
    """Open on `days` from `start` until just before `end` (HH:MM), past midnight if `end` is the earlier."""

    days: tuple[str, ...] = DAYS
    start: str = "00:00"
    end: str = "24:00"
    timezone: str = "UTC"


class BodyOnly(msgspec.Struct, frozen=True):
    """Property paths that a body may have. With `wants_another` it holds if the body has another one."""

    names: tuple[str, ...]
    wants_another: bool


class Until(msgspec.Struct, frozen=True):
    """A rule matches before `end`, and from then on no more."""

    end: float  # Unix seconds


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
    body_only: tuple[str, ...] | None = None  # property paths
    transforms: Transforms | None = None
    guard_queries: bool = False


class Ruleset(msgspec.Struct, frozen=True):
    name: str
    default: Literal["allow", "block"] = "block"
    rules: tuple[Rule, ...] = ()
    version: int = 1
