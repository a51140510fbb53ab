"""What the control plane asks of its store: plain values, and the methods that a store has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from controlplane.store.chain import BEFORE_THE_FIRST, Link
from controlplane.store.pages import FleetQuery, Health, HealthBounds, ListPage, ListQuery

Retention = Literal["base", "90d", "1y", "7y"]

_DAY_MS: Final = 86_400_000
RETENTION_MS: Final[Mapping[Retention, int]] = {
    "base": 30 * _DAY_MS,
    "90d": 90 * _DAY_MS,
    "1y": 366 * _DAY_MS,  # a year is a whole one, leap day included
    "7y": (7 * 365 + 2) * _DAY_MS,  # seven years hold two leap days at most
}
# An event's own time is implausible outside these bounds around its receipt. Signed requests allow clocks to
# differ by 300 s. A backlog as old as the shortest tier has events that no tier of that length would keep.
MOST_AHEAD_MS: Final = 300_000
MOST_BEHIND_MS: Final = min(RETENTION_MS.values())
IDEMPOTENCY_WINDOW_MS: Final = 48 * 3_600_000

Role = Literal["viewer", "editor", "admin"]
EVERY_ORG: Final = "*"
SESSION_IDLE_MS: Final = 30 * 60_000
SESSION_MS: Final = 12 * 3_600_000


NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class StoreError(Exception):
    """The operation failed; the text is one line for a person."""


class NotFound(StoreError):
    """There is no such thing, or none in that organisation."""


class AlreadyExists(StoreError):
    """The name is taken."""


class Conflict(StoreError):
    """What is there doesn't allow it."""


class StoreBusy(StoreError):
    """More writes wait than the store lets wait."""


# Audit events


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch as it goes into the store: its events as they came, and what the store looks at of them."""

    proxy_id: str
    org_id: str
    batch_id: str
    ids: Sequence[str]
    seqs: Sequence[int | None]
    times: Sequence[int]  # in ms
    events: Sequence[bytes]  # each as JSON
    implausible: int = 0  # events that are marked because their time can't be true
    content: bytes | None = None  # SHA-256 of the events as they came; None: replays are not compared


UNREADABLE: Final = b""  # body of an event whose block is damaged


class StoredEvent(NamedTuple):
    """An event as the search index reads it."""

    position: int
    org_id: str
    body: bytes


class BlockPlace(NamedTuple):
    """Of a block among its organisation's, by the time of its first event."""

    least_ms: int
    position: int


class BlockSlice(NamedTuple):
    """Events, and the place of the last block of theirs where there may be more."""

    events: list[bytes]
    next: BlockPlace | None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Batches a minute."""

    org: int
    proxy: int


@dataclass(frozen=True, slots=True)
class Linger:
    """Seconds for which a proxy collects events before it sends a batch that is not full."""

    seconds: float  # this for each organisation that has events to send
    orgs: Mapping[str, float]  # the least of an organisation that several proxies share


@dataclass(frozen=True, slots=True)
class Stored:
    accepted: int
    position: int = field(default=0, compare=False)  # of the first
    content_differs: bool = False  # events were left out whose ids are stored with other content


@dataclass(frozen=True, slots=True)
class Duplicate:
    accepted: int
    content_differs: bool = False  # this batch has events that were not stored under its id


@dataclass(frozen=True, slots=True)
class Expired:
    pass


@dataclass(frozen=True, slots=True)
class Limited:
    retry_after_seconds: int


Outcome = Stored | Duplicate | Expired | Limited


# The registry


@dataclass(frozen=True, slots=True)
class Org:
    org_id: str
    name: str
    retention: Retention
    created_ms: int


@dataclass(frozen=True, slots=True)
class Proxy:
    proxy_id: str
    name: str
    enabled: bool
    created_ms: int
    last_seen_ms: int | None
    secret_version: int
    org_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProxyCredentials:
    """What a signed request is checked with."""

    proxy_id: str
    sealed_hmac_secret: bytes
    org_ids: frozenset[str]
    generation: int  # state of the registry


@dataclass(frozen=True, slots=True)
class Ruleset:
    """A ruleset with its active version."""

    ruleset_id: str
    org_id: str
    name: str
    version: int
    rule_count: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class RulesetSummary:
    """A ruleset in a list: when and why it got its active version, and how many apps it evaluates."""

    ruleset: Ruleset
    changed_ms: int
    note: str | None
    apps: int


@dataclass(frozen=True, slots=True)
class RulesetVersion:
    """What is known of it beside its text, which may have megabytes."""

    version: int
    rule_count: int
    rolled_back_to: int | None
    created_ms: int
    note: str | None


Applied = Literal["nothing", "text", "schemas"]
"""What is new in a ruleset that was applied: its schemas alone, if it has the active text."""


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema of a graph API, by the root path of its service."""

    root: str
    digest: str
    packed: bytes  # the flat form, deflated
    bytes: int  # size of the flat form
    source: str  # address or file that it was read from


