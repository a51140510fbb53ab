"""Pure: which events of a segment a filter holds for, newest first.

Columns evaluate all events of a segment at once and leave few. What they leave open is decided event by
event: by the event's line of text where the term is about paths, queries and words, else by the event itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, Protocol

from controlplane.search.column import Column, Evaluated, evaluate, evaluate_abstract, evaluate_exactly, full
from controlplane.search.document import Document, Value
from controlplane.search.predicates import accepts, all_hold, has_phrase, said_in, value_holds
from controlplane.search.query import (
    FIELDS,
    WORD,
    Between,
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
from controlplane.search.segment import ABSENT, FOLDERS, PART, folder, on_one_line

# Of the text's fields the ones that are few enough to be looked at as values.
_PHRASE_COLUMNS: Final = ("rule", "reason", "logged", "transform")
LINE_FIELDS: Final = {"path": 0, "query": 1}
_LITTLE_TEXT: Final = 8192  # lines that are quicker searched than a column of all events is read
_FEW: Final = 64  # candidates up to which looking at each beats searching the text for where to look


class View(Protocol):
    """A segment as a search reads it: each part only if it is asked for."""

    @property
    def org_id(self) -> str: ...
    @property
    def count(self) -> int: ...
    def column(self, name: str) -> Column: ...
    def between(self, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
        """The ordinals, the second one excluded, of the events from `from_ms` and before `to_ms`."""

    def where(self, words: Sequence[str], *, prefix: bool) -> int:
        """The mask of the events whose lines may have all words; with `prefix` the last one may go on."""

    def line(self, ordinal: int) -> str: ...
    def said(self, ordinal: int) -> str:
        """The words of its path and query, in which phrases are looked for."""

    def lines_with(self, needle: bytes, flags: bytes) -> Iterator[int]:
        """Of the flagged ordinals those whose line has these bytes, newest first."""

    def document(self, ordinal: int) -> Document: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """What one term says of a segment: bounds on the matches, and what is still to be asked of each."""

    evaluated: Evaluated
    by_line: Callable[[int], bool] | None = None
    needle: bytes = b""  # a part of every matching line
    unsigned: _Step | None = None  # of a negated term, what it says without its sign


def matches(terms: Sequence[Term], view: View, first: int, end: int) -> Iterator[int]:
    """The ordinals from `first` to before `end` for which all terms hold, newest first."""
    mask, steps = _evaluated(terms, view, first, end)
    return _left(mask, steps, view)


def mask_of(terms: Sequence[Term], view: View, first: int, end: int, most: int) -> tuple[int, bool]:
    """The same as a mask, and whether columns were enough to tell; else it has the newest `most` alone."""
    mask, steps = _evaluated(terms, view, first, end)
    mask, steps = _without_excluded(mask, steps, view)
    if not steps:
        return mask, True
    flags = bytearray(view.count)
    for ordinal in islice(_left(mask, steps, view), most):
        flags[ordinal] = 1
    return int.from_bytes(flags, "little"), False


def _without_excluded(
    mask: int, steps: Sequence[tuple[Term, _Step]], view: View
) -> tuple[int, Sequence[tuple[Term, _Step]]]:
    """What is excluded is looked for instead of what is left, where that is little or quickly found."""
    left = []
    for term, step in steps:
        excluded = mask & step.unsigned.evaluated.mask if step.unsigned else mask
        if step.unsigned is None or not (step.unsigned.needle or excluded.bit_count() <= _LITTLE_TEXT):
            left.append((term, step))
            continue
        flags = bytearray(view.count)
        for ordinal in _candidates(excluded, view, step.unsigned.needle):
            flags[ordinal] = (
                step.by_line(ordinal) if step.by_line else not all_hold([term], view.document(ordinal))
            )
        mask ^= int.from_bytes(flags, "little")
    return mask, left


def _evaluated(
    terms: Sequence[Term], view: View, first: int, end: int
) -> tuple[int, Sequence[tuple[Term, _Step]]]:
    """What columns say of all terms together, and what is still to be asked."""
    mask = full(end - first) << 8 * first
    steps: list[tuple[Term, _Step]] = []
    for term in terms:
        step = _step(term, view)
        mask &= step.evaluated.mask
        if not mask:
            return 0, ()
        if not step.evaluated.certain:
            steps.append((term, step))
    return mask, steps


def _left(mask: int, steps: Sequence[tuple[Term, _Step]], view: View) -> Iterator[int]:
    """The ordinals of the mask for which what is still to be asked holds, newest first."""
    by_line = [(step.by_line, term.negated) for term, step in steps if step.by_line]
    by_event = [term for term, step in steps if not step.by_line]
    needle = max((step.needle for _, step in steps), key=len, default=b"")
    for ordinal in _candidates(mask, view, needle):
        if all(holds_for(ordinal) is not negated for holds_for, negated in by_line) and (
            not by_event or all_hold(by_event, view.document(ordinal))
        ):
            yield ordinal


def _candidates(mask: int, view: View, needle: bytes) -> Iterator[int]:
    flags = mask.to_bytes(view.count, "little")
    if needle and mask.bit_count() > _FEW:
        yield from view.lines_with(needle, flags)
        return
    ordinal = flags.rfind(1)
    while ordinal >= 0:
        yield ordinal
        ordinal = flags.rfind(1, 0, ordinal)


# -- one term --------------------------------------------------------------------------------------


def _step(term: Term, view: View) -> _Step:
    if isinstance(term, TextTerm):
        step = _text_step(term, view)
    elif term.field.kind == "time":
        step = _Step(_evaluate_time(term, view))
    elif term.field.name == "org":
        held = value_holds(term, view.org_id)
        step = _Step(Evaluated(full(view.count) if held else 0, certain=True))
    else:
        step = _field_step(term, view)
    return _turned(step, view) if term.negated else step


def _turned(step: _Step, view: View) -> _Step:
    """What is certain turns round; of what is not, only that none is left out."""
    everything = full(view.count)
    if step.evaluated.certain:
        return _Step(Evaluated(everything ^ step.evaluated.mask, certain=True))
    return _Step(Evaluated(everything, certain=False), step.by_line, unsigned=step)


def _evaluate_time(term: FieldTerm | HasTerm, view: View) -> Evaluated:
    if isinstance(term, HasTerm):
        return Evaluated(full(view.count), certain=True)
    mask = 0
    for match in term.matches:
        assert isinstance(match, Between)
        low = None if match.low is None else int(match.low) + match.low_open
        high = None if match.high is None else int(match.high) + (not match.high_open)
        first, end = view.between(low, high)
        mask |= full(max(0, end - first)) << 8 * first
    return Evaluated(mask, certain=True)


def _field_step(term: FieldTerm | HasTerm, view: View) -> _Step:
    name = term.field.name
    if isinstance(term, FieldTerm) and name in LINE_FIELDS and all(map(_is_as_in_line, term.matches)):
        return _line_step(term, view)
    column = view.column(name)
    evaluated = _evaluate_values(column, term) or evaluate_abstract(column, term)
    return _Step(evaluated or Evaluated(full(view.count), certain=False))


def _line_step(term: FieldTerm, view: View) -> _Step:
    """Of a path or query. Where its words lead to little text, no column is read."""
    name = term.field.name
    by_line, needle = _value_of_line(term, view, LINE_FIELDS[name]), _needle_of(term)
    lines = 0
    for match in term.matches:
        lines |= _may_have(match, view)
    if lines.bit_count() <= _LITTLE_TEXT:
        return _Step(Evaluated(lines, certain=not lines), by_line, needle)
    column = view.column(name)
    evaluated = _evaluate_values(column, term) or evaluate_abstract(column, term)
    if evaluated is None or not evaluated.certain:
        evaluated = evaluated or Evaluated(full(view.count), certain=False)
        if name == "path":
            evaluated = _evaluate_folders(term, view, evaluated)
    if evaluated.certain:
        return _Step(evaluated)
    return _Step(Evaluated(evaluated.mask & lines, certain=False), by_line, needle)


def _may_have(match: Match, view: View) -> int:
    """The events whose lines may have the words that a value must begin with."""
    if isinstance(match, Between):
        return 0
    text = fold(match.text if isinstance(match, Exactly) else match.pieces[0])
    goes_on = isinstance(match, Like) and WORD.fullmatch(text[-1:]) is not None
    return view.where(words(text), prefix=goes_on)


def _evaluate_values(column: Column, term: FieldTerm | HasTerm) -> Evaluated | None:
    if isinstance(term, FieldTerm) and term.field.kind == "text":
        texts = {fold(match.text) for match in term.matches if isinstance(match, Exactly)}
        if len(texts) == len(term.matches):
            return evaluate_exactly(column, texts)
    return evaluate(column, lambda value: value_holds(term, value))


def _evaluate_folders(term: FieldTerm, view: View, evaluated: Evaluated) -> Evaluated:
    """Fewer by the folders that all wanted paths lie in, where there are any."""
    match = term.matches[0]
    if len(term.matches) > 1 or not isinstance(match, Like):
        return evaluated
    beginning = fold(match.pieces[0])
    for name, level in FOLDERS.items():
        wanted = folder(beginning, level)
        if wanted is not None:
            within = _evaluate_folder(name, wanted, view)
            if within.certain and wanted == beginning and match.pieces[1:] == ("",):
                return within
            evaluated = Evaluated(evaluated.mask & within.mask, certain=False)
    return evaluated


def _evaluate_folder(name: str, wanted: str, view: View) -> Evaluated:
    column = view.column(name)
    evaluated = evaluate_exactly(column, [wanted]) or evaluate_abstract(
        column, FieldTerm(FIELDS["path"], (Exactly(wanted),))
    )
    return evaluated or Evaluated(full(view.count), certain=False)


def _text_step(term: TextTerm, view: View) -> _Step:
    mask = 0
    for name in _PHRASE_COLUMNS:
        evaluated = evaluate(view.column(name), lambda value: _value_has_phrase(term, value))
        if evaluated is None:  # too many values to say: each event is asked
            return _Step(Evaluated(full(view.count), certain=False))
        mask |= evaluated.mask
    wanted = [fold(word) for word in term.words]
    lines = view.where(wanted, prefix=term.prefix)
    if not lines:
        return _Step(Evaluated(mask, certain=True))
    needle = b"" if mask else max(wanted, key=len).encode()
    return _Step(Evaluated(mask | lines, certain=False), _phrase_of_line(term, view, mask), needle)


@lru_cache(4096)  # segments have mostly the same values
def _value_has_phrase(term: TextTerm, value: Value) -> bool:
    texts = value if isinstance(value, tuple) else () if value is None else (str(value),)
    return has_phrase(term, said_in(texts))


# -- lines -----------------------------------------------------------------------------------------


def _value_of_line(term: FieldTerm, view: View, part: int) -> Callable[[int], bool]:
    def holds_for(ordinal: int) -> bool:
        value = view.line(ordinal).split(PART)[part]
        return value != ABSENT and any(accepts(match, value) for match in term.matches)

    return holds_for


def _is_as_in_line(match: Match) -> bool:
    return not isinstance(match, Exactly) or on_one_line(match.text) == match.text


def _needle_of(term: FieldTerm) -> bytes:
    match = term.matches[0]
    if len(term.matches) > 1 or isinstance(match, Between):
        return b""
    pieces = match.pieces if isinstance(match, Like) else (match.text,)
    return max((fold(piece).encode() for piece in pieces), key=len)


def _phrase_of_line(term: TextTerm, view: View, mask: int) -> Callable[[int], bool]:
    """`mask` has the events that have the phrase elsewhere."""
    flags = mask.to_bytes(view.count, "little")

    def holds_for(ordinal: int) -> bool:
        return bool(flags[ordinal]) or has_phrase(term, view.said(ordinal))

    return holds_for
