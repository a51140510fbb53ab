"""Tests of the container images and the composition, as far as possible without a container engine."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controlplane.settings import read_settings
from proxy.config import SettingsError
from proxy.startup.settings import load
from tests.controlplane.plane import FakeClock, started
from tests.dependencies_reference import locked, needed_to_run
from tests.fakes.ports import free_port
from tests.wheels.__main__ import FILES, SOURCES

ROOT: Final = Path(__file__).parent.parent
STEPS: Final = [
    line.split(" ", 1)
    for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
COMPOSITION: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: Final = COMPOSITION["services"]
_VARIABLE: Final = re.compile(r"\$\{(\w+):-([^}]*)\}")
_PINNED: Final = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def test_what_is_installed_is_what_the_programs_need_in_the_versions_that_are_tested() -> None:
    lock = (ROOT / "requirements-run.lock").read_text("utf-8")
    pinned = dict(_PINNED.findall(lock))
    assert set(pinned) == needed_to_run(), "./dev lock"
    assert pinned == {name: version for name, version in locked().items() if name in pinned}
    assert lock.count("--hash=sha256:") > len(pinned)
    locked_ones, wheel = [rest for step, rest in STEPS if step == "RUN" and "--python" in rest]
    assert {"--require-hashes", "--only-binary=:all:"} <= set(shlex.split(locked_ones))
    assert {"--no-deps", "/wheel/graphward-*.whl"} <= set(shlex.split(wheel))


def test_what_is_copied_is_there_and_let_through() -> None:
    copies = [rest.split()[:-1] for step, rest in STEPS if step == "COPY" and not rest.startswith("--")]
    copied = {each for sources in copies for each in sources}
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert copied == let_through
    assert all((ROOT / each).exists() for each in copied)


@pytest.mark.parametrize("program", ["proxy", "controlplane"])
def test_an_image_runs_as_nobody_in_particular_and_says_whether_it_lives(program: str) -> None:
    stages = [rest.split()[-1] for step, rest in STEPS if step == "FROM"]
    assert program in stages
    steps = [(step, rest) for step, rest in STEPS if step in ("USER", "STOPSIGNAL")]
    # steps in the stage from which both images begin
    assert steps == [("USER", "10001:10001"), ("STOPSIGNAL", "SIGTERM")]
    starts = [json.loads(rest) for step, rest in STEPS if step == "ENTRYPOINT"]
    command = _commands()[program]
    assert [command, "--config", f"/etc/graphward/{program}.toml"] in starts
    assert len([rest for step, rest in STEPS if step == "HEALTHCHECK"]) == 2


def _commands() -> dict[str, str]:
    """Return the command that the wheel installs for each program."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {target.partition(":")[2]: command for command, target in project["scripts"].items()}


def test_the_wheel_of_the_image_has_what_it_is_built_from_elsewhere() -> None:
    copied = {each for step, rest in STEPS if step == "COPY" for each in rest.split()[:-1]}
    assert {*SOURCES, *FILES} <= copied


def _health_check(port: int) -> list[str]:
    (found,) = [rest for step, rest in STEPS if step == "HEALTHCHECK" and f":{port}/" in rest]
    command: list[str] = json.loads(found.partition("CMD ")[2])
    return [sys.executable, *command[1:]]


async def _status(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait()


async def test_the_health_check_tells_a_server_that_lives_from_none(tmp_path: Path) -> None:
    port = free_port()
    command = [each.replace("9091", str(port)) for each in _health_check(9091)]
    assert await _status(command) == 1
    async with started(tmp_path, FakeClock(), Metrics=f'Listen = "127.0.0.1:{port}"'):
        assert await _status(command) == 0
    assert _health_check(9090)[1:] == [each.replace("9091", "9090") for each in _health_check(9091)[1:]]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["build"]["target"] == name
    for port in service["ports"]:
        assert port.startswith("127.0.0.1:"), "who publishes more decides so"


@pytest.mark.parametrize(("section", "kind"), [("networks", "networks"), ("secrets", "secrets")])
def test_what_a_service_uses_is_declared(section: str, kind: str) -> None:
    used = {each for service in SERVICES.values() for each in service.get(kind, ())}
    assert used == set(COMPOSITION[section])


def test_volumes_and_settings_are_declared_and_two_services_share_none() -> None:
    mounted = [each.partition(":")[0] for service in SERVICES.values() for each in service["volumes"]]
    assert sorted(mounted) == sorted(COMPOSITION["volumes"])
    assert {each["source"] for service in SERVICES.values() for each in service["configs"]} == set(
        COMPOSITION["configs"]
    )
    for each in COMPOSITION["configs"].values():
        assert (ROOT / each["file"]).exists()


def _environment(secret: Path, **given: str) -> dict[str, str]:
    """Return the environment that compose gives to the proxy.

    The variables in `given` are set for compose.
    """
    values = SERVICES["proxy"]["environment"].items()
    return {
        name: str(secret)
        if value.startswith("/run/secrets/")
        else _VARIABLE.sub(lambda found: given.get(found[1], found[2]), value)
        for name, value in values
    }


def test_no_command_of_compose_needs_a_variable_and_the_proxy_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret-that-is-long-enough-for-all")
    text = (ROOT / "compose.yaml").read_text("utf-8")
    assert len(_VARIABLE.findall(text)) == text.count("${"), "compose reads the whole file for each command"
    with pytest.raises(SettingsError) as refused:
        load(ROOT / "conf" / "docker" / "proxy.toml", _environment(tmp_path / "secret"))
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID"):
        assert any(name in problem for problem in refused.value.problems), name


def test_the_settings_are_good_and_write_into_the_volume_alone(tmp_path: Path) -> None:
    plane = read_settings(ROOT / "conf" / "docker" / "controlplane.toml", {})
    (tmp_path / "secret").write_text("a-secret-that-is-long-enough-for-all")
    tenant = client = "9f2b7c31-4d5e-4a6f-8b90-c1d2e3f4a5b6"
    environment = _environment(tmp_path / "secret", AZURE_TENANT_ID=tenant, AZURE_CLIENT_ID=client)
    proxy = load(ROOT / "conf" / "docker" / "proxy.toml", environment)
    written = [
        plane.store.path,
        plane.secrets.master_key_file,
        proxy.rule_sync.cache_path,
        proxy.audit.local_retention_path,
        proxy.token.signing_key_file,
    ]
    for path in written:
        assert path.is_relative_to("/var/lib/graphward"), path
