"""Validate a value by a JSON Schema (2020-12), with the keywords that the schema of rulesets uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_SAYS_NOTHING = {"$schema", "$defs", "title", "description", "default", "then", "else"}


def is_valid(value: object, schema: Any, root: Any = None) -> bool:
    """Return True if the value is valid by the schema.

    Raise KeyError if the schema has an unsupported keyword.
    """
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    return all(_KEYWORDS[keyword](value, schema, root) for keyword in schema if keyword not in _SAYS_NOTHING)


def _is_of(value: object, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _type(value: Any, schema: Any, root: Any) -> bool:
    kinds = schema["type"]
    return any(_is_of(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def _properties(value: Any, schema: Any, root: Any) -> bool:
    known = schema["properties"]
    return not isinstance(value, dict) or all(
        is_valid(value[key], known[key], root) for key in value if key in known
    )


def _no_others(value: Any, schema: Any, root: Any) -> bool:
    others, known = schema["additionalProperties"], schema.get("properties", {})
    return not isinstance(value, dict) or all(
        others is not False and is_valid(each, others, root)
        for key, each in value.items()
        if key not in known
    )


def _required(value: Any, schema: Any, root: Any) -> bool:
    return not isinstance(value, dict) or value.keys() >= set(schema["required"])


def _dependent(value: Any, schema: Any, root: Any) -> bool:
    wanted = schema["dependentRequired"]
    return not isinstance(value, dict) or all(
        value.keys() >= set(wanted[key]) for key in value if key in wanted
    )


def _if(value: Any, schema: Any, root: Any) -> bool:
    return is_valid(value, schema.get("then" if is_valid(value, schema["if"], root) else "else", True), root)


def _count(value: Any, schema: Any, root: Any, keyword: str) -> int:
    return sum(is_valid(value, each, root) for each in schema[keyword])


def _ref(value: Any, schema: Any, root: Any) -> bool:
    return is_valid(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)


_KEYWORDS: dict[str, Callable[[Any, Any, Any], bool]] = {
    "type": _type,
    "const": lambda value, schema, root: _same(value, schema["const"]),
    "enum": lambda value, schema, root: any(_same(value, each) for each in schema["enum"]),
    "properties": _properties,
    "additionalProperties": _no_others,
    "required": _required,
    "dependentRequired": _dependent,
    "items": lambda value, schema, root: (
        not isinstance(value, list) or all(is_valid(each, schema["items"], root) for each in value)
    ),
    "minItems": lambda value, schema, root: not isinstance(value, list) or len(value) >= schema["minItems"],
    "maxItems": lambda value, schema, root: not isinstance(value, list) or len(value) <= schema["maxItems"],
    "minLength": lambda value, schema, root: not isinstance(value, str) or len(value) >= schema["minLength"],
    "maxLength": lambda value, schema, root: not isinstance(value, str) or len(value) <= schema["maxLength"],
    "pattern": lambda value, schema, root: (
        not isinstance(value, str) or re.search(schema["pattern"], value) is not None
    ),
    "anyOf": lambda value, schema, root: _count(value, schema, root, "anyOf") > 0,
    "oneOf": lambda value, schema, root: _count(value, schema, root, "oneOf") == 1,
    "if": _if,
    "$ref": _ref,
}
