"""Tests that the site is complete, needs no other host, and serves Markdown and llms.txt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.site.hook import PROJECT_PAGES, ROOT, first_sentence, links_out
from tests.test_doc_links import anchors

PAGES: Final = sorted(ROOT.glob("docs/**/*.md"))
_LOADED: Final = re.compile(r"<(?:script|img|iframe)[^>]* src=\"?([^\"\s>]+)|<link[^>]* href=\"?([^\"\s>]+)")
_ID: Final = re.compile(r"\bid=\"?([^\"\s>]+)")


def stubs() -> list[str]:
    """Return the pages of the site that only redirect to other pages."""
    pages = ROOT.glob("docs/*.md")
    return [page.name for page in pages if page.read_text("utf-8").startswith("---\nsearch:")]


def test_each_page_has_its_html_its_markdown_and_githubs_anchors(site: Path) -> None:
    for page in PAGES:
        uri = page.relative_to(ROOT / "docs")
        html = site / uri.with_suffix(".html")
        assert (site / uri).exists()
        missing = anchors(page) - set(_ID.findall(html.read_text("utf-8")))
        assert not missing, f"{html.name} lacks {missing}"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for html in site.rglob("*.html"):
        for source, link in _LOADED.findall(html.read_text("utf-8")):
            assert not re.match(r"(?:https?:)?//", source or link), f"{html.name} loads {source or link}"


def test_llms_txt_lists_each_page_and_its_links_lead_to_markdown(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    assert text.startswith("# Graphward\n\n> A policy proxy ")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.M)
    assert all((site / link).read_text("utf-8").lstrip().startswith(("#", "<", "---")) for link in listed)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent != ROOT / "docs"]
    assert set(listed) >= {*pages, "index.md", "glossary.md", "project/architecture.md"}
    assert not set(listed) & set(stubs())


def test_a_stub_is_not_found_by_a_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert not found & {stub.replace(".md", ".html") for stub in stubs()}
    assert not [location for location in found if location.startswith("files/")]


def test_the_description_of_the_apis_is_served(site: Path) -> None:
    assert json.loads((site / "openapi.json").read_text("utf-8"))["openapi"]


def test_a_link_out_of_the_docs_leads_to_a_copy(site: Path) -> None:
    assert (site / "files/compose.yaml.txt").read_text("utf-8") == (ROOT / "compose.yaml").read_text("utf-8")


def test_a_dead_link_out_of_the_docs_is_found() -> None:
    page = "See [a](../../conf/none.toml), [b](../../conf/proxy.toml#x), [c](../rules.md) and `[d](../../x)`."
    assert list(links_out("how-to/a.md", page)) == [
        ("conf/none.toml", None),
        ("conf/proxy.toml", "files/conf/proxy.toml.txt"),
    ]


@pytest.mark.parametrize("path", PROJECT_PAGES)
def test_each_page_of_the_project_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("# A\n\nA *proxy* `x.y` sends\n[requests](a.md). It logs.\n", "A proxy x.y sends requests."),
        ("# Title\n\n<a id='a'></a>\n## Next\n\nA limit, e.g. of bytes. More.\n", "A limit, e.g. of bytes."),
        ("# Title\n\n- an item\n", ""),
    ],
)
def test_the_first_sentence_of_a_page(page: str, sentence: str) -> None:
    assert first_sentence(page) == sentence
