"""Tests of the statements about the proxy that an application relies on, through the whole system."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

from tests.fakes.identity import CLIENT_SECRET
from tests.fakes.server import RawResponse
from tests.fakes.system import SIGNING_KEY, VAULT_SECRET, VAULT_SIGNING_KEY
from tests.process.specification import (
    FORM,
    JSON,
    RFC3339_MS,
    UUID7,
    Live,
    Reply,
    claims_of,
    connected,
    head_bytes,
    read_reply,
    run,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

CRM = """\
version: 1
name: crm
default: block
rules:
  - {id: watch, match: {path: ["/v1.0/open/watched"]}, verdict: log_only}
  - {id: no-mail, match: {path: ["/v1.0/open/mail/**"]}, verdict: block}
  - {id: open, verdict: allow,
     match: {path: ["/v1.0/open/**", "/v1.0/status/{code}", "/v1.0/echo/**", "/beta/echo/**"]}}
  - {id: strip, match: {path: ["/v1.0/people", "/v1.0/people/{id}"]}, verdict: filter,
     transforms: {strip_properties: [mobilePhone]}}
  - {id: only, match: {path: ["/v1.0/groups"]}, verdict: filter,
     transforms: {allow_properties: [id, displayName]}}
  - {id: after, when: response, match: {path: ["/v1.0/open/secret"]},
     conditions: [{property: sensitivity, equals: private}], verdict: block}
"""
REPORTS = """\
version: 1
name: reports
default: allow
rules:
  - {id: noted, match: {path: ["/v1.0/echo/noted"]}, verdict: log_only}
