"""The interface of the store: plain values, and the methods that every store has."""

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
    "1y": 366 * _DAY_MS,  # a leap year
    "7y": (7 * 365 + 2) * _DAY_MS,  # seven years hold two leap days at most
}
RETENTION_WORDS: Final[Mapping[Retention, str]] = {
    "base": "30 days",
    "90d": "90 days",
    "1y": "1 year",
    "7y": "7 years",
}
# Bounds around the receipt of an event, outside which its own time is implausible. Signed requests allow
# clocks to differ by 300 s. A backlog as old as the shortest tier has events that no tier of that length
# would keep.
MOST_AHEAD_MS: Final = 300_000
MOST_BEHIND_MS: Final = min(RETENTION_MS.values())
IDEMPOTENCY_WINDOW_MS: Final = 48 * 3_600_000

Role = Literal["viewer", "editor", "admin"]
EVERY_ORG: Final = "*"
SESSION_IDLE_MS: Final = 30 * 60_000
SESSION_MS: Final = 12 * 3_600_000


NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class StoreError(Exception):
    """Error because an operation of the store failed.

    The text of a StoreError is one line for a person.
    """


class NoStoreYet(StoreError):
    """Error because the settings name a location that has no store."""

    def __init__(self, store: str) -> None:
        what = "the first start makes it, and so does the first command that changes something"
        super().__init__(f"{store}: there is no store yet: {what}")
        self.store = store


class NotFound(StoreError):
    """Error because the requested object does not exist, or does not exist in the given organisation."""


class AlreadyExists(StoreError):
    """Error because an object with the given name exists already."""


class Conflict(StoreError):
    """Error because the current state of the store does not allow the change."""


class SecondPersonNeeded(Conflict):
    """Error because a second operator must approve this change first.

    A method that raises SecondPersonNeeded has changed nothing in the store.
    """

    def __init__(self, change: Ruleset | None) -> None:
        """Set the text of the error, and the change that needs approval.

        `change` is the ruleset version that would be made, or None for the assignment of a ruleset to an
        application.
        """
        super().__init__("the organisation now needs a second person for this: repeat it to propose it")
        self.change = change


class StoreBusy(StoreError):
    """Error because the queue of writes that wait for the database is full."""


# Audit events


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch of audit events for the store.

    The batch has the events as received, and the values that the store needs from these events.
    """

    proxy_id: str
    org_id: str
    batch_id: str
    ids: Sequence[str]
    seqs: Sequence[int | None]
    times: Sequence[int]  # times of the events in ms
    events: Sequence[bytes]  # each as JSON
    implausible: int = 0  # number of events that are marked because their time is implausible
    content: bytes | None = None  # SHA-256 of the events as received; None: replays are not compared
    uses: Uses = NOTHING_USED


UNREADABLE: Final = b""  # body of an event whose block is damaged


class StoredEvent(NamedTuple):
    """An event in the form that the search index reads."""

    position: int
    org_id: str
    body: bytes


class BlockPlace(NamedTuple):
    """Position of a block in the list of its organisation's blocks, sorted by the first event's time."""

    least_ms: int
    position: int


class BlockSlice(NamedTuple):
    """Events of an organisation, and the position of the last read block if more events may follow."""

    events: list[bytes]
    next: BlockPlace | None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits on the batches that a proxy or an organisation may send per minute."""

    org: int
    proxy: int


@dataclass(frozen=True, slots=True)
class Linger:
    """Time in seconds for which a proxy collects events before it sends a batch that is not full."""

    seconds: float  # time for each organisation that has events to send
    orgs: Mapping[str, float]  # shorter times of organisations that several proxies share


@dataclass(frozen=True, slots=True)
class Stored:
    accepted: int
    position: int = field(default=0, compare=False)  # position of the first event
    content_differs: bool = False  # events were omitted because their ids are stored with other content


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
    approvals: int = 0  # number of further operators that must approve a change of rules: 0 or 1


TombstoneKind = Literal["org", "app", "ruleset", "proxy", "operator"]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The record of a deleted object, such as an application or a proxy."""

    id: str
    kind: TombstoneKind
    name: str
    org_ids: tuple[str, ...]  # ids of the organisations that it belonged to
    deleted_ms: int
    deleted_by: str
    client_id: str | None = None  # None unless it was an application
    ruleset_id: str | None = None  # the ruleset that last evaluated the application
    retention: Retention | None = None  # None unless it was an organisation
    created_ms: int | None = None  # None unless it was an organisation

    @property
    def label(self) -> str:
        """Name of a deleted object, and the date of the deletion.

        The date distinguishes the deleted object from an existing object of the same name.
        """
        return f"{self.name} (deleted {rfc3339(self.deleted_ms)[:10]})"

    def as_org(self) -> Org:
        """Return a deleted organisation, whose audit events are still kept."""
        return Org(self.id, self.label, self.retention or "base", self.created_ms or self.deleted_ms)

    def as_app(self, ruleset_name: str) -> App:
        """Return a deleted application, whose audit events are still kept."""
        identity = self.id, self.org_ids[0], self.label, self.client_id or ""
        return App(*identity, self.ruleset_id or "", ruleset_name, False, self.deleted_ms, ())

    def as_proxy(self) -> Proxy:
        """Return a deleted proxy, whose audit events are still kept."""
        return Proxy(self.id, self.label, False, self.deleted_ms, self.deleted_ms, 1, self.org_ids)


class WasDeleted(NotFound):
    """Error because the given name or ID belongs to a deleted object."""

    def __init__(self, text: str, dead: Tombstone) -> None:
        super().__init__(text)
        self.dead = dead


ProposalKind = Literal["publish", "rollback", "bind", "promote"]
ProposalState = Literal["open", "approved", "rejected"]


# open proposals of one operator in one organisation, so that none uses up those of another
MOST_OPEN: Final = 20
MOST_OF_APPLY: Final = 200


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed change of rules that waits for a second person's approval, or was already decided."""

    proposal_id: str
    org_id: str
    kind: ProposalKind
    ruleset_id: str  # id of the ruleset that changes, or that an application would get
    ruleset: str
    base_version: int | None  # version that was active when a text was proposed; 0 if there was none
    yaml: str | None  # text to publish
    to_version: int | None  # version to roll back to
    app_id: str | None  # id of the application that would get the ruleset
    base_ruleset_id: str | None  # id of the ruleset that the application had
    note: str | None
    proposed_by: str
    proposed_ms: int
    state: ProposalState = "open"
    decided_by: str | None = None
    decided_ms: int | None = None
    reason: str | None = None
    version: int | None = None  # version that was made from it


