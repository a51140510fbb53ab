"""Tests of links in responses: links that the proxy rewrites to itself, and links that stay."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.server.content.links import LinkRewriter

GRAPH_BASE = b"https://graph.microsoft.com"
GRAPH = LinkRewriter(GRAPH_BASE, b"http://127.0.0.1:8080")
LOCAL = LinkRewriter(b"http://127.0.0.1:9000/graph", b"https://proxy.example")

# Content of a long body: some members are like the names that count, some are not valid UTF-8.
MANY = [b" " * 10_000, b'["L","Lin","Link","nextLinks","\xff"] ' * 300]


@pytest.mark.parametrize(
    ("body", "rewritten"),
    [
        (
            b'{"@odata.nextLink":"https://graph.microsoft.com/v1.0/users?$skiptoken=a%2Fb"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080/v1.0/users?$skiptoken=a%2Fb"}',
        ),
        (
            b'{"@odata.deltaLink" : "https://graph.microsoft.com/v1.0/users/delta()?$deltatoken=x"}',
            b'{"@odata.deltaLink" : "http://127.0.0.1:8080/v1.0/users/delta()?$deltatoken=x"}',
        ),
        (
            b'{"value":[{"members@odata.nextLink":\n"https://graph.microsoft.com/beta/groups"}]}',
            b'{"value":[{"members@odata.nextLink":\n"http://127.0.0.1:8080/beta/groups"}]}',
        ),
        (
            b'{"responses":[{"id":"1","body":{"@odata.nextLink":"https://graph.microsoft.com/v1.0/a"}}]}',
            b'{"responses":[{"id":"1","body":{"@odata.nextLink":"http://127.0.0.1:8080/v1.0/a"}}]}',
        ),
        (
            b'[{"@odata.nextLink":"https://graph.microsoft.com/a","@odata.deltaLink":"https://graph.microsoft.com/b"}]',
            b'[{"@odata.nextLink":"http://127.0.0.1:8080/a","@odata.deltaLink":"http://127.0.0.1:8080/b"}]',
        ),
        # the other bytes
        (
            b'{"@odata.nextLink":"https://graph.microsoft.com\\/v1.0\\/users?\\u0024top=1&x=\\"\\u00e6"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080\\/v1.0\\/users?\\u0024top=1&x=\\"\\u00e6"}',
        ),
        # other spellings of the same base
        (
            b'{"@odata.nextLink":"HTTPS://Graph.Microsoft.COM/v1.0"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080/v1.0"}',
        ),
        (
            b'{"@odata.nextLink":"https://graph.microsoft.com:443/x"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080/x"}',
        ),
        (
            b'{"@odata.nextLink":"https:\\/\\/graph.microsoft.com\\/x"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080\\/x"}',
        ),
        (
            b'{"@odata.nextLink":"https:\\u002F\\u002fgr\\u0061ph.microsoft.c\\u006Fm\\u002fx"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080\\u002fx"}',
        ),
        (
            b'{"@odata.nextLink":"https://graph.microsoft.com?x"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080?x"}',
        ),
        (
            b'{"@odata.nextLink":"https://graph.microsoft.com#x"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080#x"}',
        ),
        (
            b'{"@odata.nextLink":"https://graph.microsoft.com"}',
            b'{"@odata.nextLink":"http://127.0.0.1:8080"}',
        ),
        # other spellings of the name
        (
            b'{"\\u0040odata.nextL\\u0069nk":"https://graph.microsoft.com/x"}',
            b'{"\\u0040odata.nextL\\u0069nk":"http://127.0.0.1:8080/x"}',
        ),
        (
            b'{"m\\u0065mbers@odata.nextLink":"https://graph.microsoft.com/x"}',
            b'{"m\\u0065mbers@odata.nextLink":"http://127.0.0.1:8080/x"}',
        ),
        (
            b'{"@odata.NextLink":"https://graph.microsoft.com/x"}',
            b'{"@odata.NextLink":"http://127.0.0.1:8080/x"}',
        ),
        (
            b'{"@odata.\\u0044eltaLink":"https://graph.microsoft.com/x"}',
            b'{"@odata.\\u0044eltaLink":"http://127.0.0.1:8080/x"}',
        ),
    ],
)
def test_a_link_that_an_sdk_follows_leads_to_the_proxy(body: bytes, rewritten: bytes) -> None:
    assert GRAPH.rewrite(body) == rewritten
    for many in MANY:
        assert GRAPH.rewrite(many + body + many) == many + rewritten + many


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"value":[]}',
        b'{"@odata.context":"https://graph.microsoft.com/v1.0/$metadata#users"}',
        b'{"@odata.id":"https://graph.microsoft.com/v1.0/users/1","uploadUrl":"https://graph.microsoft.com/x"}',
        b'{"nextLink":"https://graph.microsoft.com/x"}',
        b'{"@odata.nextLinks":"https://graph.microsoft.com/x"}',
        b'{"@ODATA.nextlink":"https://graph.microsoft.com/x"}',
        b'{"xodata.nextLink":"https://graph.microsoft.com/x"}',
        b'{"@odata.nextLink":"https://graph.microsoft.com.evil.example/x"}',
        b'{"@odata.nextLink":"https://graph.microsoft.com@evil.example/x"}',
        b'{"@odata.nextLink":"https://graph.microsoft.com:8443/x"}',
        b'{"@odata.nextLink":"https://graph.microsoft.com:4430/x"}',
        b'{"@odata.nextLink":"https://graphXmicrosoft.com/x"}',
        b'{"@odata.nextLink":"https://evil.example/https://graph.microsoft.com/x"}',
        b'{"@odata.nextLink":"/v1.0/users"}',
        b'{"@odata.nextLink":["https://graph.microsoft.com/x"]}',
        b'{"a":"\\"@odata.nextLink\\":\\"https://graph.microsoft.com/x\\""}',
        b'{"a":"@odata.nextLink","b":"https://graph.microsoft.com/x"}',
        b'["@odata.nextLink","https://graph.microsoft.com/x"]',
        b'{"\\\\u0040odata.next\\\\u004cink":"https://graph.microsoft.com/x"}',
    ],
)
def test_everything_else_stays(body: bytes) -> None:
    assert GRAPH.rewrite(body) is None
    assert all(GRAPH.rewrite(many + body + many) is None for many in MANY)


@pytest.mark.parametrize("padding", [0, 100, 20_000])
@pytest.mark.parametrize(
    "document",
    [
        b'{"d":{"results":[{"id":1%b}],"__next":"https://graph.microsoft.com/v1.0/users?$skiptoken=1"}}',
        b'{"d" : {"__next": "https://graph.microsoft.com/v1.0/users?$skiptoken=1", "results":[{"id":1%b}]}}',
        b'\xef\xbb\xbf{\r\n"d":{"a":1%b,"__next":\t"https:\\/\\/GRAPH.microsoft.com/v1.0/x"}}',
        b'{"d":{"a":1%b,"__\\u006eext":"https://graph.microsoft.com/v1.0/x"}}',
    ],
)
def test_the_next_link_of_verbose_json_leads_to_the_proxy(document: bytes, padding: int) -> None:
    body = document % (b"," + b" " * padding + b'"__nexus":"https://graph.microsoft.com/x"')
    rewritten = GRAPH.rewrite(body)
    assert rewritten is not None
    assert b"http://127.0.0.1:8080/v1.0/" in rewritten
    assert json.loads(rewritten.removeprefix(b"\xef\xbb\xbf"))["d"]
    assert b'"__nexus":"https://graph.microsoft.com/x"' in rewritten
    for size in (1, 7, 64, 4099):
        stream = GRAPH.stream()
        pieces = [stream.feed(body[at : at + size]) for at in range(0, len(body), size)]
        assert b"".join([*pieces, stream.finish()]) == rewritten


def test_a_base_with_port_and_path() -> None:
    assert LOCAL.rewrite(b'{"@odata.nextLink":"http://127.0.0.1:9000/graph/v1.0"}') == (
        b'{"@odata.nextLink":"https://proxy.example/v1.0"}'
    )
    for other in [
        b"http://127.0.0.1:9000/Graph/x",
        b"http://127.0.0.1:9000/graphs",
        b"http://127.0.0.1/graph/x",
    ]:
        assert LOCAL.rewrite(b'{"@odata.nextLink":"' + other + b'"}') is None


def test_a_backslash_in_the_address_of_the_proxy_is_no_group() -> None:
    rewriter = LinkRewriter(b"https://g", rb"https://p\1")
    assert rewriter.header(b"https://g/x") == rb"https://p\1/x"


@pytest.mark.parametrize(
    ("value", "rewritten"),
    [
        (b"https://graph.microsoft.com/v1.0/x?y#z", b"http://127.0.0.1:8080/v1.0/x?y#z"),
        (b"HTTPS://GRAPH.microsoft.com:443/V1.0", b"http://127.0.0.1:8080/V1.0"),
        (b"https://graph.microsoft.com", b"http://127.0.0.1:8080"),
        (b"https://graph.microsoft.com.evil.example/", b"https://graph.microsoft.com.evil.example/"),
        (b"https://graph.microsoft.com@evil.example/", b"https://graph.microsoft.com@evil.example/"),
        (b"/v1.0/users", b"/v1.0/users"),
        (b"x https://graph.microsoft.com/", b"x https://graph.microsoft.com/"),
        (b"", b""),
    ],
)
def test_headers_that_lead_to_the_upstream_lead_to_the_proxy(value: bytes, rewritten: bytes) -> None:
    assert GRAPH.header(value) == rewritten


REGIONAL = (b"https://eu.graph.example", b"https://xn--bcher-kva.example")


@pytest.mark.parametrize(
    "address",
    [
        "http://graph.microsoft.com",
        "http://graph.microsoft.com:80",
        "https://graph.microsoft.com:0443",
        "https://graph.microsoft.com.",
        "https://graph.microsoft.com.:443",
        "https://gr%61ph.microsoft%2Ecom",
        "HTTPS:\\/\\/GRAPH.MICROSOFT.COM",
        "https\\u003a\\u002F\\u002fgraph\\u002emicrosoft.com",
        "https://eu.graph.example",
        "HTTPS://EU.GRAPH.EXAMPLE:443",
        "https://xn--bcher-kva.example",
        "https://b\u00fccher.example",
        "https://b\\u00fccher.example",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "@odata.nextLink",
        "@odata.deltaLink",
        "members@odata.nextLink",
        "@nextLink",
        "@deltaLink",
        "members@nextLink",
        "odata.nextLink",
        "odata.deltaLink",
        "\\u006fdata.nextLink",
        "\\u0040nextLink",
    ],
)
def test_every_spelling_of_every_address_leads_to_the_proxy(address: str, name: str) -> None:
    foreign: list[str] = []
    rewriter = LinkRewriter(GRAPH_BASE, b"https://proxy.example", REGIONAL, foreign.append)
    body = f'{{"value":[],"{name}":"{address}/v1.0/users?$skiptoken=a%2Fb"}}'.encode()
    rewritten = f'{{"value":[],"{name}":"https://proxy.example/v1.0/users?$skiptoken=a%2Fb"}}'.encode()
    for many in (b"", *MANY):
        assert rewriter.rewrite(many + body) == many + rewritten
    assert streamed(rewriter, [bytes([byte]) for byte in body]) == rewritten
    assert foreign == []


@pytest.mark.parametrize(
    ("link", "host"),
    [
        ("https://us.graph.example/v1.0/users", "us.graph.example"),
        ("https://graph.microsoft.com.evil.example/x", "graph.microsoft.com.evil.example"),
        ("https://graph.microsoft.com:8443/x", "graph.microsoft.com:8443"),
        ("https:\\/\\/Us.Graph.Example\\/x", "us.graph.example"),
        ("http://us.graph.example?x", "us.graph.example"),
    ],
)
@pytest.mark.parametrize("name", ["@odata.nextLink", "odata.nextLink", "x@deltaLink"])
def test_a_link_past_the_proxy_stays_and_is_reported(link: str, host: str, name: str) -> None:
    foreign: list[str] = []
    rewriter = LinkRewriter(b"https://graph.microsoft.com", b"https://proxy.example", (), foreign.append)
    assert rewriter.rewrite(f'{{"{name}":"{link}"}}'.encode()) is None
    assert foreign == [host]


@pytest.mark.parametrize(
    "body",
    [
        b'{"@odata.nextLink":"/v1.0/users"}',
        b'{"@odata.nextLink":"users?$skiptoken=https://us.graph.example/"}',
        b'{"@odata.nextLink":"https://graph.microsoft.com/x"}',
        b'{"@odata.nextLink":"https://proxy.example/x"}',
        b'{"@odata.context":"https://us.graph.example/x","uploadUrl":"https://us.graph.example/x"}',
        b'{"xodata.nextLink":"https://us.graph.example/x","nextLink":"https://us.graph.example/x"}',
    ],
)
def test_other_links_are_not_reported(body: bytes) -> None:
    foreign: list[str] = []
    LinkRewriter(b"https://graph.microsoft.com", b"https://proxy.example", (), foreign.append).rewrite(body)
    assert foreign == []


@pytest.mark.parametrize(
    ("value", "rewritten"),
    [
        (b'<https://graph.microsoft.com/v1.0/x>; rel="next"', b'<http://127.0.0.1:8080/v1.0/x>; rel="next"'),
        (
            b'<https://docs.example/a>; rel="help", <HTTP://graph.microsoft.com.:80/x>; rel=next',
            b'<https://docs.example/a>; rel="help", <http://127.0.0.1:8080/x>; rel=next',
        ),
        (b"</a>", b"</a>"),
        (b"//graph.microsoft.com/x", b"http://127.0.0.1:8080/x"),
        (b"http://graph.microsoft.com/x", b"http://127.0.0.1:8080/x"),
        (b"https://gr%61ph.microsoft.com./x", b"http://127.0.0.1:8080/x"),
        (b"///graph.microsoft.com/x", b"///graph.microsoft.com/x"),
    ],
)
def test_every_spelling_in_a_header_leads_to_the_proxy(value: bytes, rewritten: bytes) -> None:
    assert GRAPH.header(value) == rewritten


STREAMED = (
    b'{"@odata.context":"https://graph.microsoft.com/v1.0/$metadata","mail":"ada@odata.example","x":"\\\\@",'
    b'"@odata.nextLink" : "https:\\/\\/graph.microsoft.com\\u002fusers","\\u0040odata.delt\\u0061Link":'
    b'"https://gr\\u0061ph.microsoft.com:443/x","y@odata.nextLink":"https://graph.microsoft.com.evil/",'
    b'"z@odata.nextLink":"https://graph.microsoft.com"}'
)


def streamed(rewriter: LinkRewriter, chunks: list[bytes]) -> bytes:
    stream = rewriter.stream()
    return b"".join([stream.feed(chunk) for chunk in chunks]) + stream.finish()


@pytest.mark.parametrize(("padding", "space"), [(0, 1), (3000, 1), (3000, 256)])
def test_a_stream_split_anywhere_is_rewritten_like_the_whole(padding: int, space: int) -> None:
    streamed_body = STREAMED.replace(b" : ", b" " * space + b":" + b"\n" * space)
    body = b" " * padding + streamed_body + b" " * padding
    whole = GRAPH.rewrite(body)
    assert whole is not None
    assert whole.count(b"127.0.0.1") == 3
    for position in range(padding, padding + len(streamed_body) + 1):
        assert streamed(GRAPH, [body[:position], body[position:]]) == whole
    assert streamed(GRAPH, [bytes([byte]) for byte in body]) == whole


pieces = st.sampled_from(
    [
        b"@",
        b"@odata.",
        b"\\u0040",
        b"odata.",
        b"next",
        b"Link",
        b'"',
        b":",
        b" ",
        b"\n",
        b"https:",
        b"//",
        b"\\/",
        b"\\",
        b"graph.microsoft.com",
        b":443",
        b"/x",
        b"\\u002f",
        b'@odata.nextLink":"https://graph.microsoft.com',
        b"u0040",
        b"\\u006c",
        b'delt\\u0061Link" : "https:\\/\\/',
        b" " * 300,
        b"a" * 800,
    ]
)


@given(st.lists(pieces, max_size=30).map(b"".join), st.lists(st.integers(1, 900), min_size=1))
@settings(max_examples=500)
def test_any_chunks_of_any_text_are_rewritten_like_the_whole(text: bytes, sizes: list[int]) -> None:
    chunks, position, slot = [], 0, 0
    while position < len(text):
        chunks.append(text[position : position + sizes[slot % len(sizes)]])
        position, slot = position + sizes[slot % len(sizes)], slot + 1
    whole = GRAPH.rewrite(text)
    assert streamed(GRAPH, chunks) == (text if whole is None else whole)


def test_a_stream_holds_back_little() -> None:
    stream = GRAPH.stream()
    sent = 0
    for _ in range(100):
        sent += len(stream.feed(b'"@odata.nextLink"' + b" " * 500))
    assert sent > 100 * 517 - 2000
    assert LinkRewriter(b"https://g", b"https://p").stream().feed(b'{"value":[') == b'{"value":['


json_texts = st.recursive(
    st.none() | st.text(max_size=5) | st.sampled_from(["https://graph.microsoft.com/x", "@odata.nextLink"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["@odata.nextLink", "a@odata.deltaLink", "b", "@odata.id"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


def turned(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {name: turned(member, name) for name, member in value.items()}
    if isinstance(value, list):
        return [turned(element) for element in value]
    if name.endswith("Link") and value == "https://graph.microsoft.com/x":
        return "http://127.0.0.1:8080/x"
    return value


@given(json_texts, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n")]))
def test_only_values_of_these_names_change(value: object, separators: tuple[str, str]) -> None:
    body = json.dumps(value, separators=separators).encode()
    rewritten = GRAPH.rewrite(body)
    assert json.loads(body if rewritten is None else rewritten) == turned(value)
