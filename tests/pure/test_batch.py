"""Tests of $batch parsing: it refuses a batch that servers could interpret in two ways."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.batch import (
    BatchPart,
    MalformedBatch,
    as_if_alone,
    made_response,
    merged_response,
    parse_batch,
    parse_batch_response,
    reduced_batch,
)

UPSTREAM = "https://graph.microsoft.com"
OTHER = "https://graph.example:8443"
PROXY = "http://127.0.0.1:8080"


def parsed(body: bytes, version: str = "v1.0") -> tuple[BatchPart, ...]:
    return parse_batch(body, version, (UPSTREAM, OTHER, PROXY))


def batch(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"requests": list(parts)}).encode()


def get(url: str, **more: Any) -> dict[str, Any]:
    return {"id": "1", "method": "GET", "url": url, **more}


def refused(body: bytes) -> None:
    with pytest.raises(MalformedBatch):
        parsed(body)


def test_a_part_is_read_whole() -> None:
    raw = (
        b'{ "id":"a", "method": "PATCH","url":"/users/1?$select=id" ,\n'
        b'"headers":{"Content-Type":"application/json","x":"\\u00e6"},'
        b'"body": {"n": 1.0E+400, "n": 2 }, "dependsOn":["B"]}'
    )
    body = b' {"requests" : [ ' + raw + b' ,{"id":"b","method":"get","url":"me"}] }\n'
    first, second = parsed(body)
    assert first == BatchPart(
        id="a",
        method="PATCH",
        url="/users/1?$select=id",
        target="/v1.0/users/1?$select=id",
        headers=(("Content-Type", "application/json"), ("x", "æ")),
        body=b'{"n": 1.0E+400, "n": 2 }',
        depends_on=("b",),
        raw=raw,
    )
    assert (second.method, second.target, second.body, second.headers) == ("GET", "/v1.0/me", None, ())


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("/users", "/v1.0/users"),
        ("users", "/v1.0/users"),
        ("users?$filter=city eq null&$count=true", "/v1.0/users?$filter=city%20eq%20null&$count=true"),
        ("/users('ada%40contoso.com')/messages", "/v1.0/users('ada%40contoso.com')/messages"),
        ("/users/Ærlig", "/v1.0/users/%C3%86rlig"),
        ("/me/drive/root:/a b.txt:/content", "/v1.0/me/drive/root:/a%20b.txt:/content"),
        ('/users?$search="displayName:x"', "/v1.0/users?$search=%22displayName:x%22"),
        ("/users/../me", "/v1.0/users/../me"),
        ("/users?$filter=a eq 'v1.0/$batch//'", "/v1.0/users?$filter=a%20eq%20'v1.0/$batch//'"),
    ],
)
def test_a_url_is_relative_to_the_version(url: str, target: str) -> None:
    (part,) = parsed(batch(get(url)))
    assert part.url == url
    assert part.target == target
    assert json.loads(part.raw)["url"] == url


@pytest.mark.parametrize(
    "base",
    [
        UPSTREAM,
        PROXY,
        OTHER,
        "HTTPS://Graph.Microsoft.com",
        "https://graph.microsoft.com:443",
        "https://graph.microsoft.com.:0443",
        "https://GRAPH.example:08443",
    ],
)
def test_an_absolute_url_of_ours_is_made_relative(base: str) -> None:
    raw = b'{"id":"1", "method":"GET","url": "' + base.encode() + b'/v1.0/users?$top=1","x":1.0}'
    (part,) = parsed(b'{"requests":[' + raw + b"]}")
    assert part.target == "/v1.0/users?$top=1"
    assert part.raw == b'{"id":"1", "method":"GET","url": "/users?$top=1","x":1.0}'


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1.0/users",
        "https://graph.microsoft.com.evil.example/v1.0/users",
        "https://graph.microsoft.com@evil.example/v1.0/users",
        "https://graph.microsoft.com:8443/v1.0/users",
        "https://graph.example/v1.0/users",
        "https://graph.microsoft.com:/v1.0/users",
        "https://graph.microsoft.com\\\\@evil.example/v1.0/users",
        "https://graph.microsoft.com%2eevil.example/v1.0/users",
        "https:graph.microsoft.com/v1.0/users",
        "https:///v1.0/users",
        "http://graph.microsoft.com:443/v1.0/users",
        "https://graph.microsoft.com/beta/users",
        "https://graph.microsoft.com/v1.0",
        "https://graph.microsoft.com",
        "http://graph.microsoft.com/v1.0/users",
        "//evil.example/users",
        "/\\evil.example/users",
        "\\\\evil.example/users",
        "%2F%2Fevil.example/users",
        "file:///etc/passwd",
        "javascript:1",
        "",
        "/",
        "?$top=1",
        "#",
        "/users#x",
        "/users\n",
        "/us\ters",
        "/users\u0000",
        # a batch inside a batch, in any spelling
        "/$batch",
        "$batch",
        "/$BATCH?x=1",
        "/%24batch",
        "/%2524batch",
        "/%24%62atch",
        "/users/../$batch",
        "/$batch/",
        "/$batch()",
        "/＄batch",
        "https://graph.microsoft.com/v1.0/$batch",
        # a version in the sub-request: the upstream may read it as the root
        "/v1.0/users",
        "v1.0/users",
        "/V1.0/users",
        "/beta/me",
        "/%62eta/me",
        "/./beta/me",
        "/users/../beta/me",
        "/x/%2e%2e/beta/me",
        "/beta;x=1/me",
        "https://graph.microsoft.com/v1.0/beta/me",
        "/%25252525252525252525252525252561",
    ],
)
def test_a_url_that_may_lead_elsewhere_is_refused(url: str) -> None:
    refused(batch(get(url)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"requests":null}',
        b'{"requests":{}}',
        b'{"requests":[]}',
        b'{"requests":[1]}',
        b'{"requests":[[]]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me"},]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me"}]} x',
        '{"requests":[{"id":"1","method":"GET","url":"/me"}]}'.encode("utf-16"),
        b'{"requests":[{"id":"1","method":"GET","url":"/me"}],"requests":[]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me"}],"Requests":[]}',
        b'{"Requests":[{"id":"1","method":"GET","url":"/me"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me"}],"reque\\u0073ts":[]}',
        b'{"requests":[{"method":"GET","url":"/me"}]}',
        b'{"requests":[{"id":"1","url":"/me"}]}',
        b'{"requests":[{"id":"1","method":"GET"}]}',
        b'{"requests":[{"id":1,"method":"GET","url":"/me"}]}',
        b'{"requests":[{"id":"","method":"GET","url":"/me"}]}',
        b'{"requests":[{"id":"1","method":1,"url":"/me"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":["/me"]}]}',
        b'{"requests":[{"id":"1","method":"GET /x","url":"/me"}]}',
        b'{"requests":[{"id":"1","method":"","url":"/me"}]}',
        b'{"requests":[{"id":"1","method":"%b","url":"/me"}]}' % (b"A" * 33),
        b'{"requests":[{"id":"1","method":"GET","url":"/me\\ud800"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","url":"/users"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","\\u0075rl":"/users"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","URL":"/users"}]}',
        b'{"requests":[{"id":"1","method":"GET","Url":"/users"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","Method":"DELETE"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","headers":[]}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","headers":{"a":1}}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","headers":{"a":"x\\r\\ny"}}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","headers":{"a b":"x"}}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","headers":{"a":"x","A":"y"}}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","dependsOn":"1"}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","dependsOn":[1]}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","dependsOn":["2"]}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","dependsOn":["1"]}]}',
        b'{"requests":[{"id":"1","method":"GET","url":"/me","DependsOn":[]}]}',
        b'{"requests":[{"id":"a","method":"GET","url":"/me"},{"id":"A","method":"GET","url":"/me"}]}',
        b'{"requests":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_what_is_no_batch_or_can_be_read_in_two_ways_is_refused(body: bytes) -> None:
    refused(body)


@pytest.mark.parametrize(
    "url",
    ["$1/messages", "/$1", "%241/messages", "/%2524a", "./$1", "/x/../$1", "$metadata", "\uff041/messages"],
)
def test_no_part_refers_to_what_another_is_about(url: str) -> None:
    """OData 4.01 allows references between sub-requests, but rules would evaluate the wrong path."""
    with pytest.raises(MalformedBatch, match=r"refers to another sub-request|the `url`"):
        parsed(batch(get("/users/ada"), get(url, id="2", dependsOn=["1"])))


def test_twenty_requests_are_a_batch_and_twenty_one_are_not() -> None:
    parts = [get("/me", id=str(index)) for index in range(21)]
    assert len(parsed(batch(*parts[:20]))) == 20
    refused(batch(*parts))


@pytest.mark.parametrize(
    ("part", "refusal"),
    [
        ({}, "more than 20 requests"),
        ({"headers": {f"x-{at}": "1" for at in range(1001)}}, "more than 1000 members"),
        ({f"k{at}": 1 for at in range(1000)}, "more than 1000 members"),
        ({"dependsOn": ["2"] * 21}, "more than 20 ids"),
        ({"body": [{}] * 60_000}, "more than 100000 JSON values"),
        ({"body": [[[[[[[]]]]]]] * 20_000}, "more than 100000 JSON values"),
        ({"url": "/" + "a" * 320 * 1024}, "members of the batch together have more than 327680 bytes"),
        ({"url": "/" + "\ufdfa" * 101}, "many characters that case folding expands to several"),
        ({"url": "/" + "%25EF%25B7%25BA" * 101}, "many characters that case folding expands to several"),
    ],
)
def test_what_costs_more_than_a_batch_is_refused_before_it_is_read(
    part: dict[str, Any], refusal: str
) -> None:
    """An unlimited 4 MB batch body with many requests or headers delays all other clients for seconds."""
    parts = [get("/me") | part for _ in range(1 if part else 10_000)]
    with pytest.raises(MalformedBatch, match=refusal):
        parsed(batch(*parts))


def test_a_long_text_counts_as_one_value_whatever_is_in_it() -> None:
    (part,) = parsed(batch(get("/me") | {"method": "POST", "body": {"text": '[{,"' * 200_000}}))
    assert len(part.raw) > 1_000_000


def test_requests_in_a_circle_are_refused_and_in_a_line_are_not() -> None:
    line = [get("/me", id="1"), get("/me", id="2", dependsOn=["1"]), get("/me", id="3", dependsOn=["1", "2"])]
    assert [part.depends_on for part in parsed(batch(*line))] == [(), ("1",), ("1", "2")]
    refused(batch(get("/me", id="1", dependsOn=["3"]), *line[1:]))


def test_null_is_as_good_as_absent() -> None:
    (part,) = parsed(batch(get("/me", headers=None, body=None, dependsOn=None)))
    assert (part.headers, part.body, part.depends_on) == ((), None, ())


def test_a_method_override_is_there_to_be_evaluated() -> None:
    (part,) = parsed(batch(get("/me", headers={"X-HTTP-Method-Override": "DELETE"})))
    assert part.headers == (("X-HTTP-Method-Override", "DELETE"),)


def test_the_smaller_batch_keeps_the_bytes_of_what_it_keeps() -> None:
    first = b'{"id":"1" , "method":"POST","url":"/x","body":{"n":1e5}}'
    second = b'{"id":"2","method":"GET","url":"/y"}'
    third = b'{"id":"3","method":"GET",\n"url":"http:\\/\\/127.0.0.1:8080/v1.0/z"}'
    body = b'{"a":1,"requests": [' + first + b"," + second + b" ,\n" + third + b'] ,"b":2}'
    parts = parsed(body)
    relative = b'{"id":"3","method":"GET",\n"url":"/z"}'
    assert (
        reduced_batch(body, parts, {"1", "3"})
        == b'{"a":1,"requests": [' + first + b"," + relative + b'] ,"b":2}'
    )
    assert reduced_batch(body, parts, {"2"}) == b'{"a":1,"requests": [' + second + b'] ,"b":2}'


RESPONSE = (
    b'{"responses":[{"id":"2","status":200,"headers":{"Content-Type":"text/json"},"body": {"n":1.0E5 } },'
    b'{"id":"1","status":204}]}'
)


def test_a_response_is_read_whole() -> None:
    second, first = parse_batch_response(RESPONSE)
    assert (second.id, second.status, second.headers) == ("2", 200, (("Content-Type", "text/json"),))
    assert second.body == b'{"n":1.0E5 }'
    assert second.raw == RESPONSE[14 : RESPONSE.index(b',{"id":"1"')]
    assert (first.id, first.status, first.body) == ("1", 204, None)


def test_another_body_leaves_the_other_bytes() -> None:
    second, first = parse_batch_response(RESPONSE)
    assert second.with_body(b'{"x":1}') == second.raw.replace(b'{"n":1.0E5 }', b'{"x":1}')
    with pytest.raises(MalformedBatch):
        first.with_body(b"{}")


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ('{"Content-Length":"17"}', "{}"),
        ('{"content-length":"17", "A":"b"}', '{"A":"b"}'),
        ('{ "A":"b" , "Content-MD5":"x" ,"Digest":"y", "C":"d" }', '{ "A":"b", "C":"d" }'),
        ('{"Repr-Digest":"x","content-digest":"y","A":"b","Content-Length":"17"}', '{"A":"b"}'),
        ('{"Content-Type":"application/json"}', '{"Content-Type":"application/json"}'),
        ("null", "null"),
    ],
)
def test_no_header_tells_of_the_body_that_another_took_the_place_of(headers: str, left: str) -> None:
    text = '{"responses":[{"id":"1","status":200,"headers":%s, "body":{"mail":"a","x":1}}]}'
    (response,) = parse_batch_response((text % headers).encode())
    assert response.with_body(b'{"mail":"a","x":1}') == response.raw
    (other,) = parse_batch_response((text % left).encode())
    assert response.with_body(b'{"x":1}') == other.raw.replace(b'"mail":"a",', b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"responses":[1]}',
        b'{"responses":[],"Responses":[]}',
        b'{"responses":[{"id":"1"}]}',
        b'{"responses":[{"id":"1","status":"200"}]}',
        b'{"responses":[{"id":"1","status":2000}]}',
        b'{"responses":[{"id":"1","status":2e2}]}',
        b'{"responses":[{"status":200}]}',
        b'{"responses":[{"id":"1","status":200,"body":{},"body":{"mobilePhone":1}}]}',
        b'{"responses":[{"id":"1","status":200,"body":{},"Body":{"mobilePhone":1}}]}',
        b'{"responses":[{"id":"1","status":200},{"id":"1","status":200}]}',
        b'{"responses":[{"id":"1","status":200}]',
    ],
)
def test_a_response_that_can_be_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBatch):
        parse_batch_response(body)


def test_our_responses_take_their_places_among_the_upstreams() -> None:
    own = {"1": b'"one"', "4": b'"four"'}
    finished = [("3", b'"three"'), ("2", b'"two"')]
    body = b'{"@odata.nextLink": "x", "responses" : [{}, {}]}'
    merged = merged_response(body, ["1", "2", "3", "4"], finished, own)
    assert merged == b'{"@odata.nextLink": "x", "responses" : ["three","one","two","four"]}'
    assert merged_response(b'{"responses":[]}', ["1", "4"], [], own) == b'{"responses":["one","four"]}'


def test_a_response_of_our_own_is_read_like_any_other() -> None:
    text = made_response('a"\u00e6', 403, {"Content-Type": "application/json"}, b'{"error":{}}')
    (response,) = parse_batch_response(b'{"responses":[' + text + b"]}")
    assert (response.id, response.status, response.body) == ('a"æ', 403, b'{"error":{}}')


SOUND = batch(get("/me"), get("/x", id="2", dependsOn=["1"], headers={"a": "b"}))


@given(st.integers(0, len(SOUND)), st.binary(max_size=3), st.integers(0, 3))
@settings(max_examples=500)
def test_no_mutation_raises_anything_else(position: int, inserted: bytes, removed: int) -> None:
    with contextlib.suppress(MalformedBatch):
        parsed(SOUND[:position] + inserted + SOUND[position + removed :])


@given(st.text(max_size=12))
@settings(max_examples=500)
def test_every_target_is_printable_ascii_below_the_version(url: str) -> None:
    with contextlib.suppress(MalformedBatch):
        (part,) = parsed(batch(get(url)))
        assert part.target.isascii()
        assert part.target.isprintable()
        assert " " not in part.target
        assert part.target.startswith("/v1.0/")


def turned(value: bytes) -> bytes:
    return value.replace(UPSTREAM.encode(), PROXY.encode())


@pytest.mark.parametrize("name", ["Location", "operation-location", "CONTENT-LOCATION", r"L\u006fcation"])
def test_a_location_among_a_part_s_headers_leads_back_and_no_other_byte_changes(name: str) -> None:
    before = '{ "headers":{"a":null,"%s" : "%s" ,"b":"%s"},"status":202, "id":"1"}'
    link = f"{UPSTREAM}/v1.0/operations/1"
    (response,) = parse_batch_response(
        (b'{"responses":[' + (before % (name, link, link)).encode() + b"]}").replace(b"//", rb"\/\/")
    )
    after = (before % (name, f"{PROXY}/v1.0/operations/1", "?")).replace("?", link.replace("//", r"\/\/"))
    assert response.relocated(turned).raw == after.encode()


def test_a_part_without_a_location_of_the_upstream_s_stays_the_very_object() -> None:
    text = b'{"responses":[{"id":"1","status":302,"headers":{"Location":"https://cdn.example/x"}}]}'
    (response,) = parse_batch_response(text)
    assert response.relocated(turned) is response


@pytest.mark.parametrize(
    "coded", ["eyJhIjoxfQ==", "eyJhIjoxfQ", "eyJh\\nIjox fQ==", "\\teyJhIjoxfQ= =\\r\\n", "eyJhIjoxfQ===="]
)
def test_a_body_in_base64_is_read_as_any_decoder_does(coded: str) -> None:
    assert as_if_alone(f'"{coded}"'.encode()) == b'{"a":1}'


def test_a_string_that_is_no_base64_is_the_text_itself() -> None:
    assert as_if_alone(b'"{\\"a\\":1}"') == b'{"a":1}'
