"""Tests that no text has a writing habit that makes the docs and the code hard to read.

`python -m tests.test_prose HABIT` lists all places with one of these habits.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
LOG_METHODS: Final = ("debug", "info", "warning", "error", "exception", "critical", "log")
PROGRAMS: Final = ("proxy", "controlplane", "graphward", "bench")
CONFIGURATION: Final = ("toml", "yaml", "yml")
LONGEST_SENTENCE: Final = 30  # words of a sentence in the docs


class Kind(Enum):
    DOCS = "docs"
    DOCSTRING = "docstring"
    COMMENT = "comment"
    MESSAGE = "message"  # text of an exception or of a log line
    HELP = "help"  # text of a command's or an option's help
    CONSOLE = "console"  # visible text of a page of the console


@dataclass(frozen=True, slots=True)
class Text:
    """One paragraph of a page, or one docstring, comment, message or help text, and where it begins."""

    kind: Kind
    place: str
    words: str


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives))


_STARTS: Final = r"(?:^|(?<=[.:;!] ))"  # start of a sentence or of a part of one
_BEFORE: Final = r"\b(?:about|as|at|by|for|from|in|of|on|than|to|with)"

# Habits that are wrong in every kind of text.
ANYWHERE: Final = {
    # A relative clause without its noun: `to who asks`, `of what it holds`, `Who can't sign learns nothing.`
    "headless clause": _pattern(
        rf"{_BEFORE} (?:who|whoever|what|whatever)\b",
        rf"{_STARTS}(?:[Ww]ho|[Ww]hoever|[Ww]hatever|What(?! (?:is|are|does|to)\b))\b(?![^.]*\?)",
    ),
    # A place instead of a condition: `None where there is none`
    "where for if": _pattern(
        rf"{_STARTS}Where\b(?![^.]*\?)",
        r"\b(?:None|True|False|[Rr]aises? \w+|unless|except|but|only|even|also|not) where\b",
        r"\bwhere (?:there|none|no|nothing|nobody|neither)\b",
    ),
    "archaism": _pattern(
        r"\b(?:[Ll]est|amid|hitherto|thereof|therein|whatsoever|anew|nought|thence|whence)\b",
        r"\bbefalls?\b|\bbefallen\b|\b[Bb]e it\b|\bbut for\b|\b[Ff]or want of\b|\bin vain\b|\bin earnest\b",
        r"\b(?:nor|neither) (?:do|does|did|is|are|was|were|can|may|has|have)\b|\b(?:of late|as ever)\b",
        r"\bof (?:theirs|ours|yours|his|hers)\b",
    ),
    # The noun is negated instead of the verb: `it is no idle one`, `counts for none`. `There is no` is fine.
    "negated noun": _pattern(
        r"(?<![Tt]here )\b(?:is|are|was|were|be|been) no (?!longer|more|less|fewer|later|other|one\b)\w+",
        r"(?<![Tt]here )\b(?:is|are|was|were|be|been|as|for) none\b",
    ),
    "late adverb": _pattern(r"\b(?:meanwhile|by then|by now)\b"),
    "what came of": _pattern(r"\b(?:became|become|came|comes|come) of\b"),
    # A process that acts like a person: `the worker hears`, `tells the agent`, `has its turn`
    "personified process": _pattern(
        r"\b(?:hears?|heard|heeds?|heeded|tells?|told|forgets?|forgot|believes?|believed)\b",
        r"\bbur(?:y|ies|ied)\b|\b(?<!you )(?:knows|knew|know of)\b|\basks? nobody\b",
        r"\b(?:has|have|had|takes?|waits? for) (?:its|their) turn\b",
    ),
}
_FRAGMENT: Final = _pattern(
    r"(?:Of|By|In|As|At|To|For|From|On|With|Within|Without|Under|Until|Beside|Than)\b",
    r"(?:Both|Those|These|Such|None|Neither|Nothing|Nobody|The same|The others?|Likewise)\b",
    r"One (?:of (?:them|those|these)|that|for)\b",
)
_QUESTION: Final = re.compile(r"(?:What|Who|Whom|Whose|Which|How|Why|Whether|Where|Whoever|Whatever)\b")
_COMMENT_FRAGMENT: Final = re.compile(r"(?:of|by|in|as|to|for|from|with|at|on|than|within|under)\b")
_NO_PROSE: Final = re.compile(r'`[^`]*`|<a id="[^"]*"></a>')
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.M | re.S)
# A string, or a comment as group 1. This takes a hundredth of the time of the tokenize module.
_STRING_OR_COMMENT: Final = re.compile(
    r'""".*?(?<!\\)"""|"(?:\\.|[^"\\\n])*"|'
    r"'''.*?(?<!\\)'''|(?<!\w)[rbfuRBFU]*'(?:\\.|[^'\\\n])*'|(#[^\n]*)",
    re.S,
)
_BEFORE_DOCSTRING: Final = re.compile(r":(?: *#[^\n]*)?\n\s*r?\Z")  # end of a line that begins a block
_UNSEEN: Final = re.compile(r"\{#.*?#\}|\{%.*?%\}|<(script|style)\b.*?</\1>|<!--.*?-->", re.S)
_SHOWN_ATTRIBUTE: Final = re.compile(r'\b(?:title|placeholder|aria-label|alt)="([^"]*[^"\s][^"]*)"')
_INLINE_TAG: Final = re.compile(r"</?(?:a|abbr|b|bdi|code|em|i|kbd|mark|span|strong|time)\b[^>]*>")
_TAG: Final = re.compile(r"(<[^>]*>)")

HABITS: Final = (
    *ANYWHERE,
    "docstring fragment",
    "docstring question",
    "docstring of three words",
    "comment fragment",
    "long sentence in docs",
)


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?:]) +(?=[A-Z`*(\[])", text)


def habits(text: Text) -> Iterator[str]:
    """Yield the name of each habit of prose that a text has, once for each occurrence."""
    for habit, pattern in ANYWHERE.items():
        for _ in pattern.finditer(_NO_PROSE.sub("`x`", text.words)):
            yield habit
    first = sentences(text.words)[0]
    if text.kind is Kind.DOCSTRING:
        if _FRAGMENT.match(first):
            yield "docstring fragment"
        if _QUESTION.match(first):
            yield "docstring question"
        if len(first.split()) <= 3:
            yield "docstring of three words"
    elif text.kind is Kind.COMMENT and _COMMENT_FRAGMENT.match(first):
        yield "comment fragment"
    elif text.kind is Kind.DOCS and not text.words.startswith(("|", "#", "<")):
        for sentence in sentences(text.words):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield "long sentence in docs"


def texts_of_source(file: str, source: str) -> Iterator[Text]:
    for node in _nodes(ast.parse(source, file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Text(Kind.DOCSTRING, f"{file}:{node.body[0].lineno}", " ".join(docstring.split()))
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_log_call(node)):
            for message in _strings(node):
                yield Text(Kind.MESSAGE, f"{file}:{node.lineno}", message)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            for words in _strings(node.value):
                yield Text(Kind.HELP, f"{file}:{node.value.lineno}", words)
    for line, comment in _comments(source):
        yield Text(Kind.COMMENT, f"{file}:{line}", comment)


def texts_of_tests(file: str, source: str) -> Iterator[Text]:
    """Yield docstrings and comments without a parser, six times as fast as `texts_of_source`."""
    for found in _STRING_OR_COMMENT.finditer(source):
        start = found.start()
        before = source[max(start - 120, 0) : start]
        if found[0].startswith('"""') and (not before.strip() or _BEFORE_DOCSTRING.search(before)):
            line = source.count("\n", 0, start) + 1
            yield Text(Kind.DOCSTRING, f"{file}:{line}", " ".join(found[0].strip('"').split()))
    for line, comment in _comments(source):
        yield Text(Kind.COMMENT, f"{file}:{line}", comment)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a tree, in a third of the time of ast.walk."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]


