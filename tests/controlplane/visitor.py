"""A simulated operator without a browser, who reads console pages and sends the pages' forms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import unquote

import aiohttp

from tests.controlplane.plane import Plane
from tests.controlplane.test_admin import Browser, operator


@dataclass(frozen=True)
class Seen:
    status: int
    text: str
    led_to: str | None = None  # location to which an accepted form redirects
    flash: str = ""  # sentence that the next page shows once


@dataclass
class Visitor:
    browser: Browser

    async def get(self, path: str) -> Seen:
        return await self._send("GET", path)

    async def post(self, path: str, form: Mapping[str, str]) -> Seen:
        return await self._send("POST", path, {"csrf": self.browser.csrf, **form})

    async def _send(self, method: str, path: str, form: Mapping[str, str] | None = None) -> Seen:
        async with self.browser.session.request(
            method,
            self.browser.url + path,
            data=form,
            headers={"Cookie": self.browser.cookie, "Sec-Fetch-Site": "same-origin"},
            allow_redirects=False,
        ) as response:
            flash = response.cookies.get("graphward-flash")
            said = "" if flash is None else unquote(flash.value)
            return Seen(response.status, await response.text(), response.headers.get("Location"), said)


@asynccontextmanager
async def visiting(plane: Plane) -> AsyncIterator[Visitor]:
    """Sign in as Ada, an administrator, and yield Ada's visitor object."""
    await operator(plane, "ada", {"*": "admin"})
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        browser = Browser(session, plane.console_url)
        assert (await browser.sign_in("ada")).status == 200
        yield Visitor(browser)
