"""What the control plane asks of its store: plain values, and the methods that a store has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from controlplane.store.chain import BEFORE_THE_FIRST, Link
from controlplane.store.pages import (
    EVERY_APP,
    AppQuery,
    FleetQuery,
    Health,
    HealthBounds,
    ListPage,
    ListQuery,
    Standing,
)
from controlplane.store.sink_interface import NoticeStore, SinkStore
from controlplane.usage import NOTHING_USED, Uses
from proxy.wire.audit_event import rfc3339

T = TypeVar("T")
Retention = Literal["base", "90d", "1y", "7y"]

_DAY_MS: Final = 86_400_000
RETENTION_MS: Final[Mapping[Retention, int]] = {
    "base": 30 * _DAY_MS,
    "90d": 90 * _DAY_MS,
    "1y": 366 * _DAY_MS,  # a year is a whole one, leap day included
    "7y": (7 * 365 + 2) * _DAY_MS,  # seven years hold two leap days at most
}
RETENTION_WORDS: Final[Mapping[Retention, str]] = {
    "base": "30 days",
    "90d": "90 days",
    "1y": "1 year",
    "7y": "7 years",
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


class NoStoreYet(StoreError):
    """There is no store at the place that the settings name."""

    def __init__(self, store: str) -> None:
        what = "the first start makes it, and so does the first command that changes something"
        super().__init__(f"{store}: there is no store yet: {what}")
        self.store = store


class NotFound(StoreError):
    """There is no such thing, or none in that organisation."""


class AlreadyExists(StoreError):
    """The name is taken."""


class Conflict(StoreError):
    """What is there doesn't allow it."""


class SecondPersonNeeded(Conflict):
    """The organisation needs a second person to approve this change. Nothing has changed."""

    def __init__(self, change: Ruleset | None) -> None:
        """`change` is the version of a ruleset that would be made, or None if an app would be bound."""
        super().__init__("the organisation needs a second person for this now: do it again to propose it")
        self.change = change


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
    uses: Uses = NOTHING_USED


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
    approvals: int = 0  # further operators that must approve a change of rules: 0 or 1


TombstoneKind = Literal["org", "app", "ruleset", "proxy", "operator"]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The record of a thing that was deleted."""

    id: str
    kind: TombstoneKind
    name: str
    org_ids: tuple[str, ...]  # that it belonged to
    deleted_ms: int
    deleted_by: str
    client_id: str | None = None  # None unless it was an app
    ruleset_id: str | None = None  # ruleset that evaluated the app last
    retention: Retention | None = None  # None unless it was an organisation
    created_ms: int | None = None  # None unless it was an organisation

    @property
    def label(self) -> str:
        """Name and date of the deletion, so that nobody takes it for a living thing of that name."""
        return f"{self.name} (deleted {rfc3339(self.deleted_ms)[:10]})"

    def as_org(self) -> Org:
        """Return the deleted organisation, whose events are still kept."""
        return Org(self.id, self.label, self.retention or "base", self.created_ms or self.deleted_ms)

    def as_app(self, ruleset_name: str) -> App:
        """Return the deleted app, whose events are still kept."""
        identity = self.id, self.org_ids[0], self.label, self.client_id or ""
        return App(*identity, self.ruleset_id or "", ruleset_name, False, self.deleted_ms, ())

    def as_proxy(self) -> Proxy:
        """Return the deleted proxy, whose events are still kept."""
        return Proxy(self.id, self.label, False, self.deleted_ms, self.deleted_ms, 1, self.org_ids)


class WasDeleted(NotFound):
    """The reference is to something that was deleted."""

    def __init__(self, text: str, dead: Tombstone) -> None:
        super().__init__(text)
        self.dead = dead


ProposalKind = Literal["publish", "rollback", "bind", "promote"]
ProposalState = Literal["open", "approved", "rejected"]


MOST_OPEN: Final = 20  # proposals of one operator in one organisation, so that nobody uses up another's
MOST_OF_APPLY: Final = 200


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of rules that waits for a second person, or waited for one."""

    proposal_id: str
    org_id: str
    kind: ProposalKind
    ruleset_id: str  # ruleset that changes, or that an app would get
    ruleset: str
    base_version: int | None  # active when a text was proposed; 0: none was
    yaml: str | None  # text to publish
    to_version: int | None  # version to go back to
    app_id: str | None  # app that would get the ruleset
    base_ruleset_id: str | None  # ruleset that the app had
    note: str | None
    proposed_by: str
    proposed_ms: int
    state: ProposalState = "open"
    decided_by: str | None = None
    decided_ms: int | None = None
    reason: str | None = None
    version: int | None = None  # version that it became


