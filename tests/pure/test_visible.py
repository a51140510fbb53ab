"""Tests of names that people can't check by eye: refused, or a warning if they look similar."""

from __future__ import annotations

import pytest

from controlplane.workshop.advice import ruleset_advice
from controlplane.workshop.explain import Explainer, SampleRequest
from proxy.policy.filters import compile_filter
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.transforms import Transforms
from proxy.policy.visible import escaped, mixed_scripts, named, near, unseen_in

UNSEEN = {
    "\u200b": "U+200B ZERO WIDTH SPACE",
    "\u200c": "U+200C ZERO WIDTH NON-JOINER",
    "\u200d": "U+200D ZERO WIDTH JOINER",
    "\u2060": "U+2060 WORD JOINER",
    "\xad": "U+00AD SOFT HYPHEN",
    "\ufeff": "U+FEFF ZERO WIDTH NO-BREAK SPACE",
    "\u202e": "U+202E RIGHT-TO-LEFT OVERRIDE",
    "\u2066": "U+2066 LEFT-TO-RIGHT ISOLATE",
    "\u200f": "U+200F RIGHT-TO-LEFT MARK",
    "\u061c": "U+061C ARABIC LETTER MARK",
    "\u034f": "U+034F COMBINING GRAPHEME JOINER",
    "\u115f": "U+115F HANGUL CHOSEONG FILLER",
    "\u3164": "U+3164 HANGUL FILLER",
    "\uffa0": "U+FFA0 HALFWIDTH HANGUL FILLER",
    "\u17b4": "U+17B4 KHMER VOWEL INHERENT AQ",
    "\u180e": "U+180E MONGOLIAN VOWEL SEPARATOR",
    "\ufe0f": "U+FE0F VARIATION SELECTOR-16",
    "\U000e0041": "U+E0041 TAG LATIN CAPITAL LETTER A",
    "\U000e0100": "U+E0100 VARIATION SELECTOR-17",
    "\U000e0fff": "U+E0FFF without a name",
    "\xa0": "U+00A0 NO-BREAK SPACE",
    "\u2003": "U+2003 EM SPACE",
    "\u3000": "U+3000 IDEOGRAPHIC SPACE",
    "\u2028": "U+2028 LINE SEPARATOR",
    "\u2800": "U+2800 BRAILLE PATTERN BLANK",
    "\ufffc": "U+FFFC OBJECT REPLACEMENT CHARACTER",
    "\x85": "U+0085 a control character",
    "\t": "U+0009 TAB",
    "\n": "U+000A LINE FEED",
}

# Each place of a name or value in a ruleset; ~ marks where it is inserted.
PLACES = {
    "name": "name: 'test~'\nrules: []",
    "rules[0].id": "rules: [{id: 'a~', match: {path: [/v1.0/x]}, verdict: block}]",
    "rules[0].match.path[0]": "rules: [{id: a, match: {path: ['/v1.0/x~']}, verdict: block}]",
    "rules[0].match.methods[0]": (
        "rules: [{id: a, match: {path: [/v1.0/x], methods: ['GET~']}, verdict: block}]"
    ),
    "rules[0].transforms.strip_properties[1]": (
        "rules: [{id: a, match: {path: [/v1.0/x]}, verdict: filter, guard_queries: true,"
        " transforms: {strip_properties: [b, 'c~']}}]"
    ),
    "rules[0].transforms.allow_properties[0]": (
        "rules: [{id: a, match: {path: [/v1.0/x]}, verdict: filter, guard_queries: true,"
        " transforms: {allow_properties: ['c.~d']}}]"
    ),
    "rules[0].conditions[0].query": "rules: [{CONDITION: {query: 'top~', equals: b}}]",
    "rules[0].conditions[0].header": "rules: [{CONDITION: {header: 'X~', equals: b}}]",
    "rules[0].conditions[0].param": "rules: [{CONDITION: {param: 'p~', equals: b}}]",
    "rules[0].conditions[0].body": "rules: [{CONDITION: {body: 'a~', equals: b}}]",
    "rules[0].conditions[0].equals": "rules: [{CONDITION: {query: a, equals: 'b~'}}]",
    "rules[0].conditions[0].not_in[1]": "rules: [{CONDITION: {query: a, not_in: [a, 'b~c']}}]",
    "rules[0].conditions[0].prefix": "rules: [{CONDITION: {query: a, prefix: '~b'}}]",
    "rules[0].conditions[0].matches": "rules: [{CONDITION: {query: a, matches: 'b~'}}]",
    "rules[0].time.timezone": (
        "rules: [{id: a, match: {path: [/v1.0/x]}, verdict: block, time: {days: [mon], timezone: 'UTC~'}}]"
    ),
    "rules[0].time.days[0]": (
        "rules: [{id: a, match: {path: [/v1.0/x]}, verdict: block, time: {days: ['mon~']}}]"
    ),
    "rules[0].ip.in[0]": (
        "rules: [{id: a, match: {path: [/v1.0/x]}, verdict: block, ip: {in: ['10.0.0.1~']}}]"
    ),
    "rules[0].verdict": "rules: [{id: a, match: {path: [/v1.0/x]}, verdict: 'block~'}]",
}


