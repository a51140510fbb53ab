"""Tests of the sign-in at an identity provider: admitted people, and claims that do not count as proof."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from controlplane.admin.oidc import check_issuer
from controlplane.admin.sign_in_failure import SignInFailed
from controlplane.admin.signed_token import is_same_issuer
from controlplane.secrets import hash_password
from controlplane.settings import read_settings
from controlplane.store.interface import AlreadyExists, LogQuery, Operator
from proxy.config import SettingsError
from tests.controlplane.browsing import Browser, Console
from tests.controlplane.plane import FakeClock, Plane, started, write_settings
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.ports import free_port
from tests.fakes.server import Response


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    clock = FakeClock(round(time.time() * 1000))
    port = free_port()
    async with FakeIdentityProvider() as provider:
        section = (
            f'Listen = "127.0.0.1:{port}"\nPublicBaseUrl = "http://127.0.0.1:{port}"\n'
            f'OidcIssuer = "{provider.base_url}/{TENANT}/v2.0"\n'
            f'OidcClientId = "{CLIENT_ID}"\nOidcClientSecret = "{CLIENT_SECRET}"'
        )
        async with (
            started(tmp_path, clock, Console=section) as plane,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        ):
            for name in ("ada@contoso.com", "alan@contoso.com"):
                added = Operator(f"id-{name}", name, None, True, clock.wall_ms(), {"*": "viewer"})
                await plane.store.add_operator(added)
            yield Console(plane, provider, Browser(session), plane.console_url)


async def test_who_signs_in_there_is_the_operator_of_that_name_here(console: Console) -> None:
    console.provider.people.claims = {"preferred_username": "ADA@contoso.com"}
    assert await console.sign_in() == (303, "/orgs")
    assert await console.signed_in_as() == "ada@contoso.com"
    (asked,) = console.provider.people.asked
    assert len(asked["code_challenge"]) == 43  # 256 bits
    lines = await console.plane.store.operator_log(LogQuery(limit=9))
    assert [(each.operator, each.operation, each.outcome) for each in lines] == [
        ("ada@contoso.com", "session.sign-in", "done")
    ]
    assert await console.last_record() == {
        "singleSignOn": "newly linked",
        "claim": "preferred_username",
        "displayName": "ADA@contoso.com",
        "issuer": f"{console.provider.base_url}/{TENANT}/v2.0",
        "subject": "person-1",
    }


async def test_an_operator_is_reached_by_the_person_of_the_first_sign_in_alone(console: Console) -> None:
    people, store = console.provider.people, console.plane.store
    assert (await console.sign_in())[0] == 303
    # The person has another name now, and the provider offers no userinfo.
    people.claims = {"preferred_username": "ada.king@contoso.com"}
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "ada@contoso.com"
    record = await console.record_of("linked")
    assert (record["displayName"], record["subject"]) == ("ada.king@contoso.com", "person-1")
    # Another person has her former name, and gets none of her roles.
    console.browser = Browser(console.browser.session)
    people.claims, people.changed = {"preferred_username": "ada@contoso.com"}, {"sub": "person-2"}
    status, page = await console.page()
    assert (status, "is not linked to the operator that has its name here" in page) == (401, True)
    record = await console.record_of("unlinked")
    assert (record["claim"], record["subject"]) == ("preferred_username", "person-2")
    (line,) = await store.operator_log(LogQuery(limit=1))
    assert (line.operator, line.outcome) == ("ada@contoso.com", "unauthenticated")
    # A password does not change the linked identity, and an admin can link another person.
    await store.set_password("id-ada@contoso.com", hash_password("correct horse battery staple"))
    assert (await console.page())[0] == 401
    await store.link_operator("id-ada@contoso.com", record["issuer"], "person-2")
    assert await console.sign_in() == (303, "/orgs")
    assert await console.signed_in_as() == "ada@contoso.com"
    with pytest.raises(AlreadyExists):
        await store.link_operator("id-alan@contoso.com", record["issuer"], "person-2")
    await store.unlink_operator("id-ada@contoso.com")
    assert await console.signed_in_as() is None
    assert (await console.page())[0] == 401  # an operator with a password is never found by name


@pytest.mark.parametrize(
    "claims",
    [
        {"preferred_username": "stranger@contoso.com"},
        {"email": "ada@contoso.com"},
        {"email": "ada@contoso.com", "email_verified": "false"},
        {"email": "ada@contoso.com", "email_verified": 1},
        {"unique_name": "ada@contoso.com"},
        {"email": "ada@contoso.com", "email_verified": False},
        {"preferred_username": "id-ada@contoso.com"},
        {"preferred_username": "alan@contoso.com", "email": "ada@contoso.com", "email_verified": True},
        {"preferred_username": ["ada@contoso.com"]},
        {"preferred_username": "\ud800"},
        {},
    ],
)
async def test_nobody_is_made_an_operator_by_what_is_said_of_them(
    console: Console, claims: dict[str, object]
) -> None:
    console.provider.people.claims = claims
    status, _ = await console.sign_in()
    assert status == 401
    assert await console.signed_in_as() is None
    assert len(await console.plane.store.operators()) == 2


async def test_a_provider_s_long_response_may_come_in_many_pieces(console: Console) -> None:
    """A key with its certificate chain has several kilobytes, and a provider publishes several keys."""
    people = console.provider.people
    people.published += [
        {"kty": "RSA", "use": "sig", "kid": f"older-{at}", "x5c": ["A" * 2000]} for at in range(400)
    ]
    assert await console.sign_in() == (303, "/orgs")


async def test_a_provider_s_response_has_an_end(console: Console) -> None:
    people = console.provider.people
    people.published += [{"kty": "RSA", "kid": "endless", "x5c": ["A" * 1024 * 1024]}]
    assert (await console.sign_in())[0] == 503


async def test_a_verified_address_is_a_name(console: Console) -> None:
    console.provider.people.claims = {"email": "ada@contoso.com", "email_verified": True}
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "ada@contoso.com"


@pytest.mark.parametrize("how", ["client_secret_post", "client_secret_basic"])
async def test_the_console_proves_itself_as_the_provider_asks_for_it(console: Console, how: str) -> None:
    console.provider.people.client_proves_by = how
    assert (await console.sign_in())[0] == 303


@pytest.mark.parametrize("changed", [{"n": ""}, {"n": 5}, {"n": "AQAB", "e": "AQAB"}])
async def test_a_published_key_that_is_none_proves_nobody(
    console: Console, changed: dict[str, object]
) -> None:
    people = console.provider.people
    people.published = [people.jwk() | changed]
    assert (await console.sign_in())[0] == 401


async def test_an_issuer_s_name_may_end_with_a_slash(console: Console) -> None:
    console.provider.people.slash = "/"
    assert (await console.sign_in())[0] == 303


async def test_a_disabled_operator_stays_out(console: Console) -> None:
    await console.plane.store.set_operator_enabled("id-ada@contoso.com", False)
    assert (await console.sign_in())[0] == 401


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": [CLIENT_ID, "another-client"]},
        {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
        {"iss": "https://another.example"},
        {"exp": 1},
        {"exp": None},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"exp": float("nan"), "iat": float("nan")},
        {"exp": True},
        {"nbf": float("nan")},
        {"iat": 1},
        {"iat": 9_999_999_999},
        {"nbf": 9_999_999_999},
        {"sub": None},
    ],
)
async def test_a_token_that_is_not_for_this_sign_in_proves_nothing(
    console: Console, changed: dict[str, object]
) -> None:
    console.provider.people.changed = changed
    assert (await console.sign_in())[0] == 401
    assert await console.signed_in_as() is None


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_chooses_no_algorithm_of_its_own(console: Console, algorithm: str) -> None:
    people = console.provider.people
    people.algorithm = algorithm
    if algorithm == "HS256":
        people.key = b"a shared secret that is long enough for the library"
    elif algorithm == "none":
        people.key = None
    assert (await console.sign_in())[0] == 401


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "PS384", "PS512"])
async def test_a_key_that_says_its_algorithm_is_good_for_no_other(console: Console, algorithm: str) -> None:
    people = console.provider.people
    people.algorithm = algorithm
    people.published = [{**people.jwk(), "alg": "RS256"}]
    assert (await console.sign_in())[0] == 401
    people.published = [people.jwk()]
    console.plane.clock.advance(seconds=61)
    assert (await console.sign_in())[0] == 303


@pytest.mark.parametrize(
    ("curve", "algorithm"), [(ec.SECP256R1(), "ES256"), (ec.SECP384R1(), "ES384"), (ec.SECP521R1(), "ES512")]
)
async def test_elliptic_curves_sign_too(console: Console, curve: ec.EllipticCurve, algorithm: str) -> None:
    people = console.provider.people
    key = ec.generate_private_key(curve)
    jwk = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    people.key, people.algorithm, people.published = key, algorithm, [{**jwk, "kid": "key-1"}]
    assert (await console.sign_in())[0] == 303


async def test_a_token_need_not_name_the_only_key(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    people = console.provider.people
    people.key_id = ""
    assert (await console.sign_in())[0] == 303
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    found = jwt.algorithms.RSAAlgorithm.to_jwk(other.public_key(), as_dict=True)
    people.published = [people.published[0], {**found, "kid": "key-2"}]
    console.plane.clock.advance(hours=2)
    people.changed = {"iat": console.plane.clock.wall // 1000, "exp": console.plane.clock.wall // 1000 + 60}
    assert (await console.sign_in())[0] == 401
    assert "does not say which of 2 published keys signed it: `kid` is missing" in caplog.text


async def test_another_key_is_none_of_the_provider_s(console: Console) -> None:
    console.provider.people.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert (await console.sign_in())[0] == 401


async def test_a_provider_may_change_its_keys(console: Console) -> None:
    assert (await console.sign_in())[0] == 303
    people = console.provider.people
    people.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    people.key_id = "key-2"
    people.published = [people.jwk()]
    console.plane.clock.advance(seconds=61)
    assert (await console.sign_in())[0] == 303


async def test_a_sign_in_ends_in_the_browser_that_began_it(console: Console) -> None:
    """An attacker must not be able to sign a victim in under a false name, or to use a victim's code."""
    back = await console.to_callback()
    victim = Browser(console.browser.session)
    assert (await victim.get(back))[0] == 401
    began_another = Browser(console.browser.session)
    await began_another.get(f"{console.address}/login/single-sign-on")
    assert (await began_another.get(back))[0] == 401
    assert (await console.browser.get(back))[0] == 303


