"""Tests of tokens: the proxy accepts only its own tokens, and only a correct secret gets a token."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import argon2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from proxy.rules.credentials import Secret
from proxy.server.callers.known_secrets import KnownSecrets
from proxy.server.callers.rulebook import Rulebook
from proxy.server.callers.token_keeper import RefusedToken, TokenKeeper, UnknownToken, kid_of
from tests.bytes.data_path import (
    ALLOW_ALL,
    CALLER,
    CLIENT_ID,
    CLIENT_SECRET,
    ORG_ID,
    TOKEN_KEY,
    TOKEN_SETTINGS,
    TOKENS,
    DataPath,
    Reply,
    data_path,
    ok,
    responding,
    rulebook,
    without_ids,
)

KEY = TOKEN_KEY
KID = kid_of(KEY)
NOW = int(time.time())

HEADER: dict[str, Any] = {"alg": "HS256", "kid": KID, "typ": "JWT"}
CLAIMS: dict[str, Any] = {
    "iss": "graphward",
    "aud": "graphward",
    "sub": CLIENT_ID,
    "org": ORG_ID,
    "ver": 1,
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 3600,
    "jti": "t",
}


def coded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def signed(
    header: object = None, claims: object = None, *, key: bytes = KEY, digest: str = "sha256"
) -> bytes:
    """Return a token with the given header and claims, signed with `key`.

    If the test gives a header or claims as text, the token contains this text unchanged.
    """
    parts = [
        coded(each.encode() if isinstance(each, str) else json.dumps(each).encode())
        for each in (HEADER if header is None else header, CLAIMS if claims is None else claims)
    ]
    return b".".join([*parts, coded(hmac.digest(key, b".".join(parts), digest))])


def issued(key: bytes = KEY, **changes: Any) -> bytes:
    """Return a token as a second proxy that has this key would issue it."""
    return (
        TokenKeeper(replace(TOKEN_SETTINGS, **changes), [key]).issue(CALLER, now=NOW, token_id="t").encode()
    )


GOOD = signed()
H, P, S = GOOD.split(b".")
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA_PRIVATE = RSA_KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
RSA_PUBLIC = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def _algorithms() -> Iterator[tuple[str, bytes]]:
    for alg in ("none", "None", "NONE", "nOnE", ""):
        header = coded(json.dumps({**HEADER, "alg": alg}).encode())
        yield f"alg {alg!r} without a signature", header + b"." + P + b"."
        yield f"alg {alg!r} with a signature", signed({**HEADER, "alg": alg})
        yield f"alg {alg!r} with another's signature", header + b"." + P + b"." + S
    for alg, digest in (("HS384", "sha384"), ("HS512", "sha512"), ("hs256", "sha256"), ("HS256 ", "sha256")):
        yield f"alg {alg}", signed({**HEADER, "alg": alg}, digest=digest)
    for alg in ("RS256", "PS256"):
        yield f"alg {alg}", jwt.encode(CLAIMS, RSA_PRIVATE, algorithm=alg, headers={"kid": KID}).encode()
    yield "an RSA public key as secret", signed({**HEADER, "alg": "HS256"}, key=RSA_PUBLIC)
    yield "RS256 signed with our secret", signed({**HEADER, "alg": "RS256"})
    for value in (None, 0, True, [], ["HS256"], {"a": "HS256"}):
        yield f"alg {value!r}", signed({**HEADER, "alg": value})
    yield "no alg", signed({"kid": KID, "typ": "JWT"})
    yield "two algs", signed(f'{{"alg":"HS256","alg":"none","kid":"{KID}","typ":"JWT"}}')


def _headers() -> Iterator[tuple[str, bytes]]:
    own = {"kty": "oct", "k": coded(b"attacker").decode()}
    for name, value in (
        ("jku", "http://127.0.0.1:1/keys"),
        ("jwk", own),
        ("x5u", "http://127.0.0.1:1/cert"),
        ("x5c", ["MIIB"]),
        ("x5t", "x"),
        ("x5t#S256", "x"),
        ("crit", ["exp"]),
        ("crit", []),
        ("cty", "JWT"),
        ("zip", "DEF"),
        ("b64", False),
        ("enc", "A128GCM"),
        ("epk", {}),
        ("url", "http://127.0.0.1:1/"),
        ("nonce", "x"),
        ("x", 1),
    ):
        yield f"header with {name} {value!r}", signed({**HEADER, name: value})
        yield (
            f"header with {name} {value!r}, signed with its key",
            signed({**HEADER, name: value}, key=b"attacker"),
        )
    for kid in (
        "",
        "x",
        KID.upper() if KID.upper() != KID else "A" * 16,
        KID + " ",
        "../../../../dev/null",
        "' OR 1=1 --",
        "http://127.0.0.1:1/key",
        None,
        1,
        [KID],
        {"kid": KID},
        "\x00",
        KID[:-1],
    ):
        yield f"kid {kid!r}", signed({**HEADER, "kid": kid})
        yield f"kid {kid!r}, signed with nothing", signed({**HEADER, "kid": kid}, key=b"")
    for garbage in (
        b"\xff",
        b'{"alg":"HS256","kid":"\xff","typ":"JWT"}',
        b'{"\xff":1}',
        b"[" * 2000,
        b'{"a":' * 500,
    ):
        yield f"a header of {garbage[:12]!r}", coded(garbage) + b"." + P + b"." + S
    yield "no kid", signed({"alg": "HS256", "typ": "JWT"})
    yield "no typ", signed({"alg": "HS256", "kid": KID})
    yield "typ a number", signed({**HEADER, "typ": 1})
    for text in (
        "",
        "null",
        "[]",
        "1",
        '"HS256"',
        "{",
        "{}",
        "{}{}",
        "\ufeff" + json.dumps(HEADER),
        "[" * 1000,
    ):
        yield f"header {text[:20]!r}", signed(text)
    yield "header nested deeply", signed(json.dumps({**HEADER, "x": 0})[:-2] + "[" * 900 + "]" * 900 + "}")


def _claims() -> Iterator[tuple[str, bytes]]:
    for name in CLAIMS:
        yield f"no {name}", signed(claims={key: value for key, value in CLAIMS.items() if key != name})
        for value in (None, True, [CLAIMS[name]], {"a": CLAIMS[name]}):
            yield f"{name} {value!r}", signed(claims={**CLAIMS, name: value})
    for name in ("iss", "aud", "sub", "org"):
        for text in ("", "other", CLAIMS[name] + " ", CLAIMS[name].upper(), CLAIMS[name] + "\x00", 1):
            yield f"{name} {text!r}", signed(claims={**CLAIMS, name: text})
    for name in ("exp", "nbf", "iat", "ver"):
        for number in (
            "1e400",
            "-1e400",
            "NaN",
            "Infinity",
            "1" * 5000,
            "-1",
            f'"{NOW + 3600}"',
            f"{NOW + 3600}.5",
            "true",
            "0x7fffffff",
            "01",
            "1_0",
        ):
            if name in ("nbf", "iat") and number == "-1":
                continue  # unusual, but in the past and issued by this proxy
            if name == "exp" and number == "1" * 5000:
                continue  # never expires, but is too long for a token
            text = json.dumps(CLAIMS).replace(
                json.dumps(name) + ": " + str(CLAIMS[name]), f'"{name}": {number}'
            )
            yield f"{name} {number[:20]}", signed(claims=text)
    yield "ended this second", signed(claims={**CLAIMS, "exp": NOW - 1})
    yield "ended long ago", signed(claims={**CLAIMS, "exp": NOW - 10**6, "iat": NOW - 2 * 10**6})
    yield "not before tomorrow", signed(claims={**CLAIMS, "nbf": NOW + 86400})
    yield "issued tomorrow", signed(claims={**CLAIMS, "iat": NOW + 86400})
    yield "of another secret", signed(claims={**CLAIMS, "ver": 2})
    yield "of an older secret", signed(claims={**CLAIMS, "ver": 0})
    text = json.dumps(CLAIMS)[:-1]
    yield "sub twice", signed(claims=text + ',"sub":"client-2"}')
    yield "exp twice", signed(claims=text + ',"exp":1}')
    yield "org twice", signed(claims=text + ',"org":"org-2"}')
    yield "names in capitals", signed(claims={key.upper(): value for key, value in CLAIMS.items()})
    for odd in ("", "null", "[]", "{", text, text + "},", "\x00"):
        yield f"claims {odd[-12:]!r}", signed(claims=odd)


def _damaged() -> Iterator[tuple[str, bytes]]:
    for at in range(0, len(GOOD), 9):
        yield f"without byte {at}", GOOD[:at] + GOOD[at + 1 :]
        other = ALPHABET[(ALPHABET.find(GOOD[at : at + 1]) + 1) % 64 :][:1]
        if GOOD[at : at + 1] != b".":
            yield f"byte {at} changed", GOOD[:at] + other + GOOD[at + 1 :]
    last = ALPHABET.index(S[-1:])
    # 256 bits fill 42 characters and four bits of another, so two bits have no meaning
    for spare in range(1, 4):
        yield f"the same signature spelled otherwise {spare}", GOOD[:-1] + ALPHABET[last ^ spare :][:1]
    yield from (
        ("padding", GOOD + b"="),
        ("padding within", H + b"=." + P + b"." + S),
        ("a fourth part", GOOD + b".x"),
        ("a trailing dot", GOOD + b"."),
        ("a leading dot", b"." + GOOD),
        ("no signature", H + b"." + P + b"."),
        ("two parts", H + b"." + P),
        ("one part", H),
        ("no parts", b".."),
        ("nothing", b""),
        ("a quote", b'"' + GOOD + b'"'),
        ("standard alphabet", GOOD.replace(b"-", b"+").replace(b"_", b"/") + b"+"),
        ("a space within", H + b" ." + P + b"." + S),
        ("a space before the signature", H + b"." + P + b". " + S),
        ("a tab", H + b"\t." + P + b"." + S),
        ("twice", GOOD + b", " + GOOD),
        ("twice with a space", GOOD + b" " + GOOD),
        ("a comma", GOOD + b","),
        ("a letter of its own", GOOD + b"A"),
        ("text beyond ASCII", GOOD + b"\xc3\xa9"),
        ("percent-encoded", GOOD.replace(b".", b"%2E")),
        ("parts exchanged", P + b"." + H + b"." + S),
        ("claims of another token", H + b"." + coded(b"{}") + b"." + S),
        ("an encrypted token", b".".join([H, P, S, P, S])),
        ("a signature of zeros", H + b"." + P + b"." + coded(b"\x00" * 32)),
        ("half a signature", H + b"." + P + b"." + coded(base64.urlsafe_b64decode(S + b"=")[:16])),
        (
            "a signature in hex",
            H + b"." + P + b"." + hmac.new(KEY, H + b"." + P, "sha256").hexdigest().encode(),
        ),
        ("a plain digest", H + b"." + P + b"." + coded(hashlib.sha256(H + b"." + P).digest())),
        ("an empty key", signed(key=b"")),
        ("the key twice", signed(key=KEY + KEY)),
        ("the key with a zero", signed(key=KEY + b"\x00" * 33)),
        ("the kid as key", signed(key=KID.encode())),
        ("another key", signed(key=b"j" * 32)),
        ("huge", GOOD + b"A" * 5000),
        ("another proxy's", issued(key=b"o" * 32)),
        ("another audience's", issued(audience="other")),
        ("another issuer's", issued(issuer="other")),
    )


BAD = [
    ("Bearer " + name, b"Bearer " + text)
    for name, text in (*_algorithms(), *_headers(), *_claims(), *_damaged())
]
SCHEMES = [
    GOOD,
    b"bearer" + GOOD,
    b"Bearer",
    b"Bearer ",
    b"Bearer\t" + GOOD,
    b"Basic " + GOOD,
    b"Token " + GOOD,
    b"JWT " + GOOD,
    b"Bearer: " + GOOD,
    b"Bearer=" + GOOD,
    b'Bearer "' + GOOD + b'"',
    b"Bearer token=" + GOOD,
    b"Bearer Bearer " + GOOD,
    b"Digest x, Bearer " + GOOD,
    b"Bearer " + GOOD + b", Basic x",
    b"PoP " + GOOD,
    b"DPoP " + GOOD,
    b"MSAuth1.0 " + GOOD,
    b"Bearer\xa0" + GOOD,
    b"Bearer \xa0" + GOOD,
    b"Bearer " + GOOD + b"\x85",
]
BAD += [(f"scheme {at}", text) for at, text in enumerate(SCHEMES)]


def test_the_tokens_are_many_and_differ() -> None:
    assert len(BAD) > 250
    assert all(text != b"Bearer " + GOOD for _, text in BAD)


async def test_none_of_them_is_accepted_and_none_leaves_a_trace_upstream(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        for name, text in BAD:
            reply = await asked_with(proxy, text)
            assert reply.status == 401, name
            assert reply.json()["error"]["code"] == "InvalidAuthenticationToken", name
            assert reply.value("www-authenticate"), name
        assert proxy.upstream.received == []
        assert (await asked_with(proxy, b"Bearer " + GOOD)).status == 200
        for spelling in (b"bearer ", b"BEARER ", b"Bearer    "):
            assert (await asked_with(proxy, spelling + GOOD)).status == 200


async def test_one_that_was_good_does_not_open_for_others_after_it(tmp_path: Path) -> None:
    """The proxy's cache of checked tokens uses all bytes of a token as the key."""
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        assert (await asked_with(proxy, b"Bearer " + GOOD)).status == 200
        for at in range(7, len(GOOD) + 7, 40):
            text = bytearray(b"Bearer " + GOOD)
            text[at] ^= 1
            assert (await asked_with(proxy, bytes(text))).status == 401


