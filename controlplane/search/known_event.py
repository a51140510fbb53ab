"""Audit event with only known JSON fields, parsed once for ingestion and the search index.

The code of this module does no input or output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Id = Annotated[str, Meta(min_length=1, max_length=256)]
Time = Annotated[datetime, Meta(tz=True)]


class Event(Struct, rename="camel"):
    """An audit event, with the JSON fields that the store reads.

    The stored event has all JSON fields that the proxy sent. The store uses only the JSON fields that the
    class Event declares.
    """

    id: Id
    time: Time
    org_id: Id
    method: str
    path: str
    status: Annotated[int, Meta(ge=0, le=999)]
    verdict: Literal["allow", "filter", "block", "log_only"]
    proxy_id: Any = None
    app_id: Any = None
    rule_id: Any = None
    logged_rule_ids: Any = None
    reason: Any = None
    credential_id: Any = None
    seq: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


Text = str | None
# Parsers disagree about numbers beyond 64 bits. An event with such a number is parsed by the slower path,
# which treats every byte as they do.
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Number = Integer | float | None


class KnownEvent(Event, rename="camel", forbid_unknown_fields=True, gc=False):
    """An audit event for which the parser checks every byte, and refuses unknown JSON fields."""

    proxy_id: Text = None
    app_id: Text = None
    client_id: Text = None
    client_ip: Text = None
    request_id: Text = None
    client_request_id: Text = None
    query: Text = None
    rule_id: Text = None
    logged_rule_ids: tuple[str, ...] | None = None
    transforms: tuple[str, ...] | None = None
    upstream_status: Number = None
    duration_ms: Number = None
    upstream_ms: Number = None
    request_bytes: Number = None
    response_bytes: Number = None
    parent_request_id: Text = None
    reason: Text = None
    ruleset_version: str | Integer | None = None
    upstream_request_id: Text = None
    shadow_verdict: Text = None
    shadow_rule_id: Text = None
    shadow_ruleset_version: str | Integer | None = None
    rule_ids: tuple[str, ...] | None = None
    trace_id: Text = None
    implied_request: Text = None
    redirect: Text = None
    credential_id: Text = None
    credential_problem: Text = None
    implausible_time: None = None  # set only by the control plane: marked events are read from the store


def attribute_of(key: str) -> str:
    """Return the attribute name of a JSON member, such as `rule_id` for `ruleId`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in key)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Parsed events of one batch that was just stored, so that the index writer need not parse them again."""

    org_id: str
    position: int  # position of the first event; the others follow it
    times: Sequence[int]
    events: Sequence[KnownEvent]
    bodies: Sequence[bytes]
    size: int  # bytes of all events together
