"""The control plane for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.controlplane.held_runs import Latch
from tests.controlplane.operator_commands import Commands, commands_at
from tests.controlplane.plane import CHEAP, FakeClock, Plane, ProxyClient, started


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash in this process costs next to nothing: the real ones took a sixth of these tests' time."""
    monkeypatch.setattr("controlplane.secrets._hasher", lambda: CHEAP)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def plane(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Plane]:
    async with started(tmp_path, clock) as plane:
        yield plane


@pytest.fixture
async def proxy(plane: Plane) -> ProxyClient:
    """A proxy of the organisation `acme`."""
    await plane.org("acme")
    return await plane.proxy("edge-1", "acme")


@pytest.fixture
async def commands(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A server whose first operator was made beside it."""
    monkeypatch.setattr("controlplane.cli.keep_to_itself", lambda: None)
    return await commands_at(plane, tmp_path)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Latch]:
    """A latch that delays runs in other processes until the test releases it, or ends."""
    latch = Latch(tmp_path)
    try:
        yield latch
    finally:
        latch.release()
