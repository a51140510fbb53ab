"""The control plane for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.plane import FakeClock, Plane, ProxyClient, started


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
