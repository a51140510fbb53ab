"""Tests that a used assertion stays used, and an issuer's keys stay valid, even if processes are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.fakes.issuer import FakeIssuer
from tests.fakes.system import System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import kill_all, kill_control_plane, processes, until, whole_system

pytestmark = [pytest.mark.process, pytest.mark.asyncio]

AUDIENCE = "api://AzureADTokenExchange"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def ask(system: System, assertion: str) -> int:
    """Request a token with the assertion over a new connection.

    Return the status of the response, or 0 if no worker accepted the connection.
    """
    form = {
        "grant_type": "client_credentials",
        "client_id": system.applications["app"].client_id,
        "client_assertion_type": ASSERTION_TYPE,
        "client_assertion": assertion,
    }
    try:
        with urllib.request.urlopen(
            f"{system.proxy_url}/proxy/token",
            urlencode(form).encode(),
            timeout=PATIENCE_SECONDS,
            context=system.client_context(),
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


async def asked(system: System, assertion: str) -> int:
    """Repeat the token request until a worker responds."""
    status = 0
    while not status:
        status = await asyncio.to_thread(ask, system, assertion)
    return status


async def pin(system: System, issuer: FakeIssuer, subject: str, reuse: str) -> None:
    pinned = ("--issuer", issuer.issuer, "--subject", subject, "--audience", AUDIENCE, "--reuse", reuse)
    added = await system.cli("app", "federated", "add", "app", *pinned)
    snapshot = system.directory / "snapshot.json"
    await until(lambda: added["credential"]["id"] in snapshot.read_text("utf-8"))


async def test_no_assertion_is_used_twice_through_kills_and_a_restart(tmp_path: Path) -> None:
    ca_file = tmp_path / "certificates" / "ca.pem"  # the system creates this file
    environment = {"Callers__IssuerCaFile": str(ca_file), "Audit__DeliverAtStopSeconds": "0"}
    async with whole_system(tmp_path, environment=environment) as system:
        async with FakeIssuer(tls=system.authority.server("issuer")) as issuer:
            await pin(system, issuer, "workload", "once")
            await pin(system, issuer, "pod", "until-end")
            kept = system.audit_directory / "issuer-keys.json"
            await until(kept.exists)
            once, pod = issuer.token("workload", AUDIENCE), issuer.token("pod", AUDIENCE)
            await until(lambda: ask(system, pod) == 200)  # every worker has the keys shortly afterwards
            statuses = await asyncio.gather(*(asked(system, once) for _ in range(8)))
            assert sorted(statuses) == [200] + [401] * 7

            for worker in processes(system, "worker").values():
                os.kill(worker, signal.SIGKILL)
            assert await asked(system, once) == 401

        # From here on, issuer and control plane are unreachable.
        await kill_control_plane(system)
        await kill_all(system)
        await system.start_proxy()
        assert await asked(system, once) == 401
        assert await asked(system, pod) == 200
        assert await asked(system, issuer.token("workload", AUDIENCE)) == 200
