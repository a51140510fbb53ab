"""Whether query options probe a hidden property: a filter on it tells its value though no response shows
it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Optional

from proxy.policy.canonical import Name, Target, fully_decoded
from proxy.policy.facts import property_path
from proxy.policy.odata import fold
from proxy.policy.query_paths import LEVELS, Named, Path, Unresolved, with_words_whole
from proxy.policy.transforms import Transforms

_SEARCH: Final = "search"
_OPTIONS: Final = frozenset(("select", "filter", "orderby", "expand", "apply", "compute"))

_SEARCH_OPERATORS: Final = frozenset(("AND", "OR", "NOT"))
_SEARCH_WORD: Final = re.compile(r'[^\s()"]+')
_PROPERTY_SEARCHED: Final = re.compile(r"[+-]?[^\W\d]\w*:.")
# Wherever they stand in the word: what separates one from the next differs between services.
_PROPERTIES_SEARCHED: Final = re.compile(r"(?<!\w)([^\W\d]\w*)(?=[:<>=])")
# What the search of messages calls their properties (Microsoft's "Using the $search query parameter").
_SEARCH_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "attachment": ("attachments",),
    "bcc": ("bccRecipients",),
    "body": ("body", "bodyPreview", "uniqueBody"),
    "category": ("categories",),
    "cc": ("ccRecipients",),
    "from": ("from", "sender"),
    "hasattachment": ("hasAttachments",),
    "participants": ("from", "sender", "toRecipients", "ccRecipients", "bccRecipients"),
    "received": ("receivedDateTime",),
    "recipients": ("toRecipients", "ccRecipients", "bccRecipients"),
    "sent": ("sentDateTime",),
    "to": ("toRecipients",),
}

_NAME_OF_KEY: Final = re.compile(r"[(,]\s*([^\W\d]\w*)\s*=")

# The names that allowed paths lead through; None where a path ends, which means all of that property.
_Tree = dict[str, Optional["_Tree"]]
_NOTHING: Final[_Tree] = {}


class QueryGuard:
    """Evaluates the query options of requests that a filter with `guard_queries` concerns."""

    __slots__ = ("_allowed", "_kept", "_stripped")

    def __init__(self, transforms: Transforms) -> None:
        self._stripped = [property_path(with_words_whole(path)) for path in transforms.strip]
        self._allowed = None if transforms.allow is None else _tree(transforms.allow)
        keep = [each.condition.name for each in transforms.keep if not each.place]
        self._kept = _tree(keep) if keep else None

    def is_probed_by(self, target: Target) -> bool:
        if target.plain is None:
            if self._is_probed_in_path(target):
                return True
        elif _SEARCH in target.plain and _searches(target):
            return True
        options = target.options
        searches = options.get("search", ())
        if not searches and _OPTIONS.isdisjoint(options):
            return False
        try:
            return self._is_probed(options, searches)
        except Unresolved:
            return True

    def _is_probed_in_path(self, target: Target) -> bool:
        """By `search(q='…')`, which looks into everything as `$search` does, or by a stripped property as a
        key. What an allow list lacks may be a function's parameter as well."""
        if _searches(target):
            return True
        names = map(fold, _NAME_OF_KEY.findall(with_words_whole(fully_decoded(target.path))))
        return any((name,) in self._stripped for name in names)

    def _is_probed(self, options: Mapping[str, tuple[str, ...]], searches: tuple[str, ...]) -> bool:
        if self._kept is not None and _asks_about_items(self._kept, options, searches):
            return True
        named = Named()
        searched: set[str] = set()
        for text in searches:
            _collect_searched(text, named, searched)
        texts: dict[tuple[str, str], Path | None] = {}  # and what their names are relative to
        for name, values in options.items():
            if name in _OPTIONS:
                for value in values:
                    texts[name, _spaced(value)] = ()
            elif name[:1] == "@":
                # Where the alias stands it is written out as well.
                base: Path | None = None if "expand" in options or "apply" in options else ()
                for value in values:
                    texts["", _spaced(value)] = base
        if self._allowed is None and not self._may_name([text for _, text in texts], searched):
            return False
        for (name, text), relative_to in texts.items():
            named.add(name, text, relative_to)
        return self._hides_any(named, searched)

    def _may_name(self, texts: list[str], searched: set[str]) -> bool:
        """Whether the last word of a stripped path is there at all, wherever it stands."""
        text = "\n".join(texts)
        if not text.isascii() or "\\" in text:
            return True
        text = text.lower()
        return "search" in text or any(
            path[0] in searched or path[-1] in text or path[-1] in searched for path in self._stripped
        )

    def _hides_any(self, named: Named, searched: set[str]) -> bool:
        if self._allowed is not None and not _allows(self._allowed, named, searched):
            return True
        if not self._stripped:
            return False
        words = named.words() | searched
        # Those that may belong to another object than the path that they stand in says.
        is_flat = named.renames or LEVELS in words
        unsure = words if is_flat else named.loose | named.homonyms | searched
        return any(
            path[0] in searched
            or path[-1] in named.loose
            or (words.issuperset(path) and _may_be_meant(path, named.paths, unsure))
            for path in self._stripped
        )


