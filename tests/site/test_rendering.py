"""Tests that each page reads the same on GitHub and on the documentation site."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import markdown
import pytest
from markdown_it import MarkdownIt
from mkdocs.config import load_config

from tests.site import hook

PAGES: Final = sorted([*hook.ROOT.glob("docs/**/*.md"), *(hook.ROOT / page for page in hook.PROJECT_PAGES)])
_BLOCKS: Final = ("ul", "ol", "li", "pre", "blockquote", "table", "tr", "h1", "h2", "h3", "h4", "h5", "h6")
_VOID: Final = ("br", "hr", "img", "input")
_github: Final = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_config: Final = load_config(str(hook.ROOT / "mkdocs.yml"))
_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n", re.S)


class _Outline(HTMLParser):
    """Outline of a web page, in which each line is a piece of text and the HTML elements that contain it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._words = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in _BLOCKS:
            self._end_line()
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_line()
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self._words += data

    def _end_line(self) -> None:
        words = "".join(self._words.split())
        if words:
            self.lines.append((" ".join(self._open), words))
        self._words = ""


def outline(html: str) -> list[tuple[str, str]]:
    parser = _Outline()
    parser.feed(html.replace("&para;", "").replace("¶", ""))
    return parser.lines


def on_the_site(text: str) -> str:
    converter = markdown.Markdown(
        extensions=_config["markdown_extensions"], extension_configs=_config["mdx_configs"]
    )
    return str(converter.convert(hook.for_python_markdown(text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(hook.ROOT).as_posix())
def test_a_page_reads_the_same_on_github_and_on_the_site(page: Path) -> None:
    text = _FRONT_MATTER.sub("", page.read_text("utf-8"))
    assert outline(on_the_site(text)) == outline(_github.render(text))