def _is_log_call(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in LOG_METHODS
        and "log" in ast.unparse(node.func.value).lower()
    )


def _strings(node: ast.AST) -> Iterator[str]:
    """Yield each string in an expression if the string has several words.

    Each value within an f-string is replaced by `x`.
    """
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
        yield " ".join("".join(map(str, parts)).split())
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value.strip():
            yield " ".join(node.value.split())
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment of a Python, TOML or YAML file with the number of its first line.

    Comments on successive lines count as one comment.
    """
    block: list[str] = []
    begins = last = line = 1
    position = 0
    for found in _STRING_OR_COMMENT.finditer(source):
        if found[1] is None:
            continue
        line += source.count("\n", position, found.start())
        position = found.start()
        alone = not source[source.rfind("\n", 0, position) + 1 : position].strip()
        if block and not (alone and line == last + 1):
            yield begins, " ".join(block)
            block = []
        if not block:
            begins = line
        block.append(found[1].lstrip("#: "))
        last = line if alone else 0
    if block:
        yield begins, " ".join(block)


def texts_of_configuration(file: str, source: str) -> Iterator[Text]:
    for line, comment in _comments(source):
        yield Text(Kind.COMMENT, f"{file}:{line}", comment)


def texts_of_template(file: str, template: str) -> Iterator[Text]:
    """Yield the visible text of a console page: elements, and attributes that browsers show or read out."""
    template = _UNSEEN.sub(lambda part: "\n" * part[0].count("\n"), template)
    template = re.sub(r"\{\{.*?\}\}", lambda value: "x" + "\n" * value[0].count("\n"), template, flags=re.S)
    for attribute in _SHOWN_ATTRIBUTE.finditer(template):
        begins = template.count("\n", 0, attribute.start()) + 1
        yield Text(Kind.CONSOLE, f"{file}:{begins}", " ".join(attribute[1].split()))
    line = 1
    for part in _TAG.split(_INLINE_TAG.sub(lambda tag: "\n" * tag[0].count("\n"), template)):
        words = " ".join(part.split())
        if words and not part.startswith("<"):
            begins = line + part.count("\n", 0, len(part) - len(part.lstrip()))
            yield Text(Kind.CONSOLE, f"{file}:{begins}", words)
        line += part.count("\n")


def texts_of_docs(file: str, page: str) -> Iterator[Text]:
    """Yield the paragraphs, headings, list items and table rows of a page, without its code blocks."""
    page = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), page)
    starts = [found.start() for found in re.finditer(r"(?:\A|(?<=\n)) *(?:[-*|#>]|\d+\.) |\n *\n", page)]
    for start, end in pairwise([0, *starts, len(page)]):
        words = " ".join(page[start:end].split())
        if words:
            begins = page.count("\n", 0, start + len(page[start:end]) - len(page[start:end].lstrip())) + 1
            yield Text(Kind.DOCS, f"{file}:{begins}", re.sub(r"^(?:[-*>]|\d+\.) ", "", words))


def texts() -> Iterator[Text]:
    sources = [file for top in PROGRAMS for file in (ROOT / top).rglob("*.py")]
    configuration = [file for ending in CONFIGURATION for file in (ROOT / "conf").rglob(f"*.{ending}")]
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "bench").glob("*.md")]
    for reader, files in (
        (texts_of_source, [*sources, ROOT / "dev"]),
        (texts_of_tests, [*(ROOT / "tests").rglob("*.py")]),
        (texts_of_configuration, configuration),
        (texts_of_template, [*(ROOT / "controlplane" / "console").rglob("*.html")]),
        (texts_of_docs, pages),
    ):
        for file in sorted(files):
            yield from reader(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))


@cache
def places() -> dict[str, list[str]]:
    """Return the places of all bad writing habits in the texts, by the name of the habit."""
    found: dict[str, list[str]] = {habit: [] for habit in HABITS}
    for text in texts():
        for habit in habits(text):
            found[habit].append(f"{text.place}: {text.kind.value}: {text.words[:200]}")
    return found


def _found(text: Text) -> list[str]:
    return sorted(habits(text))


@pytest.mark.parametrize(
    ("habit", "words"),
    [
        ("headless clause", "Reveal it only to who has the secret."),
        ("headless clause", "The size of what is kept is bounded."),
        ("headless clause", "Whoever asks waits."),
        ("where for if", "Return None where the header is missing."),
        ("where for if", "Use the default where there is no setting."),
        ("where for if", "Where a rule is missing, nothing passes."),
        ("archaism", "Close it, lest it stay open."),
        ("archaism", "The proxy builds the index anew."),
        ("archaism", "This is a token of ours."),
        ("late adverb", "The agent meanwhile sends the batch."),
        ("what came of", "The log says what became of the request."),
        ("negated noun", "The connection is no idle one."),
        ("negated noun", "A broken token counts for none."),
        ("personified process", "The worker hears of the stop."),
        ("personified process", "The agent tells each worker."),
        ("personified process", "Each request has its turn."),
    ],
)
def test_a_habit_is_found_in_docs_comments_and_messages(habit: str, words: str) -> None:
    for kind in (Kind.DOCS, Kind.COMMENT, Kind.MESSAGE):
        assert _found(Text(kind, "", words)) == [habit]


@pytest.mark.parametrize(
    "words",
    [
        "Reveal the stop only to a caller that proved it has the secret.",
        "Return None if the header is missing.",
        "Show the line where the text begins.",
        "There is no rule for this path, and it is no longer active.",
        "This connection does not count as idle.",
        "Send rules to the old workers, whose tokens are theirs alone.",
        "What is a ruleset? Rules in the order of evaluation.",
        "The option `where it is none` stays as published.",
    ],
)
def test_plain_english_has_none_of_the_habits(words: str) -> None:
    for kind in (Kind.DOCS, Kind.COMMENT, Kind.MESSAGE):
        assert _found(Text(kind, "", words)) == []


@pytest.mark.parametrize(
    ("kind", "words", "found"),
    [
        (Kind.DOCSTRING, "Of a block among the others.", ["docstring fragment"]),
        (Kind.DOCSTRING, "Whether a caller may look at the page.", ["docstring question"]),
        (Kind.DOCSTRING, "By an exec.", ["docstring fragment", "docstring of three words"]),
        (Kind.DOCSTRING, "Position of a block. It counts from one.", []),
        (Kind.COMMENT, "of a refused body that is read and dropped", ["comment fragment"]),
        (Kind.COMMENT, "bytes of a refused body to discard", []),
        (Kind.DOCS, f"The proxy sends {'many ' * 30}bytes.", ["long sentence in docs"]),
        (Kind.DOCS, f"The proxy sends {'many ' * 20}bytes. It sends {'many ' * 20}bytes.", []),
        (Kind.DOCS, f"| key | {'many ' * 40}bytes |", []),
        (Kind.DOCSTRING, f"The proxy sends {'many ' * 30}bytes.", []),
    ],
)
def test_some_habits_belong_to_one_kind_of_text(kind: Kind, words: str, found: list[str]) -> None:
    assert _found(Text(kind, "", words)) == sorted(found)


def test_the_texts_of_a_source_are_docstrings_comments_and_messages() -> None:
    source = '''"""Module\'s text."""