@dataclass(frozen=True, slots=True)
class Approval:
    """The decision of a second person on a proposal."""

    proposal_id: str
    by: str
    at_ms: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Proxy:
    proxy_id: str
    name: str
    enabled: bool
    created_ms: int
    last_seen_ms: int | None
    secret_version: int
    org_ids: tuple[str, ...]
    token_id: str | None = None  # enrolment token by which the proxy came; None: an operator added it
    token: str | None = None  # name of that token
    keys_made_ms: int | None = None  # None: by an earlier release, which did not note it
    rotate_days: int | None = None  # age at which the proxy renews its keys; None: it does not
    retired_ms: int | None = None
    old_keys_end_ms: int | None = None  # end of the keys before the current ones, which may be over

    @property
    def rotate_at_ms(self) -> int | None:
        """Time from which the proxy renews its keys; None if it does not."""
        if self.rotate_days is None or self.keys_made_ms is None:
            return None
        return self.keys_made_ms + self.rotate_days * _DAY_MS


@dataclass(frozen=True, slots=True)
class ProxyCredentials:
    """What a signed request is checked with."""

    proxy_id: str
    sealed_hmac_secret: bytes
    org_ids: frozenset[str]
    generation: int  # state of the registry
    ends_ms: int | None = None  # end of this key, if newer ones exist
    is_news: bool = False  # the call has to be noted: it is the first with this key, or the proxy was retired

    def holds_at(self, now_ms: int) -> bool:
        return self.ends_ms is None or now_ms < self.ends_ms


@dataclass(frozen=True, slots=True)
class NewKeys:
    """Keys of a proxy as the store keeps them."""

    api_key_digest: bytes
    sealed_secret: bytes


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A call that was noted."""

    proxy: str
    was_retired: bool


# Enrolment of proxies

TokenState = Literal["valid", "used up", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """A token with which proxies enrol themselves into its organisations."""

    token_id: str
    name: str
    org_ids: tuple[str, ...]
    uses: int  # enrolments that it allows
    used: int
    created_ms: int
    created_by: str
    expires_ms: int
    rotate_days: int | None  # after which its proxies renew their keys; None: they don't
    retire_days: int | None  # silence after which its proxies are retired; None: they never are
    revoked_ms: int | None = None

    def state_at(self, now_ms: int) -> TokenState:
        if self.revoked_ms is not None:
            return "revoked"
        if now_ms >= self.expires_ms:
            return "expired"
        return "valid" if self.used < self.uses else "used up"


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A proxy that asks for an identity."""

    token_digest: bytes
    enrolment_id: str
    proxy_id: str  # that it gets, unless it has one already
    name: str
    address: str
    request: str  # JSON that the operator log keeps


EnrolmentRefusal = Literal["unknown", "revoked", "expired", "used up", "in use"]
RenewalRefusal = Literal["not enrolled", "replaced", "replaced by operator"]


