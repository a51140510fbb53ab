"""Operations on configuration directories: compare, apply and export (management as code)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from controlplane.as_code.plan import Change, Difference, Unmanaged, difference, text_difference
from controlplane.as_code.present import Present, PresentApp, PresentOrg
from controlplane.as_code.wanted import (
    Wanted,
    WantedApp,
    WantedOperator,
    WantedOrg,
    WantedProxy,
    WantedRuleset,
)
from controlplane.names import InvalidName
from controlplane.operations import apps, proxies, rulesets
from controlplane.operations.actor import EVERY_ORG, Actor, Forbidden
from controlplane.operations.config_present import present_state
from controlplane.operations.config_steps import Done, named, perform_steps, prepare, steps_of
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.slots import Slots
from controlplane.operations.worker_process import run_trial
from controlplane.secrets import KEY_BYTES, Vault
from controlplane.store.interface import (
    MOST_OF_APPLY,
    AlreadyExists,
    Conflict,
    LogLine,
    LogQuery,
    NotFound,
    Store,
)
from proxy.wire.audit_event import rfc3339

_EXPECTED: Final = "Digest of the plan that was reviewed. Any other plan is refused."
MOST_CHANGES: Final = 2000  # one transaction makes all changes, and other writers wait for it
_trying: Final = Slots(1)
_NO_SECRET: Final = apps.ClientSecret("", "")
_MOST_LINES: Final = 1000  # lines of the operator log to search for the last change of a thing


class PlanConfig(Request):
    """Request to compare a configuration directory with the state of the control plane.

    If `prune` is true, a plan deletes each object that is missing from a list in the configuration directory.
    """

    config: Wanted
    prune: bool = False


class ApplyConfig(PlanConfig):
    expected: Annotated[str, msgspec.Meta(description=_EXPECTED)] | None = None
    note: str | None = None  # reason for the change, stored with each new version of a ruleset


class ExportConfig(Request):
    org: str | None = None  # default: every organisation that the actor has permission to look at


class LastChange(msgspec.Struct, rename="camel"):
    """The last change of an object, from the operator log."""

    kind: str
    org: str | None
    name: str
    time: str
    operator: str
    operation: str


class ConfigPlan(Response):
    digest: str  # digest of the changes; equal changes have equal digests
    changes: tuple[Change, ...]  # changes in the order in which they are made
    unmanaged: tuple[Unmanaged, ...]  # things that the directory does not name; `prune` deletes them
    last_changes: tuple[LastChange, ...]  # last changes of the things that are changed or deleted
    refused: tuple[str, ...] = ()
    """Reasons for which `config.apply` would refuse the changes, even with every role."""


class AppSecrets(msgspec.Struct, rename="camel", omit_defaults=True):
    org: str
    name: str
    client_id: str
    client_secret: str | None = None  # None: the directory requests an app without a secret


class ProxySecrets(msgspec.Struct, rename="camel"):
    name: str
    proxy_id: str
    api_key: str
    hmac_secret: str


class MadeProposal(msgspec.Struct, rename="camel"):
    org: str
    name: str  # name of the ruleset, or of the app that is bound to another ruleset
    proposal: str


class AppliedConfig(Response):
    """Result of applying a configuration directory.

    The result contains the new secrets, which are shown only once.
    """

    digest: str
    changes: tuple[Change, ...]
    apps: tuple[AppSecrets, ...]
    proxies: tuple[ProxySecrets, ...]
    proposals: tuple[MadeProposal, ...]


class ExportedConfig(Response):
    config: Wanted


@operation("config.plan", "POST", "/config/plan", changes=False)
async def plan(context: OperationContext, actor: Actor, request: PlanConfig) -> ConfigPlan:
    """Compare the control plane with a configuration directory, and list what `config.apply` would change."""
    present, found = await _difference(context, actor, request)
    return ConfigPlan(
        digest=found.digest,
        changes=await _with_lines(actor, request.config, present, found.changes),
        unmanaged=found.unmanaged,
        last_changes=tuple(await _last_changes(context, actor, found.changes)),
        refused=await _refused(context, actor, request.config, found),
    )


class _Undone(Exception):
    """Error that a dry run raises at its successful end, to roll back its transaction."""


async def _refused(
    context: OperationContext, actor: Actor, wanted: Wanted, planned: Difference
) -> tuple[str, ...]:
    """Make the changes of a plan and roll them back, to find out if an operation would be refused, and why.

    The dry run of a plan does not check roles. A request for a plan contains no schema documents, so a plan
    with new schemas has no dry run.
    """
    if any(each.kind == "schema" and each.action != "delete" for each in planned.changes):
        return ()
    anyone = replace(actor, roles={EVERY_ORG: "admin"})

    async def vault() -> Vault:
        return Vault(bytes(KEY_BYTES))

    async def work(store: Store) -> None:
        within = replace(_of_apply(context, store), vault=vault)
        await perform_steps(within, anyone, steps, logged=False)
        raise _Undone

    async with _trying.of(actor):
        try:
            _require_few(planned.changes)
            prepared = await prepare(context, anyone, wanted, planned.changes, lambda: _NO_SECRET)
            steps = tuple(steps_of(wanted, planned.changes, prepared, None))
            if steps:
                await context.store.together(work)
        except _Undone:
            return ()
        except InvalidRequest as error:
            return error.problems
        except (InvalidName, NotFound, AlreadyExists, Conflict) as error:
            return (str(error),)
    return ()


def _of_apply(context: OperationContext, store: Store) -> OperationContext:
    return replace(context, store=store, about=set(), results=[], most_proposals=MOST_OF_APPLY)


async def _difference(
    context: OperationContext, actor: Actor, request: PlanConfig
) -> tuple[Present, Difference]:
    await _require_visible(context, actor, request.config)
    names = frozenset(org.name for org in request.config.organisations)
    present = await present_state(context, actor, names)
    return present, difference(request.config, present, prune=request.prune)


async def _require_visible(context: OperationContext, actor: Actor, wanted: Wanted) -> None:
    """Raise Forbidden if the actor can't see everything that the plan compares.

    If the actor can't see an existing object, a plan would treat the object as new.
    """
    if actor.sees is None:
        return
    seen = {org.name for org in await context.resolve.orgs(actor)}
    named = {org.name for org in wanted.organisations}
    named.update(*(proxy.orgs for proxy in wanted.proxies or ()))
    if unseen := sorted(named - seen):
        raise Forbidden(
            f"there is no organisation {', '.join(unseen)} in which you have a role: "
            "a plan needs the role viewer in each organisation that the directory names"
        )
    if wanted.operators is not None and "admin" not in actor.roles.values():
        raise Forbidden("the YAML files list operators: only an admin can see operators and apply such files")


async def _with_lines(
    actor: Actor, wanted: Wanted, present: Present, changes: Sequence[Change]
) -> tuple[Change, ...]:
    """Add the differences between the old and the new ruleset texts to the changes.

    A worker process compares the ruleset texts.
    """
    after = {(org.name, each.name): each.yaml for org in wanted.organisations for each in org.rulesets or ()}
    shown = []
    for change in changes:
        if change.kind == "ruleset" and change.action == "change" and change.changes("text"):
            before = present.organisations[change.org or ""].rulesets[change.name].yaml
            lines = await run_trial(actor, text_difference, before, after[change.org or "", change.name])
            change = msgspec.structs.replace(change, lines=lines)
        shown.append(change)
    return tuple(shown)


@operation("config.apply", "POST", "/config/apply")
async def apply(context: OperationContext, actor: Actor, request: ApplyConfig) -> AppliedConfig:
    """Make all changes that a configuration directory needs, or none of the changes.

    The response shows new secrets only once.
    """
    present, planned = await _difference(context, actor, request)
    _require_expected(planned, request.expected)
    _require_roles(context, actor, present, planned.changes)
    prepared = await prepare(context, actor, request.config, planned.changes, apps.new_client_secret)
    steps = tuple(steps_of(request.config, planned.changes, prepared, request.note))
    vault = await context.vault() if _makes_proxies(planned.changes) else None

    async def work(store: Store) -> tuple[list[Done], set[str]]:
        async def opened() -> Vault:
            assert vault is not None
            return vault

        within = replace(_of_apply(context, store), vault=opened)
        now = await within.refresh_roles(actor)
        _, again = await _difference(within, now, request)
        if again.digest != planned.digest:
            raise Conflict(
                "the configuration has changed since the plan was made: review and apply a new plan"
            )
        return await perform_steps(within, now, steps, logged=True), within.about

    done, about = await context.store.together(work) if steps else ([], set())
    context.about.update(about)
    context.results.append(_in_words(planned))
    return AppliedConfig(
        digest=planned.digest,
        changes=planned.changes,
        apps=tuple(_app_secrets(done)),
        proxies=tuple(_proxy_secrets(done)),
        proposals=tuple(_made_proposals(done)),
    )


def _require_expected(planned: Difference, expected: str | None) -> None:
    if expected is not None and expected != planned.digest:
        raise Conflict(
            f"the digest of the plan is now {planned.digest}, but {expected} was expected: "
            "review the new plan, and apply it"
        )


def _require_roles(
    context: OperationContext, actor: Actor, present: Present, changes: Sequence[Change]
) -> None:
    """Before slow work begins, check that the actor has the lowest role that each change can need.

    When a plan runs, each operation of the plan checks the role that the operation needs.
    """
    _require_few(changes)
    for change in changes:
        held = present.organisations.get(change.org or change.name)
        if change.kind in ("proxy", "operator"):
            continue
        org_id = None if held is None else held.org_id
        if org_id is not None:
            context.about.add(org_id)
        is_rules = change.kind in ("ruleset", "schema") or (change.kind, change.action) == ("app", "change")
        with named(change):
            actor.require("editor" if is_rules else "admin", org_id)


def _require_few(changes: Sequence[Change]) -> None:
    if len(changes) > MOST_CHANGES:
        raise InvalidRequest(
            f"config: {len(changes)} changes are too many at once (limit: {MOST_CHANGES}): "
            "apply one organisation at a time"
        )


def _makes_proxies(changes: Sequence[Change]) -> bool:
    return any((each.kind, each.action) == ("proxy", "add") for each in changes)


def _in_words(planned: Difference) -> str:
    counts = [
        f"{sum(each.action == action for each in planned.changes)} {word}"
        for action, word in (("add", "added"), ("change", "changed"), ("delete", "deleted"))
    ]
    return f"{planned.digest}: {', '.join(counts)}"


def _app_secrets(done: Sequence[Done]) -> Iterator[AppSecrets]:
    for each in done:
        if isinstance(each.response, apps.NewApp):
            change = each.step.change
            yield AppSecrets(
                change.org or "", change.name, each.response.client_id, each.response.client_secret
            )


def _proxy_secrets(done: Sequence[Done]) -> Iterator[ProxySecrets]:
    for each in done:
        made = each.response
        if isinstance(made, proxies.NewProxySecrets):
            yield ProxySecrets(each.step.change.name, made.proxy_id, made.api_key, made.hmac_secret)


def _made_proposals(done: Sequence[Done]) -> Iterator[MadeProposal]:
    for each in done:
        made, change = each.response, each.step.change
        if isinstance(made, rulesets.AppliedRuleset | apps.BoundApp) and made.proposal is not None:
            yield MadeProposal(change.org or "", change.name, made.proposal)


# Last changes


async def _last_changes(
    context: OperationContext, actor: Actor, changes: Sequence[Change]
) -> list[LastChange]:
    looked_for = [each for each in changes if each.action != "add"]
    if not looked_for:
        return []
    lines = await context.store.operator_log(LogQuery(limit=_MOST_LINES, outcome="done", org_ids=actor.sees))
    requests = [(line, msgspec.json.decode(line.request)) for line in lines]
    found = []
    for change in looked_for:
        line = next((line for line, asked in requests if _is_about(line, asked, change)), None)
        if line is not None:
            found.append(
                LastChange(
                    change.kind, change.org, change.name, rfc3339(line.time_ms), line.operator, line.operation
                )
            )
    return found


_NOUNS: Final = {
    "organisation": ("org", "org"),
    "schema": ("model", "root"),
    "ruleset": ("ruleset", "ruleset"),
    "app": ("app", "app"),
    "proxy": ("proxy", "proxy"),
    "operator": ("operator", "operator"),
}


def _is_about(line: LogLine, asked: dict[str, object], change: Change) -> bool:
    noun, member = _NOUNS[change.kind]
    if not line.operation.startswith(f"{noun}."):
        return False
    if line.operation == "ruleset.apply":
        said = line.result or ""
        return said.startswith(f"published {change.name} version ") and asked.get("org") in (None, change.org)
    named = asked.get(member, asked.get("name"))
    return named == change.name and (change.org is None or asked.get("org") in (None, change.org))


# The export of the current state


@operation("config.export", "GET", "/config/export")
async def export(context: OperationContext, actor: Actor, request: ExportConfig) -> ExportedConfig:
    """Return the control plane's state in the form of a request for `config.apply`."""
    orgs = await context.resolve.orgs(actor, request.org)
    if not orgs:
        raise NotFound("there is no organisation yet: add one with `org add`")
    present = await present_state(context, actor, frozenset(org.name for org in orgs))
    everything = request.org is None
    return ExportedConfig(
        config=Wanted(
            tuple(_exported(org) for _, org in sorted(present.organisations.items())),
            tuple(
                WantedProxy(each.name, each.orgs, each.enabled)
                for _, each in sorted(present.proxies.items())
                if each.prunable or (everything and each.orgs)
            ),
            tuple(
                WantedOperator(each.name, dict(each.roles), each.enabled)
                for _, each in sorted(present.operators.items())
            )
            if everything and actor.may("admin", None)
            else None,
        )
    )


def _exported(org: PresentOrg) -> WantedOrg:
    return WantedOrg(
        org.name,
        org.retention,
        org.second_person,
        tuple(
            WantedRuleset(each.name, each.yaml) for _, each in sorted(org.rulesets.items()) if each.version
        ),
        tuple(_exported_app(each) for _, each in sorted(org.apps.items())),
    )


def _exported_app(app: PresentApp) -> WantedApp:
    wanted: dict[str, Any] = {
        name: tuple(each.wanted for each in held) for name, held in app.credentials.items() if held
    }
    return WantedApp(
        *(app.name, app.ruleset, app.shadow, app.owner, app.note, app.enabled),
        secret=None if app.secret is not None else False,
        secret_ends=None if app.secret is None else app.secret.ends,
        **wanted,
    )