# One comment
# of two lines
x = "# no comment"  # a comment beside code
# another comment

def f(y):
    """Function\'s text."""
    logger.info("%s: log line", y)
    unlogged("some text")
    raise ValueError(f"{y}: bad value")
'''
    assert {(text.kind, text.place, text.words) for text in texts_of_source("a.py", source)} == {
        (Kind.DOCSTRING, "a.py:1", "Module's text."),
        (Kind.COMMENT, "a.py:3", "One comment of two lines"),
        (Kind.COMMENT, "a.py:5", "a comment beside code"),
        (Kind.COMMENT, "a.py:6", "another comment"),
        (Kind.DOCSTRING, "a.py:9", "Function's text."),
        (Kind.MESSAGE, "a.py:10", "%s: log line"),
        (Kind.MESSAGE, "a.py:12", "x: bad value"),
    }


def test_the_texts_of_tests_are_those_that_a_parser_finds() -> None:
    kinds = (Kind.DOCSTRING, Kind.COMMENT)
    for file in (ROOT / "tests").glob("*.py"):
        source = file.read_text("utf-8")
        parsed = [text for text in texts_of_source("a.py", source) if text.kind in kinds]
        assert set(texts_of_tests("a.py", source)) == set(parsed)


def test_the_texts_of_a_command_are_its_help_too() -> None:
    source = """
app.add_typer(other, name="other", help="Commands for tokens.")
_Name = Annotated[str, typer.Option("--name", metavar="NAME", help=f"Name or ID of {THING}.")]
"""
    assert {(text.kind, text.place, text.words) for text in texts_of_source("a.py", source)} == {
        (Kind.HELP, "a.py:2", "Commands for tokens."),
        (Kind.HELP, "a.py:3", "Name or ID of x."),
    }


def test_the_texts_of_a_configuration_are_its_comments() -> None:
    source = '# A file\n# of settings\n[Section]\nKey = "# no comment" # why\nname: it\'s # another\n'
    assert [(text.place, text.words) for text in texts_of_configuration("a.toml", source)] == [
        ("a.toml:1", "A file of settings"),
        ("a.toml:4", "why"),
        ("a.toml:5", "another"),
    ]


def test_the_texts_of_a_template_are_what_a_reader_sees_or_hears() -> None:
    template = """{% extends "layout.html" %}
{# a comment #}
<p class="lead">Health is
based on <b>{{ age(x) }}</b>.</p>
<script>let hidden = "text";</script>
<button title="Close it">Close</button>
"""
    assert [(text.place, text.words) for text in texts_of_template("a.html", template)] == [
        ("a.html:6", "Close it"),
        ("a.html:3", "Health is based on x."),
        ("a.html:6", "Close"),
    ]


def test_the_texts_of_a_page_are_its_paragraphs_items_and_rows() -> None:
    page = """# Title

A paragraph
of two lines.
- an item
  of two lines
- another item

```
no text
```
| a | row |
1. a step
"""
    assert [(text.place, text.words) for text in texts_of_docs("a.md", page)] == [
        ("a.md:1", "# Title"),
        ("a.md:3", "A paragraph of two lines."),
        ("a.md:5", "an item of two lines"),
        ("a.md:7", "another item"),
        ("a.md:12", "| a | row |"),
        ("a.md:13", "a step"),
    ]


@pytest.mark.parametrize("habit", HABITS)
def test_no_text_has_the_habit(habit: str) -> None:
    assert places()[habit] == [], "state this in another way: CONTRIBUTING.md, Style of the texts"


def main(arguments: Iterable[str]) -> None:
    for habit in arguments:
        print("\n".join(places().get(habit, [f"no such habit; there are: {', '.join(HABITS)}"])))


if __name__ == "__main__":
    main(sys.argv[1:])
