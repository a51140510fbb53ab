"""The whole system on one machine: real control plane and proxy processes, fake servers in this process.

`async with System(directory) as system` provides addresses, the applications and their credentials, and the
command line. The class `System` starts the whole system for the demo, and for tests that need the whole
system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import proxy
from tests.fakes import commands
from tests.fakes.certificates import LOCAL_NAMES, CertificateAuthority, ServerCertificate
from tests.fakes.graph import SCHEMA_FILE, FakeGraph
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.key_vault import FakeKeyVault, FakeManagedIdentity
from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port
from tests.patience import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]
# directory of the proxy's code: the sources, or the compiled modules
CODE: Final = Path(proxy.__file__).parents[1]
PROXY: Final = "demo-proxy"
STOP_SECONDS: Final = 10
PROBE_SECONDS: Final = 2.0  # a process that does not respond in this time is asked again
VAULT_SECRET: Final = "graph-client"
VAULT_SIGNING_KEY: Final = "token-signing-key"
SIGNING_KEY: Final = "fake~signing~key~of~the~fleet~0001"


class SystemFailedError(Exception):
    """Error because a program of the test system did not start, or because a command failed.

    The error's text names the program or command and contains the end of the log.
    """


@dataclass(frozen=True, slots=True)
class Application:
    """An application, with the credentials that `app add` printed."""

    name: str
    client_id: str
    client_secret: str


@dataclass(frozen=True, slots=True)
class Registered:
    """An organisation, its applications by name, and the credentials that `proxy add` prints."""

    org_id: str
    keys: Mapping[str, str]
    applications: Mapping[str, Application]


@dataclass(slots=True)
class Child:
    """A child process in a session of its own, so that only the test program stops it."""

    name: str
    process: asyncio.subprocess.Process | commands.Server
    log: Path

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # kills children that are still running
        await self.process.wait()


def _search_path(code: Path, environment: Mapping[str, str]) -> str:
    """Return the value of PYTHONPATH for a child process.

    PYTHONPATH lists the directories of test modules first, then the code to run, then the PYTHONPATH of this
    process.
    """
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(code), inherited)))


class System:
    """A whole test system, which the arguments of the constructor configure.

    `applications` gives the ruleset file of each application. The given environment variables, such as
    `Audit__MaxBatchSize`, override the settings of the programs. If `vault` is true, the client secret and
    the signing key are in a key vault, as in production. If `warm` is false, the test starts the control
    plane by its usual command, which takes one second longer.

    `register` writes the organisation and the applications to the store before the control plane starts. If
    `register` is None, the test adds the applications with the command line after the control plane has
    started. If `console` is true, the control plane serves the console at `console_url`. The servers of the
    system have certificates for the host names in `names`.
    """

    def __init__(
        self,
        directory: Path,
        applications: Mapping[str, Path],
        *,
        workers: int = 2,
        vault: bool = False,
        proxy_environment: Mapping[str, str] | None = None,
        control_plane_environment: Mapping[str, str] | None = None,
        proxy_code: Path = CODE,
        warm: bool = True,
        console: bool = False,
        register: Callable[[System], Awaitable[Registered]] | None = None,
        names: tuple[str, ...] = LOCAL_NAMES,
    ) -> None:
        self.directory = directory
        self.authority = CertificateAuthority(directory / "certificates")
        self._certificate: ServerCertificate = self.authority.server(names=names)
        self.identity = FakeIdentityProvider(tls=self._certificate)
        self.managed_identity = FakeManagedIdentity()
        self.vault = FakeKeyVault(self.managed_identity, tls=self._certificate)
        self.vault.put(VAULT_SECRET, CLIENT_SECRET)
        self.vault.put(VAULT_SIGNING_KEY, SIGNING_KEY)
        self.graph = FakeGraph(tls=self._certificate, accepts=self.identity.accepts)
        self._fakes = (self.identity, self.managed_identity, self.vault, self.graph)
        self.control_plane_config = directory / "controlplane.toml"
        self.proxy_config = directory / "proxy.toml"
        self.applications: dict[str, Application] = {}
        self.children: list[Child] = []
        self.control_plane: Child
        self.proxy: Child
        self.org_id = ""
        self._with_vault = vault
        self._proxy_environment = proxy_environment or {}
        self._control_plane_environment = control_plane_environment or {}
        self._proxy_code = proxy_code
        self._warm = warm
        self._has_console = console
        self._register = register
        self._rulesets = applications
        self._workers = workers
        ports = [free_port() for _ in range(5)]
        self._control_plane_port, self._console_port, *ports = ports
        self._proxy_port, self._admin_port, self._metrics_port = ports

    @property
    def proxy_url(self) -> str:
        return f"https://127.0.0.1:{self._proxy_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._admin_port}"

    @property
    def control_plane_url(self) -> str:
        return f"https://127.0.0.1:{self._control_plane_port}"

    @property
    def console_url(self) -> str:
        return f"http://127.0.0.1:{self._console_port}"

    @property
    def audit_directory(self) -> Path:
        """Directory of the proxy's spool, journals and sequence numbers."""
        return self.directory / "audit"

    @property
    def control_plane_metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._metrics_port}/metrics"

    def client_context(self) -> ssl.SSLContext:
        return self.authority.client_context()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        for fake in self._fakes:
            await fake.__aenter__()
        self.control_plane_config.write_text(self._control_plane_settings(), "utf-8")
        if self._register is None:
            await self.start_control_plane()
            registered = await self._register_by_command()
        else:
            registered = await self._register(self)
            await self.start_control_plane()
        self.org_id = registered.org_id
        self.applications.update(registered.applications)
        self.proxy_config.touch(mode=0o600)
        self.proxy_config.write_text(self._proxy_settings(registered.keys), "utf-8")
        await self.start_proxy()

    async def start_control_plane(self) -> None:
        """Start the control plane, or start it again after it was killed or stopped."""
        config, environment = self.control_plane_config, self._control_plane_environment
        if self._warm:
            self.control_plane = self._fork(config, environment)
        else:
            self.control_plane = await self._spawn("controlplane", config, environment, ROOT)
        await self._until(self.control_plane, self._control_plane_listens)

    async def start_proxy(self, *, until_ready: bool = True) -> None:
        """Start the proxy, or start it again after it was killed or stopped."""
        environment = {**self.managed_identity.environment, **self._proxy_environment}
        self.proxy = await self._spawn("proxy", self.proxy_config, environment, self._proxy_code)
        await self._until(self.proxy, self._proxy_is_ready if until_ready else self._both_listen)

    async def _stop(self) -> None:
        for child in reversed(self.children):
            await child.stop()
        for fake in reversed(self._fakes):
            await fake.__aexit__(None, None, None)

    # Actions of an operator

    async def cli(self, *arguments: str) -> Any:
        """Run a command of the control plane. Return its JSON."""
        config = str(self.control_plane_config)
        done = await asyncio.to_thread(commands.run, "--config", config, *arguments, "--json")
        if done.returncode != 0:
            raise SystemFailedError(f"{' '.join(arguments[:2])} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def cli_command(self, *arguments: str) -> Sequence[str]:
        return [sys.executable, "-m", "controlplane", "--config", str(self.control_plane_config), *arguments]

    async def _register_by_command(self) -> Registered:
        """Add an organisation and its schema, proxy, rulesets and applications."""
        organisation = await self.cli("org", "add", "Contoso", "--retention", "90d")
        org_id = organisation["orgId"]
        await self.cli("model", "fetch", str(SCHEMA_FILE), "--org", org_id, "--root", "/v1.0")
        keys, *rulesets = await asyncio.gather(
            self.cli("proxy", "add", PROXY, "--org", org_id),
            *(self.cli("ruleset", "apply", str(file), "--org", org_id) for file in self._rulesets.values()),
        )
        added = await asyncio.gather(
            *(
                self.cli("app", "add", name, "--org", org_id, "--ruleset", ruleset["name"])
                for name, ruleset in zip(self._rulesets, rulesets, strict=True)
            )
        )
        applications = {
            name: Application(name, app["clientId"], app["clientSecret"])
            for name, app in zip(self._rulesets, added, strict=True)
        }
        return Registered(org_id, keys, applications)

    # Settings

    def _control_plane_settings(self) -> str:
        return f"""\
[ControlPlane]
Listen = "127.0.0.1:{self._control_plane_port}"
CertFile = "{self._certificate.cert_file}"
KeyFile = "{self._certificate.key_file}"

[Console]
Listen = {self._console_listen()}

[Store]
Path = "{self.directory}/controlplane.db"

[Secrets]
MasterKeyFile = "{self.directory}/master.key"

[Metrics]
Listen = "127.0.0.1:{self._metrics_port}"
"""

    def _console_listen(self) -> str:
        return f'"127.0.0.1:{self._console_port}"' if self._has_console else "[]"

    def _proxy_settings(self, keys: Mapping[str, str]) -> str:
        return f"""\
[Proxy]
Listen = "127.0.0.1:{self._proxy_port}"
Workers = {self._workers}
CertFile = "{self._certificate.cert_file}"
KeyFile = "{self._certificate.key_file}"

[Agent]
ApiKey = "{keys["apiKey"]}"
HmacSecret = "{keys["hmacSecret"]}"
CaFile = "{self.authority.ca_file}"

[RuleSync]
SaasBaseUrl = "{self.control_plane_url}"
IntervalSeconds = 1
CachePath = "{self.directory}/snapshot.json"

[Audit]
LocalRetentionPath = "{self.audit_directory}"
ReplayIntervalSeconds = 1

[Token]
{self._signing_key_setting()}

[Upstream]
BaseUrl = "{self.graph.base_url}"
CaFile = "{self.authority.ca_file}"

[Credentials]
AuthorityUrl = "{self.identity.base_url}"
TenantId = "{TENANT}"
ClientId = "{CLIENT_ID}"
{self._provider_settings()}

[Admin]
Listen = "127.0.0.1:{self._admin_port}"
"""

    def _signing_key_setting(self) -> str:
        if not self._with_vault:
            return f'SigningKeyFile = "{self.directory}/token-signing.key"'
        return f'SigningKeySecretName = "{VAULT_SIGNING_KEY}"'

    def _provider_settings(self) -> str:
        if not self._with_vault:
            return f'Provider = "environment"\nClientSecret = "{CLIENT_SECRET}"'
        return f"""\
Provider = "managed-identity-key-vault"
VaultUrl = "{self.vault.base_url}"
SecretName = "{VAULT_SECRET}"
VaultRefreshSeconds = 0.5"""

    # Processes

    async def _spawn(self, module: str, config: Path, environment: Mapping[str, str], code: Path) -> Child:
        log = self.directory / f"{module}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", module, "--config", str(config)),
                cwd=code,
                env={**os.environ, **environment, "PYTHONPATH": _search_path(code, environment)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return self._child(module, process, log)

    def _fork(self, config: Path, environment: Mapping[str, str]) -> Child:
        log = self.directory / "controlplane.log"
        with log.open("ab") as output:
            server = commands.Server("--config", str(config), environment=environment, log=output)
        return self._child("controlplane", server, log)

    def _child(self, name: str, process: asyncio.subprocess.Process | commands.Server, log: Path) -> Child:
        child = Child(name, process, log)
        self.children.append(child)
        return child

    async def _until(self, child: Child, is_up: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while child.process.returncode is None:
                    if await asyncio.to_thread(is_up):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise SystemFailedError(f"{child.name} is not ready:\n{child.log_tail()}") from None
        status = child.process.returncode
        raise SystemFailedError(f"{child.name} ended with status {status}:\n{child.log_tail()}")

    def _control_plane_listens(self) -> bool:
        return _listens(self._control_plane_port)

    def _both_listen(self) -> bool:
        """Return True if both listeners are open. The workers' listener opens after the agent's listener."""
        return _listens(self._admin_port) and _listens(self._proxy_port)

    def _proxy_is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.admin_url}/readyz", timeout=PROBE_SECONDS) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PROBE_SECONDS).close()
    except OSError:
        return False
    return True
