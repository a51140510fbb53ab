"""Check that the egress proxy can connect to each host that the settings contain."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from controlplane.check import targets
from controlplane.settings import Settings
from proxy.outbound.egress import EgressProxy, Way
from proxy.outbound.settings import egress_of
from proxy.outbound.tunnel import EgressFailed, dial, remedy
from proxy.wire.finding import Finding

_SECONDS: Final = 5.0


def egress(settings: Settings) -> list[Finding]:
    """Open a tunnel through the egress proxy to each host that the control plane reaches through this proxy.

    The check opens tunnels through the egress proxy, but sends no data through the tunnels.
    """
    return asyncio.run(_looked(settings))


async def _looked(settings: Settings) -> list[Finding]:
    chosen = egress_of(settings.egress)
    found = [Finding("egress", "warn", line, "correct that variable") for line in settings.egress.ignored]
    ways = [(key, url, chosen.way_to(url)) for key, url in targets(settings)]
    asked = [_tunnel(key, url, way, way.proxy) for key, url, way in ways if way.proxy is not None]
    return [*found, *await asyncio.gather(*asked)]


async def _tunnel(key: str, url: str, way: Way, proxy: EgressProxy) -> Finding:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    name = f"egress: {key}"
    try:
        async with asyncio.timeout(_SECONDS):
            connected = await dial(host, port, proxy)
    except EgressFailed as failed:
        return Finding(name, "fail", str(failed), remedy(failed.problem, proxy, host, port))
    except TimeoutError:
        what = f"egress proxy {proxy}: no connection to {host}:{port} within {_SECONDS:g} s"
        return Finding(name, "fail", what, f"allow the egress proxy to connect to {host}:{port}")
    connected.close()
    return Finding(name, "ok", f"{host}:{port} is reached {way}")
