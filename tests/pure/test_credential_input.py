"""Tests of the credentials that operators enter: only public keys are accepted, and refusals are helpful."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from controlplane.credential_input import (
    MOST_UNNAMED_KEYS,
    InvalidCredential,
    certificate_text,
    checked_certificate,
    checked_issuer,
    checked_jwks,
    checked_key,
    checked_text,
    key_words,
)
from proxy.server.assertions.keys import MAX_EXPONENT, MOST_CANDIDATES
from tests.fakes.certificates import CertificateAuthority, client_certificate

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
RSA_JWK: dict[str, Any] = RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True)
EC_JWK: dict[str, Any] = ECAlgorithm.to_jwk(EC.public_key(), as_dict=True)


def pem(key: Any) -> str:
    text: str = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return text


def private_pem(key: Any) -> str:
    text: str = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return text


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "text",
    [
        "https://login.microsoftonline.com/72f988bf/v2.0",
        "https://token.actions.githubusercontent.com",
        "https://issuer.example:8443/path/",
    ],
)
def test_an_issuer_is_kept_letter_for_letter(text: str) -> None:
    assert checked_issuer(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "issuer.example", "http://issuer.example", "HTTPS://issuer.example", "https://"),
        *("https://issuer.example?x=1", "https://issuer.example#x", "https://user@issuer.example"),
        *("https://issuer.example/a b", "https://issuer.example/\n", " https://issuer.example"),
        *("https://issuer.example/a/../b", "https://issuer.example/%2E%2e/x", "https://issuer.example/."),
        *("https://issuer.example:99999", "https://issuer.example/\u200b", "https://issuer.example?"),
    ],
)
def test_an_issuer_that_no_token_could_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidCredential, match=r"^issuer: "):
        checked_issuer(text)


def test_a_subject_is_one_line_that_can_be_seen() -> None:
    assert checked_text("subject", "repo:contoso/api:environment:prod") == "repo:contoso/api:environment:prod"
    for text in ("", "two\nlines", " spaces ", "zero\u200bwidth", "x" * 1001):
        with pytest.raises(InvalidCredential, match=r"^subject: "):
            checked_text("subject", text)


@pytest.mark.parametrize(
    ("key", "words"),
    [(RSA, "RSA 2048"), (EC, "EC P-256"), (ec.generate_private_key(ec.SECP521R1()), "EC P-521")],
)
def test_a_public_key_in_pem_and_as_jwk_is_the_same_key(key: Any, words: str) -> None:
    by_pem = checked_key(pem(key))
    assert key_words(by_pem.jwk) == words
    assert checked_key(json.dumps(dict(by_pem.jwk))) == by_pem
    assert (by_pem.thumbprints, by_pem.ends_at) == ((), None)
    named = checked_key(json.dumps({**by_pem.jwk, "kid": "key-1", "use": "sig", "x5c": ["MAA="]}))
    assert named.jwk == {**by_pem.jwk, "kid": "key-1"}
    assert named.identity == by_pem.identity


def test_a_certificate_gives_its_key_its_thumbprints_and_its_end() -> None:
    made = client_certificate(days=30, key=RSA).certificate
    text = made.public_bytes(Encoding.PEM).decode()
    key = checked_key(text)
    der = made.public_bytes(Encoding.DER)
    assert key.jwk == checked_key(pem(RSA)).jwk
    assert key.thumbprints == (base64url(sha1(der).digest()), base64url(sha256(der).digest()))
    assert key.ends_at == made.not_valid_after_utc
    found = checked_certificate("leaf first\n" + text + "\nand its issuer\n" + text)
    assert (found.der, found.thumbprint) == (der, key.thumbprints[1])
    assert found.subject == "CN=graphward-client"
    assert found.ends_at - datetime.now(UTC) < timedelta(days=31)
    assert checked_certificate(certificate_text(der)) == found
    assert checked_certificate(certificate_text(text.encode())) == found


def test_a_certificate_that_tls_would_refuse_of_a_client_is_refused(tmp_path: Path) -> None:
    server = CertificateAuthority(tmp_path).server().cert_file.read_text()
    with pytest.raises(InvalidCredential, match="lack clientAuth"):
        checked_certificate(server)
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
    for extension, critical, what in (
        (key_usage("key_encipherment"), True, "lack digitalSignature"),
        (key_usage("key_cert_sign"), False, "lack digitalSignature"),
        (unknown, True, r"1\.2\.3\.4 is critical"),
    ):
        with pytest.raises(InvalidCredential, match=what):
            checked_certificate(certificate_with(extension, critical=critical))
    for extension, critical in ((key_usage("digital_signature"), True), (unknown, False)):
        checked_certificate(certificate_with(extension, critical=critical))


def key_usage(allowed: str) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: name == allowed for name in names})


def certificate_with(extension: x509.ExtensionType, *, critical: bool) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "app")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, EC.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(extension, critical=critical)
        .sign(EC, SHA256())
    )
    return made.public_bytes(Encoding.PEM).decode()


def test_a_key_that_no_proxy_verifies_by_is_refused() -> None:
    numbers = RSA.public_key().public_numbers()
    for broken in (rsa.RSAPublicNumbers((1 << 33) + 1, numbers.n), rsa.RSAPublicNumbers(3, numbers.n + 1)):
        jwk = RSAAlgorithm.to_jwk(broken.public_key(), as_dict=True)
        with pytest.raises(InvalidCredential, match="odd modulus and an exponent below"):
            checked_key(json.dumps(jwk))
    assert (MOST_UNNAMED_KEYS, 1 << 32) == (MOST_CANDIDATES, MAX_EXPONENT)  # the proxy's own limits


@pytest.mark.parametrize(
    "text",
    [
        private_pem(RSA),
        pem(RSA) + private_pem(EC),
        client_certificate(key=RSA).pem,
        RSAAlgorithm.to_jwk(RSA),
        ECAlgorithm.to_jwk(EC),
    ],
)
def test_a_private_key_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidCredential, match="private key") as refused:
        checked_key(text)
    assert not any(part in str(refused.value) for part in text.split() if len(part) > 20)
    with pytest.raises(InvalidCredential):
        checked_certificate(text)
    with pytest.raises(InvalidCredential):
        checked_jwks(json.dumps({"keys": [json.loads(text) if text.startswith("{") else text]}))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (pem(rsa.generate_private_key(65537, 1024)), "2048 to 8192 bits"),
        (pem(ec.generate_private_key(ec.SECP256K1())), "P-256"),
        (pem(ed25519.Ed25519PrivateKey.generate()), "RSA key"),
        ('{"kty": "oct", "k": "c2VjcmV0"}', "shared secret"),
        ('{"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"}', "not a JWK"),
        ('{"kty": ["RSA"]}', "not a JWK"),
        ("{", "not JSON"),
        ("[" * 100_000, "longer than"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "can't be read"),
        ("ssh-rsa AAAA", "PEM public key"),
        ("", "PEM public key"),
    ],
)
def test_a_key_that_proves_nothing_is_refused(text: str, what: str) -> None:
    with pytest.raises(InvalidCredential, match=f"^key: .*{what}"):
        checked_key(text)


def test_of_a_jwks_the_public_keys_for_signatures_are_kept() -> None:
    keys = [
        RSA_JWK | {"kid": "one", "use": "sig", "alg": "RS256", "x5c": ["MAA="]},
        EC_JWK | {"kid": "two"},
        RSA_JWK | {"kid": "three", "use": "enc"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"},
    ]
    kept = checked_jwks(json.dumps({"keys": keys}))["keys"]
    assert [(key["kid"], key["kty"], key.get("alg")) for key in kept] == [
        ("one", "RSA", "RS256"),
        ("two", "EC", None),
    ]
    assert "x5c" not in kept[0]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ([], "JSON object"),
        ({}, "list `keys`"),
        ({"keys": []}, "not empty"),
        ({"keys": ["x"]}, "key 1: must be"),
        ({"keys": [RSA_JWK, RSA_JWK]}, "each needs its own `kid`"),
        ({"keys": [{"kty": "OKP"}]}, "no RSA or EC key"),
        ({"keys": [EC_JWK | {"kid": str(at)} for at in range(21)]}, "at most 20"),
        ({"keys": [EC_JWK | {"d": "AAAA"}]}, "private key"),
        ({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}, "shared secret"),
    ],
)
def test_a_jwks_without_usable_keys_is_refused(document: Any, what: str) -> None:
    with pytest.raises(InvalidCredential, match=f"^keys: .*{what}"):
        checked_jwks(json.dumps(document))
