"""Tests that the agent reads in advance the keys of all issuers that applications name, and no other keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from proxy.agent import issuers as module
from proxy.agent.issuers import Issuers, KeysNotRead, read_keys
from proxy.agent.pinned_issuers import Pinned, pinned_issuers, share
from proxy.config.tls import client_tls
from proxy.doctor.issuers import examined
from proxy.ipc.channel import IssuerKeys
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from proxy.rules.snapshot import App, Snapshot
from proxy.wire.models import MOST_ISSUERS_OF_ORG, SyncFederated
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.issuer import FakeIssuer, Mode, SigningKey
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[FakeIssuer, ClientSession]]:
    authority = CertificateAuthority(tmp_path_factory.mktemp("authority"))
    async with (
        FakeIssuer(tls=authority.server(), path="/cluster") as issuer,
        open_session(client_tls(authority.ca_file), DIRECT) as session,
    ):
        yield issuer, session


def app(
    issuer: str,
    *,
    enabled: bool = True,
    keys: dict[str, object] | None = None,
    org: str = "org",
    hashes: tuple[str, ...] = (),
) -> App:
    credential = SyncFederated("crd-1", issuer, "s", "a", keys=keys)
    return App("app", org, "payroll", "client", hashes, 1, None, enabled, credentials=(credential,))


def snapshot(*apps: App) -> Snapshot:
    return Snapshot("1", "", 1, 0.0, None, None, None, {}, apps, ())


@dataclass
class Agent:
    """Agent in a test, with the messages that the agent's workers receive."""

    path: Path
    session: ClientSession
    refresh: float = 3600.0
    now: float = 1e9
    told: list[IssuerKeys] = field(default_factory=list)
    was_told: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> Issuers:
        return Issuers(
            self.session, self.path, refresh=self.refresh, max_age=86400.0, announce=self.tell,
            clock=lambda: self.now,
        )  # fmt: skip

    def tell(self, message: IssuerKeys) -> None:
        self.told.append(message)
        self.was_told.set()

    async def next_message(self) -> IssuerKeys:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.was_told.wait()
        self.was_told.clear()
        return self.told[-1]


def ids(message: IssuerKeys) -> list[str]:
    return [key["kid"] for key in json.loads(message.keys)["keys"]]


async def test_only_issuers_that_an_enabled_application_names_are_read() -> None:
    apps = [app("https://a"), app("https://b", enabled=False), app("https://c", keys={}), app("https://a")]
    assert list(pinned_issuers(apps)) == ["https://a"]


async def never_respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def test_one_organisation_s_issuers_push_no_other_organisation_s_out() -> None:
    mine = app("https://zzz", org="mine")
    many = [app(f"https://0{number:03}", org="theirs") for number in range(MOST_ISSUERS_OF_ORG + 3)]
    chosen = share(pinned_issuers([*many, mine, app("https://zzz", org="theirs")]), {"https://0052"})
    assert len(chosen.read) == MOST_ISSUERS_OF_ORG + 1
    assert {"https://zzz", "https://0052"} <= chosen.read.keys()
    assert chosen.payer["https://zzz"] == "mine"  # it does not wait for slots of the others
    left_out = {org: [each.issuer for each in rest] for org, rest in chosen.left_out.items()}
    assert left_out == {"theirs": ["https://0049", "https://0050", "https://0051"]}


async def test_hanging_issuers_of_one_organisation_delay_no_other_s_and_the_check_names_them(
    site: tuple[FakeIssuer, ClientSession], tmp_path: Path
) -> None:
    issuer, session = site
    issuer.keys = [SigningKey(key_id="first")]
    part = (agent := Agent(tmp_path / "keys.json", session)).start()
    silent = await asyncio.start_server(never_respond, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    hanging = [app(f"https://127.0.0.1:{port}/{n}", org="theirs") for n in range(MOST_ISSUERS_OF_ORG + 10)]
    try:
        part.use(snapshot(*hanging, app(issuer.issuer, org="mine")))
        assert (await agent.next_message()).identity == issuer.issuer
        check = part.check()
        assert check is not None
        assert (check.status, issuer.issuer in check.detail) == ("degraded", False)
        assert "organisation theirs names more than 50 issuers" in check.detail
        assert (f"{port}/0 (application payroll)" in check.detail, len(check.detail) < 2000) == (True, True)
        assert "and 45 more" in check.detail
    finally:
        await part.close()
        silent.close()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("hashes", [(), ("hash",)])
async def test_the_check_fails_only_if_no_application_can_get_in(
    site: tuple[FakeIssuer, ClientSession], tmp_path: Path, hashes: tuple[str, ...]
) -> None:
    part = Agent(tmp_path / "keys.json", site[1]).start()
    part.use(snapshot(app("https://127.0.0.1:1", hashes=hashes)))
    try:
        check = part.check()
        assert check is not None
        assert check.status == ("degraded" if hashes else "failed")
    finally:
        await part.close()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("down", "closed the connection"), ("garbage", "malformed"), ("redirect", "responded with 302"),
        ("other issuer", "another issuer"), ("http keys", "not https"), ("endless", "larger than"),
    ],
)  # fmt: skip
async def test_a_document_that_can_not_be_trusted_brings_no_keys(
    site: tuple[FakeIssuer, ClientSession], mode: Mode, why: str
) -> None:
    issuer, session = site
    issuer.mode = mode
    try:
        with pytest.raises(KeysNotRead, match=why):
            await read_keys(session, issuer.issuer)
    finally:
        issuer.mode = "ok"
    for url in ("http://issuer.example", "ftp://issuer.example", "issuer.example", "https://[", ""):
        with pytest.raises(KeysNotRead):
            await read_keys(session, url)


