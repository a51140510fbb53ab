"""Pure: whether a value, or a text, is what a term of a filter asks for."""

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from controlplane.search.document import PERCENT_CODED, Document, Value
from controlplane.search.query import (
    TEXT_FIELDS,
    Exactly,
    FieldTerm,
    HasTerm,
    Like,
    Match,
    Term,
    TextTerm,
    fold,
    words,
)


def all_hold(terms: Iterable[Term], document: Document) -> bool:
    return all(holds(term, document.values, document.time_ms) for term in terms)


def holds(term: Term, values: Mapping[str, Value], time_ms: int) -> bool:
    """Whether the term, its sign included, holds for an event of these values."""
    if isinstance(term, TextTerm):
        found = any(_text_holds(term, name, values.get(name)) for name in TEXT_FIELDS)
    else:
        value = time_ms if term.field.kind == "time" else values.get(term.field.name)
        found = value_holds(term, value)
    return found is not term.negated


def value_holds(term: FieldTerm | HasTerm, value: Value) -> bool:
    """Whether the value (one of them, if there are several) is wanted; the term's sign is the caller's."""
    if value is None:
        return False
    if isinstance(term, HasTerm):
        return True
    items = value if isinstance(value, tuple) else (value,)
    return any(accepts(match, item) for match in term.matches for item in items)


def accepts(match: Match, value: str | float) -> bool:
    if isinstance(match, Exactly):
        return fold(str(value)) == fold(match.text)
    if isinstance(match, Like):
        return _is_like(match.pieces, fold(str(value)))
    if isinstance(value, str):
        return False
    above = match.low is None or (value > match.low if match.low_open else value >= match.low)
    below = match.high is None or (value < match.high if match.high_open else value <= match.high)
    return above and below


def _is_like(pieces: tuple[str, ...], folded: str) -> bool:
    """Each piece at the first place where it can stand: linear, whatever the pattern."""
    first, *middle, last = (fold(piece) for piece in pieces)
    end = len(folded) - len(last)
    at = len(first)
    if end < at or not folded.startswith(first) or not folded.endswith(last):
        return False
    for piece in middle:
        found = folded.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _text_holds(term: TextTerm, name: str, value: Value) -> bool:
    if value is None:
        return False
    texts = value if isinstance(value, tuple) else (str(value),)
    if name in PERCENT_CODED:
        texts = tuple(unquote(text) for text in texts)
    return any(has_phrase(term, text) for text in texts)


def has_phrase(term: TextTerm, text: str) -> bool:
    """Whether the term's words follow each other in the text, its sign aside."""
    wanted = [fold(word) for word in term.words]
    found = words(fold(text))
    length = len(wanted)
    for start in range(len(found) - length + 1):
        run = found[start : start + length]
        if run == wanted:
            return True
        if term.prefix and run[:-1] == wanted[:-1] and run[-1].startswith(wanted[-1]):
            return True
    return False
