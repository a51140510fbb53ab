"""Tests of HAR files: read without their credentials, evaluated against rules, used to suggest rules."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC
from typing import Any, Final

import pytest

from controlplane.workshop.advice import ruleset_advice
from controlplane.workshop.har import Har, parse_har, with_entries
from controlplane.workshop.har_text import InvalidHar
from controlplane.workshop.har_traffic import Foreseen, foresee, suggest_for
from controlplane.workshop.replay import Outcome, Unclear
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.pure.har_files import SECRETS, entry, har
from tests.pure.test_replay import draft

USERS: Final = {"@odata.context": "x", "value": [{"id": "1", "displayName": "Ada", "mobilePhone": "555"}]}


def only(data: bytes, base: str = "https://graph.microsoft.com") -> Any:
    (exchange,) = parse_har(data, base).exchanges
    return exchange


def test_a_request_is_read_with_its_body_and_its_response() -> None:
    exchange = only(har(entry("/v1.0/users?$top=5", "POST", body={"a": 1}, response=USERS, status=201)))
    assert (exchange.method, exchange.target, exchange.body) == ("POST", "/v1.0/users?$top=5", b'{"a": 1}')
    assert (exchange.response.status, json.loads(exchange.response.body)) == (201, USERS)
    assert (b"ConsistencyLevel", b"eventual") in exchange.headers
    assert exchange.time.isoformat() == "2026-11-21T11:00:00.123000+00:00"
    assert exchange.unknown == {"ip"}


def test_credentials_are_not_kept() -> None:
    read = repr(parse_har(har(entry("/v1.0/users", response=USERS))))
    assert not any(secret in read for secret in SECRETS)


def test_mitmproxy_s_base64_and_a_file_with_a_byte_order_mark_are_read() -> None:
    one = entry("/v1.0/me/photo/$value")
    one["response"]["content"] = {
        "size": 3,
        "text": base64.b64encode(b"\xff\x00\x01").decode(),
        "encoding": "base64",
    }
    assert only(b"\xef\xbb\xbf" + har(one)).response.body == b"\xff\x00\x01"


def test_what_a_browser_did_not_keep_is_unknown() -> None:
    sent, got = entry("/v1.0/users", "POST"), entry("/v1.0/groups")
    sent["request"]["bodySize"] = 17
    got["response"]["content"]["size"] = 99
    first, second = parse_har(har(sent, got)).exchanges
    assert first.unknown == {"ip", "body"}
    assert second.response is not None
    assert getattr(second.response, "unknown") == {"property"}  # noqa: B009 - of a subclass


def test_other_addresses_and_preflights_are_passed_over_and_counted() -> None:
    preflight = entry("/v1.0/users", "OPTIONS")
    preflight["request"]["headers"].append({"name": "Access-Control-Request-Method", "value": "GET"})
    found = parse_har(
        har(
            entry("/v1.0/users"),
            entry("/common/oauth2/v2.0/token", "POST", base="https://login.microsoftonline.com"),
            entry("/v1.0/users", base="https://graph.microsoft.com.evil.example"),
            preflight,
        )
    )
    assert ([one.target for one in found.exchanges], found.elsewhere, found.preflights) == (
        ["/v1.0/users"],
        2,
        1,
    )


@pytest.mark.parametrize(
    ("base", "url", "target"),
    [
        ("https://graph.microsoft.us", "https://GRAPH.microsoft.us:443/v1.0/users", "/v1.0/users"),
        ("http://127.0.0.1:8080/graph/", "http://127.0.0.1:8080/graph/v1.0/me?a=%20b#c", "/v1.0/me?a=%20b"),
        (
            "https://graph.microsoft.com",
            "https://graph.microsoft.com/v1.0/ü x?q=é",
            "/v1.0/%C3%BC%20x?q=%C3%A9",
        ),
    ],
)
def test_the_target_is_what_crossed_the_wire(base: str, url: str, target: str) -> None:
    one = entry("/")
    one["request"]["url"] = url
    assert only(har(one), base).target == target


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a HAR file, which is JSON: the file is empty; export the traffic again"),
        (
            b"<html>",
            "not a HAR file, which is JSON: the file's JSON is invalid at line 1 column 1: expecting value",
        ),
        (
            har(entry("/x")).decode().encode("utf-16"),
            "not a HAR file, which is JSON: the file is UTF-16 text: save it as UTF-8",
        ),
        (
            har(entry("/x")).decode().encode("utf-16-be"),
            "not a HAR file, which is JSON: the file is UTF-16 text: save it as UTF-8",
        ),
        (b"PK\x03\x04...", "not a HAR file but a ZIP archive: unpack it and use the .har file from it"),
        (gzip.compress(b"x" * 100)[:-20], "not a HAR file, which is JSON: "),
        (b'{"log": ' + b"[" * 100_000, "not a HAR file, which is JSON: "),
        (b"[]", "not a HAR file: it has no log.entries; export the traffic as HAR"),
        (b'{"log": {}}', "not a HAR file: it has no log.entries; export the traffic as HAR"),
        (b'{"log": {"entries": null}}', "not a HAR file: it has no log.entries; export the traffic as HAR"),
        (
            b'{"log": {"entries": [{"request": {"method": "GET"}}, null, 7]}}',
            "request.url is missing (entry 1); request is missing (entries 2, 3)",
        ),
        (har(), "no request in the file: record the traffic of the application and export it"),
        (
            har(entry("/x", base="https://a.example"), entry("/x", base="https://a.example")),
            (
                "no request to https://graph.microsoft.com in the file, but to a.example (2): "
                "set the address with"
            ),
        ),
        (
            har(entry("/x", request={"method": "GET", "url": "http://[x"})),
            "request.url is not a URL (entry 1)",
        ),
        (
            har(entry("/x"))[:-120].replace(b"graph.microsoft.com", b"a"),
            "the file was truncated: it ends after ",
        ),
    ],
)
def test_a_file_without_a_request_that_can_be_read_says_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(InvalidHar) as refused:
        parse_har(data)
    assert str(refused.value).startswith(said)


# -- dialects of other programs


def changed(**changes: Any) -> dict[str, Any]:
    """Return a HAR entry for `/v1.0/users/1`, in which the given values replace members of the entry.

    In the name of an argument, `__` separates the names of nested members.
    """
    made = entry("/v1.0/users/1", response={"id": "1"})
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = made
        for parent in parents:
            place = place[parent]
        if value is ...:
            place.pop(name, None)
        else:
            place[name] = value
    return made


LONE: Final = "cut in half \ud83c"
ELSEWHERE: Final = [
    {"request": {"url": "https://a.example/", "method": None, "headers": None}},
    {"request": {"url": "https://a.example/", "headers": [{"name": None}], "bodySize": "12"}},
    {"request": {"url": "https://a.example/"}, "response": {"status": None, "headers": [{"name": "x"}]}},
    {"request": {"url": "https://a.example/"}, "response": {"status": "200", "content": {"text": LONE}}},
    {"request": {"url": "https://a.example/"}, "response": {"content": {"encoding": "base64", "text": "!"}}},
    {"request": {"url": "https://a.example/"}, "startedDateTime": float("nan"), "time": float("inf")},
    {"request": {"url": "https://a.example/"}, "response": {"status": 10**400}},
    {"request": {"url": "data:text/plain,x"}},
    {"request": {"url": "blob:https://graph.microsoft.com/7"}},
    {"request": {"url": "chrome-extension://x/y"}},
    {"request": {"url": "wss://graph.microsoft.com/socket"}},
]
NO_REQUEST: Final = [
    None,
    {},
    {"request": None},
    {"request": {"method": "GET"}},
    {"request": {"method": "GET", "url": None}},
    {"request": {"method": "GET", "url": "https://[::ads/x"}},
    {"request": {"method": "GET", "url": "https://graph.microsoft.com:99999/x"}},
    {"request": {"method": "GET", "url": "//cdn/x"}},
    {"request": {"method": "GET", "url": "/v1.0/users"}},
    {"request": {"method": None, "url": "https://graph.microsoft.com/v1.0/users"}},
    {"request": {"method": "GET", "url": f"https://graph.microsoft.com/{LONE}"}},
    {"request": {"method": "GET", "url": "https://graph.microsoft.com/v1.0/users/[redacted]"}},
    {"request": {"method": "GET", "url": "https://graph.microsoft.com/v1.0/users?$filter=REDACTED"}},
]


@pytest.mark.parametrize("odd", ELSEWHERE)
def test_an_entry_to_another_address_is_never_looked_into(odd: dict[str, Any]) -> None:
    found = parse_har(har(odd, entry("/v1.0/users/1")))
    assert ([one.target for one in found.exchanges], found.elsewhere) == (["/v1.0/users/1"], 1)
    assert found.left_out == ()


@pytest.mark.parametrize("odd", NO_REQUEST)
def test_an_entry_without_a_request_is_counted_and_the_others_are_used(odd: Any) -> None:
    found = parse_har(har([entry("/v1.0/users/1"), odd]))
    assert [one.target for one in found.exchanges] == ["/v1.0/users/1"]
    (remark,) = found.left_out
    assert (remark.count, remark.entries) == (1, (2,))
    assert with_entries(remark) == f"{remark.what} (entry 2)"


def test_many_of_one_kind_are_one_remark() -> None:
    found = parse_har(har([entry("/v1.0/users/1"), *[{"request": None}] * 7]))
    assert [*map(with_entries, found.left_out)] == ["request is missing (entries 2, 3, 4, 5, 6 and 2 more)"]


WHOLE: Final = har(entry("/v1.0/users/1"), entry("/v1.0/users/2"))
ENTRY: Final = json.dumps(entry("/v1.0/users/1")).encode()


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(WHOLE),
        b"\xef\xbb\xbf" + WHOLE,
        WHOLE + b"\n\x00\x00\x00",
        b"[" + WHOLE + b"]",
        b'{"entries": [' + ENTRY + b", " + ENTRY + b"]}",
        b"[" + ENTRY + b", " + ENTRY + b"]",
        ENTRY + b"\n" + ENTRY + b"\n",
        WHOLE[:-2] + b",]}}",
        WHOLE.replace(b'"time": 12', b'"time": NaN', 1),
        WHOLE.replace(b'"time": 12', b'"time": -Infinity, "x": 1' + b"0" * 5000, 1),
        WHOLE.replace(b'"statusText": ""', b'"statusText": "\xff\x00\t"', 1),
    ],
)
def test_every_spelling_of_a_file_is_read(data: bytes) -> None:
    found = parse_har(data)
    assert ([one.number for one in found.exchanges], found.left_out) == ([1, 2], ())


def test_of_a_file_that_was_cut_off_the_whole_entries_are_used() -> None:
    found = parse_har(WHOLE[:-300])
    assert [one.target for one in found.exchanges] == ["/v1.0/users/1"]
    assert [*map(with_entries, found.left_out)] == [
        f"the file was truncated: it ends after {len(WHOLE) - 300:,} characters (entry 2)"
    ]


def test_of_a_file_that_is_damaged_what_comes_before_is_used() -> None:
    found = parse_har(WHOLE.replace(b"users/2", b'users/"2'))
    assert [one.target for one in found.exchanges] == ["/v1.0/users/1"]
    (remark,) = found.left_out
    assert remark.what.startswith("the file's JSON is invalid at line 1 column ")


@pytest.mark.parametrize(
    "time",
    [..., None, "", "yesterday", float("nan"), 12, True, [], {}, "2026-11-21T11:00:00", "2026-11-21",
     "0001-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"],
)  # fmt: skip
def test_a_time_that_can_t_be_read_is_unknown(time: Any) -> None:
    (exchange,) = (found := parse_har(har(changed(startedDateTime=time)))).exchanges
    assert exchange.time is None
    assert exchange.unknown == {"ip", "time"}
    (remark,) = found.unknown
    assert remark.what.startswith("the time ")
    text = suggest_for(found.exchanges, "new").yaml
    assert "  # 1 request\n" in text


@pytest.mark.parametrize(
    "time",
    ["2026-11-21T11:00:00Z", "2026-11-21 11:00:00.000000000+00:00", "2026-11-21t12:00:00.0000000+0100",
     1795258800, 1795258800000, 1795258800.0, "1795258800000", "Sat, 21 Nov 2026 11:00:00 GMT"],
)  # fmt: skip
def test_every_spelling_of_a_time_is_read(time: Any) -> None:
    moment = only(har(changed(startedDateTime=time))).time
    assert moment.astimezone(UTC).isoformat() == "2026-11-21T11:00:00+00:00"


def test_only_a_time_gate_asks_for_the_time() -> None:
    rules = """
