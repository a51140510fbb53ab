"""Tests of client assertions: each broken requirement gets a refusal (RFC 7521, 7523, 8725)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from proxy.rules.credentials import Federated, PublicKey
from proxy.server.assertions.assertion import AssertionRefused, parse_assertion
from proxy.server.assertions.judge import Expectations, Reuse, is_own_audience, judge
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS
from tests.fakes.issuer import SigningKey
from tests.fakes.issuer import coded as base64url

NOW = 1_800_000_000
CLIENT = "client-1"
BASE = "https://graph.contoso.example"
TOKEN_ENDPOINT = f"{BASE}/adfs/oauth2/v2.0/token"
ISSUER, SUBJECT, AUDIENCE = "https://issuer.example/cluster", "system:serviceaccount:a:b", "api://graphward"
RSA = SigningKey(rsa.generate_private_key(65537, 2048), key_id="rsa-1")
EC = SigningKey(key_id="ec-1")
OTHER = SigningKey(key_id="ec-1")  # another key with the same id
OTHER_RSA = SigningKey(rsa.generate_private_key(65537, 2048), key_id="rsa-1")
CURVE_384, CURVE_521 = (
    SigningKey(ec.generate_private_key(curve), key_id=curve.name)
    for curve in (ec.SECP384R1(), ec.SECP521R1())
)
WEAK = SigningKey(rsa.generate_private_key(65537, 1024), key_id="weak")

REGISTERED = PublicKey("crd-key", None, RSA.jwk, ("thumb-1", "thumb-256"))
FEDERATED = Federated("crd-fed", None, ISSUER, SUBJECT, AUDIENCE, "once", {"keys": [RSA.jwk, EC.jwk]})
DISCOVERED = replace(FEDERATED, id="crd-dis", keys=None)

OWN = {"iss": CLIENT, "sub": CLIENT, "aud": TOKEN_ENDPOINT, "iat": NOW, "exp": NOW + 600, "jti": "1"}
FOREIGN = {"iss": ISSUER, "sub": SUBJECT, "aud": AUDIENCE, "iat": NOW, "exp": NOW + 600, "jti": "1"}


def own(key: SigningKey = RSA, algorithm: str | None = None, header: Any = None, **changes: Any) -> str:
    return signed(OWN, key, algorithm, header, changes)


def foreign(key: SigningKey = EC, algorithm: str | None = None, header: Any = None, **changes: Any) -> str:
    return signed(FOREIGN, key, algorithm, header, changes)


def signed(claims: Any, key: SigningKey, algorithm: str | None, header: Any, changes: Any) -> str:
    merged = {name: value for name, value in (claims | changes).items() if value is not None}
    return key.sign(merged, algorithm=algorithm, **(header or {}))


def coded(value: Any) -> str:
    return base64url(value if isinstance(value, bytes) else json.dumps(value).encode())


def with_parts(text: str, *, header: Any = None, claims: Any = None, signature: str | None = None) -> str:
    """Return the assertion with the given parts replaced.

    If `signature` is None, the assertion keeps its signature.
    """
    parts = text.split(".")
    if header is not None:
        parts[0] = coded(header)
    if claims is not None:
        parts[1] = coded(claims)
    if signature is not None:
        parts[2] = signature
    return ".".join(parts)


def resigned(key: SigningKey, header: bytes | dict[str, Any], claims: bytes | dict[str, Any]) -> str:
    """Sign any bytes as the header and claims of an assertion, with the algorithm of the key."""
    first, second = (
        each if isinstance(each, bytes) else json.dumps(each).encode() for each in (header, claims)
    )
    return key.sign_bytes(first, second)


def outcome(text: str, *credentials: Any, base: str = BASE, keys: Any = None, now: float = NOW) -> str:
    """Return the id of the credential that verifies the assertion, or the reason for the refusal."""
    try:
        proof = judge(
            parse_assertion(text), CLIENT, credentials or (REGISTERED, FEDERATED), lambda issuer: keys,
            Expectations(base, clock_skew=60.0), now,
        )  # fmt: skip
    except AssertionRefused as refused:
        return refused.problem if refused.problem in CREDENTIAL_PROBLEMS else "not a problem"
    return proof.credential.id


HS_WITH_PUBLIC_KEY = ".".join(
    [coded({"alg": "HS256", "kid": "rsa-1"}), coded(OWN), coded(b"\0" * 32)]
)  # refused because of the algorithm, whatever the signature is
EC_SIGNATURE = foreign().split(".")[2]
FLIPPED = coded(bytes([base64.urlsafe_b64decode(EC_SIGNATURE + "==")[0] ^ 1]) + b"\1" * 63)
TWICE = b'{"iss":"x",' + json.dumps(OWN).encode()[1:]
DEEP = b'{"iss":' + b"[" * 7000 + b"]" * 7000 + b"}"


def padded() -> str:
    """Return a signed assertion with padded base64 parts, as azure-identity makes it."""
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in ({"alg": "RS256"}, OWN)]
    text = ".".join(parts)
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(text.encode(), RSA.private)  # type: ignore[arg-type]
    return f"{text}.{base64.urlsafe_b64encode(signature).decode()}"


ACCEPTED = {
    "a registered RSA key, RS256": own(),
    "RS384": own(algorithm="RS384"),
    "PS256, as MSAL signs": own(algorithm="PS256", header={"kid": None, "x5t#S256": "thumb-256"}),
    "PS512": own(algorithm="PS512"),
    "a thumbprint with padding, as MSAL writes it": own(header={"kid": None, "x5t": "thumb-1="}),
    "times with fractions, as MSAL writes them": own(iat=NOW + 0.25, exp=NOW + 600.25),
    "no iat but nbf, as MSAL Node": own(iat=None, nbf=NOW),
    "parts with padding, as azure-identity writes them": padded(),
    "no id": own(jti=None),
    "the audience as a list of one": own(aud=[TOKEN_ENDPOINT]),
    "the proxy's own path": own(aud=f"{BASE}/proxy/token"),
    "the issuer of a tenant": own(aud=f"{BASE}/contoso.com/v2.0"),
    "a chain in x5c, which nobody reads": own(header={"x5c": ["MII"]}),
    "the clock of the application ahead within the skew": own(iat=NOW + 59),
    "behind within the skew": own(iat=NOW - 700, exp=NOW - 59),
}

REFUSED = {
    # Structure
    "empty": ("", "malformed"),
    "two parts": ("e30.e30", "malformed"),
    "five parts, a nested JWE": ("e30.e30.e30.e30.e30", "malformed"),
    "too long": (own(filler="x" * 16_384), "malformed"),
    "not base64url": (own().replace(".", "!.", 1), "malformed"),
    "half of the padding": (own() + "=", "malformed"),
    "padding that was not signed": (own().replace(".", "=.", 1), "malformed"),
    "a line break": (own() + "\n", "malformed"),
    "header is a list": (with_parts(own(), header=[]), "malformed"),
    "header is not JSON": (with_parts(own(), header=b"{"), "malformed"),
    "header is not UTF-8": (with_parts(own(), header=b'{"alg":"\xff"}'), "malformed"),
    "header with a byte order mark": (with_parts(own(), header=b'\xef\xbb\xbf{"alg":"RS256"}'), "malformed"),
    "algorithm twice": (resigned(RSA, b'{"alg":"none","alg":"RS256"}', OWN), "malformed"),
    "claim twice": (resigned(RSA, {"alg": "RS256"}, TWICE), "malformed"),
    "nested deeply": (resigned(RSA, {"alg": "RS256"}, DEEP), "malformed"),
    "NaN": (resigned(RSA, {"alg": "RS256"}, OWN | {"exp": float("nan")}), "malformed"),
    "a number of 5000 digits": (
        resigned(RSA, {"alg": "RS256"}, b'{"exp":%b}' % (b"7" * 5000)), "malformed",
    ),
    "half a character": (resigned(RSA, {"alg": "RS256"}, OWN | {"jti": "\ud800"}), "malformed"),
    # Header
    "no algorithm": (resigned(RSA, {"kid": "rsa-1"}, OWN), "malformed"),
    "algorithm none": (with_parts(own(), header={"alg": "none"}, signature=""), "algorithm"),
    "algorithm None": (with_parts(own(), header={"alg": "None"}, signature=""), "algorithm"),
    "HS256 with the public key": (HS_WITH_PUBLIC_KEY, "algorithm"),
    "EdDSA": (with_parts(own(), header={"alg": "EdDSA"}), "algorithm"),
    "ES256K": (with_parts(own(), header={"alg": "ES256K"}), "algorithm"),
    "its own key in jwk": (own(OTHER_RSA, header={"jwk": OTHER_RSA.jwk}), "malformed"),
    "its own key at jku": (own(OTHER_RSA, header={"jku": "https://evil.example"}), "malformed"),
    "its own key at x5u": (own(OTHER_RSA, header={"x5u": "https://evil.example"}), "malformed"),
    "crit": (own(header={"crit": ["exp"]}), "malformed"),
    "a payload that is not coded": (own(header={"b64": False, "crit": ["b64"]}), "malformed"),
    "compressed": (own(header={"zip": "DEF"}), "malformed"),
    "a nested JWT": (own(header={"cty": "JWT"}), "malformed"),
    "a token of another kind": (own(header={"typ": "dpop+jwt"}), "malformed"),
    "a key id that is a number": (resigned(RSA, {"alg": "RS256", "kid": 1}, OWN), "malformed"),
    # Issuer and subject
    "no issuer": (own(iss=None), "malformed"),
    "an issuer in a list": (own(iss=[CLIENT]), "malformed"),
    "another client as issuer": (own(iss="client-2"), "issuer"),
    "another issuer": (foreign(iss="https://issuer.example/other"), "issuer"),
    "the issuer with a slash": (foreign(iss=ISSUER + "/"), "issuer"),
    "the issuer in capitals": (foreign(iss=ISSUER.upper()), "issuer"),
    "another client as subject": (own(sub="client-2"), "subject"),
    "another subject": (foreign(sub=SUBJECT + "b"), "subject"),
    "the subject in capitals": (foreign(sub=SUBJECT.upper()), "subject"),
    "another audience": (foreign(aud="api://other"), "audience"),
    "several audiences": (foreign(aud=[AUDIENCE, "api://other"]), "audience"),
    "no audience": (foreign(aud=None), "audience"),
    "an audience that is a number": (foreign(aud=1), "audience"),
    "another host": (own(aud="https://evil.example/proxy/token"), "audience"),
    "a longer host": (own(aud=f"{BASE}.evil.example/proxy/token"), "audience"),
    "a path of another service there": (own(aud=f"{BASE}/v1.0/oauth2/v2.0/token"), "audience"),
    "a query": (own(aud=f"{TOKEN_ENDPOINT}?x"), "audience"),
    # Times
    "no end": (own(exp=None), "lifetime"),
    "ended": (own(exp=NOW - 61), "expired"),
    "an end that is text": (own(exp=str(NOW + 600)), "malformed"),
    "an end that is true": (own(exp=True), "malformed"),
    "an end that is negative": (own(exp=-1), "malformed"),
    "an end that is beyond all": (own(exp=1e300), "malformed"),
    "issued ahead": (own(iat=NOW + 61, exp=NOW + 700), "notYetValid"),
    "not valid yet": (own(nbf=NOW + 61, exp=NOW + 700), "notYetValid"),
    "good for too long": (own(exp=NOW + 3601), "lifetime"),
    "good for too long, and nothing says since when": (own(iat=None, exp=NOW + 3700), "lifetime"),
    "a federated token that is good for too long": (foreign(exp=NOW + 90_001), "lifetime"),
    # Keys and signatures
    "another key under the same id": (foreign(OTHER), "signature"),
    "another RSA key under the same id": (own(OTHER_RSA), "signature"),
    "an unknown key id": (foreign(OTHER, header={"kid": "new"}), "key"),
    "another thumbprint": (own(OTHER_RSA, header={"kid": None, "x5t": "thumb-2"}), "key"),
    "an elliptic curve's algorithm for an RSA key": (
        with_parts(own(), header={"alg": "ES256", "kid": "rsa-1"}), "algorithm",
    ),
    "RSA's algorithm for an elliptic curve": (
        with_parts(foreign(), header={"alg": "RS256", "kid": "ec-1"}), "algorithm",
    ),
    "another curve's algorithm": (with_parts(foreign(), header={"alg": "ES384", "kid": "ec-1"}), "algorithm"),
    "PS256 said, RS256 signed": (with_parts(own(), header={"alg": "PS256", "kid": "rsa-1"}), "signature"),
    "no signature": (with_parts(own(), signature=""), "signature"),
    "zeros (CVE-2022-21449)": (with_parts(foreign(), signature=coded(b"\0" * 64)), "signature"),
    "a signature in DER": (with_parts(foreign(), signature=coded(b"\x30\x06\2\1\1\2\1\1")), "signature"),
    "a changed signature": (with_parts(foreign(), signature=FLIPPED), "signature"),
    "a changed claim": (with_parts(own(), claims=OWN | {"jti": "2"}), "signature"),
    "a changed header": (with_parts(own(), header={"alg": "RS256", "kid": "rsa-1", "x": 1}), "signature"),
}  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED)
def test_an_assertion_that_keeps_the_rules_proves_the_credential_of_its_key(case: str) -> None:
    assert outcome(ACCEPTED[case]) == "crd-key"


@pytest.mark.parametrize("case", REFUSED)
def test_an_assertion_that_breaks_a_rule_proves_nobody(case: str) -> None:
    text, problem = REFUSED[case]
    assert outcome(text) == problem


def test_a_federated_assertion_proves_the_credential_that_pins_it() -> None:
    for text in (foreign(), foreign(RSA), foreign(aud=[AUDIENCE]), foreign(exp=NOW + 86_400)):
        assert outcome(text) == "crd-fed"
    for key in (CURVE_384, CURVE_521):
        assert outcome(foreign(key), replace(FEDERATED, keys={"keys": [key.jwk]})) == "crd-fed"
    without_id = SigningKey(EC.private, key_id=None)
    assert outcome(foreign(without_id)) == "crd-fed"  # the only key that matches
    assert outcome(foreign(without_id), replace(FEDERATED, keys={"keys": [EC.jwk] * 5})) == "key"


def test_discovered_keys_count_only_while_they_are_recent_enough() -> None:
    assert outcome(foreign(), DISCOVERED) == "keysUnavailable"
    assert outcome(foreign(), DISCOVERED, keys=[EC.jwk]) == "crd-dis"
    with pytest.raises(AssertionRefused) as caught:
        judge(
            parse_assertion(foreign(OTHER, header={"kid": "new"})), CLIENT, (DISCOVERED,),
            lambda each: [EC.jwk], Expectations(BASE, 60.0), NOW,
        )  # fmt: skip
    assert (caught.value.problem, caught.value.unknown_key_of) == ("key", ISSUER)


def test_an_assertion_that_names_its_key_finds_it_among_many() -> None:
    key = {name: value for name, value in OTHER_RSA.jwk.items() if name != "kid"}
    unnamed = [replace(REGISTERED, id=f"crd-{n}", key=key, thumbprints=()) for n in range(4)]
    assert outcome(own(), *unnamed, REGISTERED) == "crd-key"
    assert outcome(own(header={"kid": None, "x5t": "thumb-1"}), *unnamed, REGISTERED) == "crd-key"
    # the assertion names none of five keys
    assert outcome(own(header={"kid": None}), *unnamed, REGISTERED) == "key"


def test_a_key_without_an_id_hides_no_new_key_of_its_issuer() -> None:
    without_id = {name: value for name, value in EC.jwk.items() if name != "kid"}

    def looked_for(text: str, *keys: Any) -> tuple[str, str]:
        with pytest.raises(AssertionRefused) as caught:
            judge(
                parse_assertion(text), CLIENT, (DISCOVERED,),
                lambda each: list(keys), Expectations(BASE, 60.0), NOW,
            )  # fmt: skip
        return caught.value.problem, caught.value.unknown_key_of

    for header in ({"kid": None}, {"kid": "new"}):
        assert looked_for(foreign(OTHER, header=header), without_id) == ("signature", ISSUER)
        assert looked_for(foreign(RSA, header=header), without_id) == ("algorithm", ISSUER)
        assert looked_for(foreign(OTHER, header=header), without_id, EC.jwk | {"kid": "old"})[1] == ISSUER
    assert looked_for(foreign(OTHER), EC.jwk, without_id) == ("signature", "")  # the key is known


def test_without_an_address_of_its_own_the_proxy_takes_no_assertion_by_a_registered_key() -> None:
    assert outcome(own(), base="") == "audienceUnknown"
    assert outcome(foreign(), base="") == "crd-fed"


def test_a_credential_that_has_ended_proves_nobody() -> None:
    assert outcome(own(), replace(REGISTERED, ends_at=float(NOW))) == "ended"
    assert outcome(foreign(), replace(FEDERATED, ends_at=NOW + 1.0)) == "crd-fed"
    other = replace(REGISTERED, id="crd-other", key=OTHER_RSA.jwk | {"kid": "rsa-2"}, thumbprints=())
    ended = replace(REGISTERED, ends_at=1.0)
    for credentials in ((ended, other), (other, ended)):
        assert outcome(own(), *credentials) == "ended"
        assert outcome(own(WEAK), *credentials) == "key"
        assert outcome(own(OTHER_RSA, header={"kid": "rsa-2"}), *credentials) == "crd-other"
    another = replace(FEDERATED, id="b", subject="b")
    assert outcome(foreign(), another, replace(FEDERATED, ends_at=1.0)) == "ended"
    assert outcome(own()) == outcome(own(), FEDERATED, REGISTERED) == "crd-key"
    assert outcome(own(), FEDERATED) == "issuer"  # the application has no registered key


@pytest.mark.parametrize(
    "changes",
    [
        {"use": "enc"}, {"key_ops": ["sign"]}, {"alg": "RS384"}, {"d": "AQAB"}, {"kty": "oct", "k": "AQAB"},
        {"kty": ["RSA"]}, {"kty": None},
    ],
)  # fmt: skip
def test_a_key_for_another_purpose_verifies_nothing(changes: dict[str, Any]) -> None:
    assert outcome(own(), replace(REGISTERED, key=RSA.jwk | changes)) == "algorithm"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (WEAK, {}),
        (RSA, {"n": "A" * 5000}),
        (RSA, {"e": "A" * 5000}),
        (RSA, {"e": RSA.jwk["n"]}),
        (RSA, {"n": 1}),
    ],
)
def test_a_key_that_is_weak_or_dear_to_check_verifies_nothing(
    key: SigningKey, changes: dict[str, Any]
) -> None:
    assert outcome(own(key), replace(REGISTERED, key=key.jwk | changes)) == "signature"


def test_one_assertion_has_one_id_however_its_signature_is_spelled() -> None:
    numbers = base64.urlsafe_b64decode(EC_SIGNATURE + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = numbers[:32] + (order - int.from_bytes(numbers[32:])).to_bytes(32)
    text = with_parts(foreign(), signature=EC_SIGNATURE)
    assert parse_assertion(text).use_id == parse_assertion(with_parts(text, signature=coded(other))).use_id
    no_id = parse_assertion(foreign(jti=None))
    assert no_id.use_id == parse_assertion(foreign(jti=None)).use_id != parse_assertion(foreign()).use_id
    reuse = judge(
        parse_assertion(own()), CLIENT, (REGISTERED,), lambda each: None, Expectations(BASE, 60.0), NOW
    )
    assert (reuse.reuse, reuse.ends_at) == (Reuse.SAME_ADDRESS, NOW + 660)


@pytest.mark.parametrize("path", ["", "/", "/proxy/token", "/adfs", "/t/v2.0", "/t/oauth2/v2.0/token"])
def test_every_address_of_the_token_endpoint_is_the_proxy_s_audience(path: str) -> None:
    assert is_own_audience(BASE + path, BASE)
    assert is_own_audience(BASE.upper().replace("HTTPS", "https") + path, BASE)
    assert not is_own_audience(BASE + path + "/x", BASE)
    assert not is_own_audience(None, BASE)
