"""A ruleset that a request contains or names, with the schemas that the rules need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from controlplane.names import InvalidName, valid_name
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.models import schemas_of
from controlplane.operations.operation import InvalidRequest
from controlplane.store.interface import NotFound, PackedSchemas
from controlplane.store.interface import Ruleset as StoredRuleset
from controlplane.workshop.thing_problems import thing_problems
from proxy.policy import yaml_document
from proxy.policy.ruleset import Ruleset as PolicyRuleset
from proxy.policy.ruleset_yaml import InvalidRuleset, RulesetProblem, document_problem, parse_ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas, needs_schemas

_LONGEST_LABEL: Final = 200


class Source(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Text of a draft ruleset, or the name of a stored ruleset.

    Exactly one of the members `yaml` (text of a ruleset) and `ruleset` (name of a stored ruleset) is given.
    """

    yaml: str | None = None
    label: str = "yaml"  # name of the text in messages
    ruleset: str | None = None  # id or name; NAME@VERSION for a version that is not active


class ProblemFacts(msgspec.Struct, rename="camel"):
    line: int
    column: int
    where: str
    message: str


async def text_of(
    context: OperationContext, actor: Actor, source: Source, org: str | None
) -> tuple[str, str]:
    """Return the ruleset's label for messages, and the ruleset's text."""
    if source.yaml is not None and source.ruleset is None:
        return source.label, source.yaml
    if source.ruleset is not None and source.yaml is None:
        return source.ruleset, await stored_yaml(context, actor, source.ruleset, org)
    raise InvalidRequest("give a ruleset either as its text or by its name")


def name_problems(text: str, name: str) -> tuple[RulesetProblem, ...]:
    """Return the reasons why a ruleset can't be stored under the given name, although its text is valid."""
    try:
        valid_name(name)
    except InvalidName as error:
        return (document_problem(yaml_document.parse(text), ("name",), str(error)),)
    return ()


def parsed(label: str, text: str) -> PolicyRuleset:
    """Return the parsed rules of a ruleset text.

    Raise InvalidRequest with all errors in the ruleset text, each with its line and column.
    """
    try:
        return parse_ruleset(text)
    except InvalidRuleset as error:
        raise InvalidRequest(*(problem_line(label, problem) for problem in error.problems)) from None


def problem_line(label: str, problem: RulesetProblem) -> str:
    if len(label) > _LONGEST_LABEL:  # the label begins every line; the end of a path identifies it best
        label = f"…{label[1 - _LONGEST_LABEL :]}"
    where = f"{problem.where}: " if problem.where else ""
    return f"{label}:{problem.line}:{problem.column}: {where}{problem.message}"


def named_version(reference: str, names: Collection[str]) -> tuple[str, int | None]:
    """Return the ruleset that a reference names, and the version if the reference includes a version.

    The text NAME@VERSION names a ruleset version, unless a ruleset has this complete text as its name.
    """
    name, at, number = reference.rpartition("@")
    if reference in names or not (at and number.isascii() and number.isdecimal() and len(number) < 10):
        return reference, None
    return name, int(number)


async def stored_yaml(context: OperationContext, actor: Actor, reference: str, org: str | None) -> str:
    """Return the text of a ruleset's active version.

    If the reference is NAME@VERSION, return the text of this version.
    """
    found, wanted = await stored_version(context, actor, reference, org)
    text = await context.store.ruleset_text(found.ruleset_id, wanted)
    if text is None:
        raise NotFound(f"ruleset {found.name} has no version {wanted}")
    return text


async def stored_version(
    context: OperationContext, actor: Actor, reference: str, org: str | None
) -> tuple[StoredRuleset, int]:
    """Return the stored ruleset and the version number that a reference names."""
    names = {each.name for each in await context.resolve.rulesets(actor, org)}
    reference, version = named_version(reference, names)
    found = await context.resolve.ruleset(actor, "viewer", reference, org)
    return found, found.version if version is None else version


NO_PACKED_SCHEMAS: Final = PackedSchemas({}, {})


@dataclass(frozen=True, slots=True)
class GivenRules:
    """A ruleset: a label for messages, the text of the ruleset, and its schemas."""

    label: str
    text: str
    schemas: PackedSchemas


async def given_rules(context: OperationContext, actor: Actor, source: Source, org: str | None) -> GivenRules:
    """Return a draft with the organisation's current schemas, or a stored version with its stored schemas."""
    label, text = await text_of(context, actor, source, org)
    if source.ruleset is not None:
        found, version = await stored_version(context, actor, source.ruleset, org)
        return GivenRules(label, text, await context.store.version_schemas(found.ruleset_id, version))
    if not org:
        return GivenRules(label, text, NO_PACKED_SCHEMAS)
    org_id = (await context.resolve.org(actor, "viewer", org)).org_id
    return GivenRules(label, text, await context.store.current_schemas(org_id))


def ruleset_of(given: GivenRules) -> PolicyRuleset:
    """Return the parsed form of a ruleset.

    Raise InvalidRequest if the ruleset is not valid, or if a rule names a type or property that the ruleset's
    schemas lack.
    """
    return with_schemas(given)[0]


def with_schemas(given: GivenRules) -> tuple[PolicyRuleset, Schemas]:
    """Return the parsed form of a ruleset, and the schemas that it needs.

    Raise InvalidRequest if the ruleset is not valid.
    """
    ruleset = parsed(given.label, given.text)
    if not needs_schemas(ruleset):
        return ruleset, NO_SCHEMAS
    if not given.schemas.digests:
        what = "its rules name elements of a schema: name an organisation that has a schema"
        raise InvalidRequest(f"{given.label}: {what}")
    schemas = schemas_of(given.schemas)
    problems = thing_problems(given.text, ruleset, schemas)
    if problems:
        raise InvalidRequest(*(problem_line(given.label, each) for each in problems))
    return ruleset, schemas
