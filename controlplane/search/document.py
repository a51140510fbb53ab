"""The searchable content of an event: texts and numbers from its JSON.

Every kind of search index receives the same values of an event: texts, numbers and lists of texts.
"""

import math
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

import orjson

from controlplane.search.interface import Event
from controlplane.search.query import FIELDS, TEXT_FIELDS, rfc3339_ms, words

Value: TypeAlias = str | int | float | tuple[str, ...] | None


class UnsearchableError(ValueError):
    """Error for an event that cannot be stored in any search index."""


@dataclass(frozen=True, slots=True)
class Document:
    org_id: str
    event_id: str
    position: int
    time_ms: int
    values: dict[str, Value]  # values by field name, without time and missing fields
    body: bytes


_READ: Final = tuple((f.event_key, f.name, f.kind) for f in FIELDS.values() if f.kind != "time")
_MOST_NUMBER: Final = 2**53


def read_document(event: Event) -> Document:
    """Return the searchable values of an event.

    The organisation in the document is the organisation that the store verified, even if the event names
    another organisation.
    """
    try:
        content = orjson.loads(event.body)
    except orjson.JSONDecodeError as error:
        raise UnsearchableError(f"the event is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsearchableError("the event is not a JSON object")
    event_id = content.get("id")
    if not isinstance(event_id, str) or not event_id:
        raise UnsearchableError("the event has no id")
    values: dict[str, Value] = {}
    for key, name, kind in _READ:
        given = content.get(key)
        if given is None:
            continue
        if kind == "text":
            value: Value = given if type(given) is str else _text(given)
        else:
            value = _number(given) if kind == "number" else _texts(given)
        if value is not None:
            values[name] = value
    rules = rules_in(values.get("rule"), values.get("ruleid"))
    if rules is not None:
        values["rule"] = rules
    values["org"] = event.org_id
    time = content.get("time")
    # An unreadable time must not keep searches for other fields from finding the event.
    time_ms = rfc3339_ms(time) if isinstance(time, str) else None
    return Document(event.org_id, event_id, event.position, time_ms or 0, values, event.body)


def rules_in(several: Value, deciding: Value) -> tuple[str, ...] | None:
    """Return the rules that influenced the decision, from the fields `ruleIds` and `ruleId` of an event.

    Audit events of earlier releases have only the field `ruleId`.
    """
    listed = several if isinstance(several, tuple) else ()
    if deciding is None or str(deciding) in listed:
        return listed or None
    return (*listed, str(deciding))


def _text(given: object) -> str | None:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else None


def _number(given: object) -> int | float | None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        return None
    return given if -_MOST_NUMBER <= given <= _MOST_NUMBER else float(given)


def _texts(given: object) -> tuple[str, ...] | None:
    if not isinstance(given, list):
        return None
    return tuple(item for item in given if isinstance(item, str)) or None


PERCENT_CODED: Final = frozenset({"path", "query"})
_MOST_WORDS: Final = 256  # largest number of words of one field


def text_words(values: dict[str, Value]) -> list[list[str]]:
    """Return the words of each text of an event, by which a free-text search can find the event.

    Each text of the event has a separate list of words, so that a searched phrase cannot match words of two
    texts.
    """
    found = []
    for name in TEXT_FIELDS:
        value = values.get(name)
        if value is None:
            continue
        for text in value if isinstance(value, tuple) else (str(value),):
            plain = unquote(text) if name in PERCENT_CODED and "%" in text else text
            if listed := words(plain)[:_MOST_WORDS]:
                found.append(listed)
    return found
