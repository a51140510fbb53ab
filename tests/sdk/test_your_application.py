"""Test that the program of docs/tutorial/your-application.md runs behind the proxy as the page shows."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.fakes.lifeline import end_with_parent
from tests.fakes.system import ROOT, System
from tests.sdk.conftest import PYTHON

PAGE: Final = (ROOT / "docs" / "tutorial" / "your-application.md").read_text("utf-8")
RULES: Final = ROOT / "conf" / "demo" / "hr-sync.yaml"  # rules of the demo that the page starts


def block(kind: str) -> str:
    """Return the only code block of the given kind in the page."""
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)
    return str(text)


@pytest_asyncio.fixture(loop_scope="session")
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with System(tmp_path, {"payroll": RULES}, workers=1) as system:
        yield system


@pytest.mark.process
@pytest.mark.asyncio(loop_scope="session")
async def test_the_program_of_the_tutorial_prints_what_the_page_shows(system: System) -> None:
    if not PYTHON.exists():
        pytest.skip("the Python SDKs are not installed: ./dev test-sdk does that")
    program = system.directory / "show_user.py"
    program.write_text(block("python"), "utf-8")
    application = system.applications["payroll"]
    authority = str(system.authority.ca_file)
    settings = {
        "AZURE_AUTHORITY_HOST": system.proxy_url,
        "AZURE_TENANT_ID": "adfs",
        "AZURE_CLIENT_ID": application.client_id,
        "AZURE_CLIENT_SECRET": application.client_secret,
        "SSL_CERT_FILE": authority,
        "REQUESTS_CA_BUNDLE": authority,
        "NO_PROXY": "*",
    }
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), str(program)),
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    printed, errors = await process.communicate()
    assert (printed.decode(), process.returncode) == (block("text"), 0), errors.decode()


def test_the_page_sets_the_variables_of_the_test() -> None:
    names = re.findall(r"([A-Z_]+)=", "".join(re.findall(r"^export (.*)$", PAGE, re.M)))
    assert set(names) == {
        "AZURE_AUTHORITY_HOST",
        "AZURE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
    }
