"""Install both wheels as a user does, in environments that contain only the required packages."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from proxy import __version__
from tests.fakes.lifeline import end_with_parent
from tests.fakes.system import ROOT, Child, System, SystemFailedError
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import until

COMPILED: Final = ROOT / "build" / "compiled"
COMMANDS: Final = ("graphward-proxy", "graphward")
# Samples for the demo, and for installations in containers, which use images.
ELSEWHERE: Final = ("conf/demo/", "conf/docker/", "conf/kubernetes/")
RULES: Final = """\
version: 1
name: directory
default: block
rules:
  - id: directory
    match: {methods: [GET], path: ["/v1.0/users/{id}"]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone]}
"""
SECRETS: Final = {
    "Agent__ApiKey": "gwk_0123456789abcdef0123456789abcdef",
    "Agent__HmacSecret": "gwh_0123456789abcdef0123456789abcdef",
    "AZURE_TENANT_ID": "9f2b7c31-4d5e-4a6f-8b90-c1d2e3f4a5b6",
    "AZURE_CLIENT_ID": "9f2b7c31-4d5e-4a6f-8b90-c1d2e3f4a5b7",
    "AZURE_CLIENT_SECRET": "a-secret-that-is-long-enough",
}


@pytest.fixture(params=["pure", "compiled"])
def environment(request: pytest.FixtureRequest) -> Path:
    """Return the environment in which one of the two wheels (pure or compiled) was installed."""
    return Path(os.environ[f"GRAPHWARD_{request.param.upper()}"])


def own_variables(**more: str) -> dict[str, str]:
    """Return the environment variables for a process that can't import modules from the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def run(
    environment: Path, directory: Path, command: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [environment / "bin" / command, *arguments],
        cwd=directory,
        env=own_variables(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def tracked(*folders: str) -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return set(done.stdout.splitlines())


def test_each_command_says_its_version_and_how_to_use_it(environment: Path, tmp_path: Path) -> None:
    for command in COMMANDS:
        assert run(environment, tmp_path, command, "--version").stdout == f"{command} {__version__}\n"
        usage = run(environment, tmp_path, command, "--help")
        assert usage.returncode == 0
        assert usage.stdout.lower().startswith(f"usage: {command} ")
        assert run(environment, tmp_path, command, "--nonsense").returncode == 2


def test_bash_completes_both_commands(environment: Path, tmp_path: Path) -> None:
    proxy = run(environment, tmp_path, "graphward-proxy", "--print-completion", "bash")
    assert proxy.stdout.rstrip().endswith(" graphward-proxy")
    (tmp_path / "completion").write_text(proxy.stdout)
    script = "source completion; COMP_WORDS=(graphward-proxy --ch); COMP_CWORD=1; "
    script += "$(complete -p graphward-proxy | sed 's/.*-F \\([^ ]*\\).*/\\1/') graphward-proxy --ch; "
    script += 'echo "${COMPREPLY[@]}"'
    bash = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (bash.stdout, bash.stderr) == ("--check\n", "")
    words = {"_GRAPHWARD_COMPLETE": "complete_bash", "COMP_WORDS": "graphward ruleset ap", "COMP_CWORD": "2"}
    assert run(environment, tmp_path, "graphward", **words).stdout.split() == ["apply", "approve"]


def test_everything_of_the_programs_is_installed_and_nothing_else(environment: Path) -> None:
    site, share = site_packages(environment), environment / "share" / "graphward"
    expected = tracked("proxy", "controlplane", "graphward")
    found = {
        file.relative_to(site).as_posix()
        for folder in ("proxy", "controlplane", "graphward")
        for file in (site / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so"
    }
    assert found == expected
    assert [each for each in expected if (site / each).read_bytes() != (ROOT / each).read_bytes()] == []
    samples = {each for each in tracked("conf") if not each.startswith(ELSEWHERE)}
    assert {f.relative_to(share).as_posix() for f in share.rglob("*") if f.is_file()} == samples
    (licences,) = site.glob("graphward-*.dist-info/licenses")
    assert {f.name for f in licences.rglob("*") if f.is_file()} == {"LICENSE", "NOTICE", "mypy.txt"}


def test_the_data_path_is_compiled_in_one_wheel_and_not_in_the_other(environment: Path) -> None:
    made = [file.relative_to(COMPILED) for file in COMPILED.rglob("*.so") if file.parent != COMPILED]
    names = [".".join((*file.parent.parts, file.name.partition(".")[0])) for file in made]
    assert len(names) > 50
    program = "import importlib, json, sys; print(json.dumps([importlib.import_module(name).__file__ "
    program += "for name in sys.argv[1:]]))"
    done = subprocess.run(
        [environment / "bin" / "python", "-c", program, *names],
        cwd="/",
        env=own_variables(),
        check=True,
        stdout=subprocess.PIPE,
    )
    files: list[str] = json.loads(done.stdout)
    assert {Path(file).suffix for file in files} == {".so" if environment.name == "compiled" else ".py"}
    assert all(file.startswith(str(site_packages(environment))) for file in files)


def test_the_samples_are_valid_settings(environment: Path, tmp_path: Path) -> None:
    shutil.copytree(environment / "share" / "graphward" / "conf", tmp_path / "conf")
    proxy = ("--config", "conf/proxy.toml", "--check")
    done = run(environment, tmp_path, "graphward-proxy", *proxy, **SECRETS)
    assert (done.returncode, done.stderr) == (0, "")
    plane = run(environment, tmp_path, "graphward", "--config", "conf/controlplane.toml", "--check")
    assert plane.returncode == 0


class InstalledSystem(System):
    """The control plane and the proxy, started by the installed commands in an otherwise empty directory."""

    def __init__(self, environment: Path, directory: Path, rules: Path) -> None:
        super().__init__(directory, {"app": rules}, workers=1, warm=False)
        self.environment = environment

    async def _spawn(self, module: str, config: Path, environment: Mapping[str, str], code: Path) -> Child:
        command, *after = {"proxy": ["graphward-proxy"], "controlplane": ["graphward", "server"]}[module]
        log = self.directory / f"{module}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(str(self.environment / "bin" / command), "--config", str(config), *after),
                cwd=self.directory,
                env=own_variables(**environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return self._child(module, process, log)

    async def cli(self, *arguments: str) -> Any:
        config = ("--config", str(self.control_plane_config))
        done = await asyncio.to_thread(
            run, self.environment, self.directory, "graphward", *config, *arguments, "--json"
        )
        if done.returncode != 0:
            raise SystemFailedError(f"{' '.join(arguments[:2])} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)


async def test_a_control_plane_and_a_proxy_serve_a_filtered_request(
    environment: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    async with InstalledSystem(environment, tmp_path, rules) as system:
        app = system.applications["app"]
        form = {
            "grant_type": "client_credentials",
            "client_id": app.client_id,
            "client_secret": app.client_secret,
        }
        async with httpx.AsyncClient(base_url=system.proxy_url, verify=system.client_context()) as client:
            token = (await client.post("/proxy/token", data=form)).json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            user = await client.get("/v1.0/users/ada@contoso.com")
            assert (user.status_code, user.json()["mail"]) == (200, "ada@contoso.com")
            assert "mobilePhone" not in user.json()
            assert (await client.get("/v1.0/groups")).status_code == 403
            health = await client.get(f"{system.admin_url}/healthz")
            assert health.text == f"ok {__version__}\n"
            plane = await client.get(f"{system.control_plane_url}/healthz")
            assert plane.json() == {"status": "ok", "version": __version__}
            system.proxy.process.send_signal(signal.SIGUSR2)  # the installed version replaces the running one
            await until(lambda: f"version {__version__} takes over" in system.proxy.log.read_text())
            assert (await client.get("/v1.0/users/ada@contoso.com")).status_code == 200
        assert f"version {__version__}" in system.proxy.log.read_text()
        assert f"version {__version__}" in system.control_plane.log.read_text()


@contextmanager
def record_of_another(site: Path, package: str) -> Iterator[None]:
    """Write the installation record of another distribution that has installed a package of the same name."""
    other = site / "proxy_py-2.4.10.dist-info"
    other.mkdir()
    try:
        (other / "RECORD").write_text(f"{package}/__init__.py,sha256=x,1\n{package}/__main__.py,,\n")
        yield
    finally:
        shutil.rmtree(other)


@pytest.mark.parametrize("package", ["proxy", "controlplane"])
def test_the_commands_refuse_to_run_beside_a_package_of_the_same_name(
    environment: Path, tmp_path: Path, package: str
) -> None:
    site = site_packages(environment)
    with record_of_another(site, package):
        refused = [run(environment, tmp_path, command, "--version") for command in COMMANDS]
    for command, done in zip(COMMANDS, refused, strict=True):
        assert done.returncode == 2
        assert done.stderr.startswith(
            f"{command}: {site}/{package}/__init__.py also belongs to proxy-py 2.4.10,"
        )
        assert "a separate environment" in done.stderr
    assert run(environment, tmp_path, "graphward", "--version").returncode == 0
