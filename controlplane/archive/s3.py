"""An archive in a bucket of Amazon S3, or of another server with the interface of S3.

The library botocore finds the credentials and signs requests. The client of botocore is not used: it blocks,
and it would ignore the egress proxy and the certificates in the settings.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from html import unescape
from typing import Any, Final
from urllib.parse import quote, unquote_plus, urlencode

import aiohttp
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from botocore.session import Session
from yarl import URL

from controlplane.archive.object_store import StorageUnavailable
from proxy.outbound.call import CallFailed, call
from proxy.outbound.retry import retry_after

_MOST_OBJECT: Final = 256 * 1024 * 1024
_KEY: Final = re.compile(rb"<Key>([^<]*)</Key>")
_NEXT: Final = re.compile(rb"<NextContinuationToken>([^<]*)</NextContinuationToken>")
_CODE: Final = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket in S3 storage, and the prefix of the archive's objects in that bucket.

    The name of each object in the archive begins with the prefix.
    """

    name: str
    prefix: str  # empty, or ends with a slash
    region: str
    endpoint_url: str = ""  # if empty, Amazon's own for the region
    access_key_id: str = ""  # if empty, botocore searches its usual places
    secret_access_key: str = ""

    @property
    def url(self) -> str:
        """Address of the S3 bucket, without a slash at the end."""
        if self.endpoint_url:
            return f"{self.endpoint_url.rstrip('/')}/{self.name}"
        host = f"s3.{self.region}.amazonaws.com"
        # Amazon's certificate covers only one label before the host.
        return f"https://{host}/{self.name}" if "." in self.name else f"https://{self.name}.{host}"


class S3Objects:
    def __init__(self, bucket: Bucket, session: aiohttp.ClientSession, timeout_seconds: float) -> None:
        self._bucket = bucket
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._aws = Session()
        self._credentials: Credentials | None = None

    async def create(self, name: str, body: bytes) -> bool:
        # A bucket with object lock rejects an object without a checksum.
        checksum = base64.b64encode(sha256(body).digest()).decode()
        extra = {"If-None-Match": "*", "x-amz-checksum-sha256": checksum}
        status, headers, response = await self._call("PUT", self._path(name), body, extra)
        if status == 200:
            if not headers.get("ETag"):  # each server with the interface of S3 sends an ETag
                raise _not_s3(status, headers)
            return True
        if status == 412:
            return False
        raise _unavailable(status, headers, response)

    async def read(self, name: str) -> bytes:
        status, headers, body = await self._call("GET", self._path(name), b"", {})
        if status == 404 and b"NoSuchKey" in body:
            raise KeyError(name)
        if status != 200:
            raise _unavailable(status, headers, body)
        return body

    async def names(self, prefix: str = "") -> AsyncIterator[str]:
        whole, token = self._bucket.prefix + prefix, ""
        while True:
            query = {"encoding-type": "url", "list-type": "2", "prefix": whole}
            query |= {"continuation-token": token} if token else {}
            # SigV4 requires sorted parameters, and %20 for a space.
            path = "?" + urlencode(sorted(query.items()), quote_via=quote, safe="")
            status, headers, body = await self._call("GET", path, b"", {})
            if status != 200:
                raise _unavailable(status, headers, body)
            if b"<ListBucketResult" not in body:
                raise _not_s3(status, headers)
            for key in _KEY.findall(body):
                yield _text(key).removeprefix(self._bucket.prefix)
            found = _NEXT.search(body)
            if found is None:
                return
            token = unescape(found[1].decode())

    async def close(self) -> None:
        await self._session.close()

    def _path(self, name: str) -> str:
        return "/" + quote(self._bucket.prefix + name)

    async def _call(
        self, method: str, path: str, body: bytes, extra: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = self._bucket.url + path
        # botocore may read files or call the machine's metadata service, and both block.
        headers = await asyncio.to_thread(self._signed, method, url, body, extra)
        try:
            exact = URL(url, encoded=True)  # the exact spelling that was signed
            return await call(
                self._session, method, exact, body, headers, max_bytes=_MOST_OBJECT, limits=self._timeout
            )
        except CallFailed as error:
            raise StorageUnavailable(f"the call to the storage failed: {error}") from None

    def _signed(self, method: str, url: str, body: bytes, extra: Mapping[str, str]) -> dict[str, str]:
        request = AWSRequest(method, url, data=body, headers=dict(extra))
        try:
            frozen = self._found().get_frozen_credentials()
            S3SigV4Auth(frozen, "s3", self._bucket.region).add_auth(request)
        except BotoCoreError as error:
            raise StorageUnavailable(
                f"the credentials for S3 can't be used: {' '.join(str(error).split())}"
            ) from None
        return {name: _plain(value) for name, value in request.headers.items()}

    def _found(self) -> Credentials:
        """Return the S3 credentials, which renew themselves when they expire."""
        if self._credentials is None:
            key = self._bucket
            if key.access_key_id:
                self._credentials = Credentials(key.access_key_id, key.secret_access_key)
            else:
                self._credentials = self._aws.get_credentials()
        if self._credentials is None:
            where = "give AccessKeyId and SecretAccessKey, or an identity of the machine"
            raise StorageUnavailable(f"no credentials for S3 were found: {where}")
        return self._credentials


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _text(key: bytes) -> str:
    return unquote_plus(unescape(key.decode("utf-8", "replace")))


def _not_s3(status: int, headers: Mapping[str, str]) -> StorageUnavailable:
    media_type = headers.get("Content-Type") or "no Content-Type"
    return StorageUnavailable(
        f"the storage responded {status}, but not as S3 does ({media_type}): correct the address"
    )


def _unavailable(status: int, headers: Mapping[str, str], body: bytes) -> StorageUnavailable:
    code = _CODE.search(body)
    words = f"the storage responded {status}" + (f" {code[1].decode()}" if code else "")
    return StorageUnavailable(words, retry_after(headers.get("Retry-After"), time.time()))
