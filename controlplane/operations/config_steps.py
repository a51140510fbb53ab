"""Operations that make the changes of a configuration plan.

Each operation of the plan has its own line in the operator log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from controlplane.as_code.plan import Change
from controlplane.as_code.wanted import (
    CREDENTIAL_LISTS,
    Wanted,
    WantedApp,
    WantedCertificate,
    WantedCredential,
    WantedFederated,
    WantedKey,
    WantedOrg,
    WantedSchema,
    as_end,
)
from controlplane.names import InvalidName
from controlplane.operations import apps, credentials, deletions, models, operators, orgs, proxies, rulesets
from controlplane.operations.actor import Actor, Forbidden, Role
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Operation, Request, Response
from controlplane.operations.perform import masked
from controlplane.operations.worker_process import run_change
from controlplane.store.interface import (
    AlreadyExists,
    Conflict,
    NewLogLine,
    NotFound,
    PackedSchemas,
    Retention,
)

Q = TypeVar("Q", bound=Request)
A = TypeVar("A", bound=Response)
_Do = Callable[[OperationContext, Actor], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Step:
    """An operation that a plan performs, and the change of the plan that needs this operation."""

    change: Change
    operation: Operation[Any, Any]
    request: Request
    do: _Do


@dataclass(frozen=True, slots=True)
class Prepared:
    """Results of slow work, such as hashing a secret, that the changes of a plan need.

    The slow work of a plan ends before the plan's transaction begins.
    """

    rulesets: Mapping[tuple[str, str], rulesets.ReadRuleset]  # rulesets by organisation and name
    schemas: Mapping[tuple[str, str], models.ReadSchema]  # schemas by organisation and root path
    current: Mapping[str, PackedSchemas]  # schemas of each organisation after the new ones are stored
    secrets: Sequence[apps.ClientSecret]  # one for each new app


@dataclass(frozen=True, slots=True)
class Done:
    """One operation that a plan performed, and the response of this operation."""

    step: Step
    response: Response


async def prepare(
    context: OperationContext,
    actor: Actor,
    wanted: Wanted,
    changes: Sequence[Change],
    new_secret: Callable[[], apps.ClientSecret],
) -> Prepared:
    """Check the rulesets and schemas that a plan changes, and make secrets for the plan's new apps.

    Raise InvalidRequest with every problem in the texts of all rulesets and schemas of the request.
    """
    read: dict[tuple[str, str], rulesets.ReadRuleset] = {}
    schemas: dict[tuple[str, str], models.ReadSchema] = {}
    current: dict[str, PackedSchemas] = {}
    problems: list[str] = []
    for org in wanted.organisations:
        own = [each for each in changes if each.org == org.name and each.action != "delete"]
        for change in own:
            if change.kind == "schema":
                schemas[org.name, change.name] = await _read_schema(actor, _schema_of(org, change.name))
        if not any(change.kind == "ruleset" for change in own):
            continue
        current[org.name] = await _current(context, actor, org, schemas)
        texts = {each.name: each for each in org.rulesets or ()}
        for change in own:
            if change.kind != "ruleset":
                continue
            ruleset, now = texts[change.name], context.clock.wall_ms() / 1000
            try:
                found = await run_change(
                    actor, rulesets.read_ruleset, ruleset.file, ruleset.yaml, now, current[org.name]
                )
            except InvalidRequest as error:
                problems += error.problems
                continue
            if found.name != ruleset.name:
                problems.append(f"{ruleset.file}: its name is {found.name} instead of {ruleset.name}")
            read[org.name, ruleset.name] = found
    if problems:
        raise InvalidRequest(*problems)
    new_apps = sum(
        1
        for each in changes
        if (each.kind, each.action) == ("app", "add") and each.gate == "none" and _gets_secret(each)
    )
    secrets = await asyncio.to_thread(lambda: [new_secret() for _ in range(new_apps)])
    return Prepared(read, schemas, current, secrets)


def _schema_of(org: WantedOrg, root: str) -> WantedSchema:
    return next(each for each in org.schemas or () if each.root == root)


async def _read_schema(actor: Actor, schema: WantedSchema) -> models.ReadSchema:
    if schema.document is None:
        raise InvalidRequest(f"{schema.file}: the document of the new schema is missing")
    read = await run_change(actor, models.read_schema, schema.file, schema.document)
    if read.digest != schema.digest:
        raise InvalidRequest(
            f"{schema.file}: the document has the digest {read.digest} instead of {schema.digest}"
        )
    return read


async def _current(
    context: OperationContext,
    actor: Actor,
    org: WantedOrg,
    new: Mapping[tuple[str, str], models.ReadSchema],
) -> PackedSchemas:
    """Return the schemas that the organisation will have after the changes of the plan."""
    held = [each for each in await context.resolve.orgs(actor) if each.name == org.name]
    now = await context.store.current_schemas(held[0].org_id) if held else PackedSchemas({}, {})
    added = {root: read for (name, root), read in new.items() if name == org.name}
    return PackedSchemas(
        {**now.digests, **{root: read.digest for root, read in added.items()}},
        {**now.packed, **{read.digest: read.packed for read in added.values()}},
    )


def steps_of(
    wanted: Wanted, changes: Sequence[Change], prepared: Prepared, note: str | None
) -> Iterator[Step]:
    """Yield a plan's operations in the order in which the control plane performs the operations.

    Operations that switch approval by a second person on or off come after all other operations of the plan.
    So a plan can publish the first rules of a new organisation without approval.
    """
    named = {org.name: org for org in wanted.organisations}
    secrets = iter(prepared.secrets)
    for change in changes:
        if change.gate in ("proposed", "waits") and not change.is_in_force:
            continue
        match change.kind:
            case "organisation":
                yield from _org_steps(change)
            case "schema" if change.action != "delete":
                yield _schema_step(change, named[change.org or ""], prepared)
            case "ruleset" if change.action != "delete":
                yield _ruleset_step(change, named[change.org or ""], prepared, note)
            case "app" if change.action == "add":
                secret = next(secrets) if _gets_secret(change) else None
                yield from _new_app_steps(change, _app_of(named[change.org or ""], change.name), secret)
            case "app" if change.action == "change":
                yield from _app_steps(change, _app_of(named[change.org or ""], change.name))
            case "proxy" if change.action != "delete":
                yield from _proxy_steps(change)
            case "operator":
                yield from _operator_steps(change)
            case _:
                yield _deletion(change)
    for change in changes:
        needed = change.after("secondPerson")
        if needed is not None:
            yield _plain(change, orgs.set_second_person, orgs.SetSecondPerson(change.name, needed))


def _plain(change: Change, operation: Operation[Q, A], request: Q) -> Step:
    async def do(context: OperationContext, actor: Actor) -> Response:
        return await operation.perform(context, actor, request)

    return Step(change, operation, request, do)


def _org_steps(change: Change) -> Iterator[Step]:
    retention = cast("Retention | None", change.after("retention"))
    if change.action == "add":
        yield _plain(change, orgs.add, orgs.AddOrg(change.name, retention or "base"))
    elif retention is not None:
        yield _plain(change, orgs.set_retention, orgs.SetRetention(change.name, retention))


def _schema_step(change: Change, org: WantedOrg, prepared: Prepared) -> Step:
    read, file = prepared.schemas[org.name, change.name], _schema_of(org, change.name).file
    request = models.FetchModel(change.name, "", org.name, file)

    async def do(context: OperationContext, actor: Actor) -> Response:
        return await models.store_schema(context, actor, request, read)

    return Step(change, models.fetch, request, do)


def _ruleset_step(change: Change, org: WantedOrg, prepared: Prepared, note: str | None) -> Step:
    ruleset = next(each for each in org.rulesets or () if each.name == change.name)
    read, current = prepared.rulesets[org.name, ruleset.name], prepared.current[org.name]
    expected = change.after("version") - 1
    request = rulesets.ApplyRuleset(org.name, ruleset.yaml, note, ruleset.file, expected)

    async def do(context: OperationContext, actor: Actor) -> Response:
        return await rulesets.publish(context, actor, request, read, current)

    return Step(change, rulesets.apply, request, do)


def _gets_secret(change: Change) -> bool:
    return change.after("secret") is not False


def _app_of(org: WantedOrg, name: str) -> WantedApp:
    return next(each for each in org.apps or () if each.name == name)


def _new_app_steps(change: Change, app: WantedApp, secret: apps.ClientSecret | None) -> Iterator[Step]:
    request = apps.AddApp(
        change.name,
        change.org or "",
        change.after("ruleset"),
        change.after("owner"),
        change.after("note"),
        expires=change.after("secretEnds"),
        secret=secret is not None,
    )

    async def do(context: OperationContext, actor: Actor) -> Response:
        return await apps.add_with(context, actor, request, secret)

    yield Step(change, apps.add, request, do)
    if change.changes("shadow"):
        yield _plain(change, apps.shadow, apps.SetShadow(change.name, change.org, change.after("shadow")))
    if change.after("enabled") is False:
        yield _plain(change, apps.disable, apps.AppReference(change.name, change.org))
    yield from _credential_steps(change, app)


def _credential_steps(change: Change, app: WantedApp) -> Iterator[Step]:
    """Yield the operations that change an app's credentials: removals before additions.

    To change a credential, a plan removes the credential and adds it again with its new facts.
    """
    named: dict[str, Any] = {"app": change.name, "org": change.org}
    secret = next((each for each in change.members if each.name == "secretEnds" and each.before), None)
    if secret is not None:
        asked = credentials.EndCredential(**named, credential=secret.before["id"], expires=secret.after)
        yield _plain(change, credentials.end, asked)
    members = [(name, each) for name in CREDENTIAL_LISTS for each in change.members if each.name == name]
    for _, member in members:
        kept = [_facts(each) for each in member.after]
        for each in member.before:
            if _facts(each) not in kept:
                removed = credentials.CredentialReference(**named, credential=each["id"])
                yield _plain(change, credentials.remove, removed)
    for name, member in members:
        for wanted in app.credentials(name) or ():
            held = next((each for each in member.before if _facts(each) == wanted.facts), None)
            if held is None:
                yield _added(change, wanted, named)
            elif wanted.ends is not None and as_end(wanted.ends) != held.get("ends"):
                asked = credentials.EndCredential(**named, credential=held["id"], expires=as_end(wanted.ends))
                yield _plain(change, credentials.end, asked)


def _facts(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that identify a credential in a plan.

    The facts that identify a credential never change.
    """
    return {name: value for name, value in shown.items() if name not in ("id", "ends")}