def text_of(place: str, tried: str) -> str:
    text = PLACES[place].replace(
        "{CONDITION: ", "{id: a, match: {path: ['/v1.0/x/{p}']}, verdict: block, conditions: [["
    )
    text = text.replace("[[", "[").replace("}}]", "}]}]") if "CONDITION" in PLACES[place] else text
    head = "version: 1\n" if place == "name" else "version: 1\nname: test\n"
    return head + text.replace("~", tried)


def problems(text: str) -> list[str]:
    try:
        ruleset = parse_ruleset(text)
    except InvalidRuleset as error:
        return [f"{one.line}:{one.column}: {one.where}: {one.message}" for one in error.problems]
    assert ruleset
    return []


def advice(text: str) -> list[str]:
    return [
        f"{one.line}:{one.column}: {one.where}: {one.message}"
        for one in ruleset_advice(text, parse_ruleset(text))
    ]


@pytest.mark.parametrize("place", PLACES)
def test_the_places_are_sound_by_themselves(place: str) -> None:
    assert problems(text_of(place, "")) == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("char", ["\u200b", "\xad", "\u202e", "\ufe0f", "\xa0", "\u3164"])
def test_what_cannot_be_seen_is_refused_wherever_it_stands(place: str, char: str) -> None:
    (problem,) = problems(text_of(place, char))
    line, column, where, message = problem.split(":", 3)
    assert where.strip() == place
    lines = text_of(place, char).splitlines()
    assert char in lines[int(line) - 1][int(column) - 1 :]
    assert f"holds the invisible character {UNSEEN[char]}" in message
    assert char not in problem


@pytest.mark.parametrize("char", UNSEEN)
def test_it_is_called_by_its_code_and_name(char: str) -> None:
    assert unseen_in(f"ab{char}c") == char
    assert named(char) == UNSEEN[char]
    assert escaped(f"ab{char}c").isprintable()


@pytest.mark.parametrize("spelled", ["\\u200b", "\\xAD", "\\N", "\\t"])
def test_a_name_holds_none_by_an_escape_either(spelled: str) -> None:
    text = text_of("rules[0].transforms.strip_properties[1]", "@").replace("'c@'", f'"c{spelled}"')
    assert "the invisible character" in problems(text)[0]


def test_a_value_may_hold_one_that_its_escape_shows() -> None:
    text = text_of("rules[0].conditions[0].equals", "@").replace("'b@'", '"b\\u202e"')
    assert problems(text) == []
    (problem,) = problems(text_of("rules[0].conditions[0].equals", "\u202e"))
    assert "or write it as \\u202e in double quotes" in problem


def test_a_path_holds_none_by_percent_encoding() -> None:
    (problem,) = problems(text_of("rules[0].match.path[0]", "%E2%80%8B"))
    assert "U+200B ZERO WIDTH SPACE" in problem


def test_a_key_holds_none() -> None:
    found = problems("version: 1\nname: test\nrules: [{'id\u200b': a, match: {path: [/x]}, verdict: block}]")
    assert any("3:10" in one and "U+200B ZERO WIDTH SPACE" in one for one in found)
    assert not any("\u200b" in one for one in found)


def test_a_description_is_free_text_unless_a_name_stands_for_it() -> None:
    rule = "{id: a, description: %s, match: {path: [/v1.0/x]}, verdict: block}"
    text = f"version: 1\nname: test\nrules: [{rule}]"
    assert problems(text % "'two\xa0words \u2764\ufe0f'") == []
    assert "U+200B" in problems("version: 1\nname: &n 'x\u200b'\nrules: []")[0]
    assert "U+200B" in problems(text % "&n 'x\u200b'")[0]


