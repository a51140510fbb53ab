"""Generate many audit events: a busy month of one tenant's proxies.

Every run of the generator makes the same events.
"""

import random
from collections.abc import Iterator
from typing import Final

from proxy.wire.audit_event import rfc3339, uuid7

ORG: Final = "0193f6b2-0000-7000-8000-000000000001"
START_MS: Final = 1_790_000_000_000
APPS: Final = 40
USERS: Final = 50_000
ADDRESSES: Final = 1_000

_REQUESTS: Final = (
    ("GET", "/v1.0/users/user%d@contoso.com", '"$select=id,displayName,mail"'),
    ("GET", "/v1.0/users/user%d@contoso.com/messages", '"$top=50&$filter=from%%2Fname%%20eq%%20%%27a%%27"'),
    ("GET", "/v1.0/groups/6e7b768e-07e2-4810-8459-%012d/members", "null"),
    ("GET", "/beta/users/6e7b768e-07e2-4810-8459-%012d/mailFolders/inbox/messages", '"$top=10"'),
    ("POST", "/v1.0/teams/6e7b768e-07e2-4810-8459-%012d/channels", "null"),
)
_VERDICTS: Final = ("allow",) * 80 + ("filter",) * 15 + ("block",) * 4 + ("log_only",)
_STATUSES: Final = (200,) * 94 + (201, 204, 404, 404, 429, 502)
_EVENT: Final = (
    '{"id":"%s","time":"%s","orgId":"%s","proxyId":"%s","appId":"0193f6b2-0000-7000-8000-%012d",'
    '"clientId":"0193f6b2-0000-7001-8000-%012d","clientIp":"10.0.%d.%d","requestId":"%s",'
    '"clientRequestId":null,"method":"%s","path":"%s","query":%s,"status":%d,"verdict":"%s",'
    '"ruleId":"rule-%d","loggedRuleIds":[],"transforms":%s,"upstreamStatus":%s,"durationMs":%s,'
    '"upstreamMs":%s,"requestBytes":0,"responseBytes":%d,"parentRequestId":null,"seq":%d,'
    '"reason":"rule","rulesetVersion":3,"upstreamRequestId":"%08x-2b1b-4c1e-8d5e-%012x"}'
)


def bodies(
    count: int, *, first: int = 0, proxy: str = "proxy-1", start_ms: int = START_MS, every_ms: float = 0.5
) -> Iterator[bytes]:
    """Yield events as a proxy writes them: one event every `every_ms`, numbered from `first` + 1."""
    rng = random.Random(f"{proxy} {first}")
    for number in range(first, first + count):
        yield _body(number, proxy, start_ms + int(number * every_ms), rng.getrandbits(96))


def batch(
    batch_id: str, count: int, *, first: int = 0, proxy: str = "proxy-1", every_ms: float = 0.5
) -> bytes:
    """Return the request body of a batch of audit events."""
    events = b",".join(bodies(count, first=first, proxy=proxy, every_ms=every_ms))
    return b'{"batchId":"%s","events":[%s]}' % (batch_id.encode(), events)


def _body(number: int, proxy: str, time_ms: int, bits: int) -> bytes:
    own_id = uuid7(time_ms, bits << 10 | number & 1023)
    method, path, query = _REQUESTS[(bits >> 40) % len(_REQUESTS)]
    verdict = _VERDICTS[(bits >> 48) % 100]
    status = 403 if verdict == "block" else _STATUSES[(bits >> 56) % 100]
    address = (bits >> 24) % ADDRESSES
    made = _EVENT % (
        own_id, rfc3339(time_ms), ORG, proxy, bits % APPS, bits % APPS, address // 250, address % 250, own_id,
        method, path % ((bits >> 8) % USERS), query.replace("%%", "%"), status, verdict, (bits >> 60) % 30,
        '["strip:mobilePhone"]' if verdict == "filter" else "[]", "null" if verdict == "block" else status,
        bits % 99991 / 1000, bits % 9973 / 1000, bits % 65521, number + 1, bits >> 64, bits & 0xFFFFFFFFFFFF,
    )  # fmt: skip
    return made.encode()