async def test_a_sign_in_ends_once_and_within_ten_minutes(console: Console) -> None:
    back = await console.to_callback()
    assert (await console.browser.get(back))[0] == 303
    assert (await console.browser.get(back))[0] == 401
    back = await console.to_callback()
    console.plane.clock.advance(seconds=600)
    assert (await console.browser.get(back))[0] == 401


@pytest.mark.parametrize("wanted", ["//evil.example/", "https://evil.example/", "/\\evil.example"])
async def test_a_sign_in_leads_nowhere_else(console: Console, wanted: str) -> None:
    status, location, _ = await console.browser.get(await console.to_callback(wanted))
    assert (status, location) == (303, "/")


async def test_the_provider_s_failures_are_told_as_such(console: Console) -> None:
    back = await console.to_callback()
    console.provider.mode = "garbage"
    assert (await console.browser.get(back))[0] == 503


async def test_who_tries_while_the_provider_is_away_is_shut_out_of_nothing(console: Console) -> None:
    """Many people may share an address, and can sign in only by password while the provider is down."""
    back = await console.to_callback()
    console.provider.mode = "garbage"
    assert [(await console.browser.get(back))[0] for _ in range(25)] == [503] * 25
    console.provider.mode = "ok"
    assert (await console.sign_in())[0] == 303


