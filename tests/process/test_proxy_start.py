"""Tests of the proxy's start: each mistake gives one line and status 2; any user can start the proxy.

The option `--check` reports the same mistakes as a start, without starting the proxy, and shows no secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from proxy.startup.identity_file import Enrolled, Keys, write_identity
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port, this_program
from tests.fakes.system import ROOT
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import client_of, log_of, stored_paths, until, whole_system

pytestmark = pytest.mark.process

SECRETS = ("the-api-key-9f3", "the-hmac-secret-9f3", "the-client-secret-9f3", "s" * 40 + "-signing")
SETTINGS = """\
[Proxy]
Listen = "127.0.0.1:0"
Workers = 1
CertFile = "server.pem"
KeyFile = "server.key"

[Agent]
ApiKey = "{0}"
HmacSecret = "{1}"

[RuleSync]
SaasBaseUrl = "http://127.0.0.1:9"
CachePath = "snapshot.json"

[Audit]
LocalRetentionPath = "audit"

[Token]
SigningKey = "{3}"

[Upstream]
BaseUrl = "http://127.0.0.1:9"

[Credentials]
Provider = "environment"
TenantId = "tenant"
ClientId = "client"
ClientSecret = "{2}"

[Admin]
Listen = "127.0.0.1:{4}"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    certificate = CertificateAuthority(tmp_path / "certificates").server()
    shutil.copy(certificate.cert_file, tmp_path / "server.pem")
    shutil.copy(certificate.key_file, tmp_path / "server.key")
    file = tmp_path / "proxy.toml"
    file.write_text(SETTINGS.format(*SECRETS, free_port()), "utf-8")
    return file