@dataclass(frozen=True, slots=True)
class Approval:
    """The decision of a second person on a proposed change of rules."""

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
    # id of the enrolment token that the proxy used; None: an operator added the proxy
    token_id: str | None = None
    token: str | None = None  # name of that token
    keys_made_ms: int | None = None  # None: keys of an earlier release, which did not store the time
    rotate_days: int | None = None  # age at which the proxy renews its keys; None: it does not
    retired_ms: int | None = None
    old_keys_end_ms: int | None = None  # end of the keys before the current ones, which may be over

    @property
    def rotate_at_ms(self) -> int | None:
        """Time from which the proxy renews its keys, or None if the proxy never renews its keys."""
        if self.rotate_days is None or self.keys_made_ms is None:
            return None
        return self.keys_made_ms + self.rotate_days * _DAY_MS


@dataclass(frozen=True, slots=True)
class ProxyCredentials:
    """The secret and the facts by which a proxy's signed request is verified."""

    proxy_id: str
    sealed_hmac_secret: bytes
    org_ids: frozenset[str]
    generation: int  # generation of the registry
    ends_ms: int | None = None  # end of this key, if newer ones exist
    is_news: bool = False  # the call must be stored: it is the first with this key, or the proxy was retired

    def holds_at(self, now_ms: int) -> bool:
        return self.ends_ms is None or now_ms < self.ends_ms


@dataclass(frozen=True, slots=True)
class NewKeys:
    """New keys of a proxy, in the form that the store keeps."""

    api_key_digest: bytes
    sealed_secret: bytes


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Record of a call that a proxy made with one of its keys."""

    proxy: str
    was_retired: bool


# Enrolment of proxies

TokenState = Literal["valid", "used up", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """A token with which proxies enrol themselves in the organisations of the token."""

    token_id: str
    name: str
    org_ids: tuple[str, ...]
    uses: int  # number of enrolments that it allows
    used: int
    created_ms: int
    created_by: str
    expires_ms: int
    rotate_days: int | None  # age in days at which its proxies renew their keys; None: they do not
    retire_days: int | None  # days without contact after which its proxies are retired; None: they never are
    revoked_ms: int | None = None

    def state_at(self, now_ms: int) -> TokenState:
        if self.revoked_ms is not None:
            return "revoked"
        if now_ms >= self.expires_ms:
            return "expired"
        return "valid" if self.used < self.uses else "used up"


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Request with which a proxy enrols itself."""

    token_digest: bytes
    enrolment_id: str
    proxy_id: str  # id that the proxy gets, unless it has one already
    name: str
    address: str
    request: str  # JSON that the operator log keeps


EnrolmentRefusal = Literal["unknown", "revoked", "expired", "used up", "in use"]
RenewalRefusal = Literal["not enrolled", "replaced", "replaced by operator"]


@dataclass(frozen=True, slots=True)
class TooSoon:
    """Refusal to give a proxy new keys, because other new keys of the proxy were made a moment ago.

    The proxy may request new keys again after some seconds.
    """

    seconds: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """Request of a proxy for new keys."""

    proxy_id: str
    api_key_digest: bytes  # digest of the key that signed the request
    signed_s: int  # Unix time in the signed request
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
    """A ruleset as an entry in a list.

    The list entry shows when and why the active version of the ruleset was made, and how many applications
    use the ruleset.
    """

    ruleset: Ruleset
    changed_ms: int
    note: str | None
    apps: int


@dataclass(frozen=True, slots=True)
class RulesetVersion:
    """Facts about a ruleset version, without its text, which may have megabytes."""

    version: int
    rule_count: int
    rolled_back_to: int | None
    created_ms: int
    note: str | None


Applied = Literal["nothing", "text", "schemas"]
"""What is new in a ruleset that was applied: its schemas alone, if it has the active text."""


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema of a graph API, with the root path of its service."""

    root: str
    digest: str
    packed: bytes  # the flat form, compressed
    bytes: int  # size of the flat form
    source: str  # address or file that it was read from


@dataclass(frozen=True, slots=True)
class OrgSchema:
    """A graph API schema that the control plane stores for an organisation."""

    org_id: str
    root: str
    digest: str
    source: str
    fetched_ms: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class PackedSchemas:
    """The schema digest for each root path, and the compressed schema for each schema digest."""

    digests: Mapping[str, str]
    packed: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A ruleset version whose rules name a schema."""

    digest: str
    ruleset: str
    version: int
    in_force: bool