- {id: office, match: {path: [/v1.0/users/1]}, time: {days: [mon], from: "08:00", to: "18:00"},
   verdict: allow}
- {id: any, match: {path: [/v1.0/users/2]}, verdict: allow}
"""
    entries = changed(startedDateTime=...), entry("/v1.0/users/2", startedDateTime=None)
    first, second = foreseen(rules, *entries)
    assert first.outcome == Unclear(
        (Outcome("block", "default"), Outcome("allow", "office")), ("the time of the request",)
    )
    assert second.outcome == Outcome("allow", "any")


B64: Final = "eyJpZCI6IjEi\r\nLCJkaXNwbGF5TmFt\n  ZSI6IktpbSJ9"
KIM: Final = b'{"id":"1","displayName":"Kim"}'
JSON: Final = "application/json"


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ({"size": 30, "mimeType": JSON, "encoding": "base64", "text": B64}, KIM),
        ({"text": B64, "encoding": "BASE64"}, KIM),
        ({"text": "data:application/json;base64,e30=", "encoding": "base64"}, b"{}"),
        ({"text": '{"id": 1}'}, b'{"id": 1}'),
        ({"size": -1, "text": '{"id": 1}', "encoding": "utf-8"}, b'{"id": 1}'),
        ({"size": 6, "text": "<html>", "mimeType": JSON}, b"<html>"),
        ({"size": -1, "text": "<html>", "mimeType": "text/html"}, b"<html>"),
        ({"size": 0, "text": "", "mimeType": "text/plain"}, None),  # known to be empty
    ],
)
def test_a_recorded_body_is_known(content: Any, body: bytes | None) -> None:
    exchange = only(har(changed(response__content=content)))
    assert (exchange.response.body, exchange.response.unknown) == (body, frozenset())


@pytest.mark.parametrize(
    "content",
    [
        ...,
        None,
        {},
        "text",
        {"size": -1},
        {"size": 0},
        {"size": 30, "text": ""},
        {"size": 0, "text": "", "mimeType": JSON},
        {"size": 30, "text": None},
        {"text": {"id": "1"}},
        {"text": "[redacted]"},
        {"size": 10, "text": "[redacted]", "mimeType": JSON},
        {"size": 10, "text": "<omitted>"},
        {"text": "REMOVED BEFORE SHARING", "encoding": "base64", "size": -1},
        {"text": "redacted", "encoding": "base64"},
        {"text": base64.b64encode(b"[redacted]").decode(), "encoding": "base64", "size": 10},
        {"text": "****", "size": 4},
        {"text": "not base64!", "encoding": "base64"},
        {"text": "e30=", "encoding": "rot13"},
        {"text": LONE, "size": 13},
        {"text": '{"id": "1", "displ', "size": 900, "mimeType": JSON},
        {"text": '{"id": "1", "displ', "mimeType": JSON},
        {"text": "{}", "size": 90_000},
        {"text": "\x1f\ufffd\x08\x00", "size": 400, "mimeType": JSON},
        {"text": base64.b64encode(gzip.compress(b"{}")).decode(), "encoding": "base64", "mimeType": JSON},
    ],
)
def test_a_body_that_was_not_recorded_is_unknown_and_not_empty(content: Any) -> None:
    rules = """