def run(
    config: Path, *arguments: str, python: Sequence[str] = (sys.executable,), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python, "-m", "proxy", "--config", str(config), *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def refused_with(done: subprocess.CompletedProcess[str], *words: str, status: int = 2) -> None:
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (status, 1), done.stderr
    for word in words:
        assert word in lines[0]


def test_check_prints_the_settings_without_a_secret_and_makes_nothing(config: Path) -> None:
    before = sorted(config.parent.iterdir())
    done = run(config, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "LocalRetentionPath" in done.stdout
    assert "ClientSecret" in done.stdout
    assert not [secret for secret in SECRETS if secret in done.stdout]
    assert sorted(config.parent.iterdir()) == before


def test_check_shows_the_identity_and_what_keeps_it_from_being_used(config: Path) -> None:
    assert "# identity: the API key and the HMAC secret of the settings" in run(config, "--check").stdout
    change(config, "[Agent]\n", '[Agent]\nEnrolmentToken = "gwe_token-of-an-operator"\n')
    done = run(config, "--check")
    assert re.fullmatch(
        r"warning: \S+\.toml:\d+: Agent.EnrolmentToken: not used, because Agent.ApiKey is given: "
        r"remove one of the two\n",
        done.stderr,
    )
    config.write_text(re.sub(r"(?m)^(ApiKey|HmacSecret) = .*\n", "", config.read_text("utf-8")), "utf-8")
    done = run(config, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# identity: not enrolled yet; the proxy enrols itself when it starts" in done.stdout
    assert "gwe_" not in done.stdout
    path = config.parent / "var" / "identity.json"
    write_identity(path, Enrolled(Keys("p-1", "edge-7", "gwk_1", "gwh_1", 1.0, "2027-01-01T00:00:00Z")))
    expected = "# identity: enrolled as edge-7 (p-1), keys to be renewed at 2027-01-01T00:00:00Z\n"
    assert run(config, "--check").stdout.endswith(expected)
    path.write_bytes(b"junk")
    refused_with(run(config, "--check"), "Agent.IdentityPath", "delete the file to enrol this proxy again")


def test_check_shows_the_way_to_each_host_and_the_variables_without_effect(config: Path) -> None:
    change(config, '\nBaseUrl = "http://127.0.0.1:9"', '\nBaseUrl = "https://graph.invalid"')
    variables = {"HTTPS_PROXY": "http://ada:pass-word@egress.invalid:3128", "https_proxy": ""}
    exempt = {"NO_PROXY": "10.0.0.0/8 login.microsoftonline.com 10.*", "no_proxy": ""}
    done = run(config, "--check", **variables, **exempt)
    assert done.returncode == 0
    ways = [line for line in done.stdout.splitlines() if line.startswith("# way to ")]
    assert ways == [
        "# way to Upstream.BaseUrl: through the egress proxy egress.invalid:3128 (HTTPS_PROXY)",
        "# way to RuleSync.SaasBaseUrl: direct (loopback and link-local addresses use no egress proxy)",
        "# way to Credentials.AuthorityUrl: direct (NO_PROXY has login.microsoftonline.com)",
    ]
    assert done.stderr.startswith(
        "warning: NO_PROXY: 10.* has no effect: the value must be a host name, an address"
    )
    assert "pass-word" not in done.stdout + done.stderr
    refused_with(run(config, "--check", HTTPS_PROXY="socks5://egress:1080", https_proxy=""), "HTTPS_PROXY")


def change(config: Path, old: str, new: str) -> None:
    text = config.read_text("utf-8")
    assert old in text
    config.write_text(text.replace(old, new), "utf-8")


def test_check_warns_of_secrets_that_would_go_to_other_hosts_without_tls(config: Path) -> None:
    done = run(config, "--check")
    assert "without TLS" not in done.stderr
    text = config.read_text("utf-8")
    text = text.replace("[Credentials]\n", '[Credentials]\nAuthorityUrl = "http://127.0.0.1:9"\n')
    for key in ("SaasBaseUrl", "BaseUrl", "AuthorityUrl"):
        text = re.sub(rf'^{key} = ".*"', f'{key} = "http://192.0.2.7:8080"', text, flags=re.MULTILINE)
    config.write_text(text, "utf-8")
    done = run(config, "--check")
    assert done.returncode == 0
    assert [line.split(": ")[1] for line in done.stderr.splitlines() if "without TLS" in line] == [
        "RuleSync.SaasBaseUrl",
        "Upstream.BaseUrl",
        "Credentials.AuthorityUrl",
    ]


MISTAKES = {
    "unknown key": ("Workers = 1", "Worker = 1", ("proxy.toml:3", "Worker", "did you mean Workers")),
    "wrong type": ("Workers = 1", 'Workers = "one"', ("proxy.toml:3", "Proxy.Workers")),
    "out of range": ("Workers = 1", "Workers = -1", ("proxy.toml:3", "Proxy.Workers")),
    "no TOML": ("Workers = 1", "Workers = ", ("proxy.toml:3",)),
    "no certificate": ('"server.pem"', '"absent.pem"', ("Proxy.CertFile",)),
    "not PEM": ('"server.pem"', '"proxy.toml"', ("Proxy.CertFile",)),
    "another's key": ('"server.key"', '"other.key"', ("Proxy.CertFile",)),
    "short signing key": (SECRETS[3], "short", ("Token.SigningKey",)),
    "no CA": ('BaseUrl = "http://127.0.0.1:9"\n\n[Cr', 'CaFile = "absent.pem"\n\n[Cr', ("Upstream.CaFile",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("check", [True, False], ids=["check", "start"])
def test_a_mistake_is_one_line_and_status_2(config: Path, mistake: str, check: bool) -> None:
    old, new, words = MISTAKES[mistake]
    other = CertificateAuthority(config.parent / "others").server()
    shutil.copy(other.key_file, config.parent / "other.key")
    change(config, old, new)
    refused_with(run(config, *(["--check"] if check else [])), *words)


def test_no_settings_file_is_one_line_and_status_2(tmp_path: Path) -> None:
    refused_with(run(tmp_path / "absent.toml"), "absent.toml")
    refused_with(run(tmp_path / "absent.toml", "--check"), "absent.toml")


def test_a_port_in_use_is_one_line_and_status_1(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(config, Proxy__Listen=f"127.0.0.1:{port}")
        refused_with(done, f"Proxy.Listen: 127.0.0.1:{port} is in use by {this_program()}", status=1)


async def test_a_port_that_another_proxy_shares_is_told(tmp_path: Path) -> None:
    """Two proxies on one port would each get only some requests, and have different token keys."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with whole_system(tmp_path, environment={"Proxy__Listen": address}) as system:
            report = f"Proxy.Listen: another process listens on {address} too"
            assert log_of(system).count(report) == 1


def test_an_admin_port_in_use_is_told_at_once_and_ends_with_status_1(config: Path) -> None:
    """The start waits for an admin port in use, because an earlier proxy process may be about to exit."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run(config, Admin__Listen=address)
    waits, ends = done.stderr.splitlines()
    assert f"another process listens on {address}: waiting up to 10 s" in waits
    report = f"Admin.Listen: {address} is in use by {this_program()}: end it, or change Admin.Listen"
    assert (ends, done.returncode) == (report, 1)


@pytest.mark.parametrize("workers", [120, 40])
def test_too_few_descriptors_are_one_line_and_status_1(config: Path, workers: int) -> None:
    """The supervisor has too few file descriptors for the listeners and the channels of its workers."""
    limited = ["prlimit", "--nofile=100:100", sys.executable]
    done = run(config, python=limited, Proxy__Workers=str(workers))
    refused_with(done, "Too many open files", status=1)


def test_an_encrypted_key_is_an_error_and_no_question(config: Path) -> None:
    key = config.parent / "server.key"
    subprocess.run(
        ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", key, "-out", f"{key}.enc"],
        check=True,
        capture_output=True,
    )
    change(config, '"server.key"', '"server.key.enc"')
    refused_with(run(config), "Proxy.CertFile")


async def test_everything_on_disk_is_for_its_owner_alone_and_no_secret_is_logged(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        await client.get("/v1.0/echo/1")
        await until(lambda: "/v1.0/echo/1" in stored_paths(system))
        mine = [system.directory / "snapshot.json", system.directory / "token-signing.key"]
        mine += [each for each in (system.directory / "audit").rglob("*") if each.is_file()]
        assert len(mine) > 5
        assert {stat.S_IMODE(each.stat().st_mode) for each in mine} == {0o600}
        folders = [each for each in (system.directory / "audit").rglob("*") if each.is_dir()]
        assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}
        key = (system.directory / "token-signing.key").read_text().strip()
        config = system.proxy_config.read_text("utf-8")
        secrets = [
            line.split('"')[1]
            for line in config.splitlines()
            if line.startswith(("ApiKey", "HmacSecret", "ClientSecret"))
        ]
        assert len(secrets) == 3
        log = log_of(system)
        app = system.applications["app"]
        found = [each for each in (*secrets, key, client.token, app.client_secret) if each in log]
        assert found == []
        assert "Traceback" not in log


# Become that user only after all imports, because root's own Python is often closed to others.
AS_NOBODY = """
import encodings.idna, encodings.utf_8_sig, os, sys
import proxy.__main__, proxy.startup.check, proxy.policy.ruleset_yaml, proxy.supervisor.supervisor
import proxy.agent.credentials.entra, proxy.agent.credentials.environment, proxy.agent.main, proxy.worker.main
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
sys.exit(proxy.__main__.main(["--config", sys.argv[3]]))
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that every user can access, unlike the temporary directories that pytest creates."""
    directory = Path(tempfile.mkdtemp(prefix="graphward-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def _takes_connections(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS).close()
        return True
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_an_ordinary_user_can_run_it(config: Path, open_directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    for name in ("server.pem", "server.key", "proxy.toml"):
        shutil.copy(config.parent / name, open_directory / name)
        os.chown(open_directory / name, nobody.pw_uid, nobody.pw_gid)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AS_NOBODY, str(nobody.pw_uid), str(nobody.pw_gid)),
        str(open_directory / "proxy.toml"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[bytes] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        # No control plane responds here. The agent's log line about it proves that the agent runs.
        while not any(b"sync failed" in line for line in lines):
            lines.append(await process.stderr.readline())
            assert lines[-1], b"".join(lines)
    port = int((open_directory / "proxy.toml").read_text().rpartition(":")[2].rstrip('"\n'))
    await until(lambda: _takes_connections(port))  # the workers start at the same time as the agent
    process.send_signal(signal.SIGTERM)
    lines.append(await process.stderr.read())
    assert await process.wait() == 0
    made = list((open_directory / "audit").rglob("*"))
    assert made
    assert {each.stat().st_uid for each in made} == {nobody.pw_uid}
    assert b"Traceback" not in b"".join(lines)


def test_a_reload_that_is_asked_for_amid_the_start_comes_after_it(config: Path) -> None:
    settings = config.read_bytes()
    config.unlink()
    os.mkfifo(config)  # so that the start blocks when it reads its settings
    command = [sys.executable, "-m", "proxy", "--config", str(config)]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent
    ) as process:
        assert process.stderr is not None
        with config.open("wb") as pipe:
            process.send_signal(signal.SIGHUP)
            config.unlink()
            config.write_bytes(settings)
            pipe.write(settings)
        log = ""
        while "supervisor: reloading" not in log:
            line = process.stderr.readline()
            assert line, log
            log += line
        assert "listening on" in log
        process.send_signal(signal.SIGTERM)
        log += process.stderr.read()
    assert process.returncode == 0
    assert "Traceback" not in log
