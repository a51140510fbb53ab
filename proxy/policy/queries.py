"""Whether query options probe a hidden property: a filter on it tells its value though no answer shows it."""

from __future__ import annotations

import re
from typing import NamedTuple

from proxy.policy.canonical import Target
from proxy.policy.facts import property_path
from proxy.policy.odata import fold
from proxy.policy.transforms import Transforms

_OPTIONS = ("select", "filter", "orderby", "expand", "apply", "compute")
_GUID = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}(?!\w)"
_TOKEN = rf"'(?:[^']|'')*'|{_GUID}|[0-9][\w:.+-]*|@[\w.]+|(?P<name>\$?[^\W\d][\w.]*)\s*(?P<after>[(:=]?)|."
# OData has strings in single quotes, JSON's in double ones; where a text has both, servers differ in which
# of them begins. So such a text is read both ways.
_SINGLE_QUOTED = re.compile(_TOKEN, re.DOTALL)
_ALSO_DOUBLE_QUOTED = re.compile(r'"[^"]*"|' + _TOKEN, re.DOTALL)

_OPERATOR_WORDS = """
    eq ne gt ge lt le and or not in has add sub mul div mod divby asc desc true false null inf nan as with
"""
_FUNCTION_WORDS = """
    any all contains startswith endswith length indexof substring tolower toupper trim concat year month day
    hour minute second date time now round floor ceiling cast isof matchespattern aggregate groupby topcount
    bottomcount filter orderby select expand compute top skip
"""
_OPERATORS = frozenset(_OPERATOR_WORDS.split())
_FUNCTIONS = frozenset(_FUNCTION_WORDS.split())
_AGGREGATES = frozenset(("min", "max", "sum", "average", "countdistinct"))  # behind `with`
_NESTED_OPTIONS = frozenset(
    ("select", "filter", "orderby", "expand", "apply", "compute", "top", "skip", "count", "levels")
)
_LAMBDAS = ("any(", "all(")

_SEARCH_OPERATORS = ("AND", "OR", "NOT")
_SEARCH_WORD = re.compile(r'[^\s()"]+')
_PROPERTY_SEARCHED = re.compile(r"[+-]?([^\W\d]\w*):.")
# What the search of messages calls their properties (Microsoft's "Using the $search query parameter").
_SEARCH_NAMES = {
    "attachment": ("attachments",),
    "bcc": ("bccRecipients",),
    "cc": ("ccRecipients",),
    "from": ("from", "sender"),
    "hasattachment": ("hasAttachments",),
    "participants": ("from", "sender", "toRecipients", "ccRecipients", "bccRecipients"),
    "received": ("receivedDateTime",),
    "recipients": ("toRecipients", "ccRecipients", "bccRecipients"),
    "sent": ("sentDateTime",),
    "to": ("toRecipients",),
}


class QueryGuard:
    """Judges the query options of requests that a filter with `guard_queries` concerns."""

    __slots__ = ("_allowed", "_stripped")

    def __init__(self, transforms: Transforms) -> None:
        self._stripped = [property_path(path) for path in transforms.strip]
        self._allowed = (
            None
            if transforms.allow is None
            else frozenset(part for path in transforms.allow for part in property_path(path))
        )

    def is_probed_by(self, target: Target) -> bool:
        options = target.options
        texts = [value for name in _OPTIONS for value in options.get(name, ())]
        searches = options.get("search", ())
        if not texts and not searches:
            return False
        texts += [value for name, values in options.items() if name.startswith("@") for value in values]
        found = _Names(set(), set())
        for text in texts:
            if not _collect_names(_SINGLE_QUOTED, text, found):
                return True
            if '"' in text and not _collect_names(_ALSO_DOUBLE_QUOTED, text, found):
                return True
        searched: set[str] = set()
        for text in searches:
            if not _collect_searched(text, searched):
                return True
        mentioned = found.mentioned | searched
        if any(path[0] in searched or mentioned.issuperset(path) for path in self._stripped):
            return True
        return self._allowed is not None and not (found.properties | searched) <= self._allowed


class _Names(NamedTuple):
    mentioned: set[str]
    properties: set[str]  # of those, what is neither the language's own nor the variable of a lambda


def _collect_names(tokens: re.Pattern[str], text: str, found: _Names) -> bool:
    """False where the text searches, by words that need name no property."""
    depth = 0
    variables: list[tuple[int, str]] = []  # that are known where we are, and how deep they were declared
    before = ""
    for token in tokens.finditer(text):
        if token["name"] is None:
            if token[0] == "(":
                depth += 1
            elif token[0] == ")":
                depth -= 1
                while variables and variables[-1][0] > depth:
                    variables.pop()
            if not token[0].isspace():
                before = token[0]
            continue
        name, after = fold(token["name"]), token["after"]
        depth += after == "("
        if name in ("search", "$search") and after:
            return False
        if after == ":" and before in _LAMBDAS:
            variables.append((depth, name))
        elif name[0] != "$" and "." not in name:  # with a dot: a type cast
            found.mentioned.add(name)
            known = before != "/" and any(name == variable for _, variable in variables)
            if not known and not _is_language(name, before, after):
                found.properties.add(name)
        before = name + after
    return True


def _is_language(name: str, before: str, after: str) -> bool:
    """Whether the word is OData's own where it stands; a property may be called `date` or `count`."""
    if after == "(":
        return name in _FUNCTIONS or name in _OPERATORS
    if after == "=":
        return name in _NESTED_OPTIONS
    return name in _OPERATORS or (before == "with" and name in _AGGREGATES)


def _collect_searched(text: str, names: set[str]) -> bool:
    """False where a word names no property: it is looked for in all of them, the hidden ones too. So is each
    word but the first of `"subject:one two"` in messages, where quotes hold a query of their own."""
    for word in _SEARCH_WORD.findall(text):
        if word in _SEARCH_OPERATORS:
            continue
        searched = _PROPERTY_SEARCHED.match(word)
        if searched is None:
            return False
        name = fold(searched[1])
        names.update(map(fold, _SEARCH_NAMES.get(name, (name,))))
    return True