@dataclass(frozen=True, slots=True)
class AppSecret:
    version: int
    hash: str
    expires_ms: int | None  # time at which it expires; None: never
    created_ms: int = 0

    def is_valid_at(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms


CredentialKind = Literal["federated", "publicKey", "certificate"]


@dataclass(frozen=True, slots=True)
class AppCredential:
    """A credential of an application, of any kind other than a client secret."""

    credential_id: str
    kind: CredentialKind
    pins: str  # members that proxies receive, as JSON
    created_ms: int
    ends_ms: int | None  # time at which it expires; None: never

    def is_valid_at(self, now_ms: int) -> bool:
        return self.ends_ms is None or now_ms < self.ends_ms


IN_USE_MS: Final = 7 * _DAY_MS  # time after its last use for which a credential counts as in use


class EndingCredential(NamedTuple):
    """A credential of an enabled application, with the time at which it expires or has expired."""

    app_id: str
    org_id: str
    app: str
    credential_id: str
    ends_ms: int
    last_used_ms: int | None = None  # None if no use is recorded

    def ended_in_use(self, now_ms: int) -> bool:
        """Return True if the credential has expired, and was used in the week before its expiry."""
        last_ms = self.last_used_ms
        return self.ends_ms <= now_ms and last_ms is not None and last_ms >= self.ends_ms - IN_USE_MS


class CredentialUses(NamedTuple):
    """Times of the last use of an application's credentials.

    An empty credential ID stands for proxies that did not report which credential was used.
    """

    since_ms: int  # earlier uses were not recorded
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
    secrets: tuple[AppSecret, ...]  # valid secrets, newest first
    shadow_ruleset_id: str | None = None
    shadow_ruleset_name: str | None = None
    owner: str | None = None
    note: str | None = None
    newest_secret: AppSecret | None = None  # may have expired; None: it has none, or is not stored yet
    credentials: tuple[AppCredential, ...] = ()  # oldest first, including expired ones
    secret_floor: int = 0  # versions below this one are revoked
    ended_secret: AppSecret | None = None  # newest of the expired secrets

    @property
    def secret_version(self) -> int:
        """The lowest version among an application's valid client secrets, or 0 if no client secret is valid.

        An access token that was issued for a client secret of a lower version is revoked.
        """
        if not self.secrets:
            return 0
        return max(self.secret_floor, min(secret.version for secret in self.secrets))


class AppUsage(NamedTuple):
    """Usage of an application since `since_ms`, the time at which the control plane began to count."""

    last_ms: int | None  # time of its newest request; None if it had none since `since_ms`
    requests: int  # number of requests in the given days
    since_ms: int  # time at which the application was added, or at which counting began


class RuleUsage(NamedTuple):
    """Usage of a ruleset's rules since `since_ms`, the time at which the control plane began to count."""

    since_ms: int  # time at which the ruleset was added, or at which counting began
    rules: Mapping[str, tuple[int, int]]  # hits in the given days, and time of the newest hit


@dataclass(frozen=True, slots=True)
class Stop:
    """An emergency stop, which refuses requests until it is lifted.

    An emergency stop covers one application, a whole organisation (no application given), or everything
    (neither given).
    """

    org_id: str | None
    app_id: str | None
    reason: str
    stopped_by: str
    stopped_ms: int


@dataclass(frozen=True, slots=True)
class EndedCredentials:
    """Recently expired credentials of an application, so that a refusal can name the expiry as its reason."""

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
    """Sync content for one proxy: organisations, applications, rulesets, emergency stops and a version."""

    version: str
    generated_ms: int
    orgs: tuple[Org, ...]
    apps: tuple[App, ...]
    rulesets: tuple[tuple[Ruleset, str], ...]  # each with its YAML text
    stops: tuple[Stop, ...]
    schemas: Mapping[str, Mapping[str, str]]  # digest by root path, for each ruleset that names any
    packed: Mapping[str, bytes]  # compressed bytes of those schemas, by digest
    linger: Linger
    rotate_at_ms: int | None = None  # time from which the proxy renews its keys
    ended: Mapping[str, EndedCredentials] = field(default_factory=dict)  # keys: ids of applications


# Reports of a proxy about itself


class Gap(NamedTuple):
    """Range of sequence numbers that the control plane never received, from `first` to `last`."""

    first: int
    last: int


class Losses(NamedTuple):
    """Numbers of faulty events in a proxy's audit trail: missing, repeated and implausible events."""

    missing: int = 0  # sequence numbers below the highest that were never received
    repeated: int = 0  # events with duplicate sequence numbers
    implausible: int = 0  # events with an implausible time


NO_LOSSES: Final = Losses()


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operator's statement that the current faults of a proxy's trail are known and explained."""

    acknowledged_ms: int
    acknowledged_by: str
    note: str


@dataclass(frozen=True, slots=True)
class SequenceState:
    org_id: str
    highest: int
    gaps: tuple[Gap, ...]
    unlisted: int  # missing numbers beyond the ranges that are kept
    repeated: int = 0  # events with duplicate sequence numbers
    repeated_ms: int | None = None  # time of the last of these events
    implausible: int = 0  # events with an implausible time
    implausible_ms: int | None = None  # time of the last of these events
    losses: Losses = NO_LOSSES
    acknowledged: Acknowledgement | None = None
    reused: int = 0  # batches whose own id, or an event's id, was used before for other content
    reused_ms: int | None = None  # time of the last of these batches


@dataclass(frozen=True, slots=True)
class ReceivedNumbers:
    """Sequence numbers of events from one proxy for one organisation, with acknowledged losses."""

    highest: int
    gaps: tuple[Gap, ...]
    unlisted: int  # missing numbers beyond the ranges that are kept
    repeated: int  # events with duplicate sequence numbers
    implausible: int  # events with an implausible time
    reused: int  # batches whose own id, or an event's id, was used before for other content


@dataclass(frozen=True, slots=True)
class Report:
    received_ms: int
    body: str
    skew_ms: int | None = None  # difference between the proxy's clock and this one, if it is a heartbeat


@dataclass(frozen=True, slots=True)
class Said:
    """The fields of a proxy's heartbeat that are needed for lists and counts of proxies."""

    health: Literal["ok", "degraded", "failed", "ended"] = "ok"  # health that the proxy reports itself
    rulesets: Mapping[str, int] = field(default_factory=dict)  # versions that it enforces


NOTHING_SAID: Final = Said()


@dataclass(frozen=True, slots=True)
class LatestReports:
    heartbeat: Report | None
    metrics: tuple[Report, ...]  # newest first
    reused_ms: int | None = None  # time at which a batch id last arrived with other events


class ProxyTally(NamedTuple):
    """Facts about a proxy, for external monitoring."""

    name: str
    enabled: bool  # neither disabled, retired nor ended
    last_seen_ms: int  # time of its creation if it was never seen
    missing: int  # sequence numbers below the highest that were never received
    repeated: int  # events with duplicate sequence numbers
    losses: Losses  # unacknowledged losses
    reused: int  # batches whose own id, or an event's id, was used before for other content


@dataclass(frozen=True, slots=True)
class Tally:
    newest_position: int  # position of the newest event
    proxies: tuple[ProxyTally, ...]
    broken_chains: int = 0  # organisations whose chain had a mismatch at the last verification


# Operators


@dataclass(frozen=True, slots=True)
class Provided:
    """Identity and roles that an identity provider asserted at the last sign-in of an operator."""

    issuer: str
    subject: str  # the issuer's permanent identifier of the person
    display_name: str  # a name for display, never compared
    roles_until_ms: int  # latest time of the next sign-in
    mappings: Mapping[str, str]  # name of the mapping that gives the role, by organisation id


@dataclass(frozen=True, slots=True)
class LinkedPerson:
    """The only person of an identity provider who may sign in as the local operator."""

    issuer: str
    subject: str  # the issuer's permanent identifier of the person
    linked_ms: int


@dataclass(frozen=True, slots=True)
class Operator:
    operator_id: str
    name: str
    password_hash: str | None
    enabled: bool
    created_ms: int
    roles: Mapping[str, Role]  # roles by organisation id, or EVERY_ORG
    signed_in_ms: int | None = None
    provided: Provided | None = None  # None for a local operator
    link: LinkedPerson | None = None  # None if no person is linked, as for operators from a provider

    def may_act(self, now_ms: int) -> bool:
        """Return whether the operator is enabled and the operator's roles are still valid."""
        return self.enabled and not self.roles_ended(now_ms)

    def roles_ended(self, now_ms: int) -> bool:
        """Return whether the operator's roles from an identity provider have expired.

        A new sign-in renews the roles from the identity provider.
        """
        return self.provided is not None and now_ms >= self.provided.roles_until_ms


@dataclass(frozen=True, slots=True)
class ProvidedRole:
    """A role in an organisation, or in EVERY_ORG, that a mapping of an identity provider's claim grants."""

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
    """A new line of the operator log, for an action that an operator is about to take."""

    operator: str
    address: str
    operation: str
    request: str  # JSON with masked secrets


@dataclass(frozen=True, slots=True)
class LogBound:
    """Limit for the operator log: at most `most` lines about one operator and operation since `since_ms`.

    Lines about successful operations do not count.
    """

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
    outcome: str | None  # None if the operation was interrupted, or is under way
    under_way: bool  # True only for a running control plane: the state of a separate command is unknown
    result: str | None = None  # result of the operation in words


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A selection of lines of the operator log.

    A condition that is None does not restrict the log lines.
    """

    limit: int
    order: Literal["newest first", "oldest first"] = "newest first"
    past: int | None = None  # position of a line: the page has the lines after it in that order
    search: str | None = None  # part of the operator's name, the operation, the request or the result
    from_ms: int | None = None
    to_ms: int | None = None
    operator: str | None = None
    operation: str | None = None  # name of the operation, or its noun alone
    org_id: str | None = None
    org_ids: frozenset[str] | None = None  # lines about these organisations only
    outcome: str | None = None  # lines of this outcome, and those without one


# Sign-ins, and control planes that share the store


@dataclass(frozen=True, slots=True)
class SignInKeys:
    """Digests of a client address, a name, and both together, by which failed sign-ins are counted."""

    address: bytes
    name: bytes | None = None
    pair: bytes | None = None  # name and address together


class AttemptLimit(NamedTuple):
    """The number of failed sign-ins of an address, a name or both after which the next sign-in must wait."""

    what: Literal["address", "name", "pair"]
    key: bytes
    most: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A running control plane, with the facts that it stores about itself."""

    instance_id: str
    name: str  # host and process
    version: str
    leads: bool = False
    witnessed_ms: int | None = None  # newest time that the clocks of its proxies confirmed


@dataclass(frozen=True, slots=True)
class RunningInstance:
    instance: Instance
    started_ms: int
    seen_ms: int


# The chain of audit events

What = Literal["changed", "removed", "inserted", "reordered", "truncated", "forged"]
"""`forged`: it fits, but was not made with this store's master key. `truncated`: a known head is missing."""


class Misfit(msgspec.Struct, rename="camel", frozen=True):
    """The first mismatch in an audit chain: a link or an event that the chain does not confirm."""

    what: What
    explanation: str
    link: int | None = None
    position: int | None = None  # position of the event, or of the first event if the whole block is affected
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of a verification along the audit chain."""

    number: int = 0
    link: bytes = BEFORE_THE_FIRST
    position: int = 0  # position of the last block
    events: int = 0
    purged: int = 0


@dataclass(frozen=True, slots=True)
class Purges:
    """Time of an organisation's last purge, and the latest receipt time among the purged events."""

    last_ms: int
    received_ms: int

    @property
    def until_ms(self) -> int:
        """Return a time after which no purged event happened, according to the times in the events.

        Each purged event was older than the shortest retention. Unless the clock of a proxy was ahead, each
        purged event happened before the control plane received it.
        """
        return min(self.received_ms + MOST_AHEAD_MS, self.last_ms - RETENTION_MS["base"])


@dataclass(frozen=True, slots=True)
class ChainHead:
    newest: Link
    events: int  # number of events that the chain covers
    purged: int  # number of purged events among them


@dataclass(frozen=True, slots=True)
class ChainCheck:
    checked_ms: int
    links: int
    events: int
    misfit: Misfit | None


class ArchiveRange(NamedTuple):
    """Consecutive whole blocks of events, of all organisations, for an archive."""

    upto: int  # position of the last event
    is_full: bool  # the range has as much as may be written at once
    received_ms: int  # receipt of the first block


@dataclass(frozen=True, slots=True)
class ChainedBlock:
    """A block of the audit chain, with only those events that were not deleted."""

    events: tuple[bytes | None, ...]  # None: the event is gone, or the block is damaged
    digests: tuple[bytes, ...]  # SHA-256 of each event as it was received

    @property
    def size(self) -> int:
        return sum(len(event) for event in self.events if event is not None)


class ChainedLink(NamedTuple):
    link: Link
    block: ChainedBlock | None  # None: the link is that of a purge, or the whole block is gone


class LinkSpan(NamedTuple):
    """A range of links in an organisation's audit chain, by their numbers."""

    after: int  # number of the link before the first; 0 if there is none
    upto: int


@dataclass(frozen=True, slots=True)
class GivenOut:
    """A range of events that an index or an archive writes together.

    Before an index or archive first tries to write the events of a range, the store saves the range.
    """

    after: int
    upto: int  # last position that is included
    token: str  # the same for each attempt, and never used for another range


class OutboxStore(Protocol):
    """The events that a search index has not received yet, in the order in which the store received them."""

    async def events_after(self, position: int, limit: int) -> list[StoredEvent]: ...
    async def last_position(self) -> int:
        """Return the position of the newest event that the store ever had."""

    async def outbox_position(self, index: str) -> int: ...
    async def set_outbox_position(self, index: str, position: int) -> None: ...
    async def give_out(self, index: str, wanted: GivenOut) -> GivenOut | None:
        """Return the next range of events for the index.

        The method returns the same range until the caller calls finish().

        Return None if the index is no longer at the beginning of the range `wanted`.
        """

    async def finish(self, index: str, given: GivenOut) -> None: ...
    async def go_back(self, index: str, position: int) -> None: ...


class AuditStore(OutboxStore, Protocol):
    """Storage of audit events and of the reports of proxies."""

    async def commit_batch(self, batch: NewBatch, limits: RateLimits) -> Outcome:
        """Store a batch of audit events. The events are durable when the method returns.

        The store changes nothing for a batch that it refuses.
        """

    async def event(self, org_id: str, event_id: str) -> StoredEvent | None: ...
    async def blocks_between(
        self, org_id: str, from_ms: int, to_ms: int, before: BlockPlace | None
    ) -> BlockSlice:
        """Return a few MB of events from about the given time range, beginning with the latest blocks."""

    async def count_between(self, org_id: str, from_ms: int, to_ms: int) -> int:
        """Return the approximate number of the organisation's events between two points in time."""

    async def add_heartbeat(
        self, proxy_id: str, body: str, skew_ms: int | None = None, said: Said = NOTHING_SAID
    ) -> None: ...
    async def add_metrics(self, proxy_id: str, window_start: str, body: str) -> None: ...
    async def heartbeats(self, proxy_id: str, limit: int) -> list[Report]: ...
    async def metrics(self, proxy_id: str, limit: int) -> list[Report]: ...
    async def latest_reports(self, proxy_ids: Sequence[str], windows: int) -> Mapping[str, LatestReports]:
        """Return the newest heartbeat and the newest metrics of each proxy, read at one moment."""

    async def sequences(self, proxy_id: str, gap_limit: int) -> list[SequenceState]: ...
    async def received_numbers(self, org_id: str, gap_limit: int) -> Mapping[str, ReceivedNumbers]:
        """Return, for each proxy ID, the received sequence numbers of the organisation's events."""

    async def losses(self, proxy_ids: Sequence[str]) -> Mapping[str, Losses]:
        """Return the numbers of each proxy's unacknowledged faulty events, summed over its organisations."""

    async def losses_of_org(self, org_id: str) -> Losses:
        """Return how many faulty events the organisation has at all proxies, acknowledged events included."""

    async def acknowledge_losses(
        self, proxy_id: str, org_id: str, acknowledgement: Acknowledgement, expected: Losses | None
    ) -> Losses:
        """Acknowledge an organisation's missing, repeated and implausible events at a proxy.

        Return the numbers of these events. Raise Conflict if the current numbers of missing, repeated or
        implausible events differ from the numbers in `expected`.
        """

    async def purge_events(self, org_id: str, before_ms: int, limit: int) -> int:
        """Delete up to `limit` events whose receipt time and event time are both before `before_ms`.

        Also delete each event that was received before `before_ms` but has an event time after its receipt.
        Return the number of deleted events.
        """

    async def received_before(self, org_id: str, before_ms: int) -> int:
        """Return the position of the organisation's last event that was received before `before_ms`."""

    async def received_at(self, position: int) -> int | None:
        """Return the receipt time in ms of the event at a position, or None if the event was deleted."""

    async def correct_receipts(self, org_id: str, now_ms: int) -> int:
        """Set receipt times that lie in the future to the current time.

        Return the number of blocks whose receipt time was changed.
        """

    async def purge_batches(self, now_ms: int, limit: int) -> int:
        """Remove up to `limit` batch IDs that the store need not keep any longer, and return their number."""


class ArchiveSource(Protocol):
    """The part of the store from which an archive is written."""

    async def archive_range(self, after: int) -> ArchiveRange | None:
        """Return the next blocks of events after the position to archive together, or None without blocks."""

    async def orgs_between(self, after: int, upto: int) -> list[str]:
        """Return IDs of organisations whose audit chains have links for blocks between two event positions.

        The result includes an organisation even if retention has deleted all its blocks between these
        positions.
        """

    async def links_between(self, org_id: str, after: int, upto: int) -> LinkSpan:
        """Return the chain links after the link of an earlier block and before the link of a later block.

        After this call, purges may add more links to the chain after the link of the last block.
        """

    async def chained_blocks(self, org_id: str, span: LinkSpan) -> list[ChainedLink]:
        """Return the first chain links of the range with their blocks, up to a few MB of blocks."""

    async def chain_link(self, org_id: str, number: int) -> Link | None: ...
    async def fix_range(self, archive: str, after: int, upto: int) -> int:
        """Save `upto` as the end of the event range that an archive writes next, and return the range's end.

        If an earlier call saved an end for a range with the same start `after`, return the earlier end. The
        store keeps this saved end until the archive requests a range with a different start.
        """


class ChainStore(ArchiveSource, Protocol):
    """Storage of the audit chains, one for each organisation, which prove the audit events."""

    def sign_links(self, key: bytes) -> None:
        """Sign all new links of the audit chains from now on."""

    async def adopt_blocks(self, org_id: str) -> int:
        """Add to the audit chain the next blocks of events that an earlier release stored.

        Return the number of events in the added blocks.
        """

    async def chained_orgs(self) -> list[str]: ...
    async def chain_head(self, org_id: str) -> ChainHead | None: ...
    async def chain_link(self, org_id: str, number: int) -> Link | None: ...
    async def chain_receipts(self, org_id: str, after: int, last: int) -> tuple[int, int] | None:
        """Return the first and last receipt times of the blocks of the given chain links, or None."""

    async def chain_purges(self, org_id: str) -> Purges | None:
        """Return the times of the purges in the organisation's audit chain, or None without a purge."""

    async def chain_has(self, org_id: str, link: bytes) -> bool: ...
    async def walk_chain(
        self, org_id: str, reached: Reached, last: int, key: bytes
    ) -> tuple[Reached, Misfit | None]:
        """Verify the next chain links up to number `last`, and stop before the first mismatch."""

    async def mismatch_at_chain_end(self, org_id: str) -> Misfit | None:
        """Return a mismatch at the end of the audit chain: stored events that no chain link covers."""

    async def note_chain_check(self, org_id: str, check: ChainCheck) -> None: ...
    async def chain_check(self, org_id: str) -> ChainCheck | None: ...


class RegistryStore(Protocol):
    """Storage of the objects that operators create.

    Each change is durable when its method returns. A method that changes a row returns the row after the
    change.

    The `find_` methods return the rows whose ID or name is exactly the given reference. The reference of an
    application can also be its client ID. Within an organisation, two objects of one kind never have the same
    name. If no organisation is given, several rows may have the name.
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
        """Replace the current keys of a proxy.

        The old keys of the proxy stay valid for `overlap_ms` milliseconds. Raise Conflict if the current keys
        of the proxy do not have the version `expected`.
        """

    async def note_key_use(self, api_key_digest: bytes, address: str) -> KeyUse | None:
        """Record that a proxy called the agent API with the API key that has the given digest.

        Return None if the key does not exist any more.

        The first call with a new key makes the older keys of the proxy expire earlier. A call with any key of
        a retired proxy ends the retirement of the proxy.
        """

    async def set_proxy_enabled(self, proxy_id: str, enabled: bool) -> Proxy: ...
    async def grant(self, proxy_id: str, org_id: str) -> Proxy: ...
    async def revoke(self, proxy_id: str, org_id: str) -> Proxy: ...
    async def proxies(self, org_id: str | None) -> list[Proxy]:
        """Return proxies sorted by name: all proxies, or only the proxies that serve the organisation."""

    async def hands_of_proxies(self) -> Mapping[str, str]:
        """Return, for each proxy in use, an ID of the party that holds the keys of the proxy.

        Proxies that enrolled with the same enrolment token count as proxies of one party: the result has the
        ID of the token. A proxy that an operator added without an enrolment token counts as a separate party:
        the result has the ID of the proxy.
        """

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
        """Store a new version of the ruleset, unless the active version has the same text and schemas.

        Return the changes. For each root path of a service whose names the rules use, `schemas` gives the
        digest of the service's schema. Raise Conflict if the given schemas are not the current schemas of the
        organisation. Raise SecondPersonNeeded if the organisation requires a second person and `approval` is
        None, as `roll_back`, `bind_app` and `promote_shadow` do.
        """

    async def roll_back(
        self,
        ruleset_id: str,
        version: int | None,
        note: str | None,
        expected: int | None,
        approval: Approval | None = None,
    ) -> Ruleset:
        """Store a new version of a ruleset with the text and the schemas of an older version."""

    async def rulesets(self, org_id: str | None) -> list[Ruleset]: ...
    async def find_rulesets(self, reference: str, org_id: str | None) -> list[Ruleset]: ...
    async def ruleset_versions(self, ruleset_id: str) -> list[RulesetVersion]:
        """Return all versions of a ruleset, newest first."""

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
        """Make the shadow ruleset of the application its active ruleset.

        Raise NotFound if the application has no shadow ruleset, and Conflict if the ruleset's name is not the
        expected name.
        """

    async def add_stop(self, stop: Stop) -> Stop:
        """Add an emergency stop.

        Return the emergency stop that is now active. If the target was stopped already, the active stop is
        the earlier stop.
        """

    async def lift_stop(self, org_id: str | None, app_id: str | None) -> bool:
        """Lift the emergency stop, and return whether there was a stop."""

    async def stops(self) -> list[Stop]: ...
    async def rotate_secret(
        self,
        app_id: str,
        secret_hash: str,
        grace_ms: int,
        expected: int | None,
        expires_ms: int | None = None,
    ) -> App:
        """Add a client secret that is valid until `expires_ms`, or for ever if `expires_ms` is None.

        Raise Conflict if the newest client secret does not have the version `expected`.
        """

    async def apps(self, org_id: str | None) -> list[App]: ...
    async def find_apps(self, reference: str, org_id: str | None) -> list[App]: ...
    async def sync_content(
        self, proxy_id: str, known_versions: Sequence[str], limits: RateLimits, generation: int | None = None
    ) -> SyncContent | str:
        """Return the sync content for the proxy, or only the content's version if the proxy has it already.

        If the caller has just read the registry's generation number, `generation` is this number.
        """

    async def sync_version(
        self, proxy_id: str, limits: RateLimits, generation: int | None = None
    ) -> str | None:
        """Return the version of the proxy's sync content; None until the proxy has requested the content."""

    async def master_key_check(self, sealed: bytes) -> bytes:
        """Return the store's check text, which was encrypted with the store's master key.

        The check text shows if a control plane has the right master key. If the store has no check text yet,
        first save the encrypted text `sealed` as the check text.
        """

    async def has_master_key(self) -> bool:
        """Return whether the master key has ever sealed a text of this store."""

    async def replace_master_key_check(self, sealed: bytes) -> None: ...


class CredentialStore(Protocol):
    """Storage of the credentials of all applications.

    Client secrets have credential IDs too (`controlplane.names.secret_id`). Each method that changes
    something raises NotFound if the application or its credential was deleted.
    """

    async def add_credential(self, app_id: str, credential: AppCredential, identity: str) -> App:
        """Add a credential to an application.

        Raise AlreadyExists if the application has a credential of the same kind with the same identity. Raise
        Conflict if the application has as many credentials as are allowed.
        """

    async def end_credential(self, app_id: str, credential_id: str, ends_ms: int) -> App:
        """Set the time at which a credential expires.

        If the credential is a client secret, older secrets of the application expire no later than this
        secret.
        """

    async def remove_credential(self, app_id: str, credential_id: str) -> App: ...
    async def credential_uses(self, app_ids: Sequence[str]) -> Mapping[str, CredentialUses]: ...
    async def ending_credentials(
        self, org_ids: Collection[str] | None, until_ms: int
    ) -> list[EndingCredential]:
        """Return credentials that expire before `until_ms`, of enabled applications, sorted by expiry."""


class EnrolmentStore(Protocol):
    """Storage of enrolment tokens, and of the proxies that enrolled with them."""

    async def add_enrolment_token(self, token: EnrolmentToken, digest: bytes) -> None: ...
    async def enrolment_tokens(self) -> list[EnrolmentToken]:
        """Return all enrolment tokens, the newest first."""

    async def find_enrolment_tokens(self, reference: str) -> list[EnrolmentToken]: ...
    async def enrolment_token(self, digest: bytes) -> EnrolmentToken | None: ...
    async def revoke_enrolment_token(self, token_id: str, *, with_proxies: bool) -> EnrolmentToken:
        """Revoke the enrolment token in one transaction.

        If `with_proxies` is True, also disable the proxies that enrolled with the token.
        """

    async def proxies_by_token(self, token_id: str) -> list[Proxy]: ...
    async def enrol(
        self, enrolment: Enrolment, keys_for: Callable[[str], NewKeys]
    ) -> Enrolled | EnrolmentRefusal | TooSoon:
        """Add the proxy that requests an enrolment.

        If a proxy with the same enrolment ID exists and has never sent a request, give the new keys to that
        proxy. `keys_for` makes the keys of a proxy from its proxy ID.
        """

    async def renew_keys(self, renewal: Renewal, keys: NewKeys) -> Enrolled | RenewalRefusal | TooSoon:
        """Replace the keys of a proxy that enrolled with a token.

        Return a RenewalRefusal if the keys that signed the request can't be renewed.
        """

    async def retire_silent(self, now_ms: int) -> int:
        """Retire some of the proxies that sent nothing for the time that their enrolment token allows.

        Return their number.
        """


class SchemaStore(Protocol):
    """Storage of schemas of graph APIs.

    Changes of schemas are durable when the method that makes them returns.
    """

    async def add_schema(self, org_ids: Sequence[str], schema: NewSchema) -> Mapping[str, str | None]:
        """Make a schema the current schema of its root path in each organisation.

        Return, by organisation ID, the digest of the replaced schema, or None if the organisation had no
        schema for the root path. Raise Conflict if an organisation would have too many schemas. The earlier
        schema stays stored, and so does each schema that a ruleset version names.
        """

    async def org_schemas(self, org_id: str | None) -> list[OrgSchema]:
        """Return all schemas, or only the schemas of the given organisation.

        For each root path, the current schema comes first.
        """

    async def current_schemas(self, org_id: str) -> PackedSchemas: ...
    async def version_schemas(self, ruleset_id: str, version: int) -> PackedSchemas:
        """Return the schemas that a ruleset version names."""

    async def packed_schema(self, digest: str) -> bytes | None: ...
    async def schema_uses(self, org_id: str, root: str) -> list[SchemaUse]:
        """Return an organisation's ruleset versions that name a schema with the given root path."""


class OperatorStore(Protocol):
    """Storage of operators, and of the operator log.

    The changes that a method makes are durable when the method returns.
    """

    async def add_operator(self, operator: Operator) -> None: ...
    async def operators(self) -> list[Operator]: ...
    async def operator(self, reference: str) -> Operator | None:
        """Return the operator with this ID or name. Upper and lower case letters count as equal."""

    async def set_password(self, operator_id: str, password_hash: str | None) -> None:
        """Set the password of an operator, which ends the operator's sessions."""

    async def set_operator_enabled(self, operator_id: str, enabled: bool) -> None:
        """Enable or disable an operator. Enabling or disabling an operator ends the operator's sessions.

        Raise Conflict if the change would leave no operator who is admin over all organisations.
        """

    async def set_role(self, operator_id: str, org_id: str, role: Role) -> None:
        """Set the role of the operator in an organisation.

        Raise Conflict if the change would leave no operator who is admin over all organisations.
        """

    async def remove_role(self, operator_id: str, org_id: str) -> None:
        """Remove the role of the operator in an organisation.

        Raise Conflict if the change would leave no operator who is admin over all organisations.
        """

    async def operator_of_subject(self, issuer: str, subject: str) -> Operator | None: ...
    async def operator_linked_to(self, issuer: str, subject: str) -> Operator | None: ...
    async def link_operator(self, operator_id: str, issuer: str, subject: str) -> None:
        """Replace the link of a local operator to a person of an identity provider.

        Raise AlreadyExists if the person is linked to another operator.
        """

    async def link_first_sign_in(self, operator_id: str, issuer: str, subject: str) -> bool:
        """Link a local operator to a person if the operator has neither a link nor a password.

        Return False if the operator has a password or a link to a person.
        """

    async def unlink_operator(self, operator_id: str) -> None:
        """Remove the link of a local operator to a person, and end the operator's sessions."""

    async def set_provided(
        self, operator_id: str, display_name: str, roles: Sequence[ProvidedRole], until_ms: int
    ) -> None:
        """Replace all roles that an operator has from an identity provider.

        If the operator has no role any more, the operator's sessions end.
        """

    async def add_session(self, digest: bytes, operator_id: str, password_hash: str | None = None) -> bool:
        """Add a sign-in session, unless the operator's password has changed.

        A new password ends the sessions that began with the old password.
        """

    async def session(self, digest: bytes) -> Session | None: ...
    async def use_session(self, digest: bytes) -> None: ...
    async def remove_session(self, digest: bytes) -> None: ...
    async def purge_sessions(self, created_before_ms: int, used_before_ms: int, limit: int) -> int: ...
    async def add_token(self, token: OperatorToken, digest: bytes) -> None: ...
    async def tokens(self, operator_id: str) -> list[OperatorToken]: ...
    async def token(self, digest: bytes) -> OperatorToken | None: ...
    async def remove_token(self, token_id: str) -> None: ...
    async def begin_log_line(self, record: NewLogLine) -> int:
        """Add a line without an outcome to the operator log, and return the position of the line."""

    async def end_log_line(
        self, position: int, outcome: str, org_ids: Sequence[str], result: str | None = None
    ) -> None: ...
    async def add_sign_in_line(
        self, record: NewLogLine, outcome: str, bound: LogBound | None, org_ids: Sequence[str] = ()
    ) -> None:
        """Add a complete line to the operator log, unless the log has as many lines as `bound` allows."""

    async def operator_log(self, query: LogQuery) -> list[LogLine]: ...
    async def purge_record(self, before_ms: int, limit: int) -> int: ...
    async def begin_attempt(self, keys: SignInKeys, limits: Sequence[AttemptLimit], window_ms: int) -> int:
        """Count a sign-in as failed until `forgive_attempt` is called, and return 0.

        If a limit is reached, write nothing. Return the milliseconds until a sign-in attempt is allowed
        again.
        """

    async def forgive_attempt(self, keys: SignInKeys) -> None:
        """Delete the newest sign-in attempt, because the sign-in succeeded.

        Earlier failed sign-ins with the same user name and address no longer count against that pair.
        """


class UsageStore(Protocol):
    """Storage of the use counts of applications and rules."""

    async def app_usage(self, app_ids: Sequence[str], from_day: int) -> Mapping[str, AppUsage]: ...
    async def rule_usage(self, ruleset_id: str, from_day: int) -> RuleUsage: ...
    async def oldest_events(self, org_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the time in ms of the oldest event of each organisation that has events."""

    async def purge_usage(self, before_day: int) -> int:
        """Delete the use counts of days before `before_day`, and return their number."""


class ListStore(Protocol):
    """Storage that returns organisations, proxies, applications and other objects as pages of a list."""

    async def list_orgs(self, query: ListQuery) -> ListPage[Org]: ...
    async def list_proxies(
        self, query: ListQuery, fleet: FleetQuery | None = None, standing: Standing = "active"
    ) -> ListPage[Proxy]:
        """Return a page of the proxies that serve one of the query's organisations.

        `fleet` is needed to sort the list or select proxies by health.
        """

    async def list_rulesets(self, query: ListQuery) -> ListPage[RulesetSummary]: ...
    async def list_apps(self, query: ListQuery, chosen_apps: AppQuery = EVERY_APP) -> ListPage[App]: ...
    async def list_operators(
        self, query: ListQuery, name: str | None, org_id: str | None = None
    ) -> ListPage[Operator]:
        """Return a page of the list of operators.

        The page has the operator with the given name, and operators with a role in one of the query's
        organisations. `org_id` restricts the page to operators with a role in that organisation or in every
        organisation.
        """

    async def count_proxies(
        self, bounds: HealthBounds, org_ids: frozenset[str] | None, search: str | None = None
    ) -> Mapping[Health, int]:
        """Return the number of proxies with each state of health.

        Proxies count only if they are not retired, serve one of the organisations and match the search text.
        """


class Peers(Protocol):
    """The control planes that share the store, as one control plane sees them.

    One of the control planes is the leader. Each control plane announces to the other control planes which
    events it stored.
    """

    @property
    def leads(self) -> bool:
        """Return whether this control plane is the leader."""

    async def until_leading(self) -> None: ...
    async def until_not_leading(self) -> None: ...
    def announce(self) -> None:
        """Announce soon to other control planes that this control plane has stored events."""

    async def run(self, on_events: Callable[[], None]) -> None:
        """Try to become the leader, and call `on_events` when other control planes stored events."""

    async def close(self) -> None: ...


class InstanceStore(Protocol):
    """Storage of data about the control planes that share the store."""

    @property
    def is_shared(self) -> bool:
        """Return whether several control planes may use the store at the same time."""

    def join(self) -> Peers:
        """Join the group of control planes that share the store.

        Raise StoreError if another control plane uses a store that can't be shared. The caller must close the
        store first, and then the returned object.
        """

    def use_as(self, instance_id: str) -> None:
        """Set the ID of the control plane that uses the store from now on."""

    async def note_instance(self, instance: Instance) -> int:
        """Record that the control plane runs, and return the time of the database."""

    async def remove_instance(self, instance_id: str) -> None: ...
    async def running_instances(self) -> list[RunningInstance]:
        """Return the control planes that were seen recently, the oldest first."""


class TombstoneStore(Protocol):
    """Deletions of objects, and the tombstones that the deletions leave.

    `by` is the name of the operator who deletes the object. A deletion raises NotFound if the object was
    deleted already.
    """

    async def delete_app(self, app_id: str, by: str) -> Tombstone:
        """Delete an application, and reject the open proposals for it."""

    async def delete_ruleset(self, ruleset_id: str, by: str, expected: int | None) -> Tombstone:
        """Delete a ruleset of an organisation.

        Raise Conflict if the ruleset is in use, or if the ruleset's active version is not `expected`.
        """

    async def ruleset_users(self, ruleset_id: str) -> list[str]:
        """Return the reasons why the ruleset can't be deleted, as texts for a person."""

    async def delete_org(self, org_id: str, by: str) -> Tombstone:
        """Delete an organisation that has no applications.

        Raise Conflict if the organisation has applications.
        """

    async def delete_proxy(self, proxy_id: str, by: str) -> Tombstone: ...
    async def delete_operator(self, operator_id: str, by: str) -> Tombstone:
        """Delete an operator's account.

        Raise Conflict if the operator is the last admin over all organisations.
        """

    async def delete_schema(self, org_id: str, root: str) -> str:
        """Delete an organisation's current schema of the service at the path `root`, and return its digest.

        Raise Conflict if an active ruleset names the schema.
        """

    async def tombstones(self, ids: Collection[str]) -> list[Tombstone]: ...
    async def tombstones_named(self, name: str) -> list[Tombstone]:
        """Return the tombstones of deleted objects with exactly the given name, the latest first."""

    async def tombstones_of(self, kind: TombstoneKind) -> list[Tombstone]: ...
    async def purge_tombstones(self, now_ms: int, log_kept_ms: int) -> int:
        """Remove the tombstones that no stored data names any more, and return their number."""


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
    """The system of record of the control plane: all parts of the store together."""

    async def ping(self) -> None: ...
    async def tally(self, most: int) -> Tally:
        """Return the facts for external monitoring, with the `most` proxies that most need attention."""

    async def together(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Make all changes of `work` in one transaction: if one change fails, no change is made.

        The function `work` must use the store that it receives as an argument, and must wait only for
        operations of that store. `work` runs again if the connection to the database was lost before anything
        was committed.
        """

    async def close(self) -> None: ...
