"""Calls to a key vault that both programs make, with plain values as results."""

from dataclasses import dataclass, field
from typing import Protocol

from proxy.outbound.failures import AttemptFailed


class VaultError(AttemptFailed):
    """A secret could not be read. The text names the vault, the secret and the identity."""


@dataclass(frozen=True, slots=True)
class VaultSecret:
    """A version of a secret with its value."""

    value: str = field(repr=False)
    content_type: str
    version: str
    expires_at: float  # Unix seconds; infinity for a version that does not expire


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """A version of a secret without its value."""

    version: str
    enabled: bool
    begins_at: float  # Unix seconds of its creation, or of the time before which it must not be used
    expires_at: float


class Vault(Protocol):
    """Key vault with secrets in versions. Both calls raise VaultError."""

    async def secret(self, name: str, version: str = "") -> VaultSecret:
        """Return this version of a secret, or its newest."""

    async def versions(self, name: str) -> list[SecretVersion]:
        """Return every version of a secret, in no order."""
