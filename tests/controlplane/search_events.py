"""Events for the tests of search, and what a filter means, said once more in the plainest way."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

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
    """The event of the `number`th second."""
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
