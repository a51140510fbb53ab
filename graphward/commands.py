"""Commands `graphward-proxy` and `graphward`, which start the programs.

The commands refuse to start if another distribution replaced a package of Graphward.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "graphward"
PACKAGES: Final = ("proxy", "controlplane")
ADVICE: Final = (
    "install the wheel of graphward into a separate environment: python3 -m venv /opt/graphward/venv && "
    "/opt/graphward/venv/bin/pip install graphward-*.whl"
)
BAD_INPUT: Final = 2


def proxy() -> int:
    _require_own_packages("graphward-proxy")
    from proxy.__main__ import PROGRAM, main

    return main(program=PROGRAM)


def controlplane() -> int:
    _require_own_packages("graphward")
    try:
        from controlplane.cli import main  # Ctrl-C may come during the half second of this import.

        return main(program="graphward")
    except KeyboardInterrupt:
        return 130  # exit status of a shell command that SIGINT ended


def _require_own_packages(command: str) -> None:
    """Exit if the package `proxy` or `controlplane` belongs to another distribution, in whole or in part."""
    problems = list(foreign_packages(Path(__file__).parents[1]))
    if problems:
        for problem in problems:
            print(f"{command}: {problem}", file=sys.stderr)
        print(f"{command}: {ADVICE}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def foreign_packages(site: Path) -> Iterator[str]:
    """Yield a line for each Graphward package that is missing or that another distribution contains."""
    for package in PACKAGES:
        own = site / package / "__init__.py"
        spec = importlib.util.find_spec(package)
        found = Path(spec.origin) if spec is not None and spec.origin is not None else None
        if found is None:
            yield f"{own} is missing: it was removed together with another package that had the same file"
            continue
        others = " and ".join(_others_with(package, found.parents[1]))
        if found.resolve() != own.resolve():
            yield f"`{package}` is {found} of {others or 'an unknown package'}, not {own}"
        elif others:
            yield f"{own} also belongs to {others}, so that `{package}` may be either package"


def _others_with(package: str, site: Path) -> Iterator[str]:
    """Yield the name and version of each distribution in `site`, other than Graphward, with this package."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        name, _, version = record.parent.name.removesuffix(".dist-info").partition("-")
        listed = "\n" + record.read_text("utf-8", errors="replace")
        if name != DISTRIBUTION and f"\n{package}/__init__.py," in listed:
            yield f"{name.replace('_', '-')} {version}"