async def test_private_keys_and_needless_members_go_no_further(
    site: tuple[FakeIssuer, ClientSession],
) -> None:
    issuer, session = site
    good, private = SigningKey(key_id="good"), SigningKey(key_id="private")
    good.jwk["x5c"] = ["MII"]
    private.jwk["d"] = "AQAB"
    issuer.keys = [good, private]
    (key,) = json.loads(await read_keys(session, issuer.issuer))["keys"]
    assert set(key) == {"kty", "crv", "x", "y", "kid", "use"}


async def test_keys_outlive_a_restart_and_an_absence_of_their_issuer_but_not_their_age(
    site: tuple[FakeIssuer, ClientSession], tmp_path: Path
) -> None:
    issuer, session = site
    issuer.keys = [SigningKey(key_id="first")]
    agent = Agent(tmp_path / "keys.json", session)
    part = agent.start()
    assert part.check() is None
    part.use(snapshot(app(issuer.issuer)))
    first = await agent.next_message()
    assert (ids(first), first.good_until) == (["first"], agent.now + 86400)
    agent.now += 86401
    late = part.check()
    assert late is not None
    assert "too old, or the clock was set" in late.detail
    agent.now -= 86401
    while not agent.path.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await part.close()
    assert agent.path.stat().st_mode & 0o777 == 0o600

    issuer.mode = "down"
    try:
        part = agent.start()
        part.use(snapshot(app(issuer.issuer)))
        agent.now += 3600
        assert await agent.next_message() == first
        assert part.current() == [first]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (check := part.check()) is None or check.status == "ok":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert (check.status, "expire in 23.0 h" in check.detail) == ("degraded", True)
        agent.now += 23 * 3600
        check = part.check()
        assert check is not None
        assert (check.status, check.detail.startswith("no keys of")) == ("failed", True)
        agent.now = 1e9 - 61  # the clock was set back, so the age is unknown
        assert part.current()[0].good_until == 0.0
        part.use(snapshot())
        assert (part.current(), part.check()) == ([], None)
    finally:
        issuer.mode = "ok"
        await part.close()
    agent.path.write_text("damaged")
    assert agent.start().current() == []


async def test_an_unknown_key_is_looked_for_soon_and_a_removed_one_goes(
    site: tuple[FakeIssuer, ClientSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer, session = site
    issuer.keys = [SigningKey(key_id="first")]
    monkeypatch.setattr(module, "ASKED_SECONDS", 0.05)
    agent = Agent(tmp_path / "keys.json", session)
    part = agent.start()
    part.use(snapshot(app(issuer.issuer)))
    await agent.next_message()
    new, reads = issuer.rotate(), issuer.reads
    for _ in range(50):
        part.asked_for(issuer.issuer)
        part.asked_for("https://somebody.example")
    assert ids(await agent.next_message()) == [new.key_id]
    assert issuer.reads == reads + 1
    await part.close()


async def test_the_doctor_tells_an_issuer_of_another_name_from_one_that_is_out_of_reach(
    site: tuple[FakeIssuer, ClientSession],
) -> None:
    issuer, session = site
    issuer.keys = [SigningKey(key_id="only")]
    pinned = Pinned(issuer.issuer, [app(issuer.issuer)])
    found = await examined(session, pinned)
    assert (found.status, found.found) == ("ok", "1 key")
    issuer.mode = "other issuer"
    try:
        found = await examined(session, pinned)
    finally:
        issuer.mode = "ok"
    assert (found.status, "letter for letter" in found.fix) == ("fail", True)
    assert "(application payroll)" in found.check
    away = "https://127.0.0.1:1"
    assert "Egress.ProxyUrl" in (await examined(session, Pinned(away, [app(away)]))).fix
