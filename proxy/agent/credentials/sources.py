"""Where each identity's upstream token comes from, as the settings say it: its provider, and its vault."""

import contextlib
import ssl
from collections.abc import Mapping

import aiohttp

from proxy.agent.control_plane import open_session
from proxy.agent.credentials.environment import EnvironmentProvider
from proxy.agent.credentials.identity_provider import IdentityProvider
from proxy.agent.credentials.provider import CredentialProvider
from proxy.agent.credentials.static import StaticProvider
from proxy.agent.vault import HeldSecret, Vault
from proxy.startup.identities import DEFAULT_IDENTITY
from proxy.startup.settings import CredentialsSettings, IdentitySettings, Settings


async def open_providers(
    settings: Settings,
    tls: ssl.SSLContext,
    secrets: Mapping[str, HeldSecret],
    stack: contextlib.AsyncExitStack,
) -> dict[str, CredentialProvider]:
    """One for each identity, by its name."""
    session = await stack.enter_async_context(open_session(tls))
    return {
        each.name: _provider(settings.credentials, each, secrets.get(each.name), session)
        for each in settings.credentials.every_identity
    }


def _provider(
    credentials: CredentialsSettings,
    identity: IdentitySettings,
    secret: HeldSecret | None,
    session: aiohttp.ClientSession,
) -> CredentialProvider:
    if credentials.provider == "static":
        return StaticProvider(identity.access_token)
    endpoint = IdentityProvider(
        session,
        authority_url=credentials.authority_url,
        tenant_id=identity.tenant_id,
        client_id=identity.client_id,
        scope=credentials.scope,
    )
    if secret is None:
        return EnvironmentProvider(endpoint, identity.client_secret)
    from proxy.agent.credentials.key_vault import (
        KeyVaultProvider,
    )  # cryptography: for few, and slow to import

    return KeyVaultProvider(endpoint, secret, identity.secret_name)


async def open_vault(settings: Settings, tls: ssl.SSLContext, stack: contextlib.AsyncExitStack) -> Vault:
    from proxy.agent.key_vault import open_key_vault  # slow to import, and most have no vault

    session = await stack.enter_async_context(open_session(tls))
    return await stack.enter_async_context(
        open_key_vault(
            settings.credentials.vault_url,
            session,
            managed_identity_client_id=settings.credentials.managed_identity_client_id,
        )
    )


def upstream_secrets(settings: Settings, vault: Vault) -> dict[str, HeldSecret]:
    """What proves each identity, by its name."""
    credentials = settings.credentials
    if credentials.provider != "managed-identity-key-vault":
        return {}
    return {
        each.name: HeldSecret(
            vault,
            each.secret_name,
            what=_credential_of(each.name),
            interval=credentials.vault_refresh_seconds,
        )
        for each in credentials.every_identity
    }


def _credential_of(identity: str) -> str:
    own = "upstream credential"
    return own if identity == DEFAULT_IDENTITY else f"{own} of identity {identity}"
