"""Tests of client assertions: each assertion gets one token, in place of a client secret.

If the proxy refuses an assertion, the audit event contains the reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest

from proxy.ipc.counters import CREDENTIAL_PROBLEMS_FIRST, LIMIT_ASSERTIONS, TOKENS_ISSUED
from proxy.rules.credentials import Credential, Federated, PublicKey
from proxy.rules.stops import EVERYTHING_STOPPED
from proxy.server.assertions.assertion import ASSERTION_TYPE, parse_assertion
from proxy.server.assertions.judge import Proof, Reuse
from proxy.server.assertions.used import NotRemembered, Use, UsedAssertions, used_directory
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS
from tests.bytes.data_path import (
    CLIENT_ID,
    TOKEN_KEY,
    DataPath,
    Reply,
    data_path,
    ok,
    responding,
    without_ids,
)
from tests.bytes.test_limits import LOAD_BALANCER
from tests.bytes.test_tokens import FORM, RIGHT, ask_for_token, asked_with, basic, form
from tests.fakes.issuer import SigningKey, claims_of
from tests.patience import PATIENCE_SECONDS

BASE = "https://graph.contoso.example"
ISSUER, SUBJECT, AUDIENCE = "https://issuer.example", "workload-1", "api://graphward"
KEY, ISSUER_KEY = SigningKey(), SigningKey(key_id="issuer-1")
REGISTERED = PublicKey("crd-key", None, KEY.jwk, ())
FEDERATED = Federated("crd-fed", None, ISSUER, SUBJECT, AUDIENCE, "once", {"keys": [ISSUER_KEY.jwk]})
DISCOVERED = replace(FEDERATED, keys=None)


def own(**changes: Any) -> str:
    return KEY.sign(claims_of(CLIENT_ID, CLIENT_ID, f"{BASE}/proxy/token", **changes))


def foreign(**changes: Any) -> str:
    return ISSUER_KEY.sign(claims_of(ISSUER, SUBJECT, AUDIENCE, **changes))


def asking(assertion: str, **changes: str) -> bytes:
    fields = {
        "grant_type": "client_credentials",
        "client_id": CLIENT_ID,
        "client_assertion_type": ASSERTION_TYPE,
        "client_assertion": assertion,
        **changes,
    }
    return form(**{name: value for name, value in fields.items() if value})


def allow(proxy: DataPath, *credentials: Credential, **changes: Any) -> None:
    """Activate rules in which the application has the given `credentials`."""
    book = proxy.context.rulebook
    caller = replace(book.callers[CLIENT_ID], credentials=credentials, **changes)
    proxy.context.use(replace(book, callers={CLIENT_ID: caller}))


def why(proxy: DataPath) -> list[tuple[int, str, str | None, str | None]]:
    return [
        (each["status"], each["reason"], each.get("credentialId"), each.get("credentialProblem"))
        for each in proxy.events()
    ]


def refused(reply: Reply) -> bool:
    expected = {"error": "invalid_client", "error_description": "The client assertion is not valid."}
    return reply.status == 401 and without_ids(reply) == expected


async def test_each_kind_of_assertion_gets_a_token_that_names_its_credential(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, public_base=BASE) as proxy:
        allow(proxy, REGISTERED, FEDERATED)
        for assertion, credential, given in (
            (own(), "crd-key", {}), (own(), "crd-key", {"client_id": ""}), (foreign(), "crd-fed", {}),
        ):  # fmt: skip
            reply = await ask_for_token(proxy, asking(assertion, **given), target="/adfs/oauth2/v2.0/token")
            assert (reply.status, reply.json()["expires_in"]) == (200, 3599)
            token = reply.json()["access_token"].encode()
            assert (await asked_with(proxy, b"Bearer " + token)).status == 200
            claims = jwt.decode(token, TOKEN_KEY, ["HS256"], audience="graphward")
            assert (claims["sub"], claims["cid"], claims["ver"]) == (CLIENT_ID, credential, 1)
        asked = [each for each in why(proxy) if each[1] == "tokenIssued"]
        assert [each[2:] for each in asked] == [("crd-key", None), ("crd-key", None), ("crd-fed", None)]
        assert proxy.context.counters.values[TOKENS_ISSUED] == 3


async def test_a_refused_assertion_says_nothing_to_the_client_and_why_in_the_event(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, public_base=BASE) as proxy:
        allow(proxy, REGISTERED, FEDERATED)
        bodies = {
            "signature": asking(SigningKey().sign(claims_of(CLIENT_ID, CLIENT_ID, f"{BASE}/proxy/token"))),
            "issuer": asking(foreign(iss="https://other.example")),
            "subject": asking(foreign(sub="workload-2")),
            # built with the host of the Host field
            "audience": asking(own(aud="https://p.example:8443/proxy/token")),
            "expired": asking(own(iat=1, exp=2)),
            "malformed": asking("x"),
        }
        for body in bodies.values():
            assert refused(await ask_for_token(proxy, body))
        for body, fields, what in (
            (
                asking(own(), client_assertion_type="urn:other"),
                FORM,
                "client_assertion_type must be urn:ietf",
            ),
            (asking(own(), client_assertion_type=""), FORM, "assertion_type must be urn:ietf"),
            (
                asking(own(), client_secret="x"),
                FORM,
                "either a client secret or a client assertion, not both",
            ),
            (asking(own(), client_assertion=""), FORM, "no client_assertion"),
            (asking(own()), basic(CLIENT_ID, "x"), "either a client secret or a client assertion, not both"),
        ):
            reply = await ask_for_token(proxy, body, fields)
            assert (reply.status, reply.json()["error"]) == (400, "invalid_request")
            assert what in reply.json()["error_description"]
        assert [each[3] for each in why(proxy)] == list(bodies)
        assert {each[:2] for each in why(proxy)} == {(401, "assertionRefused")}
        counted = proxy.context.counters.values[CREDENTIAL_PROBLEMS_FIRST:][: len(CREDENTIAL_PROBLEMS)]
        by_problem = dict(zip(CREDENTIAL_PROBLEMS, counted, strict=True))
        assert (by_problem["malformed"], by_problem["issuer"], by_problem["reuse"]) == (1, 1, 0)
        unknown = await ask_for_token(proxy, asking(own(iss="x", sub="x"), client_id="x"))
        assert refused(unknown)
        assert len(proxy.events()) == 6  # a request of an unknown client has no event
        assert (await ask_for_token(proxy, RIGHT)).status == 200


async def test_an_assertion_is_accepted_once_and_where_it_was_first_sent_from(tmp_path: Path) -> None:
    """MSAL keeps its client assertion for nine minutes, and sends this assertion again for each new token."""
    async with data_path(responding(ok(b"{}")), tmp_path, public_base=BASE) as proxy:
        allow(proxy, REGISTERED, FEDERATED, replace(FEDERATED, id="crd-k8s", subject="pod", reuse="untilEnd"))
        for assertion, statuses in (
            (foreign(), [200, 401, 401]),
            (own(), [200, 200, 200]),
            (foreign(sub="pod"), [200, 200, 200]),
        ):
            answers = [await ask_for_token(proxy, asking(assertion)) for _ in range(3)]
            assert [each.status for each in answers] == statuses
        assert why(proxy)[1] == (401, "assertionRefused", "crd-fed", "reuse")
        elsewhere = UsedAssertions(used_directory(proxy.retention))
        once = own()
        assert (await ask_for_token(proxy, asking(once))).status == 200
        again = proof_of(proxy, once)
        assert elsewhere.use("app-1", again, "198.51.100.7", time.time()) is Use.USED_BEFORE
        assert elsewhere.use("app-1", again, "127.0.0.1", time.time()) is Use.REPEATED
        assert elsewhere.use("app-1", again, "127.0.0.1", time.time() + 601) is Use.USED_BEFORE
        assert elsewhere.use("app-1", again, "", time.time()) is Use.USED_BEFORE


async def test_an_assertion_brings_one_token_whichever_application_it_is_sent_for(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        allow(proxy, FEDERATED)
        book = proxy.context.rulebook
        other = replace(book.callers[CLIENT_ID], app_id="app-2", client_id="client-2")
        other = replace(other, credentials=(replace(FEDERATED, id="crd-2"),))
        proxy.context.use(replace(book, callers={**book.callers, "client-2": other}))
        once, second = foreign(), foreign()
        for assertion, client_id, status in (
            (once, CLIENT_ID, 200), (once, "client-2", 401), (once, CLIENT_ID, 401),
            (second, "client-2", 200), (second, CLIENT_ID, 401),
        ):  # fmt: skip
            assert (await ask_for_token(proxy, asking(assertion, client_id=client_id))).status == status
        assert why(proxy)[1] == (401, "assertionRefused", "crd-2", "reuse")


def proof_of(proxy: DataPath, assertion: str) -> Proof:
    credentials = proxy.context.rulebook.callers[CLIENT_ID].credentials or ()
    return proxy.context.assertions.judge(parse_assertion(assertion), CLIENT_ID, credentials, time.time())


async def test_a_token_dies_with_the_credential_that_it_was_issued_for(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, public_base=BASE) as proxy:
        allow(proxy, replace(REGISTERED, ends_at=time.time() + 100), FEDERATED)
        reply = await ask_for_token(proxy, asking(own()))
        assert 90 < reply.json()["expires_in"] < 100
        bearer = b"Bearer " + reply.json()["access_token"].encode()
        for credentials, changes, status in (
            ([REGISTERED], {}, 200),
            ([REGISTERED], {"secret_version": 2}, 200),  # another secret does not affect it
            ([replace(REGISTERED, ends_at=time.time() - 1)], {}, 401),
            ([FEDERATED], {}, 401),
            ([], {}, 401),
            ([REGISTERED], {"enabled": False}, 401),
            ([REGISTERED], {"enabled": True}, 200),
        ):
            allow(proxy, *credentials, **changes)
            assert (await asked_with(proxy, bearer)).status == status
            assert (await asked_with(proxy, bearer)).status == status


async def test_nothing_is_used_up_by_a_request_that_brought_no_token(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, public_base=BASE) as proxy:
        allow(proxy, FEDERATED)
        once = foreign()
        proxy.context.max_verifying = 0
        assert (await ask_for_token(proxy, asking(once))).status == 503
        proxy.context.max_verifying = 64
        allow(proxy, FEDERATED, enabled=False)
        assert refused(await ask_for_token(proxy, asking(once)))
        allow(proxy, FEDERATED, enabled=True)
        book = proxy.context.rulebook
        proxy.context.use(replace(book, stops=EVERYTHING_STOPPED))
        assert (await ask_for_token(proxy, asking(once))).status == 403
        proxy.context.use(book)
        directory = used_directory(proxy.retention)
        directory.touch()  # a file in place of the directory, so that nothing can be stored
        assert (await ask_for_token(proxy, asking(once))).status == 503
        assert proxy.context.counters.values[LIMIT_ASSERTIONS] == 1
        directory.unlink()
        assert [(await ask_for_token(proxy, asking(once))).status for _ in range(2)] == [200, 401]


async def test_failures_in_an_application_s_name_do_not_keep_it_out(tmp_path: Path) -> None:
    async with data_path(
        responding(ok(b"{}")),
        tmp_path,
        public_base=BASE,
        max_failures_per_address=3,
        max_failures_per_client=3,
    ) as proxy:
        allow(proxy, REGISTERED)
        wrong = asking(own(sub="x"))
        statuses = [(await ask_for_token(proxy, wrong)).status for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert why(proxy)[-1] == (429, "tooManyFailures", "crd-key", "subject")
        assert (await ask_for_token(proxy, asking(own()))).status == 200


async def test_worthless_assertions_do_not_keep_a_secret_out(tmp_path: Path) -> None:
    async with data_path(
        responding(ok(b"{}")),
        tmp_path,
        public_base=BASE,
        max_failures_per_address=2,
        max_failures_per_client=3,
    ) as proxy:
        proxy.context.trusted_proxies = LOAD_BALANCER

        def sent_from(address: str) -> bytes:
            return FORM + f"X-Forwarded-For: {address}\r\n".encode()

        for last in range(12):  # many addresses, and each longer than allowed
            by_assertion = await ask_for_token(proxy, asking("x"), sent_from(f"192.0.2.{last // 3}"))
            assert by_assertion.status == (429 if last % 3 == 2 else 401)
        allow(proxy, REGISTERED, enabled=False)
        for last in range(4):
            assert (await ask_for_token(proxy, asking(own()), sent_from(f"192.0.2.9{last}"))).status == 401
        allow(proxy, enabled=True)
        assert len(proxy.context.failures_of_client) == 0
        assert (await ask_for_token(proxy, RIGHT, sent_from("198.51.100.1"))).status == 200


async def test_keys_of_an_issuer_come_from_the_agent_and_are_asked_for_when_one_is_unknown(
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    async with data_path(
        responding(ok(b"{}")), tmp_path, public_base="", asked_for_keys=asked.append
    ) as proxy:
        allow(proxy, DISCOVERED, REGISTERED)
        keys, now = proxy.context.assertions.keys, time.time()
        assert refused(await ask_for_token(proxy, asking(foreign())))
        assert asked == [ISSUER]  # the clock may have jumped, so its keys seem too old
        proxy.context.deadlines.now += 10
        keys.take(ISSUER, '{"keys": [{"kty": "EC", "kid": "old"}]}', now + 60)
        for _ in range(2):
            assert refused(await ask_for_token(proxy, asking(foreign())))
        assert asked == [ISSUER] * 2  # not again at once
        keys.take(ISSUER, json.dumps({"keys": [ISSUER_KEY.jwk]}), now + 60)
        assert (await ask_for_token(proxy, asking(foreign()))).status == 200
        keys.take(ISSUER, '{"keys": []}', now - 1)  # expired keys
        assert refused(await ask_for_token(proxy, asking(foreign())))
        assert refused(await ask_for_token(proxy, asking(own())))
        problems = [each[3] for each in why(proxy)]
        assert problems == ["keysUnavailable", "key", "key", None, "keysUnavailable", "audienceUnknown"]


async def test_discovery_offers_assertions(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, public_base=BASE) as proxy:
        head = b"GET /adfs/.well-known/openid-configuration HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        document = (await proxy.ask(head)).json()
        assert document["token_endpoint"] == f"{BASE}/adfs/oauth2/v2.0/token"
        assert "private_key_jwt" in document["token_endpoint_auth_methods_supported"]
        algorithms = document["token_endpoint_auth_signing_alg_values_supported"]
        assert {"RS256", "PS256", "ES256"} <= set(algorithms)
        assert not {"none", "HS256"} & set(algorithms)


# Store of used assertions


def a_proof(use_id: bytes, *, ends_at: float = 2e9, reuse: Reuse = Reuse.ONCE) -> Proof:
    return Proof(REGISTERED, reuse, hashlib.sha256(use_id).digest(), ends_at)


def test_one_application_can_not_fill_the_memory_of_another(tmp_path: Path) -> None:
    used = UsedAssertions(tmp_path, most=4)
    now = 1e9
    for n in range(4):
        assert used.use("a", a_proof(b"%d" % n, ends_at=now + n), "n", now - 1) is Use.FIRST
    assert used.use("a", a_proof(b"more"), "n", now - 1) is Use.FULL
    assert used.use("b", a_proof(b"more"), "n", now - 1) is Use.FIRST
    assert used.use("a", a_proof(b"more"), "n", now + 1.5) is Use.FIRST  # two have expired
    for n, use in ((2, Use.USED_BEFORE), (3, Use.USED_BEFORE), (0, Use.FIRST)):
        assert used.use("a", a_proof(b"%d" % n), "n", now + 1.5) is use
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_of_all_threads_of_a_process_one_uses_an_assertion(tmp_path: Path) -> None:
    used = UsedAssertions(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda n: used.use("a", a_proof(b"%d" % (n // 8)), "n", 1e9), range(400)))
    assert outcomes.count(Use.FIRST) == 50


def use_many(directory: Path, start: Any, results: Any, die_after: int) -> None:
    used = UsedAssertions(directory)
    start.wait()
    first = []
    for n in range(300):
        if used.use("a", a_proof(b"%d" % n), "n", 1e9) is Use.FIRST:
            first.append(n)
        if n == die_after:
            results.put(first)
            results.close()
            results.join_thread()
            os.kill(os.getpid(), signal.SIGKILL)
    results.put(first)


def test_of_all_processes_one_uses_an_assertion_even_if_some_are_killed(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    start, queue = forking.Event(), forking.Queue()
    workers = [
        forking.Process(target=use_many, args=(tmp_path, start, queue, die)) for die in (100, 1000, 1000)
    ]
    for each in workers:
        each.start()
    start.set()
    firsts = [queue.get(timeout=PATIENCE_SECONDS) for _ in workers]
    for each in workers:
        each.join()
    assert sorted(n for first in firsts for n in first) == list(range(300))
    again = UsedAssertions(tmp_path)
    assert {again.use("a", a_proof(b"%d" % n), "n", 1e9) for n in range(300)} == {Use.USED_BEFORE}


@contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
    os.close(file)


def test_a_memory_that_another_process_keeps_locked_accepts_nothing(
    tmp_path: Path,
) -> None:
    used = UsedAssertions(tmp_path, lock_seconds=0.01)
    assert used.use("a", a_proof(b"1"), "n", 1e9) is Use.FIRST
    (file,) = tmp_path.iterdir()
    with locked_by_another(file), ThreadPoolExecutor(1) as threads:
        patient = UsedAssertions(tmp_path, lock_seconds=0.3)
        waiting = threads.submit(patient.use, "a", a_proof(b"2"), "n", 1e9)
        assert patient.use("b", a_proof(b"2"), "n", 1e9) is Use.FIRST  # another application does not wait
        assert not waiting.done()
        with pytest.raises(NotRemembered):
            used.use("a", a_proof(b"2"), "n", 1e9)
        with pytest.raises(NotRemembered):
            waiting.result()
    file.write_bytes(file.read_bytes() + b"half a record")
    assert used.use("a", a_proof(b"2"), "n", 1e9) is Use.FIRST
    assert used.use("a", a_proof(b"2"), "n", 1e9) is Use.USED_BEFORE
    assert file.stat().st_size % 40 == 0