@dataclass(frozen=True, slots=True)
class TooSoon:
    """Keys were made a moment ago: the proxy may ask again in so many seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """A proxy that asks for new keys."""

    proxy_id: str
    api_key_digest: bytes  # the key that it signed with
    signed_s: int  # Unix time that it signed
    address: str


@dataclass(frozen=True, slots=True)
class Enrolled:
    proxy: Proxy
    orgs: tuple[Org, ...]


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
    expires_ms: int | None  # it is valid until then; None: without end
    created_ms: int = 0

    def is_valid_at(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms


CredentialKind = Literal["federated", "publicKey", "certificate"]


@dataclass(frozen=True, slots=True)
class AppCredential:
    """A credential of an app that is not a client secret."""

    credential_id: str
    kind: CredentialKind
    pins: str  # the members that proxies receive, as JSON
    created_ms: int
    ends_ms: int | None  # it is valid until then; None: without end

    def is_valid_at(self, now_ms: int) -> bool:
        return self.ends_ms is None or now_ms < self.ends_ms


IN_USE_MS: Final = 7 * _DAY_MS  # a credential counts as in use for so long after its last use


class EndingCredential(NamedTuple):
    """A credential of an enabled app that ends, or has ended."""

    app_id: str
    org_id: str
    app: str
    credential_id: str
    ends_ms: int
    last_used_ms: int | None = None  # None: no use is recorded

    def ended_in_use(self, now_ms: int) -> bool:
        """Return True if the credential has ended, and was used in the week before its end."""
        last_ms = self.last_used_ms
        return self.ends_ms <= now_ms and last_ms is not None and last_ms >= self.ends_ms - IN_USE_MS


class CredentialUses(NamedTuple):
    """Last use of the credentials of an app. An empty id: a proxy did not report which one it was."""

    since_ms: int  # uses before this time were not recorded
    last_ms: Mapping[str, int]  # time of the newest token by credential id


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
    owner: str | None = None
    note: str | None = None
    newest_secret: AppSecret | None = None  # even if it has ended; None: it has none, or is not stored yet
    credentials: tuple[AppCredential, ...] = ()  # the oldest first, ended ones included
    secret_floor: int = 0  # versions below this one are revoked
    ended_secret: AppSecret | None = None  # the newest of those that have ended

    @property
    def secret_version(self) -> int:
        """The lowest version that is still valid: a token of a lower one is revoked. 0 if there is none."""
        if not self.secrets:
            return 0
        return max(self.secret_floor, min(secret.version for secret in self.secrets))


class AppUsage(NamedTuple):
    """Use of an app, as far as it was counted."""

    last_ms: int | None  # time of its newest request; None: it had none since `since_ms`
    requests: int  # number in the days asked for
    since_ms: int  # when the app was added, or when counting began


class RuleUsage(NamedTuple):
    """Use of the rules of a ruleset, as far as it was counted."""

    since_ms: int  # when the ruleset was added, or when counting began
    rules: Mapping[str, tuple[int, int]]  # hits in the days asked for, time of the newest hit


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
class EndedCredentials:
    """Credentials of one app that have ended lately, so that a proxy can say so of a refused one."""

    secret: AppSecret | None
    others: tuple[AppCredential, ...]

    def ends_ms(self) -> list[int]:
        ends = [
            None if self.secret is None else self.secret.expires_ms,
            *(each.ends_ms for each in self.others),
        ]
        return [end for end in ends if end is not None]


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
    rotate_at_ms: int | None = None  # time from which the proxy renews its keys
    ended: Mapping[str, EndedCredentials] = field(default_factory=dict)  # keys: ids of apps


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
class ReceivedNumbers:
    """Sequence numbers of an organisation's events that one proxy delivered, acknowledged losses included."""

    highest: int
    gaps: tuple[Gap, ...]
    unlisted: int  # missing numbers beyond the ranges that are kept
    repeated: int  # events under numbers that others had before
    implausible: int  # events with a time that can't be true
    reused: int  # batches with an id, their own or an event's, used before for other content


@dataclass(frozen=True, slots=True)
class Report:
    received_ms: int
    body: str
    skew_ms: int | None = None  # of a heartbeat: the proxy's clock against ours


@dataclass(frozen=True, slots=True)
class Said:
    """The part of a heartbeat that lists and counts need."""

    health: Literal["ok", "degraded", "failed", "ended"] = "ok"  # as the proxy itself says
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
    enabled: bool  # and neither retired nor ended
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
class Provided:
    """Identity and roles that an identity provider vouched for at the last sign-in of an operator."""

    issuer: str
    subject: str  # what the issuer calls the person, for ever
    display_name: str  # a name that people read, never compared
    roles_until_ms: int  # time of the next sign-in at the latest
    mappings: Mapping[str, str]  # name of the mapping that gives the role, by organisation id


@dataclass(frozen=True, slots=True)
class LinkedPerson:
    """The one person of an identity provider that may sign in as a local operator."""

    issuer: str
    subject: str  # what the issuer calls the person, for ever
    linked_ms: int