LAWFUL = ["Отчёты", "Ελληνικά", "報告書", "カメラのOffice一覧", "日本語ー2", "한국어", "עברית", "تقرير"]


@pytest.mark.parametrize("name", LAWFUL)
@pytest.mark.parametrize("more", ["", "_v2", " (1).docx", "-2026.pdf"])
def test_a_lawful_name_of_any_script_is_taken_without_a_word(name: str, more: str) -> None:
    text = f"""
version: 1
name: test
default: allow
rules:
  - id: a
    match: {{path: ["/v1.0/drives/{{id}}/root:/{name}{more}"]}}
    conditions: [{{query: q, in: ["{name}{more}"]}}]
    verdict: block
"""
    assert problems(text) == []
    assert advice(text) == []


@pytest.mark.parametrize(
    ("word", "char"),
    [
        ("employeeI\u0501", "U+0501 CYRILLIC SMALL LETTER KOMI DE"),
        ("m\u0435ssages", "U+0435 CYRILLIC SMALL LETTER IE"),
        ("\u0430pp", "U+0430 CYRILLIC SMALL LETTER A"),
        ("us\u0455ers", "U+0455 CYRILLIC SMALL LETTER DZE"),
        ("displ\u03b1yName", "U+03B1 GREEK SMALL LETTER ALPHA"),
        ("group\u0585", "U+0585 ARMENIAN SMALL LETTER OH"),
        ("Отч\u0065ты", "U+0065 LATIN SMALL LETTER E"),
    ],
)
def test_two_alphabets_in_one_word_are_warned_of(word: str, char: str) -> None:
    text = f"""
version: 1
name: test
default: allow
rules:
  - id: a
    match: {{path: ["/v1.0/{word}/x"]}}
    conditions: [{{body: a.{word}, equals: "{word}"}}]
    verdict: block
  - id: b
    match: {{path: [/v1.0/y]}}
    verdict: filter
    transforms: {{strip_properties: [z.{word}]}}
    guard_queries: true
"""
    report = advice(text)
    assert [one.split(": ")[1] for one in report] == [
        "rules[0].match.path[0]",
        "rules[0].conditions[0].body",
        "rules[0].conditions[0].equals",
        "rules[1].transforms.strip_properties[0]",
    ]
    assert all(char in one for one in report)


def filtering(*names: str) -> str:
    return f"""
version: 1
name: test
default: allow
rules:
  - id: a
    match: {{path: [/v1.0/users]}}
    verdict: filter
    transforms: {{strip_properties: [{", ".join(names)}]}}
    guard_queries: true
"""


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("mobilPhone", "mobilePhone"),
        ("moblePhone", "mobilePhone"),
        ("mobliePhone", "mobilePhone"),
        ("mobilePhones", "mobilePhone"),
        ("manager.mobilePhome", "mobilePhone"),
        ("emploeeId", "employeeId"),
        ("displaynames", "displayName"),
        ("buisnessPhones", "businessPhones"),
        ("\u0455\u0441\u043e\u0440\u0435", "scope"),
    ],
)
def test_a_near_miss_of_a_known_name_is_warned_of(written: str, meant: str) -> None:
    report = advice(filtering("id", written, "scope"))
    assert len(report) == 1
    assert "9:41: rules[0].transforms.strip_properties[1]" in report[0]
    assert f"`{meant}`" in report[0]


def test_so_is_one_of_another_name_in_the_ruleset() -> None:
    assert "one letter off from `costCenter`" in advice(filtering("costCenter", "costCentre"))[0]
    assert advice(filtering("extensionAttribute1", "extensionAttribute2", "shoeSize", "hatSize")) == []
    assert advice(filtering("MOBILEPHONE", "mobilePhone", "mail", "mails")) == []
    assert advice(filtering("emailAddress", "emailAddresses")) == []


def test_a_path_s_words_are_compared_too() -> None:
    text = """
version: 1
name: test
rules:
  - {id: a, match: {path: ["/v1.0/usres/{id}", "/v1.0/me/drive/root:/massages", /v1.0/users]}, verdict: block}
"""
    (report,) = advice(text)
    assert "5:28: rules[0].match.path[0]" in report
    assert "`users`" in report


