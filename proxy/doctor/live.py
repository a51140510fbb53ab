"""Check the running proxy by the report that the proxy gives at its admin listener."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import msgspec

from proxy.config import Address
from proxy.policy.json_text import readable
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding, Status

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0, sock_connect=3.0)
_STATUSES: Final[dict[str, Status]] = {"ok": "ok", "degraded": "warn", "failed": "fail"}
_FIX: Final = "see the other findings, and the proxy's log"


async def live(settings: Settings) -> Sequence[Finding]:
    listen = settings.admin.listen
    reached = Address("127.0.0.1" if listen.host in ("0.0.0.0", "::") else listen.host, listen.port)  # noqa: S104
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as session,
            session.get(f"http://{reached}/readyz") as response,
        ):
            said: dict[str, Any] = msgspec.json.decode(readable(await response.read()))
            reasons, checks = list(said["reasons"]), dict(said["checks"])
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
        what = f"a proxy runs, and its /readyz can't be read: {type(error).__name__}"
        return [
            Finding("the proxy that runs", "fail", what, "see its log, and check whether its agent is alive")
        ]
    findings = [
        Finding(
            f"the proxy that runs: {name}",
            _STATUSES.get(check["status"], "fail"),
            check["detail"] or "ok",
            "",
        )
        for name, check in checks.items()
        if check["status"] != "ok"
    ]
    findings = [Finding(each.check, each.status, each.found, _FIX) for each in findings]
    if reasons:
        findings.insert(
            0, Finding("the proxy that runs", "fail", f"serves no requests:  {'; '.join(reasons)}", _FIX)
        )
    return findings or [Finding("the proxy that runs", "ok", "serves requests, and all of its checks are ok")]
