"""Tests that the page of dependencies is up to date, and that each licence was reviewed."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Final

from packaging.version import Version

from tests.dependencies_reference import PAGE, licence, locked, needed_to_run, page_as_it_should_be

# Licences of packages that a program may use without further review, if it is not distributed with them.
ACCEPTED: Final = {
    "0BSD",
    "Apache-2.0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "LGPL-3.0-only",  # psycopg's: imported unmodified, and only if it is configured
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
}
# A separate program for developers: ./dev lint starts it, and no module imports or distributes it.
ACCEPTED_OF_A_TOOL: Final = {"codespell": {"GPL-2.0-only"}}


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page_as_it_should_be(), "python -m tests.dependencies_reference"


def test_what_is_installed_is_what_is_locked() -> None:
    differing = {
        name: (wanted, version(name))
        for name, wanted in locked().items()
        if Version(version(name)) != Version(wanted)
    }
    assert differing == {}


def test_every_licence_is_an_accepted_one() -> None:
    words = {name: set(re.split(r" OR | AND |[()]", licence(name))) - {""} for name in locked()}
    accepted = {name: ACCEPTED | ACCEPTED_OF_A_TOOL.get(name, set()) for name in words}
    assert {name: found for name, found in words.items() if found - accepted[name] or not found} == {}


def test_what_the_programs_import_is_told_from_what_tests_do() -> None:
    running = needed_to_run()
    assert {"aiohttp", "uvloop", "cryptography", "pyyaml", "msal", "certifi"} <= running
    assert not {"pytest", "mypy", "ruff", "hypothesis", "uv", *ACCEPTED_OF_A_TOOL} & running
