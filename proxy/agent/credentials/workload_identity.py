"""Provider that authenticates a client with a token in a file, such as a Kubernetes service account token."""

import re
from pathlib import Path
from typing import Final

from proxy.agent.credentials.entra import Entra
from proxy.agent.credentials.provider import CredentialError, UpstreamToken
from proxy.config.given_text import NotUtf8, secret_of, text_of
from proxy.process.given_file import read_given_file

_JWT: Final = re.compile(r"[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+")


class WorkloadIdentityProvider:
    def __init__(self, entra: Entra, token_file: Path) -> None:
        self._entra = entra
        self._token_file = token_file

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        return await self._entra.by_assertion(self._assertion())

    def _assertion(self) -> str:
        """Read the token file again each time an access token is fetched.

        The platform replaces the token file long before the token expires.
        """
        try:
            assertion = secret_of(text_of(read_given_file(self._token_file)))
        except OSError as error:
            raise CredentialError(f"TokenFile {self._token_file} can't be read: {error.strerror}") from None
        except NotUtf8:
            assertion = ""
        if _JWT.fullmatch(assertion) is None:
            raise CredentialError(f"TokenFile {self._token_file} does not contain a signed token (JWT)")
        return assertion
