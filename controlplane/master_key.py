"""Opens the vault with a store's master key, and checks that the key belongs to the store."""

from __future__ import annotations

import os
from typing import Final

from controlplane.secrets import KEY_BYTES, MasterKeyError, Vault, read_master_key
from controlplane.settings import SecretsSettings
from controlplane.store.interface import RegistryStore
from controlplane.vault_key import read_vault_key
from proxy.outbound.egress import DIRECT, Egress

MASTER_KEY_CHECK: Final = "graphward"
CHAINED: Final = "graphward, all of whose events are chained"


async def open_vault(
    settings: SecretsSettings, store: RegistryStore, egress: Egress = DIRECT, *, reads: bool = False
) -> Vault:
    """Open the vault, and check that its master key sealed the store's secrets.

    Make a master key if the store has none. If the caller only reads the store (`reads`), make no master key.
    Raise MasterKeyError if the master key belongs to another store, or if it is missing although the store
    has secrets.
    """
    file = settings.key_file
    missing = file is not None and not file.exists()
    if missing and await store.has_master_key():
        what = "is missing, but the store has secrets: restore the copy of the key that belongs to this store"
        raise MasterKeyError(f"{file} {what}")
    if missing and reads:
        return Vault(os.urandom(KEY_BYTES))  # Nothing is sealed yet.
    vault = Vault(await read_key(settings, egress))
    try:
        await opened_check(vault, store)
    except MasterKeyError as error:
        raise MasterKeyError(f"{settings.key_source}: {error}") from None
    return vault


async def read_key(settings: SecretsSettings, egress: Egress) -> bytes:
    """Return the master key from the key vault, the setting or the key file, as the settings say.

    If the key file is missing, create the key file.

    Raise MasterKeyError if the vault, the setting or the file has no master key.
    """
    if settings.master_key_vault_url:
        return (await read_vault_key(settings, egress)).key
    return read_master_key(settings.master_key, settings.master_key_file)


async def opened_check(vault: Vault, store: RegistryStore) -> str:
    """Return the check text of the master key, which the store keeps encrypted with the master key.

    The control plane decrypts this text to find out if it has the right master key. The text is `CHAINED`, or
    a different text that an earlier release stored. Raise MasterKeyError if the vault has the master key of
    another store.
    """
    sealed = await store.master_key_check(vault.seal(MASTER_KEY_CHECK, CHAINED))
    return vault.open(MASTER_KEY_CHECK, sealed)


async def note_chained(vault: Vault, store: RegistryStore) -> None:
    await store.replace_master_key_check(vault.seal(MASTER_KEY_CHECK, CHAINED))
