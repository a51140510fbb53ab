"""What every provider of upstream tokens is: something that fetches one token, or says why it could not."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class UpstreamToken:
    token: str = field(repr=False)
    expires_at: float  # Unix seconds; infinity for one that has no known end


class CredentialError(Exception):
    """No token. The text is fit for a log: it never has a secret, a token or an answer's body in it."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after  # seconds that the identity provider asked to be left alone


class CredentialProvider(Protocol):
    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        """A token that was valid when it was given out; CredentialError if there is none. `refused` says that
        the upstream refused the last one, so that what it was bought with may be out of date too."""
