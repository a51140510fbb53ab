"""Provider that gets upstream tokens for a client secret or certificate from a key vault."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from proxy.agent.credentials.certificate import is_certificate, read_certificate
from proxy.agent.credentials.entra import Entra
from proxy.agent.credentials.provider import CredentialError, UpstreamToken
from proxy.agent.credentials.token_response import ClientRefused
from proxy.agent.vault import HeldSecret
from proxy.outbound.vault import VaultError, VaultSecret

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 3.0
_LONGEST_CLIENT_SECRET: Final = 1024  # characters; a client secret of Entra has 40, a PFX has thousands


class KeyVaultProvider:
    def __init__(
        self,
        entra: Entra,
        secret: HeldSecret,
        name: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._entra = entra
        self._secret = secret
        self._name = name
        self._clock = clock

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        try:
            if refused:  # the credential that bought the token may have been rotated
                await self._look_again()
            secret = await self._secret.current()
            try:
                return await self._exchange(secret)
            except ClientRefused as refusal:
                return await self._once_more(secret, refusal)
        except VaultError as error:
            raise CredentialError(str(error), error.retry_after) from None

    async def _look_again(self) -> None:
        """Read the secret from the vault again.

        Wait only briefly for the vault, because requests wait for a token that needs the secret.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._secret.read()

    async def _once_more(self, refused: VaultSecret, refusal: ClientRefused) -> UpstreamToken:
        """Retry with a newer version of the secret, because the old version is refused after a rotation."""
        await self._secret.read()
        secret = await self._secret.current()
        if secret.version == refused.version:
            problem = self._secret.maintenance.problem
            why = (
                f"no newer version could be read: {problem}"
                if problem
                else "the key vault has no newer version"
            )
            what = f"{refusal} (version {refused.version} of secret {self._name}; {why})"
            raise CredentialError(what, refusal.retry_after)
        log.warning(
            "the identity provider refused the current credential; trying a newer version of the credential"
        )
        return await self._exchange(secret)

    async def _exchange(self, secret: VaultSecret) -> UpstreamToken:
        if is_certificate(secret.value, secret.content_type):
            return await self._entra.by_certificate(self._certificate(secret))
        if len(secret.value) > _LONGEST_CLIENT_SECRET:  # a PFX without its content type must not be sent out
            raise CredentialError(f"secret {self._name} is too long for a client secret")
        return await self._entra.by_secret(secret.value)

    def _certificate(self, secret: VaultSecret) -> bytes:
        try:
            certificate = read_certificate(secret.value, secret.content_type)
            if certificate.ends_at <= self._clock():
                raise ValueError("the certificate in the secret has expired")
        except ValueError as error:
            raise CredentialError(
                f"cannot use secret {self._name} ({secret.content_type}): {error}"
            ) from None
        return certificate.pem
