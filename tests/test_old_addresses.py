"""Tests of the old addresses of a docs page that was split.

Each old address leads to the page with its subject.

`python -m tests.test_old_addresses` lists the old addresses that lead nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.test_doc_links import anchors

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
# One page#heading in each line: the headings of docs/ at the last commit before the split.
ADDRESSES: Final = (ROOT / "tests" / "site" / "old_addresses.txt").read_text("utf-8").split()
STUB: Final = "---\nsearch:\n  exclude: true\n---\n"
_PROGRAM: Final = (".py", ".toml", ".yaml", ".yml", ".html", ".service", ".json")
_NAMED: Final = re.compile(r"\bdocs/([a-z/-]+\.md)(?:#([\w-]+))?")
_ITEM: Final = re.compile(r"^- (?:<a id=\"[^\"]+\"></a>)*\[[^\]]+\]\([^)]+\.md(?:#[^)]+)?\)", re.M)


def pages() -> list[str]:
    return sorted({address.partition("#")[0] for address in ADDRESSES})


def lost(page: str) -> set[str]:
    """Return the old headings of a page, except those that the page still has as a heading or an anchor."""
    old = {heading for name, _, heading in (address.partition("#") for address in ADDRESSES) if name == page}
    return old - anchors(DOCS / page)


@pytest.mark.parametrize("page", pages())
def test_each_old_address_of_a_page_leads_to_its_subject(page: str) -> None:
    title = next(address for address in ADDRESSES if address.startswith(f"{page}#")).partition("#")[2]
    assert not lost(page) - {title}, f"{page}: add headings or <a id> anchors"


@pytest.mark.parametrize("page", [page for page in pages() if "/" not in page])
def test_a_page_that_was_split_links_to_its_parts(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert text.startswith(STUB), f"{page} is found by a search"
    assert _ITEM.search(text), f"{page} has no list of links"


def test_no_program_names_a_page_that_was_split_or_a_heading_that_is_gone() -> None:
    split = [page for page in pages() if (DOCS / page).read_text("utf-8").startswith(STUB)]
    wrong = []
    for top in ("proxy", "controlplane", "graphward", "conf", "bench", "tests"):
        for file in (ROOT / top).rglob("*.*"):
            if file.suffix in _PROGRAM:
                for page, heading in _NAMED.findall(file.read_text("utf-8")):
                    path = DOCS / page
                    if page in split or not path.exists() or (heading and heading not in anchors(path)):
                        wrong.append(f"{file.relative_to(ROOT)}: docs/{page}#{heading}")
    assert wrong == []


if __name__ == "__main__":
    for each in pages():
        for heading in sorted(lost(each)):
            print(f"docs/{each}#{heading}")
