"""Commands that a test runs as one operator: against a running server, or on the host of its store."""

from __future__ import annotations

import asyncio
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from controlplane.cli import main
from tests.controlplane.plane import Plane

PASSWORD = "correct horse battery staple"


@dataclass
class Commands:
    """An operator who runs commands at the server or on the host of its store."""

    config: Path
    url: str
    token_file: Path

    async def run(self, where: str, *arguments: str) -> tuple[int, str, str]:
        """Run the command in a thread, because a process for each command would double the tests' time."""
        there = {
            "store": ["--config", str(self.config)],
            "server": ["--url", self.url, "--token-file", str(self.token_file)],
        }[where]
        out, err = BytesIO(), BytesIO()
        texts = [TextIOWrapper(each, "utf-8", write_through=True) for each in (out, err)]
        with redirect_stdout(texts[0]), redirect_stderr(texts[1]):
            status = await asyncio.to_thread(main, [*there, *arguments])
        return status, out.getvalue().decode(), err.getvalue().decode()

    async def facts(self, where: str, *arguments: str) -> dict[str, Any]:
        status, out, err = await self.run(where, *arguments, "--json")
        assert (status, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found


async def commands_at(plane: Plane, directory: Path) -> Commands:
    """Start a server whose first operator was created by a command on the host of the store."""
    password, token = directory / "password", directory / "token"
    password.write_text(f"{PASSWORD}\n")
    commands = Commands(directory / "controlplane.toml", plane.console_url, token)
    added = await commands.facts(
        "store", "operator", "add", "ada", "--admin", "--password-file", str(password)
    )
    assert added["roles"] == [{"orgId": "*", "org": "*", "role": "admin", "mapping": None}]
    made = await commands.facts("store", "operator", "token", "add", "ada", "cli")
    token.write_text(made["token"])
    return commands