"""
SECRET_MARK = "body-marker-that-must-stay-out-of-the-trail"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with whole_system(tmp_path_factory.mktemp("system"), {"crm": CRM, "reports": REPORTS}) as live:
        yield live
        for child in live.system.children:
            assert "Traceback" not in child.log.read_text("utf-8")


def new_id() -> tuple[str, str]:
    return ("client-request-id", str(uuid.uuid4()))


def json_of(value: Any) -> bytes:
    return json.dumps(value).encode()


# These tests run first, because the proxy fetches no second token within 10 s because of a 401


def test_an_upstream_401_is_never_the_applications_fault(live: Live) -> None:
    """If the upstream responds 401, the proxy fetches a new upstream token and sends the request once more.

    If the upstream also refuses the second upstream token, the response is 502 `upstreamError`.
    """
    live.upstream_says("/v1.0/open/refused", b"{}", [("WWW-Authenticate", "Bearer error=x")], 401)
    acquired = live.system.identity.acquisitions
    live.system.identity.revoke_all()
    id_field = new_id()
    reply = live.ask("crm", "GET", "/v1.0/open/refused", [id_field])
    assert (reply.status, reply.error["code"], reply.error["upstreamStatus"]) == (502, "upstreamError", 401)
    assert reply.value("WWW-Authenticate") is None
    first, second = live.seen(id_field[1])
    assert first.value("Authorization") != second.value("Authorization")
    assert live.system.identity.acquisitions == acquired + 1
    assert live.ask("crm", "GET", "/v1.0/echo/x").status == 200


# Token endpoint


def test_a_token_for_client_credentials(live: Live) -> None:
    """The token response is 200 {"token_type", "expires_in": 3599, "access_token": "<JWT>"}, not stored.

    The token response has `Cache-Control: no-store`.
    """
    reply = live.form(live.credentials("crm"))
    assert reply.status == 200
    assert set(reply.json) == {"token_type", "expires_in", "access_token"}
    assert (reply.json["token_type"], reply.json["expires_in"]) == ("Bearer", 3599)
    assert reply.json["access_token"].count(".") == 2
    assert reply.value("Cache-Control") == "no-store"
    assert (reply.value("Content-Type") or "").startswith("application/json")


def test_no_scope_parameter_is_part_of_the_request_and_one_is_ignored(live: Live) -> None:
    """The token endpoint ignores unknown form fields, a `scope` and a query string."""
    more = {
        **live.credentials("crm"),
        "scope": "https://graph.microsoft.com/.default",
        "resource": "x",
        "z": "",
    }
    reply = live.form(more, "/proxy/token?api-version=1.0&client_id=other")
    assert reply.status == 200
    assert "scope" not in reply.json


@pytest.mark.parametrize("secret", ["its secret", "wrong", "", "\u00e9\x00"])
def test_a_secret_that_does_not_match_is_401(live: Live, secret: str) -> None:
    """The proxy compares the client secret with the stored hash of the app identity.

    If the client secret does not match the stored hash, the response is 401 invalid_client.
    """
    reply = live.form({**live.credentials("crm"), "client_secret": secret})
    assert (reply.status, reply.json["error"]) == (401, "invalid_client")
    assert isinstance(reply.json["error_description"], str)


def test_an_unknown_client_is_401_and_told_apart_by_nothing(live: Live) -> None:
    """A token request with a wrong client id or secret gets 401."""
    unknown = live.form({**live.credentials("crm"), "client_id": str(uuid.uuid4())})
    wrong = live.form({**live.credentials("crm"), "client_secret": "wrong"})
    assert unknown.status == wrong.status == 401
    of_each_request = ("trace_id", "correlation_id", "timestamp")
    told = [{**reply.json, **dict.fromkeys(of_each_request)} for reply in (unknown, wrong)]
    assert told[0] == told[1]
    assert len(unknown.body) == len(wrong.body)
    names = [name for name, _ in unknown.headers]
    assert names == [name for name, _ in wrong.headers]


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"grant_type": None}, 400, "invalid_request"),
        ({"client_id": None, "client_secret": None}, 401, "invalid_client"),
    ],
)
def test_errors_are_those_of_rfc_6749(
    live: Live, form: dict[str, str | None], status: int, code: str
) -> None:
    """Token errors (RFC 6749) are 401 invalid_client, 400 invalid_request and 400 unsupported_grant_type."""
    sent = {**live.credentials("crm"), **form}
    reply = live.form({name: value for name, value in sent.items() if value is not None})
    assert (reply.status, reply.json["error"]) == (status, code)
    assert reply.value("Cache-Control") == "no-store"


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([JSON], b'{"grant_type": "client_credentials"}'),
        ([FORM], b"grant_type=client_credentials&grant_type=client_credentials"),
        ([FORM], b"grant_type=client_credentials&client_id=%ff"),
        ([FORM], b""),
        ([], b"grant_type=client_credentials"),
    ],
)
def test_a_malformed_token_request_is_invalid_request(
    live: Live, fields: list[tuple[str, str]], body: bytes
) -> None:
    """A malformed token request gets 400 invalid_request."""
    reply = live.send("POST", "/proxy/token", fields, body)
    assert (reply.status, reply.json["error"]) == (400, "invalid_request")


@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
def test_credentials_are_accepted_as_http_basic(live: Live, scheme: str) -> None:
    """The token endpoint accepts credentials in the form body or as HTTP Basic, as RFC 6749 requires."""
    app = live.app("crm")

    def basic(secret: str) -> Reply:
        pair = f"{quote(app.client_id, safe='')}:{quote(secret, safe='')}".encode()
        header = ("Authorization", f"{scheme} {base64.b64encode(pair).decode()}")
        return live.form({"grant_type": "client_credentials"}, extra=[header])

    assert basic(app.client_secret).status == 200
    refused = basic("wrong")
    assert (refused.status, refused.json["error"]) == (401, "invalid_client")
    assert (refused.value("WWW-Authenticate") or "").startswith("Basic ")


def test_a_form_in_chunks_is_a_form(live: Live) -> None:
    """The token endpoint accepts a form body in any HTTP framing."""
    form = urlencode(live.credentials("crm")).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, form[at : at + 1]) for at in range(len(form))) + b"0\r\n\r\n"
    reply = live.send("POST", "/proxy/token", [FORM, ("Transfer-Encoding", "chunked")], chunks)
    assert reply.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/contoso/oauth2/v2.0/token",
        "/11111111-2222-3333-4444-555555555555/oauth2/v2.0/token",
        "/adfs/oauth2/v2.0/token",
    ],
)
def test_the_endpoint_has_the_names_that_identity_libraries_ask_for(live: Live, path: str) -> None:
    """The paths /{tenant}/oauth2/v2.0/token and /adfs/oauth2/v2.0/token are the same endpoint for POST."""
    reply = live.form(live.credentials("crm"), path)
    assert reply.status == 200
    bearer = ("Authorization", f"Bearer {reply.json['access_token']}")
    assert live.send("GET", "/v1.0/echo/x", [bearer]).status == 200


@pytest.mark.parametrize("tenant", ["v1.0", "beta", "proxy"])
def test_a_tenant_is_any_first_segment_but_three(live: Live, tenant: str) -> None:
    """The path segment `{tenant}` can be any first segment except `v1.0`, `beta` and `proxy`."""
    assert live.form(live.credentials("crm"), f"/{tenant}/oauth2/v2.0/token").status == 401
    assert live.send("GET", f"/{tenant}/v2.0/.well-known/openid-configuration").status == 401


@pytest.mark.parametrize(("tenant", "path"), [("contoso", "/contoso/v2.0"), ("adfs", "/adfs")])
def test_discovery_documents(live: Live, tenant: str, path: str) -> None:
    """Discovery documents have token_endpoint, authorization_endpoint, issuer and jwks_uri.

    The issuer in a discovery document has the scheme, host and port of the authority.
    """
    reply = live.send("GET", f"{path}/.well-known/openid-configuration")
    assert reply.status == 200
    members = ("token_endpoint", "authorization_endpoint", "issuer", "jwks_uri")
    for member in members:
        assert reply.json[member].startswith(f"{live.url}/{tenant}"), member
    token_path = reply.json["token_endpoint"].removeprefix(live.url)
    assert live.form(live.credentials("crm"), token_path).status == 200
    assert live.send("GET", reply.json["jwks_uri"].removeprefix(live.url)).status == 200


def test_the_token_endpoint_takes_post_alone(live: Live) -> None:
    """The token endpoint accepts only POST /proxy/token."""
    for method in ("GET", "PUT"):
        reply = live.form(live.credentials("crm"), method=method)
        assert reply.status in (400, 405)
        assert "access_token" not in reply.body.decode()


# The proxy token


def test_the_token_is_a_jwt_with_these_claims(live: Live) -> None:
    """The claims of a token are iss, aud, sub = clientId, org, ver = secretVersion, iat, nbf, exp and jti.

    The header of a token has kid and alg.
    """
    before = int(time.time())
    first, second = live.new_token("crm"), live.new_token("crm")
    header, claims = claims_of(first)
    assert {"alg", "kid"} <= set(header)
    assert set(claims) >= {"iss", "aud", "sub", "org", "ver", "iat", "nbf", "exp", "jti"}
    assert (claims["sub"], claims["org"], claims["ver"]) == (live.app("crm").client_id, live.system.org_id, 1)
    assert before <= claims["iat"] <= time.time() + 1
    assert claims["nbf"] <= claims["iat"]
    assert 3599 <= claims["exp"] - claims["iat"] <= 3600
    assert claims["jti"] != claims_of(second)[1]["jti"]


def _with(token: str, header: dict[str, Any] | None = None, claims: dict[str, Any] | None = None) -> str:
    parts = token.split(".")
    for at, changes in enumerate((header, claims)):
        if changes:
            value = {**claims_of(token)[at], **changes}
            parts[at] = base64.urlsafe_b64encode(json_of(value)).rstrip(b"=").decode()
    return ".".join(parts)


def test_the_token_is_validated_on_every_request(live: Live) -> None:
    """The proxy refuses a forged, damaged or foreign JWT, and never uses the alg and kid in its header."""
    good = live.token("crm")
    signed, _, signature = good.rpartition(".")
    none = _with(good, {"alg": "none"}).rpartition(".")[0] + "."
    key = (
        base64.urlsafe_b64encode(hmac.new(b"", signed.encode(), hashlib.sha256).digest())
        .rstrip(b"=")
        .decode()
    )
    for token in (
        "",
        "x",
        "..",
        none,
        f"{signed}.{key}",
        f"{signed}.{signature[:-2]}AA",
        f"{signed}.",
        f"{good}=",
        f"{good}.x",
        f" {good}x",
        _with(good, claims={"exp": 9_999_999_999}),
        _with(good, claims={"sub": live.app("reports").client_id}),
        _with(good, {"kid": "../../dev/null"}),
        _with(good, {"jku": "https://127.0.0.1:1/keys"}),
        _with(good, {"alg": "HS512"}),
        live.system.identity.tokens[-1],
    ):
        reply = live.send("GET", "/v1.0/echo/x", [("Authorization", f"Bearer {token}")])
        assert (reply.status, reply.error["code"]) == (401, "InvalidAuthenticationToken"), token
    for fields in ([], [("Authorization", f"Basic {good}")], [("Authorization", good)]):
        assert live.send("GET", "/v1.0/echo/x", fields).status == 401
    assert live.ask("crm", "GET", "/v1.0/echo/x").status == 200


def test_a_401_carries_the_claims_challenge(live: Live) -> None:
    """The challenge in a 401 response names the error insufficient_claims.

    The challenge is `Bearer realm="", error="insufficient_claims", claims="<base64 of …nbf…>"`.
    """
    reply = live.send("GET", "/v1.0/users", [("Authorization", "Bearer dead")])
    challenge = reply.value("WWW-Authenticate") or ""
    begin = 'Bearer realm="", error="insufficient_claims", claims="'
    assert challenge.startswith(begin)
    assert challenge.endswith('"')
    claims = json.loads(base64.b64decode(challenge[len(begin) : -1], validate=True))
    value = claims["access_token"]["nbf"].pop("value")
    assert claims == {"access_token": {"nbf": {"essential": True}}}
    assert abs(int(value) - time.time()) < 10


def test_a_token_dies_when_its_app_is_disabled_on_an_open_connection_too(live: Live) -> None:
    """A token becomes invalid at once if its application is disabled or its secret version is revoked."""
    live.cli("app", "add", "leaver", "--org", live.system.org_id, "--ruleset", "reports")
    rotated = live.cli("app", "rotate-secret", "leaver")
    form = {"grant_type": "client_credentials", "client_id": rotated["clientId"]}

    def token_of(secret: str) -> str | None:
        reply = live.form({**form, "client_secret": secret})
        return str(reply.json["access_token"]) if reply.status == 200 else None

    first = until(lambda: token_of(rotated["clientSecret"]))
    assert first
    assert claims_of(first)[1]["ver"] == rotated["secretVersion"] == 2

    with connected(live.url, live.context) as connection:

        def status(token: str) -> int:
            bearer = ("Authorization", f"Bearer {token}")
            connection.sendall(head_bytes("GET", "/v1.0/echo/leaver", [("Host", live.host), bearer]))
            return read_reply(connection).status

        assert status(first) == 200
        again = live.cli("app", "rotate-secret", "leaver")
        until(lambda: status(first) == 401)
        assert token_of(rotated["clientSecret"]) is None
        second = until(lambda: token_of(again["clientSecret"]))
        assert second
        assert status(second) == 200
        live.cli("app", "disable", "leaver")
        until(lambda: status(second) == 401)
        assert token_of(again["clientSecret"]) is None
        live.cli("app", "enable", "leaver")
        until(lambda: status(second) == 200)


# Pass-through


def test_method_target_headers_and_body_reach_the_upstream_byte_for_byte(live: Live) -> None:
    """The upstream receives the method, target, body and forwarded headers of a request unchanged.

    Names of forwarded headers keep their case and order. The proxy replaces Authorization and Host, drops
    hop-by-hop headers, and adds no header.
    """
    id_field = new_id()
    target = "/v1.0/echo/%41%2f..%3F/(x='a b')?$select=Id,name&$FILTER=a%20eq%20'%C3%A5'&&x=%7Ez&=;?/"
    target = target.replace(" ", "%20").replace("%2f..", "")
    body = b'{"a": 1.0e+2, "a":\t"\\u00e5\xc3\xa5" }\r\n'
    own = [
        ("x-zEbRa", "1"),
        ("X-ALPHA", "\xe5 two  spaces"),
        ("consistencylevel", "eventual"),
        ("X-Alpha", "again"),
        ("Cookie", "a=b; c=d"),
        ("Content-Type", "application/json;odata.metadata=none"),
        ("Prefer", 'outlook.timezone="W. Europe Standard Time"'),
        id_field,
    ]
    hops = [("Connection", "keep-alive, X-Hop"), ("X-Hop", "secret"), ("Keep-Alive", "9"), ("TE", "trailers")]
    hops += [
        ("Proxy-Authorization", "x"),
        ("Proxy-Connection", "keep-alive"),
        ("Upgrade-Insecure-Requests", "1"),
    ]
    fields = [
        own[0],
        ("Authorization", f"Bearer {live.token('crm')}"),
        *own[1:4],
        ("Host", live.host),
        *own[4:],
    ]
    reply = live.send("PATCH", target, [*fields, *hops], body)
    assert reply.status == 200, reply
    (seen,) = live.seen(id_field[1])
    assert (seen.method, seen.target, bytes(seen.body)) == ("PATCH", target, body)
    replaced = ("authorization", "host", "content-length", "transfer-encoding", "accept-encoding")
    passed = [(name, value) for name, value in seen.headers if name.lower() not in replaced]
    assert passed == [*own, ("Upgrade-Insecure-Requests", "1")]
    assert seen.values("Host") == [live.system.graph.base_url.removeprefix("https://")]
    assert seen.values("Authorization") == [f"Bearer {live.system.identity.tokens[-1]}"]
    assert seen.values("Content-Length") == [str(len(body))]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "MERGE"])
def test_any_method_the_upstream_supports(live: Live, method: str) -> None:
    """The proxy forwards any method of the upstream API, with the same path and query string.

    Request paths begin with `/v1.0/...` or `/beta/...`.
    """
    id_field = new_id()
    for version in ("v1.0", "beta"):
        assert live.send(
            method, f"/{version}/echo/a?b=c", [("Authorization", f"Bearer {live.token('crm')}"), id_field]
        ).status == (200)
    assert [(each.method, each.target) for each in live.seen(id_field[1])] == [
        (method, "/v1.0/echo/a?b=c"),
        (method, "/beta/echo/a?b=c"),
    ]


def test_a_body_in_chunks_arrives_whole(live: Live) -> None:
    """The proxy may change the framing of a request body, as HTTP requires, but never the body's bytes."""
    id_field = new_id()
    parts = [bytes([each]) * (each * 37 + 1) for each in range(200)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts) + b"0\r\n\r\n"
    reply = live.ask("crm", "PUT", "/v1.0/echo/upload", [("Transfer-Encoding", "chunked"), id_field], chunks)
    assert reply.status == 200
    (seen,) = live.seen(id_field[1])
    assert bytes(seen.body) == b"".join(parts)


