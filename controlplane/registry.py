"""What an operator creates: organisations, proxies, rulesets and app identities.

References are ids or names. Whatever is looked up in an organisation is found only there: a foreign id is as
unknown as one that never was.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from controlplane.clock import Clock
from controlplane.names import InvalidName, new_id, valid_name
from controlplane.secrets import Vault, digest, hash_client_secret, mint
from controlplane.store.interface import (
    EVERY_ORG,
    App,
    AppSecret,
    Conflict,
    NotFound,
    Org,
    Proxy,
    RegistryStore,
    Retention,
    Ruleset,
)

T = TypeVar("T", Org, Proxy, Ruleset, App)


@dataclass(frozen=True, slots=True)
class ProxySecrets:
    """Shown once, to who created them."""

    proxy_id: str
    api_key: str
    hmac_secret: str


@dataclass(frozen=True, slots=True)
class AppSecrets:
    """Shown once, to who created them."""

    app: App
    client_secret: str


class Registry:
    def __init__(self, store: RegistryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    # Organisations

    async def add_org(self, name: str, retention: Retention) -> Org:
        if name == EVERY_ORG:
            raise InvalidName(f"{EVERY_ORG} stands for every organisation")
        org = Org(new_id(self._clock), valid_name(name), retention, self._clock.wall_ms())
        await self._store.add_org(org)
        return org

    async def org(self, reference: str) -> Org:
        orgs = await self._store.orgs()
        return only((org for org in orgs if reference in (org.org_id, org.name)), "organisation", reference)

    async def set_retention(self, reference: str, retention: Retention) -> Org:
        org = await self.org(reference)
        return await self._store.set_retention(org.org_id, retention)

    # Proxies

    async def add_proxy(self, vault: Vault, name: str, orgs: Sequence[str]) -> ProxySecrets:
        org_ids = tuple(dict.fromkeys([(await self.org(org)).org_id for org in orgs]))
        proxy = Proxy(new_id(self._clock), valid_name(name), True, self._clock.wall_ms(), None, 1, org_ids)
        api_key, hmac_secret = mint("gwk"), mint("gwh")
        await self._store.add_proxy(proxy, digest(api_key), vault.seal(proxy.proxy_id, hmac_secret))
        return ProxySecrets(proxy.proxy_id, api_key, hmac_secret)

    async def rotate_proxy_secrets(
        self, vault: Vault, reference: str, expected: int | None = None
    ) -> ProxySecrets:
        """New ones. Conflict where those that end are not of the version expected."""
        proxy = await self.proxy(reference)
        api_key, hmac_secret = mint("gwk"), mint("gwh")
        sealed = vault.seal(proxy.proxy_id, hmac_secret)
        await self._store.set_proxy_credentials(proxy.proxy_id, digest(api_key), sealed, expected)
        return ProxySecrets(proxy.proxy_id, api_key, hmac_secret)

    async def proxy(self, reference: str) -> Proxy:
        proxies = await self._store.proxies(None)
        found = (proxy for proxy in proxies if reference in (proxy.proxy_id, proxy.name))
        return only(found, "proxy", reference)

    async def proxies(self, org: str | None) -> list[Proxy]:
        return await self._store.proxies(await self._org_id(org))

    async def set_proxy_enabled(self, reference: str, enabled: bool) -> Proxy:
        proxy = await self.proxy(reference)
        return await self._store.set_proxy_enabled(proxy.proxy_id, enabled)

    async def grant(self, reference: str, org: str) -> Proxy:
        proxy = await self.proxy(reference)
        return await self._store.grant(proxy.proxy_id, (await self.org(org)).org_id)

    async def revoke(self, reference: str, org: str) -> Proxy:
        proxy = await self.proxy(reference)
        return await self._store.revoke(proxy.proxy_id, (await self.org(org)).org_id)

    # Rulesets

    async def apply_ruleset(
        self,
        org: str,
        name: str,
        rule_count: int,
        yaml: str,
        note: str | None = None,
        expected: int | None = None,
    ) -> tuple[Ruleset, bool]:
        """The ruleset in force, and whether it is a new version. Conflict where another version than the
        expected one is in force (0: none), unless none is expected."""
        org_id = (await self.org(org)).org_id
        ruleset = Ruleset(new_id(self._clock), org_id, valid_name(name), 1, rule_count, self._clock.wall_ms())
        return await self._store.apply_ruleset(ruleset, yaml, note, expected)

    async def ruleset(self, reference: str, org: str | None) -> Ruleset:
        rulesets = await self._store.rulesets(await self._org_id(org))
        found = (ruleset for ruleset in rulesets if reference in (ruleset.ruleset_id, ruleset.name))
        return only(found, "ruleset", reference)

    async def rulesets(self, org: str | None) -> list[Ruleset]:
        return await self._store.rulesets(await self._org_id(org))

    async def roll_back(
        self,
        reference: str,
        org: str | None,
        version: int | None,
        note: str | None = None,
        expected: int | None = None,
    ) -> Ruleset:
        ruleset = await self.ruleset(reference, org)
        return await self._store.roll_back(ruleset.ruleset_id, version, note, expected)

    # App identities

    async def add_app(self, name: str, org: str, ruleset: str) -> AppSecrets:
        org_id = (await self.org(org)).org_id
        bound = await self.ruleset(ruleset, org_id)
        client_secret = mint("gws")
        app = App(
            app_id=new_id(self._clock),
            org_id=org_id,
            name=valid_name(name),
            client_id=str(uuid.uuid4()),
            ruleset_id=bound.ruleset_id,
            ruleset_name=bound.name,
            enabled=True,
            created_ms=self._clock.wall_ms(),
            secrets=(AppSecret(1, hash_client_secret(client_secret), None),),
        )
        await self._store.add_app(app)
        return AppSecrets(app, client_secret)

    async def app(self, reference: str, org: str | None) -> App:
        apps = await self._store.apps(await self._org_id(org))
        found = (app for app in apps if reference in (app.app_id, app.name, app.client_id))
        return only(found, "app", reference)

    async def apps(self, org: str | None) -> list[App]:
        return await self._store.apps(await self._org_id(org))

    async def set_app_enabled(self, reference: str, org: str | None, enabled: bool) -> App:
        app = await self.app(reference, org)
        return await self._store.set_app_enabled(app.app_id, enabled)

    async def bind_app(self, reference: str, org: str | None, ruleset: str) -> App:
        app = await self.app(reference, org)
        bound = await self.ruleset(ruleset, app.org_id)
        return await self._store.bind_app(app.app_id, bound.ruleset_id)

    async def set_shadow(self, reference: str, org: str | None, ruleset: str | None) -> App:
        """Try a ruleset out beside the app's own, or none any more."""
        app = await self.app(reference, org)
        tried = None if ruleset is None else (await self.ruleset(ruleset, app.org_id)).ruleset_id
        return await self._store.set_shadow(app.app_id, tried)

    async def promote_shadow(self, reference: str, org: str | None, expected: str | None = None) -> App:
        """Conflict where another ruleset than the one expected, by name, is tried."""
        app = await self.app(reference, org)
        return await self._store.promote_shadow(app.app_id, expected)

    async def rotate_secret(
        self, reference: str, org: str | None, grace_ms: int, expected: int | None = None
    ) -> AppSecrets:
        """A new secret. The others end after the grace, and with none at once, tokens included. Conflict
        where the newest of them is not of the version expected."""
        app = await self.app(reference, org)
        client_secret = mint("gws")
        hashed = hash_client_secret(client_secret)
        rotated = await self._store.rotate_secret(app.app_id, hashed, grace_ms, expected)
        return AppSecrets(rotated, client_secret)

    async def _org_id(self, org: str | None) -> str | None:
        return None if org is None else (await self.org(org)).org_id


def only(found: Iterable[T], kind: str, reference: str) -> T:
    """Raises NotFound for none, and Conflict for several."""
    matches = list(found)
    if not matches:
        raise NotFound(f"there is no {kind} {reference}")
    if len(matches) > 1:
        raise Conflict(f"{len(matches)} organisations have {kind} {reference}: name one with --org")
    return matches[0]
