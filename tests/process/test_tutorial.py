"""Test the commands of docs/tutorial/first-proxy.md in order in a fresh directory, with their output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "tutorial" / "first-proxy.md"
SOURCES: Final = ("proxy", "controlplane", "graphward", "tests")
PORTS: Final = ("8080", "8090", "8091", "8092", "9090", "9091")
TESTED: Final = "tested"
REPEATED: Final = "tested, repeated until the output matches"
SECONDS: Final = 240  # seconds to run the page, on a busy machine
END: Final = "--- end of block"
_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<comment>[^\n]*) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class Block:
    """A command block of the tutorial page, with the expected output that the page shows below the block."""

    line: int
    comment: str
    commands: str
    output: str | None

    @property
    def is_run(self) -> bool:
        return self.comment in (TESTED, REPEATED)


def blocks(page: str) -> list[Block]:
    found = list(_BLOCK.finditer(page))
    return [
        Block(
            page.count("\n", 0, each.start("kind")) + 1,
            each["comment"] or "",
            each["text"],
            following["text"] if following is not None and following["comment"] == "output" else None,
        )
        for each, following in zip(found, [*found[1:], None], strict=True)
        if each["kind"] == "sh"
    ]


def matches(shown: str, printed: str) -> bool:
    """Return True if the printed output matches the output on the page.

    On the documentation page, `…` inside a line stands for an omitted part of the line. A line with only `…`
    stands for any number of lines.
    """
    pattern = re.sub(r"^…\n", "\0", shown, flags=re.M)
    pattern = re.escape(pattern).replace("…", ".+").replace("\0", r"(?:.*\n)*")
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("id …\nname x\n", "id 4711\nname x\n", True),
        ("id …\nname x\n", "id 4711\nname y\n", False),
        ("id …\n", "id \n", False),
        ("a\n…\n", "a\nb\nc\n", True),
        ("a\n…\n", "a\n", True),
        ("a\n", "a\nb\n", False),
    ],
)
def test_three_dots_stand_for_what_differs(shown: str, printed: str, expected: bool) -> None:
    assert matches(shown, printed) is expected


def test_each_block_of_commands_is_run_or_says_why_not() -> None:
    for block in blocks(PAGE.read_text("utf-8")):
        assert block.is_run or block.comment.startswith("not run: "), f"{PAGE.name}:{block.line}"


class Shell:
    """A shell terminal whose working directory holds the sources."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, commands: str) -> str:
        """Run shell commands, and return the output that the commands print."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f'{commands}\necho "{END} $?"\n'.encode())
        printed = ""
        while END not in printed:
            line = await self._process.stdout.readline()
            assert line, f"the shell ended: {printed}"
            printed += line.decode()
        text, _, status = printed.rpartition(END)
        assert status.strip() == "0", f"status {status.strip()} of:\n{commands}\nwhich printed:\n{text}"
        return text


@contextlib.asynccontextmanager
async def shell(directory: Path) -> AsyncIterator[Shell]:
    process = await asyncio.create_subprocess_exec(
        "bash",
        cwd=directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        yield Shell(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def clone(directory: Path, ports: dict[str, str]) -> None:
    """Make a directory with the sources, a Python environment, and settings that use free ports."""
    for name in (*SOURCES, ".venv"):
        (directory / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "conf", directory / "conf")
    for name in ("proxy.toml", "controlplane.toml"):
        file = directory / "conf" / name
        file.write_text(with_ports(file.read_text("utf-8"), ports), "utf-8")


def with_ports(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"\b(?:8080|8090|8091|8092|9090|9091)\b", lambda found: ports[found[0]], text)


@pytest.mark.skipif(shutil.which("jq") is None, reason="the tutorial needs jq")
async def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in PORTS}
    clone(tmp_path, ports)
    async with asyncio.timeout(SECONDS), shell(tmp_path) as terminal:
        for block in blocks(with_ports(PAGE.read_text("utf-8"), ports)):
            if not block.is_run:
                continue
            printed = await terminal.run(block.commands)
            while block.comment == REPEATED and not matches(block.output or "", printed):
                printed = await terminal.run(block.commands)
            if block.output is not None:
                assert matches(block.output, printed), f"{PAGE.name}:{block.line} printed:\n{printed}"
    assert not (tmp_path / "tutorial").exists()
