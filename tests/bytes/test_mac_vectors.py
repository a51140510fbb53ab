"""Tests of each HMAC-SHA256 check in the proxy, with published vectors and with almost correct tags.

The test vectors are from RFC 4231, RFC 7515 appendix A.1, and the HS256 group of Wycheproof's JSON Web
Signature vectors. The vectors for JWS are suitable, because a JWS signs a text with one dot, like a request's
canonical payload.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterator
from typing import Final

import pytest

from proxy.server.callers.token_keeper import TokenKeeper, UnknownToken
from proxy.wire.signing import sign, sign_response, verify, verify_response
from tests.bytes.data_path import ALLOW_ALL, CALLER, TOKEN_KEY, TOKEN_SETTINGS, rulebook

NOW: Final = 1_800_000_000


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


RFC_4231: Final = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (
        bytes(range(1, 26)),
        b"\xcd" * 50,
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
    ),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
]
# key, signing input and signature, as in compact serialisations
JWS: Final = [
    (
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
        (
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9."
            "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
        ),
        "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    ),
    (
        "-ebuDNsVZ2iJtoZ-akfXTSCt4UO2cruLCsbWlBinggE",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImtpZC1hZXMtc2lnbiJ9.Zm9v",
        "TD37p4c_0jmreSrBSDmE0F3mYSPtkZ3WrSyI5wb_KTg",
    ),
]


@pytest.mark.parametrize(("key", "message", "expected"), RFC_4231)
def test_the_primitive_is_the_published_one(key: bytes, message: bytes, expected: str) -> None:
    assert hmac.digest(key, message, "sha256").hex() == expected


@pytest.mark.parametrize(("key", "signing_input", "signature"), JWS)
def test_the_canonical_payload_is_text_dot_body(key: str, signing_input: str, signature: str) -> None:
    before, _, after = signing_input.partition(".")
    assert sign(decoded(key), before, after.encode()) == decoded(signature).hex()
    assert verify(decoded(key), before, after.encode(), decoded(signature).hex())


def nearly(mac: bytes) -> Iterator[bytes]:
    """Yield wrong HMAC tags that a careless comparison could accept."""
    for bit in range(len(mac) * 8):
        flipped = bytearray(mac)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for length in range(len(mac)):
        yield mac[:length]
        if length:
            yield mac[length:]
    yield from (mac + b"\0", b"\0" + mac, mac + mac, mac[16:] + mac[:16], mac[::-1])
    yield from (bytes(len(mac)), b"\xff" * len(mac), bytes(each ^ 0xFF for each in mac))
    yield bytes(each ^ 0x80 for each in mac)


def test_the_wrong_tags_are_many() -> None:
    mac = hmac.digest(b"k", b"m", "sha256")
    wrong = list(nearly(mac))
    assert len(wrong) > 320
    assert mac not in wrong


def test_no_request_s_signature_is_nearly_right() -> None:
    secret, body = b"s" * 32, b'{"a":1}'
    mac = bytes.fromhex(sign(secret, str(NOW), body))
    for wrong in nearly(mac):
        assert not verify(secret, str(NOW), body, wrong.hex())
    right = mac.hex()
    for text in (right.upper(), right + "\n", " " + right, "0x" + right, right[:-1] + "G", right[:-1] + "٠"):
        assert not verify(secret, str(NOW), body, text)
    assert verify(secret, str(NOW), body, right)


def test_no_response_s_signature_is_nearly_right() -> None:
    secret, body, of_request = b"s" * 32, b"{}", "a" * 64
    mac = bytes.fromhex(sign_response(secret, of_request, body))
    for wrong in nearly(mac):
        assert not verify_response(secret, of_request, body, wrong.hex())
    assert verify_response(secret, of_request, body, mac.hex())


@pytest.mark.parametrize(
    ("timestamp", "body"),
    [("1800000001", b"x"), ("180000000", b"0.x"), ("1800000000", b"x\n"), ("1800000000", b""), ("", b"x")],
)
def test_a_signature_is_for_its_own_time_and_bytes(timestamp: str, body: bytes) -> None:
    secret = b"s" * 32
    assert not verify(secret, timestamp, body, sign(secret, str(NOW), b"x"))


@pytest.fixture
def keeper() -> TokenKeeper:
    keeper = TokenKeeper(TOKEN_SETTINGS, [TOKEN_KEY])
    keeper.use(rulebook(ALLOW_ALL))
    return keeper


def test_no_token_s_signature_is_nearly_right(keeper: TokenKeeper) -> None:
    token = keeper.issue(CALLER, now=NOW, token_id="t")
    signed, _, signature = token.rpartition(".")
    for wrong in nearly(decoded(signature)):
        text = base64.urlsafe_b64encode(wrong).rstrip(b"=")
        with pytest.raises(UnknownToken):
            keeper.caller(f"Bearer {signed}.".encode() + text, NOW)
    assert keeper.caller(f"Bearer {token}".encode(), NOW)


def test_no_token_s_form_is_nearly_right(keeper: TokenKeeper) -> None:
    """The test damages a valid token in each way that Wycheproof lists for the compact serialisation."""
    token = keeper.issue(CALLER, now=NOW, token_id="t")
    header, payload, signature = token.split(".")
    none = base64.urlsafe_b64encode(decoded(header).replace(b"HS256", b"none")).rstrip(b"=").decode()
    forms = [
        f"{header}.{payload}.X{signature[1:]}",
        f"{header}.{payload}.",
        f"{header}.{payload}",
        f"{header}.X{payload[1:]}.{signature}",
        f"{header}..{signature}",
        f"{header}.{signature}",
        f"X{header[1:]}.{payload}.{signature}",
        f".{payload}.{signature}",
        f"{payload}.{signature}",
        f".{payload}.",
        payload,
        "",
        f"{token}.",
        f"{token}.foo",
        f"{none}.{payload}.",
        f'{{"payload":"{payload}","signatures":[{{"protected":"{header}","signature":"{signature}"}}]}}',
    ]
    for form in forms:
        with pytest.raises(UnknownToken):
            keeper.caller(f"Bearer {form}".encode(), NOW)