def _added(change: Change, wanted: WantedCredential, named: dict[str, Any]) -> Step:
    match wanted:
        case WantedFederated():
            federated = credentials.AddFederated(
                **named,
                issuer=wanted.issuer,
                subject=wanted.subject,
                audience=wanted.audience,
                reuse=wanted.reuse,
                keys=wanted.keys or None,
                expires=wanted.ends,
            )
            return _plain(change, credentials.add_federated, federated)
        case WantedKey():
            key = credentials.AddKey(**named, key=wanted.key, expires=wanted.ends)
            return _plain(change, credentials.add_key, key)
        case WantedCertificate():
            certificate = credentials.AddCertificate(
                **named, certificate=wanted.certificate, expires=wanted.ends
            )
            return _plain(change, credentials.add_certificate, certificate)


def _app_steps(change: Change, app: WantedApp) -> Iterator[Step]:
    name, org = change.name, change.org
    if change.changes("ruleset") and change.gate != "proposed":
        request = apps.BindApp(app=name, org=org, ruleset=change.after("ruleset"))
        yield _plain(change, apps.bind, request)
    if change.changes("shadow"):
        yield _plain(change, apps.shadow, apps.SetShadow(name, org, change.after("shadow")))
    if change.changes("owner") or change.changes("note"):
        about = {
            key: change.after(key) or "" for key in ("owner", "note") if change.changes(key)
        }  # an empty text removes the fact
        yield _plain(change, apps.set_about, apps.SetApp(app=name, org=org, **about))
    if change.changes("enabled"):
        operation = apps.enable if change.after("enabled") else apps.disable
        yield _plain(change, operation, apps.AppReference(name, org))
    yield from _credential_steps(change, app)


