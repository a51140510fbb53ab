"""Fakes of object storage that writes each name only once: an S3 bucket, and an Azure Blob container.

Both fakes follow the documentation of the REST interfaces as far as an archive uses them: conditional writes,
reads, lists in pages, throttling with `Retry-After`, and signatures.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.fakes.server import Fake, Received, Response

BUCKET: Final = "audit"
ACCESS_KEY_ID: Final = "AKIDEXAMPLE"
SECRET_ACCESS_KEY: Final = "secret+access/key"
SAS: Final = "sv=2026-01-01&sp=crl&sig=c2VjcmV0"
_PAGE: Final = 2  # objects in one response to a list; servers have 1,000 or 5,000
_SIGNED: Final = re.compile(r"SignedHeaders=([a-z0-9;-]+)")
_DATE: Final = "Thu, 26 Nov 2026 12:00:00 GMT"


_PORTAL: Final = Response(200, (("Content-Type", "text/html"),), b"<html>Welcome</html>")


class ObjectStorage(Fake):
    """A fake storage of objects by name.

    `throttled` is the number of next requests that the fake refuses, as if they came too fast.
    """

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.throttled = 0
        self.is_a_portal = False  # a captive portal is at the address, and responds 200 to all requests
        self.overwrites = False  # simulates servers that ignore the condition

    def _is_taken(self, request: Received, name: str) -> bool:
        return name in self.objects and request.value("If-None-Match") == "*" and not self.overwrites

    def _page(self, prefix: str, after: str) -> tuple[list[str], str]:
        """Return the names on one page of a list, and the last of these names if more pages follow."""
        found = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
        return found[:_PAGE], found[_PAGE - 1] if len(found) > _PAGE else ""


class FakeS3(ObjectStorage):
    """A fake S3 bucket with path-style addresses."""

    async def response(self, request: Received) -> Response:
        if self.is_a_portal:
            return _PORTAL
        if not self._is_signed(request):
            return _s3_error(403, "SignatureDoesNotMatch")
        if self.throttled:
            self.throttled -= 1
            return _s3_error(503, "SlowDown", ("Retry-After", "3"))
        bucket, _, name = unquote(request.path)[1:].partition("/")
        if bucket != BUCKET:
            return _s3_error(404, "NoSuchBucket")
        body = bytes(request.body)
        if request.method == "PUT":
            if self._is_taken(request, name):
                return _s3_error(412, "PreconditionFailed")
            if request.value("x-amz-checksum-sha256") != base64.b64encode(sha256(body).digest()).decode():
                return _s3_error(400, "InvalidRequest")  # object lock requires a checksum
            self.objects[name] = body
            return Response(200, (("ETag", f'"{sha256(body).hexdigest()}"'),))
        if name:
            found = self.objects.get(name)
            return _s3_error(404, "NoSuchKey") if found is None else Response(200, (), found)
        query = {key: values[0] for key, values in parse_qs(request.query).items()}
        names, following = self._page(query.get("prefix", ""), unquote(query.get("continuation-token", "")))
        keys = "".join(f"<Contents><Key>{quote(each)}</Key></Contents>" for each in names)
        token = f"<NextContinuationToken>{quote(following)}</NextContinuationToken>" if following else ""
        return Response(200, (), f"<ListBucketResult>{keys}{token}</ListBucketResult>".encode())

    def _is_signed(self, request: Received) -> bool:
        """Return True if the request's signature equals the signature computed by the fake."""
        given = request.value("Authorization")
        names = _SIGNED.search(given)
        if names is None or request.value("X-Amz-Content-SHA256") != request.body_sha256:
            return False
        url = f"http://{request.value('Host')}{request.target}"
        kept = {name: request.value(name) for name in names[1].split(";") if name != "host"}
        again = AWSRequest(request.method, url, data=bytes(request.body), headers=kept)
        again.context["timestamp"] = request.value("X-Amz-Date")
        signer = S3SigV4Auth(Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY), "s3", "us-east-1")
        canonical = signer.canonical_request(again)
        return str(signer.signature(signer.string_to_sign(again, canonical), again)) in given


def _s3_error(status: int, code: str, *headers: tuple[str, str]) -> Response:
    return Response(status, headers, f"<Error><Code>{code}</Code></Error>".encode())


class FakeBlobStorage(ObjectStorage):
    """Azure container that permits its clients to read, list and create blobs, but not to overwrite them."""

    async def response(self, request: Received) -> Response:
        if self.is_a_portal:
            return _PORTAL
        if "sig=c2VjcmV0" not in request.query:
            return _blob_error(403, "AuthenticationFailed")
        if self.throttled:
            self.throttled -= 1
            return _blob_error(503, "ServerBusy", ("Retry-After", "3"))
        _, container, name = unquote(request.path)[1:].split("/", 2) if request.path.count("/") > 2 else (
            *unquote(request.path)[1:].split("/"), "",
        )  # fmt: skip
        if container != BUCKET:
            return _blob_error(404, "ContainerNotFound")
        if request.method == "PUT":
            if self._is_taken(request, name):
                return _blob_error(409, "BlobAlreadyExists")
            self.objects[name] = bytes(request.body)
            return Response(201, (("ETag", '"1"'), ("Last-Modified", _DATE)))
        if name:
            return self._read(name)
        query = {key: values[0] for key, values in parse_qs(request.query).items()}
        names, following = self._page(query.get("prefix", ""), query.get("marker", ""))
        blobs = "".join(f"<Blob><Name>{escape(each)}</Name></Blob>" for each in names)
        text = f"<Blobs>{blobs}</Blobs><NextMarker>{escape(following)}</NextMarker>"
        body = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults>{text}</EnumerationResults>'
        return Response(200, (("Content-Type", "application/xml"),), body.encode())

    def _read(self, name: str) -> Response:
        found = self.objects.get(name)
        if found is None:
            return _blob_error(404, "BlobNotFound")
        place = f"bytes 0-{len(found) - 1}/{len(found)}"
        about = (("Content-Range", place), ("ETag", '"1"'), ("Last-Modified", _DATE))
        return Response(206, (*about, ("x-ms-blob-type", "BlockBlob")), found)


def _blob_error(status: int, code: str, *headers: tuple[str, str]) -> Response:
    error = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    body = f'<?xml version="1.0" encoding="utf-8"?>{error}'
    return Response(status, (*headers, ("x-ms-error-code", code)), body.encode())
