"""Read a schema that an operator supplies as a `$metadata` document or in flat binary form."""

from __future__ import annotations

from controlplane.model.flat_form import encode
from controlplane.model.metadata import MetadataError, parse
from proxy.policy.resource_model import MAGIC, DamagedModel, ResourceModel, digest_of


class UnreadableSchema(ValueError):
    """Error because a file does not contain a usable schema.

    The message of the exception gives the fault and the remedy.
    """


def read_schema(data: bytes) -> ResourceModel:
    """Return the schema that the content of a file defines.

    Raise UnreadableSchema if the content is neither a `$metadata` document nor a schema in flat binary form.
    """
    try:
        flat = data if data.startswith(MAGIC) else encode(parse(data))
        return ResourceModel(flat, digest_of(flat))
    except (MetadataError, DamagedModel) as error:
        raise UnreadableSchema(str(error)) from None