def _proxy_steps(change: Change) -> Iterator[Step]:
    member = next((each for each in change.members if each.name == "orgs"), None)
    if change.action == "add":
        yield _plain(change, proxies.add, proxies.AddProxy(change.name, tuple(change.after("orgs"))))
    elif member is not None:
        for org in sorted(set(member.after) - set(member.before)):
            yield _plain(change, proxies.grant, proxies.OrgOfProxy(change.name, org))
        for org in sorted(set(member.before) - set(member.after)):
            yield _plain(change, proxies.revoke, proxies.OrgOfProxy(change.name, org))
    if change.changes("enabled"):
        operation = proxies.enable if change.after("enabled") else proxies.disable
        yield _plain(change, operation, proxies.ProxyReference(change.name))


def _operator_steps(change: Change) -> Iterator[Step]:
    member = next((each for each in change.members if each.name == "roles"), None)
    before: dict[str, Role] = dict((member.before or {}) if member is not None else {})
    after: dict[str, Role] = dict(member.after if member is not None else {})
    if change.action == "add":
        first = next(iter(sorted(after)), None)
        role = None if first is None else after[first]
        yield _plain(change, operators.add, operators.AddOperator(change.name, None, role, first))
        before = {} if first is None else {first: after[first]}
    for org in sorted(after):
        if before.get(org) != after[org]:
            yield _plain(change, operators.grant, operators.GrantRole(change.name, org, after[org]))
    for org in sorted(before.keys() - after.keys()):
        yield _plain(change, operators.revoke, operators.RevokeRole(change.name, org))
    if change.changes("enabled"):
        operation = operators.enable if change.after("enabled") else operators.disable
        yield _plain(change, operation, operators.OperatorReference(change.name))


