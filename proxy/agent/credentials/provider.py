"""What every provider of upstream tokens is: something that fetches one token, or says why it could not."""

from dataclasses import dataclass, field
from typing import Protocol

from proxy.outbound.failures import AttemptFailed


@dataclass(frozen=True, slots=True)
class UpstreamToken:
    token: str = field(repr=False)
    expires_at: float  # Unix seconds; infinity for one that has no known end


class CredentialError(AttemptFailed):
    """No token."""


class CredentialProvider(Protocol):
    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        """A token that was valid when it was given out; CredentialError if there is none. `refused` says that
        the upstream refused the last one, so that what it was bought with may be out of date too."""
