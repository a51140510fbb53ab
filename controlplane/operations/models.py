"""Schemas of graph APIs: store a schema, list the stored schemas, and compare two schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from controlplane.model.flat_form import encode
from controlplane.model.metadata import MetadataError, parse
from controlplane.model.schema_diff import Counts, Difference, counts_of, diff_schemas
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.worker_process import run_change, run_trial
from controlplane.store.interface import (
    Conflict,
    NewSchema,
    NotFound,
    Org,
    OrgSchema,
    PackedSchemas,
    SchemaUse,
)
from proxy.policy.resource_model import DamagedModel, digest_of
from proxy.policy.schemas import InvalidRoot, Schemas, folded_root, root_segments
from proxy.wire.audit_event import rfc3339
from proxy.wire.packed_schema import MAX_PACKED_BYTES, load, pack

_LONGEST_SOURCE: Final = 500
_LONGEST_LABEL: Final = 200
_FIRST_NAMES: Final = 20  # names of each kind that a difference lists
_SHORT: Final = 12  # digits of a digest in a message


class OrgOfModel(msgspec.Struct, rename="camel"):
    org_id: str
    org: str
    before: str | None  # digest of the schema that was current before
    changed: bool


class FetchedModel(Response):
    root: str
    digest: str
    bytes: int  # bytes of the deflated flat form
    types: int
    relations: int
    properties: int
    operations: int
    orgs: tuple[OrgOfModel, ...]


class ListedModel(msgspec.Struct, rename="camel"):
    org_id: str
    root: str
    digest: str
    current: bool
    fetched_at: str
    source: str
    rulesets: tuple[str, ...]  # versions that name it, as NAME@VERSION; active versions come first


class ModelList(Response):
    models: tuple[ListedModel, ...]


class NamesFacts(msgspec.Struct, rename="camel"):
    """Number of names in a list, and the first of these names."""

    added: int
    removed: int
    changed: int
    first_added: tuple[str, ...]
    first_removed: tuple[str, ...]
    first_changed: tuple[str, ...]


class ModelDifference(Response):
    root: str
    old: str  # digest of the old schema
    new: str
    different: bool
    types: NamesFacts
    relations: NamesFacts
    properties: NamesFacts
    operations: NamesFacts
    rulesets: tuple[str, ...]  # active rulesets that name the old schema, as NAME@VERSION


class FetchModel(Request):
    root: str  # path of the service, such as /v1.0
    document: str  # $metadata document of the service
    org: str | None = None  # default: every organisation
    source: str = "document"  # address or file that the document was read from


class ListModels(Request):
    org: str | None = None


class DiffModel(Request):
    org: str
    root: str | None = None  # needed if the organisation has schemas of several
    document: str | None = (
        None  # digest to compare with the current schema; default: the current one is the new one
    )
    source: str = "document"


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A schema that the control plane read from a document, in the packed form that proxies load."""

    digest: str
    packed: bytes
    bytes: int  # bytes of the flat form
    counts: Counts


@operation("model.fetch", "POST", "/models")
async def fetch(context: OperationContext, actor: Actor, request: FetchModel) -> FetchedModel:
    """Store a schema as the current schema of its root path.

    Active rulesets keep the schemas that they already use.
    """
    root_of(request.root)
    await _orgs(context, actor, request.org)
    made = await run_change(actor, read_schema, request.source, request.document)
    # Parsing may take long, and the actor's roles may have changed since it began.
    return await store_schema(context, await context.refresh_roles(actor), request, made)


async def store_schema(
    context: OperationContext, actor: Actor, request: FetchModel, made: ReadSchema
) -> FetchedModel:
    """Store a schema that was read from the request's document as the current schema of its root path."""
    root, orgs = root_of(request.root), await _orgs(context, actor, request.org)
    schema = NewSchema(root, made.digest, made.packed, made.bytes, request.source[:_LONGEST_SOURCE])
    before = await context.store.add_schema([org.org_id for org in orgs], schema)
    return FetchedModel(
        root=root,
        digest=made.digest,
        bytes=len(made.packed),
        types=made.counts.types,
        relations=made.counts.relations,
        properties=made.counts.properties,
        operations=made.counts.operations,
        orgs=tuple(
            OrgOfModel(org.org_id, org.name, before[org.org_id], before[org.org_id] != made.digest)
            for org in orgs
        ),
    )


@operation("model.list", "GET", "/models")
async def list_all(context: OperationContext, actor: Actor, request: ListModels) -> ModelList:
    """List the stored schemas, and the ruleset versions that use them."""
    listed = []
    for org in await context.resolve.orgs(actor, request.org):
        found = await context.store.org_schemas(org.org_id)
        uses = {
            root: await context.store.schema_uses(org.org_id, root) for root in {one.root for one in found}
        }
        listed += [_listed(each, uses[each.root]) for each in found]
    return ModelList(models=tuple(listed))


@operation("model.diff", "POST", "/models/diff", changes=False)
async def diff(context: OperationContext, actor: Actor, request: DiffModel) -> ModelDifference:
    """Compare two schemas, and list the active rulesets that use the older schema."""
    org = await context.resolve.org(actor, "viewer", request.org)
    held = await context.store.org_schemas(org.org_id)
    root = _chosen_root(org, held, request.root)
    uses = await context.store.schema_uses(org.org_id, root)
    current = next(each for each in held if each.root == root and each.is_current)
    new: _Given | _Document
    if request.document is None:
        old, new = _before(org, held, current, uses), await _given(context, current.digest)
    else:
        old, new = current.digest, _Document(request.source, request.document)
    found = await run_trial(actor, _compared, await _given(context, old), new)
    naming = [f"{each.ruleset}@{each.version}" for each in uses if each.in_force and each.digest == old]
    return ModelDifference(
        root=root,
        old=old,
        new=found.new,
        different=old != found.new,
        types=found.types,
        relations=found.relations,
        properties=found.properties,
        operations=found.operations,
        rulesets=tuple(naming),
    )