@dataclass(frozen=True, slots=True)
class OrgSchema:
    """A schema that an organisation has."""

    org_id: str
    root: str
    digest: str
    source: str
    fetched_ms: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class PackedSchemas:
    """The digest of the schema of each root path, and the deflated bytes of each digest."""

    digests: Mapping[str, str]
    packed: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A version of a ruleset that names a schema."""

    digest: str
    ruleset: str
    version: int
    in_force: bool


@dataclass(frozen=True, slots=True)
class AppSecret:
    version: int
    hash: str
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class App:
    app_id: str
    org_id: str
    name: str
    client_id: str
    ruleset_id: str
    ruleset_name: str
    enabled: bool
    created_ms: int
    secrets: tuple[AppSecret, ...]  # the valid ones, newest first
    shadow_ruleset_id: str | None = None
    shadow_ruleset_name: str | None = None

    @property
    def secret_version(self) -> int:
        """The lowest version that is still valid: a token of a lower one is revoked."""
        return min((secret.version for secret in self.secrets), default=0)


@dataclass(frozen=True, slots=True)
class Stop:
    """Requests of an app, of an organisation (no app) or of everybody (neither) are refused until it is
    lifted."""

    org_id: str | None
    app_id: str | None
    reason: str
    stopped_by: str
    stopped_ms: int


@dataclass(frozen=True, slots=True)
class SyncContent:
    """What one proxy receives of organisations, applications, rulesets and stops, and its version."""

    version: str
    generated_ms: int
    orgs: tuple[Org, ...]
    apps: tuple[App, ...]
    rulesets: tuple[tuple[Ruleset, str], ...]  # with the YAML text
    stops: tuple[Stop, ...]
    schemas: Mapping[str, Mapping[str, str]]  # digest by root path, for each ruleset that names any
    packed: Mapping[str, bytes]  # the deflated bytes of those schemas, by digest
    linger: Linger


# What a proxy said about itself


class Gap(NamedTuple):
    """Sequence numbers that never came, both ends included."""

    first: int
    last: int


class Losses(NamedTuple):
    """Faults of a proxy's trail that no operator has acknowledged, in events."""

    missing: int = 0  # sequence numbers below the highest that never came
    repeated: int = 0  # events under numbers that others had before
    implausible: int = 0  # events with a time that can't be true


