"""Current state of those objects of a configuration directory that the actor may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from controlplane.as_code.present import (
    Present,
    PresentApp,
    PresentOperator,
    PresentOrg,
    PresentProxy,
    PresentRuleset,
)
from controlplane.operations.actor import EVERY_ORG, Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.credentials import present_credentials, present_secret
from controlplane.store.interface import App, Org, Proposal, Ruleset
from controlplane.store.pages import ListQuery, all_rows

_MOST_PROPOSALS = 1000  # open proposals of an organisation


async def present_state(context: OperationContext, actor: Actor, org_names: frozenset[str]) -> Present:
    """Read the organisations with the given names, and all proxies and operators."""
    seen = await context.resolve.orgs(actor)
    return Present(
        {org.name: await _org(context, org) for org in seen if org.name in org_names},
        await _proxies(context, actor, {org.org_id: org.name for org in seen}, org_names),
        await _operators(context, actor, {org.org_id: org.name for org in seen}),
    )


async def _org(context: OperationContext, org: Org) -> PresentOrg:
    listed = await context.store.org_schemas(org.org_id)
    schemas = {each.root: each.digest for each in listed if each.is_current}
    rulesets = {each.name: each for each in await context.store.rulesets(org.org_id)}
    proposals = await _proposals(context, org)
    names = rulesets.keys() | {each.ruleset for each in proposals if each.kind == "publish"}
    uses: dict[str, dict[str, str]] = {}
    for root in sorted({each.root for each in listed}):
        for use in await context.store.schema_uses(org.org_id, root):
            if use.in_force:
                uses.setdefault(use.ruleset, {})[root] = use.digest
    return PresentOrg(
        org.org_id,
        org.name,
        org.retention,
        org.approvals > 0,
        {
            name: await _ruleset(context, name, rulesets.get(name), uses.get(name, {}), proposals)
            for name in sorted(names)
        },
        {app.name: _app(app, proposals) for app in await context.store.apps(org.org_id)},
        schemas,
    )


async def _proposals(context: OperationContext, org: Org) -> Sequence[Proposal]:
    """Return the open ruleset proposals of an organisation, newest first."""
    if not org.approvals:
        return ()
    return await context.store.proposals([org.org_id], is_open=True, limit=_MOST_PROPOSALS)


async def _ruleset(
    context: OperationContext,
    name: str,
    active: Ruleset | None,
    schemas: Mapping[str, str],
    proposals: Sequence[Proposal],
) -> PresentRuleset:
    ruleset_id, version, yaml = "", 0, ""
    if active is not None:
        ruleset_id, version = active.ruleset_id, active.version
        yaml = await context.store.ruleset_text(ruleset_id, version) or ""
    proposed = {}
    for each in proposals:
        if (each.kind, each.ruleset, each.base_version) == ("publish", name, version):
            whole = await context.store.proposal(each.proposal_id)
            if whole is not None and whole.yaml is not None:
                proposed[whole.yaml] = whole.proposal_id
    return PresentRuleset(ruleset_id, name, version, yaml, schemas, proposed)


def _app(app: App, proposals: Sequence[Proposal]) -> PresentApp:
    proposed = {
        each.ruleset: each.proposal_id
        for each in proposals
        if (each.kind, each.app_id, each.base_ruleset_id) == ("bind", app.app_id, app.ruleset_id)
    }
    return PresentApp(
        *(app.app_id, app.name, app.ruleset_name, app.shadow_ruleset_name),
        *(app.owner, app.note, app.enabled, proposed),
        secret=present_secret(app),
        credentials=present_credentials(app),
    )


async def _proxies(
    context: OperationContext, actor: Actor, names: Mapping[str, str], org_names: frozenset[str]
) -> Mapping[str, PresentProxy]:
    """Read the proxies that operators added to the control plane, without self-enrolled proxies.

    Proxies that enrolled themselves are not returned, because they are added and removed automatically.
    """
    found = {}
    for proxy in await context.resolve.proxies(actor, None):
        if proxy.token_id is not None:
            continue
        orgs = tuple(sorted(names[each] for each in proxy.org_ids if each in names))
        prunable = bool(orgs) and len(orgs) == len(proxy.org_ids) and org_names.issuperset(orgs)
        found[proxy.name] = PresentProxy(proxy.proxy_id, proxy.name, orgs, proxy.enabled, prunable)
    return found


async def _operators(
    context: OperationContext, actor: Actor, names: Mapping[str, str]
) -> Mapping[str, PresentOperator]:
    """Read the operators and their roles, limited to organisations that the actor may see.

    The returned operators do not include operators who come from the identity provider, because the
    provider's groups add and remove them.
    """
    known = {**names, EVERY_ORG: EVERY_ORG}
    return {
        each.name: PresentOperator(
            each.operator_id,
            each.name,
            {known[org_id]: role for org_id, role in sorted(each.roles.items()) if org_id in known},
            each.enabled,
        )
        for each in await all_rows(partial(context.resolve.list_operators, actor), ListQuery())
        if each.provided is None
    }