async def asked_with(proxy: DataPath, authorization: bytes) -> Reply:
    return await proxy.ask(
        b"GET /v1.0/users HTTP/1.1\r\nHost: p\r\nAuthorization: %b\r\n\r\n" % authorization
    )


@pytest.mark.parametrize(
    ("offsets", "accepted"),
    [
        ({"exp": 1}, True),
        ({"exp": 0}, False),
        ({"exp": -1}, False),
        ({"nbf": 5}, True),
        ({"nbf": 6}, False),
        ({"iat": 5}, True),
        ({"iat": 6}, False),
    ],
)
def test_the_edges_of_a_token_s_time(offsets: dict[str, int], accepted: bool) -> None:
    keeper = TokenKeeper(TOKEN_SETTINGS, [KEY])
    keeper.use(rulebook(ALLOW_ALL))
    text = signed(claims={**CLAIMS, **{name: NOW + offset for name, offset in offsets.items()}})
    if accepted:
        assert keeper.caller(b"Bearer " + text, NOW).client_id == CLIENT_ID
    else:
        with pytest.raises(Exception, match="token"):
            keeper.caller(b"Bearer " + text, NOW)


def test_a_remembered_token_ends_when_it_ends() -> None:
    keeper = TokenKeeper(TOKEN_SETTINGS, [KEY])
    keeper.use(rulebook(ALLOW_ALL))
    text = b"Bearer " + keeper.issue(CALLER, now=NOW, token_id="t").encode()
    assert keeper.caller(text, NOW)
    assert keeper.caller(text, NOW + 3599.9)
    with pytest.raises(Exception, match="expired"):
        keeper.caller(text, NOW + 3600)


