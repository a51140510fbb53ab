"""Tests that thousands of random spellings never change a verdict or a resource.

A blocked target stays blocked in each spelling, both alone and as a sub-request of a batch. An allowed target
stays allowed in each spelling that all servers interpret in the same way. No spelling of a resource's path,
such as percent-encoding, gives access to another resource.
"""

from __future__ import annotations

import contextlib
import json
from typing import Final
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.batch import MalformedBatch, parse_batch
from proxy.policy.canonical import MalformedTarget
from proxy.policy.compile import CompiledRuleset
from tests.pure.rules import compiled, verdict

UPSTREAM: Final = "https://graph.microsoft.com"
PROXY: Final = "https://proxy.example"

# Resources as (name, is it an id?) segments after the version.
Segment = tuple[str, bool]
RESOURCES: Final[tuple[tuple[Segment, ...], ...]] = (
    (("users", False), ("ada@contoso.com", True), ("messages", False)),
    (
        ("users", False),
        ("ada@contoso.com", True),
        ("mailFolders", False),
        ("AAMk=", True),
        ("messages", False),
    ),
    (("groups", False), ("9e0-f", True), ("members", False)),
    (("groups", False), ("9e0-f", True), ("owners", False)),
    (("users", False), ("ada@contoso.com", True)),
    (("users", False), ("alan@contoso.com", True)),
    (("users", False), ("alan@contoso.com", True), ("messages", False)),
    (("drives", False), ("b!x", True), ("items", False), ("01AB", True)),
    (("directoryRoles", False),),
    (("me", False), ("messages", False)),
)


def plain(resource: tuple[Segment, ...]) -> str:
    return "/v1.0/" + "/".join(text for text, _ in resource)


BLOCKS: Final = {
    each: compiled(
        f"- {{id: it, match: {{path: [{json.dumps(plain(each) + '/**')}]}}, verdict: block}}", "allow"
    )
    for each in RESOURCES
}
ALLOWS: Final = {
    each: compiled(f"- {{id: it, match: {{path: [{json.dumps(plain(each))}]}}, verdict: allow}}")
    for each in RESOURCES
}


def recased(text: str, bits: int) -> str:
    return "".join(char.upper() if bits >> at & 1 else char.lower() for at, char in enumerate(text))


def encoded(text: str, bits: int, times: int) -> str:
    """Return the text with some characters percent-encoded, or with its percent signs encoded twice."""
    for round_ in range(times):
        if round_:
            text = text.replace("%", "%25")
        else:
            text = "".join(
                f"%{ord(char):02x}" if bits >> at % 24 & 1 else char for at, char in enumerate(text)
            )
    return text


# Spellings with one meaning to every server: by RFC 3986 and by OData's URL conventions.
PLAIN_SEPARATORS: Final = ("/", "/", "//", "/./", "/x/../", "/%2e/", "/x/%2E%2e/")
PLAIN_KEYS: Final = ("{}('{}')", "{}(%27{}%27)", "{}(id='{}')", "{}('{}')/microsoft.graph.directoryObject")
# Spellings with this meaning to some servers only.
ODD_SEPARATORS: Final = (
    "\\",
    "%5c",
    "%2f",
    "%252F",
    "/;a/../",
    "/x/..;/",
    "/%20",
    "%EF%BC%8F",
    "/\\",
    "%EF%BC%BC",
)
ODD_ENDS: Final = (
    "%20",
    ";a=b",
    ";a=)",
    ";a=(b)",
    "%EF%BC%9Bx=%29",
    "%3Fx",
    "%23x",
    "\\",
    "%2f",
    "%E2%80%8B",
    "/%252e",
    "%00",
    "()",
)


@st.composite
def spelled(draw: st.DrawFn, resource: tuple[Segment, ...], *, odd: bool) -> str:
    bits = st.integers(0, 2**24 - 1)
    separators = PLAIN_SEPARATORS + (ODD_SEPARATORS if odd else ())
    path = "/" + recased("v1.0", draw(bits))
    at = 0
    while at < len(resource):
        text, is_id = resource[at]
        text = text if is_id else recased(text, draw(bits))
        times = draw(st.integers(0, 3 if odd else 1))
        following = resource[at + 1] if at + 1 < len(resource) else None
        if following is not None and following[1] and draw(st.booleans()):
            key = encoded(following[0], draw(bits), times)
            text = draw(st.sampled_from(PLAIN_KEYS)).format(text, key)
            at += 1
        else:
            text = encoded(text, draw(bits), times)
        path += draw(st.sampled_from(separators)) + text
        at += 1
    ends = ("", "/", "//", "/.", "/x/..", "?$top=1", "?a=/../../v1.0/me")
    return path + draw(st.sampled_from(ends + (ODD_ENDS if odd else ())))


@given(st.data(), st.sampled_from(RESOURCES))
def test_what_is_blocked_is_blocked_or_refused_however_it_is_spelled(
    data: st.DataObject, resource: tuple[Segment, ...]
) -> None:
    target = data.draw(spelled(resource, odd=True))
    with contextlib.suppress(MalformedTarget):
        assert verdict(BLOCKS[resource], target) == "block", target


@given(st.data(), st.sampled_from(RESOURCES))
def test_what_is_allowed_is_allowed_in_every_plain_spelling(
    data: st.DataObject, resource: tuple[Segment, ...]
) -> None:
    target = data.draw(spelled(resource, odd=False))
    assert verdict(ALLOWS[resource], target) == "allow", target


