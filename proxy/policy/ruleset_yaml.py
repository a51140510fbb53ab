"""Parse the YAML text of a ruleset to its model, with line and column of every error.

The module `ruleset_yaml` also generates the JSON Schema of rulesets for editors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.config import JsonDict, JsonValue

from proxy.policy import yaml_document
from proxy.policy.conditions import InvalidRegex, compile_regex
from proxy.policy.ending import MOMENT, parse_until
from proxy.policy.gates import minutes, parse_network
from proxy.policy.paths import InvalidPattern, parse_pattern
from proxy.policy.ruleset import (
    DAYS,
    DEFAULT_RULE_ID,
    REQUEST_SOURCES,
    RESPONSE_SOURCES,
    RULE_ID,
    Comparison,
    Condition,
    IpGate,
    Match,
    Operator,
    Rule,
    Ruleset,
    Scalar,
    TimeGate,
)
from proxy.policy.scalars import Written, as_text, as_value
from proxy.policy.time_zones import checked_time_zone
from proxy.policy.transforms import Transforms, kept
from proxy.policy.visible import escaped, named
from proxy.policy.yaml_document import MAX_PROBLEMS, cut

MAX_RULES = 20_000
MAX_OPERANDS = 10_000
MAX_KEPT = 100  # conditions on items; each is evaluated for each item of a response

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2
_PROPERTY = re.compile(r"[^\s./\\]+(?:\.[^\s./\\]+)*")
_THING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*")
_SOURCES = (*REQUEST_SOURCES, *RESPONSE_SOURCES)
_LIST_OPERATORS = ("in", "not_in")
_NUMBER_OPERATORS = ("at_least", "at_most")
_TEXT_OPERATORS = ("prefix", "suffix", "contains", "matches")
_VALUE_OPERATORS = ("equals", "not_equals", *_LIST_OPERATORS, *_TEXT_OPERATORS)
_OPERATORS = ("equals", "not_equals", *_LIST_OPERATORS, *_TEXT_OPERATORS, *_NUMBER_OPERATORS, "exists")
# errors of pydantic, which reports one for each type that an operand does not have
_MOST_ERRORS = 4 * MAX_PROBLEMS
_LONGEST_COMPARED = 100  # characters of a misspelled word
_TOO_MANY = "there are more problems than this report lists"
THING_WORDS = ("resource", "operation", "pack")
_NO_MATCH = "a match needs `path`, or one or more of `resource`, `operation` and `pack`"
_BOTH_MATCHES = (
    "`path` cannot be combined with `resource`, `operation` or `pack` in one rule: write two rules"
)
_MISSING_TRANSFORMS = "a filter needs transforms: strip_properties, allow_properties or items"


@dataclass(frozen=True)
class RulesetProblem:
    line: int
    column: int
    where: str
    message: str


class InvalidRuleset(ValueError):
    """Error because a ruleset is invalid; `problems` has every problem in document order.

    If a ruleset has very many problems, `problems` contains the first ones and, as its last entry, a note
    that there are more.
    """

    def __init__(self, problems: Iterable[RulesetProblem]) -> None:
        found = sorted(set(problems), key=lambda one: (one.line, one.column, one.where, one.message))
        self.problems = tuple(at_most(found))
        super().__init__(
            "; ".join(f"{one.line}:{one.column}: {one.where}: {one.message}" for one in self.problems)
        )


def at_most(problems: list[RulesetProblem]) -> list[RulesetProblem]:
    """Return the first MAX_PROBLEMS problems.

    If there are more than MAX_PROBLEMS problems, add an entry that says that the list is incomplete.
    """
    if len(problems) <= MAX_PROBLEMS:
        return problems
    *report, more = problems[: MAX_PROBLEMS + 1]
    return [*report, RulesetProblem(more.line, more.column, "document", _TOO_MANY)]


def parse_ruleset(text: str) -> Ruleset:
    """Parse the YAML text of a ruleset. Raise InvalidRuleset with all problems of the text."""
    try:
        document = yaml_document.parse(text)
    except yaml_document.InvalidYaml as error:
        raise InvalidRuleset([RulesetProblem(*one) for one in error.problems]) from None
    problems = [RulesetProblem(*one) for one in document.problems]
    unseen = list(islice(_unseen_problems(document), MAX_PROBLEMS + 1))
    problems += unseen
    # these are the cause of any other problem at the same place
    said = {(one.line, one.column) for one in unseen}
    contradictions = (
        document_problem(document, where, message) for where, message in _contradictions(document.value)
    )
    more = (one for one in contradictions if (one.line, one.column) not in said)
    problems += islice(more, MAX_PROBLEMS + 1)
    if len(problems) > MAX_PROBLEMS:  # the model of so large a text costs much memory, and is not needed
        raise InvalidRuleset(problems)
    model: _Ruleset | None = None
    try:
        model = read_shape(_Ruleset, document.value)
    except ValidationError as error:
        found = shape_problems(document, error, _SHAPES)
        problems += (one for one in found if (one.line, one.column) not in said)
    if problems or model is None:
        raise InvalidRuleset(problems)
    return _to_plain(model)


def _unseen_problems(document: yaml_document.Document) -> Iterator[RulesetProblem]:
    """Yield a problem for each name or value with invisible characters in the ruleset.

    A rule's description may contain invisible characters, because Graphward escapes them wherever it shows
    the description.
    """
    for each in document.unseen:
        last = next((part for part in reversed(each.where) if isinstance(part, str)), "")
        if last == "description" and not each.may_be_elsewhere:
            continue
        is_value = last in _VALUE_OPERATORS
        if is_value and each.by_escape and not each.may_be_elsewhere:
            continue
        yield RulesetProblem(*yaml_document.problem(each.mark, each.where, _unseen_message(each, is_value)))


def _unseen_message(found: yaml_document.Unseen, is_value: bool) -> str:
    text = cut(found.text, _LONGEST_COMPARED)
    message = f"`{text}` holds the invisible character {named(found.char)}: remove it"
    if is_value and not found.may_be_elsewhere:
        return f"{message}, or write it as {escaped(found.char)} in double quotes"
    if found.char.isspace():
        return f"{message}, or write a plain space"
    return message


def ruleset_json_schema() -> dict[str, object]:
    """Return the JSON Schema of rulesets for editors.

    The JSON Schema does not check paths, regular expressions and time zones.
    """
    return editor_schema("Graphward ruleset", _Ruleset)


def editor_schema(title: str, shape: type[BaseModel]) -> dict[str, object]:
    """Return a JSON Schema with which text editors check documents of the type `shape`."""
    schema = cast("dict[str, object]", _for_editors(shape.model_json_schema(by_alias=True)))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _for_editors(schema: object) -> object:
    """Remove Python class names and null from the JSON Schema, because a key without a value is a mistake."""
    if isinstance(schema, list):
        return [_for_editors(each) for each in schema if each != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    noise = {key for key, value in schema.items() if key == "title" and isinstance(value, str)}
    noise |= {key for key, value in schema.items() if key == "default" and value is None}
    kept = {key: _for_editors(value) for key, value in schema.items() if key not in noise}
    choices = kept.get("anyOf")
    if isinstance(choices, list) and len(choices) == 1:
        del kept["anyOf"]
        kept.update(choices[0])
    return kept


# Shape of the document


@dataclass(slots=True)
class _Errors:
    """Number of validation errors found in the text so far."""

    count: int = 0


S = TypeVar("S", bound="Shape")
T = TypeVar("T")


def read_shape(shape: type[S], value: object) -> S:
    """Parse a document into a pydantic model.

    If the document is invalid, raise ValidationError with a limited number of errors (about _MOST_ERRORS).
    """
    errors = _Errors()
    model = shape.model_validate(value, context=errors)
    if errors.count:  # otherwise the parser may have skipped a part of the text
        raise AssertionError("pydantic returned a model, but errors were counted")
    return model


def _unless_many(value: Any, read: Callable[[Any], T], info: ValidationInfo) -> T:
    """Skip the validation of further values after very many errors: pydantic keeps all errors in memory.

    Every element that can occur many times in a ruleset is validated through `_unless_many`. If a value may
    have one of several types, `_unless_many` must not wrap one of these types, because a value that does not
    fit one type may fit another.
    """
    errors = cast(_Errors, info.context)
    if errors.count >= _MOST_ERRORS:
        return cast(T, value)
    before = errors.count
    try:
        return read(value)
    except ValidationError as error:
        errors.count = before + error.error_count()
        raise


def _item_unless_many(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    return _unless_many(value, read, info)


FEW = WrapValidator(_item_unless_many)


def _checked_path(text: str) -> str:
    try:
        parse_pattern(text)
    except InvalidPattern as error:
        raise ValueError(cut(str(error))) from None
    except UnicodeError:
        raise ValueError("a path must be Unicode text, with percent escapes in UTF-8") from None
    return text


def _checked_network(text: str) -> str:
    try:
        parse_network(text)
    except ValueError as error:
        raise ValueError(cut(f"the text is not a network or address: {error}")) from None
    return text


def _checked_minutes(text: str) -> str:
    minutes(text)
    return text


def _checked_start(text: str) -> str:
    if minutes(text) == minutes("24:00"):
        raise ValueError("24:00 is allowed only as the end of a time range; a day begins at 00:00")
    return text


def _checked_timezone(text: str) -> str:
    try:
        return checked_time_zone(text)
    except ValueError as error:
        raise ValueError(cut(str(error))) from None


def _checked_until(text: str) -> str:
    parse_until(text)
    return text


def _checked_method(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ValueError("an HTTP method must be a token such as GET")
    return text.upper()


def _checked_rule_id(text: str) -> str:
    if not RULE_ID.fullmatch(text):
        raise ValueError(
            "a rule id must be 1 to 128 letters, digits or ._:- and begin with a letter or digit"
        )
    if text.lower() == DEFAULT_RULE_ID:
        raise ValueError(f"the rule id `{DEFAULT_RULE_ID}` is reserved for requests that no rule decides")
    return text


def _checked_property(text: str) -> str:
    if not _PROPERTY.fullmatch(text):
        raise ValueError("a property must be a name, or names joined by dots, without spaces and slashes")
    return text


def _checked_thing(text: str) -> str:
    if not _THING.fullmatch(text):
        raise ValueError("a resource must be a type, or a type and its relation or property: group.members")
    return text


def _checked_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name must consist of letters, digits, dots, hyphens and underscores")
    return text


def _checked_field_name(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ValueError("the text is not a valid name of a header field")
    return text


def _text_like(pattern: str) -> WithJsonSchema:
    """Return the JSON Schema of a text value for editors.

    For a wrong text, the validator of the ruleset gives a better error message than the JSON Schema.
    """
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})


def _scalar_like(pattern: str = "", **more: JsonValue) -> WithJsonSchema:
    """Return the JSON Schema for editors, for a text value in a ruleset.

    The JSON Schema also accepts numbers and booleans, because YAML allows them without quotes.
    """
    schema: dict[str, JsonValue] = {"type": ["string", "number", "boolean"]}
    return WithJsonSchema(schema | ({"pattern": f"^(?:{pattern})$"} if pattern else {}) | more)


def _checked_operand(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | Written):
        return value
    raise ValueError(f"expected text, a number, true or false; found {_kind_of(value)}")


# A scalar counts as it is written where text is expected, and as a number or boolean where one of those is.
_WrittenText = Annotated[StrictStr, BeforeValidator(as_text)]
Text = Annotated[_WrittenText, _scalar_like()]
Integer = Annotated[StrictInt, BeforeValidator(as_value)]
_Number = Annotated[StrictInt | StrictFloat, BeforeValidator(as_value)]
_Truth = Annotated[StrictBool, BeforeValidator(as_value)]

_Path = Annotated[StrictStr, AfterValidator(_checked_path), FEW, _text_like(r"/[^?#\\]*")]
_Network = Annotated[
    StrictStr, AfterValidator(_checked_network), FEW, _text_like(r"[0-9A-Fa-f.:]+(?:/[0-9.]+)?")
]
_Property = Annotated[_WrittenText, AfterValidator(_checked_property), FEW, _scalar_like(_PROPERTY.pattern)]
_OptionName = Annotated[_WrittenText, Field(min_length=1), _scalar_like(minLength=1)]
_FieldName = Annotated[_WrittenText, AfterValidator(_checked_field_name), _scalar_like(_TOKEN.pattern)]
_Thing = Annotated[_WrittenText, AfterValidator(_checked_thing), FEW, _text_like(_THING.pattern)]
_Operation = Annotated[_WrittenText, AfterValidator(_checked_name), FEW, _text_like(_NAME.pattern)]
_Method = Annotated[_WrittenText, AfterValidator(_checked_method), FEW, _text_like(_TOKEN.pattern)]
_RuleId = Annotated[_WrittenText, AfterValidator(_checked_rule_id), _scalar_like(RULE_ID.pattern)]
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_Start = Annotated[_WrittenText, AfterValidator(_checked_start), _text_like(_CLOCK)]
_End = Annotated[_WrittenText, AfterValidator(_checked_minutes), _text_like(f"{_CLOCK}|24:00")]
_Until = Annotated[_WrittenText, AfterValidator(_checked_until), _text_like(MOMENT)]
_Scalar = Annotated[Any, BeforeValidator(_checked_operand), _scalar_like()]
_Scalars = Annotated[list[Annotated[_Scalar, FEW]], Field(min_length=1, max_length=MAX_OPERANDS)]
_Day = Annotated[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], FEW]


class Shape(BaseModel):
    """A pydantic model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)

    @model_validator(mode="wrap")
    @classmethod
    def _few_errors(cls, value: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + MAX_PROBLEMS:
            raise ValueError(f"found {len(value)} keys, but the format defines only {len(cls.model_fields)}")
        return _unless_many(value, read, info)


def _one_of(*keys: str) -> JsonDict:
    return {"oneOf": [{"required": [key]} for key in keys]}


def _some_of(*keys: str) -> JsonDict:
    return {"anyOf": [{"required": [key]} for key in keys]}


class _Match(Shape):
    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["path"]}, _some_of(*THING_WORDS)]},
    )

    path: Annotated[list[_Path], Field(min_length=1)] | None = Field(
        None,
        description="{name} and * match one segment; ** at the end matches the rest, which may be empty.",
    )
    resource: Annotated[list[_Thing], Field(min_length=1)] | None = Field(
        None, description="Types, relations and properties of the schema, such as message or group.members."
    )
    operation: Annotated[list[_Operation], Field(min_length=1)] | None = Field(
        None, description="Functions and actions of the upstream's schema, such as addPassword."
    )
    pack: Annotated[list[_Operation], Field(min_length=1)] | None = Field(
        None, description="Lists of related things, such as mail or membership."
    )
    methods: Annotated[list[_Method], Field(min_length=1)] | None = Field(
        None, description="HTTP methods (any method if left out). GET includes HEAD."
    )


