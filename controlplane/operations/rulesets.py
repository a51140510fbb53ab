"""Rulesets: apply a text as a new version, show and list rulesets, and roll back to a version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from controlplane.names import new_id
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import ProblemFacts, name_problems, parsed, problem_line
from controlplane.operations.lists import ListRequest, ListResponse, by_column, read_list
from controlplane.operations.models import schemas_of
from controlplane.operations.naming import add_named
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.second_person import propose
from controlplane.operations.worker_process import run_change
from controlplane.store.interface import (
    NO_NAMES,
    Applied,
    Approval,
    Conflict,
    NotFound,
    Org,
    PackedSchemas,
    Proposal,
    ProposalKind,
    Ruleset,
    RulesetSummary,
    RulesetVersion,
    SecondPersonNeeded,
)
from controlplane.usage import day_of
from controlplane.workshop.advice import ruleset_advice
from controlplane.workshop.thing_problems import thing_problems
from proxy.policy.schemas import needs_schemas
from proxy.wire.audit_event import rfc3339

_LONGEST_NOTE: Final = 1000
USAGE_DAYS: Final = 30


class RulesetFacts(Response):
    ruleset_id: str
    name: str
    version: int  # the active version


class NamedSchema(msgspec.Struct, rename="camel"):
    """Schema against which a ruleset version was published, and which the version continues to use."""

    root: str
    digest: str
    fetched_at: str | None
    source: str | None


class AppliedRuleset(RulesetFacts, omit_defaults=True):
    changed: bool  # false if text and schemas equal the active ones
    warnings: tuple[ProblemFacts, ...]  # possible mistakes in the rules
    schemas: tuple[NamedSchema, ...] = ()  # left out if the rules name no things of a schema
    new_schemas_alone: bool = False  # true if only the schemas change, and the text is the active one
    proposal: str | None = None  # id of the proposal if a second person must approve; nothing is active yet


class RolledBack(RulesetFacts, omit_defaults=True):
    proposal: str | None = None  # id of the proposal if a second person must approve; nothing is active yet


class ListedRuleset(RulesetFacts):
    org_id: str
    rules: int


class RulesetRow(ListedRuleset):
    changed_at: str  # time at which the active version was applied
    note: str | None  # reason for the active version
    apps: int  # number of applications that it evaluates


class RulesetList(ListResponse):
    rulesets: tuple[RulesetRow, ...]


class RulesetText(ListedRuleset, omit_defaults=True):
    created_at: str
    yaml: str
    note: str | None
    schemas: tuple[NamedSchema, ...] = ()  # left out if the rules name no things of a schema


class VersionFacts(msgspec.Struct, rename="camel"):
    version: int
    created_at: str
    rules: int
    rolled_back_to: int | None
    in_force: bool
    note: str | None


class RulesetHistory(Response):
    versions: tuple[VersionFacts, ...]  # newest first


class RuleUseFacts(msgspec.Struct, rename="camel"):
    """Number of requests that a rule decided or logged."""

    rule: str
    hits: int  # number of requests in the period
    last_hit: str


class RulesetUsage(Response):
    """Usage of each rule of a ruleset, by rule ID, including rules of earlier versions.

    The usage list of a ruleset omits rules that no request matched in 90 days.
    """

    days: int  # length of the period until now
    counted_since: str  # start of the counts: earlier requests were not counted
    rules: tuple[RuleUseFacts, ...]


class ApplyRuleset(Request):
    org: str
    yaml: str
    note: str | None = None  # reason for the change, stored with the version
    label: str = "yaml"  # name of the text in messages
    expected: int | None = None  # active version; refused if it is another one. 0: no version is active


class ListRulesets(ListRequest):
    org: str | None = None
    sort: Annotated[str, by_column("rulesets")] | None = None


class RulesetReference(Request):
    ruleset: str  # id or name
    org: str | None = None


class ShowRuleset(RulesetReference):
    version: int | None = None  # version to show; default: the active one


class RollBack(RulesetReference):
    to: int | None = None  # default: the version before the active one
    note: str | None = None
    expected: int | None = None  # active version; refused if it is another one


@dataclass(frozen=True, slots=True)
class ReadRuleset:
    """A valid ruleset that was read from its text."""

    name: str
    rules: int
    warnings: tuple[ProblemFacts, ...]
    needs_schemas: bool


@operation("ruleset.apply", "POST", "/rulesets")
async def apply(context: OperationContext, actor: Actor, request: ApplyRuleset) -> AppliedRuleset:
    """Validate a ruleset and activate it as a new version.

    The YAML key `name` in the ruleset text gives the name of the ruleset.
    """
    org = await context.resolve.org(actor, "editor", request.org)
    current, now = await context.store.current_schemas(org.org_id), context.clock.wall_ms()
    read = await run_change(actor, read_ruleset, request.label, request.yaml, now / 1000, current)
    # Reading a large text may take long, and the actor's roles may have changed since it began.
    return await publish(context, await context.refresh_roles(actor), request, read, current)


async def publish(
    context: OperationContext,
    actor: Actor,
    request: ApplyRuleset,
    read: ReadRuleset,
    current: PackedSchemas,
) -> AppliedRuleset:
    """Activate a ruleset that was read from the request's text, with the current schemas."""
    org = await context.resolve.org(actor, "editor", request.org)
    schemas = _schemas_for(read, org, current)
    note, now = _note(request.note), context.clock.wall_ms()
    new = Ruleset(new_id(context.clock), org.org_id, read.name, 1, read.rules, now)
    proposal = None
    try:
        applied, what = await add_named(
            context.store,
            new.name,
            lambda store: store.rulesets(org.org_id),
            lambda store: store.apply_ruleset(new, request.yaml, note, request.expected, schemas),
        )
        context.results.append(_in_words(applied, what))
    except SecondPersonNeeded as needed:
        applied, what = _base_of(needed), "nothing"
        proposal = await _propose(context, actor, "publish", applied, note, yaml=request.yaml)
        context.results.append(f"proposed {applied.name} version {applied.version + 1}")
    return AppliedRuleset(
        ruleset_id=applied.ruleset_id,
        name=applied.name,
        version=applied.version,
        changed=what != "nothing",
        warnings=read.warnings,
        schemas=await _named(context, org.org_id, schemas),
        new_schemas_alone=what == "schemas",
        proposal=proposal,
    )


