"""The archive storage in a sink's settings: an Azure container or an S3 bucket."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from controlplane.archive.manifest import FORM
from controlplane.archive.object_store import ObjectStore, StorageUnavailable
from controlplane.archive.writer import ArchiveConflict, ArchiveWriter
from controlplane.sinks.interface import SinkUnavailable
from controlplane.sinks.settings import BlobSettings
from controlplane.store.interface import ArchiveSource
from proxy.config.tls import client_tls
from proxy.outbound.egress import Egress
from proxy.outbound.session import open_session

# The object explains the archive to a visitor, and proves that the storage does not overwrite a name.
MARKER: Final = "graphward-archive.json"
_MARKER_BODY: Final = msgspec.json.encode(
    {"format": FORM, "verify": "graphward audit verify-archive DIRECTORY"}
)


class BlobSink:
    def __init__(self, objects: ObjectStore, flush_seconds: float) -> None:
        self.objects = objects
        self.flush_seconds = flush_seconds

    async def write(
        self, store: ArchiveSource, after: int, upto: int, org_ids: Collection[str] | None
    ) -> int:
        try:
            return await ArchiveWriter(store, self.objects).write(after, upto, org_ids)
        except StorageUnavailable as error:
            raise SinkUnavailable(str(error), error.retry_after) from None
        except ArchiveConflict as error:
            raise SinkUnavailable(str(error)) from None

    async def test(self) -> str:
        """Write the same object a second time, to test that the storage refuses to overwrite objects.

        The object storage must refuse to overwrite an existing object.
        """
        try:
            await self.objects.create(MARKER, _MARKER_BODY)
            if await self.objects.create(MARKER, _MARKER_BODY):
                raise SinkUnavailable(
                    "the storage overwrites objects although If-None-Match forbids it: use another storage,"
                    " or turn on object lock"
                )
            if FORM.encode() not in await self.objects.read(MARKER):
                raise SinkUnavailable(f"the storage returned other content for {MARKER} than was written")
        except StorageUnavailable as error:
            raise SinkUnavailable(str(error), error.retry_after) from None
        return "the storage writes and reads objects, and overwrites none"

    async def close(self) -> None:
        await self.objects.close()


def open_objects(settings: BlobSettings, egress: Egress) -> ObjectStore:
    """Return the object storage of the archive sink, without a connection to it.

    Raise SinkUnavailable if the package for this kind of storage is missing.
    """
    extra = "s3" if settings.is_s3 else "azure-blob"
    try:
        return _open_s3(settings, egress) if settings.is_s3 else _open_azure(settings, egress)
    except ModuleNotFoundError as error:
        what = f"the sink needs the package {error.name}: pip install 'graphward[{extra}]'"
        raise SinkUnavailable(what) from None


def _open_s3(settings: BlobSettings, egress: Egress) -> ObjectStore:
    from controlplane.archive.s3 import Bucket, S3Objects

    bucket = Bucket(
        urlsplit(settings.url).netloc,
        settings.prefix,
        settings.region,
        settings.endpoint_url,
        settings.access_key_id,
        settings.secret_access_key,
    )
    return S3Objects(bucket, _session(settings, egress), settings.timeout_seconds)


def _open_azure(settings: BlobSettings, egress: Egress) -> ObjectStore:
    from azure.core.credentials import AzureSasCredential

    from controlplane.archive.azure_blob import BlobCredential, BlobObjects
    from controlplane.sinks.azure_token import open_credential

    session = _session(settings, egress)
    credential: BlobCredential
    if settings.sas:
        credential = AzureSasCredential(settings.sas)
    elif settings.account_key:
        credential = settings.account_key
    else:
        credential = open_credential(settings, session)
    return BlobObjects(settings.url, settings.prefix, credential, session, settings.timeout_seconds)


def _session(settings: BlobSettings, egress: Egress) -> aiohttp.ClientSession:
    return open_session(client_tls(settings.ca_file), egress, user_agent="graphward")
