"""Tests that every equivalent spelling of a server's address is recognised, and no other address."""

import pytest

from proxy.policy.origins import Origin, parse_address
from proxy.policy.redirects import UNREADABLE, host_elsewhere, leads_elsewhere

BASES = ("https://graph.example", "https://other.example:8443/graph")
OWN = [
    "https://graph.example/v1.0/me",
    "HTTPS://GRAPH.EXAMPLE/v1.0/me",
    "https://graph.example./v1.0/me",
    "https://graph.example:443/v1.0/me",
    "https://graph.example.:0443?x=y",
    "//graph.example/v1.0/me",
    "https://other.example:08443/graph/v1.0/me",
    "https://graph.example#top",
]
RELATIVE = ["/v1.0/me", "me?next=https://files.example/", "?a=b:c", "#top", ""]
ELSEWHERE = {
    "https://files.example/x?sig=SECRET": "files.example",
    "https://FILES.example.:0443/x?sig=SECRET": "files.example",
    "//files.example:8443/x?sig=SECRET": "files.example:8443",
    "https://[2001:DB8::1]/x?sig=SECRET": "[2001:db8::1]",
    # The same host with another scheme or port is another server.
    "http://graph.example/v1.0/me": "graph.example",
    "http://graph.example:443/v1.0/me": "graph.example:443",
    "https://graph.example:80/v1.0/me": "graph.example:80",
    "https://other.example/graph/v1.0/me": "other.example",
    "https://other.example:8443/graphs/v1.0/me": "other.example:8443",
    "https://other.example:8443/v1.0/me": "other.example:8443",
    "https://graph.example.files.example/x": "graph.example.files.example",
    "https://graph.example@files.example/?sig=SECRET": UNREADABLE,
    "https://user:SECRET@graph.example/v1.0/me": UNREADABLE,
    "https://graph.example%2efiles.example/": UNREADABLE,
    "https://graph.example:/v1.0/me": UNREADABLE,
    "https://graph.example:99999999999/": UNREADABLE,
    "https:graph.example/v1.0/me": UNREADABLE,
    "https:///graph.example/v1.0/me": UNREADABLE,
    "///graph.example/v1.0/me": UNREADABLE,
    "https://graph.example\\@files.example/": UNREADABLE,
    "/\\files.example/": UNREADABLE,
    "data:text/plain,SECRET": UNREADABLE,
    "https://graphé.example/": UNREADABLE,
    "/v1.0\t/me": UNREADABLE,
}


def location(value: str) -> list[tuple[bytes, bytes]]:
    return [(b"Location", value.encode())]


@pytest.mark.parametrize("value", OWN + RELATIVE)
def test_an_address_of_the_upstream_does_not_lead_elsewhere(value: str) -> None:
    assert not leads_elsewhere(location(value), BASES)


@pytest.mark.parametrize(("value", "host"), ELSEWHERE.items())
def test_another_address_is_told_by_its_host_alone(value: str, host: str) -> None:
    assert leads_elsewhere(location(value), BASES)
    assert host_elsewhere(location(value), BASES) == host


def test_one_of_several_locations_is_enough() -> None:
    both = [*location("/v1.0/me"), (b" LOCATION", b"https://files.example/x")]
    assert host_elsewhere(both, BASES) == "files.example"
    assert host_elsewhere([(b"Content-Location", b"https://files.example/x")], BASES) is None


def test_an_origin_has_one_spelling() -> None:
    spellings = ["https://A.example", "https://a.example.:443/", "HTTPS://a.EXAMPLE:00443?x"]
    assert {found.origin for text in spellings if (found := parse_address(text))} == {
        Origin("https", "a.example", "443")
    }


@pytest.mark.parametrize("text", ["ftp://a.example/", "//a.example/", "/a", "a.example", "https://a b/", ""])
def test_what_is_no_absolute_address_has_no_origin(text: str) -> None:
    assert parse_address(text) is None
