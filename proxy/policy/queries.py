"""Whether query options probe a hidden property: a filter on it tells its value though no answer shows it."""

from __future__ import annotations

import re

from proxy.policy.canonical import Target
from proxy.policy.facts import property_path
from proxy.policy.odata import fold
from proxy.policy.transforms import Transforms

_OPTIONS = ("select", "filter", "orderby", "search", "expand", "apply", "compute")
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|[0-9][\w:.+-]*|@[\w.]+|(?P<name>\$?[^\W\d][\w.]*)\s*(?P<after>[(:]?)|.""", re.DOTALL
)
# From the beginning of a word and never back, so that a long word is read once.
_SEARCH_NAME = re.compile(r"(?<!\w)\d*+([^\W\d]\w*+)\s*+:")
_SEARCH_WORDS = ("AND", "OR", "NOT")
_SEARCH_TERM = re.compile(r'"[^"]*"|[^\s()]+')
_LANGUAGE = """
    eq ne gt ge lt le and or not in has add sub mul div mod divby asc desc true false null inf nan as
    with from min max sum average countdistinct any all contains startswith endswith length indexof
    substring tolower toupper trim concat year month day hour minute second date time now round floor
    ceiling cast isof matchespattern aggregate groupby topcount bottomcount select filter orderby search
    expand apply compute top skip count levels
"""
_WORDS = frozenset(_LANGUAGE.split())


class QueryGuard:
    """Judges the query options of requests that a filter with `guard_queries` concerns."""

    __slots__ = ("_allowed", "_stripped")

    def __init__(self, transforms: Transforms) -> None:
        self._stripped = [frozenset(property_path(path)) for path in transforms.strip]
        self._allowed = (
            None
            if transforms.allow is None
            else frozenset(part for path in transforms.allow for part in property_path(path))
        )

    def is_probed_by(self, target: Target) -> bool:
        options = target.options
        texts = [value for name in _OPTIONS for value in options.get(name, ())]
        if not texts:
            return False
        texts += [value for name, values in options.items() if name.startswith("@") for value in values]
        searches = options.get("search", ())
        if any(_has_free_text(value) for value in searches):
            return True
        names: set[str] = set()
        variables: set[str] = set()
        for text in texts:
            _collect_names(text, names, variables)
        for text in searches:  # which puts names within quotes
            names.update(fold(name) for name in _SEARCH_NAME.findall(text))
        if any(path <= names for path in self._stripped):
            return True
        return self._allowed is not None and not names - _WORDS - variables <= self._allowed


def _collect_names(text: str, names: set[str], variables: set[str]) -> None:
    for token in _TOKEN.finditer(text):
        name = fold(token["name"] or "")
        if token["after"] == ":":
            variables.add(name)  # of a lambda
        elif name and name[0] != "$" and "." not in name:  # with a dot: a type cast
            names.add(name)


def _has_free_text(text: str) -> bool:
    """A term without `property:` searches every property, the hidden ones too."""
    return any(":" not in term for term in _SEARCH_TERM.findall(text) if term.upper() not in _SEARCH_WORDS)