async def test_guessing_codes_ends_soon(console: Console) -> None:
    statuses = []
    for _ in range(21):
        back = await console.to_callback()
        state = parse_qs(urlsplit(back).query)["state"][0]
        url = f"{console.address}/login/single-sign-on/callback?code=guessed&state={state}"
        statuses.append((await console.browser.get(url))[0])
    assert statuses == [401] * 20 + [429]


# Both places of a claim


async def test_claims_that_the_token_leaves_out_are_asked_for(console: Console) -> None:
    """The ID token contains only the claim `sub`, so the console requests other claims from the provider."""
    people = console.provider.people
    people.claims = {}
    people.userinfo = {"email": "ada@contoso.com", "email_verified": True}
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "ada@contoso.com"
    assert people.report == 1


async def test_userinfo_is_not_asked_where_the_token_says_enough(console: Console) -> None:
    assert (await console.sign_in())[0] == 303
    assert console.provider.people.report == 0


@pytest.mark.parametrize(
    ("token", "userinfo"),
    [
        # An address and its verification come from one place, never one from each.
        ({"email": "ada@contoso.com"}, {"email_verified": True}),
        ({"email_verified": True}, {"email": "ada@contoso.com"}),
        ({}, {"preferred_username": "ada@contoso.com", "sub": "person-2"}),
        ({}, {"preferred_username": "ada@contoso.com", "sub": None}),
        ({}, {"preferred_username": "ada@contoso.com", "upn": "alan@contoso.com"}),
    ],
)
async def test_what_userinfo_says_proves_no_more_than_it_does(
    console: Console, token: dict[str, object], userinfo: dict[str, object]
) -> None:
    people = console.provider.people
    people.claims, people.userinfo = token, userinfo
    assert (await console.sign_in())[0] == 401
    assert await console.signed_in_as() is None


