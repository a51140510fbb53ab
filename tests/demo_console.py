"""The console of the demo: the pages to open first, and a check of the text on each page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from urllib.parse import quote

import aiohttp

from tests.demo_day import ORG, SignIn
from tests.demo_requests import Result
from tests.demo_rows import HR_RULES

_DISGUISED = "encoded twice"


@dataclass(frozen=True, slots=True)
class StartPage:
    """A page of the console that a user of the demo opens first."""

    name: str
    path: str
    about: str
    promised: str  # text that the page must show


def start_pages(results: Sequence[Result]) -> list[StartPage]:
    disguised = next(each for each in results if each.row.title == _DISGUISED)
    blocked = next((event for event in disguised.events if event["verdict"] == "block"), {})
    target = disguised.target
    request = f"method={disguised.row.method}&target={quote(target, safe='/@')}"
    return [
        StartPage(
            "Blocked request",
            f"/events/{ORG}/{blocked.get('id', '-')}",
            "A request for mail whose path is encoded twice, and the rule that blocked it all the same.",
            f"{disguised.row.rule}",
        ),
        StartPage(
            "Ruleset editor",
            f"/rulesets/{ORG}/{HR_RULES}/edit?{request}",
            "The rules, with that request filled in: change a rule, then press Explain.",
            target,
        ),
        StartPage(
            "Search",
            "/search?q=verdict:block&from=-24h",
            "The blocked requests of the last day, by app, rule and reason.",
            "/messages",
        ),
    ]


async def console_complaints(address: str, sign_in: SignIn, pages: Sequence[StartPage]) -> list[str]:
    """Sign in as a browser does, open each page, and return the texts that are missing."""
    jar = aiohttp.CookieJar(unsafe=True)  # the host is an IP address
    async with aiohttp.ClientSession(address, cookie_jar=jar) as session:
        async with session.get("/") as response:
            if not response.url.path.startswith("/login"):
                return [f"console: {response.url} opens without a sign-in"]
        form = {"name": sign_in.name, "password": sign_in.password, "next": "/"}
        async with session.post("/login", data=form) as response:
            if response.url.path != "/" or response.status != 200:
                return [f"console: the sign-in leads to {response.url}, status {response.status}"]
        complaints = []
        for page in pages:
            async with session.get(page.path) as response:
                shown = unescape(await response.text())
                if response.status != 200 or page.promised not in shown:
                    lacks = f"status {response.status}, without {page.promised!r}"
                    complaints.append(f"console: {page.name} ({page.path}) has {lacks}")
        return complaints