AWKWARD = (
    b'\xef\xbb\xbf{"n":1.0,"big":12345678901234567890123,"e":-0.0E+1,\r\n"u":"\\u00e5\\/\xc3\xa5","d":1,'
    b'"d":2 ,'
    b'"@odata.context":"https://elsewhere.example/v1.0/$metadata"}\n'
)


def test_the_response_comes_back_byte_for_byte(live: Live) -> None:
    """The proxy returns the response byte for byte: status, header names in case and order, and body."""
    own = [
        ("cONTENT-tYPE", "application/json"),
        ("request-id", "abc"),
        ("X-Odd", "\xe5  b"),
        ("Set-Cookie", "a=1"),
        ("x-odd", "2"),
        ("Set-Cookie", "b=2"),
        ("Cache-Control", "private"),
        ("WWW-Authenticate", "Fun"),
    ]
    live.upstream_says("/v1.0/open/answer", AWKWARD, own)
    reply = live.ask("crm", "GET", "/v1.0/open/answer")
    assert (reply.status, reply.body) == (200, AWKWARD)
    assert [each for each in reply.headers if each[0].lower() != "content-length"] == own
    assert reply.value("Content-Length") == str(len(AWKWARD))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_coded_response_in_which_no_link_changes_keeps_every_byte(live: Live, coding: str) -> None:
    """A response without a rewritten link keeps every byte, compressed or not."""
    packed = gzip.compress(AWKWARD) if coding == "gzip" else zlib.compress(AWKWARD)
    live.upstream_says(f"/v1.0/open/{coding}", packed, [JSON, ("Content-Encoding", coding)])
    reply = live.ask("crm", "GET", f"/v1.0/open/{coding}", [("Accept-Encoding", coding)])
    assert (reply.value("Content-Encoding"), reply.body) == (coding, packed)


