"""Tests of a proxy whose applications use different upstream identities, or none at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET
from tests.process.proxy_parts import log_of, metrics, readiness
from tests.process.specification import Live, run, until, whole_system

pytestmark = pytest.mark.process

RULES = "version: 1\nname: {name}\ndefault: allow\nrules: []\n"
MAIL, FILES = "client-of-mail", "client-of-files"
SECRETS = {MAIL: "fake~mail.secret", FILES: "fake~files.secret"}
# identity of each application while two are active
OWNERS = {"crm": CLIENT_ID, "mailer": MAIL, "archive": FILES}


@dataclass
class Several:
    """A system with several upstream identities, and an operator's actions on these identities."""

    live: Live
    first_settings: str
    reloads: int = 0

    def reload(self, *tables: str) -> None:
        """Reload the proxy with its first settings file plus the TOML tables in `tables`."""
        self.begin_reload(*tables)
        self.end_reload()

    def begin_reload(self, *tables: str) -> None:
        self.live.system.proxy_config.write_text("\n".join([self.first_settings, *tables]), "utf-8")
        os.kill(self.live.system.proxy.process.pid, signal.SIGHUP)

    def end_reload(self) -> None:
        self.reloads += 1
        log = self.live.system.proxy.log
        until(lambda: log.read_text().count(" supervisor proxy.supervisor: reloaded") == self.reloads)

    def put_two_in_force(self) -> None:
        self.live.system.identity.more_clients = dict(SECRETS)
        self.reload(
            self.for_application("mail", MAIL, "mailer"), self.for_application("files", FILES, "archive")
        )

    def for_application(self, name: str, client_id: str, app: str) -> str:
        return self.table(name, client_id, f'Applications = ["{self.live.app(app).client_id}"]')

    def table(self, name: str, client_id: str, who: str) -> str:
        secret = f'ClientSecretFile = "{name}.secret"'
        return f'[[Credentials.Identities]]\nName = "{name}"\nClientId = "{client_id}"\n{secret}\n{who}\n'

    def ask(self, app: str, what: str) -> tuple[int, list[str | None]]:
        """Return the status of the response, and the identities whose tokens the upstream received."""
        path = f"/v1.0/echo/{app}-{what}"
        return self.live.ask(app, "GET", path).status, self.went_up_as(path)

    def went_up_as(self, path: str) -> list[str | None]:
        requests = [each for each in list(self.live.system.graph.requests) if each.path == path]
        tokens = [each.value("Authorization").removeprefix("Bearer ") for each in requests]
        return [self.live.system.identity.client_of(token) for token in tokens]

    def status_of(self, check: str) -> str | None:
        found = readiness(self.live.system)["checks"].get(check)
        return None if found is None else str(found["status"])

    def acquired(self) -> dict[str, int]:
        issued_to = self.live.system.identity.issued_to
        return {client_id: len(issued_to(client_id)) for client_id in (CLIENT_ID, MAIL, FILES)}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    directory = tmp_path_factory.mktemp("system")
    for name, client_id in (("mail", MAIL), ("files", FILES)):
        (directory / f"{name}.secret").write_text(f"{SECRETS[client_id]}\n")
    rules = {name: RULES.format(name=name) for name in OWNERS}
    with whole_system(directory, rules, {"Log__Level": "debug"}, vault=False) as live:
        several = Several(live, live.system.proxy_config.read_text("utf-8"))
        yield several
        secrets = [*SECRETS.values(), CLIENT_SECRET, *live.system.identity.tokens]
        for child in live.system.children:
            said = child.log.read_text("utf-8")
            assert "Traceback" not in said
            assert [secret for secret in secrets if secret in said] == []


def test_a_reload_adds_identities_to_applications_of_one_organisation(several: Several) -> None:
    for app in OWNERS:
        assert several.ask(app, "before") == (200, [CLIENT_ID])
    assert "credentials/default" not in readiness(several.live.system)["checks"]
    several.put_two_in_force()
    # the status is right at once: a new worker accepts no request before it has every token
    for app, owner in OWNERS.items():
        assert several.ask(app, "after") == (200, [owner])
    checks = readiness(several.live.system)["checks"]
    assert {
        name: checks[name]["status"] for name in checks if name.startswith("credentials")
    } == dict.fromkeys(("credentials", "credentials/default", "credentials/mail", "credentials/files"), "ok")


