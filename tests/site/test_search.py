"""Tests that a search of the site with readers' words finds the right page in the first three results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM: Final = Path("/usr/bin/chromium")
FIRST: Final = 3
# A question, and the pages that answer it.
QUESTIONS: Final = {
    "block uploads": ["how-to/write-a-rule"],
    "read-only": ["how-to/write-a-rule"],
    "office hours": ["how-to/write-a-rule"],
    "one mailbox": ["how-to/write-a-rule"],
    "hide property": ["how-to/write-a-rule"],
    "502 filterFailed": ["reference/errors"],
    "reason hiddenProperty": ["reference/errors"],
    "emergency stop": ["how-to/emergency-stop"],
    "upgrade": ["how-to/upgrade"],
    "backup": ["how-to/backup-and-restore"],
    "postgresql": ["how-to/postgresql"],
    "proxy not ready": ["how-to/troubleshoot", "how-to/monitor", "how-to/alerts"],
    "disk full": ["how-to/alerts", "how-to/troubleshoot"],
    "rotate client secret": ["how-to/rotate-secrets"],
    "managed identity": ["how-to/upstream-credentials"],
    "retention": ["how-to/retention"],
    "siem splunk": ["how-to/siem"],
    "missing events": ["how-to/missing-events"],
    "events without rule": ["reference/search-filters", "how-to/search-events"],
    "which events have no rule": ["how-to/search-events", "reference/search-filters"],
    "events with no rule": ["how-to/search-events", "reference/search-filters"],
    "how do I block uploads": ["how-to/write-a-rule"],
    "what does 502 filterFailed mean": ["reference/errors"],
    "how do I upgrade": ["how-to/upgrade"],
    "what would a new ruleset change": ["how-to/try-rules"],
    "my app gets 401": ["how-to/troubleshoot"],
    "which files may I delete": ["reference/files-and-signals"],
    "audit log not altered": ["how-to/verify-the-audit-trail"],
    "base url graph sdk": ["how-to/connect-an-application"],
    "high availability": ["how-to/high-availability"],
    "verify chain": ["how-to/verify-the-audit-trail"],
    "kubernetes": ["how-to/kubernetes"],
    "webhook slack": ["how-to/webhooks"],
    "python sdk": ["how-to/connect-an-application", "tutorial/your-application"],
    "openid connect": ["how-to/single-sign-on"],
    "sso": ["how-to/single-sign-on", "how-to/sign-in-with-entra"],
    "401": ["how-to/troubleshoot", "reference/errors"],
    "invalid_client": ["how-to/troubleshoot", "reference/errors"],
    "why was my request blocked": ["how-to/troubleshoot", "how-to/search-events"],
    "who changed the ruleset": ["how-to/operators"],
    "rate limit": ["how-to/limit-applications"],
    "docker": ["how-to/install"],
    "systemd": ["how-to/install"],
    "prometheus metrics": ["reference/metrics"],
    "delete application": ["how-to/delete-data"],
    "environment variables": ["reference/settings"],
    "access that expires": ["how-to/write-a-rule"],
    "log format": ["reference/files-and-signals"],
    "export csv": ["how-to/search-events"],
    "clock skew": ["how-to/troubleshoot", "reference/files-and-signals"],
    "mtls": ["how-to/connect-an-application"],
    "gitops": ["how-to/manage-as-code"],
    "github actions": ["how-to/no-shared-secret"],
    "javascript": ["how-to/connect-an-application"],
    "oauth error": ["reference/token-endpoint", "reference/errors"],
    "hiddenproperty": ["reference/errors"],
    "LifetimeSeconds": ["reference/settings"],
    "block file upload": ["how-to/write-a-rule"],
    "reload without downtime": ["how-to/run-a-proxy"],
    "master key": ["how-to/key-vault", "how-to/rotate-secrets"],
    "webhook teams": ["how-to/webhooks"],
    "approval": ["how-to/operators"],
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Page]:
    if not CHROMIUM.exists():
        pytest.skip(f"no browser here: {CHROMIUM}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(10_000)
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        yield page
        browser.close()
    server.shutdown()
    server.server_close()


def found(page: Page, question: str) -> list[str]:
    """Return the addresses of the pages that a search of the site finds, best page first."""
    box, items = page.locator("input[name=query]"), page.locator(".md-search-result__item")
    for text, state in (("", "detached"), (question, "attached")):
        box.fill(text)
        box.press("End")  # the search starts when a key is released
        items.first.wait_for(state=state)
    addresses = items.evaluate_all("items => items.map(item => item.querySelector('a').pathname)")
    return [address.strip("/").removesuffix(".html") for address in addresses]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_page_that_answers_is_found_first(page: Page, question: str) -> None:
    answers = found(page, question)
    assert set(answers[:FIRST]) & set(QUESTIONS[question]), answers[: 2 * FIRST]
