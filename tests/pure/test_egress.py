"""Tests of the egress proxy for a URL: settings, variables, and the exemptions in `NoProxy`."""

from __future__ import annotations

import ssl

import pytest

from proxy.config import SettingsError
from proxy.outbound.egress import DIRECT, Bypass, Egress, egress_proxy, parse_bypass, parse_proxy_url
from proxy.outbound.opener import cure_of_certificate
from proxy.outbound.settings import EgressSettings, egress_of, egress_of_variables, with_variables
from proxy.outbound.tunnel import EgressProblem, remedy

PROXY = egress_proxy("http://egress.corp:3128")
GRAPH = "https://graph.microsoft.com/v1.0/users"


def bypassing(*entries: str) -> Egress:
    return Egress(PROXY, tuple(map(parse_bypass, entries)))


@pytest.mark.parametrize(
    ("entry", "through", "direct"),
    [
        ("contoso.com", ["https://mycontoso.com"], ["https://contoso.com", "https://a.b.CONTOSO.com."]),
        (".contoso.com", ["https://xcontoso.com"], ["https://contoso.com", "https://vault.contoso.com"]),
        ("*.contoso.com.", ["https://contoso.com.evil.net"], ["https://vault.contoso.com"]),
        (
            "contoso.com:8443",
            ["https://contoso.com"],
            ["https://contoso.com:8443", "http://contoso.com:8443"],
        ),
        ("contoso.com:443", ["https://contoso.com:8443"], ["https://contoso.com"]),
        ("10.0.0.0/8", ["https://11.0.0.1", "https://10.corp"], ["https://10.9.8.7:444"]),
        ("10.1.2.3/8", ["https://11.0.0.1"], ["https://10.9.8.7"]),
        ("192.0.2.7", ["https://192.0.2.70"], ["https://192.0.2.7"]),
        ("[2001:db8::1]:443", ["https://[2001:db8::1]:8443"], ["https://[2001:db8::1]"]),
        ("2001:db8::/32", ["https://[2001:db9::1]"], ["https://[2001:db8:9::1]:8443"]),
        ("*", [], [GRAPH, "https://10.0.0.1"]),
    ],
)
def test_an_entry_of_no_proxy_is_reached_directly(entry: str, through: list[str], direct: list[str]) -> None:
    egress = bypassing(entry)
    assert [egress.proxy_for(url) for url in through] == [PROXY] * len(through)
    assert [egress.proxy_for(url) for url in direct] == [None] * len(direct)
    for url in direct:
        assert str(egress.way_to(url)) == f"direct (Egress.NoProxy has {entry})"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9090",
        "http://localhost:8090",
        "https://proxy.localhost",
        "https://[::1]:8090",
        "http://[::ffff:127.0.0.1]",
        "http://169.254.169.254/metadata/identity/oauth2/token",
        "http://169.254.129.2:8081/msi/token",
        "http://[fe80::1%25eth0]/",
    ],
)
def test_this_machine_and_its_metadata_service_are_never_reached_through_the_egress(url: str) -> None:
    assert bypassing().proxy_for(url) is None


def test_everything_else_leaves_through_the_egress_by_its_name_alone() -> None:
    assert bypassing("contoso.com").way_to(GRAPH).proxy == PROXY
    assert str(bypassing().way_to(GRAPH)) == "through the egress proxy egress.corp:3128 (Egress.ProxyUrl)"
    assert bypassing().proxy_for("http://control.corp") == PROXY
    assert str(DIRECT.way_to(GRAPH)) == "direct (no egress proxy is configured)"


@pytest.mark.parametrize(
    ("text", "host", "port", "authorization"),
    [
        ("http://egress.corp:3128/", "egress.corp", 3128, ""),
        ("egress.corp:8080", "egress.corp", 8080, ""),
        ("http://EGRESS", "egress", 80, ""),
        ("http://[2001:db8::5]:3128", "2001:db8::5", 3128, ""),
        ("http://ada:pass%40word@egress:3128", "egress", 3128, "Basic YWRhOnBhc3NAd29yZA=="),
        ("http://corp%5Cada:@egress:3128", "egress", 3128, "Basic Y29ycFxhZGE6"),
    ],
)
def test_the_address_of_an_egress_proxy(text: str, host: str, port: int, authorization: str) -> None:
    found = egress_proxy(text)
    assert (found.host, found.port, found.authorization) == (host, port, authorization)
    assert "ada" not in f"{found} {found!r} {found.url}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://egress:3128", "TLS to the egress proxy itself"),
        ("socks5://egress:1080", "socks5:// is not supported"),
        ("http://", "must be http://host:port"),
        ("http://egress:99999", "must be http://host:port"),
        ("http://egress:3128/path", "must be http://host:port"),
        ("http://ada:secret-word@two@egress:3128", "@ is %40"),
        ("http://ada%0d%0aX:secret-word@egress:3128", "control character"),
        ("http://ada:secret-word @egress:3128", "percent-encoded"),
    ],
)
def test_an_unusable_address_is_refused_without_its_password(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_proxy_url(text)
    assert reason in str(refused.value)
    assert "secret-word" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["10.*", "10.0.0.0/33", "a b", "contoso.com:0", "http://contoso.com", "10.1"]
)
def test_what_no_entry_of_no_proxy_can_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a host name, an address or a network"):
        parse_bypass(text)


