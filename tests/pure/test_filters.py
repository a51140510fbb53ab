"""Tests of filters: hidden and remaining properties, and bodies that the filter can't read."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.filters import CompiledFilter, Filtered, FilterFailed, compile_filter
from proxy.policy.transforms import Transforms


def stripping(*paths: str) -> CompiledFilter:
    return compile_filter(Transforms(strip=paths))


def allowing(*paths: str) -> CompiledFilter:
    return compile_filter(Transforms(allow=paths))


def applied(compiled: CompiledFilter, body: bytes) -> bytes:
    """Return the filtered body. Assert that a repetition of the filter gives the same result."""
    return filtered(compiled, body).body


def filtered(compiled: CompiledFilter, body: bytes) -> Filtered:
    """Run the filter twice with the method `apply` and once with `apply_by_reading`.

    Assert that the filter returns the same result each time.
    """
    first = compiled.apply(body)
    assert compiled.apply(body) == first
    assert compiled.apply_by_reading(body) == first
    return first


def refused(compiled: CompiledFilter, body: bytes) -> str:
    with pytest.raises(FilterFailed) as refusal:
        compiled.apply(body)
    with pytest.raises(FilterFailed):
        compiled.apply(body)
    return refusal.value.reason


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"mobilePhone":"+47","id":"1"}', b'{"id":"1"}'),
        (b'{"id":"1","mobilePhone":"+47"}', b'{"id":"1"}'),
        (b'{"id":"1","mobilePhone":"+47","mail":"a"}', b'{"id":"1","mail":"a"}'),
        (b'{"mobilePhone":null}', b"{}"),
        (
            b'{"value":[{"id":1,"mobilePhone":"+47"},{"mobilePhone":[{"a":"}"}],"id":2}]}',
            b'{"value":[{"id":1},{"id":2}]}',
        ),
        (b'{"value":[]}', b'{"value":[]}'),
        (b'{"value":[null,{}]}', b'{"value":[null,{}]}'),
        (b'{"value":[[{"mobilePhone":1,"id":2}]]}', b'{"value":[[{"id":2}]]}'),
        # every spelling
        (b'{"MOBILEPHONE":1,"MobilePhone":2,"id":3}', b'{"id":3}'),
        (b'{"mobil\\u0065Phone":1,"\\u006dobile\\u0050hone":2,"id":3}', b'{"id":3}'),
        # every duplicate
        (b'{"mobilePhone":1,"mobilePhone":2,"id":3,"mobilePhone":4,"mobilePhone":5}', b'{"id":3}'),
        # its annotations
        (b'{"mobilePhone@odata.type":"#String","id":1,"mobilePhone@x":{"y":1}}', b'{"id":1}'),
        (b'{"mobilePhone@delta":["+47"],"id":1}', b'{"id":1}'),
        # no other property
        (
            b'{"mobilePhoneX":1,"mobile":2,"xmobilePhone":3}',
            b'{"mobilePhoneX":1,"mobile":2,"xmobilePhone":3}',
        ),
        (
            b'{"a":"mobilePhone","b":"\\"mobilePhone\\":1,"}',
            b'{"a":"mobilePhone","b":"\\"mobilePhone\\":1,"}',
        ),
        (b'{"manager":{"mobilePhone":1}}', b'{"manager":{"mobilePhone":1}}'),
        (b'{"\\"mobilePhone":1}', b'{"\\"mobilePhone":1}'),
        (b'{"mobilePhone\\u0000":1}', b'{"mobilePhone\\u0000":1}'),
        ('{"mobilePhone\u0301":1}'.encode(), '{"mobilePhone\u0301":1}'.encode()),
        # also next to a list
        (b'{"value":[],"mobilePhone":1}', b'{"value":[]}'),
        (b'{"value":{"mobilePhone":1,"id":2}}', b'{"value":{"id":2}}'),
        (b'{"value":"x","id":1,"mobilePhone":2}', b'{"value":"x","id":1}'),
        # white space
        (b' { "id" : 1 , "mobilePhone" : 2 , "x" : 3 } ', b' { "id" : 1 , "x" : 3 } '),
        (b'{\n  "id": 1,\n  "mobilePhone": 2\n}\r\n', b'{\n  "id": 1\n}\r\n'),
        (b'{\n  "mobilePhone": 2,\n  "id": 1\n}', b'{\n  "id": 1\n}'),
        (b'{\n  "mobilePhone": 2\n}', b"{}"),
    ],
)
def test_a_stripped_property_goes_and_nothing_else(body: bytes, left: bytes) -> None:
    assert applied(stripping("mobilePhone"), body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"id":1,"manager":{"mail":"m","id":2}}', b'{"id":1,"manager":{"id":2}}'),
        (b'{"manager":[{"mail":"m","id":2},[{"MAIL":1}]]}', b'{"manager":[{"id":2},[{}]]}'),
        (b'{"Manager":{"Mail":"m"}}', b'{"Manager":{}}'),
        (b'{"manager":null,"mail":"m"}', b'{"manager":null,"mail":"m"}'),
        (b'{"manager":"m"}', b'{"manager":"m"}'),
        (b'{"manager@delta":[{"mail":"m","id":1}]}', b'{"manager@delta":[{"id":1}]}'),
        (
            b'{"value":[{"manager":{"mail@odata.type":1,"x":{"mail":1}}}]}',
            b'{"value":[{"manager":{"x":{"mail":1}}}]}',
        ),
        (b'{"manager":{"mail":1},"manager":{"id":1,"mail":2}}', b'{"manager":{},"manager":{"id":1}}'),
    ],
)
def test_dots_walk_into_objects_and_arrays(body: bytes, left: bytes) -> None:
    assert applied(stripping("manager.mail"), body) == left


def test_a_shorter_path_means_all_of_it() -> None:
    body = b'{"manager":{"mail":1,"id":2},"id":3}'
    assert applied(stripping("manager.mail", "manager"), body) == b'{"id":3}'
    assert applied(stripping("manager", "manager.mail"), body) == b'{"id":3}'
    assert applied(allowing("manager.mail", "manager"), body) == b'{"manager":{"mail":1,"id":2}}'


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"id":1,"mail":2,"x":3}', b'{"id":1}'),
        (b'{"x":{"id":1},"ID":1,"y":[]}', b'{"ID":1}'),
        (b'{"x":1,"y":2}', b"{}"),
        (b'{"value":[{"id":1,"x":2},{"x":3}],"x":4}', b'{"value":[{"id":1},{}]}'),
        (b'{"i\\u0064":1,"\\u0078":2}', b'{"i\\u0064":1}'),
        # control information of the document stays; of an item only what a reader needs
        (
            b'{"@odata.context":"c","@odata.count":1,"value":[]}',
            b'{"@odata.context":"c","@odata.count":1,"value":[]}',
        ),
        (
            b'{"@odata.nextLink":"n","value":[],"@odata.x":1}',
            b'{"@odata.nextLink":"n","value":[],"@odata.x":1}',
        ),
        (b'{"value":[{"@odata.type":"t","@odata.id":"users(1)"}]}', b'{"value":[{"@odata.type":"t"}]}'),
        (
            b'{"value":[{"@odata.etag":"e","@odata.editLink":"l","id":1}]}',
            b'{"value":[{"@odata.etag":"e","id":1}]}',
        ),
        (
            b'{"value":[{"id":1,"@removed":{"reason":"x"}}]}',
            b'{"value":[{"id":1,"@removed":{"reason":"x"}}]}',
        ),
        (b'{"@odata.id":"u","@microsoft.graph.downloadUrl":"secret","id":1}', b'{"@odata.id":"u","id":1}'),
        # an annotation stays with its property
        (b'{"id@odata.type":"t","id":1,"x@odata.type":"t","x":1}', b'{"id@odata.type":"t","id":1}'),
        # partially allowed
        (b'{"manager":{"mail":1,"x":2,"@odata.type":"t"}}', b'{"manager":{"mail":1,"@odata.type":"t"}}'),
        (b'{"manager":[{"mail":1,"x":2},{"x":3}],"z":1}', b'{"manager":[{"mail":1},{}]}'),
        (b'{"manager":"hidden","id":1}', b'{"id":1}'),
        (b'{"manager":[{"mail":1},"hidden"],"id":1}', b'{"id":1}'),
        (b'{"manager":null,"id":1}', b'{"manager":null,"id":1}'),
        (
            b'{"manager@odata.navigationLink":"l","manager@odata.nextLink":"n"}',
            b'{"manager@odata.nextLink":"n"}',
        ),
        (b'{"manager@delta":[{"mail":1,"x":2}]}', b'{"manager@delta":[{"mail":1}]}'),
        (b'{"value":"hidden","id":1}', b'{"id":1}'),
        (b'{\n  "x": 1,\n  "id": 2,\n  "y": 3\n}', b'{\n  "id": 2\n}'),
    ],
)
def test_only_allowed_properties_stay(body: bytes, left: bytes) -> None:
    assert applied(allowing("id", "manager.mail"), body) == left


def test_strip_wins_over_allow() -> None:
    both = compile_filter(Transforms(strip=("manager.mail", "mail"), allow=("id", "manager", "mail")))
    body = b'{"id":1,"mail":2,"manager":{"mail":3,"x":4},"x":5}'
    assert applied(both, body) == b'{"id":1,"manager":{"x":4}}'


def test_an_empty_allow_list_leaves_control_information_only() -> None:
    assert (
        applied(allowing(), b'{"@odata.context":"c","value":[{"id":1}]}')
        == b'{"@odata.context":"c","value":[{}]}'
    )


def test_an_annotation_can_be_named() -> None:
    body = b'{"value":[{"@odata.id":"i","photo@odata.mediaReadLink":"l","photo":1,'
    body += b'"@microsoft.graph.downloadUrl":"d"}]}'
    kept = b'{"value":[{"@odata.id":"i","@microsoft.graph.downloadUrl":"d"}]}'
    assert applied(allowing("@odata.id", "@microsoft.graph.downloadUrl"), body) == kept
    kept = b'{"value":[{"photo":1,"@microsoft.graph.downloadUrl":"d"}]}'
    assert applied(stripping("@odata.id", "photo@odata.mediaReadLink"), body) == kept


def test_an_allowed_annotation_still_lacks_what_is_stripped_within_it() -> None:
    body = b'{"members":[],"members@delta":[{"id":"1","mail":"a"}]}'
    left = b'{"members@delta":[{"id":"1"}]}'
    assert applied(compile_filter(Transforms(("members.mail",), ("members@delta",))), body) == left


def test_objects_with_few_of_very_many_names_are_read_rather_than_learned() -> None:
    """The filter must not keep a plan for objects with very many names, which would need too much memory."""
    items = ",".join(f'{{"n{at % 500}":1}}' for at in range(5000))
    body = f'{{"value":[{items}]}}'.encode()
    compiled = stripping("n7")
    filtered = applied(compiled, body)
    assert filtered == body.replace(b'{"n7":1}', b"{}")
    assert compiled._plans == []


def test_names_outside_ascii_compare_without_regard_to_case() -> None:
    assert applied(stripping("Größe"), '{"GRÖßE":1,"größe":2,"x":3}'.encode()) == b'{"x":3}'


def test_a_letter_outside_ascii_stands_for_none_inside() -> None:
    body = '{"\u212aey":1,"\u017fkey":2}'.encode()
    assert applied(stripping("key", "skey"), body) == body


KEPT_EXACTLY = [
    b"1.0E+400",
    b"123456789012345678901234567890",
    b"-0",
    b"0.1e-7",
    b"1E5",
    b'"\\/\\u00e9\\ud83d\\ude00"',
    b'"\\ud800"',
    '"Ærlig 😀"'.encode(),
    b'"\\u2028"',
    b"[ ]",
    b"{ }",
    b'{"a":1,"a":2}',
    b"[1 ,2 , 3]",
    b"true",
]


@pytest.mark.parametrize("value", KEPT_EXACTLY)
def test_what_remains_keeps_its_exact_text(value: bytes) -> None:
    body = b'{"value":[{"mobilePhone":' + value + b',"x":' + value + b'},{"x":' + value + b"}]}"
    assert applied(stripping("mobilePhone"), body) == b'{"value":[{"x":' + value + b'},{"x":' + value + b"}]}"
    assert applied(allowing("x"), body) == b'{"value":[{"x":' + value + b'},{"x":' + value + b"}]}"


def test_order_of_members_is_kept_where_items_differ() -> None:
    body = b'{"value":[{"a":1,"b":2,"mobilePhone":0},{"b":1,"mobilePhone":0,"a":2},{"c":1,"a":2}]}'
    left = b'{"value":[{"a":1,"b":2},{"b":1,"a":2},{"c":1,"a":2}]}'
    assert applied(stripping("mobilePhone"), body) == left


NOT_JSON = [
    b"",
    b" ",
    b"null",
    b"1",
    b'"mobilePhone"',
    b"[]",
    b'[{"mobilePhone":1}]',
    b"{",
    b'{"mobilePhone":1',
    b'{"a":1}}',
    b'{"a":1} {"mobilePhone":2}',
    b'{"a":1}\n{"mobilePhone":2}\n',
    b'{"a":1,}',
    b'{"a":[1,]}',
    b'{,"a":1}',
    b"{a:1}",
    b"{'a':1}",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":01}',
    b'{"a":+1}',
    b'{"a":.5}',
    b'{"a":1.}',
    b'{"a":0x1}',
    b'{"a":True}',
    b'{"a":nul}',
    b'{"a":"\x00"}',
    b'{"a":"\n"}',
    b'{"a":"\\x41"}',
    b'{"a":"\\u12"}',
    b'{"a":1}\x00',
    b"\x00{}",
    '{"mobilePhone":1}'.encode("utf-16"),
    '{"mobilePhone":1}'.encode("utf-16-le"),
    b'{"a":"\xff"}',
    b'{"\xff":1}',
    b'{"a":"\xc0\xaf"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":1}/**/',
    b'/**/{"a":1}',
    b"<html></html>",
    b"\x0c{}",
    b'{"a" 1}',
    b'{"a":1 "b":2}',
    b'{"mobilePhone":1"a":2}',
    b")]}',\n{}",
    b'{"a":"' + b"x" * 100,
    b"\x1f\x8b\x08\x00",
    b'{"a":\xa01}',
    b'{"a"\x0b:1}',
]


@pytest.mark.parametrize("body", NOT_JSON)
@pytest.mark.parametrize("compiled", [stripping("mobilePhone"), allowing("id")], ids=["strip", "allow"])
def test_what_is_not_one_json_object_fails(compiled: CompiledFilter, body: bytes) -> None:
    assert refused(compiled, body)


def test_truncation_at_every_length_fails_also_after_the_whole_was_met() -> None:
    body = b'{"@odata.context":"c","value":[{"id":1,"mobilePhone":"+47"},{"id":2}]}'
    compiled = stripping("mobilePhone")
    compiled.apply(body)
    for length in range(len(body)):
        refused(compiled, body[:length])


@pytest.mark.parametrize("depth", [1000, 10_000, 1_000_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}"), (b'{"value":[', b"]}")])
def test_nesting_without_end_fails_and_does_not_crash(depth: int, brackets: tuple[bytes, bytes]) -> None:
    opening, closing = brackets
    body = b'{"manager":' + opening * depth + b"1" + closing * depth + b"}"
    refused(stripping("manager.mail"), body)
    refused(stripping("mobilePhone"), b'{"value":[' + body + b"]}")


def test_nesting_of_two_hundred_levels_is_taken() -> None:
    deep = b'{"x":[' * 100 + b'"mobilePhone"' + b"]}" * 100
    body = b'{"mobilePhone":' + deep + b',"deep":' + deep + b"}"
    assert applied(stripping("mobilePhone"), body) == b'{"deep":' + deep + b"}"
    lists = b"[" * 150 + b'{"mail":1,"id":2}' + b"]" * 150
    assert applied(stripping("manager.mail"), b'{"manager":' + lists + b"}") == (
        b'{"manager":' + b"[" * 150 + b'{"id":2}' + b"]" * 150 + b"}"
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"value":["+47 900 00 000"]}',
        b'{"value":[1]}',
        b'{"value":[{"id":1},"+47"]}',
        b'{"value":[["+47"]]}',
        b'{"@odata.context":"c","value":"+47 900 00 000"}',
        b'{"value":true}',
        b'{"value":[{"id":1}],"value":[{"mobilePhone":1}]}',
        b'{"value":[{"id":1}],"Value":[{"mobilePhone":1}]}',
        b'{"value":"x","val\\u0075e":[{"mobilePhone":1}],"id":1}',
    ],
)
def test_a_response_without_names_to_go_by_fails(body: bytes) -> None:
    refused(stripping("mobilePhone"), body)


@pytest.mark.parametrize("name", ["Value", "VALUE", "v\\u0061lue"])
def test_a_list_is_a_list_in_any_spelling(name: str) -> None:
    body = f'{{"{name}":[{{"mobilePhone":1,"id":2}}]}}'.encode()
    assert applied(stripping("mobilePhone"), body) == f'{{"{name}":[{{"id":2}}]}}'.encode()


def test_a_filter_that_met_one_response_is_not_fooled_by_the_next() -> None:
    compiled = stripping("mobilePhone", "manager.mail")
    compiled.apply(b'{"value":[{"id":1,"mobilePhone":2,"manager":{"mail":1,"id":2},"x":3}]}')
    for body, left in [
        (b'{"value":[{"id":1,"MobilePhone":2,"x":3}]}', b'{"value":[{"id":1,"x":3}]}'),
        (b'{"value":[{"id":1,"mobilePhone":2,"mobilePhone":2,"x":3}]}', b'{"value":[{"id":1,"x":3}]}'),
        (b'{"value":[{"x":1,"mobilePhone":2,"id":3}]}', b'{"value":[{"x":1,"id":3}]}'),
        (b'{"value":[{"id":1,"mobil\\u0065Phone":2,"x":3}]}', b'{"value":[{"id":1,"x":3}]}'),
        (b'{"value":[{"id":1, "mobilePhone":2,"x":3}]}', b'{"value":[{"id":1, "x":3}]}'),
        (b'{"value": [{"id":1,"mobilePhone":2,"x":3}]}', b'{"value": [{"id":1,"x":3}]}'),
        (b'{\n  "value":[{"id":1,"mobilePhone":2,"x":3}]}', b'{\n  "value":[{"id":1,"x":3}]}'),
        (b'{"value":[{"id":1,"mobilePhone":2,"mobilePhone@odata.type":"t"}]}', b'{"value":[{"id":1}]}'),
        (b'{"value":[{"manager":[{"mail":1,"id":2}]}]}', b'{"value":[{"manager":[{"id":2}]}]}'),
        (b'{"value":[{"manager":[[{"mail":1,"id":2}]]}]}', b'{"value":[{"manager":[[{"id":2}]]}]}'),
        (b'{"value":[{"manager":{"Mail":1,"id":2}}]}', b'{"value":[{"manager":{"id":2}}]}'),
        (b'{"id":1,"mobilePhone":2}', b'{"id":1}'),
    ]:
        assert compiled.apply(body).body == left


def test_a_filter_that_met_a_list_is_not_fooled_by_another_value() -> None:
    compiled = allowing("id")
    compiled.apply(b'{"value":[{"id":1,"x":2}]}')
    assert compiled.apply(b'{"value":{"id":1,"x":2}}').body == b"{}"
    assert compiled.apply(b'{"value":null}').body == b"{}"


# Reference implementation on values instead of bytes; duplicates are lists of pairs.

Pairs = list[tuple[str, Any]]


class Obj:
    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


def read(body: bytes) -> Any:
    return json.loads(
        body, object_pairs_hook=Obj, parse_int=lambda t: ("n", t), parse_float=lambda t: ("n", t)
    )


def plain(value: Any) -> Any:
    if isinstance(value, Obj):
        return ("object", [(name, plain(member)) for name, member in value.pairs])
    if isinstance(value, list):
        return [plain(element) for element in value]
    return value


def stripped(value: Any, paths: list[list[str]]) -> Any:
    if isinstance(value, list):
        return [stripped(element, paths) for element in value]
    if not isinstance(value, Obj):
        return value
    pairs: Pairs = []
    for name, member in value.pairs:
        base = name.partition("@")[0].lower()
        if any(path == [base] for path in paths):
            continue
        inner = [path[1:] for path in paths if path[0] == base]
        pairs.append((name, stripped(member, inner) if inner else member))
    return Obj(pairs)


def expected(body: bytes, paths: list[list[str]]) -> Any:
    document = stripped(read(body), paths)
    pairs = [
        (name, stripped(member, paths) if name.lower() == "value" else member)
        for name, member in document.pairs
    ]
    return plain(Obj(pairs))


NAMES = [
    "a",
    "A",
    "b",
    "bb",
    "a@odata.type",
    "b@delta",
    "@odata.type",
    "@odata.id",
    "id",
    'x\\"a',
    "\\u0061",
    "é",
    "c",
]
tokens = st.sampled_from(
    [b"1", b"1.0E+40", b'"a"', b'"\\"a\\":1,"', b"null", b"true", b'"\\ud800"', '"é"'.encode()]
)
spaces = st.sampled_from([b"", b"", b"", b" ", b"\n  "])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> bytes:
    members = draw(st.lists(st.tuples(st.sampled_from(NAMES), values, spaces, spaces), max_size=5))
    texts = [s + b'"' + n.encode() + b'"' + t + b":" + s + v + t for n, v, s, t in members]
    return b"{" + b",".join(texts) + b"}"


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> bytes:
    return b"[" + b", ".join(draw(st.lists(values, max_size=3))) + b"]"


json_objects = objects(st.recursive(tokens, lambda inner: objects(inner) | arrays(inner), max_leaves=12))
documents = st.one_of(
    json_objects,
    st.lists(json_objects, max_size=4).map(
        lambda items: b'{"@odata.context":"c","value":[' + b",".join(items) + b"]}"
    ),
)
paths = st.lists(
    st.sampled_from(["a", "b", "a.b", "b.a", "c.a.b", "id", "é", "B.A.a"]), min_size=1, max_size=3
)


def minimal(paths: list[str]) -> list[list[str]]:
    return [path.lower().split(".") for path in paths]


@given(documents, paths)
@settings(max_examples=250)
def test_stripping_agrees_with_a_reference_on_values(body: bytes, paths: list[str]) -> None:
    left = applied(stripping(*paths), body)
    assert plain(read(left)) == expected(body, minimal(paths))
    json.loads(left)


compiled_filters = st.builds(
    lambda strip, allow: Transforms(strip=tuple(strip), allow=None if allow is None else tuple(allow)),
    paths,
    st.none() | paths,
)


@given(compiled_filters, st.lists(documents, min_size=1, max_size=4))
@settings(max_examples=100)
def test_having_met_other_responses_changes_nothing(transforms: Transforms, bodies: list[bytes]) -> None:
    compiled = compile_filter(transforms)
    for body in bodies + bodies:
        assert compiled.apply(body) == compiled.apply_by_reading(body)


@pytest.mark.parametrize(
    ("transforms", "body", "removed"),
    [
        # only existing properties
        (Transforms(("mobilePhone", "mail")), b'{"id":1,"mobilePhone":2}', ("strip:mobilePhone",)),
        (Transforms(("mobilePhone", "mail")), b'{"mail":1,"MOBILEPHONE":2}',
         ("strip:mobilePhone", "strip:mail")),
        (Transforms(("mobilePhone", "mail")), b'{"id":1}', ()),
        (Transforms(("mobilePhone",)), b'{"value":[]}', ()),
        (Transforms(("mobilePhone",)), b'{"value":[{"id":1},{"id":2}]}', ()),
        (Transforms(("mobilePhone",)), b'{"value":[{"id":1},{"id":2,"mobilePhone":null}]}',
         ("strip:mobilePhone",)),
        # each at the right place
        (Transforms(("manager.mail",)), b'{"mail":1,"manager":{"id":2}}', ()),
        (Transforms(("manager.mail", "id")), b'{"manager":{"mail":1}}', ("strip:manager.mail",)),
        (Transforms(("manager.mail", "manager.id")), b'{"manager":[{"a":1},{"id":1}]}',
         ("strip:manager.id",)),
        (Transforms(("manager", "manager.mail")), b'{"manager":{"mail":1}}', ("strip:manager",)),
        # an annotation goes with its property, and may be all there is of it
        (Transforms(("photo",)), b'{"id":1,"photo@odata.mediaReadLink":"x"}', ("strip:photo",)),
        (Transforms(("photo@odata.mediaReadLink",)), b'{"photo@odata.mediaReadLink":"x","photo":1}',
         ("strip:photo@odata.mediaReadLink",)),
        (Transforms(("@odata.etag",)), b'{"value":[{"@odata.etag":"x","id":1}]}', ("strip:@odata.etag",)),
        # an allow list is named whole if anything was missing from it
        (Transforms(allow=("id", "mail")), b'{"id":1,"mail":2}', ()),
        (Transforms(allow=("id", "mail")), b'{"id":1,"mobilePhone":2}', ("allow:id", "allow:mail")),
        (Transforms(allow=("id",)), b'{"value":[{"id":1,"@odata.id":"x"}]}', ("allow:id",)),
        (Transforms(allow=("manager.id",)), b'{"manager":7}', ("allow:manager.id",)),
        (Transforms(allow=("manager.id",)), b'{"manager":null}', ()),
        (Transforms(allow=()), b'{"id":1}', ("allow:",)),
        (Transforms(allow=()), b'{"@odata.context":"x"}', ()),
        # both transforms
        (Transforms(("mail",), ("id", "mail")), b'{"id":1,"mail":2}', ("strip:mail",)),
        (Transforms(("mail",), ("id", "mail")), b'{"id":1,"x":2}', ("allow:id", "allow:mail")),
        (Transforms(("mail",), ("id",)), b'{"x":1,"mail":2}', ("strip:mail", "allow:id")),
        (Transforms(("mail",), ("id",)), b'{"id":1}', ()),
    ],
)  # fmt: skip
def test_what_was_removed_has_the_name_of_its_transform(
    transforms: Transforms, body: bytes, removed: tuple[str, ...]
) -> None:
    compiled = compile_filter(transforms)
    assert filtered(compiled, body).removed == removed
    compiled.apply(b'{"value":[{"id":1,"mobilePhone":2,"mail":3,"manager":{"mail":4,"id":5},"x":6}]}')
    assert filtered(compiled, body).removed == removed


def test_a_list_of_which_the_last_item_alone_has_the_property_names_it() -> None:
    compiled = stripping("mobilePhone", "manager.mail", "mail")
    met = b'{"value":[{"id":1,"mobilePhone":2,"mail":3,"manager":{"id":4,"mail":5}}%b]}'
    assert len(filtered(compiled, met % b"").removed) == 3
    others = b',{"id":1,"manager":{"id":4}}' * 3
    one = b'{"value":[{"id":1}%b,{"id":1,"manager":{"id":4,"mail":5}}]}' % others
    assert filtered(compiled, one).removed == ("strip:manager.mail",)
    assert filtered(compiled, b'{"value":[{"id":1}%b]}' % others).removed == ()


@given(compiled_filters, st.lists(documents, min_size=1, max_size=4))
@settings(max_examples=100)
def test_something_is_named_just_where_something_was_removed(
    transforms: Transforms, bodies: list[bytes]
) -> None:
    compiled = compile_filter(transforms)
    for body in bodies + bodies:
        left = compiled.apply(body)
        assert (left.removed == ()) is (left.body == body)
        assert set(left.removed) <= set(transforms.names)


@given(compiled_filters, json_objects, st.sampled_from([0, 2, 4]))
def test_evenly_formatted_responses_stay_so(transforms: Transforms, body: bytes, indent: int) -> None:
    formatted = json.dumps({"value": [json.loads(body)] * 2}, indent=indent or None, ensure_ascii=False)
    with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate has no UTF-8
        applied(compile_filter(transforms), formatted.encode())


@given(documents, paths, st.data())
def test_no_mutation_of_a_response_raises_anything_else(
    body: bytes, paths: list[str], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(body)))
    mutated = body[:position] + data.draw(st.binary(max_size=2)) + body[position + 1 :]
    compiled = stripping(*paths)
    compiled.apply(body)
    try:
        left = compiled.apply(mutated).body
    except FilterFailed:
        return
    assert plain(read(left)) == expected(mutated, minimal(paths))
