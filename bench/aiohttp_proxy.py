"""A simple Python proxy (aiohttp on uvloop), with which benchmarks compare Graphward.

`evaluate` adds Graphward's default duties: check each token once, evaluate one path rule, swap the
credential, and write a JSON record for each request. The mode `strip` removes three properties from each item
of a response, with the JSON library orjson.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import aiohttp
import jwt
import orjson
import uvloop
from aiohttp import web
from multidict import CIMultiDict

HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host"})
STRIPPED: Final = ("mobilePhone", "businessPhones", "otherMails")
PATHS: Final = re.compile(r"/v1\.0/users(/[^/]+)?")


@dataclass(slots=True)
class Duties:
    """Work that the aiohttp proxy does for each request, in addition to forwarding the request.

    A JSON file defines the work that the aiohttp proxy does in addition to forwarding requests.
    """

    upstream: str
    evaluate: bool
    strip: bool
    signing_key: str
    issuer: str
    audience: str
    upstream_token: str
    record_file: str
    remembered: dict[str, float] = field(default_factory=dict)

    def token_is_good(self, authorization: str) -> bool:
        ends = self.remembered.get(authorization)
        if ends is None:
            try:
                claims = jwt.decode(
                    authorization.removeprefix("Bearer "),
                    self.signing_key,
                    ["HS256"],
                    issuer=self.issuer,
                    audience=self.audience,
                )
            except jwt.InvalidTokenError:
                return False
            ends = self.remembered[authorization] = claims["exp"]
        return time.time() < ends


class Proxy:
    def __init__(self, duties: Duties, session: aiohttp.ClientSession, record: BinaryIO) -> None:
        self._duties = duties
        self._session = session
        self._record = record

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.monotonic()
        duties = self._duties
        if duties.evaluate:
            refusal = self._refusal(request)
            if refusal is not None:
                return web.Response(status=refusal)
        headers = [pair for pair in request.headers.items() if pair[0].lower() not in HOP_BY_HOP]
        if duties.evaluate:
            headers = [pair for pair in headers if pair[0].lower() != "authorization"]
            headers.append(("Authorization", f"Bearer {duties.upstream_token}"))
        async with self._session.request(
            request.method,
            duties.upstream + request.path_qs,
            headers=headers,
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        ) as response:
            body = await response.read()
            kept = [pair for pair in response.headers.items() if pair[0].lower() not in HOP_BY_HOP]
            status = response.status
        if duties.strip:
            body = _stripped(body)
            kept = [pair for pair in kept if pair[0].lower() != "content-length"]
        if duties.evaluate:
            self._write_record(request, status, len(body), time.monotonic() - started)
        return web.Response(status=status, headers=CIMultiDict(kept), body=body)

    def _refusal(self, request: web.BaseRequest) -> int | None:
        if not self._duties.token_is_good(request.headers.get("Authorization", "")):
            return 401
        allowed = request.method == "GET" and PATHS.fullmatch(request.path)
        return None if allowed else 403

    def _write_record(self, request: web.BaseRequest, status: int, length: int, seconds: float) -> None:
        self._record.write(
            orjson.dumps(
                {
                    "time": time.time(),
                    "org": "org-1",
                    "app": "app-1",
                    "client": "client-1",
                    "ip": request.remote,
                    "requestId": request.headers.get("client-request-id"),
                    "method": request.method,
                    "path": request.path,
                    "query": request.query_string,
                    "status": status,
                    "verdict": "allow",
                    "rule": "users",
                    "responseBytes": length,
                    "duration": seconds,
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
        )


def _stripped(body: bytes) -> bytes:
    response = orjson.loads(body)
    for item in response["value"]:
        for name in STRIPPED:
            item.pop(name, None)
    return orjson.dumps(response)


async def serve(port: int, duties: Duties, record: BinaryIO) -> None:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3600)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        server = web.Server(Proxy(duties, session, record).handle, keepalive_timeout=3600)
        await asyncio.get_running_loop().create_server(server, "127.0.0.1", port, backlog=4096)
        await asyncio.Event().wait()


def main() -> None:
    duties = Duties(**json.loads(Path(sys.argv[2]).read_text()))
    with Path(duties.record_file).open("ab") as record:
        uvloop.run(serve(int(sys.argv[1]), duties, record))


if __name__ == "__main__":
    main()