- {id: secret, when: response, match: {path: ["/v1.0/users/{id}"]},
   conditions: [{property: secret, exists: true}], verdict: block}
- {id: users, match: {path: ["/v1.0/users/{id}"]}, verdict: allow}
"""
    read = parse_har(har(changed(response__content=content)))
    if content != {"size": 0}:  # most recorders write this if there was no body
        assert [remark.what.rpartition(" body ")[0] for remark in read.unknown] == ["the response's"]
    (found,) = foreseen(rules, changed(response__content=content))
    assert isinstance(found.outcome, Unclear)
    assert found.outcome.missing == ("the response's secret",)


@pytest.mark.parametrize("status", [0, None, -1, "", "error", 10**400, True, ...])
def test_a_response_that_did_not_come_is_unknown(status: Any) -> None:
    rules = """
- {id: gone, when: response, match: {path: ["/v1.0/users/{id}"]}, conditions: [{status: 404}],
   verdict: block}
- {id: users, match: {path: ["/v1.0/users/{id}"]}, verdict: allow}
"""
    for one in (changed(response__status=status), changed(response=None), changed(response={})):
        assert only(har(one)).response is None
        (found,) = foreseen(rules, one)
        assert isinstance(found.outcome, Unclear)


@pytest.mark.parametrize("status", ["200", 200.0, "200 OK"])
def test_a_status_in_another_type_is_read(status: Any) -> None:
    assert only(har(changed(response__status=status))).response.status == 200


@pytest.mark.parametrize(
    ("method", "changes", "is_known"),
    [
        ("GET", {"bodySize": -1}, True),
        ("GET", {"bodySize": ...}, True),
        ("POST", {"bodySize": 0}, True),
        ("POST", {"bodySize": -1}, False),
        ("POST", {"bodySize": ...}, False),
        ("POST", {"bodySize": "17"}, False),
        ("POST", {"bodySize": 0, "postData": {"mimeType": JSON, "text": ""}}, False),
        ("POST", {"postData": {"mimeType": JSON, "text": None}}, False),
        ("POST", {"postData": {"params": [{"name": "a", "value": "b"}]}}, False),
        ("POST", {"postData": {"text": "[redacted]"}, "bodySize": 10}, False),
        ("POST", {"postData": {"text": '{"a":'}, "bodySize": 99}, False),
        ("POST", {"postData": '{"a": 1}'}, True),
        ("POST", {"postData": {"text": "eyJhIjogMX0=", "_encoding": "base64"}}, True),
        ("POST", {"headers": [{"name": "Content-Length", "value": "0"}], "bodySize": -1}, True),
    ],
)
def test_what_was_sent_is_known_or_unknown(method: str, changes: dict[str, Any], is_known: bool) -> None:
    one = changed(request__method=method, **{f"request__{name}": value for name, value in changes.items()})
    assert ("body" in only(har(one)).unknown) is not is_known


HEADER: Final = """
- {id: eventual, match: {path: [/v1.0/users/1]}, conditions: [{header: ConsistencyLevel, equals: eventual}],
   verdict: allow}
