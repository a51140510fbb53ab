"""The console's search page."""

from __future__ import annotations

import pytest

from tests.controlplane.plane import Plane, ProxyClient, batch
from tests.controlplane.visitor import visiting


@pytest.mark.parametrize("path", ["/search", "/search/counts"])
@pytest.mark.parametrize("to", ["9999-12-31", "9990-01-01"])
async def test_a_time_may_reach_to_the_last_one_that_has_a_name(
    plane: Plane, proxy: ProxyClient, path: str, to: str
) -> None:
    (org,) = proxy.org_ids
    sent = batch("one", org, [1])
    sent["events"][0] |= {"verdict": "block"}
    assert (await proxy.audit(sent)).status == 202
    async with visiting(plane) as visitor:
        seen = await visitor.get(f"{path}?to={to}&counts=1")
    assert seen.status == 200
    assert "9999-12-31T23%3A59%3A59.999Z" in seen.text, "where the last bar leads"