NO_LOSSES: Final = Losses()


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operator's word that what is wrong with a proxy's trail, up to then, is known and explained."""

    acknowledged_ms: int
    acknowledged_by: str
    note: str


@dataclass(frozen=True, slots=True)
class SequenceState:
    org_id: str
    highest: int
    gaps: tuple[Gap, ...]
    unlisted: int  # missing numbers beyond the ranges that are kept
    repeated: int = 0  # events under numbers that others had before
    repeated_ms: int | None = None  # when the last of them came
    implausible: int = 0  # events with a time that can't be true
    implausible_ms: int | None = None  # when the last of them came
    losses: Losses = NO_LOSSES
    acknowledged: Acknowledgement | None = None
    reused: int = 0  # batches with an id, their own or an event's, used before for other content
    reused_ms: int | None = None  # when the last of them came


@dataclass(frozen=True, slots=True)
class Report:
    received_ms: int
    body: str
    skew_ms: int | None = None  # of a heartbeat: the proxy's clock against ours


@dataclass(frozen=True, slots=True)
class Said:
    """The part of a heartbeat that lists and counts need."""

    health: Literal["ok", "degraded", "failed"] = "ok"  # as the proxy itself says
    rulesets: Mapping[str, int] = field(default_factory=dict)  # versions that it enforces


NOTHING_SAID: Final = Said()


@dataclass(frozen=True, slots=True)
class LatestReports:
    heartbeat: Report | None
    metrics: tuple[Report, ...]  # newest first
    reused_ms: int | None = None  # when a batch id last came again with other events


class ProxyTally(NamedTuple):
    """What of a proxy is worth a look from outside."""

    name: str
    enabled: bool
    last_seen_ms: int  # where it never was, when it was made
    missing: int  # sequence numbers below the highest that never came
    repeated: int  # events under numbers that others had before
    losses: Losses  # unacknowledged ones
    reused: int  # batches with an id, their own or an event's, used before for other content


@dataclass(frozen=True, slots=True)
class Tally:
    newest_position: int  # of any event
    proxies: tuple[ProxyTally, ...]
    broken_chains: int = 0  # organisations with a mismatch in their chain at its last verification


# Operators


@dataclass(frozen=True, slots=True)
class Operator:
    operator_id: str
    name: str
    password_hash: str | None
    enabled: bool
    created_ms: int
    roles: Mapping[str, Role]  # by organisation id, or EVERY_ORG


@dataclass(frozen=True, slots=True)
class Session:
    operator_id: str
    created_ms: int
    used_ms: int


@dataclass(frozen=True, slots=True)
class OperatorToken:
    token_id: str
    operator_id: str
    name: str
    created_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class NewLogLine:
    """What an operator is about to do."""

    operator: str
    address: str
    operation: str
    request: str  # JSON, secrets masked


@dataclass(frozen=True, slots=True)
class LogBound:
    """So many lines of one name and operation are enough from that time on."""

    since_ms: int
    most: int


@dataclass(frozen=True, slots=True)
class LogLine:
    position: int
    time_ms: int
    operator: str
    address: str
    operation: str
    request: str
    org_ids: tuple[str, ...]
    outcome: str | None  # None: cut short before there was one, unless it is under way
    under_way: bool  # in a control plane that runs: of a command beside the store nothing is known


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A choice of lines of the operator log. Each None asks for nothing in particular."""

    limit: int
    order: Literal["newest first", "oldest first"] = "newest first"
    past: int | None = None  # position of a line: those that come after it in that order
    search: str | None = None  # part of the operator's name, of the operation or of the request
    from_ms: int | None = None
    to_ms: int | None = None
    operator: str | None = None
    operation: str | None = None  # its name, or its noun alone
    org_id: str | None = None
    org_ids: frozenset[str] | None = None  # lines about these organisations and no other
    outcome: str | None = None  # lines of this outcome, and those without one


# Sign-ins, and control planes that share the store


@dataclass(frozen=True, slots=True)
class SignInKeys:
    """Failed sign-ins are counted by these digests."""

    address: bytes
    name: bytes | None = None
    pair: bytes | None = None  # name and address


class AttemptLimit(NamedTuple):
    """So many failed sign-ins with this key make the next one wait."""

    what: Literal["address", "name", "pair"]
    key: bytes
    most: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A control plane, as it says of itself."""

    instance_id: str
    name: str  # host and process
    version: str
    leads: bool = False
    witnessed_ms: int | None = None  # the newest time that its proxies agreed with


@dataclass(frozen=True, slots=True)
class RunningInstance:
    instance: Instance
    started_ms: int
    seen_ms: int


# The chain of audit events

What = Literal["changed", "removed", "inserted", "reordered", "truncated", "forged"]
"""`forged`: it fits, but was not made with this store's master key. `truncated`: a known head is missing."""


