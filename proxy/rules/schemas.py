"""Load the schemas in a rules snapshot as models.

Each schema is loaded once, and all rulesets that name the schema share its model.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.policy.resource_model import DamagedModel, ResourceModel
from proxy.policy.schemas import NO_SCHEMAS, InvalidRoot, Schemas, folded_root, root_segments
from proxy.rules.snapshot import Snapshot, SnapshotDamaged
from proxy.wire.packed_schema import load

Models = Mapping[str, ResourceModel]
"""Models by their digest."""


def load_models(snapshot: Snapshot, known: Models) -> dict[str, ResourceModel]:
    """Return the model of each schema that a ruleset of the snapshot names, by the schema's digest.

    Raise SnapshotDamaged if a schema is missing, does not match its digest, or has an invalid root path.
    """
    if missing := snapshot.missing_schemas():
        raise SnapshotDamaged(missing)
    models: dict[str, ResourceModel] = {}
    for held in snapshot.rulesets:
        for root, digest in held.schemas.items():
            try:
                if folded_root(root) != root:
                    raise InvalidRoot(f"the root path {root!r} is not in lower case")
                if digest not in models:
                    models[digest] = known.get(digest) or load(snapshot.schemas[digest], digest)
            except (DamagedModel, InvalidRoot) as error:
                raise SnapshotDamaged(
                    f"ruleset {held.name}: schema {digest[:12]} of {root} cannot be used: {error}"
                ) from None
    return models


def schemas_of(named: Mapping[str, str], models: Models) -> Schemas:
    """Return the schemas that one ruleset names.

    The keys of the returned schemas are the root paths of the graph services.
    """
    if not named:
        return NO_SCHEMAS
    return Schemas({root_segments(root): models[digest] for root, digest in named.items()})
