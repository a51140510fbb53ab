"""Extensions of mkdocs: pages and files from outside docs/, GitHub's Markdown, and llms.txt."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
# Pages that lie outside docs/, and their places in the site.
PROJECT_PAGES: Final = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/benchmarks.md",
    "bench/RESULTS.md": "project/benchmark-results.md",
    "README.md": "index.md",  # docs/index.md says the same to a reader of the site
}
_REPOSITORY_PATHS: Final = {uri: path for path, uri in PROJECT_PAGES.items() if path != "README.md"}
# Long lists that mention everything: a search ranks pages that explain a subject above them.
_FOUND_LATER: Final = ("project/changelog.md", "project/benchmark-results.md")
_LOW_BOOST: Final = 0.3
_FILES: Final = "files"  # directory of the site for other files of the repository
_PICTURES: Final = (".svg", ".png")
_LIST_INDENT: Final = 4  # columns by which Python-Markdown wants the text of a list item
_NO_SEARCH: Final = "---\nsearch:\n  exclude: true\n---\n"
# A block of code, a piece of code, or the destination of a link or a picture.
_LINK: Final = re.compile(
    r"^ *```.*?^ *```|`[^`\n]+`"
    r"|(?<=\]\()(?P<path>(?![a-z]+:|#|/)[^)#\s]+)(?P<anchor>#[^)\s]+)?(?=\))",
    re.M | re.S,
)
_CODE: Final = re.compile(r"`[^`\n]+`")
_log: Final = logging.getLogger("mkdocs.hooks.graphward")  # strict mode counts warnings below "mkdocs"
_commonmark: Final = MarkdownIt("commonmark").enable("table")
_served: dict[str, str] = {}  # Markdown of each page, by its place in the site


def repository_path(uri: str) -> str:
    """Return the repository path of a page of the documentation site."""
    return _REPOSITORY_PATHS.get(uri, f"docs/{uri}")


def site_uri(path: str) -> str | None:
    """Return the site's path for a file or directory of the repository, or None if there is no such file."""
    if path in PROJECT_PAGES:
        return PROJECT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/") if (ROOT / path).exists() else None
    if (ROOT / path).is_dir():
        return f"{_FILES}/{path}/index.md"
    if not (ROOT / path).is_file():
        return None
    return f"{_FILES}/{path}" if path.endswith(_PICTURES) else f"{_FILES}/{path}.txt"


def links_out(uri: str, markdown: str) -> Iterator[tuple[str, str | None]]:
    """Yield the repository path and the site's path of each link to a file outside docs/."""
    for link in _LINK.finditer(markdown):
        if link["path"]:
            path = _target(uri, link["path"])
            place = site_uri(path)
            if place is None or place.startswith(f"{_FILES}/"):
                yield path, place


def with_links_of_the_site(uri: str, markdown: str) -> str:
    def rewrite(link: re.Match[str]) -> str:
        place = site_uri(_target(uri, link["path"])) if link["path"] else None
        if place is None:
            return link[0]
        return posixpath.relpath(place, posixpath.dirname(uri) or ".") + (link["anchor"] or "")

    return _LINK.sub(rewrite, markdown)


def _target(uri: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(uri)), link))


def for_python_markdown(markdown: str) -> str:
    """Return Markdown that Python-Markdown reads as GitHub reads the given Markdown.

    Python-Markdown needs four columns for the content of a list item, a blank line between a paragraph and a
    list or a table, and unescaped bars within the code of a table.
    """
    lines = markdown.split("\n")
    indents: dict[int, tuple[int, int]] = {}  # columns to remove from a line, and columns to put there
    spaced: set[int] = set()  # lines before which a blank line is missing
    depth = 0
    for token in _commonmark.parse(markdown):
        if token.type in ("bullet_list_open", "ordered_list_open"):
            start = _first_line(token)
            if depth == 0 and start > 0:
                spaced.add(start)
        elif token.type == "list_item_open" and token.map is not None:
            start, end = token.map
            content = _content_column(lines[start])
            for number in range(start + 1, end):
                indents[number] = (content, _LIST_INDENT * (depth + 1))
            indents[start] = (len(lines[start]) - len(lines[start].lstrip()), _LIST_INDENT * depth)
            if any(not line.strip() for line in lines[start:end]):
                spaced.add(end)  # the next item would belong to the last paragraph of this one
            depth += 1
        elif token.type == "list_item_close":
            depth -= 1
        elif token.type == "table_open" and token.map is not None:
            start, end = token.map
            lines[start:end] = [_CODE.sub(_with_plain_bars, row) for row in lines[start:end]]
            if depth == 0 and start > 0:
                spaced.add(start)
    result: list[str] = []
    for number, line in enumerate(lines):
        if number in spaced and lines[number - 1].strip():
            result.append("")
        result.append(_indented(line, *indents.get(number, (0, 0))))
    return "\n".join(result)


