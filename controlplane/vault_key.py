"""Read the master key of a store from a key vault, with the identity of this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from controlplane.secrets import MasterKeyError, VaultKeyError, key_of
from controlplane.settings import SecretsSettings
from proxy.config.tls import client_tls
from proxy.outbound.egress import Egress
from proxy.outbound.vault import VaultError

_CURE: Final = (
    "let this machine reach the vault. Check Secrets.MasterKeyVaultUrl and MasterKeySecretName, and that this"
    " machine's identity has the role Key Vault Secrets User there"
)


@dataclass(frozen=True, slots=True)
class VaultKey:
    """Master key in the form in which the key vault returned it."""

    key: bytes = field(repr=False)
    version: str
    ends_at: float  # Unix seconds; infinity for a secret without an end, which a master key should have


async def read_vault_key(settings: SecretsSettings, egress: Egress) -> VaultKey:
    """Read the newest version of the secret that holds the master key.

    Raise MasterKeyError if the secret holds no master key.
    """
    # Azure's SDK is slow to import, and few installations need it.
    from proxy.outbound.key_vault import open_key_vault
    from proxy.outbound.machine_identity import ManagedIdentity
    from proxy.outbound.session import open_session

    identity = ManagedIdentity(settings.managed_identity_client_id)
    async with (
        open_session(client_tls(None), egress) as session,
        open_key_vault(settings.master_key_vault_url, session, identity) as vault,
    ):
        try:
            secret = await vault.secret(settings.master_key_secret_name)
        except VaultError as error:
            raise VaultKeyError(f"the master key can't be read: {error}", _CURE) from None
    try:
        return VaultKey(key_of(secret.value), secret.version, secret.expires_at)
    except ValueError as error:
        what = f"{settings.key_source}, version {secret.version}: {error}"
        raise MasterKeyError(
            f"{what}: write the master key of this store as the newest version of the secret"
        ) from None