@dataclass(frozen=True, slots=True)
class Operator:
    operator_id: str
    name: str
    password_hash: str | None
    enabled: bool
    created_ms: int
    roles: Mapping[str, Role]  # by organisation id, or EVERY_ORG
    signed_in_ms: int | None = None
    provided: Provided | None = None  # None: a local operator
    link: LinkedPerson | None = None  # None: nobody is linked, as for operators from a provider

    def may_act(self, now_ms: int) -> bool:
        """Return whether the operator is enabled, and its roles are still good."""
        return self.enabled and not self.roles_ended(now_ms)

    def roles_ended(self, now_ms: int) -> bool:
        """Return whether roles of the identity provider have ended, until the operator signs in again."""
        return self.provided is not None and now_ms >= self.provided.roles_until_ms


@dataclass(frozen=True, slots=True)
class ProvidedRole:
    """A role that a mapping gives in an organisation, or in EVERY_ORG."""

    org_id: str
    role: Role
    mapping: str


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
    result: str | None = None  # what came of it, in words


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A choice of lines of the operator log. Each None asks for nothing in particular."""

    limit: int
    order: Literal["newest first", "oldest first"] = "newest first"
    past: int | None = None  # position of a line: those that come after it in that order
    search: str | None = None  # part of the operator's name, the operation, the request or the result
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
    """The first mismatch in a chain."""

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
class Purges:
    """The times of an organisation's purges: of the last one, and of the last receipt of a purged event."""

    last_ms: int
    received_ms: int

    @property
    def until_ms(self) -> int:
        """Return the time after which no purged event happened. Each was older than the shortest retention,
        and happened before its receipt, unless a clock was ahead."""
        return min(self.received_ms + MOST_AHEAD_MS, self.last_ms - RETENTION_MS["base"])


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


class ArchiveRange(NamedTuple):
    """Whole blocks one after the other, of all organisations."""

    upto: int  # position of the last event
    is_full: bool  # it has as much as may be written at once
    received_ms: int  # when the first block came


@dataclass(frozen=True, slots=True)
class ChainedBlock:
    """The events that are left of a chained block."""

    events: tuple[bytes | None, ...]  # None: the event has gone, or the block is damaged
    digests: tuple[bytes, ...]  # SHA-256 of each event as it came

    @property
    def size(self) -> int:
        return sum(len(event) for event in self.events if event is not None)


class ChainedLink(NamedTuple):
    link: Link
    block: ChainedBlock | None  # None: the link is that of a purge, or all of its block has gone


class LinkSpan(NamedTuple):
    """Links of an organisation's chain by number."""

    after: int  # number of the link before the first; 0 if there is none
    upto: int


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
    async def received_numbers(self, org_id: str, gap_limit: int) -> Mapping[str, ReceivedNumbers]:
        """Sequence numbers of the organisation's events that arrived, by proxy."""

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


class ArchiveSource(Protocol):
    """The part of the store that an archive is made from."""

    async def archive_range(self, after: int) -> ArchiveRange | None:
        """Return the blocks after the position that may be written at once; None if there are none."""

    async def orgs_between(self, after: int, upto: int) -> list[str]:
        """Return the ids of the organisations whose chains speak of blocks after the one position and up to
        the other, also of blocks that have gone."""

    async def links_between(self, org_id: str, after: int, upto: int) -> LinkSpan:
        """Return the links from behind the last that speaks of a block before, up to the next that speaks of
        a block after. The links of purges after the last block may become more."""

    async def chained_blocks(self, org_id: str, span: LinkSpan) -> list[ChainedLink]:
        """Return the first of these links with their blocks, some MB of them."""

    async def chain_link(self, org_id: str, number: int) -> Link | None: ...
    async def fix_range(self, archive: str, after: int, upto: int) -> int:
        """Remember the end of the range that the archive writes after the position, and return it. Return
        the end that was remembered before, if one was, until the archive asks for another range."""


