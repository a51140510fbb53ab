"""Suggest words at a position in the text of a ruleset: keys, values and names of a schema (no I/O)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset_yaml import ruleset_json_schema
from proxy.policy.services.graph import GRAPH_FACTS

MOST_OPTIONS: Final = 12  # words in one list
_LONGEST_LINE: Final = 2000  # characters of a line to read
_MOST_LINES: Final = 2000  # lines above the cursor to search for the key that contains it
_WORD: Final = re.compile(r"[\w$.@-]*$")
_SEGMENT: Final = re.compile(r"""(/[^\s"',\]]*/|/)([\w$.{}-]*)$""")
_KEY_BEFORE: Final = re.compile(r"([a-z_]+)\s*:\s*(?:[\[{][^:]*|[^\s\[{][^:]*|)$")
_KEY_OF_BLOCK: Final = re.compile(r"\s*(?:- )?([a-z_]+)\s*:\s*(?:#.*)?$")
_METHODS: Final = ("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS")
_VALUES: Final = {
    "verdict": ("allow", "filter", "block", "log_only"),
    "default": ("block", "allow"),
    "when": ("request", "response"),
    "methods": _METHODS,
    "days": ("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
    "guard_queries": ("true", "false"),
    "exists": ("true", "false"),
    "pack": tuple(GRAPH_FACTS.packs),
}
_PROPERTIES: Final = ("strip_properties", "allow_properties", "body_only", "body", "property")
_OF_KEY: Final = {"rules": "_Rule", "match": "_Match", "conditions": "_Condition", "keep": "_Condition",
                  "ip": "_Ip", "time": "_Time", "transforms": "_Transforms", "items": "_Items"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaWords:
    """Names from a schema (types, relations, properties, operations, root paths) that a ruleset may contain.

    Each list of names is sorted and has no duplicates.
    """

    types: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()  # possible path segments, and values of `$expand`
    properties: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completions:
    """Suggested words that can replace the ruleset text from position `start` up to the cursor."""

    start: int
    words: tuple[str, ...] = ()
    kind: str = ""  # kind of the words, for the label of the list


def schema_words(model: ResourceModel) -> SchemaWords:
    members = [model.member_name(each) for each in range(model.members)]
    return SchemaWords(
        types=_sorted(model.type_name(each).rpartition(".")[2] for each in range(model.types)),
        relations=_sorted(members),
        properties=_sorted(members),
        operations=_sorted(model.operation_name(each).rpartition(".")[2] for each in range(model.operations)),
        roots=_sorted(model.root_name(each) for each in range(model.roots)),
    )


def completions(text: str, at: int, names: SchemaWords) -> Completions:
    """Return the words that fit at the position `at` of a ruleset's text, the best words first."""
    begin = text.rfind("\n", 0, at) + 1
    line = text[max(begin, at - _LONGEST_LINE) : at]
    if line.lstrip().startswith("#") or " #" in line:
        return Completions(at)
    before = _KEY_BEFORE.search(line.replace('"', "").replace("'", ""))
    key = before[1] if before else _enclosing(text[:begin], line)
    is_value = before is not None or (key not in _OF_KEY and key != "")
    if is_value and key == "path":
        return _of_path(line, at, names)
    word = _WORD.search(line)
    prefix = word[0] if word else ""
    start = at - len(prefix)
    if is_value and key not in _OF_KEY:
        found, kind = _values(key, prefix, names)
        return Completions(start, _matching(found, prefix), kind)
    return Completions(start, _matching(_keys(key), prefix), "keys")


def _enclosing(above: str, line: str) -> str:
    """Return the YAML key whose block contains the line; at the top level of the ruleset, an empty text."""
    indent = len(line) - len(line.lstrip(" "))
    is_item = line.lstrip(" ").startswith("- ") or line.strip() == "-"
    if not indent and not is_item:
        return ""
    for each in reversed(above.splitlines()[-_MOST_LINES:]):
        if not each.strip() or each.lstrip().startswith("#"):
            continue
        its = len(each) - len(each.lstrip(" "))
        if its > indent or (its == indent and not is_item):
            continue
        found = _KEY_OF_BLOCK.fullmatch(each)
        if found is None:
            if its < indent and not each.lstrip().startswith("- "):
                return ""
            if its == indent:
                continue
        elif not each.lstrip().startswith("- ") or its + 2 < indent:
            return found[1]
        if its < indent:
            indent = its
            is_item = True
    return ""


def _values(key: str, prefix: str, names: SchemaWords) -> tuple[Sequence[str], str]:
    if key in _VALUES:
        return _VALUES[key], f"values of {key}"
    if key in _PROPERTIES:
        return names.properties, "properties of the schema"
    if key == "operation":
        return names.operations, "operations of the schema"
    if key == "resource":
        if "." not in prefix:
            return names.types, "types of the schema"
        owner = prefix.rpartition(".")[0]
        return [f"{owner}.{each}" for each in names.relations], "members of the schema"
    return (), ""


def _of_path(line: str, at: int, names: SchemaWords) -> Completions:
    found = _SEGMENT.search(line)
    if found is None:
        return Completions(at)
    depth = found[1].count("/")
    options: Sequence[str]
    if depth == 1:
        options, kind = ("v1.0", "beta"), "versions"
    elif depth == 2:
        options, kind = names.roots, "resources of the schema"
    else:
        options, kind = (*names.relations, *names.operations, "{id}", "**"), "segments of the schema"
    return Completions(at - len(found[2]), _matching(options, found[2]), kind)


def _keys(key: str) -> Sequence[str]:
    return _schema_keys().get(_OF_KEY.get(key, ""), ())


@cache
def _schema_keys() -> dict[str, tuple[str, ...]]:
    """Return the keys of each mapping of a ruleset, as the published JSON Schema lists them."""
    schema: Any = ruleset_json_schema()
    kinds = {name: tuple(each.get("properties", ())) for name, each in schema["$defs"].items()}
    return kinds | {"": tuple(schema["properties"])}


def _matching(options: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Return the options that begin with the prefix, then the options that contain the prefix.

    Return an empty tuple if an option is equal to the prefix, because nothing is left to complete.
    """
    wanted = prefix.lower()
    begins, holds = [], []
    for each in options:
        folded = each.lower()
        if folded == wanted:
            return ()
        if folded.startswith(wanted):
            begins.append(each)
        elif len(wanted) > 1 and wanted in folded:
            holds.append(each)
    return tuple(dict.fromkeys((*begins, *holds)))[:MOST_OPTIONS]


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name.lower(), name)))
