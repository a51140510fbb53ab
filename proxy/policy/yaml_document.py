"""A YAML document as plain values with their line numbers, bounded in size, depth and number of nodes.

The parser reads the YAML text event by event, so that nesting cannot exhaust a stack, and counts each alias.
The parser uses only those implicit types of YAML that JSON has (YAML 1.2 core). For example, the parser reads
`no` and `18:00` as text, as the author of the YAML text intended. The parser returns a number or boolean in
an unusual spelling as a `Written` (scalars.py), which keeps the spelling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from proxy.policy.scalars import read_plain
from proxy.policy.visible import escaped, unseen_in

_NEXT_LINE = "\x85"
MAX_CHARACTERS = 8 * 1024 * 1024
MAX_NODES = 1_000_000  # an alias counts as many nodes as its target
MAX_DEPTH = 32
MAX_KEY_CHARACTERS = 1024  # each error below a key names it; YAML has the same limit for most keys
# one more problem says that there are more, so that the report is not many times as long as the text
MAX_PROBLEMS = 100

_LONGEST_WHERE = 200
_LONGEST_MESSAGE = 1000

_KNOWN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map", "int", "float", "bool", "null")
)

Where = tuple[int | str, ...]
Problem = tuple[int, int, str, str]
Mark = tuple[int, int]


_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class InvalidYaml(ValueError):
    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(problem[3] for problem in problems))


@dataclass(slots=True)
class _Node:
    """Value of a YAML document, with its position in the text.

    Most nodes are scalars, so all scalar nodes share the same empty `keys` and `below` to save memory.
    """

    mark: Mark
    value: Any
    keys: dict[str, Mark]
    below: dict[int | str, _Node]
    size: int = 1


_NO_KEYS: dict[str, Mark] = {}
_NOTHING_BELOW: dict[int | str, _Node] = {}


@dataclass(slots=True)
class _Open:
    """A YAML list or mapping that the parser has begun but not finished."""

    node: _Node
    where: Where
    anchor: str | None
    is_mapping: bool
    key: str | None = None
    key_is_next: bool = True


@dataclass(frozen=True, slots=True)
class Unseen:
    """YAML scalar or key that contains an invisible character.

    `by_escape` is True if the YAML source has an escape for the invisible character.
    """

    mark: Mark
    where: Where
    char: str
    text: str
    by_escape: bool
    may_be_elsewhere: bool  # True for an anchor, because aliases may refer to it


@dataclass(frozen=True, slots=True)
class Document:
    root: _Node
    problems: tuple[Problem, ...]
    unseen: tuple[Unseen, ...] = ()

    @property
    def value(self) -> object:
        return self.root.value

    def known_part(self, where: Where) -> Where:
        """Return the part of a key path that exists in the document.

        The returned part includes the last key of the key path even if the document lacks this key.
        """
        node = self.root
        known: list[int | str] = []
        for at, part in enumerate(where):
            below = node.below.get(part)
            if below is None:
                if at == len(where) - 1 and isinstance(part, str) and isinstance(node.value, dict):
                    known.append(part)
                break
            known.append(part)
            node = below
        return tuple(known)

    def mark(self, where: Where, *, at_key: bool) -> Mark:
        """Return the line and column of a value, counted from 1.

        If the document lacks the value, return the position of the innermost value that would contain it.
        """
        node = self.root
        for at, part in enumerate(where):
            below = node.below.get(part)
            if below is None:
                return node.mark
            if at_key and at == len(where) - 1 and isinstance(part, str):
                return node.keys[part]
            node = below
        return node.mark


def spelled(where: Where) -> str:
    """Return a place in a YAML document as text, such as `rules[3].match.path[0]`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return cut(text, _LONGEST_WHERE) or "document"


def problem(mark: Mark, where: Where, message: str) -> Problem:
    """Return a problem of a YAML document, with its place and its message escaped and shortened.

    Each alias of a YAML document can repeat a very long text.
    """
    return (*mark, escaped(spelled(where)), cut(escaped(message)))


