"""Plain values that describe a condition of a rule: the source, the name and the tests."""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from proxy.policy.scalars import Written, text_of

Scalar = bool | int | float | str | Written

Operator = Literal[
    "equals",
    "not_equals",
    "in",
    "not_in",
    "prefix",
    "suffix",
    "contains",
    "matches",
    "at_least",
    "at_most",
    "exists",
]


class Comparison(msgspec.Struct, frozen=True, array_like=True):
    """One comparison operator of a condition, and the operand of this operator."""

    operator: Operator
    operand: Scalar | tuple[Scalar, ...]


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """A condition of a rule.

    `source` is a part of the request or response, such as `header`, and `name` names a value in this part.
    The condition is true if all comparisons in `tests` are true for this value.

    `name` is empty if `source` is `status`.
    """

    source: Literal["param", "query", "header", "body", "status", "response_header", "property"]
    name: str
    tests: tuple[Comparison, ...]


def condition_text(condition: Condition) -> str:
    """Return a condition as YAML or JSON text, such as `{"property": "userType", "equals": "Guest"}`."""
    tests = [f", {json.dumps(test.operator)}: {_operand_text(test.operand)}" for test in condition.tests]
    return f"{{{json.dumps(condition.source)}: {_text(condition.name)}{''.join(tests)}}}"


def _operand_text(operand: Scalar | tuple[Scalar, ...]) -> str:
    if isinstance(operand, tuple):
        return f"[{', '.join(map(_text, operand))}]"
    return _text(operand)


def _text(scalar: Scalar) -> str:
    return json.dumps(scalar, ensure_ascii=False) if isinstance(scalar, str) else text_of(scalar)
