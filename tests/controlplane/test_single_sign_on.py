"""Sign-in at an identity provider: who comes in, and what is not taken for a proof."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from controlplane.settings import read_settings
from controlplane.store.interface import Operator, RecordQuery
from proxy.config import SettingsError
from tests.controlplane.plane import FakeClock, Plane, started, write_settings
from tests.standins.identity import CLIENT_ID, CLIENT_SECRET, TENANT, IdentityStandIn
from tests.standins.ports import free_port


@dataclass
class Browser:
    """Goes where it is sent, with the cookies of each host."""

    session: aiohttp.ClientSession
    cookies: dict[str, dict[str, str]] = field(default_factory=dict)

    async def get(self, url: str) -> tuple[int, str, str]:
        """Status, where it leads, and the body."""
        jar = self.cookies.setdefault(urlsplit(url).netloc, {})
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())} if jar else {}
        async with self.session.get(url, headers=headers, allow_redirects=False) as response:
            for name, morsel in response.cookies.items():
                jar[name] = morsel.value
            return response.status, response.headers.get("Location", ""), await response.text()


@dataclass
class Console:
    plane: Plane
    provider: IdentityStandIn
    browser: Browser
    address: str

    async def to_callback(self, wanted: str = "/") -> str:
        """Begin at the console, consent at the provider; where the browser is sent back to."""
        status, to_provider, _ = await self.browser.get(f"{self.address}/login/single-sign-on?next={wanted}")
        assert status == 303
        status, back, _ = await self.browser.get(to_provider)
        assert status == 302
        return back

    async def sign_in(self) -> tuple[int, str]:
        status, location, _ = await self.browser.get(await self.to_callback("/orgs"))
        return status, location

    async def signed_in_as(self) -> str | None:
        status, _, body = await self.browser.get(f"{self.address}/admin/v1/session")
        return body.split('"operator":"')[1].split('"')[0] if status == 200 else None


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    clock = FakeClock(round(time.time() * 1000))
    port = free_port()
    async with IdentityStandIn() as provider:
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
    assert len(asked["code_challenge"]) == 43  # of 256 bits
    lines = await console.plane.store.record(RecordQuery(limit=9))
    assert [(each.operator, each.operation, each.outcome) for each in lines] == [
        ("ada@contoso.com", "session.sign-in", "done")
    ]


@pytest.mark.parametrize(
    "claims",
    [
        {"preferred_username": "stranger@contoso.com"},
        {"email": "ada@contoso.com"},
        {"email": "ada@contoso.com", "email_verified": "true"},
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


async def test_a_provider_s_long_answer_may_come_in_many_pieces(console: Console) -> None:
    """A key with its chain of certificates has kilobytes, and a provider publishes several."""
    people = console.provider.people
    people.published += [
        {"kty": "RSA", "use": "sig", "kid": f"older-{at}", "x5c": ["A" * 2000]} for at in range(400)
    ]
    assert await console.sign_in() == (303, "/orgs")


async def test_a_provider_s_answer_has_an_end(console: Console) -> None:
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


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS512", "PS256"])
async def test_a_token_chooses_no_algorithm_of_its_own(console: Console, algorithm: str) -> None:
    people = console.provider.people
    people.algorithm = algorithm
    if algorithm == "HS256":
        people.key = b"a shared secret that is long enough for the library"
    elif algorithm == "none":
        people.key = None
    assert (await console.sign_in())[0] == 401


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
    """Else another could have a victim work in the other's name, or come in with a victim's code."""
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
    """Behind one address there may be everybody, and passwords are what is left to them then."""
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
    async with plane.session.get(f"{plane.console_url}/login") as response:
        assert "single-sign-on" not in await response.text()
    async with plane.session.get(
        f"{plane.console_url}/login/single-sign-on", allow_redirects=False
    ) as response:
        assert response.headers.get("Location", "").startswith("/login?")
