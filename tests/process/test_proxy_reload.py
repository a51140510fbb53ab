"""Tests of stop and reload under load: exchanges finish, no request fails, all in bounded time."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import cast

import pytest

from proxy.supervisor.child import HUNG_SECONDS
from tests.fakes import commands
from tests.fakes.ports import this_program
from tests.fakes.system import System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import (
    LONG,
    Client,
    Closed,
    Load,
    alive,
    assert_no_gap,
    client_of,
    events,
    kill_control_plane,
    log_of,
    metrics,
    processes,
    readiness,
    status_becomes,
    stored_paths,
    until,
    whole_system,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800 if LONG else 300)]

RELOADS = 50 if LONG else 3


def hang_up(system: System) -> None:
    os.kill(system.proxy.process.pid, signal.SIGHUP)


async def reloaded(system: System, times: int) -> None:
    await until(lambda: log_of(system).count(" supervisor proxy.supervisor: reloaded") >= times)


@pytest.mark.parametrize("kept", [True, False], ids=["kept connections", "a connection each"])
async def test_reloads_under_load_fail_no_request(tmp_path: Path, kept: bool) -> None:
    async with whole_system(tmp_path) as system:
        async with Load(system, kept=kept) as load:
            for reload in range(RELOADS):
                await load.responses(50)
                hang_up(system)
                await reloaded(system, reload + 1)
            await load.responses(50)
        assert load.broken == []
        assert load.refused_connects == 0
        assert load.idle_closes == 0
        await until(lambda: set(load.responded) <= stored_paths(system))
        assert [event for event in events(system) if event["status"] != 200] == []
        assert load.statuses() == {200}
        assert_no_gap(events(system))
        assert readiness(system)["checks"]["workers"] == {"status": "ok", "detail": ""}
        counted = metrics(system)
        assert counted["graphward_requests_total"] >= len(load.responded)
        assert counted["graphward_requests_in_flight"] == 0
        assert counted["graphward_connections_open"] == 0
        assert counted["graphward_starts_total"] == 2 * (RELOADS + 1)
        assert sorted(processes(system)) == ["agent", "worker-0", "worker-1"]


async def test_sigterm_under_load_finishes_what_is_in_flight(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        async with client_of(system) as slow, Load(system) as load:
            await load.responses(100)
            in_flight = asyncio.create_task(slow.get("/v1.0/slow/1500"))
            await system.graph.received(1)
            await until(lambda: metrics(system)["graphward_requests_in_flight"] >= 1)
            await asyncio.sleep(0.3)
            began = time.monotonic()
            os.kill(system.proxy.process.pid, signal.SIGTERM)
            reply = await in_flight
            assert reply.status == 200
            assert reply.headers["connection"] == "close"
            assert await system.proxy.process.wait() == 0
            assert time.monotonic() - began < 25  # less than the 30 s that a drain may last
            load.refused_connects = 0
        assert load.broken == []
        assert load.idle_closes == 0
        assert load.statuses() == {200}
        await until(lambda: set(load.responded) <= stored_paths(system))  # shipped before the process ended
        assert_no_gap(events(system))
        (proxy,) = (await system.cli("proxy", "list"))["proxies"]
        assert (proxy["health"], proxy["auditPending"]) == ("ended", 0), proxy


async def test_a_pod_that_is_ended_while_its_control_plane_is_away_delivers_before_it_goes(
    tmp_path: Path,
) -> None:
    """When a pod is deleted, its directory is deleted too, so undelivered events would be lost."""
    environment = {"Audit__DeliverAtStopSeconds": "60"}
    async with whole_system(tmp_path, environment=environment) as system, client_of(system) as client:
        await kill_control_plane(system)
        asked = {f"/v1.0/echo/{n}" for n in range(20)}
        for path in asked:
            assert (await client.get(path)).status == 200
        began = time.monotonic()
        os.kill(system.proxy.process.pid, signal.SIGTERM)
        await until(lambda: "audit events of organisation" in log_of(system))
        # Longer than an agent may be silent before the supervisor replaces it as hung.
        await asyncio.sleep(began + HUNG_SECONDS + 1.5 - time.monotonic())
        assert system.proxy.process.returncode is None
        await system.start_control_plane()
        assert await asyncio.wait_for(system.proxy.process.wait(), PATIENCE_SECONDS) == 0
        assert asked <= stored_paths(system)
        assert_no_gap(events(system))
        assert "did not end in time" not in log_of(system)


async def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    environment = {"Proxy__DrainSeconds": "1"}
    async with whole_system(tmp_path, environment=environment) as system, client_of(system) as client:
        endless = asyncio.create_task(client.get("/v1.0/gate/never"))
        await until(lambda: metrics(system)["graphward_requests_in_flight"] >= 1)
        os.kill(system.proxy.process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(system.proxy.process.wait(), PATIENCE_SECONDS) == 0
        with pytest.raises(Closed):
            await endless
        await until(lambda: "/v1.0/gate/never" in stored_paths(system))
        event = next(each for each in events(system) if each["path"] == "/v1.0/gate/never")
        assert event["status"] == 499


async def test_new_settings_take_effect_and_bad_ones_do_not(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        before = processes(system)
        good = system.proxy_config.read_text("utf-8")

        system.proxy_config.write_text(good.replace("[Token]", "[Token]\nLifetimeSecond = 9"), "utf-8")
        hang_up(system)
        await until(lambda: "did you mean LifetimeSeconds" in log_of(system))
        lines = [line for line in log_of(system).splitlines() if "not reloaded" in line]
        assert len(lines) == 1
        assert str(system.proxy_config) in lines[0]
        assert processes(system) == before
        assert (await client.get("/v1.0/echo/1")).status == 200

        no_key = "\n".join(
            'KeyFile = "/nowhere.key"' if line.startswith("KeyFile") else line for line in good.splitlines()
        )
        system.proxy_config.write_text(no_key, "utf-8")
        hang_up(system)
        await until(lambda: log_of(system).count("not reloaded") == 2)
        assert processes(system) == before

        system.proxy_config.write_text(good.replace("[Token]", "[Token]\nLifetimeSeconds = 77"), "utf-8")
        hang_up(system)
        await reloaded(system, 1)
        client.close()  # a stop closes idle connections, which HTTP allows
        await client.authenticate(system)
        assert (await client.get("/v1.0/echo/2")).status == 200
        assert not set(processes(system).values()) & set(before.values())
        assert not any(alive(pid) for pid in before.values())


@pytest.mark.parametrize(
    "key", ["Agent.HmacSecret", "Proxy.CertFile", "Upstream.CaFile", "Token.SigningKeyFile"]
)
async def test_a_pipe_in_the_place_of_a_file_is_refused_and_keeps_nobody_waiting(
    tmp_path: Path, key: str
) -> None:
    """The supervisor still receives the SIGTERM at the end of the test."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        before = processes(system)
        section, name = key.split(".")
        head, mark, rest = system.proxy_config.read_text("utf-8").partition(f"[{section}]\n")
        line = f'{name.removesuffix("File")}File = "{pipe}"'
        changed = re.sub(rf"^{name} = .*", line, rest, count=1, flags=re.MULTILINE)
        assert changed != rest
        system.proxy_config.write_text(head + mark + changed, "utf-8")
        hang_up(system)
        await until(lambda: "not reloaded" in log_of(system), seconds=10)
        (report,) = (each for each in log_of(system).splitlines() if "not reloaded" in each)
        assert f"{name.removesuffix('File')}File" in report
        assert report.endswith("the path is not a regular file")
        assert processes(system) == before
        assert (await client.get("/v1.0/echo/1")).status == 200
        system.proxy.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(system.proxy.process.wait(), PATIENCE_SECONDS) == 0


