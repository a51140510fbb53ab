"""Run axe-core, a checker of accessibility, in a page of the console.

axe-core finds faults that prevent people from reading or using the page.
"""

from __future__ import annotations

from typing import Final

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

_RUN: Final = """async ([frame, options]) => {
  const { violations } = await axe.run({ exclude: frame }, options);
  return violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 120)}`));
}"""
_QUICK: Final = {"resultTypes": ["violations"], "preload": False}
_EVERYTHING: Final = {**_QUICK, "rules": {"target-size": {"enabled": True}}}
# Rules whose result depends on the width of the window, without those that `looks.js` checks.
_OF_THE_WIDTH: Final = {**_QUICK, "runOnly": ["target-size", "scrollable-region-focusable"]}
# Parts that every page repeats: the navigation, the dialog of keys, and the link to the content.
_FRAME: Final = [[".side"], ["#keys"], [".skip"]]


def load_axe(page: Page) -> None:
    """Load axe-core into the open page. axe-core must be loaded again in each page that the browser opens."""
    page.evaluate(AXE_SCRIPT)


def violations(page: Page, *, frame: bool = True, of_the_width: bool = False) -> list[str]:
    """Return a line for each accessibility violation, with the rule and the element.

    The accessibility check is faster if it leaves out the frame around the page's content.
    """
    options = _OF_THE_WIDTH if of_the_width else _EVERYTHING
    found: list[str] = page.evaluate(_RUN, [[] if frame else _FRAME, options])
    return found
