"""Tests of every page with long names and large numbers: no text is cut, and no page is too wide."""

from __future__ import annotations

import asyncio
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import Browser

from tests.console.conftest import DESKTOP, PHONE, Served, serving, visiting
from tests.console.crowd import APPS, PROXIES, Crowd, crowd
from tests.console.looks import complaints

# Folder for a picture of each page; if empty, no picture is taken
PICTURES = os.environ.get("GRAPHWARD_PICTURES")


def test_every_page_holds_long_names_and_large_numbers(browser: Browser, tmp_path: Path) -> None:
    # This thread may already run the event loop that drives the browser
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(lambda: asyncio.run(crowd(tmp_path))).result()
    found: dict[str, list[str]] = {}
    with serving(made.config) as addresses:
        served = Served(*addresses, made)  # type: ignore[arg-type]
        for size in (DESKTOP, PHONE):
            found |= _complaints(browser, served, made, size)
    assert not found, "\n".join(f"{path}: {line}" for path, lines in found.items() for line in lines)


def _complaints(browser: Browser, served: Served, made: Crowd, size: tuple[int, int]) -> dict[str, list[str]]:
    found = {}
    with visiting(browser, served, size=size) as visit:
        for path in made.pages():
            assert visit.go(path).status == 200, path
            lines = complaints(visit.page, contrasts=False)
            if visit.page.locator("main td a").count() > 300:
                lines.append("more links than anybody reads")
            if lines:
                found[f"{path} at {size[0]}"] = lines
            if PICTURES:
                name = re.sub(r"[^A-Za-z0-9=_.-]+", "_", path)[:60]
                visit.page.screenshot(path=f"{PICTURES}/{name}.{size[0]}.png", full_page=True)
        visit.go("/proxies")
        assert f"All {PROXIES:,}" in visit.page.locator("main").inner_text()
        visit.go(f"/rulesets/{made.org.name}/{made.ruleset}")
        visit.page.get_by_role("link", name=f"and {APPS - 8} further apps").click()
        assert f"{APPS} apps" in visit.page.locator("main").inner_text()
    return found