def test_one_letter_makes_the_difference() -> None:
    assert all(near("users", other) for other in ("user", "userss", "usres", "usars", "xusers"))
    assert not any(near("users", other) for other in ("usr", "uesrx", "groups", "srues"))


def test_words_apart_mix_nothing() -> None:
    assert mixed_scripts("Отчёт.docx") is None
    assert mixed_scripts("5 µm ª") is None
    assert mixed_scripts("ＡＢＣabc") is None


def test_an_accent_is_the_same_in_either_form() -> None:
    for written in ("caf\xe9", "cafe\u0301", "CAF\xc9"):
        applied = compile_filter(Transforms((written,)))
        for sent in ("caf\xe9", "cafe\u0301", "Cafe\u0301", "caf\\u00e9"):
            assert applied.apply(f'{{"{sent}":1,"id":2}}'.encode()).body == b'{"id":2}'


def test_an_explanation_shows_what_a_value_hides() -> None:
    ruleset = parse_ruleset("""
version: 1
name: test
rules:
  - id: a
    match: {path: ["/v1.0/{p}"]}
    conditions: [{param: p, equals: b}]
    verdict: block
""")
    report = Explainer(ruleset).explain(SampleRequest("GET", "/v1.0/b%E2%80%8B?q=b"))
    assert "/v1.0/b\\u200b" in report.accounts[0].paths
    found = [value for each in report.accounts[0].attempts for one in each.findings for value in one.found]
    assert "b\\u200b" in found


def filter_of(name: str) -> str:
    return (
        "version: 1\nname: n\nrules:\n  - {id: a, match: {path: [/v1.0/users]}, verdict: filter, "
        f"guard_queries: true, transforms: {{strip_properties: ['{name}']}}}}\n"
    )


def advised(text: str) -> list[str]:
    return [each.message for each in ruleset_advice(text, parse_ruleset(text))]


@pytest.mark.parametrize(
    "name",
    ["phone", "contracts", "altitude", "values", "resources", "user", "createdBy.application", "owner"],
)
def test_a_lawful_name_beside_a_similar_one_is_no_slip(name: str) -> None:
    assert advised(filter_of(name)) == []


@pytest.mark.parametrize("segment", ["contracts", "charts", "workbooks", "team", "worksheet", "resources"])
def test_nor_is_one_in_a_path(segment: str) -> None:
    path = f"/v1.0/x/{{id}}/{segment}"
    assert (
        advised(f"version: 1\nname: n\nrules: [{{id: a, match: {{path: ['{path}']}}, verdict: block}}]\n")
        == []
    )


@pytest.mark.parametrize("segment", ["user", "message", "group", "event"])
def test_the_singular_of_a_collection_in_a_path_is_a_slip(segment: str) -> None:
    path = f"/v1.0/{segment}/{{id}}"
    (message,) = advised(
        f"version: 1\nname: n\nrules: [{{id: a, match: {{path: ['{path}']}}, verdict: block}}]\n"
    )
    assert f"`{segment}` is one letter off" in message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mobile\u0301Phone", "mobilePhone"),  # the accent follows its letter
        ("mail-Nickname", "mailNickname"),
        ("\u1d0dail", "mail"),  # a small capital
        ("\u0251boutMe", "aboutMe"),
    ],
)
def test_a_name_with_a_mark_or_another_letter_is_compared(name: str, meant: str) -> None:
    (message,) = advised(filter_of(name))
    assert f"`{meant}`" in message


def test_a_line_end_that_nobody_sees_is_refused() -> None:
    """YAML reads the invisible line end U+0085 in a quoted text as a space."""
    text = 'version: 1\nname: n\nrules: [{id: a, match: {path: ["/v1.0/us\x85ers"]}, verdict: block}]\n'
    with pytest.raises(InvalidRuleset, match=r"U\+0085"):
        parse_ruleset(text)


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/v1.O/users", "/v1.0/users"), ("/vl.0/users", "/v1.0/users"), ("/beat/users", "/beta/users")],
)
def test_a_version_that_only_looks_like_one_is_named(path: str, meant: str) -> None:
    text = (
        "version: 1\nname: n\ndefault: allow\n"
        f"rules: [{{id: a, match: {{path: ['{path}', /v1.0/groups]}}, verdict: block}}]\n"
    )
    (message,) = advised(text)
    assert message.endswith(f"did you mean {meant}?")
