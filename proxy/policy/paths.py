"""Path patterns of rules, and the tree that finds the rules for a path."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from proxy.policy.canonical import ANY_NAME, MalformedTarget, Name, canonicalise
from proxy.policy.odata import qualified_operation
from proxy.policy.visible import escaped, named, unseen_in

MAX_PATTERN_SEGMENTS = 32
_MAX_CACHED_WORD = 64

_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")

T = TypeVar("T")


class InvalidPattern(ValueError):
    """Error because a rule's path pattern is invalid; the message explains the fault to the rule's author."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed path pattern of a rule.

    `segments` has the case-folded resource names of the pattern, and None for each wildcard. `parameters`
    lists the named wildcards of the pattern, with their names and positions.
    """

    segments: tuple[str | None, ...]
    parameters: tuple[tuple[str, int], ...]
    rest: bool  # True if the pattern ends in **

    @property
    def wildcards_from(self) -> int:
        """Position of the first of the wildcards that end the path pattern."""
        at = len(self.segments)
        while at and self.segments[at - 1] is None:
            at -= 1
        return at


def parse_pattern(text: str) -> tuple[Pattern, ...]:
    """Parse a path pattern, and return one pattern for each resource name that it covers.

    Raise InvalidPattern.
    """
    words = _words(text)
    rest = bool(words) and words[-1] == "**"
    if rest:
        words.pop()
    parameters: list[tuple[str, int]] = []
    names: list[list[str | None]] = [[]]
    for word in words:
        found = _PARAMETER.fullmatch(word)
        if found is not None:
            if any(known == found[1] for known, _ in parameters):
                raise InvalidPattern(f"path parameter {{{found[1]}}} occurs twice")
            parameters.append((found[1], len(names[0])))
        if found is not None or word == "*":
            for name in names:
                name.append(None)
        else:
            names = [[*name, *folded] for name in names for folded in _folded_names(word)]
    return tuple(Pattern(tuple(name), tuple(parameters), rest) for name in names)


def _words(text: str) -> list[str]:
    if not text.startswith("/"):
        raise InvalidPattern("a path pattern must begin with a slash")
    if any(char in text for char in "?#\\"):
        raise InvalidPattern(
            "a path pattern must not have a query, fragment or backslash; use conditions for query options"
        )
    words = text[1:].removesuffix("/").split("/") if text != "/" else []
    if len(words) > MAX_PATTERN_SEGMENTS:
        raise InvalidPattern(f"a path pattern must not have more than {MAX_PATTERN_SEGMENTS} segments")
    for at, word in enumerate(words):
        if word in ("", ".", ".."):
            raise InvalidPattern("a path pattern must not have empty segments or dot segments")
        if word == "**" and at != len(words) - 1:
            raise InvalidPattern("** is allowed only at the end of a path pattern")
        if word not in ("*", "**") and "*" in word:
            raise InvalidPattern("* and ** must be whole segments of a path pattern")
        if ("{" in word or "}" in word) and _PARAMETER.fullmatch(word) is None:
            raise InvalidPattern(
                "a path parameter must be a whole segment: {name} with letters, digits, _ and -"
            )
    return words


def _folded_names(word: str) -> tuple[tuple[str, ...], ...]:
    """Return the folded forms in which one segment of a rule's path can occur in request paths.

    The path segment `delta()` is also found under the name `delta`, because clients can write it in both
    ways.

    Most literal path segments of a ruleset occur in many paths of the ruleset. The parsing of literal
    segments takes half of the time to compile a rule, so the results are cached.
    """
    return _read_names_cached(word) if len(word) <= _MAX_CACHED_WORD else _read_names(word)


def _read_names(word: str) -> tuple[tuple[str, ...], ...]:
    try:
        readings = canonicalise("/" + _encoded(word)).readings
    except MalformedTarget as error:
        raise InvalidPattern(f"{word!r}: {error}") from None
    folded = readings[0].names[-1].folded
    if not folded:
        raise InvalidPattern(f"{word!r}: a path pattern must not have empty segments or dot segments")
    operation = qualified_operation(folded[-1])
    if operation is None:
        return (folded,)
    return folded, (*folded[:-1], operation)


_read_names_cached: Final = lru_cache(maxsize=1024)(_read_names)


def _encoded(word: str) -> str:
    decoded = unquote(word, errors="strict") if "%" in word else word
    unseen = unseen_in(decoded)
    if unseen is not None:
        raise InvalidPattern(f"`{escaped(word)}` contains {named(unseen)}, which is invisible: remove it")
    if "%" in decoded or "/" in decoded or not decoded.isprintable():
        raise InvalidPattern(f"{word!r}: write the path segment in its decoded form")
    return "".join(
        char if char.isascii() and char not in "?#" else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in decoded
    )


_NODES_AT_ONCE = 50


@dataclass(slots=True)
class Node(Generic[T]):
    words: dict[str, Node[T]] = field(default_factory=dict)
    wildcard: Node[T] | None = None
    ends: list[T] = field(default_factory=list)
    rests: list[T] = field(default_factory=list)
    # Highest strictness of this node and all nodes below.
    strictness: int = 0


class PathTree(Generic[T]):
    """A search tree of the path patterns of rules.

    The cost of a search depends on the request path, not on the number of patterns.
    """

    def __init__(self) -> None:
        self.root: Node[T] = Node()

    def add(self, pattern: Pattern, value: T, strictness: int = 0) -> None:
        node = self.root
        for word in pattern.segments:
            node.strictness = max(node.strictness, strictness)
            if word is None:
                if node.wildcard is None:
                    node.wildcard = Node()
                node = node.wildcard
            else:
                below = node.words.get(word)
                if below is None:
                    below = node.words[word] = Node()
                node = below
        node.strictness = max(node.strictness, strictness)
        (node.rests if pattern.rest else node.ends).append(value)

    def find(self, name: Name) -> tuple[list[T], list[T]]:
        """Return two lists of values that are stored with path patterns.

        The first list has the values of the patterns that match a resource path. The second list has the
        values of the patterns that match a parent of the resource path.
        """
        found: list[T] = []
        above: list[T] = []
        level = [self.root]
        for word, exact in zip(name.folded, name.exact, strict=True):
            below: list[Node[T]] = []
            for node in level:
                found += node.rests
                above += node.ends
                child = node.words.get(word)
                if child is not None:
                    below.append(child)
                if exact is not None and node.wildcard is not None:
                    below.append(node.wildcard)
            if not below:
                return found, above
            level = below
        for node in level:
            found += node.rests
            found += node.ends
        return found, above

    def find_any(self, name: Name) -> tuple[list[T], list[T], list[T]]:
        """Search like `find` for a resource name in which ANY_NAME stands for some unknown segments.

        The third returned list has the values of the patterns that match only if an unknown segment has a
        certain text.
        """
        found: list[T] = []
        perhaps: list[T] = []
        above: list[T] = []
        level = [(self.root, False)]
        for word, exact in zip(name.folded, name.exact, strict=True):
            below: list[tuple[Node[T], bool]] = []
            for node, guessed in level:
                (perhaps if guessed else found).extend(node.rests)
                if not guessed:
                    above += node.ends
                if word == ANY_NAME:
                    below += [(child, True) for child in node.words.values()]
                elif word in node.words:
                    below.append((node.words[word], guessed))
                if exact is not None and node.wildcard is not None:
                    below.append((node.wildcard, guessed))
            level = below
        for node, guessed in level:
            (perhaps if guessed else found).extend([*node.rests, *node.ends])
        return found, above, perhaps

    def nodes_at(self, name: Name) -> list[Node[T]]:
        """Return the nodes of the pattern tree that a search for the resource name `name` reaches."""
        level = [self.root]
        for word, exact in zip(name.folded, name.exact, strict=True):
            below: list[Node[T]] = []
            for node in level:
                child = node.words.get(word)
                if child is not None:
                    below.append(child)
                if exact is not None and node.wildcard is not None:
                    below.append(node.wildcard)
            level = below
        return level


def take_apart(root: Node[T]) -> Generator[None, None, None]:
    """Empty a pattern tree that is no longer used.

    The generator `take_apart` yields after each small step, so that the caller can pause.

    To free ten thousand rules of a tree at once would take milliseconds.
    """
    nodes = [root]
    work = 0
    while nodes:
        node = nodes.pop()
        nodes += node.words.values()
        if node.wildcard is not None:
            nodes.append(node.wildcard)
        node.words = {}
        node.wildcard = None
        work += 1
        if work % _NODES_AT_ONCE == 0:
            yield