def test_a_token_in_any_number_of_spellings_is_remembered_in_few() -> None:
    """If the token cache were not small, one application could increase each worker's memory by 45 MB."""
    keeper = TokenKeeper(TOKEN_SETTINGS, [KEY])
    keeper.use(rulebook(ALLOW_ALL))
    text = keeper.issue(CALLER, now=NOW, token_id="t").encode()
    for spaces in range(1, 1000):
        assert keeper.caller(b"Bearer" + b" " * spaces + text, NOW)
    assert len(keeper._remembered.entries) == 1


def changed_caller(**changes: Any) -> Rulebook:
    caller = replace(rulebook(ALLOW_ALL).callers[CLIENT_ID], **changes)
    return Rulebook({CLIENT_ID: caller}, {}, "2", loaded=True)


@pytest.mark.parametrize(
    ("book", "known"),
    [
        (changed_caller(enabled=False), True),
        (changed_caller(secret_version=2), True),
        (changed_caller(org_id="org-2"), True),
        (Rulebook({}, {}, "2", loaded=True), True),
    ],
    ids=["disabled", "secret rotated", "moved", "removed"],
)
async def test_a_token_dies_at_once_on_an_open_connection(
    tmp_path: Path, book: Rulebook, known: bool
) -> None:
    from tests.bytes.data_path import read_reply

    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        proxy.context.use(book)
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 401
        assert len(proxy.upstream.heads) == 1
        first, second = proxy.events()
        assert (first["status"], second["status"], second["reason"]) == (200, 401, "invalidToken")
        assert second["orgId"] == ORG_ID
        writer.close()


