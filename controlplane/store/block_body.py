"""Body of a block of audit events: compression for the disk, and decoding of the events.

The module `block_body` itself does no input or output.

The first byte of a block's body identifies the format of the body. If a block's body begins with the byte
`[`, the body is an uncompressed JSON array of events, as earlier releases stored it. The store still writes
an uncompressed JSON array if compression would save no space. A compressed body begins with the byte 1. The
byte 1 is followed by the JSON array of events in raw DEFLATE with the preset dictionary `DICTIONARY`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

_DEFLATED: Final = b"\x01"
_LEVEL: Final = 3  # level 6 makes blocks of 64 events a seventh smaller, but takes twice the time
_MOST_BYTES: Final = 64 * 1024 * 1024  # largest decompressed array in bytes; the largest batch has 5 MiB

DICTIONARY: Final = (
    b'"}],"shadowVerdict":"allow","shadowRuleId":"","shadowRulesetVersion":1,"impliedRequest":"GET /v1.0/"'
    b',"redirect":"strip:","allow:","implausibleTime":"receivedAt":"noRule","default","hiddenProperty"'
    b'"block","filter","log_only","POST","PATCH","PUT","DELETE","/beta/$batch/groups/sites/drives/teams/'
    b"channels/messages/members/mailFolders/inbox/servicePrincipals/applications$select=id,displayName,mail"
    b'&$filter=startswith(eq%20$top=50&$orderby=$expand=$count=true"@contoso.com","status":404,403,201,204,'
    b'"upstreamStatus":null"upstreamMs":null"clientRequestId":"'
    b'","time":"2026-11-26T12:00:00.000Z","orgId":"01a00000-0000-7000-8000-000000000000","proxyId":"'
    b'","appId":"","clientId":"","clientIp":"10.0.0.1","requestId":"","clientRequestId":null,"method":"GET"'
    b',"path":"/v1.0/users/","query":null,"status":200,"verdict":"allow","ruleId":"","loggedRuleIds":[]'
    b',"transforms":[],"upstreamStatus":200,"durationMs":1.5,"upstreamMs":1.2,"requestBytes":0'
    b',"responseBytes":1,"parentRequestId":null,"seq":1,"reason":"rule","rulesetVersion":1'
    b',"upstreamRequestId":"","ruleIds":[""],"traceId":null},{"id":"'
)
"""Texts that events usually have, the likeliest last. Stored blocks depend on each byte: a changed
dictionary is another form, and must get another number."""

_decode: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def packed(events: Iterable[bytes]) -> bytes:
    """Return the bytes that the store writes for a block of audit events.

    `events` are the JSON texts of these events. The block's body contains the bytes of the events
    unchanged, possibly compressed.
    """
    array = b"[" + b",".join(events) + b"]"
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=DICTIONARY)
    body = _DEFLATED + deflate.compress(array) + deflate.flush()
    return body if len(body) < len(array) else array


def unpacked(body: bytes) -> bytes:
    """Return the JSON array of events in a block's body, which may be compressed.

    Raise ValueError if the body of the block is damaged.
    """
    if not body.startswith(_DEFLATED):
        return body
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=DICTIONARY)
    try:
        array = inflate.decompress(memoryview(body)[1:], _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"a block of events can't be decompressed: {error}") from None
    if not inflate.eof or inflate.unused_data:
        raise ValueError("a compressed block of events is truncated, too long or has trailing data")
    return array


def events_of(body: bytes) -> list[msgspec.Raw]:
    """Return the events in a block's body, which may be compressed.

    Raise ValueError if the body of the block is damaged.
    """
    return _decode(unpacked(body))
