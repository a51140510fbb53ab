"""Tests of the filter grammar: the meaning of a filter, and errors that name their column."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.search.query import (
    FIELDS,
    MAX_FILTER_CHARS,
    MAX_VALUES,
    Between,
    Exactly,
    FieldTerm,
    Filter,
    HasTerm,
    Like,
    QueryError,
    TextTerm,
    parse_filter,
    parse_time,
)
from proxy.wire.audit_event import EVENT_FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "search-filters.md").read_text("utf-8")
NOW = 1_763_700_000_000


def field(name: str, *matches: Exactly | Like | Between, negated: bool = False) -> FieldTerm:
    return FieldTerm(FIELDS[name], matches, negated)


def test_every_field_of_an_event_can_be_asked_for() -> None:
    assert {field.event_key for field in FIELDS.values()} == {*EVENT_FIELDS, "implausibleTime"}


def test_every_field_is_in_the_operators_page() -> None:
    for field in FIELDS.values():
        assert f"| `{field.name}` | `{field.event_key}` |" in PAGE


def test_every_example_of_the_operators_page_is_a_filter() -> None:
    section = PAGE.partition("## Examples")[2].partition("\n## ")[0]
    examples = re.findall(r"\| `(.+)` \|$", section, re.MULTILINE)
    assert len(examples) > 10
    for text in examples:
        assert parse_filter(text, now_ms=NOW).terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("  \t\n ", ()),
        ("verdict:block", (field("verdict", Exactly("block")),)),
        (
            'verdict:"blok" -verdict:Lo*',
            (
                field("verdict", Exactly("blok")),
                field("verdict", Like(("Lo", "")), negated=True),
            ),
        ),
        ("verdict:block,filter", (field("verdict", Exactly("block"), Exactly("filter")),)),
        ("-rule:r7", (field("rule", Exactly("r7"), negated=True),)),
        ("ruleId:r7", (field("ruleid", Exactly("r7")),)),
        ("RULE:r7", (field("rule", Exactly("r7")),)),
        ('rule:"no mail, ever"', (field("rule", Exactly("no mail, ever")),)),
        (r'rule:"a \"quoted\" \\ one"', (field("rule", Exactly(r'a "quoted" \ one')),)),
        ('rule:""', (field("rule", Exactly("")),)),
        ("path:/v1.0/users/*", (field("path", Like(("/v1.0/users/", ""))),)),
        ("path:*/messages/**/x", (field("path", Like(("", "/messages/", "/x"))),)),
        ('path:"/a*b"', (field("path", Exactly("/a*b")),)),
        ("transform:strip:mobilePhone", (field("transform", Exactly("strip:mobilePhone")),)),
        ("ip:2001:db8::1", (field("ip", Exactly("2001:db8::1")),)),
        ("status:403", (field("status", Between(403, 403)),)),
        ("status:>=400", (field("status", Between(400, None)),)),
        ("status:<400", (field("status", Between(None, 400, high_open=True)),)),
        ("status:400..499", (field("status", Between(400, 499)),)),
        ("status:400..", (field("status", Between(400, None)),)),
        ("duration:>2.5,<1", (field("duration", Between(2.5, None, True), Between(None, 1, False, True)),)),
        ("time:>=2025-11-21T04:40:00Z", (field("time", Between(NOW, None)),)),
        ("time:-1h..now", (field("time", Between(NOW - 3_600_000, NOW)),)),
        ("has:parent -has:logged", (HasTerm(FIELDS["parent"]), HasTerm(FIELDS["logged"], True))),
        ("mailbox", (TextTerm(("mailbox",)),)),
        ("-mail*", (TextTerm(("mail",), prefix=True, negated=True),)),
        ('"ada@contoso.com"', (TextTerm(("ada", "contoso", "com")),)),
        ("/v1.0/users/*", (TextTerm(("v1", "0", "users")),)),
        ("no-mail or-else", (TextTerm(("no-mail",)), TextTerm(("or-else",)))),
    ],
)
def test_what_a_filter_says(text: str, terms: tuple[object, ...]) -> None:
    assert parse_filter(text, now_ms=NOW) == Filter(terms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("verdikt:block", 1, "did you mean verdict?"),
        ("verdict:block stauts:403", 15, "did you mean status?"),
        ("-pth:/x", 2, "did you mean path?"),
        ("clientIpp:1", 1, "did you mean ip?"),
        ("https://graph.microsoft.com", 1, "put it in quotes"),
        ("has:parnt", 5, "did you mean parent?"),
        ("status:4xx", 8, "'4xx' is not a number"),
        ("status:>=4xx", 10, "'4xx' is not a number"),
        ("status:400..4xx", 13, "'4xx' is not a number"),
        ("status:..", 8, "a range needs a bound"),
        ("status:1_000", 8, "is not a number"),
        ("status:٤", 8, "is not a number"),
        ("status:" + "9" * 5000, MAX_FILTER_CHARS + 1, "longer than"),
        ("status:" + "9" * 4000, 8, "is not a number"),
        ("status:nan", 8, "is not a number"),
        ("status:", 8, "expected a value"),
        ("verdict:block,", 15, "expected a value"),
        ("verdict:block, filter", 15, "expected a value"),
        ("verdict:block,blok", 15, "'blok' is not a verdict: write one of allow, filter, block, log_only"),
        ('rule:"open', 6, "closing quote is missing"),
        ('"open', 1, "closing quote is missing"),
        ('rule:"a"b', 9, "white space"),
        ('rule:a"b', 7, "white space"),
        ('time:"-1h"..', 11, "white space"),
        ("time:yesterday", 6, "is not a time"),
        ("time:>2025-13-01", 7, "is not a time"),
        ("-", 2, "must stand before the term that it excludes"),
        ("a - b", 4, "must stand before the term that it excludes"),
        ("a OR b", 3, "OR is not an operator"),
        ("a *b", 3, "end of a word"),
        ("!!!", 1, "no word"),
        ("a\x00b", 2, "U+0000"),
        ("a\udc80b", 2, "U+DC80"),
        ("path:" + "a*" * 9, 6, "wildcards"),
        (" ".join(["a"] * (MAX_VALUES + 1)), 2 * MAX_VALUES + 1, "more than"),
        ('"' + "a " * 40 + '"', 1, "the phrase has more than"),
    ],
)
def test_a_wrong_filter_is_told_by_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_filter(text, now_ms=NOW)
    assert (caught.value.column, says in caught.value.message) == (column, True), str(caught.value)


PIECES = st.sampled_from(
    [
        '"',
        "\\",
        "*",
        ",",
        ":",
        "-",
        ">",
        "<",
        "=",
        "..",
        "has:",
        "(",
        ")",
        "'",
        ";",
        "%",
        "\x00",
        "\udc80",
        "AND",
        "NEAR",
        " ",
        "0",
        "1e9",
        "٤",
        "é",
        "İ",
        "\u00a0",
        "time:",
        "now",
        *[f"{name}:" for name in FIELDS],
    ]
)


@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=20).map("".join)))
@example("time:0001-01-01T00:00:00+23:59")
@example("time:9999-12-31T23:59:59-23:59")
@example("status:-0")
def test_any_text_is_a_filter_or_a_query_error(text: str) -> None:
    try:
        parsed = parse_filter(text, now_ms=NOW)
    except QueryError as error:
        assert 1 <= error.column <= len(text) + 1  # noqa: PT017 - either outcome is right
    else:
        assert len(parsed.terms) <= len(text)


@pytest.mark.parametrize("piece", ["-", "*", '"', "\\", "a*", '"\\', "a,", "-_", " ", "é"])
def test_the_longest_filters_are_read(piece: str) -> None:
    longest = (piece * MAX_FILTER_CHARS)[:MAX_FILTER_CHARS]
    for text in (longest, "path:" + longest[5:], '"' + longest[2:] + '"'):
        try:
            parse_filter(text)
        except QueryError:
            continue


def test_names_of_organisations_proxies_and_apps_are_resolved_and_ids_stay() -> None:
    known = {("app", "crm"): ("id-1", "id-2"), ("org", "Contoso"): ("id-3",)}

    def resolve(field: str, name: str) -> tuple[str, ...]:
        return known.get((field, name), ())

    parsed = parse_filter("app:crm,id-9 org:Contoso rule:crm app:cr*", resolve)
    assert parsed.terms == (
        field("app", Exactly("id-1"), Exactly("id-2"), Exactly("id-9")),
        field("org", Exactly("id-3")),
        field("rule", Exactly("crm")),
        field("app", Like(("cr", ""))),
    )


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2025-11-21T04:40:00Z", NOW),
        ("2025-11-21T04:40:00.123Z", NOW + 123),
        ("2025-11-21t05:40:00+01:00", NOW),
        ("2025-11-21T04:40", NOW),
        ("2025-11-21", NOW - (4 * 60 + 40) * 60_000),
        ("now", NOW),
        ("-90s", NOW - 90_000),
        ("-15m", NOW - 900_000),
        ("-2w", NOW - 14 * 86_400_000),
    ],
)
def test_times(text: str, milliseconds: int) -> None:
    assert parse_time(text, NOW) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "today", "2025-02-30", "20251121", "2025-W47", "12:00", "-15", "1763700000"]
)
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(QueryError, match="is not a time"):
        parse_time(text, NOW)
