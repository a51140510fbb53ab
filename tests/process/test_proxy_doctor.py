"""Tests of the proxy's `--doctor`: it finds each real fault, and reports it with its remedy.

The `--doctor` option changes nothing and reveals no secret.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

import jwt
import pytest

from proxy.startup.identity_file import Enrolled, Keys, write_identity
from tests.controlplane.plane import FakeClock, Plane, started
from tests.fakes.certificates import LOCAL_NAMES, CertificateAuthority
from tests.fakes.control_plane import API_KEY, HMAC_SECRET, FakeControlPlane
from tests.fakes.graph import FakeGraph
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.key_vault import FakeKeyVault, FakeManagedIdentity
from tests.fakes.ports import free_port
from tests.fakes.server import Received, Response
from tests.fakes.system import ROOT
from tests.process.proxy_parts import client_of, processes, whole_system

pytestmark = pytest.mark.process

DAY: Final = 86400
SETTINGS: Final = """\
[Proxy]
Listen = "127.0.0.1:{port}"
Workers = 1

[Agent]
ApiKey = "{api_key}"
HmacSecret = "{hmac_secret}"
CaFile = "{ca_file}"

[RuleSync]
SaasBaseUrl = "{control_plane}"
CachePath = "snapshot.json"

[Audit]
LocalRetentionPath = "audit"

[Token]
SigningKey = "{signing_key}"

[Upstream]
BaseUrl = "{upstream}"
CaFile = "{ca_file}"

[Credentials]
TenantId = "{tenant}"
ClientId = "{client_id}"
{credentials}

[Admin]
Listen = "127.0.0.1:{admin_port}"
"""
IDENTITY: Final = 'AuthorityUrl = "{url}"\nProvider = "environment"\nClientSecret = "{secret}"'
SIGNING_KEY: Final = "doctor~signing~key~of~forty~characters~9f3"


@dataclass
class Patient:
    """Settings of a proxy that runs with fake servers. The fakes fail only if a test makes them fail."""

    directory: Path
    values: dict[str, object]
    environment: dict[str, str] = field(default_factory=dict)
    settings: str = SETTINGS

    @property
    def config(self) -> Path:
        return self.directory / "proxy.toml"

    def write(self) -> None:
        self.config.touch(mode=0o600)
        self.config.write_text(self.settings.format(**self.values), "utf-8")

    @property
    def secrets(self) -> list[str]:
        return [str(self.values[name]) for name in ("api_key", "hmac_secret", "signing_key", "secret")]

    async def run(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "--config", str(self.config), "--doctor", *arguments),
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert err == b""
        for secret in self.secrets:
            assert secret not in out.decode()
        return process.returncode or 0, out.decode()

    async def findings(self) -> dict[str, dict[str, str]]:
        """Return the doctor's findings by check, and assert that the exit status matches the findings."""
        self.write()
        status, out = await self.run("--json")
        report = json.loads(out)
        failed = any(each["status"] == "fail" for each in report["findings"])
        assert (status, report["status"] == "fail") == (int(failed), failed)
        for each in report["findings"]:
            assert bool(each["fix"]) is (each["status"] != "ok"), each
            assert "\n" not in each["found"] + each["fix"]
        return {each["check"]: each for each in report["findings"]}

    async def failures(self) -> dict[str, dict[str, str]]:
        return {name: each for name, each in (await self.findings()).items() if each["status"] == "fail"}


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "certificates")


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def identity(authority: CertificateAuthority, stack: AsyncExitStack) -> FakeIdentityProvider:
    return await stack.enter_async_context(FakeIdentityProvider(tls=authority.server()))


@pytest.fixture
async def graph(
    authority: CertificateAuthority, identity: FakeIdentityProvider, stack: AsyncExitStack
) -> FakeGraph:
    return await stack.enter_async_context(FakeGraph(tls=authority.server(), accepts=identity.accepts))