"""


@pytest.mark.parametrize(
    "headers",
    [
        ..., None, [], "x", [{"value": "x"}], [{"name": None, "value": "x"}],
        [{"name": "ConsistencyLevel"}],
        [{"name": "consistencylevel", "value": None}],
        [{"name": "ConsistencyLevel", "value": "[redacted]"}],
        [{"name": "ConsistencyLevel", "value": "***"}],
        [{"name": "ConsistencyLevel", "value": LONE}],
        {"ConsistencyLevel": None},
    ],
)  # fmt: skip
def test_a_header_that_was_not_recorded_is_unknown(headers: Any) -> None:
    (found,) = foreseen(HEADER, changed(request__headers=headers))
    assert isinstance(found.outcome, Unclear)
    assert found.outcome.missing == ("header ConsistencyLevel",)


@pytest.mark.parametrize(
    "headers",
    [
        {"ConsistencyLevel": "eventual"},
        {"consistencyLevel": ["eventual"], "Age": 7},
        [{"name": "ConsistencyLevel", "value": "eventual"}, {"name": "Etag", "value": None}],
    ],
)
def test_a_header_of_another_value_is_known(headers: Any) -> None:
    (found,) = foreseen(HEADER, changed(request__headers=headers))
    assert found.outcome == Outcome("allow", "eventual")


def test_a_masked_credential_is_known_to_be_there_and_no_more() -> None:
    rules = """