class Misfit(msgspec.Struct, rename="camel", frozen=True):
    """The first thing in a chain that doesn't fit."""

    what: What
    explanation: str
    link: int | None = None
    position: int | None = None  # of the event, or of its block's first where it is all of the block
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a walk along a chain has come."""

    number: int = 0
    link: bytes = BEFORE_THE_FIRST
    position: int = 0  # of the last block
    events: int = 0
    purged: int = 0


@dataclass(frozen=True, slots=True)
class ChainHead:
    newest: Link
    events: int  # that the chain speaks of
    purged: int  # of those


@dataclass(frozen=True, slots=True)
class ChainCheck:
    checked_ms: int
    links: int
    events: int
    misfit: Misfit | None


@dataclass(frozen=True, slots=True)
class GivenOut:
    """A range of the outbox that is written as one. The store remembers it before the first try."""

    after: int
    upto: int  # included
    token: str  # the same for every try, and never given to another range


class OutboxStore(Protocol):
    """The events that an index has not been given yet, in the order in which they came."""

    async def events_after(self, position: int, limit: int) -> list[StoredEvent]: ...
    async def last_position(self) -> int:
        """Of the newest event there ever was."""

    async def outbox_position(self, index: str) -> int: ...
    async def set_outbox_position(self, index: str, position: int) -> None: ...
    async def give_out(self, index: str, wanted: GivenOut) -> GivenOut | None:
        """Return the range that the index gets next, the same until finish(). None if it has that already."""

    async def finish(self, index: str, given: GivenOut) -> None: ...
    async def go_back(self, index: str, position: int) -> None: ...


class AuditStore(OutboxStore, Protocol):
    """Audit events and what proxies report."""

    async def commit_batch(self, batch: NewBatch, limits: RateLimits) -> Outcome:
        """Durable on return. A refusal leaves no trace."""

    async def event(self, org_id: str, event_id: str) -> StoredEvent | None: ...
    async def blocks_between(
        self, org_id: str, from_ms: int, to_ms: int, before: BlockPlace | None
    ) -> BlockSlice:
        """Events of the organisation from about that time, the latest blocks first, some MB of them."""

    async def count_between(self, org_id: str, from_ms: int, to_ms: int) -> int:
        """About how many events those are in all."""

    async def add_heartbeat(
        self, proxy_id: str, body: str, skew_ms: int | None = None, said: Said = NOTHING_SAID
    ) -> None: ...
    async def add_metrics(self, proxy_id: str, window_start: str, body: str) -> None: ...
    async def heartbeats(self, proxy_id: str, limit: int) -> list[Report]: ...
    async def metrics(self, proxy_id: str, limit: int) -> list[Report]: ...
    async def latest_reports(self, proxy_ids: Sequence[str], windows: int) -> Mapping[str, LatestReports]:
        """Of each proxy its newest heartbeat and its newest windows of metrics, of one moment."""

    async def sequences(self, proxy_id: str, gap_limit: int) -> list[SequenceState]: ...
    async def losses(self, proxy_ids: Sequence[str]) -> Mapping[str, Losses]:
        """Unacknowledged losses of each proxy, of all its organisations together."""

    async def losses_of_org(self, org_id: str) -> Losses:
        """Losses of the organisation's events at all proxies together, acknowledged ones included."""

    async def acknowledge_losses(
        self, proxy_id: str, org_id: str, acknowledgement: Acknowledgement, expected: Losses | None
    ) -> Losses:
        """Acknowledge the current losses of the organisation and return them. Raise Conflict if they are not
        the expected ones."""

    async def purge_events(self, org_id: str, before_ms: int, limit: int) -> int:
        """Delete up to `limit` events that both happened and were received before `before_ms`, or that were
        received before it with a time ahead of their receipt; return their number."""

    async def received_before(self, org_id: str, before_ms: int) -> int:
        """Position of the organisation's last event that was received before `before_ms`."""

    async def received_at(self, position: int) -> int | None:
        """Time at which the event at that position was received, in ms; None if it is gone."""

    async def correct_receipts(self, org_id: str, now_ms: int) -> int:
        """Count receipts that still lie ahead as received now; return the number of blocks corrected."""

    async def purge_batches(self, now_ms: int, limit: int) -> int:
        """Remove up to `limit` batch ids that need not be kept any longer; return their number."""


