"""Tests of the `audit` commands count, show, export and tail, on the store's host and at a server."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import Plane, event
from tests.controlplane.processes import ROOT
from tests.patience import PATIENCE_SECONDS

WAYS = ("store", "server")


async def keep(plane: Plane, *numbers: int, name: str = "acme", **members: Any) -> str:
    """Store events of the organisation through a proxy of that organisation."""
    org_id = await plane.org(name)
    proxy = await plane.proxy(f"edge-{name}", name)
    made = [event(org_id, number, time=f"2026-11-21T04:{number:02}:00.000Z", **members) for number in numbers]
    assert (await proxy.audit({"batchId": "b1", "events": made})).status == 202
    return org_id


@pytest.mark.parametrize("where", WAYS)
async def test_events_are_counted(commands: Commands, plane: Plane, where: str) -> None:
    await keep(plane, *range(6))
    await keep(plane, 7, name="beta", verdict="block")
    found: Any = await commands.facts(where, "audit", "facets", "--field", "verdict", "--field", "org")
    assert [each["field"] for each in found["facets"]] == ["verdict", "org"]
    assert found["facets"][0]["values"][0] == {"value": "allow", "name": None, "count": 6}
    assert [each["name"] for each in found["facets"][1]["values"]] == ["acme", "beta"]
    status, out, err = await commands.run(where, "audit", "facets", "-verdict:allow", "--field", "org")
    assert (status, err) == (0, "")
    assert "beta" in out
    assert "acme" not in out
    times: Any = await commands.facts(where, "audit", "histogram", "--org", "acme", "--from", "2026-11-21")
    assert sum(bucket["count"] for bucket in times["buckets"]) == 6
    status, out, _ = await commands.run(where, "audit", "histogram", "verdict:block")
    assert "█" * 40 in out


@pytest.mark.parametrize("where", WAYS)
async def test_one_event_is_shown(commands: Commands, plane: Plane, where: str) -> None:
    await keep(plane, 3, reason="rule", path="/a\x1b[31m")
    found: Any = await commands.facts(where, "audit", "event", "event-3", "--org", "acme")
    assert (found["event"]["seq"], found["orgName"]) == (3, "acme")
    assert found["reason"] == "a request rule decided the verdict"
    status, out, _ = await commands.run(where, "audit", "event", "event-3", "--org", "acme")
    assert status == 0
    assert "a request rule decided the verdict" in out
    assert "\x1b" not in out
    status, out, err = await commands.run(where, "audit", "event", "event-4", "--org", "acme")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    own = "01a21710-e265-7000-8000-2a0000000002"
    await keep(plane, 5, name="beta", requestId=own)
    found = await commands.facts(where, "audit", "event", f'"request-id": "{own}"')
    assert found["event"]["seq"] == 5
    found = await commands.facts(where, "audit", "search", own)
    assert [each["seq"] for each in found["events"]] == [5]
    status, out, err = await commands.run(where, "audit", "event", "nothing-has-it")
    assert (status, out) == (1, "")
    assert "as event id, request id, upstream request id, client request id" in err


@pytest.mark.parametrize("where", WAYS)
async def test_events_are_taken_away_whole(
    commands: Commands,
    plane: Plane,
    tmp_path: Path,
    where: str,
) -> None:
    await keep(plane, *range(5), path="=1+1")
    status, out, err = await commands.run(where, "audit", "export", "-seq:0")
    assert (status, err) == (0, "")
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [4, 3, 2, 1]
    file = tmp_path / "events.csv"
    status, out, err = await commands.run(where, "audit", "export", "--format", "csv", "--output", str(file))
    assert (status, out, err) == (0, "", "")
    text = await asyncio.to_thread(file.read_text, "utf-8")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["seq"] for row in rows] == ["4", "3", "2", "1", "0"]
    assert {row["path"] for row in rows} == {"'=1+1"}
    # A failed export leaves no file that looks like a complete one.
    nothing = tmp_path / "nothing.csv"
    status, _, _ = await commands.run(where, "audit", "export", "--org", "nobody", "--output", str(nothing))
    assert status == 1
    assert [name for name in os.listdir(tmp_path) if ".csv" in name] == ["events.csv"]
    nowhere = tmp_path / "absent" / "events.csv"
    status, _, err = await commands.run(where, "audit", "export", "--output", str(nowhere))
    assert (status, err) == (1, f"{nowhere}: No such file or directory\n")


async def test_what_is_no_file_is_written_to_and_a_link_goes_on_leading_where_it_led(
    commands: Commands,
    plane: Plane,
    tmp_path: Path,
) -> None:
    await keep(plane, *range(5))
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "events"
    os.mkfifo(pipe)
    link.symlink_to(file)
    reading = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    for output in (pipe, link):
        status, _, err = await commands.run("store", "audit", "export", "--output", str(output))
        assert (status, err) == (0, "")
    assert await reading == await asyncio.to_thread(file.read_bytes) != b""
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    status, _, err = await commands.run("store", "audit", "export", "--output", "/dev/full")
    assert (status, err) == (1, "/dev/full: No space left on device\n")
    assert await asyncio.to_thread(Path("/dev/full").is_char_device)


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["facets", "verdikt:x"], "FILTER: column 1: unknown field 'verdikt': did you mean verdict?"),
        (["histogram", "--from", "yesterday"], "--from: 'yesterday' is not a time"),
        (["facets", "--field", "colour"], "--field: 'colour' is not one of "),
        (["export", '"open'], "FILTER: column 1: the closing quote is missing"),
        (["tail", "status:many"], "FILTER: column 8: 'many' is not a number"),
    ],
)
async def test_a_mistake_is_one_line_and_status_2(
    commands: Commands,
    where: str,
    arguments: list[str],
    says: str,
) -> None:
    status, out, err = await commands.run(where, "audit", *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(says)


@pytest.mark.process
@pytest.mark.parametrize("where", WAYS)
async def test_events_are_printed_as_they_are_stored_until_it_is_interrupted(
    commands: Commands,
    plane: Plane,
    where: str,
) -> None:
    org_id = await plane.org("acme")
    proxy = await plane.proxy("edge", "acme")
    there = {
        "store": ["--config", str(commands.config)],
        "server": ["--url", commands.url, "--token-file", str(commands.token_file)],
    }[where]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controlplane", *there, "audit", "tail", "-path:/quiet", "--json",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        # Restore the default handler: a shell that runs tests in the background ignores the interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = asyncio.create_task(process.stdout.readline())
        number = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not line.done():  # wait until it listens
                number += 1
                made = [event(org_id, number), event(org_id, -number, seq=None, path="/quiet")]
                assert (await proxy.audit({"batchId": f"b{number}", "events": made})).status == 202
                plane.clock.advance(seconds=2)
                await asyncio.wait([line], timeout=0.2)
            first = json.loads(await line)["seq"]
            following = [json.loads(await process.stdout.readline())["seq"] for _ in range(number - first)]
        assert following == list(range(first + 1, number + 1))
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await process.wait(), await process.stdout.read()) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