class ChainStore(ArchiveSource, Protocol):
    """What vouches for the audit events: a chain for each organisation."""

    def sign_links(self, key: bytes) -> None:
        """From here on."""

    async def adopt_blocks(self, org_id: str) -> int:
        """Chain the next blocks that an earlier release stored; how many events they have."""

    async def chained_orgs(self) -> list[str]: ...
    async def chain_head(self, org_id: str) -> ChainHead | None: ...
    async def chain_link(self, org_id: str, number: int) -> Link | None: ...
    async def chain_receipts(self, org_id: str, after: int, last: int) -> tuple[int, int] | None:
        """Return the times of the first and the last receipt that these links record; None if they record
        no receipt."""

    async def chain_purges(self, org_id: str) -> Purges | None:
        """Return the times of purges that the chain records; None if nothing was purged."""

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
    async def set_approvals(self, org_id: str, approvals: int) -> Org: ...
    async def add_proposal(self, proposal: Proposal, most: int = MOST_OPEN) -> None: ...
    async def proposal(self, proposal_id: str) -> Proposal | None: ...
    async def proposals(self, org_ids: Collection[str], *, is_open: bool, limit: int) -> list[Proposal]: ...
    async def open_proposals(self) -> list[tuple[str, str]]: ...
    async def reject_proposal(self, decision: Approval) -> None: ...
    async def orgs(self) -> list[Org]: ...
    async def find_orgs(self, reference: str) -> list[Org]: ...
    async def add_proxy(self, proxy: Proxy, api_key_digest: bytes, sealed_hmac_secret: bytes) -> None: ...
    async def set_proxy_credentials(
        self, proxy_id: str, keys: NewKeys, expected: int | None, overlap_ms: int = 0
    ) -> None:
        """Replace the keys of a proxy. The old ones are accepted for the overlap. Raise Conflict if they are
        not of the version expected."""

    async def note_key_use(self, api_key_digest: bytes, address: str) -> KeyUse | None:
        """Note a call with this key: the first one shortens the time of older keys, and any call brings a
        retired proxy back. None if the key is gone."""

    async def set_proxy_enabled(self, proxy_id: str, enabled: bool) -> Proxy: ...
    async def grant(self, proxy_id: str, org_id: str) -> Proxy: ...
    async def revoke(self, proxy_id: str, org_id: str) -> Proxy: ...
    async def proxies(self, org_id: str | None) -> list[Proxy]:
        """All proxies, or those that serve the organisation, by name."""

    async def hands_of_proxies(self) -> Mapping[str, str]:
        """Return by its id whose hand holds the keys of each proxy that is in use. It is that of an enrolment
        token for all that came by it, and one of its own for each proxy that an operator added."""

    async def find_proxies(self, reference: str) -> list[Proxy]: ...
    async def credentials(self, api_key_digest: bytes) -> ProxyCredentials | None: ...
    async def apply_ruleset(
        self,
        ruleset: Ruleset,
        yaml: str,
        note: str | None,
        expected: int | None,
        schemas: Mapping[str, str] = NO_NAMES,
        approval: Approval | None = None,
    ) -> tuple[Ruleset, Applied]:
        """Store a new version of the ruleset, unless text and schemas are the active ones. Return what is
        new.

        `schemas` gives the digest of each root path that the rules name things of. Raise Conflict unless
        those are the current ones of the organisation. Raise SecondPersonNeeded if the organisation needs
        one and there is no approval, as `roll_back`, `bind_app` and `promote_shadow` do.
        """

    async def roll_back(
        self,
        ruleset_id: str,
        version: int | None,
        note: str | None,
        expected: int | None,
        approval: Approval | None = None,
    ) -> Ruleset:
        """Store a new version with the text and the schemas of an older one."""

    async def rulesets(self, org_id: str | None) -> list[Ruleset]: ...
    async def find_rulesets(self, reference: str, org_id: str | None) -> list[Ruleset]: ...
    async def ruleset_versions(self, ruleset_id: str) -> list[RulesetVersion]:
        """All of them, newest first."""

    async def ruleset_text(self, ruleset_id: str, version: int) -> str | None: ...
    async def add_app(self, app: App) -> None: ...
    async def set_app_enabled(self, app_id: str, enabled: bool) -> App: ...
    async def bind_app(
        self,
        app_id: str,
        ruleset_id: str,
        approval: Approval | None = None,
        *,
        expected_ruleset_id: str | None = None,
    ) -> App: ...
    async def set_app_about(self, app_id: str, owner: str | None, note: str | None) -> App: ...
    async def set_shadow(self, app_id: str, ruleset_id: str | None) -> App: ...
    async def promote_shadow(
        self,
        app_id: str,
        expected: str | None,
        approval: Approval | None = None,
        *,
        expected_ruleset_id: str | None = None,
    ) -> App:
        """The shadow ruleset becomes the app's own. NotFound where there is none, and Conflict where it has
        not the name expected."""

    async def add_stop(self, stop: Stop) -> Stop:
        """The stop in force: the one that was there before, if there was one."""

    async def lift_stop(self, org_id: str | None, app_id: str | None) -> bool:
        """Whether there was one."""

    async def stops(self) -> list[Stop]: ...
    async def rotate_secret(
        self,
        app_id: str,
        secret_hash: str,
        grace_ms: int,
        expected: int | None,
        expires_ms: int | None = None,
    ) -> App:
        """Add a secret that is valid until `expires_ms`, without end if that is None. Raise Conflict if the
        newest secret is not the one expected."""

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


