"""Decides whether a value or a text matches a term of a filter.

The code of this module does no input or output.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
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
    """Return whether all terms, including the negated terms, are true for the event.

    The function splits the event's text into words only once, not once for each term.
    """
    said: str | None = None
    for term in terms:
        if isinstance(term, TextTerm):
            said = said_by(document.values) if said is None else said
            found = has_phrase(term, said)
        else:
            is_time = term.field.kind == "time"
            found = value_holds(term, document.time_ms if is_time else document.values.get(term.field.name))
        if found is term.negated:
            return False
    return True


def value_holds(term: FieldTerm | HasTerm, value: Value) -> bool:
    """Return whether the value, or at least one of several values, matches the term.

    If the term is negated, the caller negates the result of this function.
    """
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
    """Return whether a value matches a pattern with wildcards, in linear time.

    The function matches each piece of the pattern at the first possible position in the value.
    """
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


def said_by(values: Mapping[str, Value]) -> str:
    """Return the words of an event's TEXT_FIELDS, in the form that phrase searches use."""
    texts: list[str] = []
    for name in TEXT_FIELDS:
        value = values.get(name)
        of_field = value if isinstance(value, tuple) else () if value is None else (str(value),)
        texts += map(unquote, of_field) if name in PERCENT_CODED else of_field
    return said_in(texts)


def said_in(texts: Iterable[str]) -> str:
    """Return the words of several texts for phrase searches, in which a phrase cannot span two texts."""
    return "\n".join([f" {' '.join(words(fold(text)))} " for text in texts])


def has_phrase(term: TextTerm, said: str) -> bool:
    """Return whether the words of the term occur one after another in the text `said`, in linear time."""
    return _phrase(term) in said


def phrase(folded: Iterable[str], *, prefix: bool) -> str:
    """Join the folded words of a phrase with spaces, as `said_in` joins the words of a text.

    If `prefix` is True, the last word also matches each longer word that begins with the last word.
    """
    return f" {' '.join(folded)}{'' if prefix else ' '}"


@lru_cache(256)
def _phrase(term: TextTerm) -> str:
    return phrase([fold(word) for word in term.words], prefix=term.prefix)