def _deletion(change: Change) -> Step:
    match change.kind:
        case "app":
            app = apps.AppReference(change.name, change.org)
            return _plain(change, deletions.delete_app, app)
        case "ruleset":
            ruleset = deletions.DeleteRuleset(change.name, change.org)
            return _plain(change, deletions.delete_ruleset, ruleset)
        case "schema":
            schema = deletions.DeleteModel(change.org or "", change.name)
            return _plain(change, deletions.delete_model, schema)
        case "proxy":
            return _plain(change, deletions.delete_proxy, proxies.ProxyReference(change.name))
        case "organisation" | "operator":
            raise AssertionError("a plan can't delete an organisation or an operator")


@contextmanager
def named(change: Change) -> Iterator[None]:
    """If a change is refused, put the name of the changed object at the start of the error text."""
    try:
        yield
    except (Forbidden, InvalidName, NotFound, AlreadyExists, Conflict) as error:
        of = "" if change.org is None else f" of organisation {change.org}"
        raise type(error)(f"{change.kind} {change.name}{of}: {error}") from None


async def perform_steps(
    context: OperationContext, actor: Actor, steps: Sequence[Step], *, logged: bool
) -> list[Done]:
    """Perform the operations of a plan within one transaction.

    If `logged` is true, the operator log gets a line for each change.
    """
    done = []
    for step in steps:
        own = replace(context, about=set(), results=[])
        line = NewLogLine(actor.name, actor.address, step.operation.name, masked(step.request))
        position = await context.store.begin_log_line(line) if logged else None
        with named(step.change):
            done.append(Done(step, await step.do(own, actor)))
        if position is not None:
            result = ", ".join(own.results) or None
            await context.store.end_log_line(position, "done", sorted(own.about), result)
        context.about.update(own.about)
    return done
