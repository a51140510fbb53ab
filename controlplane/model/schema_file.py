"""Read a schema that a person gives: a `$metadata` document, or a flat form."""

from __future__ import annotations

from controlplane.model.flat_form import encode
from controlplane.model.metadata import MetadataError, parse
from proxy.policy.resource_model import MAGIC, DamagedModel, ResourceModel, digest_of


class UnreadableSchema(ValueError):
    """A file that does not hold a usable schema. The message says what is wrong and what to do."""


def read_schema(data: bytes) -> ResourceModel:
    """Return the schema that the bytes hold. Raise UnreadableSchema if they are neither of the two forms."""
    try:
        flat = data if data.startswith(MAGIC) else encode(parse(data))
        return ResourceModel(flat, digest_of(flat))
    except (MetadataError, DamagedModel) as error:
        raise UnreadableSchema(str(error)) from None