def _asks_about_items(kept: _Tree, options: Mapping[str, tuple[str, ...]], searches: tuple[str, ...]) -> bool:
    """Return True if a query looks at another property of items than those by which they are kept. The link
    to the next page reveals items that the response doesn't show. Raises Unresolved."""
    if "apply" in options:  # counts and sums of all items
        return True
    named = Named()
    searched: set[str] = set()
    for text in searches:
        _collect_searched(text, named, searched)
    for name in ("filter", "orderby"):
        for value in options.get(name, ()):
            named.add(name, _spaced(value), ())
    return not _allows(kept, named, searched)


def _searches(target: Target) -> bool:
    """Whether the path calls `search` in any reading; what is asked of what it found tells as much."""
    return any(_calls_search(name) for reading in target.readings for name in reading.names)


def _calls_search(name: Name) -> bool:
    if _SEARCH not in name.folded:
        return False
    following = (*name.folded[1:], "$")
    return any(
        word == _SEARCH and (after.startswith("$") or "(" in (exact or ""))
        for word, exact, after in zip(name.folded, name.exact, following, strict=True)
    )


def _spaced(value: str) -> str:
    """A `+` that is none changes nothing of what we look for, and as a space it makes readings equal."""
    return value.replace("+", " ") if "+" in value else value


def _allows(tree: _Tree, named: Named, searched: set[str]) -> bool:
    return (
        not named.loose
        and all(tree.get(name, _NOTHING) is None for name in searched)
        # What is allowed in part may be named itself, unless what is said of another name may mean its rest.
        and all(_is_allowed(path, tree, in_part=not named.renames) for path in named.paths)
    )


def _may_be_meant(stripped: Path, paths: set[Path], unsure: set[str]) -> bool:
    """Whether the words of a stripped path, all of which are named, may belong together."""
    if len(stripped) == 1 or not unsure.isdisjoint(stripped):
        return True
    return any(path[-1] == stripped[-1] and _leads_through(path, stripped) for path in paths)


def _tree(paths: Iterable[str]) -> _Tree:
    tree: _Tree = {}
    for path in paths:
        _plant(tree, property_path(with_words_whole(path)))
    return tree


def _plant(tree: _Tree, path: Path) -> None:
    for part in path[:-1]:
        branch = tree.setdefault(part, {})
        if branch is None:  # a shorter path means all of it already
            return
        tree = branch
    tree[path[-1]] = None


def _is_allowed(path: Path, tree: _Tree, *, in_part: bool) -> bool:
    """What is allowed is so with all within it."""
    for part in path:
        branch = tree.get(part, _NOTHING)
        if branch is None:
            return True
        if not branch:
            return False
        tree = branch
    return in_part


def _leads_through(path: Path, stripped: Path) -> bool:
    """Whether the words follow one another in the path, whatever else is on the way: the same object may be
    reached in several ways."""
    parts = iter(path)
    return all(word in parts for word in stripped)


def _collect_searched(text: str, named: Named, names: set[str]) -> None:
    """Raises Unresolved where a word names no property: it is looked for in all of them, the hidden ones too.
    So is each word but the first of `"subject:one two"` in messages, where quotes hold a query of their own.
    """
    words = _SEARCH_WORD.findall(with_words_whole(text))
    named.take(len(words))
    for word in words:
        if word in _SEARCH_OPERATORS:
            continue
        if _PROPERTY_SEARCHED.match(word) is None:
            raise Unresolved("a search for free text")
        for name in map(fold, _PROPERTIES_SEARCHED.findall(word)):
            names.update(map(fold, _SEARCH_NAMES.get(name, (name,))))
