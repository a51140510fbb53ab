"""Complete words in the text of a ruleset, for the console's editor and for external editors."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.given_rules import NO_PACKED_SCHEMAS
from controlplane.operations.operation import Request, Response, operation
from controlplane.operations.worker_process import run_trial
from controlplane.store.interface import PackedSchemas
from controlplane.workshop.completions import Completions, SchemaWords, completions, schema_words
from controlplane.workshop.routes import GRAPH_ROOT
from proxy.policy.resource_model import DamagedModel
from proxy.wire.packed_schema import load


class CompleteRuleset(Request):
    yaml: str
    at: Annotated[int, Meta(ge=0)]  # position of the cursor, in characters
    org: str | None = None  # organisation whose current schemas have the names


class CompletedRuleset(Response):
    start: int  # start of the text that the words replace, which ends at the cursor
    words: tuple[str, ...]
    kind: str  # kind of thing that the words are


@operation("ruleset.complete", "POST", "/rulesets/complete", changes=False)
async def complete(context: OperationContext, actor: Actor, request: CompleteRuleset) -> CompletedRuleset:
    """List the words that can stand at a position in a ruleset's text, including names of the schema."""
    packed = NO_PACKED_SCHEMAS
    if request.org:
        org = await context.resolve.org(actor, "viewer", request.org)
        packed = await context.store.current_schemas(org.org_id)
    found = await run_trial(actor, _completed, request.yaml, request.at, packed)
    return CompletedRuleset(found.start, found.words, found.kind)


def _completed(text: str, at: int, packed: PackedSchemas) -> Completions:
    graph = packed.packed.get(packed.digests.get(GRAPH_ROOT, ""))
    names = SchemaWords() if graph is None else _words(packed.digests[GRAPH_ROOT], graph)
    return completions(text, min(at, len(text)), names)


@lru_cache(maxsize=4)
def _words(digest: str, packed: bytes) -> SchemaWords:
    """Return the names of types and properties in a stored schema.

    If the stored schema can't be loaded, return an empty SchemaWords. The check of a ruleset reports a schema
    that can't be loaded.
    """
    try:
        return schema_words(load(packed, digest))
    except DamagedModel:
        return SchemaWords()
