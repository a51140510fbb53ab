"""A column leaves out no event that a term wants, whatever its form; and on disk it stays what it is."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from controlplane.search.column import Column, decode, encode, evaluate, evaluate_abstract, join, make_column
from controlplane.search.predicates import value_holds
from controlplane.search.query import FIELDS, Between, Exactly, FieldTerm, HasTerm

NUMBERS = st.one_of(st.none(), st.integers(-3, 2100), st.floats(-2, 70), st.integers(0, 2**60))
TEXTS = st.one_of(st.none(), st.sampled_from(["Ada", "ada", "a\nb", "é", ""]), st.text(max_size=3))
BOUNDS = st.one_of(st.none(), st.integers(-3, 2100), st.floats(-2, 70))


def ordinals(column: Column, term: FieldTerm | HasTerm) -> tuple[set[int], bool]:
    evaluated = evaluate(column, lambda value: value_holds(term, value)) or evaluate_abstract(column, term)
    assert evaluated is not None
    flags = evaluated.mask.to_bytes(column.count, "little")
    return {ordinal for ordinal, flag in enumerate(flags) if flag}, evaluated.certain


def check(column: Column, term: FieldTerm | HasTerm, values: list[object]) -> None:
    wanted = {ordinal for ordinal, value in enumerate(values) if value_holds(term, value)}  # type: ignore[arg-type]
    found, certain = ordinals(column, term)
    assert found >= wanted
    assert not certain or found == wanted


@given(st.lists(NUMBERS, min_size=1, max_size=30), BOUNDS, BOUNDS, st.booleans(), st.sampled_from([0, 2, 9]))
def test_numbers(values: list[float], low: float, high: float, is_open: bool, wide: int) -> None:
    with patch.multiple("controlplane.search.column", NARROW=min(wide, 2), WIDE=wide):
        column = make_column("number", values)
    check(column, FieldTerm(FIELDS["duration"], (Between(low, high, is_open, is_open),)), [*values])
    check(column, HasTerm(FIELDS["duration"]), [*values])
    assert decode(encode(column)) == column


@given(
    st.lists(TEXTS, min_size=1, max_size=30),
    TEXTS.map(str),
    st.sampled_from([0, 2, 9]),
    st.sampled_from([1, 2, 100]),
)
def test_texts(values: list[str], wanted: str, wide: int, rare: int) -> None:
    with patch.multiple("controlplane.search.column", NARROW=min(wide, 2), WIDE=wide, _RARE=rare):
        half = len(values) // 2
        parts = [part for part in (values[:half], values[half:]) if part]
        column = join("text", [make_column("text", part) for part in parts])
        check(column, FieldTerm(FIELDS["app"], (Exactly(wanted),)), [*values])
        check(column, HasTerm(FIELDS["app"]), [*values])
    assert decode(encode(column)) == column