def cut(text: str, most: int = _LONGEST_MESSAGE) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def parse(text: str) -> Document:
    """Parse a YAML document. Raise InvalidYaml if the text is not a valid YAML document."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidYaml([(1, 1, "document", f"the YAML text is longer than {MAX_CHARACTERS} characters")])
    builder = _Builder(text)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        line, column = (at.line + 1, at.column + 1) if at is not None else (1, 1)
        what = f"the text is not YAML: {error.problem or error.context}{_brace_hint(text, line, column)}"
        raise builder.refused((line, column), (), what) from None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        if isinstance(error, InvalidYaml):
            raise
        raise builder.refused((1, 1), (), f"the text is not YAML: {error}") from None
    if builder.root is None:
        raise InvalidYaml([(1, 1, "document", "the YAML document is empty")])
    return Document(builder.root, tuple(builder.problems), tuple(builder.unseen))


def _brace_hint(text: str, line: int, column: int) -> str:
    """Return a hint if the YAML error comes from a brace without quotes, as in `[/v1.0/users/{id}]`."""
    lines = text.splitlines()
    at = lines[line - 1][column - 1 : column] if line <= len(lines) else ""
    return ": put text that has { or } in quotes" if at in ("{", "}") else ""


def _events(text: str) -> Iterator[Any]:
    return iter(yaml.parse(text, Loader=yaml.CSafeLoader))


class _Builder:
    def __init__(self, text: str) -> None:
        self.root: _Node | None = None
        self.problems: list[Problem] = []
        self.unseen: list[Unseen] = []
        self._text = text
        self._open: list[_Open] = []
        self._anchors: dict[str, _Node] = {}
        self._nodes = 0
        self._documents = 0

    def refused(self, mark: Mark, where: Where, message: str) -> InvalidYaml:
        return InvalidYaml([*self.problems, problem(mark, where, message)])

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self.refused(_mark(event), (), "the YAML text has more than one document")
        elif isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event), event)
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._aliased(event), event)
        elif isinstance(event, _STARTS):
            self._begin(event)
        elif isinstance(event, _ENDS):
            self._end()

    def _begin(self, event: Any) -> None:
        where = self._where()
        if len(self._open) >= MAX_DEPTH:
            raise self.refused(_mark(event), where, f"the YAML text is nested deeper than {MAX_DEPTH} levels")
        if self._open and self._open[-1].is_mapping and self._open[-1].key_is_next:
            raise self.refused(_mark(event), where, "a YAML key must be text")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._nodes += 1
        self._check_tag(event)
        node = _Node(_mark(event), {} if is_mapping else [], keys={}, below={})
        self._open.append(_Open(node, where, event.anchor, is_mapping))

    def _end(self) -> None:
        closed = self._open.pop()
        if closed.anchor:
            self._anchors[closed.anchor] = closed.node
        self._place(closed.node)

    def _add(self, node: _Node, event: Any) -> None:
        self._nodes += node.size
        if self._nodes > MAX_NODES:
            raise self.refused(_mark(event), self._where(), f"the YAML text has more than {MAX_NODES} nodes")
        around = self._open[-1] if self._open else None
        if around is not None and around.is_mapping and around.key_is_next:
            self._take_key(around, node, event)
            return
        if isinstance(event, yaml.ScalarEvent) and event.anchor:
            self._anchors[event.anchor] = node
        self._place(node)

    def _take_key(self, around: _Open, node: _Node, event: Any) -> None:
        key = event.value if isinstance(event, yaml.ScalarEvent) else node.value
        if not isinstance(key, str):
            raise self.refused(node.mark, around.where, "a YAML key must be text")
        if len(key) > MAX_KEY_CHARACTERS:
            raise self.refused(
                _mark(event), around.where, f"a YAML key is longer than {MAX_KEY_CHARACTERS} characters"
            )
        if key == "<<":
            self._problem(node.mark, around.where, "merge keys (<<) are not supported")
        elif key in around.node.below:
            self._problem(_mark(event), (*around.where, key), f"the key `{key}` occurs twice")
        else:
            around.node.keys[key] = _mark(event)
        around.key = key
        around.key_is_next = False

    def _place(self, node: _Node) -> None:
        if not self._open:
            self.root = node
            return
        around = self._open[-1]
        around.node.size += node.size
        if not around.is_mapping:
            around.node.below[len(around.node.value)] = node
            around.node.value.append(node.value)
            return
        key = around.key or ""
        if key not in around.node.below and key != "<<":
            around.node.below[key] = node
            around.node.value[key] = node.value
        around.key_is_next = True

    def _scalar(self, event: Any) -> _Node:
        self._check_tag(event)
        mark = _mark(event)
        char = unseen_in(event.value) or self._line_end_in(event)
        if char is not None and len(self.unseen) <= MAX_PROBLEMS:
            self._note_unseen(event, mark, char)
        is_text = event.tag.endswith(":str") if event.tag is not None else not event.implicit[0]
        return _Node(mark, event.value if is_text else read_plain(event.value), _NO_KEYS, _NOTHING_BELOW)

    def _line_end_in(self, event: Any) -> str | None:
        """Return the next-line character if the source of the YAML event contains it; otherwise None.

        Text editors do not show the next-line character (U+0085). In a quoted scalar, YAML reads this
        character as a space.
        """
        if _NEXT_LINE not in self._text:
            return None
        return _NEXT_LINE if _NEXT_LINE in self._text[event.start_mark.index : event.end_mark.index] else None

    def _note_unseen(self, event: Any, mark: Mark, char: str) -> None:
        source = self._text[event.start_mark.index : event.end_mark.index]
        around = self._open[-1] if self._open else None
        is_key = around is not None and around.is_mapping and around.key_is_next
        where = (*self._where(), event.value) if is_key else self._where()
        self.unseen.append(
            Unseen(mark, where, char, event.value, unseen_in(source) is None, event.anchor is not None)
        )

    def _aliased(self, event: Any) -> _Node:
        target = self._anchors.get(event.anchor)
        if target is None:
            message = (
                f"the alias `*{event.anchor}` refers to an anchor that does not exist or has not ended yet"
            )
            raise self.refused(_mark(event), self._where(), message)
        return target

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None and event.tag not in _KNOWN_TAGS and event.tag != "!":
            self._problem(_mark(event), self._where(), f"the tag {event.tag} is not supported")

    def _problem(self, mark: Mark, where: Where, message: str) -> None:
        """Add a problem to the report of the YAML document.

        Raise InvalidYaml if the report has too many problems.
        """
        self.problems.append(problem(mark, where, message))
        if len(self.problems) > MAX_PROBLEMS:
            raise InvalidYaml(self.problems)

    def _where(self) -> Where:
        if not self._open:
            return ()
        around = self._open[-1]
        if around.is_mapping:
            return around.where if around.key_is_next else (*around.where, around.key or "")
        return (*around.where, len(around.node.value))


def _mark(event: Any) -> Mark:
    return event.start_mark.line + 1, event.start_mark.column + 1
