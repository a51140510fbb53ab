"""Find faults that make a page hard to use, by rules that a browser can check.

Each fault is reported in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from playwright.sync_api import Page

_RULES: Final = (Path(__file__).parent / "looks.js").read_text("utf-8")


def complaints(page: Page, *, contrasts: bool = True) -> list[str]:
    found: list[str] = page.evaluate(_RULES, contrasts)
    return found
