"""A fake browser that signs in to the console through an identity provider."""

from __future__ import annotations

import asyncio
import html
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
import pytest

from controlplane.store.interface import LogQuery
from tests.controlplane.plane import Plane
from tests.fakes.identity import FakeIdentityProvider


@dataclass
class Browser:
    """A browser that follows redirects and keeps the cookies of each host."""

    session: aiohttp.ClientSession
    cookies: dict[str, dict[str, str]] = field(default_factory=dict)

    async def get(self, url: str) -> tuple[int, str, str]:
        """Request a URL, and return the status, the redirect's location and the body."""
        jar = self.cookies.setdefault(urlsplit(url).netloc, {})
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())} if jar else {}
        async with self.session.get(url, headers=headers, allow_redirects=False) as response:
            for name, morsel in response.cookies.items():
                jar[name] = morsel.value
            return response.status, response.headers.get("Location", ""), await response.text()


@dataclass
class Console:
    plane: Plane
    provider: FakeIdentityProvider
    browser: Browser
    address: str

    async def to_callback(self, wanted: str = "/") -> str:
        """Begin a sign-in at the console and consent at the provider.

        Return the URL to which the identity provider sends the browser back.
        """
        status, to_provider, _ = await self.browser.get(f"{self.address}/login/single-sign-on?next={wanted}")
        assert status == 303
        status, back, _ = await self.browser.get(to_provider)
        assert status == 302
        return back

    async def sign_in(self) -> tuple[int, str]:
        status, location, _ = await self.browser.get(await self.to_callback("/orgs"))
        return status, location

    async def page(self) -> tuple[int, str]:
        """Return the status and the text of the page on which a sign-in ends."""
        status, to_provider, body = await self.browser.get(f"{self.address}/login/single-sign-on")
        if status == 303:
            _, back, _ = await self.browser.get(to_provider)
            status, _, body = await self.browser.get(back)
        return status, html.unescape(body)

    async def last_record(self) -> dict[str, str]:
        """Return the newest sign-in from the operator log.

        The control plane writes the log line while it sends the response.
        """
        for _ in range(1000):
            if lines := await self.plane.store.operator_log(LogQuery(limit=1)):
                found: dict[str, str] = json.loads(lines[0].request)
                return found
            await asyncio.sleep(0.01)
        pytest.fail("no sign-in is on record")

    async def record_of(self, cause: str) -> dict[str, str]:
        """Wait until the newest sign-in in the operator log has the given value of `singleSignOn`.

        Return its record.
        """
        for _ in range(1000):
            if (found := await self.last_record()).get("singleSignOn") == cause:
                return found
            await asyncio.sleep(0.01)
        pytest.fail(f"the newest sign-in is none of {cause}")

    async def signed_in_as(self) -> str | None:
        status, _, body = await self.browser.get(f"{self.address}/admin/v1/session")
        return body.split('"operator":"')[1].split('"')[0] if status == 200 else None
