"""Whether the control plane takes this proxy's key and secret: one signed sync, of which nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.agent.control_plane import CallFailed, ControlPlane, Identity, Response, open_session
from proxy.agent.proof import description
from proxy.doctor.hosts import tls_context
from proxy.policy.json_text import readable
from proxy.rules.snapshot import Snapshot
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding
from proxy.wire.models import SYNC_PATH, ErrorBody

_MAX_BODY: Final = 64 * 1024 * 1024
_NAME: Final = "control plane: sync"
_FIXES: Final = {
    "unknownApiKey": "put the API key of `proxy add` into Agent.ApiKey; if the proxy was disabled: "
    "`proxy enable NAME`; if the key is lost: `proxy rotate-secret NAME`",
    "invalidSignature": "put the HMAC secret that belongs to the API key into Agent.HmacSecret; if it is "
    "lost: `proxy rotate-secret NAME`",
    "timestampOutOfRange": "set this machine's clock (NTP), or the control plane's",
}


async def signed_sync(settings: Settings, held: Snapshot | None) -> Sequence[Finding]:
    """What the proxy that runs asks too: with its ETag, so that nothing of it changes there either."""
    url = settings.rule_sync.saas_base_url + SYNC_PATH
    etag = held.etag if held is not None else None
    headers = {"Accept": "application/json", **({"If-None-Match": etag} if etag else {})}
    identity = Identity(settings.agent.api_key, settings.agent.hmac_secret.encode())
    async with open_session(tls_context(settings.agent.ca_file)) as session:
        try:
            require_signed = settings.rule_sync.require_signed_response
            calls = ControlPlane(session, identity, require_signed=require_signed)
            response = await calls.get(url, headers, max_bytes=_MAX_BODY)
        except CallFailed as failure:
            fix = "correct RuleSync.SaasBaseUrl, or let this machine reach it"
            return [Finding(_NAME, "fail", str(failure), fix)]
    if response.status not in (200, 304):
        fix = _FIXES.get(_code(response), "is RuleSync.SaasBaseUrl the control plane's address? See its log")
        return [Finding(_NAME, "fail", description(response), fix)]
    if not response.is_believed:
        fix = "reach the control plane directly, or let what is in between pass its responses unchanged"
        return [Finding(_NAME, "fail", description(response), fix)]
    return [Finding(_NAME, "ok", "it takes the API key and the HMAC secret, and signs its responses")]


def _code(response: Response) -> str:
    try:
        return msgspec.json.decode(readable(response.body), type=ErrorBody).error.code
    except ValueError:
        return ""
