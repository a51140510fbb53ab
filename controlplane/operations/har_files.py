"""Operations on HAR files: evaluate the recorded requests, or suggest rules that allow these requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.given_rules import GivenRules, Source, given_rules, with_schemas
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.replays import OutcomeFacts, outcome_facts
from controlplane.operations.suggestions import about_suggestion, suggested_name
from controlplane.operations.worker_process import run_on_file
from controlplane.workshop.har import (
    MOST_ENTRIES_NAMED,
    Exchange,
    Har,
    Remark,
    parse_har,
    remark_lines,
)
from controlplane.workshop.har_text import InvalidHar
from controlplane.workshop.har_traffic import Foreseen, by_outcome, foresee, suggest_for
from controlplane.workshop.suggest import Suggestion
from proxy.policy.ruleset_yaml import InvalidRuleset
from proxy.policy.unknown import PartlyKnownResponse, ResponsePart
from proxy.wire.audit_event import rfc3339

MOST_CHARACTERS: Final = 10_000_000  # characters of one file; requests have at most 10 MiB
_EXAMPLES: Final = 3  # example requests of a group
_MOST_GROUPS: Final = 50
_LONGEST_BODY: Final = 1 << 20  # bytes of a response that are examined; `_TOO_LONG` names the same limit
_MOST_OBJECTS: Final = 10_000  # number of objects that such a response may have
_TOO_LONG: Final = "the body of the response has more than 1 MiB or 10,000 objects and is left out"

HarText = Annotated[str, Meta(min_length=2, max_length=MOST_CHARACTERS)]


class ReplayHar(Request):
    source: Source
    har: HarText  # text of the file
    org: str | None = None


class HarGroup(msgspec.Struct, rename="camel"):
    """A group of requests in a HAR file that have the same outcome.

    If the HAR file lacks facts that decide the verdict, `after` lists several possible outcomes. `missing`
    lists the facts that the HAR file does not contain.
    """

    requests: int
    after: tuple[OutcomeFacts, ...]
    missing: tuple[str, ...]
    examples: tuple[str, ...]  # method and target, with secrets masked
    removed: tuple[str, ...]  # properties that the filter removes from the responses in the file


class ReplayedHar(Response):
    requests: int
    elsewhere: int  # requests to other addresses, which were left out
    remarks: tuple[str, ...]  # facts that were left out or are unknown
    groups: tuple[HarGroup, ...]  # groups, blocked ones first


class SuggestFromHar(Request):
    har: HarText
    name: str


class SuggestedFromHar(Response):
    yaml: str
    requests: int
    left_out: int
    remarks: tuple[str, ...]


@operation("ruleset.replay-har", "POST", "/rulesets/replay-har", changes=False)
async def replay_har(context: OperationContext, actor: Actor, request: ReplayHar) -> ReplayedHar:
    """Evaluate the requests of a HAR file against a ruleset.

    The operation does not store any content of the HAR file.
    """
    given = await given_rules(context, actor, request.source, request.org)
    return await run_on_file(actor, _replayed, given, request.har)


@operation("ruleset.suggest-har", "POST", "/rulesets/suggest-har", changes=False)
async def suggest_har(context: OperationContext, actor: Actor, request: SuggestFromHar) -> SuggestedFromHar:
    """Suggest the smallest ruleset that allows the requests that a HAR file contains.

    The operation does not store any content of the HAR file.
    """
    return await run_on_file(actor, _suggested, request.har, request.name)


def _parsed(text: str) -> Har:
    try:
        return _without_long_bodies(parse_har(text.encode("utf-8", "surrogatepass")))
    except InvalidHar as error:
        raise InvalidRequest(f"har: {error}") from None


def _without_long_bodies(har: Har) -> Har:
    """Treat large response bodies as unknown, because a filter could need minutes for each body."""
    kept = tuple(_without_long_body(each) for each in har.exchanges)
    cut = [one.number for one, other in zip(har.exchanges, kept, strict=True) if one is not other]
    if not cut:
        return har
    remark = Remark(_TOO_LONG, len(cut), tuple(cut[:MOST_ENTRIES_NAMED]))
    return replace(har, exchanges=kept, unknown=(*har.unknown, remark))


def _without_long_body(exchange: Exchange) -> Exchange:
    response = exchange.response
    if response is None or response.body is None:
        return exchange
    if len(response.body) <= _LONGEST_BODY and response.body.count(b"{") <= _MOST_OBJECTS:
        return exchange
    unknown: set[ResponsePart] = {"property"}
    if isinstance(response, PartlyKnownResponse):
        unknown |= response.unknown
    known = PartlyKnownResponse(response.status, response.headers, None, unknown=unknown)
    return replace(exchange, response=known)


def _replayed(given: GivenRules, text: str) -> ReplayedHar:
    har = _parsed(text)
    ruleset, schemas = with_schemas(given)
    groups = by_outcome(foresee(ruleset, har.exchanges, schemas))[:_MOST_GROUPS]
    return ReplayedHar(
        len(har.exchanges), har.elsewhere, tuple(remark_lines(har)), tuple(map(_group, groups))
    )


def _group(group: list[Foreseen]) -> HarGroup:
    first = group[0]
    return HarGroup(
        requests=len(group),
        after=tuple(map(outcome_facts, first.possible)),
        missing=tuple(first.missing),
        examples=tuple(f"{one.exchange.method} {one.target}" for one in group[:_EXAMPLES]),
        removed=tuple(dict.fromkeys(name for one in group for name in one.removed)),
    )


def _suggested(text: str, name: str) -> SuggestedFromHar:
    har = _parsed(text)
    found = suggestion_from(har, name, "the application in the file").suggestion
    return SuggestedFromHar(
        found.yaml, found.requests - found.left_out, found.left_out, tuple(remark_lines(har))
    )


@dataclass(frozen=True, slots=True)
class FromFile:
    """Ruleset that was suggested from a HAR file, with the times of the file's first and last request."""

    suggestion: Suggestion
    first: str | None
    last: str | None


def suggestion_from(har: Har, name: str, of: str) -> FromFile:
    """Suggest rules that allow the requests of a HAR file.

    `of` is the name of the application that the description of the suggested ruleset mentions.

    Raise InvalidRequest if `name` is not valid as the name of a ruleset.
    """
    times = [round(one.time.timestamp() * 1000) for one in har.exchanges if one.time is not None]
    first, last = (rfc3339(min(times)), rfc3339(max(times))) if times else (None, None)
    when = f"{first} to {last}" if times else ""
    about = about_suggestion(of, len(har.exchanges), 0, when)
    about += [f"HAR file: {each}." for each in remark_lines(har)]
    try:
        return FromFile(suggest_for(har.exchanges, suggested_name(name), about=about), first, last)
    except InvalidRuleset as error:
        raise InvalidRequest(f"name: {error.problems[0].message}") from None