async def test_signed_userinfo_is_checked_like_a_token(console: Console) -> None:
    people = console.provider.people
    people.claims = {}
    jose = (("Content-Type", "application/jwt"),)
    good: dict[str, object] = {"sub": "person-1", "aud": CLIENT_ID, "preferred_username": "ada@contoso.com"}
    for wrong in (
        people.signed({**good, "aud": "another"}),
        people.signed({**good, "iss": "https://another.example"}),
        jwt.encode(good, "a shared secret that is long enough for the library", "HS256"),
        "a.b.c.d.e",
        "nothing",
    ):
        people.userinfo_response = Response(200, jose, wrong.encode())
        assert (await console.sign_in())[0] == 401, wrong
    people.userinfo_response = Response(200, jose, people.signed(good).encode())
    assert (await console.sign_in())[0] == 303


async def test_what_userinfo_refuses_is_a_fault_of_the_registration(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    people = console.provider.people
    people.claims = {}
    challenge = 'Bearer error="insufficient_scope", error_description="the scope \'email\' is missing"'
    people.userinfo_response = Response(403, (("WWW-Authenticate", challenge),), b"")
    status, page = await console.page()
    assert (status, "not set up correctly (insufficient_scope)" in page) == (503, True)
    assert "insufficient_scope: the scope 'email' is missing" in caplog.text


@pytest.mark.parametrize("body", [b"[]", b"<html>", b"x" * 2_000_000])
async def test_userinfo_that_cannot_be_read_is_no_person(console: Console, body: bytes) -> None:
    people = console.provider.people
    people.claims, people.userinfo_response = {}, Response(200, (("Content-Type", "application/json"),), body)
    assert (await console.sign_in())[0] == 503


@pytest.mark.parametrize(
    "claims", [{"email": "ada@contoso.com", "email_verified": "true"}, {"upn": "ada@contoso.com"}]
)
async def test_names_as_well_known_providers_spell_them(console: Console, claims: dict[str, object]) -> None:
    console.provider.people.claims = claims
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "ada@contoso.com"


async def test_an_access_token_of_another_sign_in_is_not_used(console: Console) -> None:
    digest = hashlib.sha256(b"-").digest()[:16]
    right = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    people = console.provider.people
    people.claims, people.userinfo = {"at_hash": right}, {"preferred_username": "ada@contoso.com"}
    assert (await console.sign_in())[0] == 303
    people.claims = {"at_hash": right[::-1]}
    assert (await console.sign_in())[0] == 401


# Words for a failure


async def test_what_the_provider_says_is_in_the_log_and_the_record(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    description = "E50105: not assigned\r\n\u202efdp" + "x" * 2000
    console.provider.people.back = {"error": "access_denied", "error_description": description}
    status, page = await console.page()
    assert status == 401
    assert "refused the sign-in (access_denied)" in page
    assert "E50105" not in page
    (line,) = (each for each in caplog.messages if "E50105" in each)
    assert line.endswith("more characters)")
    assert "\\u000d\\u000a\\u202efdp" in line
    details = await console.last_record()
    assert (details["singleSignOn"], details["error"]) == ("denied", "access_denied")
    assert details["description"].startswith("E50105: not assigned\\u000d")
    assert len(details["description"]) < 600


@pytest.mark.parametrize(
    ("refusal", "status", "kind", "words"),
    [
        ((401, {"error": "invalid_client", "error_description": "E1: expired"}), 503, "registration", "E1"),
        ((400, {"error": "unauthorized_client"}), 503, "registration", "unauthorized_client"),
        ((400, {"error": "invalid_grant", "error_description": "E2: old"}), 401, "code", "E2: old"),
        ((200, {"error": "bad_verification_code"}), 401, "code", "bad_verification_code"),
        ((400, {"error": {"code": 7}}), 401, "code", "{'code': 7}"),
        ((401, {}), 503, "registration", "responded with 401"),
        ((429, {}), 503, "unreachable", "responded with 429"),
        ((400, {"error": "temporarily_unavailable"}), 503, "unreachable", "temporarily_unavailable"),
        ((200, {"access_token": "-"}), 503, "registration", "no ID token"),
    ],
)
async def test_a_wrong_registration_is_told_from_a_code_that_was_no_good(
    console: Console,
    caplog: pytest.LogCaptureFixture,
    refusal: tuple[int, dict[str, object]],
    status: int,
    kind: str,
    words: str,
) -> None:
    console.provider.people.refusal = refusal
    assert (await console.page())[0] == status
    assert words in caplog.text
    assert (await console.last_record())["singleSignOn"] == kind


async def test_who_is_nobody_here_is_told_which_names_were_looked_for(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    people = console.provider.people
    people.claims = {"email": "kim@contoso.com", "unique_name": "kim"}
    people.userinfo = {"preferred_username": "somebody@contoso.com", "email_verified": False}
    status, page = await console.page()
    assert (status, "names were looked for" in page) == (401, True)
    assert "kim" not in page
    assert await console.last_record() == {
        "singleSignOn": "nobody",
        "claims": "ID token: email, unique_name; userinfo: email_verified, preferred_username",
        "lookedFor": "somebody@contoso.com",
        "counted": "preferred_username",
        "notCounted": "email kim@contoso.com (email_verified is missing); "
        "unique_name kim (is not unique: have the provider send upn)",
    }
    assert "looked for: somebody@contoso.com" in caplog.text


@pytest.mark.parametrize(
    "fault",
    [
        {"refusal": (401, {"error": "invalid_client"})},
        {"back": {"error": "access_denied"}},
        {"claims": {}},
        {"changed": {"aud": "another"}},
        {"changed": {"nonce": None}},
        {"discovery": {"userinfo_endpoint": ""}, "claims": {}},
        {"changed": {"iat": 9_999_999_999}},
        {"discovery": {"issuer": "https://login.example/{tenantid}/v2.0"}},
    ],
)
async def test_what_no_visitor_did_counts_against_no_visitor(
    console: Console, fault: dict[str, object]
) -> None:
    """Many people may share one address, and must still be able to sign in by password."""
    people = console.provider.people
    before = {name: getattr(people, name) for name in fault}
    for name, value in fault.items():
        setattr(people, name, value)
    for _ in range(21):
        assert (await console.page())[0] in (401, 503)
    for name, value in before.items():
        setattr(people, name, value)
    assert (await console.sign_in())[0] == 303


async def test_somebody_who_is_nobody_here_counts(console: Console) -> None:
    console.provider.people.claims = {"preferred_username": "stranger@contoso.com"}
    assert [(await console.page())[0] for _ in range(21)] == [401] * 20 + [429]


@pytest.mark.parametrize(("issuer", "status"), [("", 303), ("/", 303), ("-of-another", 401)])
async def test_the_issuer_of_a_response_is_this_provider(console: Console, issuer: str, status: int) -> None:
    """The console checks the issuer of a response only if the response names an issuer (RFC 9207)."""
    provider = console.provider
    provider.people.back = {"iss": f"{provider.base_url}/{TENANT}/v2.0{issuer}"}
    assert (await console.sign_in())[0] == status


async def test_an_issuer_that_is_promised_must_come(console: Console) -> None:
    console.provider.people.discovery = {"authorization_response_iss_parameter_supported": True}
    assert (await console.sign_in())[0] == 401


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_provider_that_lives_elsewhere_is_a_fault_of_the_settings(
    console: Console, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    people = console.provider.people
    people.claims = {}
    people.userinfo_response = Response(status, (("Location", "https://login.example/moved"),), b"")
    found, page = await console.page()
    assert (found, "not set up correctly" in page) == (503, True)
    assert "leads to https://login.example/moved," in caplog.text
    assert "Console.OidcIssuer must be the provider's issuer" in caplog.text


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"discovery": {"userinfo_endpoint": ""}}, "discovery names no userinfo_endpoint"),
        ({"beside_tokens": {"token_type": "DPoP"}}, "no bearer token came with the ID token"),
    ],
)
async def test_why_userinfo_was_not_asked_is_in_the_record(
    console: Console, fault: dict[str, object], words: str
) -> None:
    people = console.provider.people
    people.claims = {}
    for name, value in fault.items():
        setattr(people, name, value)
    assert (await console.page())[0] == 401
    assert f"userinfo (not requested: {words}): none" in (await console.last_record())["claims"]