def _base_of(needed: SecondPersonNeeded) -> Ruleset:
    """Return the ruleset on which the proposed change is based; version 0 if the ruleset is new."""
    assert needed.change is not None
    return replace(needed.change, version=needed.change.version - 1)


async def _propose(
    context: OperationContext,
    actor: Actor,
    kind: ProposalKind,
    base: Ruleset,
    note: str | None,
    *,
    yaml: str | None = None,
    to_version: int | None = None,
) -> str:
    """Store a change of a ruleset as a proposal that a second person must approve. Return the proposal ID."""
    return await propose(
        context,
        actor,
        kind,
        base.org_id,
        base.ruleset_id,
        base.name,
        note,
        base_version=base.version,
        yaml=yaml,
        to_version=to_version,
    )


def _in_words(applied: Ruleset, changed: Applied) -> str:
    """Return a line of text that describes what changed when a ruleset text was applied."""
    if changed == "nothing":
        return f"{applied.name} unchanged: version {applied.version} stays active"
    alone = ": the text is unchanged, a schema is new" if changed == "schemas" else ""
    return f"published {applied.name} version {applied.version}{alone}"


async def active_of(context: OperationContext, org_id: str, name: str) -> Ruleset | None:
    """Return the ruleset with exactly the given name, and its active version."""
    found = await context.store.find_rulesets(name, org_id)
    return next((each for each in found if each.name == name), None)


