"""Tests of JSON texts: the byte order mark, and the same limit of depth in every Python version."""

from __future__ import annotations

import pytest

from proxy.policy.batch import parse_batch, parse_batch_response, reduced_batch
from proxy.policy.facts import MalformedBody, parse_document
from proxy.policy.filters import FilterFailed, compile_filter
from proxy.policy.json_text import MAX_LEVELS, JsonTextError, TooDeep, readable, refuse_deep, validate
from proxy.policy.transforms import Transforms

MARK = b"\xef\xbb\xbf"


def nested(levels: int, opening: bytes, closing: bytes) -> bytes:
    return opening * levels + b"1" + closing * levels


SHAPES = [(b"[", b"]"), (b'{"a":', b"}"), (b'[{},"]]",', b"]"), (b'{"\\"[":[],"a":', b',"z":{}}')]


@pytest.mark.parametrize(("opening", "closing"), SHAPES)
def test_the_limit_is_ours_to_the_level(opening: bytes, closing: bytes) -> None:
    inner = 1 if b"[]" in opening or b"{}" in opening else 0
    deepest = nested(MAX_LEVELS - inner, opening, closing)
    validate(deepest)
    assert readable(MARK + deepest) == deepest
    assert parse_document(deepest) is not None
    for more in (1, 2, 100, 100_000):
        deeper = nested(MAX_LEVELS - inner + more, opening, closing)
        for read in (validate, readable, refuse_deep, parse_document):
            with pytest.raises((TooDeep, MalformedBody), match="512 levels"):
                read(deeper)


@pytest.mark.parametrize("levels", [MAX_LEVELS + 1, 600, 900, 1_000, 5_000])
def test_a_filter_that_knows_the_shape_keeps_the_limit(levels: int) -> None:
    """The filter applies the limit of nesting levels also to the members that it skips."""
    compiled = compile_filter(Transforms(strip=("mobilePhone",)))
    compiled.apply(b'{"mobilePhone":1,"deep":{"a":1}}')
    body = b'{"mobilePhone":1,"deep":' + nested(levels - 1, b'{"a":', b"}") + b"}"
    with pytest.raises(FilterFailed, match="512 levels"):
        compiled.apply(body)
    lists = compile_filter(Transforms(strip=("manager.mail",)))
    deep = nested(levels - 1, b"[", b"]").replace(b"1", b'{"mail":1,"id":2}')
    with pytest.raises(FilterFailed, match="512 levels"):
        lists.apply(b'{"manager":' + deep + b"}")
    deep = nested(MAX_LEVELS - 2, b"[", b"]").replace(b"1", b'{"mail":1,"id":2}')
    expected = deep.replace(b'"mail":1,', b"")
    assert lists.apply(b'{"manager":' + deep + b"}").body == b'{"manager":' + expected + b"}"
    shallow = b'{"mobilePhone":1,"deep":' + nested(MAX_LEVELS - 1, b'{"a":', b"}") + b"}"
    assert compiled.apply(shallow).body == shallow.replace(b'"mobilePhone":1,', b"")


def test_many_objects_side_by_side_are_not_deep() -> None:
    body = b'{"value":[' + b",".join([b'{"id":"[[[","tags":[{},[]]}'] * 5_000) + b"]}"
    refuse_deep(body)
    filtered = compile_filter(Transforms(strip=("tags",))).apply(body)
    assert filtered.body == body.replace(b',"tags":[{},[]]', b"")


@pytest.mark.parametrize("levels", [200, 508, 511, 100_000])
def test_a_batch_is_as_deep_as_any_body(levels: int) -> None:
    body = b'{"requests":[{"id":"1","method":"POST","url":"/x","body":' + nested(levels, b"[", b"]") + b"}]}"
    if levels < MAX_LEVELS - 3:
        assert len(parse_batch(body, "v1.0", ("https://a", "https://b"))) == 1
        return
    with pytest.raises(ValueError, match="512 levels"):
        parse_batch(body, "v1.0", ("https://a", "https://b"))


def test_a_byte_order_mark_before_a_filtered_response_is_kept_and_every_other_byte() -> None:
    compiled = compile_filter(Transforms(strip=("mobilePhone",)))
    for _ in range(3):
        response = MARK + b' {"id":"1", "displayName":"Kim","mobilePhone":"+47 555"}\r\n'
        assert compiled.apply(response).body == MARK + b' {"id":"1", "displayName":"Kim"}\r\n'
        page = MARK + b'{"value":[{"id":1,"mobilePhone":2}]}'
        assert compiled.apply(page).body == MARK + b'{"value":[{"id":1}]}'
    assert compiled.apply(MARK + b'{"id":1}').body == MARK + b'{"id":1}'


@pytest.mark.parametrize(
    "body", [MARK, MARK * 2 + b"{}", MARK * 5_000 + b"{}", b" " + MARK + b"{}", b"{}" + MARK]
)
def test_only_one_mark_at_the_very_beginning_is_one(body: bytes) -> None:
    with pytest.raises(JsonTextError):
        validate(body)
    with pytest.raises(FilterFailed):
        compile_filter(Transforms(strip=("mobilePhone",))).apply(body)


def test_a_batch_with_a_mark_keeps_it_on_its_way_up_and_down() -> None:
    requests = b'{"id":"1","method":"GET","url":"/users/1"},{"id":"2","method":"GET","url":"/me"}'
    body = MARK + b'{"requests":[' + requests + b"]}"
    parts = parse_batch(body, "v1.0", ("https://a", "https://b"))
    assert [part.target for part in parts] == ["/v1.0/users/1", "/v1.0/me"]
    assert reduced_batch(body, parts, {"2"}) == (
        MARK + b'{"requests":[{"id":"2","method":"GET","url":"/me"}]}'
    )
    responses = parse_batch_response(MARK + b'{"responses":[{"id":"1","status":200,"body":{}}]}')
    assert [response.id for response in responses] == ["1"]
