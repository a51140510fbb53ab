"""Tests that running programs are isolated, and that conf/systemd gives them few permissions."""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.fakes.readable import as_if_all_could_read_the_checkout
from tests.fakes.system import ROOT, System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import client_of, processes, stored_paths, until, whole_system

pytestmark = pytest.mark.process

UNITS: Final = sorted((ROOT / "conf" / "systemd").glob("*.service"))
MADE_BY_THE_TEST: Final = ("certificates", "controlplane.log", "proxy.log", "app.yaml", "open.yaml")
MOST_EXPOSURE: Final = 15  # tenths; 0 is a service that can do nothing, 100 one that can do everything


def all_processes(system: System) -> dict[str, int]:
    own = {"supervisor": system.proxy.process.pid, "control plane": system.control_plane.process.pid}
    return {**processes(system), **own}


async def test_a_running_system_leaves_nothing_to_others(tmp_path: Path) -> None:
    """The test sets a umask that removes no permission, and a core limit that allows core dumps."""
    umask = os.umask(0)
    cores = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (cores[1], cores[1]))
    try:
        async with whole_system(tmp_path) as system, client_of(system) as client:
            await client.get("/v1.0/echo/1")
            await until(lambda: "/v1.0/echo/1" in stored_paths(system))
            is_its_owners_alone(tmp_path)
            running = all_processes(system)
            assert len(running) == 5
            for name, pid in running.items():
                keeps_its_memory(name, pid, secrets_of(system))
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_CORE, cores)


def is_its_owners_alone(directory: Path) -> None:
    found = [each for each in directory.rglob("*") if not is_the_tests(each.relative_to(directory))]
    needed = {"controlplane.db", "controlplane.db-wal", "master.key", "snapshot.json", "audit"}
    assert needed <= {each.name for each in found}
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in found}
    loose = {
        str(each): oct(mode) for each, mode in modes.items() if mode != (0o700 if each.is_dir() else 0o600)
    }
    assert loose == {}


