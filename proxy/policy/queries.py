"""Decide if the query options of a request probe a hidden property.

A `$filter` on a hidden property reveals its value even though no response shows it.
"""

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
# Names anywhere in the word, because services differ in how they separate one from the next.
_PROPERTIES_SEARCHED: Final = re.compile(r"(?<!\w)([^\W\d]\w*)(?=[:<>=])")
# Names of message properties in `$search` (Microsoft's "Using the $search query parameter").
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

# Names that allowed paths lead through; None marks the end of a path, which allows the whole property.
_Tree = dict[str, Optional["_Tree"]]
_NOTHING: Final[_Tree] = {}


class QueryGuard:
    """Guard of a filter with `guard_queries`: it finds query options that probe a hidden property."""

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
        """Return True if the path calls `search(q='…')` or uses a removed property as a key.

        The call `search(q='…')` searches all properties, like `$search`. The guard does not compare names in
        function calls with the allow list, because such a name may be a parameter of the function.
        """
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
        texts: dict[tuple[str, str], Path | None] = {}  # texts, and the path that their names are relative to
        for name, values in options.items():
            if name in _OPTIONS:
                for value in values:
                    texts[name, _spaced(value)] = ()
            elif name[:1] == "@":
                # The alias is also written out where it is used.
                base: Path | None = None if "expand" in options or "apply" in options else ()
                for value in values:
                    texts["", _spaced(value)] = base
        if self._allowed is None and not self._may_name([text for _, text in texts], searched):
            return False
        for (name, text), relative_to in texts.items():
            named.add(name, text, relative_to)
        return self._hides_any(named, searched)

    def _may_name(self, texts: list[str], searched: set[str]) -> bool:
        """Return False only if a quick text search shows that the query names no removed property."""
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
        # Words that may belong to another object than their path says.
        is_flat = named.renames or LEVELS in words
        unsure = words if is_flat else named.loose | named.homonyms | searched
        return any(
            path[0] in searched
            or path[-1] in named.loose
            or (words.issuperset(path) and _may_be_meant(path, named.paths, unsure))
            for path in self._stripped
        )


def _asks_about_items(kept: _Tree, options: Mapping[str, tuple[str, ...]], searches: tuple[str, ...]) -> bool:
    """Return True if a query uses an item property that no condition of the item filter tests.

    The link to the next page would reveal items that the response does not contain. Raise Unresolved.
    """
    if "apply" in options:  # `$apply` counts and sums all items
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
    """Return whether any interpretation of the request path contains a call of the function `search`.

    Query options on the search results can reveal as much data as the search function.
    """
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
    """Replace each `+` in a query value by a space, so that both interpretations of `+` become equal.

    If a `+` in the value stands for itself and not for a space, the replacement does not change the property
    names that the proxy finds.
    """
    return value.replace("+", " ") if "+" in value else value


def _allows(tree: _Tree, named: Named, searched: set[str]) -> bool:
    return (
        not named.loose
        and all(tree.get(name, _NOTHING) is None for name in searched)
        # A partly allowed object may itself be named, unless another name may refer to its other parts.
        and all(_is_allowed(path, tree, in_part=not named.renames) for path in named.paths)
    )


def _may_be_meant(stripped: Path, paths: set[Path], unsure: set[str]) -> bool:
    """Return True if the names in a query may refer to the removed property with the path `stripped`."""
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
        if branch is None:  # a shorter path already allows the whole property
            return
        tree = branch
    tree[path[-1]] = None


def _is_allowed(path: Path, tree: _Tree, *, in_part: bool) -> bool:
    """Return True if an allow list, given as a tree of names, allows the property path.

    An allow list that names a property also allows everything within the property.
    """
    for part in path:
        branch = tree.get(part, _NOTHING)
        if branch is None:
            return True
        if not branch:
            return False
        tree = branch
    return in_part


def _leads_through(path: Path, stripped: Path) -> bool:
    """Return True if the property path contains the words of `stripped` in their order.

    The property path may have other words between these words, because a query can reach an object through
    different relations.
    """
    parts = iter(path)
    return all(word in parts for word in stripped)


def _collect_searched(text: str, named: Named, names: set[str]) -> None:
    """Collect the property names in the value of a `$search` option.

    Raise Unresolved if a search word names no property. The upstream searches for a word without a property
    name in all properties, also in hidden properties. In a search of messages, the quoted text
    `"subject:one two"` is itself a query. Its first word names a property, but the other words name none.
    """
    words = _SEARCH_WORD.findall(with_words_whole(text))
    named.take(len(words))
    for word in words:
        if word in _SEARCH_OPERATORS:
            continue
        if _PROPERTY_SEARCHED.match(word) is None:
            raise Unresolved("the query searches for free text")
        for name in map(fold, _PROPERTIES_SEARCHED.findall(word)):
            names.update(map(fold, _SEARCH_NAMES.get(name, (name,))))