@pytest.fixture
async def control(stack: AsyncExitStack) -> FakeControlPlane:
    return await stack.enter_async_context(FakeControlPlane())


@pytest.fixture
def until_ready(
    tmp_path: Path,
    authority: CertificateAuthority,
    control: FakeControlPlane,
    graph: FakeGraph,
    identity: FakeIdentityProvider,
) -> Patient:
    values: dict[str, object] = {
        "port": free_port(),
        "admin_port": free_port(),
        "api_key": API_KEY,
        "hmac_secret": HMAC_SECRET,
        "ca_file": authority.ca_file,
        "control_plane": control.base_url,
        "upstream": graph.base_url,
        "signing_key": SIGNING_KEY,
        "tenant": TENANT,
        "client_id": CLIENT_ID,
        "secret": CLIENT_SECRET,
        "credentials": IDENTITY.format(url=identity.base_url, secret=CLIENT_SECRET),
    }
    (tmp_path / "own").mkdir(mode=0o700)
    return Patient(tmp_path / "own", values)


def everything(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(each.relative_to(directory)): (
            each.stat().st_mode,
            each.stat().st_mtime_ns,
            each.read_bytes() if each.is_file() else b"",
        )
        for each in directory.rglob("*")
    }


async def test_a_sound_proxy_is_found_so_and_nothing_is_changed(
    until_ready: Patient, control: FakeControlPlane
) -> None:
    (until_ready.directory / "audit").mkdir(mode=0o700)
    assert await until_ready.failures() == {}
    before = everything(until_ready.directory)
    status, out = await until_ready.run()
    assert status == 0
    assert "control plane: sync" in out
    assert out.splitlines()[-1].endswith("0 failed")
    assert everything(until_ready.directory) == before
    # One signed sync for each run, and nothing that a control plane would store.
    assert len(control.sync_requests) == 2
    assert (control.heartbeats, control.metrics, control.attempts) == ([], [], [])


# The control plane


@pytest.fixture
async def plane(tmp_path: Path, until_ready: Patient) -> AsyncIterator[Plane]:
    """Start a real control plane in which the proxy of this test is registered."""
    async with started(tmp_path, FakeClock(int(time.time() * 1000))) as plane:
        await plane.org("acme")
        added = await plane.proxy("edge-1", "acme")
        until_ready.values |= {
            "control_plane": plane.base_url,
            "api_key": added.api_key,
            "hmac_secret": added.hmac_secret,
        }
        yield plane


async def test_a_control_plane_that_takes_key_and_secret(plane: Plane, until_ready: Patient) -> None:
    found = await until_ready.findings()
    assert found["control plane: sync"]["status"] == "ok"
    assert found["clock"]["status"] == "ok"


@pytest.mark.parametrize(
    ("name", "value", "code", "setting"),
    [
        ("hmac_secret", "gwh_another-secret-than-that", "invalidSignature", "Agent.HmacSecret"),
        ("api_key", "gwk_a-key-that-nobody-made", "unknownApiKey", "Agent.ApiKey"),
    ],
)
async def test_a_wrong_secret(
    plane: Plane, until_ready: Patient, name: str, value: str, code: str, setting: str
) -> None:
    until_ready.values[name] = value
    (failure,) = (await until_ready.failures()).values()
    assert failure["check"] == "control plane: sync"
    assert code in failure["found"]
    assert setting in failure["fix"]