class ChainStore(Protocol):
    """What vouches for the audit events: a chain for each organisation."""

    def sign_links(self, key: bytes) -> None:
        """From here on."""

    async def adopt_blocks(self, org_id: str) -> int:
        """Chain the next blocks that an earlier release stored; how many events they have."""

    async def chained_orgs(self) -> list[str]: ...
    async def chain_head(self, org_id: str) -> ChainHead | None: ...
    async def chain_link(self, org_id: str, number: int) -> Link | None: ...
    async def chain_has(self, org_id: str, link: bytes) -> bool: ...
    async def walk_chain(
        self, org_id: str, reached: Reached, last: int, key: bytes
    ) -> tuple[Reached, Misfit | None]:
        """Some links further, up to number `last`; where one doesn't fit, the walk ends before it."""

    async def mismatch_at_chain_end(self, org_id: str) -> Misfit | None:
        """Events that no link speaks of yet, though a link was made with every one."""

    async def note_chain_check(self, org_id: str, check: ChainCheck) -> None: ...
    async def chain_check(self, org_id: str) -> ChainCheck | None: ...


class RegistryStore(Protocol):
    """What an operator creates. Every method that changes something is durable on return. The row that it
    returns is the row after the change.

    The `find_` methods return the rows that have the reference as their id or name, spelled exactly so; an
    app also has its client id. A name is unique in an organisation, so without an organisation there may be
    several rows.
    """

    async def add_org(self, org: Org) -> None: ...
    async def set_retention(self, org_id: str, retention: Retention) -> Org: ...
    async def orgs(self) -> list[Org]: ...
    async def find_orgs(self, reference: str) -> list[Org]: ...
    async def add_proxy(self, proxy: Proxy, api_key_digest: bytes, sealed_hmac_secret: bytes) -> None: ...
    async def set_proxy_credentials(
        self, proxy_id: str, api_key_digest: bytes, sealed_secret: bytes, expected: int | None
    ) -> None:
        """Conflict where those that they replace are not of the version expected."""

    async def set_proxy_enabled(self, proxy_id: str, enabled: bool) -> Proxy: ...
    async def grant(self, proxy_id: str, org_id: str) -> Proxy: ...
    async def revoke(self, proxy_id: str, org_id: str) -> Proxy: ...
    async def proxies(self, org_id: str | None) -> list[Proxy]:
        """All proxies, or those that serve the organisation, by name."""

    async def find_proxies(self, reference: str) -> list[Proxy]: ...
    async def credentials(self, api_key_digest: bytes) -> ProxyCredentials | None: ...
    async def apply_ruleset(
        self,
        ruleset: Ruleset,
        yaml: str,
        note: str | None,
        expected: int | None,
        schemas: Mapping[str, str] = NO_NAMES,
    ) -> tuple[Ruleset, Applied]:
        """Store a new version of the ruleset, unless text and schemas are the active ones. Return what is
        new.

        `schemas` gives the digest of each root path that the rules name things of. Raise Conflict unless
        those are the current ones of the organisation.
        """

    async def roll_back(
        self, ruleset_id: str, version: int | None, note: str | None, expected: int | None
    ) -> Ruleset:
        """Store a new version with the text and the schemas of an older one."""

    async def rulesets(self, org_id: str | None) -> list[Ruleset]: ...
    async def find_rulesets(self, reference: str, org_id: str | None) -> list[Ruleset]: ...
    async def ruleset_versions(self, ruleset_id: str) -> list[RulesetVersion]:
        """All of them, newest first."""

    async def ruleset_text(self, ruleset_id: str, version: int) -> str | None: ...
    async def add_app(self, app: App) -> None: ...
    async def set_app_enabled(self, app_id: str, enabled: bool) -> App: ...
    async def bind_app(self, app_id: str, ruleset_id: str) -> App: ...
    async def set_shadow(self, app_id: str, ruleset_id: str | None) -> App: ...
    async def promote_shadow(self, app_id: str, expected: str | None) -> App:
        """The shadow ruleset becomes the app's own. NotFound where there is none, and Conflict where it has
        not the name expected."""

    async def add_stop(self, stop: Stop) -> Stop:
        """The stop in force: the one that was there before, if there was one."""

    async def lift_stop(self, org_id: str | None, app_id: str | None) -> bool:
        """Whether there was one."""

    async def stops(self) -> list[Stop]: ...
    async def rotate_secret(self, app_id: str, secret_hash: str, grace_ms: int, expected: int | None) -> App:
        """Conflict where the newest secret is not the one expected."""

    async def apps(self, org_id: str | None) -> list[App]: ...
    async def find_apps(self, reference: str, org_id: str | None) -> list[App]: ...
    async def sync_content(
        self, proxy_id: str, known_versions: Sequence[str], limits: RateLimits, generation: int | None = None
    ) -> SyncContent | str:
        """What the proxy sees now, or only the version of it where the proxy has that one already.
        `generation`: the one of the registry, if the caller has just read it."""

    async def sync_version(
        self, proxy_id: str, limits: RateLimits, generation: int | None = None
    ) -> str | None:
        """The version of what the proxy sees now; None while it has not asked for it."""

    async def master_key_check(self, sealed: bytes) -> bytes:
        """The text sealed under the store's master key; at the first start it is `sealed`."""

    async def has_master_key(self) -> bool:
        """Whether anything was ever sealed for it."""

    async def replace_master_key_check(self, sealed: bytes) -> None: ...


