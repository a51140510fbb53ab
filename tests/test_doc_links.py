"""Tests that links of the docs lead to a page that exists, and to a heading on that page.

Each page of the docs is in an index.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_LINK: Final = re.compile(r"\]\((?!https?:)([\w/.-]*)(?:#([^)]+))?\)")
_FENCE: Final = re.compile(r"^```.*?^```", re.M | re.S)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.M)
_ANCHOR: Final = re.compile(r'<a id="([^"]+)"></a>')


def anchors(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text("utf-8"))
    slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in _HEADING.findall(text)}
    return slugs | set(_ANCHOR.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, anchor in _LINK.findall(_FENCE.sub("", page.read_text("utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target), f"{path}#{anchor} is not a heading"


@pytest.mark.parametrize("index", sorted(ROOT.glob("docs/*/index.md")), ids=lambda index: index.parent.name)
def test_an_index_lists_each_page_of_its_directory(index: Path) -> None:
    listed = {path for path, _ in _LINK.findall(index.read_text("utf-8"))}
    assert listed >= {page.name for page in index.parent.glob("*.md")} - {"index.md"}