async def test_a_proxy_that_enrols_itself(plane: Plane, until_ready: Patient) -> None:
    """The doctor never uses the enrolment token.

    If the key file has keys, the doctor uses these keys.
    """
    patient = until_ready
    enrolling = 'EnrolmentToken = "gwe_0123456789abcdef"\nIdentityPath = "identity.json"'
    patient.settings = SETTINGS.replace('ApiKey = "{api_key}"\nHmacSecret = "{hmac_secret}"', enrolling)
    key, secret = (str(patient.values[name]) for name in ("api_key", "hmac_secret"))
    finding = (await patient.findings())["identity"]
    assert (finding["status"], "not enrolled yet" in finding["found"]) == ("warn", True)
    assert "Only an enrolment shows whether the token is accepted" in finding["fix"]
    path = patient.directory / "identity.json"
    write_identity(path, Enrolled(Keys("p", "edge-7", key, secret, 1.0)))
    found = await patient.findings()
    assert found["identity"]["found"].startswith("enrolled as edge-7 (p)")
    assert found["control plane: sync"]["status"] == "ok"
    await plane.inventory.set_proxy_enabled("edge-1", False)
    assert f"the keys in {path} are revoked" in (await patient.failures())["control plane: sync"]["fix"]
    path.write_text("{")
    assert "delete the file to enrol this proxy again" in (await patient.failures())["settings"]["found"]


async def test_a_disabled_proxy(plane: Plane, until_ready: Patient) -> None:
    await plane.inventory.set_proxy_enabled("edge-1", False)
    assert "proxy enable" in (await until_ready.failures())["control plane: sync"]["fix"]


async def test_a_response_that_somebody_else_signed(until_ready: Patient, control: FakeControlPlane) -> None:
    control.spoil_signature = lambda signature: signature[::-1]
    assert "not signed" in (await until_ready.failures())["control plane: sync"]["found"]


class OtherTime(FakeControlPlane):
    """Control plane whose clock differs from this machine's clock."""

    ahead = 0

    async def response(self, request: Received) -> Response:
        response = await super().response(request)
        date = ("Date", formatdate(time.time() + self.ahead, usegmt=True))
        return Response(response.status, (*response.headers, date), response.body)


@pytest.mark.parametrize(("ahead", "status"), [(2, "ok"), (60, "warn"), (-900, "fail"), (3600, "fail")])
async def test_a_clock_that_is_off(
    until_ready: Patient, stack: AsyncExitStack, ahead: int, status: str
) -> None:
    control = await stack.enter_async_context(OtherTime())
    control.ahead = ahead
    until_ready.values["control_plane"] = control.base_url
    finding = (await until_ready.findings())["clock"]
    assert finding["status"] == status
    if status != "ok":
        assert ("behind" if ahead > 0 else "ahead of") in finding["found"]
        # The upstream agrees with this machine, so the other server's clock is reported.
        assert "clock of control plane" in finding["fix"]


# Names, ports, certificates


async def test_a_name_that_does_not_resolve(until_ready: Patient) -> None:
    until_ready.values["upstream"] = "https://graph.nowhere.invalid"
    failures = await until_ready.failures()
    assert list(failures) == ["upstream: name"]
    assert "graph.nowhere.invalid does not resolve" in failures["upstream: name"]["found"]
    assert "Upstream.BaseUrl" in failures["upstream: name"]["fix"]


async def test_a_port_where_nobody_listens(until_ready: Patient) -> None:
    until_ready.values["control_plane"] = f"http://127.0.0.1:{free_port()}"
    failures = await until_ready.failures()
    assert list(failures) == ["control plane: connection"]  # checks that depend on the connection are skipped
    assert "refused" in failures["control plane: connection"]["found"]
    assert "RuleSync.SaasBaseUrl" in failures["control plane: connection"]["fix"]


async def test_a_port_that_speaks_no_tls(until_ready: Patient, control: FakeControlPlane) -> None:
    until_ready.values["control_plane"] = control.base_url.replace("http://", "https://")
    assert "http://" in (await until_ready.failures())["control plane: TLS"]["fix"]


async def with_certificate(
    until_ready: Patient,
    authority: CertificateAuthority,
    stack: AsyncExitStack,
    *,
    days: float,
    names: tuple[str, ...] = LOCAL_NAMES,
) -> dict[str, str]:
    """Return the doctor's finding about an upstream server, given its certificate's names and lifetime."""
    tls = authority.server("upstream", names, days=days)
    upstream = await stack.enter_async_context(FakeGraph(tls=tls))
    until_ready.values["upstream"] = upstream.base_url
    return (await until_ready.findings())["upstream: TLS"]