class SchemaStore(Protocol):
    """Schemas of graph APIs. Durable on return."""

    async def add_schema(self, org_ids: Sequence[str], schema: NewSchema) -> Mapping[str, str | None]:
        """Make a schema the current one of its root path in each organisation. Return the digest that was
        current before, by organisation. Raise Conflict if an organisation would have too many schemas.

        The one that was current stays, and so does each that a version of a ruleset names.
        """

    async def org_schemas(self, org_id: str | None) -> list[OrgSchema]:
        """Return all schemas, the current one of each root path first."""

    async def current_schemas(self, org_id: str) -> PackedSchemas: ...
    async def version_schemas(self, ruleset_id: str, version: int) -> PackedSchemas:
        """Return the schemas that a version of a ruleset names."""

    async def packed_schema(self, digest: str) -> bytes | None: ...
    async def schema_uses(self, org_id: str, root: str) -> list[SchemaUse]:
        """Return the ruleset versions of an organisation that name a schema of the root path."""


class OperatorStore(Protocol):
    """Who may operate the control plane, and what they did. Durable on return."""

    async def add_operator(self, operator: Operator) -> None: ...
    async def operators(self) -> list[Operator]: ...
    async def operator(self, reference: str) -> Operator | None:
        """By id or name, whatever its case."""

    async def set_password(self, operator_id: str, password_hash: str | None) -> None:
        """The operator's sessions end."""

    async def set_operator_enabled(self, operator_id: str, enabled: bool) -> None:
        """The operator's sessions end. Conflict where it leaves no admin over all organisations."""

    async def set_role(self, operator_id: str, org_id: str, role: Role) -> None:
        """Conflict where it leaves no admin over all organisations."""

    async def remove_role(self, operator_id: str, org_id: str) -> None:
        """Conflict where it leaves no admin over all organisations."""

    async def add_session(self, digest: bytes, operator_id: str, password_hash: str | None = None) -> bool:
        """Not where the operator has another password by now: a new one ended the sessions of the old."""

    async def session(self, digest: bytes) -> Session | None: ...
    async def use_session(self, digest: bytes) -> None: ...
    async def remove_session(self, digest: bytes) -> None: ...
    async def purge_sessions(self, created_before_ms: int, used_before_ms: int, limit: int) -> int: ...
    async def add_token(self, token: OperatorToken, digest: bytes) -> None: ...
    async def tokens(self, operator_id: str) -> list[OperatorToken]: ...
    async def token(self, digest: bytes) -> OperatorToken | None: ...
    async def remove_token(self, token_id: str) -> None: ...
    async def begin_log_line(self, record: NewLogLine) -> int:
        """The position of a new line, which has no outcome yet."""

    async def end_log_line(self, position: int, outcome: str, org_ids: Sequence[str]) -> None: ...
    async def add_sign_in_line(self, record: NewLogLine, outcome: str, bound: LogBound | None) -> None:
        """Add a whole line, unless there are as many as the bound says."""

    async def operator_log(self, query: LogQuery) -> list[LogLine]: ...
    async def purge_record(self, before_ms: int, limit: int) -> int: ...
    async def begin_attempt(self, keys: SignInKeys, limits: Sequence[AttemptLimit], window_ms: int) -> int:
        """Count a sign-in as failed until forgiven; 0. If a limit is reached, return how many ms are left
        until the next one counts, and write nothing."""

    async def forgive_attempt(self, keys: SignInKeys) -> None:
        """Forget the newest attempt, which succeeded, and the failures of the name at the address."""


