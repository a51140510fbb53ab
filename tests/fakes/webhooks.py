"""A fake receiver of webhooks, which records requests and checks signatures with an independent library."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, Final

from tests.fakes.server import Fake, Received, Response

SECRET: Final = f"whsec_{base64.b64encode(b'a key of thirty-two bytes length').decode()}"


@dataclass
class Call:
    headers: dict[str, str]
    body: bytes
    is_signed: bool

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Answer:
    """The fake receiver's response to the next requests.

    After this response was sent `times` times, the fake receiver sends its usual response 204 again.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    times: int = 1


class FakeReceiver(Fake):
    def __init__(self, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.calls: list[Call] = []
        self.taken: list[Call] = []
        self.answers: list[Answer] = []
        self._arrived = asyncio.Event()

    async def response(self, request: Received) -> Response:
        headers = {name.lower(): value for name, value in request.headers}
        call = Call(headers, bytes(request.body), _is_signed(headers, bytes(request.body)))
        self.calls.append(call)
        self._arrived.set()
        if self.answers:
            answer = self.answers[0]
            answer.times -= 1
            if answer.times <= 0:
                self.answers.pop(0)
            return Response(answer.status, answer.headers, answer.body)
        self.taken.append(call)
        return Response(204, (), b"")

    async def until_taken(self, number: int) -> list[Call]:
        while len(self.taken) < number:
            self._arrived.clear()
            if len(self.taken) < number:
                await self._arrived.wait()
        return self.taken


def _is_signed(headers: dict[str, str], body: bytes) -> bool:
    """Return True if the webhook's signature is valid by https://www.standardwebhooks.com/."""
    given = headers.get("webhook-signature", "")
    signed = f"{headers.get('webhook-id')}.{headers.get('webhook-timestamp')}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(each, f"v1,{wanted}") for each in given.split(" "))