class _Condition(Shape):
    model_config = ConfigDict(
        json_schema_extra={
            **_one_of(*_SOURCES),
            # `status` may itself be the comparison.
            "if": {"properties": {"status": {"type": ["integer", "array"]}}, "required": ["status"]},
            "else": _some_of(*_OPERATORS),
        }
    )

    param: Text | None = Field(
        None, description="Name of a path parameter; the condition tests the decoded segment."
    )
    query: _OptionName | None = Field(None, description="Name of a query option.")
    header: _FieldName | None = Field(None, description="Name of a header field of the request.")
    body: _Property | None = Field(None, description="Path of a property of a JSON request body.")
    status: (
        Annotated[Literal[True], BeforeValidator(as_value)]
        | Integer
        | Annotated[list[Annotated[Integer, FEW]], Field(min_length=1)]
        | None
    ) = Field(None, description="Status code of the response.")
    response_header: _FieldName | None = Field(None, description="Name of a header field of the response.")
    property: _Property | None = Field(
        None, description="Path of a property of the response, or of an item of it."
    )
    equals: _Scalar | None = None
    not_equals: _Scalar | None = None
    in_: _Scalars | None = Field(None, alias="in")
    not_in: _Scalars | None = None
    prefix: Text | None = None
    suffix: Text | None = None
    contains: Text | None = None
    matches: Text | None = None
    at_least: _Number | None = None
    at_most: _Number | None = None
    exists: _Truth | None = None