def test_no_message_of_an_egress_proxy_repeats_its_credentials() -> None:
    proxy = egress_proxy("http://ada:pass%40word@egress:3128")
    assert proxy.masked("denied: pass@word pass%40word YWRhOnBhc3NAd29yZA==") == (
        "denied: ******** ******** ********"
    )


def test_variables_stand_for_the_settings() -> None:
    settings = with_variables(
        EgressSettings(),
        {"https_proxy": "lower:1", "HTTPS_PROXY": "upper:2", "NO_PROXY": "a.corp, 10.0.0.0/8 10.*"},
    )
    egress = egress_of(settings)
    assert str(egress.way_to(GRAPH)) == "through the egress proxy lower:1 (https_proxy)"
    assert str(egress.way_to("https://10.0.0.1")) == "direct (NO_PROXY has 10.0.0.0/8)"
    assert str(egress.way_to("http://x.corp")) == "direct (https_proxy is only for https:// addresses)"
    assert [line.partition(":")[0] for line in settings.ignored] == ["NO_PROXY", "HTTPS_PROXY"]
    assert "10.* has no effect" in settings.ignored[0]


def test_settings_win_over_variables() -> None:
    given = EgressSettings(proxy_url="http://given:1", no_proxy=(parse_bypass("a.corp"),))
    settings = with_variables(given, {"HTTPS_PROXY": "http://other:2", "no_proxy": "*"})
    egress = egress_of(settings)
    assert str(egress.way_to(GRAPH)) == "through the egress proxy given:1 (Egress.ProxyUrl)"
    assert str(egress.way_to("https://a.corp")) == "direct (Egress.NoProxy has a.corp)"
    assert settings.ignored == ("HTTPS_PROXY: has no effect, because of Egress.ProxyUrl",)


@pytest.mark.parametrize(
    ("verify_code", "cured"), [(18, True), (19, True), (20, True), (21, True), (10, False), (62, False)]
)
def test_a_trusted_authority_cures_an_unknown_one_and_no_other_name(verify_code: int, cured: bool) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code = verify_code
    assert ("SSL_CERT_FILE" in cure_of_certificate(error)) == cured
    assert cure_of_certificate(OSError()) == ""


def test_no_proxy_for_every_host_is_the_reason_of_the_direct_way() -> None:
    settings = with_variables(EgressSettings(), {"HTTPS_PROXY": "http://e:1", "NO_PROXY": "a.corp *"})
    assert str(egress_of(settings).way_to(GRAPH)) == "direct (NO_PROXY has *)"


def test_a_remedy_names_what_gave_the_egress_proxy_and_the_user_that_it_refuses() -> None:
    without, given = (
        egress_of(with_variables(EgressSettings(), {"HTTPS_PROXY": f"http://{user}e:1"})).proxy
        for user in ("", "ada:pass-word@")
    )
    assert without is not None
    assert given is not None
    refused = EgressProblem.CREDENTIALS
    assert remedy(refused, without, "h", 443).endswith("password of the egress proxy into HTTPS_PROXY")
    assert remedy(refused, given, "h", 443) == (
        "correct the password in HTTPS_PROXY: the egress proxy refuses the user ada"
    )
    assert remedy(EgressProblem.UNREACHABLE, given, "h", 443).startswith("correct HTTPS_PROXY,")


def test_variables_that_name_another_proxy_are_told_and_not_used() -> None:
    settings = with_variables(EgressSettings(), {"HTTP_PROXY": "http://e:1", "ALL_PROXY": "socks5://e:1"})
    assert egress_of(settings) == DIRECT
    assert [line.partition(":")[0] for line in settings.ignored] == ["HTTP_PROXY", "ALL_PROXY"]


def test_a_variable_that_cannot_be_used_stops_the_start_unless_nothing_is_to_leave_that_way() -> None:
    environ = {"HTTPS_PROXY": "https://ada:secret-word@egress:3128"}
    with pytest.raises(SettingsError, match=r"environment: HTTPS_PROXY: .*not supported") as refused:
        egress_of_variables(environ)
    assert "secret-word" not in str(refused.value)
    everything = EgressSettings(no_proxy=(Bypass("*", "*"),))
    assert egress_of(with_variables(everything, environ)).proxy is None