@given(st.data(), st.sampled_from(RESOURCES), st.sampled_from(RESOURCES))
def test_no_spelling_makes_another_resource_of_it(
    data: st.DataObject, resource: tuple[Segment, ...], other: tuple[Segment, ...]
) -> None:
    """A spelling of one resource gives no access to another resource.

    A rule that blocks one resource does not block a plain spelling of the path of a different resource.
    """
    if resource == other:
        return
    with contextlib.suppress(MalformedTarget):
        assert verdict(ALLOWS[other], data.draw(spelled(resource, odd=True))) == "block"
    if resource[: len(other)] != other:
        assert verdict(BLOCKS[other], data.draw(spelled(resource, odd=False))) == "allow"


# Sub-requests of a batch


def part_url(target: str, base: str, slash: bool) -> str:
    below = target[len("/v1.0") :]
    if base:
        return f"{base}/v1.0{below}"
    return below if slash else below.lstrip("/")


@given(st.data(), st.sampled_from(RESOURCES), st.sampled_from(["", "", UPSTREAM, PROXY, UPSTREAM.upper()]))
def test_what_is_blocked_is_blocked_as_a_part_of_a_batch(
    data: st.DataObject, resource: tuple[Segment, ...], base: str
) -> None:
    target = data.draw(spelled(resource, odd=True))
    url = part_url(target, base, data.draw(st.booleans()))
    body = json.dumps({"requests": [{"id": "1", "method": "GET", "url": url}]}).encode()
    with contextlib.suppress(MalformedTarget, MalformedBatch):
        (part,) = parse_batch(body, "v1.0", (UPSTREAM, PROXY))
        assert verdict(BLOCKS[resource], part.target) == "block", (url, part.target)


@given(st.sampled_from(["DELETE", "PATCH", "POST"]), st.integers(0, 63))
def test_a_part_s_method_is_evaluated_in_any_letter_case(method: str, bits: int) -> None:
    rules = compiled(
        f"- {{id: it, match: {{methods: [{method}], path: [/v1.0/**]}}, verdict: block}}", "allow"
    )
    raw = {"id": "1", "method": recased(method, bits), "url": "/me"}
    body = json.dumps({"requests": [raw]}).encode()
    with contextlib.suppress(MalformedBatch):
        (part,) = parse_batch(body, "v1.0", (UPSTREAM, PROXY))
        assert verdict(rules, part.target, part.method) == "block"


# Query options

OPTIONS: Final = ("filter", "select", "expand", "search", "orderby", "apply", "skiptoken")


def option_rules(option: str, operator: str) -> CompiledRuleset:
    condition = f"{{query: ${option}, {operator}}}"
    return compiled(
        f"- {{id: it, match: {{path: [/v1.0/**]}}, conditions: [{condition}], verdict: block}}", "allow"
    )


NAMED: Final = {option: option_rules(option, "exists: true") for option in OPTIONS}
VALUED: Final = option_rules("filter", "contains: secret")


@st.composite
def spelled_option(draw: st.DrawFn, option: str) -> str:
    """OData 4.01 reads `$filter`, `filter` and `$FILTER` as one option.

    Servers percent-decode option names.
    """
    bits = st.integers(0, 2**24 - 1)
    name = draw(st.sampled_from(["$", ""])) + recased(option, draw(bits))
    name = encoded(name, draw(bits), draw(st.integers(0, 3)))
    return draw(st.sampled_from(["", "%20", "+"])) + name + draw(st.sampled_from(["", "", "%20", "+"]))


@given(st.data(), st.sampled_from(OPTIONS), st.sampled_from(["", "$top=1&", "a&", "&&", "=&"]))
def test_a_condition_on_a_query_option_holds_however_its_name_is_spelled(
    data: st.DataObject, option: str, before: str
) -> None:
    name = data.draw(spelled_option(option))
    after = data.draw(st.sampled_from(["=x", "=", "", "=a&b=c", "=%27"]))
    with contextlib.suppress(MalformedTarget):
        assert verdict(NAMED[option], f"/v1.0/users?{before}{name}{after}") == "block"


@given(st.data(), st.integers(0, 2**24 - 1), st.integers(0, 3))
def test_and_however_its_value_is_spelled_and_whichever_occurrence_has_it(
    data: st.DataObject, bits: int, times: int
) -> None:
    name = data.draw(spelled_option("filter"))
    value = encoded("x eq 'secret'".replace(" ", "%20") if not times else "x-secret", bits, times)
    first = data.draw(st.sampled_from(["", "$filter=a&", "filter=b&"]))
    with contextlib.suppress(MalformedTarget):
        assert verdict(VALUED, f"/v1.0/users?{first}{name}={value}&$filter=c") == "block"


@given(st.sampled_from(OPTIONS), st.text("abcdefghijklmnopqrstuvwxyz$", min_size=1, max_size=12))
def test_another_option_is_not_taken_for_it(option: str, name: str) -> None:
    if name.lstrip("$") != option:
        assert verdict(NAMED[option], f"/v1.0/users?{quote(name)}=x") == "allow"


def test_the_resources_differ_in_meaning() -> None:
    for resource in RESOURCES:
        for other in RESOURCES:
            assert (verdict(ALLOWS[other], plain(resource)) == "allow") is (resource == other)