def keeps_its_memory(name: str, pid: int, secrets: list[str]) -> None:
    limits = Path(f"/proc/{pid}/limits").read_text()
    (cores,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert cores.split()[4:6] == ["0", "0"], name
    command = Path(f"/proc/{pid}/cmdline").read_text()
    assert not [each for each in secrets if each in command], name


def is_the_tests(path: Path) -> bool:
    return path.parts[0] in MADE_BY_THE_TEST or path.suffix == ".toml"


def secrets_of(system: System) -> list[str]:
    lines = system.proxy_config.read_text("utf-8").splitlines()
    return [line.split('"')[1] for line in lines if line.startswith(("ApiKey", "HmacSecret", "ClientSecret"))]


# Run a program's main as the user with that number, without memory that is both writable and executable.
AS_USER: Final = """
import ctypes, encodings.ascii, encodings.idna, encodings.utf_8_sig, os, runpy, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, as systemd's MemoryDenyWriteExecute
    print("this kernel has no PR_SET_MDWE", file=sys.stderr)
import controlplane.cli, proxy.__main__, proxy.startup.check, proxy.policy.ruleset_yaml
import proxy.supervisor.supervisor
import proxy.agent.main, proxy.worker.main, controlplane.app, importlib.readers
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, which every program has that was started as that user
main = {"proxy": proxy.__main__.main, "controlplane": controlplane.cli.main}[sys.argv[3]]
sys.exit(main(sys.argv[4:]))
"""
PROXY: Final = """\
[Proxy]
Listen = "0.0.0.0:0"
Workers = 1
[Agent]
ApiKeyFile = "key"
HmacSecret = "the-hmac-secret"
[RuleSync]
SaasBaseUrl = "http://127.0.0.1:9"
[Upstream]
BaseUrl = "http://127.0.0.1:9"
[Credentials]
Provider = "static"
AccessToken = "the-access-token"
[Admin]
Listen = "0.0.0.0:0"
"""


@pytest.fixture
def nobodys_directory() -> Iterator[Path]:
    """Yield a directory that any user can reach, unlike the directories that pytest makes."""
    directory = Path(tempfile.mkdtemp(prefix="graphward-"))
    (directory / "proxy.toml").write_text(PROXY, "utf-8")
    (directory / "key").write_text("the-api-key", "utf-8")
    listeners = (f'[{name}]\nListen = "0.0.0.0:0"\n' for name in ("ControlPlane", "Metrics", "Console"))
    (directory / "controlplane.toml").write_text("".join(listeners), "utf-8")
    nobody = pwd.getpwnam("nobody")
    for each in (directory, *directory.iterdir()):
        os.chown(each, nobody.pw_uid, nobody.pw_gid)
    yield directory
    shutil.rmtree(directory)


LOOK: Final = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
seen = []
for pid in sys.argv[3:]:
    for name in ("environ", "mem", "maps", "fd/2"):
        try:
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
            seen.append(f"{pid}/{name}")
        except PermissionError:
            pass
print(*seen)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("program", "says", "warns"),
    [
        ("proxy", b"sync failed", [b"Admin.Listen: other hosts reach", b"Proxy.Listen: other hosts reach"]),
        (
            "controlplane",
            b"admin API on",
            [b"ControlPlane.Listen: other hosts can reach", b"Console.Listen: other hosts can reach"],
        ),
    ],
)
async def test_a_program_s_own_user_looks_into_none_of_its_processes_and_root_does(
    nobodys_directory: Path, program: str, says: bytes, warns: list[bytes]
) -> None:
    nobody = pwd.getpwnam("nobody")
    ids = (str(nobody.pw_uid), str(nobody.pw_gid))
    config = str(nobodys_directory / f"{program}.toml")
    process = await asyncio.create_subprocess_exec(
        *as_if_all_could_read_the_checkout(nobodys_directory / "mounts"),
        *(sys.executable, "-c", AS_USER, *ids, program, "--config", config),
        cwd=ROOT,
        env={**os.environ, "Agent__HmacSecret": "a-secret-of-the-environment"}
        if program == "proxy"
        else None,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(says in line for line in lines):
                lines.append(await process.stderr.readline())
                assert lines[-1], b"".join(lines)
        await asyncio.to_thread(only_root_looks_in, process.pid, ids, 2 if program == "proxy" else 0)
    finally:
        process.send_signal(signal.SIGTERM)
        lines.append(await process.stderr.read())
    text = b"".join(lines)
    assert await process.wait() == 0, text
    assert b"Traceback" not in text
    for warning in warns:
        assert warning in text


def only_root_looks_in(parent: int, ids: tuple[str, str], children: int) -> None:
    pids = [str(parent), *Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    assert len(pids) == 1 + children
    look = [sys.executable, "-c", LOOK, *ids, *pids]
    seen = subprocess.run(look, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert seen.stdout.split() == []
    for pid in pids:  # root's tools do the same: perf, py-spy, gdb
        assert Path(f"/proc/{pid}/environ").read_bytes()
        with Path(f"/proc/{pid}/mem").open("rb"):
            pass


def test_check_warns_of_what_other_hosts_reach(tmp_path: Path) -> None:
    (tmp_path / "proxy.toml").write_text(PROXY, "utf-8")
    (tmp_path / "key").write_text("the-api-key", "utf-8")
    command = [sys.executable, "-m", "proxy", "--config", str(tmp_path / "proxy.toml"), "--check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["warning:", "Admin.Listen:"],
        ["warning:", "Proxy.Listen:"],
    ]


async def test_what_a_browser_is_led_to_neither_renders_nor_stays(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system:
        context = system.client_context()
        for url, status in (
            (f"{system.control_plane_url}/healthz", 200),
            (f"{system.control_plane_url}/api/v1/agent/sync", 401),
            (f"{system.control_plane_url}/nowhere", 404),
            (f"{system.admin_url}/healthz", 200),
            (f"{system.admin_url}/metrics", 200),
            (f"{system.admin_url}/nowhere", 404),
            (f"{system.proxy_url}/v1.0/users", 401),
        ):
            headers = await asyncio.to_thread(headers_of, url, status, context)
            assert headers["x-content-type-options"] == "nosniff", url
            assert headers["cache-control"] == "no-store", url
            assert "server" not in headers, url
            if not url.startswith(system.proxy_url):
                assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def headers_of(url: str, status: int, context: ssl.SSLContext) -> dict[str, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS, context=context) as response:
            found, fields = response.status, response.headers
    except urllib.error.HTTPError as error:
        found, fields = error.code, error.headers
        error.close()
    assert found == status, url
    return {name.lower(): value for name, value in fields.items()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_a_service_may_do_little(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}"]
    done = subprocess.run(
        [*command, str(unit)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_a_service_starts_a_program_that_there_is(unit: Path) -> None:
    (start,) = [line for line in unit.read_text("utf-8").splitlines() if line.startswith("ExecStart=")]
    module = start.split(" -m ")[1].split()[0]
    assert (ROOT / module / "__main__.py").exists()
    assert unit.name == f"graphward-{module}.service"


def test_both_programs_have_a_service() -> None:
    assert len(UNITS) == 2