class _Ip(Shape):
    model_config = ConfigDict(json_schema_extra=_some_of("in", "not_in"))

    in_: Annotated[list[_Network], Field(min_length=1)] | None = Field(None, alias="in")
    not_in: Annotated[list[_Network], Field(min_length=1)] | None = None


class _Time(Shape):
    model_config = ConfigDict(
        json_schema_extra={
            **_some_of("days", "from"),
            "dependentRequired": {"from": ["to"], "to": ["from"]},
        }
    )

    days: Annotated[list[_Day], Field(min_length=1)] | None = None
    from_: _Start | None = Field(None, alias="from")
    to: _End | None = None
    timezone: Annotated[_WrittenText, AfterValidator(_checked_timezone)] = "UTC"


class _Items(Shape):
    keep: Annotated[list[Annotated[_Condition, FEW]], Field(min_length=1, max_length=MAX_KEPT)] = Field(
        description="Conditions on `property`, all of which must hold for an item to stay."
    )


class _Transforms(Shape):
    model_config = ConfigDict(
        json_schema_extra={
            **_some_of("strip_properties", "allow_properties", "items"),
            "if": {"required": ["strip_properties"]},
            "then": {"properties": {"allow_properties": False}},
        }
    )

    strip_properties: Annotated[list[_Property], Field(min_length=1)] | None = None
    allow_properties: Annotated[list[_Property], Field(min_length=1)] | None = None
    items: _Items | None = Field(
        None, description="Conditions on the items of a list that stay, and on single objects."
    )