class CredentialStore(Protocol):
    """Credentials of all apps. Client secrets have ids too (`controlplane.names.secret_id`).

    Each change raises NotFound if the app or its credential is gone.
    """

    async def add_credential(self, app_id: str, credential: AppCredential, identity: str) -> App:
        """Raise AlreadyExists if the app has a credential of this kind with the same identity, Conflict if it
        has too many."""

    async def end_credential(self, app_id: str, credential_id: str, ends_ms: int) -> App:
        """Set the end of a credential. Secrets that are older than a secret end no later than it."""

    async def remove_credential(self, app_id: str, credential_id: str) -> App: ...
    async def credential_uses(self, app_ids: Sequence[str]) -> Mapping[str, CredentialUses]: ...
    async def ending_credentials(
        self, org_ids: Collection[str] | None, until_ms: int
    ) -> list[EndingCredential]:
        """Return the credentials of enabled apps that end before that time, the soonest first."""


class EnrolmentStore(Protocol):
    """Tokens with which proxies enrol themselves, and these proxies."""

    async def add_enrolment_token(self, token: EnrolmentToken, digest: bytes) -> None: ...
    async def enrolment_tokens(self) -> list[EnrolmentToken]:
        """Return all tokens, the newest first."""

    async def find_enrolment_tokens(self, reference: str) -> list[EnrolmentToken]: ...
    async def enrolment_token(self, digest: bytes) -> EnrolmentToken | None: ...
    async def revoke_enrolment_token(self, token_id: str, *, with_proxies: bool) -> EnrolmentToken:
        """Revoke the token, and disable the proxies that came by it if asked to, in one transaction."""

    async def proxies_by_token(self, token_id: str) -> list[Proxy]: ...
    async def enrol(
        self, enrolment: Enrolment, keys_for: Callable[[str], NewKeys]
    ) -> Enrolled | EnrolmentRefusal | TooSoon:
        """Add the proxy, or give the one that has this enrolment id and was never seen new keys. `keys_for`
        makes the keys of the proxy with an id."""

    async def renew_keys(self, renewal: Renewal, keys: NewKeys) -> Enrolled | RenewalRefusal | TooSoon:
        """Replace the keys of a proxy that came by a token, if those that it signed with may be renewed."""

    async def retire_silent(self, now_ms: int) -> int:
        """Retire some of the proxies that were silent for as long as their token says, and return their
        number."""


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

    async def operator_of_subject(self, issuer: str, subject: str) -> Operator | None: ...
    async def operator_linked_to(self, issuer: str, subject: str) -> Operator | None: ...
    async def link_operator(self, operator_id: str, issuer: str, subject: str) -> None:
        """Replace the link of a local operator. AlreadyExists if the person is linked to another one."""

    async def link_first_sign_in(self, operator_id: str, issuer: str, subject: str) -> bool:
        """Link a local operator that has neither a link nor a password. Return False if it has one."""

    async def unlink_operator(self, operator_id: str) -> None:
        """Remove the link of a local operator, whose sessions end."""

    async def set_provided(
        self, operator_id: str, display_name: str, roles: Sequence[ProvidedRole], until_ms: int
    ) -> None:
        """Replace all roles of an operator from the provider. Without a role, its sessions end."""

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

    async def end_log_line(
        self, position: int, outcome: str, org_ids: Sequence[str], result: str | None = None
    ) -> None: ...
    async def add_sign_in_line(
        self, record: NewLogLine, outcome: str, bound: LogBound | None, org_ids: Sequence[str] = ()
    ) -> None:
        """Add a whole line, unless there are as many as the bound says."""

    async def operator_log(self, query: LogQuery) -> list[LogLine]: ...
    async def purge_record(self, before_ms: int, limit: int) -> int: ...
    async def begin_attempt(self, keys: SignInKeys, limits: Sequence[AttemptLimit], window_ms: int) -> int:
        """Count a sign-in as failed until forgiven; 0. If a limit is reached, return how many ms are left
        until the next one counts, and write nothing."""

    async def forgive_attempt(self, keys: SignInKeys) -> None:
        """Forget the newest attempt, which succeeded, and the failures of the name at the address."""


