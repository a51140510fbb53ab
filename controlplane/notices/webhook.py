"""One webhook: each notice is a signed request, as Standard Webhooks defines it.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

import aiohttp

from controlplane.clock import Clock
from controlplane.notices.notice import FORMS, Notice, test_notice
from controlplane.sinks.http import retry_after, said
from controlplane.sinks.interface import SinkRefused, SinkUnavailable
from controlplane.sinks.settings import WebhookSettings, secrets_of_sink, webhook_key
from proxy.config.tls import client_tls
from proxy.outbound.call import CallFailed, call
from proxy.outbound.egress import Egress
from proxy.outbound.session import open_session

# Statuses by which the receiver permanently rejects this notice. All other failures may be temporary.
_REFUSED_FOR_GOOD: Final = frozenset({400, 405, 406, 413, 415, 422})


class Webhook:
    """Delivery of notices to the address of one webhook."""

    def __init__(self, settings: WebhookSettings, egress: Egress, clock: Clock, source: str) -> None:
        self._url = settings.url
        self._form = FORMS[settings.format]
        self._secrets = secrets_of_sink(settings)
        self._key = webhook_key(settings.secret) if settings.secret else None
        self._clock = clock
        self._source = source
        self._session = open_session(client_tls(settings.ca_file), egress, user_agent="graphward")
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds, sock_connect=10)

    async def send(self, notice: Notice) -> None:
        """Send the notice, and return after the receiver has accepted the notice.

        Raise SinkUnavailable if the webhook's receiver fails, or SinkRefused if the receiver rejects the
        notice.
        """
        body = self._form.body(notice, self._source)
        headers = {"Content-Type": self._form.media_type, **self._signed(notice.notice_id, body)}
        try:
            status, received, text = await call(
                self._session, "POST", self._url, body, headers, limits=self._timeout
            )
        except CallFailed as error:
            raise SinkUnavailable(str(error)) from None
        if 200 <= status < 300:
            return
        if status in _REFUSED_FOR_GOOD:
            raise SinkRefused(said(status, received, text, self._secrets))
        raise SinkUnavailable(said(status, received, text, self._secrets), retry_after(received))

    async def test(self) -> str:
        """Send a test notice, which is marked as a test.

        Raise SinkUnavailable if the webhook's receiver fails, or SinkRefused if the receiver rejects the test
        notice.
        """
        await self.send(test_notice(self._clock.wall_ms()))
        return "the receiver accepted a test notice"

    def _signed(self, notice_id: str, body: bytes) -> dict[str, str]:
        timestamp = str(self._clock.wall_ms() // 1000)
        headers = {"webhook-id": notice_id, "webhook-timestamp": timestamp}
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, notice_id, timestamp, body)
        return headers

    async def close(self) -> None:
        await self._session.close()


def signature(key: bytes, notice_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{notice_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"