async def test_an_error_of_null_is_none(console: Console) -> None:
    console.provider.people.beside_tokens = {"error": None}
    assert (await console.sign_in())[0] == 303


async def test_an_address_for_many_tenants_is_told_with_what_to_write(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    console.provider.people.discovery = {"issuer": "https://login.example/{tenantid}/v2.0"}
    status, page = await console.page()
    assert (status, "not set up correctly" in page) == (503, True)
    assert "Console.OidcIssuer: write the tenant's own id in place of {tenantid}" in caplog.text


async def test_another_issuer_is_told_with_what_to_write(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    console.provider.people.discovery = {"issuer": "https://login.example/moved"}
    assert (await console.page())[0] == 503
    report = "names the issuer https://login.example/moved. If this issuer is the right one, write it into"
    assert report in caplog.text


@pytest.mark.parametrize(
    ("given", "issuer", "same"),
    [
        ("https://accounts.google.com", "https://accounts.google.com", True),
        ("accounts.google.com", "https://accounts.google.com", True),
        ("login.example", "https://login.example", False),
        ("https://login.example/", "https://login.example", True),
        ("https://login.example//", "https://login.example", False),
        ("https://login.example/x", "https://login.example", False),
        (None, "https://login.example", False),
    ],
)
def test_an_issuer_is_compared_letter_for_letter_but_for_known_deviations(
    given: object, issuer: str, same: bool
) -> None:
    assert is_same_issuer(given, issuer) is same


@pytest.mark.parametrize(
    ("wanted", "found", "good"),
    [
        ("https://login.microsoftonline.com/t-1", "https://sts.windows.net/t-1/", True),
        ("https://login.microsoftonline.com/t-1", "https://sts.windows.net/t-2/", False),
        ("https://login.example/t-1", "https://sts.windows.net/t-1/", False),
    ],
)
def test_the_first_endpoint_of_entra_is_known_by_its_tenant(wanted: str, found: str, good: bool) -> None:
    if good:
        check_issuer("https://…", found, wanted)
    else:
        with pytest.raises(SignInFailed, match=re.escape(f"names the issuer {found}")):
            check_issuer("https://…", found, wanted)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('OidcIssuer = "https://login.microsoftonline.com/<tenant>/v2.0"', "'<tenant>' is a placeholder"),
        ('OidcIssuer = "https://login.microsoftonline.com/{tenantid}/v2.0"', "'{tenantid}' is a placeholder"),
        ('OidcIssuer = "https://login.microsoftonline.com/common/v2.0"', "'common' stands for many tenants"),
        ('OidcIssuer = "https://login.microsoftonline.us/organizations/v2.0"', "'organizations' stands for"),
        ('OidcIssuer = "https://YOUR-DOMAIN.okta.com"', "'YOUR-DOMAIN' is a placeholder"),
        ('OidcIssuer = "https://your-tenant.eu.auth0.com"', "'your-tenant' is a placeholder"),
        ('OidcIssuer = "https://idp.example.com"', "idp.example.com is a host for examples"),
        (
            'OidcIssuer = "https://l.test/.well-known/openid-configuration"',
            "the issuer alone: https://l.test",
        ),
        ('OidcClientId = "00000000-0000-0000-0000-000000000000"', "is a placeholder: write the client id"),
        ('OidcClientSecret = "<client secret>"', "the value is a placeholder: write that client's secret"),
    ],
)
def test_settings_that_can_never_work_stop_the_start(tmp_path: Path, line: str, words: str) -> None:
    good = {
        "OidcIssuer": '"https://login.contoso.test"',
        "OidcClientId": '"c"',
        "OidcClientSecret": '"s"',
        "PublicBaseUrl": '"https://c.contoso.test"',
    }
    good[line.partition(" = ")[0]] = line.partition(" = ")[2]
    section = "\n".join(f"{name} = {value}" for name, value in good.items())
    with pytest.raises(SettingsError) as error:
        read_settings(write_settings(tmp_path, Console=section), {})
    (problem,) = error.value.problems
    assert f"Console.{line.partition(' = ')[0]}: " in problem
    assert words in problem


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (
            'OidcIssuer = "https://login.example/"\nPublicBaseUrl = "https://c.example"',
            "Console.OidcClientId",
        ),
        ('OidcIssuer = "https://login.example/"\nOidcClientId = "x"', "Console.PublicBaseUrl"),
        (
            'OidcIssuer = "http://login.example/"\nOidcClientId = "x"\nPublicBaseUrl = "https://c.example"',
            "Console.OidcIssuer",
        ),
        (
            'OidcIssuer = "https://login.microsoftonline.com/6f1e2a30/v2.0"\nOidcClientId = "x"',
            "Console.OidcClientSecret",
        ),
    ],
)
def test_what_is_missing_for_it_stops_the_start(tmp_path: Path, section: str, named: str) -> None:
    with pytest.raises(SettingsError) as error:
        read_settings(write_settings(tmp_path, Console=section), {})
    assert any(named in problem for problem in error.value.problems)


async def test_the_sign_in_page_leads_there_and_back_to_where_one_wanted(console: Console) -> None:
    _, _, page = await console.browser.get(f"{console.address}/login?next=/orgs%3Forg%3Dacme")
    assert 'href="/login/single-sign-on?next=%2Forgs%3Forg%3Dacme"' in page


async def test_without_a_provider_there_is_no_such_way(plane: Plane) -> None:
    plain = {"Accept-Encoding": "identity"}
    async with plane.session.get(f"{plane.console_url}/login", headers=plain) as response:
        assert "single-sign-on" not in await response.text()
    async with plane.session.get(
        f"{plane.console_url}/login/single-sign-on", allow_redirects=False
    ) as response:
        assert response.headers.get("Location", "").startswith("/login?")
