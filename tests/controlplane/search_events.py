"""Events for the tests of search, and a second, very simple implementation of filters."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson
from hypothesis import strategies as st

from controlplane.search.query import (
    TEXT_FIELDS,
    WORD_CHARS,
    Between,
    Exactly,
    FieldTerm,
    Filter,
    HasTerm,
    Like,
    Match,
    Term,
    rfc3339_ms,
)
from proxy.wire.audit_event import rfc3339, uuid7

ORG = "01933d2a-0000-7000-8000-00000000000a"
OTHER_ORG = "01933d2a-0000-7000-8000-00000000000b"
START_MS = 1_763_700_000_000


@dataclass(frozen=True, slots=True)
class Accepted:
    position: int
    org_id: str
    body: bytes


def event(number: int, **changes: Any) -> dict[str, Any]:
    """Return an audit event whose time is `number` seconds after the first event."""
    time_ms = START_MS + number * 1000
    made = {
        "id": uuid7(time_ms, number), "time": rfc3339(time_ms), "orgId": ORG, "proxyId": "proxy-1",
        "appId": "app-1", "clientId": "client-1", "clientIp": "10.0.0.7", "requestId": uuid7(time_ms, number),
        "method": "GET", "path": "/v1.0/users", "query": None,
        "status": 200, "verdict": "allow", "ruleId": "default",
        "durationMs": 12.5, "seq": number, "reason": "default",
    }  # fmt: skip
    return made | changes


def accepted(*events: dict[str, Any], first_position: int = 1) -> list[Accepted]:
    return [
        Accepted(position, made["orgId"], orjson.dumps(made))
        for position, made in enumerate(events, first_position)
    ]


def numbers(bodies: Sequence[bytes]) -> list[int]:
    return [orjson.loads(body)["seq"] for body in bodies]


# -- the meaning of a filter -----------------------------------------------------------------------


def matches(wanted: Filter, made: dict[str, Any]) -> bool:
    return all(_holds(term, made) != term.negated for term in wanted.terms)


def _holds(term: Term, made: dict[str, Any]) -> bool:
    if isinstance(term, HasTerm):
        return bool(_values(made, term.field.event_key))
    if isinstance(term, FieldTerm):
        values = _values(made, term.field.event_key)
        return any(_accepts(match, value) for match in term.matches for value in values)
    texts = [(name, str(value)) for name in TEXT_FIELDS for value in _values(made, _EVENT_KEYS[name])]
    plain = [unquote(text) if name in ("path", "query") else text for name, text in texts]
    return any(_has_phrase(text, list(term.words), term.prefix) for text in plain)


_EVENT_KEYS = {
    "path": "path", "query": "query", "rule": "ruleIds", "reason": "reason", "logged": "loggedRuleIds",
    "transform": "transforms",
}  # fmt: skip


def _values(made: dict[str, Any], key: str) -> list[Any]:
    value = made.get(key)
    if key == "ruleIds":
        return list(dict.fromkeys([*(value or []), *_values(made, "ruleId")]))
    if key == "time":
        return [rfc3339_ms(str(value))]
    return value if isinstance(value, list) else [] if value is None else [value]


def _accepts(match: Match, value: Any) -> bool:
    if isinstance(match, Exactly):
        return _lower(match.text) == _lower(str(value))
    if isinstance(match, Like):
        pattern = ".*".join(re.escape(_lower(piece)) for piece in match.pieces)
        return re.fullmatch(pattern, _lower(str(value)), re.DOTALL) is not None
    return _above(match, value) and _below(match, value)


def _above(match: Between, value: float) -> bool:
    return match.low is None or (value > match.low if match.low_open else value >= match.low)


def _below(match: Between, value: float) -> bool:
    return match.high is None or (value < match.high if match.high_open else value <= match.high)


def _lower(text: str) -> str:
    return "".join(char.lower() if "A" <= char <= "Z" else char for char in text)


def _has_phrase(text: str, wanted: list[str], prefix: bool) -> bool:
    found = [word[:WORD_CHARS] for word in re.split(r"[^\w\-]+", _lower(text)) if re.search(r"[^\-_]", word)]
    wanted = [_lower(word) for word in wanted]
    for start in range(len(found) - len(wanted) + 1):
        run = found[start : start + len(wanted)]
        if run == wanted or (prefix and run[:-1] == wanted[:-1] and run[-1].startswith(wanted[-1])):
            return True
    return False


# -- what every index must find ---------------------------------------------------------------------

USER = "6e7b768e-07e2-4810-8459-485f84f8f204"
SAMPLES = (
    event(0),
    event(1, path=f"/v1.0/users/{USER}/messages", query="$top=10&$filter=from%2Fname%20eq%20'Ada'"),
    event(
        2,
        path="/V1.0/Users/ada@contoso.com/mailFolders/Inbox/messages",
        verdict="block",
        status=403,
        ruleId="no-mail",
    ),
    event(
        3,
        path="/beta/groups",
        method="POST",
        status=201,
        appId="crm",
        verdict="filter",
        transforms=["strip:mobilePhone"],
        shadowVerdict="block",
        shadowRuleId="no-groups",
        shadowRulesetVersion=4,
    ),
    event(4, status=404, durationMs=251, upstreamStatus=404, clientIp="10.1.0.7", upstreamRequestId="ms-1"),
    event(
        5,
        status=429,
        durationMs=250,
        upstreamStatus=429,
        loggedRuleIds=["watch", "watch-2"],
        verdict="log_only",
        ruleIds=["open", "default"],
        traceId="4bf92f3577b34da6a3ce929d0e0e4736",
    ),
    event(
        6,
        status=502,
        durationMs=100_000,
        reason="upstreamError",
        upstreamStatus=500,
        clientIp="10.10.0.7",
        redirect="contoso.sharepoint.com",
        credentialId="crd-0123456789ab",
        credentialProblem="audience",
    ),
    event(
        7, parentRequestId=event(6)["requestId"], ruleId="a rule, with 'quotes' and \"others\" 100%", query=""
    ),
    event(8, requestId="another-id", appId="CRM", path="/v1.0/users/x_y/photo/$value", durationMs=0),
    event(9, path="/v1.0/" + "segment/" * 60, ruleId="r" * 200, clientRequestId="c-1", rulesetVersion=3),
    event(10, verdict="block", status=403, ruleId="r" * 199 + "s", path="relative", method="DELETE"),
)

CASES: tuple[tuple[str, list[int]], ...] = (
    ("", [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
    ("verdict:block", [10, 2]),
    ("verdict:BLOCK,filter", [10, 3, 2]),
    ("-verdict:allow", [10, 5, 3, 2]),
    ("-verdict:allow,block", [5, 3]),
    ("shadow:block -verdict:block", [3]),
    ("-has:shadow verdict:filter", []),
    ("shadowrule:no-* shadowruleset:4", [3]),
    ("verdict:block -method:delete", [2]),
    ("app:crm", [8, 3]),
    ("-app:crm -status:>=400", [9, 7, 1, 0]),
    ("status:403", [10, 2]),
    ("status:>=400", [10, 6, 5, 4, 2]),
    ("status:>404", [6, 5]),
    ("status:400..428", [10, 4, 2]),
    ("status:<201 verdict:filter", []),
    ("duration:>250", [6, 4]),
    ("duration:>=250", [6, 5, 4]),
    ("duration:<=0", [8]),
    ("duration:250..251", [5, 4]),
    ("seq:<2", [1, 0]),
    ("path:/v1.0/users", [7, 6, 5, 4, 0]),
    ("path:/v1.0/users/*", [8, 2, 1]),
    ("path:/v1.0/users/*/messages", [2, 1]),
    ("path:*/messages", [2, 1]),
    ("path:*folder*", [2]),
    ("path:/v1.0/us*", [8, 7, 6, 5, 4, 2, 1, 0]),
    ("path:/v1.0/users/x_*", [8]),
    ("path:/v1.0/users/x%*", []),
    ("path:relat*", [10]),
    ("-path:/v1.0/*", [10, 3]),
    ("ip:10.1.*", [4]),
    ("ip:10.1*", [6, 4]),
    ("rule:no-*", [2]),
    ("rule:open", [5]),  # this rule took part
    ("rule:OPEN,no-mail", [5, 2]),
    ("-rule:default", [10, 9, 7, 2]),
    ("ruleIds:op*", [5]),
    ("ruleId:open", []),  # this rule did not decide
    ("ruleId:no-mail", [2]),
    ("trace:4BF92F3577B34DA6A3CE929D0E0E4736", [5]),
    ("has:traceId", [5]),
    ("redirect:*.SharePoint.com", [6]),
    ("has:redirect", [6]),
    ("credential:CRD-0123456789ab", [6]),
    ("problem:audience", [6]),
    ("has:credentialProblem", [6]),
    ("open", [5]),
    (r'''rule:"a rule, with 'quotes' and \"others\" 100%"''', [7]),
    ("rule:" + "R" * 200, [9]),
    ("rule:" + "r" * 150 + "*", [10, 9]),
    ('query:""', [7]),
    ("has:query", [7, 1]),
    ("has:logged", [5]),
    ("-has:logged has:upstream", [6, 4]),
    ("has:time -has:parent seq:>6", [10, 9, 8]),
    ("logged:watch", [5]),
    ("logged:wat*2", [5]),
    ("logged:*ch*watch*", []),
    ("transform:strip:mobilephone", [3]),
    ("-transform:strip:* method:POST", []),
    ("upstream:500", [6]),
    ("-upstream:500 has:upstream", [5, 4]),
    ("upstreamrequest:ms-1", [4]),
    ("clientrequest:C-1", [9]),
    ("ruleset:3", [9]),
    (f"id:{event(4)['id']}", [4]),
    (f"request:{event(4)['id']}", [4]),
    (f"request:{event(8)['id']}", []),
    (f"id:{event(8)['id']} request:another-id", [8]),
    (f"id:{event(4)['id']} -request:another-id", [4]),
    (f"id:{event(8)['id']} request:another*", [8]),
    (f"parent:{event(6)['requestId']}", [7]),
    (f"time:>={rfc3339(START_MS + 8000)}", [10, 9, 8]),
    (f"time:>{rfc3339(START_MS + 8000)}", [10, 9]),
    (f"-time:>{rfc3339(START_MS + 1000)}", [1, 0]),
    (f"time:<{rfc3339(START_MS + 1000)},>{rfc3339(START_MS + 9000)}", [10, 0]),
    ("messages", [2, 1]),
    ("MailFolders", [2]),
    ("mail", []),
    ("mail*", [2]),
    ("v*", [9, 8, 7, 6, 5, 4, 2, 1, 0]),
    ("o*", [7, 5]),
    ("-messages path:/v1.0/users/*", [8]),
    ("-mess* path:/v1.0/users/*", [8]),
    ("ada@contoso.com", [2]),
    ('"from name eq"', [1]),
    ('"messages from"', []),
    (f"users/{USER}", [1]),
    ("upstreamError", [6]),
    ("no-mail", [2]),
)

# -- every filter, every event ---------------------------------------------------------------------

WORD = st.sampled_from(
    [
        "users",
        "Users",
        "x",
        "a-b",
        "é",
        "10.0.0.1",
        "/v1.0/users",
        "/v1.0/users/x/y",
        "/",
        "a b",
        "100%",
        "%25",
        '"',
        "'",
        "_",
        "",
        "2",
        "=n:",
        "=v:allow",
        "NEAR(a b)",
        "=o:" + ORG,
        "r" * 97,
        "R" * 98,
    ]
)
TEXT = st.one_of(
    WORD, st.lists(WORD, max_size=3).map("/".join), st.text(st.characters(codec="utf-8"), max_size=8)
)
EVENTS = st.fixed_dictionaries(
    {"path": TEXT, "verdict": st.sampled_from(["allow", "filter", "block", "log_only", "Block", "other"])},
    optional={
        "ruleId": TEXT,
        "ruleIds": st.lists(TEXT, max_size=3),
        "traceId": TEXT,
        "query": TEXT,
        "reason": TEXT,
        "appId": TEXT,
        "clientIp": TEXT,
        "requestId": TEXT,
        "loggedRuleIds": st.lists(TEXT, min_size=1, max_size=3),
        "transforms": st.lists(TEXT, min_size=1, max_size=2),
        "status": st.integers(-1, 1200),
        "durationMs": st.one_of(st.integers(-5, 1 << 50), st.floats(0, 1000)),
        "upstreamStatus": st.integers(0, 999),
        "parentRequestId": TEXT,
    },
)
VALUE = st.one_of(
    TEXT.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'),
    TEXT,
    TEXT.map(lambda text: text + "*"),
    TEXT.map(lambda text: "*" + text),
    st.sampled_from([">=400", "<5", "200", "100..450", ">2.5", "allow", "block", "other"]),
)
NAMES = st.sampled_from(
    [
        "path",
        "verdict",
        "rule",
        "query",
        "reason",
        "app",
        "ip",
        "request",
        "logged",
        "transform",
        "status",
        "duration",
        "upstream",
        "parent",
        "time",
    ]
)
TERMS = st.one_of(
    st.builds("{}{}:{}".format, st.sampled_from(["", "-"]), NAMES, VALUE),
    st.builds("{}{}:{},{}".format, st.sampled_from(["", "-"]), NAMES, VALUE, VALUE),
    st.builds("{}has:{}".format, st.sampled_from(["", "-"]), NAMES),
    st.builds("{}{}".format, st.sampled_from(["", "-"]), VALUE),
)
