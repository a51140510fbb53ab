"""File of a batch that the control plane refused permanently: the batch's bytes, and the response."""

from typing import Final

import msgspec


class QuarantinedBatch(msgspec.Struct, rename="camel"):
    org_id: str
    status: int
    response: str = msgspec.field(name="answer")  # beginning of the response's body
    refused_at: str  # time in RFC 3339
    first_seq: int
    last_seq: int
    count: int
    batch: msgspec.Raw  # the request's body, byte for byte


_encode: Final = msgspec.json.Encoder().encode
# A msgspec.DecodeError means that the file is of another kind.
decode: Final = msgspec.json.Decoder(QuarantinedBatch).decode


def encode(held: QuarantinedBatch) -> bytes:
    return _encode(held) + b"\n"