class _Rule(Shape):
    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"verdict": {"const": "filter"}}},
            "then": {"required": ["transforms"]},
            "else": {"properties": {"transforms": False, "guard_queries": False}},
        }
    )

    id: _RuleId
    description: Text | None = None
    when: Literal["request", "response"] = "request"
    match: _Match
    conditions: list[_Condition] | None = Field(None, description="Conditions that must all hold.")
    ip: _Ip | None = Field(None, description="Networks or addresses of clients.")
    time: _Time | None = Field(None, description="Days and hours in a time zone.")
    until: _Until | None = Field(
        None, description="Moment from which the rule no longer matches: RFC 3339, with its offset."
    )
    verdict: Literal["allow", "filter", "block", "log_only"] = Field(
        description="Decision if the rule matches; after log_only, the next rules are tried."
    )
    body_only: Annotated[list[_Property], Field(min_length=1)] | None = Field(
        None,
        description="Properties that the body of a write may have; others are not allowed. "
        "A block matches a body that has another property.",
    )
    transforms: _Transforms | None = Field(None, description="Properties and items that a filter hides.")
    guard_queries: _Truth = Field(
        False, description="True to block requests whose query probes a hidden property."
    )


class _Ruleset(Shape):
    version: Annotated[Literal[1], BeforeValidator(as_value)]
    name: Annotated[
        _WrittenText, Field(min_length=1, max_length=128), _scalar_like(minLength=1, maxLength=128)
    ]
    default: Literal["allow", "block"] = Field("block", description="Verdict if no rule decides.")
    rules: Annotated[list[_Rule], Field(max_length=MAX_RULES)]


