"""The deflated (zlib) form in which a schema is stored and sent."""

from __future__ import annotations

import zlib
from typing import Final

from proxy.policy.resource_model import MAX_BYTES, DamagedModel, ResourceModel

# highest size of one schema; Microsoft Graph's v1.0 schema has 0.1 MB
MAX_PACKED_BYTES: Final = 4 * 1024 * 1024
_LEVEL: Final = 9


def pack(flat: bytes) -> bytes:
    """Compress the flat form of a schema by zlib."""
    return zlib.compress(flat, _LEVEL)


def unpack(packed: bytes) -> bytes:
    """Decompress a schema to its flat form.

    Raise DamagedModel if the packed bytes are damaged, or if the packed or flat form is too large.
    """
    if len(packed) > MAX_PACKED_BYTES:
        raise DamagedModel(f"the compressed schema has more than {MAX_PACKED_BYTES} bytes")
    inflater = zlib.decompressobj()
    try:
        flat = inflater.decompress(packed, MAX_BYTES + 1)
    except zlib.error:
        raise DamagedModel("the bytes of the schema cannot be inflated") from None
    if len(flat) > MAX_BYTES:
        raise DamagedModel(f"the schema has more than {MAX_BYTES} bytes")
    if not inflater.eof or inflater.unused_data:
        raise DamagedModel("the bytes of the schema are truncated, or other bytes follow them")
    return flat


def load(packed: bytes, digest: str) -> ResourceModel:
    """Decompress the schema that has the given digest.

    Raise DamagedModel if the bytes are not the deflated form of the schema with the given digest.
    """
    return ResourceModel(unpack(packed), digest)
