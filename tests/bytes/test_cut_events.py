"""Tests of an oversized audit record: the record keeps the proxy's decisions, and names the omitted parts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.audit import record as records
from proxy.audit.payload import encode
from proxy.audit.segment import MAX_RECORD
from tests.bytes.data_path import data_path, ok, responding

PLAIN = records.Record(
    7, 1_700_000_000_123, "org", "app", "client", "192.0.2.1", None, "GET", "/v1.0/users", None, 200,
    "filter", "r1", None, None, 200, 1500, 1200, 0, 42, None, "rule", 3, None,
)  # fmt: skip
MARK = re.compile(r"…\[(\d+) more\]\Z")


def event_of(**changes: object) -> dict[str, Any]:
    payload = encode(msgspec.structs.replace(PLAIN, **changes))
    assert len(payload) <= MAX_RECORD
    line = records.lines_of([records.event_of(records.decode(payload), 9, 1, None)])
    found: dict[str, Any] = json.loads(line)
    return found


def missing_of(text: str) -> int:
    found = MARK.search(text)
    return int(found[1]) if found else 0


RULES = tuple(f"log-{n:04}" for n in range(300))


@pytest.mark.parametrize("field", ["path", "query", "method", "client_request_id", "upstream_request_id"])
@pytest.mark.parametrize("text", ["a" * 65536, "\x01" * 65536, "é" * 65536, '"' * 65536, "/\udcff" * 9000])
def test_no_text_of_others_takes_the_room_of_what_was_decided(field: str, text: str) -> None:
    shadow = ("block", "shadow-rule", 4)
    strips = tuple(f"strip:property{n}" for n in range(100))
    event = event_of(**{field: text}, logged_rule_ids=RULES, transforms=strips, shadow=shadow)
    assert (event["ruleId"], event["verdict"], event["reason"]) == ("r1", "filter", "rule")
    assert event["loggedRuleIds"] == list(RULES)
    assert event["transforms"] == list(strips)
    assert event["shadowRuleId"] == "shadow-rule"
    camel = re.sub("_([a-z])", lambda found: found[1].upper(), field)
    kept = MARK.sub("", event[camel])
    assert len(kept) + missing_of(event[camel]) == len(text)
    assert missing_of(event[camel]) > 0
    assert kept
    assert text.encode("utf-8", "replace").decode().startswith(kept)


def test_long_texts_share_the_room_and_short_ones_stay_whole() -> None:
    event = event_of(path="/" + "p" * 60000, query="q" * 60000, client_request_id="mine")
    assert event["clientRequestId"] == "mine"
    assert event["method"] == "GET"
    assert len(event["path"]) > 7000
    assert abs(len(event["path"]) - len(event["query"])) < 50


@pytest.mark.parametrize("path", ["/v1.0/users", "/" + "a" * 60000])
def test_a_list_of_rules_that_is_too_long_ends_in_what_is_missing(path: str) -> None:
    ids = tuple(f"rule-{n:05}-of-many" for n in range(10000))
    event = event_of(logged_rule_ids=ids, path=path, transforms=("strip:mail",))
    listed = event["loggedRuleIds"]
    assert tuple(listed[:-1]) == ids[: len(listed) - 1]
    assert missing_of(listed[-1]) == len(ids) - len(listed) + 1
    assert len(listed) > 600
    assert event["transforms"] == ["strip:mail"]
    assert event["path"].startswith("/v1.0/users" if len(path) < 99 else "/aaaaaaaaaa")


def test_two_lists_that_are_too_long_share_the_room() -> None:
    strips = tuple(f"strip:p{n:04}" for n in range(5000))
    event = event_of(logged_rule_ids=tuple(f"r-{n:06}" for n in range(5000)), transforms=strips)
    for name in ("loggedRuleIds", "transforms"):
        assert missing_of(event[name][-1]) == 5000 - len(event[name]) + 1
        assert len(event[name]) > 500


def test_one_element_that_is_too_long_ends_in_what_is_missing() -> None:
    allowed = "allow:" + ",".join(f"p{n}" for n in range(9000))
    [element] = event_of(transforms=(allowed,))["transforms"]
    assert element.startswith("allow:p0,p1,")
    assert len(MARK.sub("", element)) + missing_of(element) == len(allowed)
    listed = event_of(transforms=(allowed, "strip:a", "strip:b"))["transforms"]
    assert missing_of(listed[0]) > 0
    assert missing_of(listed[-1]) == 2


@given(
    st.text(max_size=40).map(lambda text: text * 600),
    st.text(max_size=40).map(lambda text: text * 600),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=200), max_size=20).map(lambda ids: (*ids,) * 30),
)
def test_a_cut_record_is_one_that_fits(path: str, query: str, listed: tuple[str, ...]) -> None:
    event = event_of(path=path, query=query, logged_rule_ids=listed)
    if missing_of(event["loggedRuleIds"][-1] if event["loggedRuleIds"] else ""):
        assert len(event["path"]) < 1100
        assert len(event["query"]) < 1100


def test_what_fits_is_never_cut() -> None:
    event = event_of(path="/" + "a" * 15000, logged_rule_ids=("r",))
    assert event["path"] == "/" + "a" * 15000


RULESET = """
version: 1
name: many
default: block
rules:
  - {id: seen, match: {path: ["/v1.0/**"]}, verdict: log_only}
  - {id: seen-again, match: {path: ["/v1.0/**"]}, verdict: log_only}
  - {id: reads, match: {path: ["/v1.0/users/**"]}, verdict: filter, transforms: {strip_properties: [mail]}}
"""


async def test_a_request_as_long_as_it_may_be_hides_no_rule(tmp_path: Path) -> None:
    target = f"/v1.0/users/{'a' * 40000}?$top={'1' * 20000}"
    async with data_path(responding(ok(b'{"mail":1}')), tmp_path, RULESET) as proxy:
        fields = b"client-request-id: " + b"i" * 1000 + b"\r\n"
        assert (await proxy.ask(proxy.request(target, fields=fields))).status == 200
        [event] = proxy.events()
        assert (event["ruleId"], event["loggedRuleIds"]) == ("reads", ["seen", "seen-again"])
        assert event["transforms"] == ["strip:mail"]
        path, query = target.split("?")
        for name, sent in (("path", path), ("query", query)):
            kept = MARK.sub("", event[name])
            assert sent.startswith(kept)
            assert len(kept) + missing_of(event[name]) == len(sent)


async def test_a_method_of_ten_kilobytes_is_refused_and_leaves_its_beginning(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users", "B" * 10000))
        assert (reply.status, len(reply.body) < 1000) == (400, True)
        [event] = proxy.events()
        assert event["method"] == "B" * 64 + "…[9936 more]"
        assert (event["path"], event["reason"]) == ("/v1.0/users", "unsupported")