def _with_plain_bars(code: re.Match[str]) -> str:
    return code[0].replace(r"\|", "|")


def _first_line(token: Token) -> int:
    assert token.map is not None
    return token.map[0]


def _content_column(line: str) -> int:
    found = re.match(r" *(?:[-*+]|\d+[.)]) +", line)
    return len(found[0]) if found else 0


def _indented(line: str, remove: int, put: int) -> str:
    present = len(line) - len(line.lstrip(" "))
    return " " * put + line[min(remove, present) :] if line.strip() else ""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files to the site: the project's pages, linked files outside docs/, and the search script."""
    _add("tests/site/search.js", "assets/search.js", files, config)
    for path, uri in PROJECT_PAGES.items():
        if path != "README.md":
            files.append(File.generated(config, uri, content=(ROOT / path).read_text("utf-8")))
    for page in list(files.documentation_pages()):
        for path, place in links_out(page.src_uri, page.content_string):
            if place is None:
                _log.warning("%s links to %s, which does not exist", repository_path(page.src_uri), path)
            elif place.endswith("/index.md"):
                _add_directory(path, place, files, config)
            else:
                _add(path, place, files, config)
    return files


def _add(path: str, place: str, files: Files, config: MkDocsConfig) -> None:
    if files.get_file_from_path(place) is None:
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))


def _add_directory(path: str, place: str, files: Files, config: MkDocsConfig) -> None:
    listing = [f"{_NO_SEARCH}# {path}\n\nThis directory of the repository has these files:\n"]
    for file in sorted((ROOT / path).rglob("*")):
        name = file.relative_to(ROOT).as_posix()
        if file.is_file() and "__pycache__" not in name:
            copy = site_uri(name)
            assert copy is not None
            _add(name, copy, files, config)
            listing.append(f"- [{name}]({posixpath.relpath(copy, posixpath.dirname(place))})")
    if files.get_file_from_path(place) is None:
        files.append(File.generated(config, place, content="\n".join(listing) + "\n"))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links out of docs/, and return the Markdown in a form for Python-Markdown.

    The function also stores the Markdown with rewritten links, which the site serves.
    """
    uri = page.file.src_uri
    if uri in _FOUND_LATER:
        page.meta["search"] = {"boost": _LOW_BOOST}
    if not uri.startswith(f"{_FILES}/"):
        markdown = with_links_of_the_site(uri, markdown)
        _served[uri] = markdown
    return for_python_markdown(markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    config.extra["navigation"] = nav
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown of each page next to the page's HTML, and llms.txt."""
    site = Path(config.site_dir)
    for uri, markdown in _served.items():
        (site / uri).write_text(markdown, "utf-8")
    (site / "llms.txt").write_text(llms_txt(config.extra["navigation"], config), "utf-8")


def llms_txt(nav: Navigation, config: MkDocsConfig) -> str:
    """Return the text of llms.txt, a list of all pages (https://llmstxt.org)."""
    sections = {"Overview": [item for item in nav.items if isinstance(item, Page)]}
    sections |= {item.title: list(_pages(item)) for item in nav.items if isinstance(item, Section)}
    text = f"# {config.site_name}\n\n> {config.site_description}\n"
    for title, pages in sections.items():
        text += f"\n## {title}\n\n" + "".join(map(_entry, pages))
    return text


def _pages(item: Any) -> Iterator[Page]:
    for child in item.children or ():
        if isinstance(child, Page):
            yield child
        else:
            yield from _pages(child)


def _entry(page: Page) -> str:
    uri = page.file.src_uri
    sentence = first_sentence(_served[uri])
    return f"- [{page.title}]({uri})" + (f": {sentence}" if sentence else "") + "\n"


@cache
def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page as plain text, or an empty string if the page has no paragraph."""
    tokens = _commonmark.parse(markdown)
    for token, before in zip(tokens[1:], tokens, strict=False):
        if before.type == "paragraph_open" and before.level == 0:
            words = " ".join("".join(_plain(child) for child in token.children or ()).split())
            if words:
                return re.sub(":$", ".", re.split(r"(?<!\.\w\.)(?<=[.!?:]) ", words)[0])
    return ""


def _plain(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return token.content if token.type in ("text", "code_inline") else ""
