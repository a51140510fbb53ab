"""Run the control plane and its commands as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from controlplane.store.block_body import unpacked
from tests.fakes import commands
from tests.fakes.lifeline import end_with_parent
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"listening on (\S+)")


@dataclass
class Server:
    process: commands.Server | asyncio.subprocess.Process
    address: str
    reader: asyncio.StreamReader
    log: list[str] = field(default_factory=list)

    async def follow(self) -> None:
        async for line in self.reader:
            self.log.append(line.decode())

    async def wait(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def server(config: Path, module: str | None = None) -> AsyncIterator[Server]:
    """Start the server process; kill it at the end if it still runs.

    If `module` is given, start that Python module instead of the control plane.
    """
    reader = asyncio.StreamReader()
    reads, writes = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, reads)
    with writes:
        process = await _started(module, config, writes)
    running = Server(process, "", reader)
    following = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not running.address:
                line = (await reader.readline()).decode()
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


async def _started(
    module: str | None, config: Path, log: IO[bytes]
) -> commands.Server | asyncio.subprocess.Process:
    if module is None:  # forked: a fork takes a tenth of the time of a new Python
        return commands.Server("--config", str(config), environment={}, log=log)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--config", str(config)),
        cwd=ROOT,
        stderr=log,
        preexec_fn=end_with_parent,
    )


def cli(config: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return commands.run("--config", str(config), *arguments, environment=environment)


def facts(config: Path, *arguments: str) -> Any:
    """Run a command of the control plane, and check that the command succeeds.

    Return the parsed JSON that the command prints with its option --json.
    """
    done = cli(config, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def events_in(store: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return every audit event of an SQLite store, in the order of arrival."""
    blocks = store.execute("SELECT body FROM blocks ORDER BY position").fetchall()
    return [event for (body,) in blocks for event in json.loads(unpacked(body)) if event is not None]