def test_hop_by_hop_fields_of_the_response_stay_behind(live: Live) -> None:
    """The proxy drops the hop-by-hop headers of a response (RFC 9110 §7.6.1)."""
    hops = [("Connection", "X-Hop, keep-alive"), ("X-Hop", "1"), ("Keep-Alive", "timeout=5"), ("X-Kept", "1")]
    live.upstream_says("/v1.0/open/hops", b"{}", [JSON, *hops])
    reply = live.ask("crm", "GET", "/v1.0/open/hops")
    assert reply.status == 200
    names = {name.lower() for name, _ in reply.headers}
    assert "x-kept" in names
    assert not names & {"x-hop", "keep-alive", "proxy-connection"}


# Links


def test_links_that_an_sdk_follows_begin_with_the_proxy(live: Live) -> None:
    """Links that an SDK follows begin with the proxy's address; the rest of each link keeps its bytes.

    The rewritten links are @odata.nextLink, @odata.deltaLink, per-property forms, Location, Content-Location
    and Operation-Location. The proxy leaves a link that does not begin with the upstream's base address
    unchanged.
    """
    graph = live.system.graph.base_url
    body = (
        '{"@odata.context":"G/v1.0/$metadata#users","@odata.nextLink" : "G/v1.0/users?$skiptoken=a%2F\\u0026"'
        ',"value":[{"@odata.id":"G/v1.0/x","members@odata.nextLink":"G/v1.0/members?x","uploadUrl":"G/up",'
        '"text":"G/v1.0/text"}],"@odata.deltaLink":"G/v1.0/users/delta?$deltatoken=z","z":1.0}'
    ).replace("G/", f"{graph}/")
    fields = [JSON, ("Location", f"{graph}/v1.0/l"), ("Content-Location", f"{graph}/v1.0/c")]
    fields += [("Operation-Location", f"{graph}/v1.0/o"), ("Link", f"<{graph}/v1.0/k>")]
    live.upstream_says("/v1.0/open/links", body.encode(), fields)
    reply = live.ask("crm", "GET", "/v1.0/open/links")
    expected = body
    for name in ('"@odata.nextLink" : "', '"members@odata.nextLink":"', '"@odata.deltaLink":"'):
        expected = expected.replace(name + graph, name + live.url)
    assert reply.body.decode() == expected
    assert reply.value("Content-Length") == str(len(expected))
    for name, path in (("Location", "l"), ("Content-Location", "c"), ("Operation-Location", "o")):
        assert reply.value(name) == f"{live.url}/v1.0/{path}"
    assert reply.value("Link") == f"<{graph}/v1.0/k>"