# Token endpoint


FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


def form(**fields: str) -> bytes:
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items()).encode()


RIGHT = form(grant_type="client_credentials", client_id=CLIENT_ID, client_secret=CLIENT_SECRET)


async def ask_for_token(
    proxy: DataPath, body: bytes, fields: bytes = FORM, *, target: str = "/proxy/token", method: str = "POST"
) -> Reply:
    head = f"{method} {target} HTTP/1.1\r\nHost: p.example:8443\r\n".encode() + fields
    return await proxy.ask(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def basic(client_id: str, secret: str) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(f"{client_id}:{secret}".encode()) + b"\r\n" + FORM


async def works(proxy: DataPath, reply: Reply) -> None:
    assert reply.status == 200
    assert set(reply.json()) == {"token_type", "expires_in", "access_token"}
    assert (reply.json()["token_type"], reply.json()["expires_in"]) == ("Bearer", 3599)
    assert reply.value("cache-control") == "no-store"
    token = reply.json()["access_token"].encode()
    assert (await asked_with(proxy, b"Bearer " + token)).status == 200
    claims = jwt.decode(token, KEY, ["HS256"], audience="graphward", issuer="graphward")
    assert (claims["sub"], claims["org"], claims["ver"]) == (CLIENT_ID, ORG_ID, 1)
    assert claims["exp"] - claims["iat"] == 3600
    assert set(claims) == {"iss", "aud", "sub", "org", "ver", "iat", "nbf", "exp", "jti"}


GRANT = form(grant_type="client_credentials")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (RIGHT, FORM),
        (RIGHT + b"&scope=https%3A%2F%2Fgraph.microsoft.com%2F.default", FORM),
        (RIGHT + b"&scope=anything+at+all&client_info=1&x-client-SKU=MSAL.Python&claims=%7B%7D", FORM),
        (RIGHT + b"&empty=&novalue", FORM),
        (RIGHT, b"Content-Type: application/x-www-form-urlencoded; charset=utf-8\r\n"),
        (RIGHT, b"content-type: Application/X-WWW-Form-URLEncoded\r\n"),
        (RIGHT.replace(b"%20", b"+"), FORM),
        (RIGHT.replace(b"client-1", b"%63lient%2D1"), FORM),
        (GRANT, basic(CLIENT_ID, CLIENT_SECRET)),
        (GRANT, basic(quote(CLIENT_ID), quote(CLIENT_SECRET))),
        (GRANT + b"&client_id=" + CLIENT_ID.encode(), basic(CLIENT_ID, CLIENT_SECRET)),
        (GRANT, basic(CLIENT_ID, CLIENT_SECRET).replace(b"Basic", b"bAsIc")),
        (RIGHT, b"Authorization: Bearer x\r\n" + FORM),
    ],
)
async def test_the_right_secret_gets_a_token_that_works(tmp_path: Path, body: bytes, fields: bytes) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        await works(proxy, await ask_for_token(proxy, body, fields))
        assert proxy.events()[0]["reason"] == "tokenIssued"


