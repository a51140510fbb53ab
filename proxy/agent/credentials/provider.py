"""Interface of the providers of upstream tokens.

A provider fetches one upstream token, or raises an error with the reason for the failure.
"""

from dataclasses import dataclass, field
from typing import Protocol

from proxy.outbound.failures import AttemptFailed


@dataclass(frozen=True, slots=True)
class UpstreamToken:
    token: str = field(repr=False)
    expires_at: float  # Unix seconds; infinity for a token without a known end


class CredentialError(AttemptFailed):
    """Error because no upstream token could be fetched."""


class CredentialProvider(Protocol):
    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        """Return an upstream token that was valid when it was issued.

        Raise CredentialError if no token could be fetched. `refused` means that the upstream refused the last
        token. If the upstream refused the token, the credential that obtained the token may be outdated too.
        """