@pytest.mark.parametrize(
    "link",
    ["https://elsewhere.example/v1.0/users", "{graph}.evil.example/v1.0", "{graph}0/v1.0", "/v1.0/users"],
)
def test_a_link_that_does_not_begin_with_the_upstream_stays(live: Live, link: str) -> None:
    """The proxy rewrites only links that begin with the upstream's base address."""
    link = link.format(graph=live.system.graph.base_url)
    body = json_of({"@odata.nextLink": link})
    live.upstream_says("/v1.0/open/foreign", body, [JSON, ("Location", link)])
    reply = live.ask("crm", "GET", "/v1.0/open/foreign")
    assert (reply.body, reply.value("Location")) == (body, link)


def test_links_are_found_in_a_compressed_response(live: Live) -> None:
    """If a link stays unchanged, an SDK sends the request for page two, with the proxy JWT, upstream."""
    graph = live.system.graph.base_url
    body = json_of({"@odata.nextLink": f"{graph}/v1.0/users?$skiptoken=1", "value": []})
    live.upstream_says("/v1.0/open/packed", gzip.compress(body), [JSON, ("Content-Encoding", "gzip")])
    reply = live.ask("crm", "GET", "/v1.0/open/packed", [("Accept-Encoding", "gzip")])
    coded = reply.value("Content-Encoding") == "gzip"
    report = gzip.decompress(reply.body) if coded else reply.body
    assert report == body.replace(graph.encode(), live.url.encode())


# Verdicts


def test_block_is_403_with_an_error_body_that_names_the_rule(live: Live) -> None:
    """A 403 means that a rule of the assigned ruleset has the verdict `block`.

    The body of the 403 has code policyBlocked, message, ruleId, and innerError with request-id,
    client-request-id, date.
    """
    id_field = new_id()
    reply = live.ask("crm", "GET", "/v1.0/open/mail/1", [id_field])
    assert reply.status == 403
    error = reply.error
    assert set(reply.json) == {"error"}
    assert (error["code"], error["ruleId"]) == ("policyBlocked", "no-mail")
    assert isinstance(error["message"], str)
    assert error["message"]
    assert set(error["innerError"]) == {"request-id", "client-request-id", "date"}
    assert UUID7.fullmatch(error["innerError"]["request-id"])
    assert error["innerError"]["client-request-id"] == id_field[1]
    time.strptime(error["innerError"]["date"], "%Y-%m-%dT%H:%M:%S")
    assert live.seen(id_field[1]) == []