@pytest.mark.parametrize(
    ("body", "fields", "status", "error"),
    [
        (RIGHT.replace(b"secret%20of", b"Secret%20of"), FORM, 401, "invalid_client"),
        (RIGHT + b"x", FORM, 401, "invalid_client"),
        (RIGHT[:-1], FORM, 401, "invalid_client"),
        (RIGHT + b"%00", FORM, 401, "invalid_client"),
        (RIGHT + b"%20", FORM, 401, "invalid_client"),
        (RIGHT.replace(b"client-1", b"client-2"), FORM, 401, "invalid_client"),
        (RIGHT.replace(b"client-1", b"CLIENT-1"), FORM, 401, "invalid_client"),
        (RIGHT.replace(b"client-1", b"client-1%00"), FORM, 401, "invalid_client"),
        (GRANT, FORM, 401, "invalid_client"),
        (GRANT + b"&client_id=client-1", FORM, 401, "invalid_client"),
        (GRANT + b"&client_id=client-1&client_secret=", FORM, 401, "invalid_client"),
        (GRANT, basic(CLIENT_ID, "wrong"), 401, "invalid_client"),
        (GRANT, basic("", ""), 401, "invalid_client"),
        (GRANT, b"Authorization: Basic !!!\r\n" + FORM, 401, "invalid_client"),
        (GRANT, b"Authorization: Basic Y2xpZW50\r\n" + FORM, 401, "invalid_client"),
        (GRANT, b"Authorization: Basic /////w==\r\n" + FORM, 401, "invalid_client"),
        (GRANT, b"Authorization: Basic \r\n" + FORM, 401, "invalid_client"),
        (GRANT, basic(CLIENT_ID, "%ff"), 401, "invalid_client"),
        (RIGHT, basic(CLIENT_ID, CLIENT_SECRET), 400, "invalid_request"),
        (RIGHT + b"&client_id=client-1", FORM, 400, "invalid_request"),
        (RIGHT + b"&client_secret=x", FORM, 400, "invalid_request"),
        (RIGHT + b"&grant_type=client_credentials", FORM, 400, "invalid_request"),
        (RIGHT + b"&x=1&x=2", FORM, 400, "invalid_request"),
        (RIGHT.replace(b"client_credentials", b"password"), FORM, 400, "unsupported_grant_type"),
        (RIGHT.replace(b"client_credentials", b"Client_Credentials"), FORM, 400, "unsupported_grant_type"),
        (RIGHT.replace(b"client_credentials", b"authorization_code"), FORM, 400, "unsupported_grant_type"),
        (RIGHT.replace(b"grant_type", b"grant"), FORM, 400, "invalid_request"),
        (b"", FORM, 400, "invalid_request"),
        (b"&&&", FORM, 400, "invalid_request"),
        (RIGHT, b"", 400, "invalid_request"),
        (RIGHT, b"Content-Type: application/json\r\n", 400, "invalid_request"),
        (RIGHT, b"Content-Type: text/plain\r\n", 400, "invalid_request"),
        (RIGHT, b"Content-Type: multipart/form-data; boundary=x\r\n", 400, "invalid_request"),
        (json.dumps({"grant_type": "client_credentials"}).encode(), FORM, 400, "invalid_request"),
        (RIGHT + b"&x=%ff", FORM, 400, "invalid_request"),
        (RIGHT + b"&x=\xff", FORM, 400, "invalid_request"),
        (RIGHT + b"&a" * 100, FORM, 400, "invalid_request"),
        (gzip.compress(RIGHT, mtime=0), FORM + b"Content-Encoding: gzip\r\n", 400, "invalid_request"),
    ],
)
async def test_everything_else_is_told_apart_as_rfc_6749_does(
    tmp_path: Path, body: bytes, fields: bytes, status: int, error: str
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await ask_for_token(proxy, body, fields)
        assert (reply.status, reply.json()["error"]) == (status, error)
        assert reply.value("cache-control") == "no-store"
        assert b"access_token" not in reply.body
        assert CLIENT_SECRET.encode() not in reply.body
        if status == 401 and b"Authorization: Basic" in fields:
            assert (reply.value("www-authenticate") or "").startswith("Basic ")
        assert proxy.upstream.received == []


async def test_a_wrong_secret_stays_wrong_after_the_right_one(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        for body, status in ((RIGHT, 200), (RIGHT + b"x", 401), (RIGHT, 200), (RIGHT[:-1], 401)):
            assert (await ask_for_token(proxy, body)).status == status
        reasons = [(each["status"], each["reason"]) for each in proxy.events()]
        assert reasons == [
            (200, "tokenIssued"),
            (401, "tokenRefused"),
            (200, "tokenIssued"),
            (401, "tokenRefused"),
        ]


async def test_an_unknown_and_a_known_client_are_refused_in_the_same_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        known = await ask_for_token(proxy, RIGHT + b"x")
        unknown = await ask_for_token(proxy, RIGHT.replace(b"client-1", b"client-9%0A"))
        assert (known.status, without_ids(known)) == (unknown.status, without_ids(unknown))
    # A typing error in the id is visible.
    assert r"refused a token request of the unknown client 'client-9\n' from" in caplog.text


async def test_an_error_has_the_ids_that_identity_libraries_print(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        of_client = b"client-request-id: given-by-client\r\n"
        error = (await ask_for_token(proxy, RIGHT + b"x", FORM + of_client)).json()
        (event,) = proxy.events()
        assert (error["trace_id"], error["correlation_id"]) == (event["requestId"], "given-by-client")
        assert datetime.strptime(error["timestamp"], "%Y-%m-%d %H:%M:%SZ")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_a_token_is_asked_for_with_post_alone(tmp_path: Path, method: str) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await ask_for_token(proxy, b"", target="/proxy/token?" + RIGHT.decode(), method=method)
        assert (reply.status, reply.value("allow")) == (405, "POST")
        assert reply.json()["error"]["code"] == "methodNotAllowed"


async def test_credentials_in_the_query_are_not_read(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await ask_for_token(proxy, GRANT, target="/proxy/token?" + RIGHT.decode())
        assert (reply.status, reply.json()["error"]) == (401, "invalid_client")


@pytest.mark.parametrize("sized", [True, False])
async def test_a_form_over_its_limit_is_refused_before_it_is_whole(tmp_path: Path, sized: bool) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        fields = b"Content-Length: 70000\r\n" if sized else b"Transfer-Encoding: chunked\r\n"
        head = b"POST /proxy/token HTTP/1.1\r\nHost: p\r\n" + FORM + fields + b"\r\n"
        pieces = [b"10000\r\n" + b"a" * 65536 + b"\r\n", b"5\r\n"] if not sized else []
        reply = await proxy.ask(head, *pieces, b"aaaaa")
        assert reply.status == 413
        assert reply.json()["error"]["code"] == "payloadTooLarge"


async def test_a_disabled_application_gets_no_token(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        assert (await ask_for_token(proxy, RIGHT)).status == 200
        proxy.context.use(changed_caller(enabled=False))
        assert (await ask_for_token(proxy, RIGHT)).json()["error"] == "invalid_client"


async def test_while_a_secret_is_rotated_both_are_good_and_then_only_the_new_one(tmp_path: Path) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    old, new = hasher.hash(CLIENT_SECRET), hasher.hash("the new one")
    renewed = form(grant_type="client_credentials", client_id=CLIENT_ID, client_secret="the new one")
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.use(changed_caller(secret_hashes=(new, old)))
        assert (await ask_for_token(proxy, RIGHT)).status == 200
        assert (await ask_for_token(proxy, renewed)).status == 200
        proxy.context.use(changed_caller(secret_hashes=(new,)))
        assert (await ask_for_token(proxy, RIGHT)).status == 401
        assert (await ask_for_token(proxy, renewed)).status == 200


async def test_the_event_names_the_secret_and_one_that_has_ended_brings_nothing(tmp_path: Path) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    old, new = hasher.hash(CLIENT_SECRET), hasher.hash("the new one")
    renewed = form(grant_type="client_credentials", client_id=CLIENT_ID, client_secret="the new one")

    def ending(ends_at: float | None) -> tuple[Secret, ...]:
        return Secret("crd-new", None, new), Secret("crd-old", ends_at, old)

    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.use(changed_caller(secret_hashes=(new, old), credentials=ending(None)))
        for body, named in ((RIGHT, "crd-old"), (renewed, "crd-new"), (RIGHT, "crd-old")):
            assert (await ask_for_token(proxy, body)).status == 200
            assert proxy.events()[-1]["credentialId"] == named
        proxy.context.use(changed_caller(secret_hashes=(new, old), credentials=ending(time.time() - 1)))
        for _ in range(2):
            # also if the control plane is unreachable
            assert (await ask_for_token(proxy, RIGHT)).status == 401
            assert (event := proxy.events()[-1])["reason"] == "tokenRefused"
            assert (event["credentialProblem"], event["credentialId"]) == ("ended", "crd-old")
        proxy.context.known_secrets = KnownSecrets()
        proxy.context.use(changed_caller(secret_hashes=(new,), credentials=ending(time.time() + 60)))
        assert (await ask_for_token(proxy, RIGHT)).status == 401  # the control plane's clock counts too
        assert proxy.events()[-1]["credentialProblem"] == "ended"
        assert (await ask_for_token(proxy, RIGHT + b"x")).status == 401
        assert not proxy.events()[-1].keys() & {"credentialProblem", "credentialId"}
        assert (await ask_for_token(proxy, renewed)).status == 200
        proxy.context.use(changed_caller(secret_hashes=(new, old)))
        assert (await ask_for_token(proxy, RIGHT)).status == 200
        assert "credentialId" not in proxy.events()[-1]


async def test_a_token_by_a_secret_ends_with_the_secret_though_the_control_plane_is_away(
    tmp_path: Path,
) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    old, new = hasher.hash(CLIENT_SECRET), hasher.hash("the new one")
    renewed = form(grant_type="client_credentials", client_id=CLIENT_ID, client_secret="the new one")
    now = int(time.time())

    def use(ends_at: float | None) -> None:
        held = Secret("crd-new", None, new), Secret("crd-old", ends_at, old)
        proxy.context.use(changed_caller(secret_hashes=(new, old), credentials=held))

    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        use(None)
        reply = await ask_for_token(proxy, RIGHT)
        assert reply.json()["expires_in"] == 3599
        token = b"Bearer " + reply.json()["access_token"].encode()
        use(now + 600.5)  # the version then increases, which ends the tokens of both
        for body in (RIGHT, renewed):
            reply = await ask_for_token(proxy, body)
            assert 590 < reply.json()["expires_in"] < 600
            claims = jwt.decode(reply.json()["access_token"], TOKEN_KEY, ["HS256"], audience="graphward")
            assert (claims["exp"], claims.keys() & {"cid", "cnf"}) == (now + 600, set())
        keeper = proxy.context.tokens
        assert keeper.caller(token, now + 599.9).client_id == CLIENT_ID
        with pytest.raises(RefusedToken):
            keeper.caller(token, now + 600.0)
        later = keeper.issue(keeper.caller(token, now), now=now + 601.0, token_id="1")
        assert keeper.caller(b"Bearer " + later.encode(), now + 4200.0)


@pytest.mark.parametrize(
    "stored", ["", "plain", "$argon2id$v=19$broken", "$2b$12$abcdefghijklmnopqrstuv", "\x00"]
)
async def test_a_hash_that_cannot_be_used_lets_nobody_in(tmp_path: Path, stored: str) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.use(changed_caller(secret_hashes=(stored,)))
        assert (await ask_for_token(proxy, RIGHT)).status == 401
        proxy.context.use(changed_caller(secret_hashes=()))
        assert (await ask_for_token(proxy, RIGHT)).status == 401


async def test_rules_that_change_while_a_secret_is_compared_are_the_ones_that_count(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        asking = asyncio.ensure_future(ask_for_token(proxy, RIGHT))
        while not proxy.context.verifying:  # noqa: ASYNC110 - the harness has no event for it
            await asyncio.sleep(0)
        proxy.context.use(changed_caller(enabled=False))
        assert (await asking).status == 401


async def test_other_rules_are_no_reason_to_refuse_the_right_secret(tmp_path: Path) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    old, new = hasher.hash(CLIENT_SECRET), hasher.hash("the new one")
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        for before, after, status in (
            ((old,), (old,), 200),
            ((old,), (new, old), 200),
            ((new, old), (old,), 200),
            ((new, old), (new,), 401),
            ((old,), (new,), 401),
        ):
            proxy.context.known_secrets = KnownSecrets()
            proxy.context.use(changed_caller(secret_hashes=before))
            asking = asyncio.ensure_future(ask_for_token(proxy, RIGHT))
            while not proxy.context.verifying:  # noqa: ASYNC110 - the harness has no event for it
                await asyncio.sleep(0)
            proxy.context.use(changed_caller(secret_hashes=after, ruleset_version=8))
            reply = await asking
            assert reply.status == status
            event = proxy.events()[-1]
            assert (event["status"], event["rulesetVersion"]) == (status, 8 if status == 200 else 7)


async def test_more_comparisons_than_are_sensible_at_once_are_put_off(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.max_verifying = 2
        bodies = [RIGHT + b"%d" % each for each in range(20)]
        replies = await asyncio.gather(*(ask_for_token(proxy, each) for each in bodies))
        assert {reply.status for reply in replies} == {401, 503}
        assert proxy.context.verifying == 0
        await works(proxy, await ask_for_token(proxy, RIGHT))


# Aliases of the endpoint


@pytest.mark.parametrize(
    "tenant", ["contoso.onmicrosoft.com", "common", "adfs", "8f3c0f4e-0000-0000-0000-000000000000", "v2.0"]
)
async def test_identity_libraries_find_the_endpoint_from_their_authority(tmp_path: Path, tenant: str) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        well_known = (
            "/adfs/.well-known/openid-configuration"
            if tenant == "adfs"
            else (f"/{tenant}/v2.0/.well-known/openid-configuration")
        )
        reply = await ask_for_token(proxy, b"", target=well_known, method="GET")
        assert (reply.status, reply.value("content-type")) == (200, "application/json")
        document = reply.json()
        for member in ("token_endpoint", "authorization_endpoint", "issuer", "jwks_uri"):
            assert document[member].startswith("http://p.example:8443/")
        path = document["token_endpoint"].removeprefix("http://p.example:8443")
        assert path == f"/{tenant}/oauth2/v2.0/token"
        await works(proxy, await ask_for_token(proxy, RIGHT, target=path))
        keys = document["jwks_uri"].removeprefix("http://p.example:8443")
        assert (await ask_for_token(proxy, b"", target=keys, method="GET")).json() == {"keys": []}


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/oauth2/v2.0/token",
        "/beta/oauth2/v2.0/token",
        "/proxy/oauth2/v2.0/token",
        "/a/b/oauth2/v2.0/token",
        "/proxy/token/",
        "/Proxy/Token",
        "//proxy/token",
        "/proxy/./token",
        "/v1.0/v2.0/.well-known/openid-configuration",
    ],
)
async def test_nothing_else_is_the_endpoint(tmp_path: Path, target: str) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        for method in ("GET", "POST"):
            reply = await ask_for_token(proxy, RIGHT, target=target, method=method)
            assert reply.status == 401
            assert reply.json()["error"]["code"] == "InvalidAuthenticationToken"
        assert proxy.upstream.received == []


async def test_many_can_ask_at_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(data_path(responding(ok(b"{}")), tmp_path))
        replies = await asyncio.gather(*(ask_for_token(proxy, RIGHT) for _ in range(50)))
        assert {reply.status for reply in replies} == {200}
        assert len({reply.json()["access_token"] for reply in replies}) == 50


def test_a_token_of_ours_is_what_the_tests_sign() -> None:
    keeper = TokenKeeper(TOKEN_SETTINGS, [KEY])
    keeper.use(rulebook(ALLOW_ALL))
    assert keeper.caller(b"Bearer " + GOOD, NOW)
    assert keeper.caller(b"Bearer " + TOKENS.issue(CALLER, now=NOW, token_id="t").encode(), NOW)


# Keys of a fleet, which change


def test_any_key_in_force_is_accepted_and_the_first_signs() -> None:
    old, new = b"o" * 32, b"n" * 32
    keeper = TokenKeeper(TOKEN_SETTINGS, [new, old])
    keeper.use(rulebook(ALLOW_ALL))
    for key in (old, new):
        assert keeper.caller(b"Bearer " + issued(key=key), NOW).client_id == CLIENT_ID
    token = keeper.issue(CALLER, now=NOW, token_id="t")
    assert jwt.get_unverified_header(token)["kid"] == kid_of(new)


def test_a_token_dies_with_its_key_even_if_it_is_remembered() -> None:
    old, new = b"o" * 32, b"n" * 32
    keeper = TokenKeeper(TOKEN_SETTINGS, [old])
    keeper.use(rulebook(ALLOW_ALL))
    authorization = b"Bearer " + issued(key=old)
    keeper.caller(authorization, NOW)
    keeper.use_keys([new, old])
    keeper.caller(authorization, NOW)
    keeper.use_keys([new])
    with pytest.raises(UnknownToken):
        keeper.caller(authorization, NOW)


def test_a_key_does_not_vouch_for_a_token_that_names_another() -> None:
    keeper = TokenKeeper(TOKEN_SETTINGS, [b"n" * 32, b"o" * 32])
    keeper.use(rulebook(ALLOW_ALL))
    crossed = signed({**HEADER, "kid": kid_of(b"n" * 32)}, key=b"o" * 32)
    with pytest.raises(UnknownToken):
        keeper.caller(b"Bearer " + crossed, NOW)


def test_without_a_key_there_is_no_token() -> None:
    keeper = TokenKeeper(TOKEN_SETTINGS)
    assert not keeper.ready
    with pytest.raises(UnknownToken):
        keeper.caller(b"Bearer " + issued(), NOW)
