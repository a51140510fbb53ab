"""Run docs/how-to/install.md from its first tested block to its last, as root of an empty machine.

The simulated machine is this machine's root directory in Linux namespaces. All changes of the simulated
machine are in memory, and none remain after the test. If the script `.ci/in-debian` runs the test, the
simulated machine is a Debian system with little more than Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT
from tests.fakes.system import ROOT
from tests.wheels.install_page import blocks
from tests.wheels.upstream import ENTRA, GRAPH

# blocks that need the network; the others run in a separate network with the fakes at port 443
PACKAGES: Final = 2
MACHINE: Final = """\
set -eu
mount -t tmpfs none "$1"
cd "$1"
mkdir changes work root
mount -t overlay overlay -o lowerdir=/,upperdir="$1/changes",workdir="$1/work" root
mount -t proc proc root/proc
mount --rbind /dev root/dev
cp -L /etc/resolv.conf /etc/hosts root/etc/
cp -L /etc/ssl/certs/ca-certificates.crt root/etc/ssl/certs/
cp "$2/systemctl" root/usr/local/sbin/
mount -t tmpfs none root/root
mkdir root/root/graphward
cp "$2"/*.whl "$2/requirements-run.lock" root/root/graphward/
cp "$2"/*.sh root/
in_root() { chroot root env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \\
  DEBIAN_FRONTEND=noninteractive PIP_NO_COMPILE=1 PIP_NO_INPUT=1 bash "$@"; }
in_root /packages.sh < /dev/null
export -f in_root
exec unshare --net bash -eu -c '
  "$1" -c "$LOOPBACK_UP"
  coproc FAKES { exec "$1" -m tests.wheels.upstream "$0/authority"; }
  read -r -u "${FAKES[0]}"
  cat authority/ca.pem >> root/etc/ssl/certs/ca-certificates.crt
  in_root /page.sh || { tail -n 20 root/var/log/graphward-*.log >&2; exit 1; }
' "$1" "$3"
"""
LOOPBACK_UP: Final = """\
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
"""
# Run before the blocks of a further machine: a copy of this one, with the package and the two copied files.
ANOTHER_MACHINE: Final = """\
echo "$PROXY" > /var/tmp/name-of-proxy
echo "$TOKEN" > /var/tmp/token-of-first
kill "$(cat /run/graphward-proxy.pid)"
while kill -0 "$(cat /run/graphward-proxy.pid)" 2> /dev/null; do sleep 0.1; done
userdel graphward-proxy
rm -r /var/lib/graphward-proxy /run/credentials/graphward-proxy.service
rm -r /etc/graphward/ca.pem /etc/graphward/proxy* /etc/graphward/secrets
rm -r /etc/systemd/system/graphward-proxy* /usr/local/sbin/graphward-proxy* ~/graphward-ca
unset CONTROL PROXY TENANT_ID CLIENT_ID CLIENT_SECRET TOKEN ASK KEY NAME
umask 022
cd /
"""
# Run before Graphward is removed: systemd's check of the installed units.
BEFORE_REMOVAL: Final = """\
echo "=== token of the first proxy"
curl -sS --cacert /etc/graphward/ca.pem -H "Authorization: Bearer $(cat /var/tmp/token-of-first)" \\
  -o /dev/null -w '%{http_code}' "https://$(cat /var/tmp/name-of-proxy):8443/v1.0/users"
echo "=== units"
test -x /bin/kill
! command -v systemd-analyze > /dev/null || systemd-analyze verify /etc/systemd/system/graphward-*.service
echo "=== owners"
find /var/lib/graphward-* ! -user graphward-proxy ! -user graphward-controlplane
echo "=== modes"
find /etc/graphward/secrets -perm /077
"""
AFTER_REMOVAL: Final = """\
echo "=== left"
find /etc /opt /usr/local /var/lib -name '*graphward*'
"""


def script(texts: list[str]) -> str:
    return "set -eu -o pipefail\n" + "".join(f'echo "=== {n}"\n{text}' for n, text in enumerate(texts))


def with_values(text: str) -> str:
    """Write the fake's tenant and client into the block of commands, in place of the block's placeholders."""
    for name, value in {"TENANT_ID": TENANT, "CLIENT_ID": CLIENT_ID}.items():
        text = re.sub(rf"^{name}=\S+", f"{name}={value}", text, flags=re.M)
    return text


@pytest.mark.timeout(500)  # half of the time is apt and pip
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces and a root directory")
@pytest.mark.skipif(
    shutil.which("curl") is not None, reason="not an empty Debian: .ci/in-debian trixie ./dev wheels runs it"
)
def test_the_page_leads_to_a_filtered_request_and_its_audit_event(tmp_path: Path) -> None:
    files, machine = tmp_path / "files", tmp_path / "machine"
    files.mkdir()
    machine.mkdir()
    release = [*(ROOT / "dist").glob("*.whl"), ROOT / "requirements-run.lock"]
    for each in (*release, ROOT / "tests" / "wheels" / "systemctl"):
        shutil.copy(each, files)
    texts = [with_values(block.text) for block in blocks() if block.is_run]
    for before, words in (
        (ANOTHER_MACHINE, "tar -C / -xpzf"),
        (BEFORE_REMOVAL, "userdel graphward-controlplane"),
    ):
        place = next(n for n, text in enumerate(texts) if words in text)
        texts[place] = before + texts[place]
    (files / "packages.sh").write_text(script(texts[:PACKAGES]))
    hosts = f'echo "127.0.0.1 {GRAPH} {ENTRA}" >> /etc/hosts\n'
    (files / "page.sh").write_text(hosts + script(texts[PACKAGES:]) + AFTER_REMOVAL)
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    done = subprocess.run(
        ["unshare", *namespaces, "bash", "-c", MACHINE, "bash", str(machine), str(files), sys.executable],
        input=f"{CLIENT_SECRET}\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LOOPBACK_UP": LOOPBACK_UP},
        timeout=480,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    outputs = done.stdout.split("=== ")
    request = next(each for each in outputs if '"value"' in each)
    users, refusal = _documents(request.partition("\n")[2])
    assert len(users["value"]) == 2
    assert {name for user in users["value"] for name in user} == {"id", "displayName", "mail"}
    assert refusal["error"]["code"] == "policyBlocked"
    assert refusal["error"]["message"].startswith("Graphward blocked this request")
    proxies = next(each for each in outputs[::-1] if "edge-1" in each)
    assert len(proxies.splitlines()) == 4, "a number, a heading and the two proxies"
    after = {name: rest.split() for name, _, rest in (each.partition("\n") for each in outputs)}
    assert after["token of the first proxy"] == ["200"], "proxies of one name take each other's tokens"
    assert after["units"] == [], "systemd finds nothing wrong with the units"
    assert after["owners"] == [], "each file belongs to the user of its program"
    assert after["modes"] == [], "root alone reads secrets"
    assert after["left"] == [], "nothing stays but what the page names"
    trail = next((each for each in outputs if "tokenIssued" in each), "")
    assert [word in trail for word in ("/v1.0/organization", "filter", "block", "payroll")] == [True] * 4
    assert CLIENT_SECRET not in done.stdout


def _documents(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    first, end = json.JSONDecoder().raw_decode(text)
    second, _ = json.JSONDecoder().raw_decode(text[end:].lstrip())
    return first, second