async def test_a_certificate_past_its_end(
    until_ready: Patient, authority: CertificateAuthority, stack: AsyncExitStack
) -> None:
    finding = await with_certificate(until_ready, authority, stack, days=-1)
    assert (finding["status"], "expired" in finding["found"]) == ("fail", True)
    assert "renew the certificate of 127.0.0.1" in finding["fix"]


async def test_a_certificate_that_ends_soon(
    until_ready: Patient, authority: CertificateAuthority, stack: AsyncExitStack
) -> None:
    finding = await with_certificate(until_ready, authority, stack, days=5.5)
    assert (finding["status"], "expires in 5 days" in finding["found"]) == ("warn", True)


async def test_a_certificate_of_another_name(
    until_ready: Patient, authority: CertificateAuthority, stack: AsyncExitStack
) -> None:
    finding = await with_certificate(until_ready, authority, stack, days=30, names=("graph.example",))
    assert finding["status"] == "fail"
    assert finding["fix"].endswith("a name that is in the certificate into Upstream.BaseUrl: graph.example")


async def test_a_certificate_of_an_authority_that_nobody_named(
    until_ready: Patient, tmp_path: Path, stack: AsyncExitStack
) -> None:
    finding = await with_certificate(until_ready, CertificateAuthority(tmp_path / "other"), stack, days=30)
    assert (finding["status"], "Upstream.CaFile" in finding["fix"]) == ("fail", True)


# Credentials


async def test_a_client_secret_that_the_identity_provider_refuses(until_ready: Patient) -> None:
    until_ready.values["secret"] = "another~secret~than~that"
    until_ready.values["credentials"] = str(until_ready.values["credentials"]).replace(
        CLIENT_SECRET, "another~secret~than~that"
    )
    failures = await until_ready.failures()
    assert list(failures) == ["upstream token: default"]
    assert "invalid_client" in failures["upstream token: default"]["found"]
    assert CLIENT_ID in failures["upstream token: default"]["fix"]


async def test_an_upstream_that_refuses_the_token(
    until_ready: Patient, authority: CertificateAuthority, stack: AsyncExitStack
) -> None:
    tls = authority.server()
    upstream = await stack.enter_async_context(FakeGraph(tls=tls, accepts=lambda token: False))
    until_ready.values["upstream"] = upstream.base_url
    failure = (await until_ready.failures())["upstream: default"]
    assert "401" in failure["found"]
    assert "Credentials.Scope" in failure["fix"]


@pytest.fixture
async def vault(
    until_ready: Patient,
    authority: CertificateAuthority,
    identity: FakeIdentityProvider,
    stack: AsyncExitStack,
) -> FakeKeyVault:
    managed = await stack.enter_async_context(FakeManagedIdentity())
    vault = await stack.enter_async_context(FakeKeyVault(managed, tls=authority.server()))
    until_ready.environment |= managed.environment
    until_ready.values["credentials"] = (
        f'AuthorityUrl = "{identity.base_url}"\nProvider = "managed-identity-key-vault"\n'
        f'VaultUrl = "{vault.base_url}"\nSecretName = "graph-client"'
    )
    return vault


async def test_a_vault_that_gives_the_secret(until_ready: Patient, vault: FakeKeyVault) -> None:
    vault.put("graph-client", CLIENT_SECRET, expires=time.time() + 5.5 * DAY)
    found = await until_ready.findings()
    assert (found["key vault: graph-client"]["status"], found["upstream token: default"]["status"]) == (
        "warn",
        "ok",
    )
    assert "expires in 5 days" in found["key vault: graph-client"]["found"]
    assert found["upstream: default"]["status"] == "ok"