async def activate_proposed(
    context: OperationContext, actor: Actor, proposal: Proposal, approval: Approval
) -> None:
    """Activate the ruleset text of an approved proposal.

    Raise Conflict if the version on which the proposal is based is no longer active.
    """
    by = f", proposed by {proposal.proposed_by}"
    if proposal.kind == "rollback":
        rolled = await context.store.roll_back(
            proposal.ruleset_id, proposal.to_version, proposal.note, proposal.base_version, approval
        )
        context.results.append(_rolled_back(rolled, proposal.to_version) + by)
        return
    yaml, now = proposal.yaml or "", context.clock.wall_ms()
    current = await context.store.current_schemas(proposal.org_id)
    read = await run_change(actor, read_ruleset, "proposal", yaml, now / 1000, current)
    # Reading a large text may take long, and the actor's roles may have changed since it began.
    org = await context.resolve.org(await context.refresh_roles(actor), "editor", proposal.org_id)
    schemas = _schemas_for(read, org, current)
    new = Ruleset(proposal.ruleset_id, org.org_id, proposal.ruleset, 1, read.rules, now)
    applied, what = await context.store.apply_ruleset(
        new, yaml, proposal.note, proposal.base_version, schemas, approval
    )
    context.results.append(_in_words(applied, what) + by)


def _schemas_for(read: ReadRuleset, org: Org, current: PackedSchemas) -> Mapping[str, str]:
    """Return the schemas that a new version of the ruleset names.

    Raise Conflict if the ruleset needs a schema and the organisation has none.
    """
    if not read.needs_schemas:
        return NO_NAMES
    if not current.digests:
        raise Conflict(
            f"ruleset {read.name}: its rules name elements of a schema, but organisation {org.name}"
            " has no schema:"
            f" store a schema with `model fetch URL --org {org.name}`, then apply the ruleset again"
        )
    return current.digests


async def _named(
    context: OperationContext, org_id: str, schemas: Mapping[str, str]
) -> tuple[NamedSchema, ...]:
    if not schemas:
        return ()
    held = {(each.root, each.digest): each for each in await context.store.org_schemas(org_id)}
    named = []
    for root, digest in schemas.items():
        found = held.get((root, digest))
        fetched_at = None if found is None else rfc3339(found.fetched_ms)
        named.append(NamedSchema(root, digest, fetched_at, None if found is None else found.source))
    return tuple(named)


@operation("ruleset.list", "GET", "/rulesets")
async def list_all(context: OperationContext, actor: Actor, request: ListRulesets) -> RulesetList:
    """List all rulesets, or one page of rulesets, with their active version."""
    org_ids = await context.resolve.sight(actor, request.org)
    found = await read_list("rulesets", request, org_ids, context.store.list_rulesets)
    return RulesetList(rulesets=tuple(map(_listed, found.rows)), **found.place)


@operation("ruleset.show", "GET", "/rulesets/{ruleset}")
async def show(context: OperationContext, actor: Actor, request: ShowRuleset) -> RulesetText:
    """Show the text of a ruleset: the active version, or the version in the request."""
    found = await context.resolve.ruleset(actor, "viewer", request.ruleset, request.org)
    wanted = found.version if request.version is None else request.version
    versions = await context.store.ruleset_versions(found.ruleset_id)
    version = next((each for each in versions if each.version == wanted), None)
    yaml = await context.store.ruleset_text(found.ruleset_id, wanted)
    schemas = await context.store.version_schemas(found.ruleset_id, wanted)
    if version is None or yaml is None:
        raise NotFound(f"ruleset {found.name} has no version {wanted}")
    return RulesetText(
        ruleset_id=found.ruleset_id,
        name=found.name,
        version=version.version,
        org_id=found.org_id,
        rules=version.rule_count,
        created_at=rfc3339(version.created_ms),
        yaml=yaml,
        note=version.note,
        schemas=await _named(context, found.org_id, schemas.digests),
    )