- {id: bearer, match: {path: [/v1.0/users/1]}, conditions: [{header: Authorization, prefix: "Bearer "}],
   verdict: allow}
- {id: signed, match: {path: [/v1.0/users/2]}, conditions: [{header: Authorization, exists: true}],
   verdict: allow}
"""
    first, second = foreseen(rules, entry("/v1.0/users/1"), entry("/v1.0/users/2"))
    assert isinstance(first.outcome, Unclear)
    assert second.outcome == Outcome("allow", "signed")


def test_a_query_that_was_recorded_apart_belongs_to_the_target() -> None:
    query = [{"name": "$select", "value": "id,mail"}, {"name": "$filter", "value": "a eq 'b&c'"}, {"name": 7}]
    assert only(har(changed(request__queryString=query))).target == (
        "/v1.0/users/1?$select=id,mail&$filter=a%20eq%20'b%26c'"
    )
    whole = changed(request__queryString=query, request__url="https://graph.microsoft.com/v1.0/me?$top=1")
    assert only(har(whole)).target == "/v1.0/me?$top=1"


def test_a_query_value_that_was_redacted_is_masked() -> None:
    one = changed(request__url="https://graph.microsoft.com/v1.0/me?sig=[REDACTED]&$top=1")
    assert only(har(one)).target == "/v1.0/me?sig=***&$top=1"


def test_a_url_that_is_only_a_path_is_read_with_its_host() -> None:
    one = changed(request__url="/v1.0/me")
    assert only(har(one)).target == "/v1.0/me"


def test_several_addresses_of_the_graph_api_are_read() -> None:
    through = entry("/v1.0/me", base="https://proxy.example:8443")
    bases = "https://graph.microsoft.com", "https://proxy.example:8443/"
    found = parse_har(har(through, entry("/v1.0/users/1")), *bases)
    assert [one.target for one in found.exchanges] == ["/v1.0/me", "/v1.0/users/1"]


def test_the_requests_of_a_batch_that_was_not_recorded_are_said_to_be_unknown() -> None:
    one = entry("/v1.0/$batch", "POST")
    one["request"]["bodySize"] = 400
    found = parse_har(har(one))
    assert "the requests within the $batch are not known" in [remark.what for remark in found.unknown]


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(InvalidHar, match="is not an address of the graph API: write an address like"):
        parse_har(har(entry("/x")), "graph.microsoft.com")


# -- evaluation


def foreseen(rules: str, *entries: dict[str, Any]) -> list[Foreseen]:
    return list(foresee(draft(rules), parse_har(har(*entries)).exchanges))


def test_headers_bodies_and_responses_decide() -> None:
    rules = """
