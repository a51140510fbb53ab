"""Write docs/reference/dependencies.md: python -m tests.dependencies_reference."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "dependencies.md"
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
# A licence as packages write it -> its SPDX identifier.
_SPDX: Final = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_LONGEST_NAME: Final = 60  # characters: some packages put the whole licence text into the field of its name


def locked() -> dict[str, str]:
    """Return the name and version of every package in the lock file."""
    text = (ROOT / "requirements.lock").read_text("utf-8")
    return {canonicalize_name(name): version for name, version in _PINNED.findall(text)}


def needed_to_run() -> set[str]:
    """Return the packages that the programs import, and the dependencies of these packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = locked()
    found: set[str] = set()
    extras = project["optional-dependencies"]
    configured = [each for name, wanted in extras.items() if name != "dev" for each in wanted]
    waiting = [Requirement(each) for each in (*project["dependencies"], *configured)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in versions:
            continue  # not needed on this platform or Python version
        first = name not in found
        found.add(name)
        if first or requirement.extras:
            waiting += _requirements(distribution(name), requirement.extras)
    return found


def _requirements(package: Distribution, extras: Iterable[str]) -> list[Requirement]:
    wanted = []
    for text in package.requires or ():
        each = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if each.marker is None or any(each.marker.evaluate(environment) for environment in environments):
            wanted.append(each)
    return wanted


def licence(name: str) -> str:
    metadata = distribution(name).metadata
    fields = [metadata[field] for field in ("License-Expression", "License") if field in metadata]
    stated = next(filter(None, fields), "")
    if stated in ("", "Dual License") or len(stated) > _LONGEST_NAME:
        classifiers = metadata.get_all("Classifier") or []
        names = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: OSI")]
        return " OR ".join(_SPDX.get(each, each) for each in names)
    return _SPDX.get(stated, stated)


def page_as_it_should_be() -> str:
    versions = locked()
    running = needed_to_run()
    return "\n".join(
        [
            "# Dependencies",
            "",
            "This page lists the Python packages that Graphward installs, with their versions and licences.",
            "The file `requirements.lock` pins the version of each package with its hash.",
            "`python -m tests.dependencies_reference` writes this page.",
            "A test fails if this list of packages is out of date.",
            "",
            "## Packages to run Graphward",
            "",
            *_table({name: versions[name] for name in sorted(running)}),
            "",
            "## Packages to develop Graphward",
            "",
            *_table({name: version for name, version in sorted(versions.items()) if name not in running}),
            "",
        ]
    )


def _table(packages: dict[str, str]) -> list[str]:
    rows = [f"| {name} | {version} | {licence(name)} |" for name, version in packages.items()]
    return ["| Package | Version | Licence |", "|---|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
