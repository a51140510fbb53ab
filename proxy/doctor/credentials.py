"""Check of the upstream credentials: the vault's secret, the token, and the upstream's response to it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Final

import aiohttp

from proxy.agent.credentials.provider import CredentialError
from proxy.agent.credentials.sources import certificate_end, open_providers, open_vault, upstream_secrets
from proxy.doctor.hosts import EXPIRES_SOON_DAYS, tls_context
from proxy.outbound.session import open_session
from proxy.outbound.settings import egress_of
from proxy.outbound.vault import Vault, VaultError
from proxy.startup.settings import IdentitySettings, Settings
from proxy.wire.finding import Finding

_UPSTREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0, sock_connect=5.0)
_ASKED: Final = "/v1.0/organization?$select=id"  # a small response, which still needs a valid token
_VAULT_FIX: Final = (
    "give that identity the role Key Vault Secrets User, let the vault's firewall accept this machine, and "
    "check Credentials.VaultUrl and the secret's name"
)


async def credentials(
    settings: Settings, *, vault_reached: bool, provider_reached: bool, upstream_reached: bool
) -> Sequence[Finding]:
    """Check the upstream credentials step by step.

    The check skips a step that needs an unreachable host, because the host's own check reports that the host
    is unreachable.
    """
    findings: list[Finding] = []
    tls = tls_context(settings.identity_ca_file)
    async with contextlib.AsyncExitStack() as stack:
        vault = None
        if settings.uses_vault:
            if not vault_reached:
                return []
            vault = await open_vault(settings, tls, stack)
            findings += await _vault(settings, vault)
        secrets = upstream_secrets(settings, vault) if vault is not None else {}
        if not provider_reached or any(each.status == "fail" for each in findings):
            return findings
        providers = await open_providers(settings, tls, secrets, stack)
        for identity in settings.credentials.every_identity:
            name = f"upstream token: {identity.name}"
            try:
                token = await providers[identity.name].fetch()
            except CredentialError as error:
                findings.append(Finding(name, "fail", str(error), _fix(settings, identity, str(error))))
                continue
            findings.append(Finding(name, "ok", _life(token.expires_at)))
            if upstream_reached:
                findings.append(await _taken(settings, identity, token.token))
    return findings


async def _vault(settings: Settings, vault: Vault) -> list[Finding]:
    names = [
        *(each.secret_name for each in settings.credentials.every_identity),
        settings.token.signing_key_secret_name,
    ]
    return [await _secret(vault, name) for name in dict.fromkeys(filter(None, names))]


async def _secret(vault: Vault, name: str) -> Finding:
    title = f"key vault: {name}"
    try:
        secret = await vault.secret(name)
    except VaultError as error:
        return Finding(title, "fail", str(error), _VAULT_FIX)
    ends_at = min(secret.expires_at, certificate_end(secret))
    if math.isinf(ends_at):
        return Finding(title, "ok", f"version {secret.version} is readable, and does not expire")
    when = time.strftime("%Y-%m-%d", time.gmtime(ends_at))
    days = math.floor((ends_at - time.time()) / 86400)
    fix = f"store a newer version of {name}, after registering it with the application"
    if ends_at <= time.time():
        return Finding(title, "fail", f"version {secret.version} expired on {when}", fix)
    if days < EXPIRES_SOON_DAYS:
        return Finding(title, "warn", f"version {secret.version} expires in {days} days, on {when}", fix)
    return Finding(title, "ok", f"version {secret.version} is readable, until {when}")


def _fix(settings: Settings, identity: IdentitySettings, problem: str) -> str:
    registered = f"check that ClientId {identity.client_id} is registered in tenant {identity.tenant_id}"
    authority = f"AuthorityUrl is {settings.credentials.authority_url}"
    match settings.credentials.provider:
        case "managed-identity" if not identity.client_id:
            return "assign the managed identity to this machine, and check ManagedIdentityClientId"
        case "managed-identity" if "the managed identity gives no token" in problem:
            return (
                "give this machine the managed identity (in Azure: its page Identity), "
                "and check ManagedIdentityClientId"
            )
        case "managed-identity":
            audience = settings.exchange_scope.removesuffix("/.default")
            trust = f"that it trusts the managed identity as federated credential, with audience {audience}"
            return f"{registered}, and {trust}; {authority}"
        case "workload-identity":
            trust = "that it has a federated credential with issuer and subject of the token in TokenFile"
            return f"{registered}, and {trust}; {authority}"
        case "managed-identity-key-vault":
            where = f"in vault secret {identity.secret_name}"
        case _:
            where = "in ClientSecret"
    return f"{registered}, and that the credential {where} belongs to it; {authority}"


def _life(expires_at: float) -> str:
    if math.isinf(expires_at):
        return "is given in the settings"
    return f"the identity provider issued one, valid for {expires_at - time.time():.0f} s"


async def _taken(settings: Settings, identity: IdentitySettings, token: str) -> Finding:
    name = f"upstream: {identity.name}"
    url = settings.upstream.base_url + _ASKED
    try:
        async with (
            open_session(tls_context(settings.upstream.ca_file), egress_of(settings.egress)) as session,
            session.get(
                url,
                headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
                timeout=_UPSTREAM_TIMEOUT,
                allow_redirects=False,
            ) as response,
        ):
            status = response.status
    except TimeoutError:
        return Finding(
            name, "fail", "no response in time", "check whether the host in Upstream.BaseUrl is available"
        )
    except (aiohttp.ClientError, OSError, ValueError) as error:
        what = f"no response: {type(error).__name__}: {error}"
        return Finding(name, "fail", what, "check whether the host in Upstream.BaseUrl is available")
    if status == 401:
        fix = f"Credentials.Scope must be the upstream's: {settings.upstream.base_url}/.default"
        if settings.credentials.provider == "static":
            fix = "AccessToken of this identity must be accepted by the upstream, and must not have expired"
        return Finding(name, "fail", "it refuses the token (401)", fix)
    if status >= 500:
        return Finding(
            name,
            "warn",
            f"it responded with {status}",
            "try again; if the problem stays, see the status page of the upstream",
        )
    return Finding(name, "ok", f"it accepts the token ({status} to GET {_ASKED})")
