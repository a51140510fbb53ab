"""Who stands between, or holds a stolen key: nothing that crosses can be bent, and nobody is shut out."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from proxy.agent.control_plane import ControlPlane, Identity, open_session
from proxy.agent.sync import Sync
from tests.controlplane.plane import SYNC, Plane, ProxyClient


class Between:
    """Reads and changes what crosses, as who ends the TLS between proxy and control plane can."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self.if_none_match: str | None = None  # in place of what the proxy sent
        self.drops: set[str] = set()

    async def relay(self, request: web.Request) -> web.Response:
        headers = request.headers.copy()
        if self.if_none_match is not None:
            headers["If-None-Match"] = self.if_none_match
        async with self._plane.session.get(self._plane.base_url + SYNC, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name not in self.drops}
            return web.Response(status=answer.status, headers=kept, body=await answer.read() or None)


@pytest.mark.parametrize("drops", [set(), {"X-Unchanged-Signature"}, {"ETag", "X-Unchanged-Signature"}])
async def test_nobody_between_can_keep_a_proxy_on_withdrawn_rules(
    plane: Plane, proxy: ProxyClient, tmp_path: Path, drops: set[str]
) -> None:
    """A newer version's ETag in the proxy's request brings a signed 304, for rules that it hasn't."""
    await plane.ruleset("acme", "rules")
    await plane.registry.add_app("payroll", "acme", "rules")
    between = Between(plane)
    app = web.Application()
    app.router.add_get(SYNC, between.relay)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ((host, port),) = runner.addresses
    async with open_session(None) as session:
        identity = Identity(proxy.api_key, proxy.hmac_secret.encode())
        sync = Sync(
            ControlPlane(session, identity, clock=lambda: plane.clock.wall_ms() / 1000),
            url=f"http://{host}:{port}{SYNC}",
            cache_path=tmp_path / "snapshot",
            interval=30.0,
            require_signed=True,
            announce=lambda snapshot, is_new: None,
        )
        assert await sync.once()
        assert await sync.once()  # the honest 304
        await plane.registry.set_app_enabled("payroll", None, False)
        between.if_none_match, between.drops = (await proxy.sync()).headers["ETag"], drops
        assert not await sync.once()
        assert sync.check().status == "degraded"
        between.if_none_match = None
        assert await sync.once()
        assert sync.snapshot is not None
        assert [app.enabled for app in sync.snapshot.apps] == [False]
    await runner.cleanup()