# Messages about the shape


_SHAPES: Mapping[str, type[BaseModel]] = {
    "": _Ruleset,
    "match": _Match,
    "conditions": _Condition,
    "ip": _Ip,
    "time": _Time,
    "transforms": _Transforms,
    "items": _Items,
    "keep": _Condition,
    "rules": _Rule,
}


def shape_problems(
    document: yaml_document.Document, error: ValidationError, shapes: Mapping[str, type[BaseModel]]
) -> Iterator[RulesetProblem]:
    """Yield a ruleset problem for each error of pydantic.

    `shapes` maps each key of the document to the pydantic model of the key's value; the empty key stands for
    the document.
    """
    seen: set[tuple[int | str, ...]] = set()
    place = (1, 1)
    for one in error.errors(include_url=False, include_context=True):
        where = document.known_part(one["loc"])
        missing = one["type"] == "missing"
        if where in seen and not missing:
            continue  # each member of a union reports its own error
        seen.add(where)
        problem = document_problem(
            document, where, _shape_message(cast("dict[str, Any]", one), shapes), missing=missing
        )
        place = max(place, (problem.line, problem.column))
        yield problem
    if error.error_count() >= _MOST_ERRORS:
        yield RulesetProblem(*place, "document", _TOO_MANY)


def document_problem(
    document: yaml_document.Document, where: tuple[int | str, ...], message: str, *, missing: bool = False
) -> RulesetProblem:
    at_key = message.startswith("unknown key") or missing
    line, column = document.mark(where, at_key=at_key)
    return RulesetProblem(*yaml_document.problem((line, column), where, message))