def test_until_every_new_identity_was_tried_the_old_workers_serve(several: Several) -> None:
    live, identity = several.live, several.live.system.identity
    several.reload()
    identity.more_clients = dict(SECRETS)
    gate = identity.gates[MAIL] = asyncio.Event()
    acquired = several.acquired()[CLIENT_ID]
    several.begin_reload(several.for_application("mail", MAIL, "mailer"))
    # the other tokens are all that a new worker needs
    until(lambda: several.acquired()[CLIENT_ID] > acquired)
    for number in range(40):
        assert several.ask("mailer", f"waiting-{number}") == (200, [CLIENT_ID])

    async def open_barrier() -> None:
        gate.set()

    live.loop.run(open_barrier())
    several.end_reload()
    assert several.ask("mailer", "taken-over") == (200, [MAIL])


def test_under_load_no_token_goes_up_for_another_application(several: Several) -> None:
    several.put_two_in_force()
    for app in OWNERS:
        several.live.token(app)
    asked = [(app, f"load-{number}") for number in range(40) for app in OWNERS]
    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(lambda each: several.ask(*each), asked))
    assert responses == [(200, [OWNERS[app]]) for app, _ in asked]


def test_an_upstream_401_renews_the_token_of_that_identity_alone(several: Several) -> None:
    several.put_two_in_force()
    identity, before = several.live.system.identity, several.acquired()
    identity.revoke(identity.issued_to(MAIL))
    # The refused attempt and the second one, both with tokens of mail.
    assert several.ask("mailer", "revoked") == (200, [MAIL, MAIL])
    assert several.ask("crm", "beside") == (200, [CLIENT_ID])
    assert several.ask("archive", "beside") == (200, [FILES])
    assert several.acquired() == {**before, MAIL: before[MAIL] + 1}


def test_applications_of_a_refused_identity_get_503_until_it_is_taken_again(several: Several) -> None:
    system = several.live.system
    several.put_two_in_force()
    del system.identity.more_clients[MAIL]
    # A new agent has no token of mail yet, and the provider refuses one.
    several.reload(several.for_application("mail", MAIL, "mailer"))
    refused = several.live.ask("mailer", "GET", "/v1.0/echo/refused")
    assert (refused.status, refused.error["code"]) == (503, "notReady")
    assert int(refused.value("Retry-After") or 0) >= 1
    assert several.went_up_as("/v1.0/echo/refused") == []
    assert several.ask("crm", "meanwhile") == (200, [CLIENT_ID])
    now = readiness(system)
    assert (now["status"], now["checks"]["credentials"]["status"]) == (200, "degraded")
    assert now["checks"]["credentials/mail"] == {
        "status": "failed",
        "detail": "identity provider responded with 401 invalid_client AADSTS7000215; the client secret is "
        "wrong: it must be the secret's value, not its id",
    }
    assert metrics(system)['graphward_check{check="credentials/mail"}'] == 2
    assert (
        "cannot fetch a new upstream token of identity mail: identity provider responded with 401"
        in log_of(system)
    )
    until(
        lambda: (
            "identity mail: identity provider" in json.dumps(several.live.cli("proxy", "show", "demo-proxy"))
        )
    )
    system.identity.more_clients[MAIL] = SECRETS[MAIL]
    until(lambda: several.status_of("credentials") == "ok")
    assert several.ask("mailer", "again") == (200, [MAIL])


def test_a_default_that_nobody_uses_keeps_no_one_waiting(several: Several) -> None:
    """The application `mail` has its own upstream identity.

    All applications except `mail` use the upstream identity of their organisation.
    """
    system = several.live.system
    system.identity.more_clients = dict(SECRETS)
    system.identity.client_secrets.clear()
    try:
        several.reload(
            several.for_application("mail", MAIL, "mailer"),
            several.table("files", FILES, f'Organisations = ["{system.org_id}"]'),
        )
        assert several.ask("mailer", "named") == (200, [MAIL])
        for app in ("crm", "archive"):
            assert several.ask(app, "by-organisation") == (200, [FILES])
        now = readiness(system)
        assert (now["status"], now["checks"]["credentials"]["status"]) == (200, "degraded")
        assert now["checks"]["credentials/default"]["status"] == "failed"
    finally:
        system.identity.client_secrets.add(CLIENT_SECRET)


def test_a_reload_to_identities_that_overlap_changes_nothing(several: Several) -> None:
    several.put_two_in_force()
    system = several.live.system
    mail, files = (several.for_application(name, "client", "mailer") for name in ("mail", "files"))
    several.begin_reload(mail, files)
    client_id = several.live.app("mailer").client_id
    problem = f"application {client_id} is also in identity mail: remove one of the two"
    until(lambda: problem in log_of(system))
    assert several.ask("archive", "still") == (200, [FILES])
    checked = run("proxy", "--config", str(system.proxy_config), "--check")
    assert checked.returncode == 2
    assert f"Credentials.Identities.files.Applications: {problem}" in checked.stderr