def schemas_of(packed: PackedSchemas) -> Schemas:
    """Return the schemas that were loaded from the store, by their root path.

    Raise InvalidRequest if a schema cannot be loaded.
    """
    try:
        models = {digest: load(each, digest) for digest, each in packed.packed.items()}
    except DamagedModel as error:
        what = "a stored schema cannot be loaded: store it again with `model fetch`"
        raise InvalidRequest(f"{what} ({error})") from None
    return Schemas({root_segments(root): models[digest] for root, digest in packed.digests.items()})


# Work of another process


@dataclass(frozen=True, slots=True)
class _Given:
    digest: str
    packed: bytes


@dataclass(frozen=True, slots=True)
class _Document:
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class _Compared:
    new: str
    types: NamesFacts
    relations: NamesFacts
    properties: NamesFacts
    operations: NamesFacts


def read_schema(source: str, document: str) -> ReadSchema:
    """Return the schema that a document defines.

    Raise InvalidRequest if proxies can't load the schema.
    """
    label = _label(source)
    try:
        flat = encode(parse(document.encode("utf-8", "surrogatepass")))
        packed, digest = pack(flat), digest_of(flat)
        model = load(packed, digest)
    except MetadataError as error:
        raise InvalidRequest(f"{label}: {error}") from None
    except DamagedModel as error:
        raise InvalidRequest(f"{label}: proxies could not load this schema: {error}") from None
    if not model.roots:
        raise InvalidRequest(
            f"{label}: the schema has no entity set and no singleton: give the $metadata of a service"
        )
    if len(packed) > MAX_PACKED_BYTES:
        raise InvalidRequest(f"{label}: the compressed schema has more than {MAX_PACKED_BYTES} bytes")
    return ReadSchema(digest, packed, len(flat), counts_of(model))


def _compared(old: _Given, new: _Given | _Document) -> _Compared:
    if isinstance(new, _Document):
        made = read_schema(new.source, new.text)
        new = _Given(made.digest, made.packed)
    found = diff_schemas(load(old.packed, old.digest), load(new.packed, new.digest))
    return _Compared(
        new.digest, *map(_names, (found.types, found.relations, found.properties, found.operations))
    )


def _names(found: Difference) -> NamesFacts:
    return NamesFacts(
        *(len(found.added), len(found.removed), len(found.changed)),
        *(found.added[:_FIRST_NAMES], found.removed[:_FIRST_NAMES], found.changed[:_FIRST_NAMES]),
    )


# Selection of schemas


def root_of(text: str) -> str:
    try:
        return folded_root(text)
    except InvalidRoot as error:
        raise InvalidRequest(f"root: {error}") from None


def _label(source: str) -> str:
    return source if len(source) <= _LONGEST_LABEL else f"…{source[1 - _LONGEST_LABEL :]}"


async def _orgs(context: OperationContext, actor: Actor, reference: str | None) -> list[Org]:
    """Return the organisation that a reference names, or all visible organisations without a reference.

    In each returned organisation, the actor has the role that the operation requires.
    """
    if reference is not None:
        return [await context.resolve.org(actor, "editor", reference)]
    actor.require("editor", None)
    orgs = await context.resolve.orgs(actor)
    context.about.update(org.org_id for org in orgs)
    if not orgs:
        raise NotFound("there is no organisation yet: add one with `org add`")
    return orgs


def _chosen_root(org: Org, held: list[OrgSchema], wanted: str | None) -> str:
    roots = [each.root for each in held if each.is_current]
    if wanted is not None:
        root = root_of(wanted)
        if root not in roots:
            raise NotFound(f"organisation {org.name} has no schema for the root path {root}")
        return root
    if not roots:
        raise NotFound(f"organisation {org.name} has no schema: store one with `model fetch`")
    if len(roots) > 1:
        raise InvalidRequest(
            f"root: organisation {org.name} has schemas for several root paths: name one of"
            f" {', '.join(roots)}"
        )
    return roots[0]


def _before(org: Org, held: list[OrgSchema], current: OrgSchema, uses: list[SchemaUse]) -> str:
    """Return an older schema to compare with: one used by active rulesets, or else the previous schema."""
    older = [each.digest for each in held if each.root == current.root and not each.is_current]
    named = [each.digest for each in uses if each.in_force and each.digest in older]
    for digest in [*named, *older]:
        return digest
    raise Conflict(
        f"organisation {org.name} has only one schema for the root path {current.root}: "
        "name a file or an address to compare with"
    )


async def _given(context: OperationContext, digest: str) -> _Given:
    packed = await context.store.packed_schema(digest)
    if packed is None:
        raise NotFound(f"schema {digest[:_SHORT]} was removed while the operation ran")
    return _Given(digest, packed)


def _listed(schema: OrgSchema, uses: list[SchemaUse]) -> ListedModel:
    own = sorted((each for each in uses if each.digest == schema.digest), key=lambda each: not each.in_force)
    return ListedModel(
        *(schema.org_id, schema.root, schema.digest, schema.is_current),
        fetched_at=rfc3339(schema.fetched_ms),
        source=schema.source,
        rulesets=tuple(f"{each.ruleset}@{each.version}" for each in own),
    )
