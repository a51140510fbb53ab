"""Choice of each identity's token provider and vault secret, according to the settings."""

import contextlib
import math
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from proxy.agent.credentials.provider import CredentialProvider
from proxy.agent.credentials.static import StaticProvider
from proxy.agent.vault import HeldSecret
from proxy.outbound.session import open_session
from proxy.outbound.settings import egress_of
from proxy.outbound.vault import Vault, VaultSecret
from proxy.startup.identities import DEFAULT_IDENTITY
from proxy.startup.settings import CredentialsSettings, IdentitySettings, Settings

if TYPE_CHECKING:
    from proxy.agent.credentials.entra import Entra


async def open_providers(
    settings: Settings,
    tls: ssl.SSLContext,
    secrets: Mapping[str, HeldSecret],
    stack: contextlib.AsyncExitStack,
) -> dict[str, CredentialProvider]:
    """Return the token provider of each identity, by the name of the identity."""
    identities = settings.credentials.every_identity
    if settings.credentials.provider == "static":
        return {each.name: StaticProvider(each.access_token) for each in identities}
    session = await stack.enter_async_context(open_session(tls, egress_of(settings.egress)))
    return {each.name: _provider(settings, each, secrets.get(each.name), session) for each in identities}


def _provider(
    settings: Settings, identity: IdentitySettings, secret: HeldSecret | None, session: aiohttp.ClientSession
) -> CredentialProvider:
    """Return the provider of upstream tokens for one upstream identity.

    Azure's SDK is imported only in this function, because the import is slow and a static token does not need
    the SDK.
    """
    credentials = settings.credentials
    if credentials.provider == "managed-identity":
        return _managed_identity(settings, identity, session)
    entra = _entra(credentials, identity, session)
    if secret is not None:
        from proxy.agent.credentials.key_vault import KeyVaultProvider

        return KeyVaultProvider(entra, secret, identity.secret_name)
    if credentials.provider == "workload-identity":
        from proxy.agent.credentials.workload_identity import WorkloadIdentityProvider

        return WorkloadIdentityProvider(entra, _token_file(identity))
    from proxy.agent.credentials.environment import EnvironmentProvider

    return EnvironmentProvider(entra, identity.client_secret)


def _managed_identity(
    settings: Settings, identity: IdentitySettings, session: aiohttp.ClientSession
) -> CredentialProvider:
    from proxy.agent.credentials.managed_identity import (
        FederatedManagedIdentityProvider,
        ManagedIdentityProvider,
    )
    from proxy.outbound.machine_identity import ManagedIdentity

    machine = ManagedIdentity(identity.managed_identity_client_id)
    if not identity.client_id:
        return ManagedIdentityProvider(machine, session, settings.credentials.scope)
    entra = _entra(settings.credentials, identity, session)
    return FederatedManagedIdentityProvider(entra, machine, session, settings.exchange_scope)


def _entra(
    credentials: CredentialsSettings, identity: IdentitySettings, session: aiohttp.ClientSession
) -> "Entra":
    from proxy.agent.credentials.entra import Entra

    return Entra(
        session,
        authority_url=credentials.authority_url,
        tenant_id=identity.tenant_id,
        client_id=identity.client_id,
        scope=credentials.scope,
    )


async def open_vault(settings: Settings, tls: ssl.SSLContext, stack: contextlib.AsyncExitStack) -> Vault:
    from proxy.outbound.key_vault import open_key_vault  # slow to import, and most proxies have no vault
    from proxy.outbound.machine_identity import ManagedIdentity, WorkloadIdentity

    credentials = settings.credentials
    identity: ManagedIdentity | WorkloadIdentity = ManagedIdentity(credentials.managed_identity_client_id)
    if credentials.provider == "workload-identity":
        default = credentials.every_identity[0]
        identity = WorkloadIdentity(
            default.tenant_id, default.client_id, _token_file(default), credentials.authority_url
        )
    session = await stack.enter_async_context(open_session(tls, egress_of(settings.egress)))
    return await stack.enter_async_context(open_key_vault(credentials.vault_url, session, identity))


def _token_file(identity: IdentitySettings) -> Path:
    if identity.token_file is None:
        raise ValueError("the identity settings have no TokenFile: check the settings before this call")
    return identity.token_file


def upstream_secrets(settings: Settings, vault: Vault) -> dict[str, HeldSecret]:
    """Return the vault secret of each upstream identity, by the identity's name.

    With the vault secret, the agent authenticates to Microsoft Entra as the application of the identity.
    """
    credentials = settings.credentials
    if credentials.provider != "managed-identity-key-vault":
        return {}
    return {
        each.name: HeldSecret(
            vault,
            each.secret_name,
            what=_credential_of(each.name),
            interval=credentials.vault_refresh_seconds,
            own_end=certificate_end,
        )
        for each in credentials.every_identity
    }


def certificate_end(secret: VaultSecret) -> float:
    """Return when the certificate in a vault secret expires; infinity if no certificate is readable."""
    from proxy.agent.credentials.certificate import is_certificate, read_certificate

    if not is_certificate(secret.value, secret.content_type):
        return math.inf
    try:
        return read_certificate(secret.value, secret.content_type).ends_at
    except ValueError:
        return math.inf  # the attempt to use the certificate reports the fault


def _credential_of(identity: str) -> str:
    own = "upstream credential"
    return own if identity == DEFAULT_IDENTITY else f"{own} of identity {identity}"