def test_block_by_default_names_default(live: Live) -> None:
    """If no rule decides, the ruleset's `default` decides, and `ruleId` is `default`."""
    reply = live.ask("crm", "GET", "/v1.0/unlisted")
    assert (reply.status, reply.error["ruleId"]) == (403, "default")


def test_evaluation_happens_after_the_upstream_call_too(live: Live) -> None:
    """A response rule that blocks replaces the upstream's response with a 403 of the proxy."""
    live.upstream_says("/v1.0/open/secret", b'{"sensitivity": "private", "subject": "hush"}')
    id_field = new_id()
    reply = live.ask("crm", "GET", "/v1.0/open/secret", [id_field])
    assert (reply.status, reply.error["ruleId"]) == (403, "after")
    assert b"hush" not in reply.body
    live.upstream_says("/v1.0/open/secret", b'{"sensitivity": "normal", "subject": "hush"}')
    assert live.ask("crm", "GET", "/v1.0/open/secret").json["subject"] == "hush"


def test_filter_strips_properties(live: Live) -> None:
    """The transform `strip_properties` removes the listed properties from a response.

    Properties that are not listed keep their exact text.
    """
    body = (
        b'{ "value":[{"id":1.50,"mobilePhone":"+47","n":"\\u00e5"} , {"MOBILEPHONE":1}],"@odata.count":2e0}'
    )
    live.upstream_says("/v1.0/people", body)
    reply = live.ask("crm", "GET", "/v1.0/people")
    assert reply.status == 200
    assert b"obilephone" not in reply.body.lower()
    assert b'"id":1.50' in reply.body
    assert b'"n":"\\u00e5"' in reply.body
    assert b'"@odata.count":2e0' in reply.body


def test_filter_allows_properties(live: Live) -> None:
    """The transform `allow_properties` is a whitelist: it removes all properties that are not listed."""
    body = b'{"@odata.context":"c","value":[{"id":"1","displayName":"A","mail":"m","x":{"id":2}},{"id":"2"}]}'
    live.upstream_says("/v1.0/groups", body)
    assert live.ask("crm", "GET", "/v1.0/groups").json == {
        "@odata.context": "c",
        "value": [{"id": "1", "displayName": "A"}, {"id": "2"}],
    }


# Status mapping


@pytest.mark.parametrize(
    "status", [200, 201, 202, 204, 206, 301, 302, 304, 307, 400, 403, 404, 409, 412, 418, 429, 451, 499]
)
def test_2xx_3xx_and_4xx_pass_through_unchanged(live: Live, status: int) -> None:
    """An upstream 2xx, 3xx or 4xx passes through unchanged: a 4xx is returned as the same 4xx."""
    body = b"" if status in (204, 304) else b'{"error": {"code": "upstream\'s own"}}'
    id_field = new_id()
    path = f"/v1.0/open/status-{status}"
    if body:
        live.upstream_says(path, body, [JSON, ("request-id", "r")], status)
    else:
        live.system.graph.raw_responses[path] = RawResponse(
            b"HTTP/1.1 %d X\r\nrequest-id: r\r\n\r\n" % status, close=False
        )
    reply = live.ask("crm", "GET", path, [id_field])
    assert (reply.status, reply.body, reply.value("request-id")) == (status, body, "r")


