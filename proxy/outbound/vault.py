"""Interface to a key vault, for proxy and control plane.

The methods of this interface return plain values.
"""

from dataclasses import dataclass, field
from typing import Protocol

from proxy.outbound.failures import AttemptFailed


class VaultError(AttemptFailed):
    """Error because a secret in the key vault could not be read.

    The error's text names the vault, the secret and the identity that reads the secret.
    """


@dataclass(frozen=True, slots=True)
class VaultSecret:
    """A version of a key vault secret, with the secret's value."""

    value: str = field(repr=False)
    content_type: str
    version: str
    expires_at: float  # Unix seconds; infinity for a version that does not expire


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """A version of a key vault secret, without the secret's value."""

    version: str
    enabled: bool
    begins_at: float  # Unix seconds of its creation, or of the time before which it must not be used
    expires_at: float


class Vault(Protocol):
    """Key vault that keeps several versions of each secret.

    Both methods of a key vault client raise VaultError if the vault cannot be read.
    """

    async def secret(self, name: str, version: str = "") -> VaultSecret:
        """Return the given version of a secret, or the newest version if none is given."""

    async def versions(self, name: str) -> list[SecretVersion]:
        """Return all versions of a secret in an arbitrary order."""