async def test_a_vault_that_does_not(until_ready: Patient, vault: FakeKeyVault) -> None:
    vault.mode = "forbidden"
    failures = await until_ready.failures()
    assert list(failures) == ["key vault: graph-client"]
    assert "Key Vault Secrets User" in failures["key vault: graph-client"]["fix"]


async def test_a_workload_identity_and_a_managed_identity(
    until_ready: Patient, identity: FakeIdentityProvider, stack: AsyncExitStack, tmp_path: Path
) -> None:
    token = jwt.encode({"sub": "pod"}, "a key of a cluster that signs with HMAC", "HS256")
    (tmp_path / "token").write_text(token)
    identity.federation = lambda assertion: "" if assertion == token else "AADSTS700213"
    authority = f'AuthorityUrl = "{identity.base_url}"\n'
    provider = f'Provider = "workload-identity"\nTokenFile = "{tmp_path}/token"'
    until_ready.values["credentials"] = authority + provider
    found = await until_ready.findings()
    assert (found["upstream token: default"]["status"], found["upstream: default"]["status"]) == ("ok", "ok")
    managed = await stack.enter_async_context(FakeManagedIdentity())
    until_ready.environment |= managed.environment
    until_ready.values["credentials"] = f'{authority}Provider = "managed-identity"'
    failure = (await until_ready.failures())["upstream token: default"]
    assert "AADSTS700213" in failure["found"]
    assert "trusts the managed identity as federated credential, with audience api://" in failure["fix"]


async def test_a_secret_past_its_end(until_ready: Patient, vault: FakeKeyVault) -> None:
    vault.put("graph-client", CLIENT_SECRET, expires=time.time() - DAY)
    assert "expired on" in (await until_ready.failures())["key vault: graph-client"]["found"]


# This machine


