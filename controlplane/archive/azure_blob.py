"""An archive of audit events in a container of Azure Blob Storage."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import aiohttp
from azure.core.credentials import AzureSasCredential
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import ContainerClient

from controlplane.archive.object_store import StorageUnavailable
from proxy.outbound.azure_sdk import failure_of
from proxy.outbound.failures import AttemptFailed
from proxy.outbound.retry import retry_after

_EXISTING: Final = ("BlobAlreadyExists", "BlobImmutableDueToPolicy")
_NOT_ALLOWED: Final = "AuthorizationPermissionMismatch"
_NO_BLOB: Final = "BlobNotFound"

BlobCredential = AsyncTokenCredential | AzureSasCredential | str
"""A token credential, a shared access signature, or the key of the account."""


class BlobObjects:
    def __init__(
        self,
        url: str,
        prefix: str,
        credential: BlobCredential,
        session: aiohttp.ClientSession,
        timeout_seconds: float,
    ) -> None:
        """Open a container of Azure Blob Storage.

        `url` is the address of the container in Azure Blob Storage. The names of the archive's objects begin
        with `prefix`.
        """
        for name in ("azure", "msal"):  # the log lines of these packages contain response bodies
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._session = session
        self._prefix = prefix
        self._container = ContainerClient.from_container_url(
            url,
            credential=credential,
            transport=AioHttpTransport(session=session, session_owner=False),
            retry_total=0,  # the consumer of the sink retries, and shows that it does
            connection_timeout=timeout_seconds,
            read_timeout=timeout_seconds,
        )

    async def create(self, name: str, body: bytes) -> bool:
        blob = self._container.get_blob_client(self._prefix + name)
        with _failures():
            try:
                await blob.upload_blob(body, overwrite=False, max_concurrency=1)
            except HttpResponseError as error:
                # A signature that does not allow a blob to be overwritten is refused before the condition is
                # evaluated.
                if _code(error) in _EXISTING or (_code(error) == _NOT_ALLOWED and await blob.exists()):
                    return False
                raise
        return True

    async def read(self, name: str) -> bytes:
        with _failures():
            try:
                found = await self._container.download_blob(self._prefix + name)
                body: bytes = await found.readall()
            except ResourceNotFoundError as error:
                if _code(error) == _NO_BLOB:
                    raise KeyError(name) from None
                raise
        return body

    async def names(self, prefix: str = "") -> AsyncIterator[str]:
        with _failures():
            async for name in self._container.list_blob_names(name_starts_with=self._prefix + prefix):
                yield name.removeprefix(self._prefix)

    async def close(self) -> None:
        await self._container.close()
        await self._session.close()


@contextmanager
def _failures() -> Iterator[None]:
    """Convert errors of the Azure SDK into one line.

    Error messages of the Azure SDK quote entire responses.
    """
    try:
        yield
    except AttemptFailed as error:
        raise StorageUnavailable(
            f"the storage can't be reached: {error}", error.retry_after or None
        ) from None
    except HttpResponseError as error:
        code = _code(error)
        if not code and isinstance(error, ClientAuthenticationError):
            failure = failure_of(error, lambda status, code: "")
            words = f"the storage can't be reached: the identity provider {failure.what}"
            raise StorageUnavailable(words, failure.retry_after or None) from None
        headers: Mapping[str, str] = getattr(error.response, "headers", {})
        words = f"the storage responded {error.status_code}" + (f" {code}" if code else "")
        asked = retry_after(headers.get("Retry-After"), time.time())
        raise StorageUnavailable(words, asked) from None
    except AzureError as error:
        raise StorageUnavailable(
            f"the call to the storage failed: {' '.join(str(error.message).split())}"
        ) from None


def _code(error: HttpResponseError) -> str:
    """Return the error code of the response, or an empty text if the response has no code."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))
