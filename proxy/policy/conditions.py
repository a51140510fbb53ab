"""Rule conditions as functions of the facts, with the results YES, NO and INDETERMINATE.

If servers may read a value in two ways, the result is INDETERMINATE, so that the spelling of the value never
decides. If the result is INDETERMINATE, a rule that blocks applies, and a rule that allows does not apply. If
the conditions of a rule that filters are INDETERMINATE, the rule filters. After an indeterminate rule with
the verdict `filter`, the search for a deciding rule continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import re2

from proxy.policy.canonical import option_name
from proxy.policy.facts import BodyNeeded, MalformedBody, RequestFacts, ResponseFacts, Value, property_path
from proxy.policy.odata import fold
from proxy.policy.ruleset import Comparison, Condition, Scalar
from proxy.policy.scalars import Written, text_of, values_meant

NO: Final = 0
INDETERMINATE: Final = 1
YES: Final = 2

MAX_REGEX_MEMORY: Final = 1 << 20  # bytes of RE2's program and its cache
MAX_REGEX_LENGTH: Final = 1000

Check = Callable[[RequestFacts, ResponseFacts | None], int]
ValueTest = Callable[[Value], int]
ValuesTest = Callable[[Sequence[Value]], int]

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
# An account by mail address or GUID is the same account in any letter case. Other ids are compared exactly.
_CASELESS_ID: Final = re.compile(r".*@.*|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.DOTALL)
# Occurrences of a field or option that are tested, elements of a list included. Nobody sends more on purpose,
# so more are indeterminate and not tested.
_MOST_OCCURRENCES: Final = 256
_LOOKS_OF_REGEX: Final = 10  # one search takes as long as so many comparisons
# a number, because searching bytes for bytes makes Python raise and drop an exception first
_COMMA: Final = 0x2C
_NEGATIVE: Final = frozenset(("not_equals", "not_in"))


class InvalidRegex(ValueError):
    """Error because a regular expression is too long, or because the RE2 library rejects it."""


def compile_check(condition: Condition) -> Check:
    """Compile a rule condition on any source of values except `param`.

    For conditions on `param`, call `compile_values_test`: the values of a path parameter come from the path.
    """
    test = compile_values_test(condition)
    match condition.source:
        case "query":
            return _query_check(option_name(condition.name), test)
        case "header":
            return _header_check(condition.name, test)
        case "body":
            return _body_check(property_path(condition.name), test, looks_of(condition))
        case "status":
            return lambda request, response: NO if response is None else test((response.status,))
        case "response_header":
            return _response_header_check(condition.name, test)
        case "property":
            return _property_check(property_path(condition.name), test, looks_of(condition))
        case "param":
            raise ValueError(
                "use compile_values_test for a condition on `param`, because the value of `param` is a"
                " part of the path"
            )


def compile_values_test(condition: Condition) -> ValuesTest:
    """Compile the tests of a condition into one function, which tests all occurrences of a value.

    If a value occurs twice in a request, and a test gives different results for the two occurrences, the
    result is INDETERMINATE.
    """
    caseless = _is_caseless_id if condition.source == "param" else _always
    tests = [_value_test(test, caseless) for test in condition.tests]
    one = tests[0] if len(tests) == 1 else _least_of(tests)
    return _test_of_all(one, min(when_missing(test) for test in condition.tests))


def _least_of(tests: list[ValueTest]) -> ValueTest:
    return lambda value: min(test(value) for test in tests)


def _test_of_all(one: ValueTest, missing: int) -> ValuesTest:
    def test_all(values: Sequence[Value]) -> int:
        if not values:
            return missing
        first = one(values[0])
        if len(values) == 1:
            return first
        for value in values[1:]:
            if one(value) != first:
                return INDETERMINATE
        return first

    return test_all


def compile_regex(pattern: str, *, any_case: bool = False) -> Any:
    """Compile a regular expression whose size is limited and whose matching takes linear time.

    A pattern that raises InvalidRegex with `any_case` also raises it without `any_case`.
    """
    if len(pattern) > MAX_REGEX_LENGTH:
        raise InvalidRegex(f"the regular expression is longer than {MAX_REGEX_LENGTH} characters")
    options = re2.Options()
    # two letters for each one need little more memory
    options.max_mem = MAX_REGEX_MEMORY * (8 if any_case else 1)
    options.case_sensitive = not any_case
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        raise InvalidRegex(_error_text(error)) from None


def _error_text(error: Exception) -> str:
    reason = error.args[0] if error.args else "invalid"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _query_check(name: str, test: ValuesTest) -> Check:
    few = _of_few(test)
    return lambda request, response: few(request.target.options.get(name, ()))


def _header_check(name: str, test: ValuesTest) -> Check:
    wanted = name.lower().encode("ascii")
    few = _of_few(test)
    return lambda request, response: few(field_values(request.headers, wanted))


def _response_header_check(name: str, test: ValuesTest) -> Check:
    wanted = name.lower().encode("ascii")
    few = _of_few(test)
    return lambda request, response: NO if response is None else few(field_values(response.headers, wanted))


def _of_few(test: ValuesTest) -> ValuesTest:
    return lambda values: INDETERMINATE if len(values) > _MOST_OCCURRENCES else test(values)


def looks_of(condition: Condition) -> int:
    """Return how many comparisons a test of one value against the condition needs."""
    return sum(_LOOKS_OF_REGEX if test.operator == "matches" else 1 for test in condition.tests)


def _body_check(path: tuple[str, ...], test: ValuesTest, looks: int) -> Check:
    return lambda request, response: test(request.values(path, looks))


def _property_check(path: tuple[str, ...], test: ValuesTest, looks: int) -> Check:
    def check(request: RequestFacts, response: ResponseFacts | None) -> int:
        if response is None:
            return NO
        try:
            values = response.values(path, looks)
        except MalformedBody:
            # Block if the rule needs a body that cannot be read. But an error page of a load balancer must
            # pass.
            return INDETERMINATE if 200 <= response.status < 300 else test(())
        return test(values)

    return check


def for_an_allow(check: Check, option: str) -> Check:
    """Return the check for a condition on a query option in a rule with the verdict `allow`.

    The check uses only those interpretations of the query that the upstream may use.
    """
    name = option_name(option)

    def check_as_taken(request: RequestFacts, response: ResponseFacts | None) -> int:
        taken = request.as_taken()
        return INDETERMINATE if name in taken.target.doubtful else check(taken, response)

    return check_as_taken


def for_the_log(check: Check, *, of_response: bool) -> Check:
    """Return the check for a rule with the verdict `log_only`.

    For a rule that only logs, the check never makes the proxy wait for a request body. The check accepts a
    request body that cannot be read.
    """

    def check_if_read(request: RequestFacts, response: ResponseFacts | None) -> int:
        try:
            return check(request, response)
        except BodyNeeded:
            if not of_response:
                request.wanted_for_the_log = True
            elif response is not None:
                response.wanted_for_the_log = True
        except MalformedBody:
            pass
        return INDETERMINATE

    return check_if_read


def field_values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> Sequence[str]:
    """Return the values of a header field for conditions.

    If the header field's value is a list (RFC 9110 §5.6.1), the elements of the list count as values too.
    """
    size = len(wanted)
    found = [value for name, value in headers if len(name) == size and name.lower() == wanted]
    if not found:
        return ()
    if len(found) == 1 and _COMMA not in found[0]:
        return (found[0].decode("latin-1").strip(" \t"),)
    texts = [value.decode("latin-1").strip(" \t") for value in found]
    return texts + [part.strip(" \t") for text in texts if "," in text for part in text.split(",")]


def when_missing(test: Comparison) -> int:
    """Return the result that the test of a condition gives for a missing value."""
    if test.operator == "exists":
        return NO if test.operand else YES
    return INDETERMINATE if test.operator in _NEGATIVE else NO


def _value_test(test: Comparison, caseless: Callable[[str], bool]) -> ValueTest:
    operand = test.operand
    match test.operator:
        case "exists":
            present = YES if operand else NO
            return lambda value: present
        case "equals" | "in":
            return _membership(_operands(operand), caseless)
        case "not_equals" | "not_in":
            member = _membership(_operands(operand), caseless)
            return lambda value: YES - member(value)
        case "at_least":
            least = _numeric(operand)
            return lambda value: _compared(value, lambda number: number >= least)
        case "at_most":
            most = _numeric(operand)
            return lambda value: _compared(value, lambda number: number <= most)
        case "matches":
            return _regex_test(
                compile_regex(str(operand)), compile_regex(str(operand), any_case=True), caseless
            )
        case "prefix":
            return _text_test(str.startswith, str(operand), caseless)
        case "suffix":
            return _text_test(str.endswith, str(operand), caseless)
        case "contains":
            return _text_test(str.__contains__, str(operand), caseless)


def _operands(operand: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return operand if isinstance(operand, tuple) else (operand,)


def _membership(operands: tuple[Scalar, ...], caseless: Callable[[str], bool]) -> ValueTest:
    texts = {text_of(operand) for operand in operands}
    typed = [operand.value if isinstance(operand, Written) else operand for operand in operands]
    surely = {_key(value) for value in typed if not isinstance(value, str)}
    # The rule has "5" and the document has 5: another type, but a server may treat both alike.
    indeterminate = {_key(value) for text in typed if isinstance(text, str) for value in values_meant(text)}
    return _member_test(texts, {fold(text) for text in texts}, surely, indeterminate, caseless)


def _key(value: bool | int | float) -> tuple[bool, bool | int | float]:
    """Return a dictionary key for a JSON value.

    The keys of 1 and true differ, although Python treats the two values as equal.
    """
    return isinstance(value, bool), value


def _member_test(
    texts: set[str],
    folded: set[str],
    surely: set[tuple[bool, bool | int | float]],
    indeterminate: set[tuple[bool, bool | int | float]],
    caseless: Callable[[str], bool],
) -> ValueTest:
    def is_member(value: Value) -> int:
        if isinstance(value, str):
            if value in texts:
                return YES
            return INDETERMINATE if fold(value) in folded and caseless(value) else NO
        if not isinstance(value, bool | int | float):
            return NO
        key = _key(value)
        if key in surely:
            return YES
        return INDETERMINATE if key in indeterminate else NO

    return is_member


def _text_test(holds: Callable[[str, str], bool], operand: str, caseless: Callable[[str], bool]) -> ValueTest:
    folded = fold(operand)

    def test(value: Value) -> int:
        if not isinstance(value, str):
            return NO
        if holds(value, operand):
            return YES
        return INDETERMINATE if holds(fold(value), folded) and caseless(value) else NO

    return test


def _regex_test(expression: Any, in_any_case: Any, caseless: Callable[[str], bool]) -> ValueTest:
    def test(value: Value) -> int:
        if not isinstance(value, str):
            return NO
        try:
            if expression.search(value) is not None:
                return YES
            return INDETERMINATE if in_any_case.search(value) is not None and caseless(value) else NO
        except UnicodeEncodeError:  # a lone surrogate from a JSON escape
            return INDETERMINATE

    return test


def _compared(value: Value, holds: Callable[[int | float], bool]) -> int:
    if isinstance(value, str):
        if _NUMBER.fullmatch(value) is None:
            return INDETERMINATE  # servers differ in how they read `+5`, `1e3` or `five`
        value = float(value) if "." in value else int(value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return INDETERMINATE
    return YES if holds(value) else NO


def _numeric(operand: Scalar | tuple[Scalar, ...]) -> int | float:
    if isinstance(operand, bool) or not isinstance(operand, int | float):
        raise ValueError("the value of at_least or at_most must be a number")
    return operand


def _is_caseless_id(value: str) -> bool:
    return _CASELESS_ID.fullmatch(value) is not None


def _always(value: str) -> bool:
    return True