def _shape_message(error: dict[str, Any], shapes: Mapping[str, type[BaseModel]]) -> str:
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    name = str(error["loc"][-1]) if error["loc"] else ""
    if kind == "extra_forbidden":
        return f"unknown key `{name}`" + _suggestion(name, _keys_beside(error["loc"], shapes))
    if kind == "missing":
        return f"`{name}` is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", str(context["expected"]))
        expected = str(context["expected"])
        choice = "not one of" if " or " in expected else "not"
        return f"{_quoted(given)} is {choice} {expected}" + _suggestion(
            given if isinstance(given, str) else "", known
        )
    if kind in ("model_type", "model_attributes_type"):
        return f"expected keys and values, found {_kind_of(given)}"
    if kind == "list_type":
        return f"expected a list, found {_kind_of(given)}"
    if kind == "too_short":
        return "the list is empty"
    if kind.startswith(("string", "int", "float", "bool")) and kind.endswith("type"):
        return f"expected {_WANTED.get(kind, 'another type')}, found {_kind_of(given)}"
    return str(error["msg"])


_WANTED = {
    "string_type": "text",
    "int_type": "a number",
    "float_type": "a number",
    "bool_type": "true or false",
}


def _quoted(value: object) -> str:
    if isinstance(value, dict | list):
        return _kind_of(value)
    if isinstance(value, Written):
        return value.written
    return repr(cut(value) if isinstance(value, str) else value)


def _kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    value = as_value(value)
    names = {dict: "keys and values", list: "a list", str: "text", bool: "true or false", int: "a number"}
    return names.get(type(value), "a number")


def _keys_beside(where: tuple[int | str, ...], shapes: Mapping[str, type[BaseModel]]) -> list[str]:
    """Return the keys that are allowed at the place of an unknown key."""
    names = [part for part in where[:-1] if isinstance(part, str)]
    shape = shapes.get(names[-1] if names else "", shapes[""])
    return [info.alias or name for name, info in shape.model_fields.items()]


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name[:_LONGEST_COMPARED].lower(), list(known), n=1, cutoff=0.6)
    return f", did you mean `{close[0]}`?" if close else ""


# Contradictions in a document of the right shape

_Where = tuple[int | str, ...]
_Found = Iterator[tuple[_Where, str]]


def _contradictions(value: object) -> _Found:
    rules = value.get("rules") if isinstance(value, dict) else None
    if not isinstance(rules, list):
        return
    first_with: dict[str, int] = {}
    for at, rule in enumerate(rules):
        if not isinstance(rule, dict):
            continue
        where = ("rules", at)
        rule_id = as_text(rule.get("id"))
        if isinstance(rule_id, str) and first_with.setdefault(rule_id, at) != at:
            yield (*where, "id"), f"the rule id `{rule_id}` is already used by rules[{first_with[rule_id]}]"
        yield from _match_contradictions(where, rule)
        yield from _transform_contradictions(where, rule)
        yield from _gate_contradictions(where, rule)
        if "body_only" in rule and rule["body_only"] is None:
            yield (*where, "body_only"), "`body_only` needs a list of properties; leave it out for any body"
        if "until" in rule and rule["until"] is None:
            yield (*where, "until"), "`until` needs a moment; leave it out for a rule without an end"
        conditions = rule.get("conditions")
        for index, condition in enumerate(conditions if isinstance(conditions, list) else ()):
            if isinstance(condition, dict):
                yield from _condition_contradictions((*where, "conditions", index), rule, condition)


