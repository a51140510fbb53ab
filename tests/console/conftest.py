"""Fixtures: a control plane with data, run as a real process, and Debian's Chromium as the client."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Response, StorageState, sync_playwright

from tests.console.seed import PASSWORD, ROOT, Seeded, seed
from tests.fakes.lifeline import end_with_parent
from tests.patience import PATIENCE_SECONDS

CHROMIUM: Final = Path("/usr/bin/chromium")
ARGUMENTS: Final = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP: Final = (1280, 860)
PHONE: Final = (390, 844)
_LISTENING: Final = re.compile(r"admin API on (http://[^\s,]+)")
_AGENT_API: Final = re.compile(r"listening on (http://[^\s,]+)")
_VIOLATIONS: Final = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
});
"""


@dataclass(frozen=True)
class Served:
    """A running control plane for tests, with its addresses and its data."""

    address: str
    agent_api: str
    seeded: Seeded
    # Cookies of operators that have signed in once
    sessions: dict[str, StorageState] = field(default_factory=dict)


@dataclass
class Visit:
    """A browser window of one operator, with a list of the errors that occurred in the window."""

    served: Served
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> Response:
        response = self.page.goto(self.served.address + path)
        assert response is not None
        return response

    def sign_in(self, name: str) -> None:
        self.go("/login")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(lambda url: "/login" not in url)

    def all_complaints(self) -> list[str]:
        return [*self.complaints, *self.page.evaluate("window.violations")]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with seeded_and_served(tmp_path_factory.mktemp("console")) as served:
        yield served


@contextmanager
def seeded_and_served(folder: Path) -> Iterator[Served]:
    # This thread may already run the event loop that drives the browser
    with ThreadPoolExecutor(1) as thread:
        seeded = thread.submit(lambda: asyncio.run(seed(folder))).result()
    with serving(seeded.config) as addresses:
        yield Served(*addresses, seeded)


@contextmanager
def serving(config: Path) -> Iterator[tuple[str, str]]:
    """Run a control plane as a separate process.

    Yield the addresses of the control plane's console and agent API.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "controlplane", "--config", str(config)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    )
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := _LISTENING.search(line):
                break
        else:
            pytest.fail(f"no console: {lines}")
        yield found[1], _AGENT_API.findall("".join(lines))[0]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM} here: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@contextmanager
def visiting(
    browser: Browser,
    served: Served,
    operator: str | None = "ada",
    size: tuple[int, int] = DESKTOP,
    *,
    dark: bool = False,
    scripts: bool = True,
) -> Iterator[Visit]:
    """Open a browser window of an operator.

    An operator who has signed in during an earlier test stays signed in. A test that ends a session must
    first sign in with a new session.
    """
    context = browser.new_context(
        storage_state=served.sessions.get(operator or ""),
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    context.set_default_timeout(30_000)  # long, for machines under load
    if scripts:
        context.add_init_script(_VIOLATIONS)
    try:
        visit = Visit(served, context, context.new_page())
        visit.page.on("console", lambda message: _note(visit, message.type, message.text))
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        if operator is not None and operator not in served.sessions:
            visit.sign_in(operator)
            served.sessions[operator] = context.storage_state()
        yield visit
    finally:
        context.close()


def _note(visit: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        visit.complaints.append(text)


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """Open a browser window of desktop size for Ada, an administrator."""
    with visiting(browser, served) as visit:
        yield visit
        assert visit.all_complaints() == []
