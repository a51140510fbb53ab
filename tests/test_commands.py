"""Tests of installed commands: they refuse a package `proxy` or `controlplane` of another distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent


def fails(site: Path, command: str, *before: Path) -> list[str]:
    """Run an installed command with the directories `before` first in the search path.

    Check that the command exits with status 2.
    """
    program = f"import sys; from graphward.commands import {command}; sys.exit({command}())"
    places = os.pathsep.join(map(str, (*before, site)))
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", program],
        cwd=site,
        env={"PYTHONPATH": places},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 2
    return done.stderr.splitlines()


def package(site: Path, name: str, distribution: str) -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").touch()
    record = site / f"{distribution}.dist-info" / "RECORD"
    record.parent.mkdir(exist_ok=True)
    with record.open("a") as file:
        file.write(f"{name}/__init__.py,sha256=x,0\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a fake installation that has the files which the tested commands read."""
    found = tmp_path / "site"
    for name in ("proxy", "controlplane"):
        package(found, name, "graphward-0.2.0")
    (found / "graphward").symlink_to(ROOT / "graphward")
    return found


def test_a_package_that_was_installed_over_ours_is_named_with_what_to_do(site: Path) -> None:
    (site / "proxy_py-2.4.10.dist-info").mkdir()
    (site / "proxy_py-2.4.10.dist-info" / "RECORD").write_text("proxy/__init__.py,sha256=y,9\n")
    for command, program in (("proxy", "graphward-proxy"), ("controlplane", "graphward")):
        problem, advice = fails(site, command)
        assert problem == (
            f"{program}: {site}/proxy/__init__.py also belongs to proxy-py 2.4.10, "
            "so that `proxy` may be either package"
        )
        assert "install the wheel of graphward into a separate environment: python3 -m venv" in advice


def test_a_package_that_is_found_before_ours_is_named_with_its_distribution(
    site: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    package(other, "controlplane", "fleet-1.0")
    (other / "proxy").mkdir()
    (other / "proxy" / "__init__.py").touch()
    proxy, plane, _ = fails(site, "controlplane", other)
    own = f"not {site}/"
    assert (
        proxy
        == f"graphward: `proxy` is {other}/proxy/__init__.py of an unknown package, {own}proxy/__init__.py"
    )
    assert plane == (
        f"graphward: `controlplane` is {other}/controlplane/__init__.py of fleet 1.0, "
        f"not {site}/controlplane/__init__.py"
    )


def test_a_package_that_was_removed_with_another_is_told(site: Path) -> None:
    (site / "proxy" / "__init__.py").unlink()
    assert fails(site, "proxy")[0] == (
        f"graphward-proxy: {site}/proxy/__init__.py is missing: "
        "it was removed together with another package that had the same file"
    )
