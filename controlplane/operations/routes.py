"""Operation, with its JSON types, that lists the routes by which a ruleset lets requests reach resources."""

from __future__ import annotations

from typing import Final

import msgspec

from controlplane.model.schema_file import UnreadableSchema, read_schema
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import ProblemFacts, Source, parsed, problem_line, text_of
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.worker_process import run_trial
from controlplane.store.interface import PackedSchemas
from controlplane.workshop.routes import GRAPH_ROOT, RoutesReport, RuleRoutes, first_of_each_kind, routes_of
from controlplane.workshop.routes_text import UNKNOWN_PATH, counted, passing_summary, rule_places, summary
from proxy.policy import yaml_document
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import document_problem
from proxy.policy.schemas import InvalidRoot, Schemas, folded_root, needs_schemas, root_segments
from proxy.policy.things import unknown_things
from proxy.wire.packed_schema import load

_FEW: Final = 20  # open routes of a rule, unless the request names the rule


class ListRoutes(Request):
    """Request to list the routes that a ruleset leaves open.

    `schema` is the text of a `$metadata` document. If `schema` is missing, the current schemas of `org` are
    used.
    """

    source: Source
    org: str | None = None
    schema: str | None = None
    root: str = GRAPH_ROOT  # root path of the service that the schema describes
    rule: str | None = None  # the id of the only rule to examine
    all: bool = False


class RouteFacts(msgspec.Struct, rename="camel"):
    """Request path by which the ruleset allows access to data that one of its rules blocks or filters.

    `method`, `target` and `body` are an example request, and `rule` is the rule that allows the request.
    """

    kind: str  # path, operation, $expand, $select, delta, subscription, search, bind, write, …
    route: str
    method: str
    target: str
    body: str | None
    verdict: str
    rule: str


class PassingFacts(msgspec.Struct, rename="camel"):
    """A navigation property that `$expand` can follow to bypass a rule.

    `hidden_by` names the rules that block or filter the objects to which the navigation property leads.
    """

    navigation: str
    method: str
    target: str
    hidden_by: tuple[str, ...]


class RuleRoutesFacts(msgspec.Struct, rename="camel"):
    """Request paths to the types and properties that one rule names.

    `open` has the paths by which the ruleset still allows access to these types and properties.
    """

    rule: str
    line: int
    verdict: str
    things: tuple[str, ...]
    routes: int
    more_routes: bool  # true: there are more routes than were tried
    closed: int
    open: tuple[RouteFacts, ...]
    more_open: int  # number of open routes that are left out here
    closed_by: str  # match that closes all of them
    passing: tuple[PassingFacts, ...]
    counted: str  # text such as: blocks 4 of 73 routes to message
    passes: str  # text such as: $expand of members passes; or empty
    summary: str  # all these facts in one line


class FoundRoutes(Response):
    """Routes by which a ruleset lets requests reach the types and properties that its rules name.

    `schema` is the digest of the schema with which the routes were found.

    If no schema was used, `schema` is null, and the list has only routes that can be found without a schema.
    """

    name: str
    schema: str | None
    rules: tuple[RuleRoutesFacts, ...]
    unknown: tuple[ProblemFacts, ...]
    skipped_rules: int


@operation("ruleset.routes", "POST", "/rulesets/routes", changes=False)
async def list_routes(context: OperationContext, actor: Actor, request: ListRoutes) -> FoundRoutes:
    """List open routes: paths, allowed by a ruleset, to data that one of its rules blocks or filters.

    The response has an example request for each open route.
    """
    label, text = await text_of(context, actor, request.source, request.org)
    stored = None
    if request.schema is None and request.org:
        org = await context.resolve.org(actor, "viewer", request.org)
        stored = await context.store.current_schemas(org.org_id)
    return await run_trial(actor, _found, label, text, stored, request)


