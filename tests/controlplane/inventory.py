"""Helpers with which tests create organisations, proxies and other objects directly in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.names import new_id
from controlplane.operations import apps, orgs, proxies, rulesets
from controlplane.operations.actor import local_actor
from controlplane.operations.context import OperationContext
from controlplane.store.interface import NO_NAMES, App, Org, Proxy, Retention, Ruleset

OPERATOR = local_actor("test")


@dataclass(frozen=True, slots=True)
class NewApp:
    app: App
    client_secret: str


class Inventory:
    """Organisations, proxies, rulesets and applications, each as a row of the store."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context

    async def add_org(self, name: str, retention: Retention) -> Org:
        await orgs.add.perform(self._context, OPERATOR, orgs.AddOrg(name, retention))
        return await self.org(name)

    async def org(self, reference: str) -> Org:
        return await self._context.resolve.org(OPERATOR, "viewer", reference)

    async def add_proxy(self, name: str, served: Sequence[str]) -> proxies.NewProxySecrets:
        return await proxies.add.perform(self._context, OPERATOR, proxies.AddProxy(name, tuple(served)))

    async def proxy(self, reference: str) -> Proxy:
        return await self._context.resolve.proxy(OPERATOR, "viewer", reference)

    async def set_proxy_enabled(self, reference: str, enabled: bool) -> None:
        change = proxies.enable if enabled else proxies.disable
        await change.perform(self._context, OPERATOR, proxies.ProxyReference(reference))

    async def revoke(self, reference: str, org: str) -> None:
        await proxies.revoke.perform(self._context, OPERATOR, proxies.OrgOfProxy(reference, org))

    async def apply_ruleset(self, org: str, name: str, rule_count: int, text: str) -> Ruleset:
        """Store the ruleset text without any check, although the real operation may refuse the text."""
        context, org_id = self._context, (await self.org(org)).org_id
        ruleset = Ruleset(new_id(context.clock), org_id, name, 1, rule_count, context.clock.wall_ms())
        schemas = (await context.store.current_schemas(org_id)).digests
        named = schemas if "pack: [" in text or "resource: [" in text else NO_NAMES
        return (await context.store.apply_ruleset(ruleset, text, None, None, named))[0]

    async def roll_back(self, reference: str, org: str | None) -> None:
        await rulesets.rollback.perform(self._context, OPERATOR, rulesets.RollBack(reference, org))

    async def add_app(self, name: str, org: str, ruleset: str) -> NewApp:
        made = await apps.add.perform(self._context, OPERATOR, apps.AddApp(name, org, ruleset))
        assert made.client_secret is not None
        return NewApp(await self.app(made.app_id), made.client_secret)

    async def app(self, reference: str, org: str | None = None) -> App:
        return await self._context.resolve.app(OPERATOR, "viewer", reference, org)

    async def set_app_enabled(self, reference: str, org: str | None, enabled: bool) -> None:
        change = apps.enable if enabled else apps.disable
        await change.perform(self._context, OPERATOR, apps.AppReference(reference, org))

    async def bind_app(self, reference: str, org: str | None, ruleset: str) -> None:
        await apps.bind.perform(self._context, OPERATOR, apps.BindApp(reference, org, ruleset=ruleset))

    async def set_shadow(self, reference: str, org: str | None, ruleset: str | None) -> App:
        await apps.shadow.perform(self._context, OPERATOR, apps.SetShadow(reference, org, ruleset))
        return await self.app(reference, org)

    async def promote_shadow(self, reference: str, org: str | None) -> App:
        await apps.promote_shadow.perform(self._context, OPERATOR, apps.PromoteShadow(reference, org))
        return await self.app(reference, org)

    async def rotate_secret(self, reference: str, org: str | None, grace_ms: int) -> apps.NewSecret:
        request = apps.RotateSecret(reference, org, grace_ms // 1000)
        return await apps.rotate_secret.perform(self._context, OPERATOR, request)
