"""Make the screenshots of the console for the docs: .venv-console/bin/python -m tests.console.screenshots."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.console.conftest import ARGUMENTS, CHROMIUM, PHONE, Served, serving, visiting
from tests.console.seed import ROOT, seed

FOLDER: Final = ROOT / "docs" / "console"
WINDOW: Final = (1280, 800)
LARGEST: Final = 150_000  # largest size of a picture in bytes
_FIRST_EVENT: Final = ".events .request a"
# For each name: path, size of the window, dark theme, and the element to click.
PICTURES: Final = {
    "overview": ("/", WINDOW, False, ""),
    "overview-dark": ("/?org=contoso", WINDOW, True, ""),
    "search": ("/search?q=verdict:block&from=-24h", WINDOW, False, ""),
    "ruleset": ("/rulesets/contoso/hr-sync", (1180, 620), False, ""),
    "draft": ("/rulesets/contoso/hr-sync/edit?method=POST&target=/v1.0/users", (1180, 660), False, ""),
    "proxies": ("/proxies", (1280, 740), True, ""),
    "app-phone": ("/apps/{payroll}", PHONE, False, ""),
    "event": ("/search?org=contoso&q=reason:hiddenProperty", WINDOW, False, _FIRST_EVENT),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        seeded = asyncio.run(seed(Path(folder)))
        with serving(seeded.config) as addresses, sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            served = Served(*addresses, seeded)
            for name, (path, size, dark, clicked) in PICTURES.items():
                with visiting(chromium, served, size=size, dark=dark) as visit:
                    visit.go(path.format(payroll=seeded.apps["payroll"].app_id))
                    if clicked:
                        visit.page.locator(clicked).first.click()
                    visit.page.wait_for_load_state("networkidle")
                    picture = visit.page.screenshot(path=FOLDER / f"{name}.png")
                print(f"{name}.png {len(picture)}")
                assert len(picture) <= LARGEST, name
            chromium.close()


if __name__ == "__main__":
    main()