@operation("ruleset.usage", "GET", "/rulesets/{ruleset}/usage")
async def usage(context: OperationContext, actor: Actor, request: RulesetReference) -> RulesetUsage:
    """Count the hits of each rule in the last 30 days, with its last hit in the last 90 days."""
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, request.org)
    from_day = day_of(context.clock.wall_ms()) - USAGE_DAYS
    found = await context.store.rule_usage(ruleset.ruleset_id, from_day)
    return RulesetUsage(
        days=USAGE_DAYS,
        counted_since=rfc3339(found.since_ms),
        rules=tuple(
            RuleUseFacts(rule, hits, rfc3339(last_ms))
            for rule, (hits, last_ms) in sorted(found.rules.items())
        ),
    )


@operation("ruleset.history", "GET", "/rulesets/{ruleset}/history")
async def history(context: OperationContext, actor: Actor, request: RulesetReference) -> RulesetHistory:
    """List every version of a ruleset, newest first."""
    found = await context.resolve.ruleset(actor, "viewer", request.ruleset, request.org)
    versions = await context.store.ruleset_versions(found.ruleset_id)
    return RulesetHistory(versions=tuple(_version(each, each.version == found.version) for each in versions))


@operation("ruleset.rollback", "POST", "/rulesets/{ruleset}/rollback")
async def rollback(context: OperationContext, actor: Actor, request: RollBack) -> RolledBack:
    """Activate the text of an older version again, as a new version."""
    found = await context.resolve.ruleset(actor, "editor", request.ruleset, request.org)
    note = _note(request.note)
    try:
        new = await context.store.roll_back(found.ruleset_id, request.to, note, request.expected)
    except SecondPersonNeeded as needed:
        base = _base_of(needed)
        to = base.version - 1 if request.to is None else request.to
        proposal = await _propose(context, actor, "rollback", base, note, to_version=to)
        said = f"proposed {base.name} version {base.version + 1} with the text of version {to}"
        context.results.append(said)
        return RolledBack(ruleset_id=base.ruleset_id, name=base.name, version=base.version, proposal=proposal)
    context.results.append(_rolled_back(new, request.to))
    return RolledBack(ruleset_id=new.ruleset_id, name=new.name, version=new.version)


def _rolled_back(new: Ruleset, to: int | None) -> str:
    text_of = new.version - 2 if to is None else to
    return f"published {new.name} version {new.version} with the text of version {text_of}"


def read_ruleset(label: str, yaml: str, now: float, current: PackedSchemas) -> ReadRuleset:
    """Return a ruleset in parsed form, with its label and text.

    Raise InvalidRequest if the ruleset is not valid, or names types or properties that the schemas lack.
    """
    ruleset = parsed(label, yaml)
    if problems := name_problems(yaml, ruleset.name):
        raise InvalidRequest(*(problem_line(label, each) for each in problems))
    needs = needs_schemas(ruleset)
    if needs and current.digests:
        unknown = thing_problems(yaml, ruleset, schemas_of(current))
        if unknown:
            raise InvalidRequest(*(problem_line(label, each) for each in unknown))
    warnings = tuple(
        ProblemFacts(each.line, each.column, each.where, each.message)
        for each in ruleset_advice(yaml, ruleset, now)
    )
    return ReadRuleset(ruleset.name, len(ruleset.rules), warnings, needs)


def _note(note: str | None) -> str | None:
    if note is not None and len(note) > _LONGEST_NOTE:
        raise InvalidRequest(f"note: must have at most {_LONGEST_NOTE} characters")
    return note or None


def _listed(summary: RulesetSummary) -> RulesetRow:
    ruleset = summary.ruleset
    return RulesetRow(
        ruleset_id=ruleset.ruleset_id,
        name=ruleset.name,
        version=ruleset.version,
        org_id=ruleset.org_id,
        rules=ruleset.rule_count,
        changed_at=rfc3339(summary.changed_ms),
        note=summary.note,
        apps=summary.apps,
    )


def _version(version: RulesetVersion, in_force: bool) -> VersionFacts:
    return VersionFacts(
        version=version.version,
        created_at=rfc3339(version.created_ms),
        rules=version.rule_count,
        rolled_back_to=version.rolled_back_to,
        in_force=in_force,
        note=version.note,
    )
