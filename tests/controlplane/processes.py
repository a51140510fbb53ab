"""The control plane as a real process, and its commands."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.store.block_body import unpacked
from tests.fakes import commands
from tests.fakes.lifeline import end_with_parent

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"listening on (\S+)")


@dataclass
class Server:
    process: asyncio.subprocess.Process
    address: str
    log: list[str] = field(default_factory=list)

    async def follow(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode())

    async def wait(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()


@asynccontextmanager
async def server(config: Path, module: str = "controlplane") -> AsyncIterator[Server]:
    """The server process, killed at the end if it still runs then."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--config", str(config)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    running = Server(process, "")
    following = None
    try:
        assert process.stderr is not None
        async with asyncio.timeout(20):
            while not running.address:
                line = (await process.stderr.readline()).decode()
                assert line, f"the server ended: {running.log}"
                running.log.append(line)
                if found := _LISTENING.search(line):
                    running.address = found[1]
        following = asyncio.create_task(running.follow())
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
        if following is not None:
            await following


def cli(config: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return commands.run("--config", str(config), *arguments, environment=environment)


def facts(config: Path, *arguments: str) -> Any:
    """What the command prints with --json; it must succeed."""
    done = cli(config, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def events_in(store: sqlite3.Connection) -> list[dict[str, Any]]:
    """Every stored event of a file, in the order of arrival."""
    blocks = store.execute("SELECT body FROM blocks ORDER BY position").fetchall()
    return [event for (body,) in blocks for event in json.loads(unpacked(body)) if event is not None]
