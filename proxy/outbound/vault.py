"""The calls to a key vault that both programs make, and their results as plain values."""

from dataclasses import dataclass, field
from typing import Protocol

from proxy.outbound.failures import AttemptFailed


class VaultError(AttemptFailed):
    """A secret couldn't be read. The text names vault, secret and identity."""


@dataclass(frozen=True, slots=True)
class VaultSecret:
    """One version of a secret."""

    value: str = field(repr=False)
    content_type: str
    version: str
    expires_at: float  # Unix seconds; infinity for one without an end


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """One version of a secret without its value."""

    version: str
    enabled: bool
    begins_at: float  # Unix seconds: made then, or not to be used before
    expires_at: float


class Vault(Protocol):
    """A key vault. Both calls raise VaultError."""

    async def secret(self, name: str, version: str = "") -> VaultSecret:
        """That version of a secret, or its newest."""

    async def versions(self, name: str) -> list[SecretVersion]:
        """Every version of a secret, in no order."""
