"""Tests of several upstream identities on one data path: each application uses only its own upstream token.

An application never uses another token, even if its own token is unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.rules.snapshot import App, Snapshot, SnapshotRuleset
from proxy.server.callers.rulebook import Rulebook, build_rulebook
from proxy.server.upstream.credentials import NO_CREDENTIAL, UpstreamCredential, UpstreamCredentials
from proxy.startup.identities import Assignments
from tests.bytes.data_path import ALLOW_ALL, DataPath, UpstreamPeer, data_path, ok, read_reply
from tests.patience import PATIENCE_SECONDS

MAIL_TOKEN = "upstream-token-of-the-mail-identity"
NEW_MAIL_TOKEN = "second-upstream-token-of-the-mail-identity"


@dataclass
class Two:
    """Two applications of one organisation with different upstream identities.

    The application that uses `proxy.token` has the default upstream identity, and `mail_app` has the upstream
    identity `mail`.
    """

    proxy: DataPath
    mail: UpstreamCredential
    mail_app: str
    asked_for_mail: list[int] = field(default_factory=list)
    mail_asked: asyncio.Event = field(default_factory=asyncio.Event)
    dead: set[bytes] = field(default_factory=set)  # tokens to which the upstream responds with 401

    def renew_mail(self, token: str, generation: int) -> None:
        self.mail.renew(token, asyncio.get_running_loop().time() + 3600, generation)

    def request(self, token: str, target: str, method: str = "GET") -> bytes:
        lines = [f"{method} {target} HTTP/1.1", "Host: proxy.example", f"Authorization: Bearer {token}"]
        lines += ["client-request-id: 1", *(["Content-Length: 0"] if method == "POST" else [])]
        return "\r\n".join([*lines, "", ""]).encode()

    def went_up(self) -> dict[str, list[str]]:
        """Return the upstream tokens with which each path was requested."""
        found: dict[str, list[str]] = {}
        for head in self.proxy.upstream.heads:
            path = head.split(b" ")[1].decode()
            token = head.partition(b"Authorization: Bearer ")[2].partition(b"\r\n")[0]
            found.setdefault(path, []).append(token.decode())
        return found


@asynccontextmanager
async def two_identities(directory: Path) -> AsyncIterator[Two]:
    dead: set[bytes] = set()

    async def script(peer: UpstreamPeer) -> None:
        while True:
            head = await peer.head()
            token = head.partition(b"Authorization: Bearer ")[2].partition(b"\r\n")[0]
            peer.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n" if token in dead else ok(b"{}"))

    async with data_path(script, directory) as proxy:

        def ask(generation: int) -> None:
            two.asked_for_mail.append(generation)
            two.mail_asked.set()

        mail = UpstreamCredential(ask)
        two = Two(proxy, mail, proxy.add_application("mail-app", mail), dead=dead)
        two.renew_mail(MAIL_TOKEN, 1)
        yield two


async def test_each_application_goes_up_with_its_own_token_on_shared_connections(tmp_path: Path) -> None:
    """Requests of both applications share one client connection and one upstream connection.

    The request heads of the two applications differ only in the token. The test sends each request several
    times, so that the proxy also uses parsed heads that it remembers.
    """
    async with two_identities(tmp_path) as two:
        own = two.proxy.credential.authorization.removeprefix(b"Bearer ").decode()
        reader, writer = await two.proxy.connect()
        for slot in range(3):
            for name, token in (("default", two.proxy.token), ("mail", two.mail_app)):
                writer.write(two.request(token, f"/v1.0/{name}/{slot}"))
                assert (await read_reply(reader)).status == 200
        writer.close()
        went_up = two.went_up()
        assert len(two.proxy.upstream.received) == 1
    assert {path: tokens for path, tokens in went_up.items() if "mail" in path} == {
        f"/v1.0/mail/{slot}": [MAIL_TOKEN] for slot in range(3)
    }
    assert [tokens for path, tokens in went_up.items() if "default" in path] == [[own]] * 3


async def test_an_application_whose_identity_has_no_token_is_refused_and_others_go_on(tmp_path: Path) -> None:
    async with two_identities(tmp_path) as two:
        two.mail.expires_at = 0
        two.mail.unavailable("the client was refused", 7)
        refused = await two.proxy.ask(two.request(two.mail_app, "/v1.0/mail"))
        assert refused.status == 503
        assert refused.json()["error"]["code"] == "notReady"
        assert refused.value("retry-after") == "7"
        assert (await two.proxy.ask(two.request(two.proxy.token, "/v1.0/default"))).status == 200
        assert list(two.went_up()) == ["/v1.0/default"]


async def test_the_default_without_a_token_holds_up_no_other_identity(tmp_path: Path) -> None:
    async with two_identities(tmp_path) as two:
        two.proxy.credential.expires_at = 0
        assert (await two.proxy.ask(two.request(two.proxy.token, "/v1.0/default"))).status == 503
        assert (await two.proxy.ask(two.request(two.mail_app, "/v1.0/mail"))).status == 200
        assert two.went_up() == {"/v1.0/mail": [MAIL_TOKEN]}


async def test_a_401_renews_the_token_of_that_identity_alone(tmp_path: Path) -> None:
    async with two_identities(tmp_path) as two:
        two.dead.add(MAIL_TOKEN.encode())
        asking = asyncio.ensure_future(two.proxy.ask(two.request(two.mail_app, "/v1.0/mail", "POST")))
        await two.mail_asked.wait()
        # Renewing the default token must not resume requests that wait for mail's.
        loop = asyncio.get_running_loop()
        two.proxy.credential.renew("newer-default", loop.time() + 3600, 2)
        assert (await two.proxy.ask(two.request(two.proxy.token, "/v1.0/default"))).status == 200
        assert not asking.done()
        two.renew_mail(NEW_MAIL_TOKEN, 2)
        assert (await asking).status == 200
        assert two.asked_for_mail == [1]
        assert two.proxy.asked_for_credential == []
        assert two.went_up() == {
            "/v1.0/mail": [MAIL_TOKEN, NEW_MAIL_TOKEN],
            "/v1.0/default": ["newer-default"],
        }


async def test_who_leaves_while_waiting_for_a_token_is_not_sent_up_with_it(tmp_path: Path) -> None:
    async with two_identities(tmp_path) as two:
        two.dead.add(MAIL_TOKEN.encode())
        _, writer = await two.proxy.connect()
        writer.write(two.request(two.mail_app, "/v1.0/mail"))
        await two.mail_asked.wait()
        assert len(two.mail.waiting) == 1
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while two.mail.waiting:  # noqa: ASYNC110 - the transport announces no event for this
                await asyncio.sleep(0.001)
        two.renew_mail(NEW_MAIL_TOKEN, 2)
        assert two.went_up() == {"/v1.0/mail": [MAIL_TOKEN]}


async def test_a_batch_goes_up_with_the_token_of_its_application(tmp_path: Path) -> None:
    async with two_identities(tmp_path) as two:
        body = b'{"requests":[{"id":"1","method":"GET","url":"/users"}]}'
        head = two.request(two.mail_app, "/v1.0/$batch", "POST").replace(
            b"Content-Length: 0", b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
        )
        await two.proxy.ask(head + body)
        assert two.went_up() == {"/v1.0/$batch": [MAIL_TOKEN]}


# Assignment of identities to applications


def snapshot_of(*apps: tuple[str, str, bool]) -> Snapshot:
    return Snapshot(
        version="1",
        generated_at="2026-01-01T00:00:00.000Z",
        generation=1,
        synced_at=0.0,
        etag=None,
        proxy_id="proxy-1",
        sync_interval_seconds=None,
        orgs={"org-1": "Contoso", "org-2": "Fabrikam"},
        apps=tuple(App(each, org, each, each, (), 1, "rules", enabled) for each, org, enabled in apps),
        rulesets=(SnapshotRuleset("rules", "org-1", "open", 1, "digest", parse_ruleset(ALLOW_ALL)),),
    )


ASSIGNMENTS = Assignments(("default", "mail", "fabrikam"), {"app-1": "mail"}, {"org-2": "fabrikam"})


async def test_the_rulebook_gives_each_application_the_most_specific_identity() -> None:
    credentials = UpstreamCredentials(ASSIGNMENTS, lambda name, generation: None)
    apps = [("app-1", "org-2", True), ("app-2", "org-2", True), ("app-3", "org-1", True)]
    book = await build_rulebook(snapshot_of(*apps), Rulebook(), credentials)
    held = {client_id: caller.credential for client_id, caller in book.callers.items()}
    expected = {"app-1": "mail", "app-2": "fabrikam", "app-3": "default"}
    assert held == {client_id: credentials.named(name) for client_id, name in expected.items()}
    assert len(set(held.values())) == 3
    assert book.credentials == set(held.values())


async def test_a_worker_can_serve_once_one_of_its_applications_can() -> None:
    credentials = UpstreamCredentials(ASSIGNMENTS, lambda name, generation: None)
    apps = [("app-1", "org-1", True), ("app-2", "org-2", True), ("app-3", "org-1", False)]
    used = (await build_rulebook(snapshot_of(*apps), Rulebook(), credentials)).credentials
    default, mail, fabrikam = (credentials.named(name) for name in ASSIGNMENTS.names)
    assert default is not None
    assert mail is not None
    assert fabrikam is not None
    default.renew("d", 100.0, 1)  # no enabled application uses this identity
    assert not credentials.able(used, 0.0)
    assert credentials.able(frozenset(), 0.0)  # true as long as there are no applications
    mail.renew("m", 100.0, 1)
    assert credentials.able(used, 0.0)
    assert not credentials.settled(used, 0.0)
    fabrikam.unavailable("refused", 5)
    assert credentials.settled(used, 0.0)
    assert not credentials.able(used, 100.0)


def test_what_the_rules_do_not_know_is_named() -> None:
    apps = snapshot_of(("app-2", "org-1", True)).apps
    assert ASSIGNMENTS.unknown(["org-1"], apps) == [
        "organisation org-2 of identity fabrikam",
        "application app-1 of identity mail",
    ]
    assert ASSIGNMENTS.in_use(apps) == {"default"}
    assert ASSIGNMENTS.in_use([]) == {"default"}


def test_who_has_no_identity_gets_nothing() -> None:
    assert not NO_CREDENTIAL.valid(0.0)
    assert not NO_CREDENTIAL.valid(1e12)