async def test_a_reload_to_an_admin_address_of_somebody_else_is_refused_at_once(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system:
        before = processes(system)
        good = system.proxy_config.read_text("utf-8")
        address = system.admin_url.removeprefix("http://")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            theirs = f"127.0.0.1:{taken.getsockname()[1]}"
            system.proxy_config.write_text(good.replace(address, theirs), "utf-8")
            hang_up(system)
            holder = f"{theirs} is in use by {this_program()}"
            refused = f"not reloaded, the active settings stay in use: Admin.Listen: {holder}"
            await until(lambda: refused in log_of(system), seconds=5)
            assert processes(system) == before
            assert readiness(system)["ready"]

        # The proxy's own agent does not block its successor on all interfaces either.
        everywhere = address.replace("127.0.0.1", "0.0.0.0")
        system.proxy_config.write_text(good.replace(address, everywhere), "utf-8")
        hang_up(system)
        await reloaded(system, 1)
        await until(lambda: readiness(system)["ready"])
        assert log_of(system).count("not reloaded") == 1


async def test_what_is_in_force_outlives_files_that_were_refused(tmp_path: Path) -> None:
    """A replacement process uses the certificates that the proxy last accepted, not the refused files."""
    async with whole_system(tmp_path) as system, client_of(system) as client:
        files = [tmp_path / "certificates" / name for name in ("server.pem", "ca.pem")]
        good = [file.read_bytes() for file in files]
        other = system.authority.server("other")
        shutil.copy(other.cert_file, files[0])  # next to the key of the first one
        files[1].write_text("no certificate")
        served = await served_certificate(client)
        hang_up(system)
        await until(lambda: "put PEM certificates there" in log_of(system))
        assert "not reloaded, the active settings stay in use: Proxy.CertFile" in log_of(system)

        before = processes(system)
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        client.close()
        assert (await client.get("/v1.0/echo/1")).status == 200  # the new upstream token works, too
        await until(lambda: "/v1.0/echo/1" in stored_paths(system))
        assert len(processes(system)) == len(before)
        assert await served_certificate(client) == served
        assert log_of(system).count("starting another") == len(before)

        files[1].write_bytes(good[1])
        shutil.copy(other.key_file, files[0].with_suffix(".key"))
        hang_up(system)
        await reloaded(system, 1)
        client.close()
        assert await served_certificate(client) != served
        assert (await client.get("/v1.0/echo/2")).status == 200


async def served_certificate(client: Client) -> bytes:
    _, writer = await client.connected()
    return cast(ssl.SSLObject, writer.get_extra_info("ssl_object")).getpeercert(binary_form=True) or b""


@pytest.mark.skipif(not LONG, reason="half a minute, of which most is waiting: GRAPHWARD_LONG=1")
async def test_a_reload_to_settings_that_cannot_serve_is_given_up(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, Load(system, clients=2) as load:
        good = system.proxy_config.read_text("utf-8")
        wrong = good.replace('ClientSecret = "', 'ClientSecret = "not-')
        assert wrong != good
        system.proxy_config.write_text(wrong, "utf-8")
        hang_up(system)
        await until(lambda: "the new workers can't serve" in log_of(system), seconds=60)
        system.proxy_config.write_text(good, "utf-8")
        await load.responses(20)
        hang_up(system)  # waits until the rollback has ended
        await until(lambda: "a reload is under way; the settings will be reloaded again" in log_of(system))
        await reloaded(system, 1)
        assert "stopped this worker before it was ready: no upstream token" in log_of(system)
        await load.responses(20)
    assert load.statuses() == {200}
    assert load.broken == []
    assert load.idle_closes == 0


async def test_a_second_sighup_during_a_reload_is_not_lost(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        hang_up(system)
        await until(lambda: "supervisor: reloading" in log_of(system))
        hang_up(system)
        await reloaded(system, 2)
        assert readiness(system)["ready"]


async def test_readiness_right_after_a_reload_and_a_death(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        hang_up(system)
        await reloaded(system, 1)
        state = readiness(system)
        assert (state["status"], state["reasons"]) == (200, [])
        assert state["checks"]["workers"]["status"] == "ok"
        workers = processes(system, "worker")
        for pid in workers.values():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: set(processes(system, "worker").values()).isdisjoint(workers.values()))
        await until(lambda: readiness(system)["checks"]["workers"]["status"] == "ok")
        # No worker accepts requests before it has looked for room in its spool.
        await until(lambda: readiness(system)["ready"])


async def test_a_stop_does_not_wait_for_an_idle_client_that_leaves_tls_s_farewell_unanswered(
    tmp_path: Path,
) -> None:
    """Some HTTP libraries read from a connection only while they use the connection."""

    def used_once() -> ssl.SSLSocket:
        address = ("127.0.0.1", int(system.proxy_url.rpartition(":")[2]))
        client = system.client_context().wrap_socket(
            socket.create_connection(address), server_hostname="127.0.0.1"
        )
        client.sendall(b"GET /adfs/.well-known/openid-configuration HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        return client

    async with whole_system(tmp_path, environment={"Proxy__DrainSeconds": "3600"}) as system:
        with await asyncio.to_thread(used_once):
            os.kill(system.proxy.process.pid, signal.SIGTERM)
            await asyncio.wait_for(system.proxy.process.wait(), PATIENCE_SECONDS)
        assert "did not finish in time" not in log_of(system)


# -- a stop ends the serving workers, whatever agent they started with -------------------------------


async def stop_everything(system: System) -> None:
    arguments = ("--config", str(system.control_plane_config), "kill", "all", "--reason", "test")
    done = await asyncio.to_thread(commands.run, *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
async def test_a_stop_reaches_workers_that_go_on_because_the_new_ones_can_not_serve(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        good = system.proxy_config.read_text("utf-8")
        system.proxy_config.write_text(good.replace('ClientSecret = "', 'ClientSecret = "not-'), "utf-8")
        os.kill(system.proxy.process.pid, number)
        await until(lambda: "cannot fetch a new upstream token" in log_of(system))  # the new agent runs
        assert (await client.get("/v1.0/echo/1")).status == 200
        await stop_everything(system)
        await status_becomes(client, "/v1.0/echo/2", 403)
        # A fixed version takes over from workers of both settings.
        system.proxy_config.write_text(good, "utf-8")
        os.kill(system.proxy.process.pid, signal.SIGUSR2)
        await until(lambda: "reloaded" in log_of(system).rpartition("takes over")[2])
        assert sorted(processes(system)) == ["agent", "worker-0"]
    assert "Traceback" not in log_of(system)


async def test_a_stop_ends_what_is_under_way_on_a_worker_that_drains(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        before = processes(system)
        under_way = asyncio.create_task(client.get("/v1.0/slow/60000"))
        await system.graph.received(1)
        hang_up(system)
        await until(lambda: processes(system).get("agent", before["agent"]) != before["agent"])
        await stop_everything(system)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await under_way).status == 403
    assert "Traceback" not in log_of(system)