- {id: secret, when: response, match: {path: [/v1.0/groups]}, conditions: [{property: x, equals: 1}],
   verdict: block}
- {id: eventual, match: {path: [/v1.0/groups]}, conditions: [{header: ConsistencyLevel, equals: eventual}],
   verdict: allow}
- {id: titles, match: {methods: [PATCH], path: ["/v1.0/users/{id}"]},
   conditions: [{body: jobTitle, exists: true}], verdict: allow}
"""
    found = foreseen(
        rules,
        entry("/v1.0/groups", response={"x": 2}),
        entry("/v1.0/groups", response={"x": 1}),
        entry("/v1.0/users/ada", "PATCH", body={"jobTitle": "x"}),
        entry("/v1.0/users/ada", "PATCH", body={"other": "x"}),
    )
    assert [one.outcome for one in found] == [
        Outcome("allow", "eventual"),
        Outcome("block", "secret"),
        Outcome("allow", "titles"),
        Outcome("block", "default"),
    ]


HIDE: Final = """
- {id: hide, match: {path: [/v1.0/users]}, verdict: filter, transforms: {strip_properties: [mobilePhone]}}
"""


def test_the_response_is_shown_as_the_application_gets_it() -> None:
    (found,) = foreseen(HIDE, entry("/v1.0/users", response=USERS))
    assert found.outcome == Outcome("filter", "hide", ("strip:mobilePhone",))
    assert json.loads(found.body or b"")["value"] == [{"id": "1", "displayName": "Ada"}]
    assert found.removed == ("mobilePhone",)


def test_a_response_that_can_t_be_filtered_would_be_withheld() -> None:
    (found,) = foreseen(HIDE, entry("/v1.0/users", response="<html>"))
    assert (found.outcome, found.body) == (Outcome("refused", "filterFailed"), None)


def test_the_client_s_address_is_unknown_and_makes_it_unclear_only_where_it_decides() -> None:
    rules = "- {id: office, match: {path: [/v1.0/users]}, ip: {in: [10.0.0.0/8]}, verdict: allow}"
    (found,) = foreseen(rules, entry("/v1.0/users"))
    assert found.outcome == Unclear(
        (Outcome("block", "default"), Outcome("allow", "office")), ("the client's address",)
    )


def test_parts_of_a_batch_are_evaluated_one_by_one() -> None:
    batch = {
        "requests": [
            {"id": "a", "method": "GET", "url": "/users"},
            {"id": "b", "method": "DELETE", "url": "/users/ada"},
        ]
    }
    responses = {"responses": [{"id": "a", "status": 200, "headers": {}, "body": USERS}]}
    found = foreseen(HIDE, entry("/v1.0/$batch", "POST", body=batch, response=responses))
    assert [
        (one.exchange.part, one.exchange.target, one.outcome.verdict)
        for one in found
        if isinstance(one.outcome, Outcome)
    ] == [
        ("", "/v1.0/$batch", "allow"),
        ("a", "/v1.0/users", "filter"),
        ("b", "/v1.0/users/ada", "block"),
    ]
    assert found[1].removed == ("mobilePhone",)


# -- suggested rules


def suggested(*entries: dict[str, Any]) -> tuple[str, Har]:
    read = parse_har(har(*entries))
    return suggest_for(read.exchanges, "new").yaml, read


SELECTED: Final = {"value": [{"id": "1", "displayName": "Ada"}]}


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([entry("/v1.0/users?$select=displayName", response=SELECTED)], ("displayName", "id")),
        (
            [
                entry("/v1.0/users?$select=displayName", response={"value": []}),
                entry("/v1.0/users?$select=Mail,id", response={"value": [{"mail": "x"}]}),
            ],
            ("displayName", "id", "Mail"),
        ),
        ([entry("/v1.0/users", response=SELECTED)], None),
        ([entry("/v1.0/users?$select=id", response=SELECTED), entry("/v1.0/users", response=SELECTED)], None),
        ([entry("/v1.0/users?$select=id&$expand=manager", response=SELECTED)], None),
        ([entry("/v1.0/users?$select=id&$filter=mail eq 'x'", response=SELECTED)], None),
        ([entry("/v1.0/users?$select=id")], None),
        ([entry("/v1.0/users?$select=id", response="no JSON")], None),
    ],
)
def test_what_is_always_selected_is_all_that_is_let_through(
    entries: list[dict[str, Any]], allowed: tuple[str, ...] | None
) -> None:
    text, _ = suggested(*entries)
    (rule,) = parse_ruleset(text).rules
    assert (None if rule.transforms is None else rule.transforms.allow) == allowed
    assert rule.verdict == ("allow" if allowed is None else "filter")


def test_a_suggestion_leaves_all_of_its_traffic_as_it_was() -> None:
    text, read = suggested(
        entry("/v1.0/users?$select=displayName,id&$top=5", response=SELECTED),
        entry("/v1.0/users/delta?$select=id", response={"value": [{"id": "1"}], "@odata.deltaLink": "x"}),
        entry("/v1.0/users/ada@contoso.com?$select=id", response={"id": "1"}),
        entry("/v1.0/users/ada@contoso.com/photo/$value", response="binary"),
        entry("/v1.0/users/ada@contoso.com/displayName", response={"value": "Ada"}),
        entry("/v1.0/users/7/manager?$select=id", response={"id": "2"}),
        entry("/v1.0/me?$select=displayName", response={"displayName": "Ada"}),
        entry("/v1.0/me/messages", response={"value": []}),
        entry("/v1.0/groups/7", "PATCH", body={"x": 1}, status=204),
        entry(
            "/v1.0/$batch", "POST", body={"requests": [{"id": "1", "method": "GET", "url": "/sites/root"}]}
        ),
    )
    ruleset = parse_ruleset(text)
    assert ruleset_advice(text, ruleset) == ()
    for one in foresee(ruleset, read.exchanges):
        assert isinstance(one.outcome, Outcome)
        assert one.outcome.lets_through, one
        assert one.body == one.exchange.answer_body
    assert "filter" in {rule.verdict for rule in ruleset.rules}
    assert not any(secret in text for secret in SECRETS)


@pytest.mark.parametrize(
    ("bodies", "listed"),
    [
        ([{"jobTitle": "x"}, {"department": "y", "jobTitle": None}], ("department", "jobTitle")),
        ([{"jobTitle": "x"}, None], ("jobTitle",)),
        ([{"JobTitle": "x"}, {"jobTitle": "x"}], ("JobTitle",)),
        ([{"@odata.type": "#microsoft.graph.user", "jobTitle": "x"}], ("jobTitle",)),
        ([{"members@odata.bind": ["x"]}], ("members@odata.bind",)),
        ([{"@microsoft.graph.conflictBehavior": "fail"}], ("@microsoft.graph.conflictBehavior",)),
        ([{"passwordProfile": {"password": "x"}}], ("passwordProfile",)),
        ([{"on": 1, "404": 2}], ("404", "on")),
        ([None], None),
        ([{}], None),
        ([{"jobTitle": "x"}, [{"a": 1}]], None),
        ([{"jobTitle": "x"}, "no JSON"], None),
        ([{"a.b": "x"}], None),  # a rule reads the dot as a separator of object members
        ([{"a@b..c": "x"}], None),
        ([{"a\u200bb": "x"}], None),
        ([{"": "x"}], None),
        ([{f"a{at}": "x" for at in range(61)}], None),
        ([{"a": "x" * 100_000}], None),
    ],
)
def test_a_write_may_carry_what_it_was_seen_to_carry(
    bodies: list[Any], listed: tuple[str, ...] | None
) -> None:
    text, read = suggested(*(entry("/v1.0/users/7", "PATCH", body=body, status=204) for body in bodies))
    ruleset = parse_ruleset(text)
    assert ruleset.rules[0].body_only == listed
    assert ruleset_advice(text, ruleset) == ()
    for one in foresee(ruleset, read.exchanges):
        assert isinstance(one.outcome, Outcome)
        assert one.outcome.lets_through


def test_writes_that_carry_other_members_are_rules_of_their_own() -> None:
    text, _ = suggested(
        entry("/v1.0/users/7", "PATCH", body={"jobTitle": "x"}, status=204),
        entry("/v1.0/users/7/manager/$ref", "PUT", body={"@odata.id": "x"}, status=204),
        entry("/v1.0/users/7/sendMail", "POST", body={"message": {}}, status=202),
        entry("/v1.0/users/7", response={"id": "7"}),
    )
    assert {rule.match.methods: rule.body_only for rule in parse_ruleset(text).rules} == {
        ("PATCH",): ("jobTitle",),
        ("PUT",): ("@odata.id",),
        ("POST",): ("message",),
        ("GET",): None,
    }


def test_a_write_to_the_same_path_does_not_widen_what_is_read() -> None:
    text, _ = suggested(
        entry("/v1.0/users/1?$select=displayName,id", response={"id": "1", "displayName": "Ada"}),
        entry("/v1.0/users/1", "PATCH", body={"jobTitle": "x"}, status=204),
        entry("/v1.0/users?$select=id", response={"value": [{"id": "1"}]}),
        entry("/v1.0/users", "POST", body={"displayName": "x"}, response={"id": "2"}, status=201),
    )
    found = {(rule.match.methods, rule.match.path): rule for rule in parse_ruleset(text).rules}
    assert {key: rule.verdict for key, rule in found.items()} == {
        (("GET",), ("/v1.0/users/{user-id}",)): "filter",
        (("GET",), ("/v1.0/users",)): "filter",
        (("PATCH",), ("/v1.0/users/{user-id}",)): "allow",
        (("POST",), ("/v1.0/users",)): "allow",
    }
    transforms = found[("GET",), ("/v1.0/users/{user-id}",)].transforms
    assert transforms is not None
    assert transforms.allow == ("displayName", "id")


def test_a_response_that_is_unknown_does_not_widen_what_is_read() -> None:
    known = entry("/v1.0/users/1?$select=id", response={"id": "1"})
    redacted = entry("/v1.0/users/2?$select=id", response="[redacted]")
    text, _ = suggested(known, redacted, entry("/v1.0/users/3?$select=id", status=0))
    (rule,) = parse_ruleset(text).rules
    assert rule.verdict == "filter"