async def test_a_port_in_use_by_another_program(until_ready: Patient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        until_ready.values["port"] = port
        failures = await until_ready.failures()
    assert list(failures) == ["Proxy.Listen"]
    assert f"127.0.0.1:{port} is in use" in failures["Proxy.Listen"]["found"]
    assert "ss -ltnp" in failures["Proxy.Listen"]["fix"]


async def test_an_address_that_is_not_this_machines(until_ready: Patient) -> None:
    until_ready.environment["Admin__Listen"] = "192.0.2.1:9090"
    assert "Admin.Listen" in await until_ready.failures()


async def test_files_that_others_can_read(until_ready: Patient) -> None:
    until_ready.write()
    until_ready.config.chmod(0o644)
    (until_ready.directory / "audit").mkdir(mode=0o755)
    status, out = await until_ready.run()
    assert status == 0
    assert f"chmod 600 {until_ready.config}" in out
    assert f"chmod 700 {until_ready.directory / 'audit'}" in out


async def test_a_snapshot_that_went_bad(until_ready: Patient) -> None:
    snapshot = until_ready.directory / "snapshot.json"
    snapshot.touch(mode=0o600)
    snapshot.write_bytes(b"graphward-snapshot 1 " + b"0" * 64 + b"\n{}")
    failure = (await until_ready.failures())["snapshot"]
    assert "checksum" in failure["found"]
    assert failure["fix"].startswith(f"rm {snapshot}")


async def test_a_file_that_stops_what_nobody_thinks_of(until_ready: Patient) -> None:
    file = until_ready.directory / "var" / "stop"
    assert (await until_ready.findings())["Proxy.KillFile"]["status"] == "ok"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_text("app payroll\n", "utf-8")
    finding = (await until_ready.findings())["Proxy.KillFile"]
    assert (finding["status"], finding["found"]) == ("warn", f"{file} stops app payroll")


async def test_state_of_a_later_release_and_batches_that_were_refused(until_ready: Patient) -> None:
    audit = until_ready.directory / "audit"
    (audit / "rejected").mkdir(mode=0o700, parents=True)
    (audit / "rejected" / "2026-batch.json").touch(mode=0o600)
    (audit / "state.0").touch(mode=0o600)
    (audit / "state.0").write_bytes(b"graphward-audit-state 9 1 2 " + b"0" * 64 + b"\n{}")
    audit.chmod(0o700)
    found = await until_ready.findings()
    assert (found["spool: backlog"]["status"], "newer release" in found["spool: backlog"]["found"]) == (
        "fail",
        True,
    )
    assert "2026-batch.json" in found["spool: refused"]["fix"]


@pytest.fixture
def small_disk(until_ready: Patient) -> Iterator[Path]:
    disk = until_ready.directory / "audit"
    disk.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes privileges")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


async def test_a_disk_without_room(until_ready: Patient, small_disk: Path) -> None:
    until_ready.environment["Audit__SegmentBytes"] = "262144"
    finding = (await until_ready.findings())["spool: room"]
    assert finding["status"] == "warn"  # the disk is full long before MaxDiskBytes
    assert "Audit.MaxDiskBytes" in finding["fix"]
    (small_disk / "something-else").write_bytes(b"\0" * 7 * 1024 * 1024)
    failure = (await until_ready.failures())["spool: room"]
    assert f"free space on the disk of {small_disk}" in failure["fix"]


# Run as that user. Import everything as root first, because root's own Python may be closed to others.
AS_NOBODY: Final = """
import contextlib, io, os, sys
from proxy.__main__ import main
doctor = ["--config", sys.argv[3], "--doctor", "--json"]
with contextlib.redirect_stdout(io.StringIO()):
    main(doctor)
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
sys.exit(main(doctor))
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that every user can access, unlike the temporary directories that pytest creates."""
    directory = Path(tempfile.mkdtemp(prefix="graphward-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_files_that_its_user_can_not_read(
    until_ready: Patient, authority: CertificateAuthority, open_directory: Path
) -> None:
    nobody = pwd.getpwnam("nobody")
    until_ready.directory = open_directory
    until_ready.values["ca_file"] = shutil.copy(authority.ca_file, open_directory / "ca.pem")
    until_ready.write()
    os.chown(until_ready.config, nobody.pw_uid, nobody.pw_gid)
    (open_directory / "snapshot.json").touch(mode=0o600)  # owned by root, as after a start by root
    (open_directory / "audit").mkdir(mode=0o700)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AS_NOBODY, str(nobody.pw_uid), str(nobody.pw_gid), str(until_ready.config)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    found = {each["check"]: each for each in json.loads(out)["findings"] if each["status"] == "fail"}
    assert process.returncode == 1
    assert "Permission denied" in found["snapshot"]["found"]
    assert "nobody" in found["file owners"]["found"]
    assert found["file owners"]["fix"].startswith("chown -R nobody ")


# Next to the running proxy


async def test_beside_a_proxy_that_serves_it_disturbs_nothing(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        running = processes(system)
        for _ in range(2):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "--config", str(system.proxy_config), "--doctor", "--json"),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            found: dict[str, dict[str, Any]] = {each["check"]: each for each in json.loads(out)["findings"]}
            assert process.returncode == 0, out
        assert found["the proxy that runs"]["status"] == "ok"
        assert found["Proxy.Listen"]["found"].endswith("by the running proxy")
        assert found["snapshot"]["status"] == "ok"
        assert (await client.get("/v1.0/users")).status == 200
        assert processes(system) == running


async def test_another_process_on_the_proxy_s_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        environment = {"Proxy__Listen": address}
        async with whole_system(tmp_path, workers=1, environment=environment) as system:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "--config", str(system.proxy_config), "--doctor", "--json"),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **environment},
            )
            out, _ = await process.communicate()
    found = [each["found"] for each in json.loads(out)["findings"] if each["check"] == "Proxy.Listen"]
    assert found[-1].startswith(f"{address}: another process listens there too"), found