class ListStore(Protocol):
    """Pages of lists."""

    async def list_orgs(self, query: ListQuery) -> ListPage[Org]: ...
    async def list_proxies(self, query: ListQuery, fleet: FleetQuery | None = None) -> ListPage[Proxy]:
        """Return a page of the proxies that serve one of the query's organisations. `fleet` is needed to sort
        and choose by health."""

    async def list_rulesets(self, query: ListQuery) -> ListPage[RulesetSummary]: ...
    async def list_apps(self, query: ListQuery) -> ListPage[App]: ...
    async def list_operators(
        self, query: ListQuery, name: str | None, org_id: str | None = None
    ) -> ListPage[Operator]:
        """Return a page of the operator of that name and of those with a role in one of the query's
        organisations. `org_id`: only those with a role there or in every organisation."""

    async def count_proxies(
        self, bounds: HealthBounds, org_ids: frozenset[str] | None, search: str | None = None
    ) -> Mapping[Health, int]:
        """Return how many proxies are of each health: those that serve one of the organisations, and fulfil
        the search."""


class Peers(Protocol):
    """The control planes that share the store, as one of them sees them: one leads, and each announces
    events that it stored."""

    @property
    def leads(self) -> bool:
        """Return whether this control plane leads."""

    async def until_leading(self) -> None: ...
    async def until_not_leading(self) -> None: ...
    def announce(self) -> None:
        """Say soon that events were stored here."""

    async def run(self, on_events: Callable[[], None]) -> None:
        """Try to lead, and call `on_events` when events were stored elsewhere."""

    async def close(self) -> None: ...


class InstanceStore(Protocol):
    """Control planes that share the store."""

    @property
    def is_shared(self) -> bool:
        """Return whether several control planes may use it at once."""

    def join(self) -> Peers:
        """Raise StoreError if another control plane uses a store that can't be shared. Close it after the
        store."""

    def use_as(self, instance_id: str) -> None:
        """Say which control plane uses the store from here on."""

    async def note_instance(self, instance: Instance) -> int:
        """Note that the instance runs. Return the time of the database."""

    async def remove_instance(self, instance_id: str) -> None: ...
    async def running_instances(self) -> list[RunningInstance]:
        """Return the instances that were seen lately, the oldest first."""


class Store(
    AuditStore,
    ChainStore,
    RegistryStore,
    SchemaStore,
    OperatorStore,
    ListStore,
    InstanceStore,
    Protocol,
):
    """The system of record."""

    async def ping(self) -> None: ...
    async def tally(self, most: int) -> Tally:
        """Return what is worth a look from outside, of the `most` proxies that are the first to look at."""

    async def close(self) -> None: ...