@pytest.mark.parametrize("status", [429, 503, 504])
@pytest.mark.parametrize("retry_after", ["7", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_throttling_is_forwarded_with_retry_after_intact(live: Live, status: int, retry_after: str) -> None:
    """Upstream responses with the status 429, 503 or 504 keep their header `Retry-After`."""
    body = b'{"error": {"code": "TooManyRequests"}}'
    id_field = new_id()
    live.upstream_says("/v1.0/open/throttled", body, [JSON, ("Retry-After", retry_after)], status)
    reply = live.ask("crm", "POST", "/v1.0/open/throttled", [id_field, JSON], b"{}")
    assert (reply.status, reply.value("Retry-After"), reply.body) == (status, retry_after, body)


@pytest.mark.parametrize("status", [500, 501, 502, 505, 507, 508, 511, 599])
def test_every_other_5xx_becomes_502_with_upstream_status(live: Live, status: int) -> None:
    """A 5xx other than 503 and 504 becomes 502 `upstreamError` with `upstreamStatus` in the body."""
    live.upstream_says("/v1.0/open/broken", b"<html>stack trace</html>", [("X-Inner", "1")], status)
    reply = live.ask("crm", "GET", "/v1.0/open/broken")
    assert reply.status == 502
    assert (reply.error["code"], reply.error["upstreamStatus"]) == ("upstreamError", status)
    assert set(reply.error["innerError"]) == {"request-id", "client-request-id", "date"}
    assert b"stack trace" not in reply.body


def test_every_upstream_error_names_the_upstream_status(live: Live) -> None:
    """The body of an error with the code upstreamError (502) contains the member `upstreamStatus`."""
    live.upstream_says("/v1.0/open/odd-coding", b"{}", [JSON, ("Content-Encoding", "x-unheard-of")])
    reply = live.ask("crm", "GET", "/v1.0/open/odd-coding")
    assert (reply.status, reply.error["code"]) == (502, "upstreamError")
    assert reply.error["upstreamStatus"] == 200


def test_an_upstream_that_says_nothing_of_use_is_502(live: Live) -> None:
    """The code upstreamUnreachable has the status 502; a POST that reached the upstream is never repeated."""
    live.system.graph.raw_responses["/v1.0/open/gone"] = RawResponse(b"")
    id_field = new_id()
    reply = live.ask("crm", "POST", "/v1.0/open/gone", [id_field, JSON], b"{}")
    assert (reply.status, reply.error["code"]) == (502, "upstreamUnreachable")
    assert len(live.seen(id_field[1])) == 1


@pytest.mark.parametrize(
    "response",
    [
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{"mob',
        b"HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 26\r\n\r\n<p>mobilePhone +47 900</p>",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{}{}",
    ],
)
def test_a_response_that_cannot_be_filtered_is_502_filter_failed(live: Live, response: bytes) -> None:
    """A filtered body that is malformed, not JSON or in an unknown encoding gives 502 `filterFailed`."""
    live.system.graph.raw_responses["/v1.0/people/odd"] = RawResponse(response)
    reply = live.ask("crm", "GET", "/v1.0/people/odd")
    assert (reply.status, reply.error["code"]) == (502, "filterFailed")


# The proxy's own refusals


@pytest.mark.parametrize("target", ["/v1.0/users/%00", "/v1.0/%c0%af", "/v1.0/%zz", "/v1.0/../../x"])
def test_a_malformed_target_is_400(live: Live, target: str) -> None:
    """The code badRequest (400) means a malformed target (NUL, bad or overlong encoding, …)."""
    id_field = new_id()
    reply = live.ask("reports", "GET", target, [id_field])
    assert (reply.status, reply.error["code"]) == (400, "badRequest")
    assert live.seen(id_field[1]) == []


def test_a_head_that_is_too_large_is_431(live: Live) -> None:
    """The error code headersTooLarge has the HTTP status 431."""
    reply = live.ask("crm", "GET", "/v1.0/echo/x", [("X-Large", "x" * 70_000)])
    assert (reply.status, reply.error["code"]) == (431, "headersTooLarge")


def test_a_batch_that_is_too_large_is_413(live: Live) -> None:
    """The error code payloadTooLarge has the HTTP status 413."""
    reply = live.ask("crm", "POST", "/v1.0/$batch", [JSON, ("Content-Length", str(5 * 1024 * 1024))])
    assert (reply.status, reply.error["code"]) == (413, "payloadTooLarge")


def test_the_proxys_own_errors_have_one_shape(live: Live) -> None:
    """Every error that the proxy itself makes has the same form of error body, with any status."""
    for reply in (
        live.send("GET", "/v1.0/users"),
        live.ask("crm", "GET", "/v1.0/unlisted"),
        live.ask("crm", "GET", "/%00"),
        live.send("GET", "/v1.0/users", [("Host", "a"), ("Host", "b")]),
    ):
        assert (reply.value("Content-Type") or "").startswith("application/json")
        assert set(reply.error) >= {"code", "message", "innerError"}, reply
        assert set(reply.error["innerError"]) == {"request-id", "client-request-id", "date"}


# Credentials and scopes


def test_upstream_scopes_stay_declared_against_the_upstream(live: Live) -> None:
    """The proxy requests its upstream tokens with the scope of the upstream API (`.default` form)."""
    forms = [bytes(each.body).decode() for each in live.system.identity.requests if each.method == "POST"]
    assert forms
    scope = quote(f"https://{urlsplit(live.system.graph.base_url).hostname}/.default", safe="")
    assert all(f"scope={scope}" in form for form in forms)


def test_the_application_never_sees_the_upstream_credential(live: Live) -> None:
    """The proxy holds the real upstream credentials, and the upstream never receives the proxy token."""
    report = b""
    for target in (
        "/v1.0/echo/x",
        "/v1.0/open/links",
        "/v1.0/unlisted",
        "/v1.0/open/gone",
    ):
        reply = live.ask("crm", "GET", target)
        report += reply.body + repr(reply.headers).encode()
    hidden = (*live.system.identity.tokens, *live.system.managed_identity.tokens, CLIENT_SECRET, SIGNING_KEY)
    secrets = [each.encode() for each in hidden]
    logs = b"".join(child.log.read_bytes() for child in live.system.children)
    assert not [secret for secret in secrets if secret in report or secret in logs]
    proxy_tokens = [token.encode() for token in live.tokens.values()]
    for each in live.system.graph.requests:
        assert not [token for token in proxy_tokens if token in each.head or token in each.body]
    assert not [token for token in proxy_tokens if token in logs]


def test_credentials_are_read_from_a_key_vault_through_a_managed_identity(live: Live) -> None:
    """The proxy reads credentials at runtime from a key vault through a managed identity.

    The proxy acquires upstream tokens with the credentials from the vault. The settings file of the proxy
    contains no credentials. A response proves that the proxy read the credentials from the vault.
    """
    assert CLIENT_SECRET not in live.system.proxy_config.read_text("utf-8")
    assert live.ask("crm", "GET", "/v1.0/echo/x").status == 200
    assert set(live.system.vault.reads) == {VAULT_SECRET, VAULT_SIGNING_KEY}
    assert live.system.managed_identity.identities == [""]
    done = run("proxy", "--config", str(live.system.proxy_config), "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "managed-identity-key-vault" in done.stdout


# The audit trail of all this


def test_every_request_produces_an_audit_event(live: Live) -> None:
    """An audit event has method, path, caller, status and rule verdict.

    The audit event names the matched rule and the applied transforms. Audit events contain no bodies. The
    event's verdict, rule and status are the verdict, rule and status of the response to the client.
    """
    live.upstream_says(
        "/v1.0/people", b'{"value":[{"id":1,"mobilePhone":"2"}]}', [JSON, ("request-id", "up-1")]
    )
    marked = json_of({"text": SECRET_MARK})
    rows: list[tuple[str, str, str, int, dict[str, Any]]] = [
        (
            "crm",
            "POST",
            "/v1.0/echo/a?q=%41",
            200,
            {"verdict": "allow", "ruleId": "open", "upstreamStatus": 200},
        ),
        (
            "crm",
            "GET",
            "/v1.0/people",
            200,
            {"verdict": "filter", "ruleId": "strip", "upstreamRequestId": "up-1"},
        ),
        ("crm", "GET", "/v1.0/open/mail/9", 403, {"verdict": "block", "ruleId": "no-mail"}),
        ("crm", "GET", "/v1.0/unlisted", 403, {"verdict": "block", "ruleId": "default", "reason": "default"}),
        (
            "crm",
            "GET",
            "/v1.0/open/watched",
            404,
            {"verdict": "allow", "ruleId": "open", "loggedRuleIds": ["watch"]},
        ),
        ("reports", "GET", "/v1.0/echo/noted", 200, {"verdict": "log_only", "ruleId": "noted"}),
        ("reports", "GET", "/v1.0/echo/other", 200, {"verdict": "allow", "ruleId": "default"}),
        (
            "crm",
            "GET",
            "/v1.0/status/500",
            502,
            {"verdict": "allow", "upstreamStatus": 500, "reason": "upstreamError"},
        ),
        ("crm", "GET", "/v1.0/status/429?retryAfter=3", 429, {"verdict": "allow", "upstreamStatus": 429}),
    ]
    ids = []
    for app, method, target, status, _ in rows:
        id_field = new_id()
        ids.append(id_field[1])
        body = marked if method == "POST" else b""
        assert live.ask(app, method, target, [id_field, JSON], body).status == status
    for (app, method, target, status, wanted), found in zip(rows, live.events(*ids), strict=True):
        path, _, query = target.partition("?")
        assert (found["method"], found["path"], found["status"]) == (method, path, status)
        assert (found.get("query") or "") == query
        assert (found["orgId"], found["clientId"]) == (live.system.org_id, live.app(app).client_id)
        assert {name: found.get(name) for name in wanted} == wanted
        assert found["clientIp"] == "127.0.0.1"
        assert UUID7.fullmatch(found["id"])
        assert RFC3339_MS.fullmatch(found["time"])
        assert found["durationMs"] >= 0
        assert SECRET_MARK not in json.dumps(found)
        if found["verdict"] == "filter":
            assert "mobilePhone" in json.dumps(found["transforms"])
    database = (live.system.directory / "controlplane.db").read_bytes()
    assert SECRET_MARK.encode() not in database


def test_the_event_of_a_refusal_has_the_request_id_that_the_application_saw(live: Live) -> None:
    """The request id in the error body also identifies the audit event."""
    reply = live.ask("crm", "GET", "/v1.0/open/mail/again")
    request_id = reply.error["innerError"]["request-id"]
    found = until(lambda: live.cli("audit", "search", f"request:{request_id}")["events"])
    assert [(each["path"], each["status"]) for each in found] == [("/v1.0/open/mail/again", 403)]


def test_a_changed_ruleset_is_in_force_within_a_sync_interval(live: Live, tmp_path: Path) -> None:
    """The proxy fetches current rulesets; it refuses a bad ruleset and keeps the active version."""
    assert live.ask("reports", "GET", "/v1.0/echo/soon-blocked").status == 200
    file = tmp_path / "reports.yaml"
    file.write_text(REPORTS + "  - {id: closed, match: {path: [/v1.0/echo/soon-blocked]}, verdict: block}\n")
    applied = live.cli("ruleset", "apply", str(file), "--org", live.system.org_id)
    began = time.monotonic()
    until(lambda: live.ask("reports", "GET", "/v1.0/echo/soon-blocked").status == 403)
    assert time.monotonic() - began < 20  # the interval of this system is 1 s, and by default 30 s
    id_field = new_id()
    live.ask("reports", "GET", "/v1.0/echo/soon-blocked", [id_field])
    (found,) = live.events(id_field[1])
    assert (found["ruleId"], found["rulesetVersion"]) == ("closed", applied["version"])
    live.cli("ruleset", "rollback", "reports")
    until(lambda: live.ask("reports", "GET", "/v1.0/echo/soon-blocked").status == 200)


def test_the_proxy_does_not_retry_for_the_application(live: Live) -> None:
    """The application remains responsible for retry and backoff, and for handling 4xx responses."""
    for path, status in (("/v1.0/status/429", 429), ("/v1.0/status/503", 503), ("/v1.0/status/500", 502)):
        id_field = new_id()
        assert live.ask("crm", "GET", path, [id_field]).status == status
        assert len(live.seen(id_field[1])) == 1