def _match_contradictions(where: _Where, rule: dict[str, Any]) -> _Found:
    match = rule.get("match")
    if not isinstance(match, dict):
        return
    things = [word for word in THING_WORDS if word in match]
    if "path" in match:
        if things:
            yield (*where, "match", things[0]), _BOTH_MATCHES
    elif not things:
        yield (*where, "match"), _NO_MATCH
    for word in ("path", *THING_WORDS):
        if word in match and match[word] is None:
            yield (*where, "match", word), f"`{word}` needs a list of names"


def _transform_contradictions(where: _Where, rule: dict[str, Any]) -> _Found:
    verdict, transforms = rule.get("verdict"), rule.get("transforms")
    if verdict == "filter" and transforms is None:
        yield (*where, "verdict"), _MISSING_TRANSFORMS
    if verdict in ("allow", "block", "log_only"):
        if "transforms" in rule:
            yield (*where, "transforms"), f"only a filter can have transforms, but the verdict is {verdict}"
        if "guard_queries" in rule:
            yield (*where, "guard_queries"), f"only a filter can guard queries, but the verdict is {verdict}"
    if isinstance(transforms, dict):
        given = [key for key in ("strip_properties", "allow_properties") if key in transforms]
        if len(given) == 2:
            yield (
                (*where, "transforms"),
                "strip_properties and allow_properties cannot be combined in one rule",
            )
        if not given and "items" not in transforms:
            yield (*where, "transforms"), _MISSING_TRANSFORMS
        if "items" in transforms:
            yield from _item_contradictions((*where, "transforms", "items"), rule, transforms["items"])


def _item_contradictions(where: _Where, rule: dict[str, Any], items: object) -> _Found:
    if items is None:
        yield where, "`items` needs `keep`, a list of conditions"
    keep = items.get("keep") if isinstance(items, dict) else None
    for at, condition in enumerate(keep if isinstance(keep, list) else ()):
        if not isinstance(condition, dict):
            continue
        others = [key for key in _SOURCES if key in condition and key != "property"]
        if others:
            yield (
                (*where, "keep", at, others[0]),
                "a condition of `keep` must test a property of the item: write `property`",
            )
        else:
            as_response_rule = {**rule, "when": "response"}
            yield from _condition_contradictions((*where, "keep", at), as_response_rule, condition)


def _gate_contradictions(where: _Where, rule: dict[str, Any]) -> _Found:
    ip, time = rule.get("ip"), rule.get("time")
    if isinstance(ip, dict) and not {"in", "not_in"} & ip.keys():
        yield (*where, "ip"), "a gate by address needs `in` or `not_in`"
    if not isinstance(time, dict):
        return
    if not {"days", "from", "to"} & time.keys():
        yield (*where, "time"), "a gate by time needs `days`, or `from` and `to`"
    if ("from" in time) != ("to" in time):
        yield (*where, "time"), "`from` and `to` must be given together"
    elif "from" in time and as_text(time["from"]) == as_text(time["to"]):
        yield (*where, "time", "to"), "`from` and `to` are the same; leave both out for whole days"


def _condition_contradictions(where: _Where, rule: dict[str, Any], condition: dict[str, Any]) -> _Found:
    sources = [key for key in _SOURCES if key in condition]
    if len(sources) != 1:
        found = " and ".join(sources) if sources else "none"
        yield where, f"a condition needs exactly one of {', '.join(_SOURCES)}; found: {found}"
    shorthand = isinstance(condition.get("status"), list) or type(as_value(condition.get("status"))) is int
    if not shorthand and not any(operator in condition for operator in _OPERATORS):
        yield where, f"a condition needs an operator: {', '.join(_OPERATORS)}"
    for source in sources:
        if source in RESPONSE_SOURCES and rule.get("when") != "response":
            yield (*where, source), f"`{source}` is available only in a rule with `when: response`"
        if condition[source] is None and source != "status":
            yield (*where, source), f"`{source}` needs a name"
    if "param" in sources:
        yield from _unknown_parameter((*where, "param"), rule, condition["param"])
    if "status" in sources:
        yield from _status_contradictions(where, condition)
    for operator in _OPERATORS:
        if operator in condition:
            yield from _operand_contradictions((*where, operator), operator, condition[operator])