def _found(label: str, text: str, stored: PackedSchemas | None, request: ListRoutes) -> FoundRoutes:
    ruleset = parsed(label, text)
    model, root = _stored_schema(stored, request.root)
    if request.schema is not None:
        try:
            model = read_schema(request.schema.encode())
        except UnreadableSchema as error:
            raise InvalidRequest(f"schema: {error}") from None
    return found_routes(text, ruleset, model, root=root, rule=request.rule, every=request.all)


def _stored_schema(stored: PackedSchemas | None, root: str) -> tuple[ResourceModel | None, str]:
    """Return the organisation's schema for the root path `root`, and the root path of the returned schema.

    If the organisation has no schema for `root`, return the schema whose root path is the first in
    alphabetical order.
    """
    if stored is None or not stored.digests:
        return None, root
    found = root if root in stored.digests else min(stored.digests)
    digest = stored.digests[found]
    return load(stored.packed[digest], digest), found


def found_routes(
    text: str,
    ruleset: Ruleset,
    model: ResourceModel | None,
    *,
    root: str = GRAPH_ROOT,
    rule: str | None = None,
    every: bool = False,
) -> FoundRoutes:
    """Return the open routes: paths, allowed by a ruleset, to data that one of its rules blocks or filters.

    Raise InvalidRequest if `rule` is unknown, or if the ruleset has a name that the schema lacks.
    """
    if rule is not None and all(each.id != rule for each in ruleset.rules):
        raise InvalidRequest(f"rule: the ruleset has no rule {rule!r}")
    _check_things(text, ruleset, model, root)
    report = routes_of(ruleset, model, only=rule, root=root)
    lines = rule_places(text, ruleset)
    return FoundRoutes(
        name=ruleset.name,
        schema=None if model is None else model.digest,
        rules=tuple(_rule_facts(ruleset, each, lines, every) for each in report.rules),
        unknown=_unknown(text, report),
        skipped_rules=report.skipped,
    )


def _check_things(text: str, ruleset: Ruleset, model: ResourceModel | None, root: str) -> None:
    if model is None:
        if needs_schemas(ruleset):
            raise InvalidRequest(
                "schema: is missing; rules about types and properties need the upstream's $metadata"
            )
        return
    try:
        schemas = Schemas({root_segments(folded_root(root)): model})
    except InvalidRoot as error:
        raise InvalidRequest(f"root: {error}") from None
    document = yaml_document.parse(text)
    unknown = [
        document_problem(document, each.place, each.message) for each in unknown_things(ruleset, schemas)
    ]
    if unknown:
        raise InvalidRequest(*(problem_line("ruleset", each) for each in unknown))


def _unknown(text: str, report: RoutesReport) -> tuple[ProblemFacts, ...]:
    document = yaml_document.parse(text)
    problems = [
        document_problem(document, ("rules", index, "match", "path", at), UNKNOWN_PATH)
        for index, at in dict.fromkeys(report.unknown)
    ]
    return tuple(ProblemFacts(one.line, one.column, one.where, one.message) for one in problems)


def _rule_facts(ruleset: Ruleset, found: RuleRoutes, lines: tuple[int, ...], every: bool) -> RuleRoutesFacts:
    rule = ruleset.rules[found.index]
    shown = found.open if every else first_of_each_kind(found.open)[:_FEW]
    return RuleRoutesFacts(
        rule=rule.id,
        line=lines[found.index],
        verdict=rule.verdict,
        things=found.things,
        routes=found.routes,
        more_routes=found.cut,
        closed=found.routes - len(found.open),
        open=tuple(
            RouteFacts(
                str(each.kind),
                each.template,
                each.example.method,
                each.example.target,
                each.example.body,
                each.verdict,
                each.decided_by,
            )
            for each in shown
        ),
        more_open=len(found.open) - len(shown),
        closed_by=found.closed_by if found.open else "",
        passing=tuple(
            PassingFacts(
                each.navigation,
                each.example.method,
                each.example.target,
                tuple(ruleset.rules[at].id for at in each.hidden_by),
            )
            for each in found.passing
        ),
        counted=counted(rule, found),
        passes=passing_summary(found.passing, lines) if found.passing else "",
        summary=summary(rule, found, lines),
    )
