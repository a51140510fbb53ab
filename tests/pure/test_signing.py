"""Tests of the signing rules of the agent API, each row of the specification with its edge cases."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.signing import (
    sign,
    sign_response,
    timestamp_in_range,
    verify,
    verify_response,
)

SECRET = b"hmac-secret-as-printed"


def test_signature_is_hex_hmac_sha256_of_timestamp_dot_raw_body() -> None:
    body = b'{"batchId": "b",\r\n "events": [] }\n'
    expected = hmac.new(SECRET, b"1700000000." + body, hashlib.sha256).hexdigest()
    assert sign(SECRET, "1700000000", body) == expected
    assert verify(SECRET, "1700000000", body, expected)


def test_empty_body_signs_timestamp_and_dot_alone() -> None:
    expected = hmac.new(SECRET, b"1700000000.", hashlib.sha256).hexdigest()
    assert sign(SECRET, "1700000000", b"") == expected


def test_known_vector() -> None:
    assert sign(b"key", "1", b"a") == hmac.digest(b"key", b"1.a", "sha256").hex()
    assert len(sign(b"key", "1", b"a")) == 64


@pytest.mark.parametrize(
    "spoil",
    [
        str.upper,
        lambda s: s[:-1],
        lambda s: s + "0",
        lambda s: s + "\n",
        lambda s: " " + s,
        lambda s: "0x" + s[2:],
        lambda s: ("0" if s[0] != "0" else "1") + s[1:],
        lambda s: "\uff11" + s[1:],
        lambda s: "",
        lambda s: "\udcff" * 64,
    ],
)
def test_any_other_spelling_of_the_signature_is_a_mismatch(spoil: object) -> None:
    assert callable(spoil)
    good = sign(SECRET, "1700000000", b"x")
    assert verify(SECRET, "1700000000", b"x", good)
    assert not verify(SECRET, "1700000000", b"x", spoil(good))


@pytest.mark.parametrize("body", [b"x ", b"x\n", b"x\r\n", b" x", b""])
def test_a_changed_byte_of_the_body_is_a_mismatch(body: bytes) -> None:
    assert not verify(SECRET, "1700000000", body, sign(SECRET, "1700000000", b"x"))


@given(st.text(), st.binary(max_size=50), st.text())
def test_verify_never_raises(timestamp: str, body: bytes, signature: str) -> None:
    assert verify(SECRET, timestamp, body, signature) is False


@pytest.mark.parametrize(
    ("offset", "accepted"), [(-301, False), (-300, True), (0, True), (300, True), (301, False)]
)
def test_skew_of_300_seconds_is_accepted_and_301_is_not(offset: int, accepted: bool) -> None:
    assert timestamp_in_range(str(1_700_000_000 + offset), 1_700_000_000.9) is accepted


@pytest.mark.parametrize(
    "text", ["", " 1700000000", "1700000000 ", "+1700000000", "1_700_000_000", "1700000000.0", "-1",
             "1700000000\n", "١٧٠٠٠٠٠٠٠٠", "9" * 5000]
)  # fmt: skip
def test_a_timestamp_that_is_not_plain_digits_is_out_of_range(text: str) -> None:
    assert not timestamp_in_range(text, 1_700_000_000)


def test_response_signature_is_bound_to_request_and_body() -> None:
    request = sign(SECRET, "1700000000", b"")
    response = sign_response(SECRET, request, b"{}")
    expected = hmac.new(SECRET, b"response." + request.encode() + b".{}", hashlib.sha256).hexdigest()
    assert response == expected
    assert verify_response(SECRET, request, b"{}", response)
    assert not verify_response(SECRET, request, b"{} ", response)
    assert not verify_response(SECRET, sign(SECRET, "1700000001", b""), b"{}", response)
    assert not verify_response(b"other", request, b"{}", response)
    assert not verify_response(SECRET, request, b"{}", response.upper())
    assert not verify_response(SECRET, request, b"{}", "é" * 64)


def test_a_request_signature_can_not_stand_for_a_response_signature() -> None:
    request = sign(SECRET, "1700000000", b"")
    assert sign(SECRET, "1700000000", b"{}") != sign_response(SECRET, request, b"{}")