def _unknown_parameter(where: _Where, rule: dict[str, Any], name: object) -> _Found:
    match = rule.get("match")
    paths = match.get("path") if isinstance(match, dict) else None
    name = as_text(name)
    if isinstance(match, dict) and paths is None and any(word in match for word in THING_WORDS):
        yield where, "a rule without a path has no parameters"
    if not isinstance(name, str) or not isinstance(paths, list):
        return
    known: set[str] = set()
    for path in paths:
        try:
            patterns = parse_pattern(path) if isinstance(path, str) else ()
        except (InvalidPattern, UnicodeError):
            return  # this error is reported separately, and the path may contain the parameter
        known |= {parameter for pattern in patterns for parameter, _ in pattern.parameters}
    if name not in known:
        yield where, f"no path of the rule names a parameter {{{name}}}" + _suggestion(name, known)


def _status_contradictions(where: _Where, condition: dict[str, Any]) -> _Found:
    for operator in _OPERATORS:
        operand = condition.get(operator)
        operands = operand if isinstance(operand, list) else [operand]
        if operator not in (*_NUMBER_OPERATORS, "exists") and any(isinstance(one, str) for one in operands):
            yield (*where, operator), "a status must be a number"


def _operand_contradictions(where: _Where, operator: str, operand: object) -> _Found:
    if operator in _TEXT_OPERATORS:
        operand = as_text(operand)
    if operand is None:
        yield where, f'`{operator}` needs a value; write "null" in quotes for that text'
    elif operator == "matches" and isinstance(operand, str):
        try:
            compile_regex(operand)
        except InvalidRegex as error:
            yield where, f"the text is not a regular expression of RE2: {error}"
    elif operator in ("prefix", "suffix", "contains") and operand == "":
        yield where, f"`{operator}` with an empty text matches every value"


# Conversion to the plain model


def _to_plain(model: _Ruleset) -> Ruleset:
    return Ruleset(
        name=model.name, default=model.default, rules=tuple(map(_plain_rule, model.rules)), version=1
    )


def _plain_rule(rule: _Rule) -> Rule:
    return Rule(
        id=rule.id,
        description=rule.description or "",
        when=rule.when,
        match=_plain_match(rule.match),
        conditions=tuple(map(_plain_condition, rule.conditions or ())),
        ip=None if rule.ip is None else IpGate(_tuple(rule.ip.in_), _tuple(rule.ip.not_in)),
        time=None if rule.time is None else _plain_time(rule.time),
        until=None if rule.until is None else parse_until(rule.until),
        verdict=rule.verdict,
        body_only=_tuple(rule.body_only),
        transforms=None if rule.transforms is None else _plain_transforms(rule.transforms),
        guard_queries=rule.guard_queries,
    )


def _plain_match(match: _Match) -> Match:
    return Match(
        path=tuple(match.path or ()),
        methods=tuple(match.methods or ()),
        resource=tuple(match.resource or ()),
        operation=tuple(match.operation or ()),
        pack=tuple(match.pack or ()),
    )


def _plain_time(time: _Time) -> TimeGate:
    days = DAYS if time.days is None else tuple(time.days)
    return TimeGate(days, time.from_ or "00:00", time.to or "24:00", time.timezone)


def _plain_transforms(transforms: _Transforms) -> Transforms:
    conditions = () if transforms.items is None else map(_plain_condition, transforms.items.keep)
    return Transforms(
        _tuple(transforms.strip_properties) or (),
        _tuple(transforms.allow_properties),
        keep=tuple(map(kept, conditions)),
    )


def _plain_condition(condition: _Condition) -> Condition:
    given = condition.model_dump(by_alias=True, exclude_none=True)
    source = next(key for key in _SOURCES if key in condition.model_fields_set)
    tests = [Comparison(cast(Operator, key), _operand(given[key])) for key in _OPERATORS if key in given]
    if source != "status":
        return Condition(cast(Any, source), given[source], tuple(tests))
    if isinstance(condition.status, list):
        tests.append(Comparison("in", tuple(condition.status)))
    elif condition.status is not None and condition.status is not True:
        tests.append(Comparison("equals", condition.status))
    return Condition("status", "", tuple(tests))


def _operand(value: Any) -> Scalar | tuple[Scalar, ...]:
    return tuple(value) if isinstance(value, list) else value


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