class UsageStore(Protocol):
    """Counts of the use of apps and rules."""

    async def app_usage(self, app_ids: Sequence[str], from_day: int) -> Mapping[str, AppUsage]: ...
    async def rule_usage(self, ruleset_id: str, from_day: int) -> RuleUsage: ...
    async def oldest_events(self, org_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the time of the oldest event of each organisation that has events, in ms."""

    async def purge_usage(self, before_day: int) -> int:
        """Delete counts of earlier days, and return their number."""


class ListStore(Protocol):
    """Pages of lists."""

    async def list_orgs(self, query: ListQuery) -> ListPage[Org]: ...
    async def list_proxies(
        self, query: ListQuery, fleet: FleetQuery | None = None, standing: Standing = "active"
    ) -> ListPage[Proxy]:
        """Return a page of the proxies that serve one of the query's organisations. `fleet` is needed to sort
        and choose by health."""

    async def list_rulesets(self, query: ListQuery) -> ListPage[RulesetSummary]: ...
    async def list_apps(self, query: ListQuery, chosen_apps: AppQuery = EVERY_APP) -> ListPage[App]: ...
    async def list_operators(
        self, query: ListQuery, name: str | None, org_id: str | None = None
    ) -> ListPage[Operator]:
        """Return a page of the operator of that name and of those with a role in one of the query's
        organisations. `org_id`: only those with a role there or in every organisation."""

    async def count_proxies(
        self, bounds: HealthBounds, org_ids: frozenset[str] | None, search: str | None = None
    ) -> Mapping[Health, int]:
        """Return how many proxies are of each health: those that are not retired, serve one of the
        organisations, and fulfil the search."""


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


class TombstoneStore(Protocol):
    """Deletions, and the tombstones that they leave. `by` is the operator who deletes.

    A deletion raises NotFound if the thing is gone already.
    """

    async def delete_app(self, app_id: str, by: str) -> Tombstone:
        """Reject the open proposals for the app too."""

    async def delete_ruleset(self, ruleset_id: str, by: str, expected: int | None) -> Tombstone:
        """Raise Conflict if it is in use, or if another version than `expected` is active."""

    async def ruleset_users(self, ruleset_id: str) -> list[str]:
        """Return what keeps the ruleset from being deleted, for a person."""

    async def delete_org(self, org_id: str, by: str) -> Tombstone:
        """Raise Conflict if the organisation has apps."""

    async def delete_proxy(self, proxy_id: str, by: str) -> Tombstone: ...
    async def delete_operator(self, operator_id: str, by: str) -> Tombstone:
        """Raise Conflict if it is the last admin over all organisations."""

    async def delete_schema(self, org_id: str, root: str) -> str:
        """Return the digest of the schema that was current. Raise Conflict if an active ruleset names it."""

    async def tombstones(self, ids: Collection[str]) -> list[Tombstone]: ...
    async def tombstones_named(self, name: str) -> list[Tombstone]:
        """Return what was deleted under that very name, the latest first."""

    async def tombstones_of(self, kind: TombstoneKind) -> list[Tombstone]: ...
    async def purge_tombstones(self, now_ms: int, log_kept_ms: int) -> int:
        """Remove the tombstones that nothing names any more, and return how many there were."""


class Store(
    TombstoneStore,
    AuditStore,
    ChainStore,
    RegistryStore,
    CredentialStore,
    EnrolmentStore,
    SchemaStore,
    OperatorStore,
    ListStore,
    UsageStore,
    InstanceStore,
    SinkStore,
    NoticeStore,
    Protocol,
):
    """The system of record."""

    async def ping(self) -> None: ...
    async def tally(self, most: int) -> Tally:
        """Return what is worth a look from outside, of the `most` proxies that are the first to look at."""

    async def together(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Make all changes of the work in one transaction: if one of them fails, none is made.

        The work uses the store that it gets and waits for nothing else. It runs again if the connection to
        the database was lost before anything was committed.
        """

    async def close(self) -> None: ...
