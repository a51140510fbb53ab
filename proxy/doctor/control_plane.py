"""Check whether the control plane accepts this proxy's key and secret, with one signed sync."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from proxy.agent import cures
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.proof import description
from proxy.doctor.hosts import tls_context
from proxy.outbound.call import CallFailed
from proxy.outbound.session import open_session
from proxy.outbound.settings import egress_of
from proxy.rules.snapshot import Snapshot
from proxy.startup.identity_file import keys_in
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding
from proxy.wire.models import SYNC_PATH

_MAX_BODY: Final = 64 * 1024 * 1024
_NAME: Final = "control plane: sync"


async def signed_sync(settings: Settings, held: Snapshot | None) -> Sequence[Finding]:
    """Send the sync request that the running proxy also sends to its control plane.

    The sync request repeats the ETag of the proxy's snapshot, so the control plane's state stays unchanged.
    """
    url = settings.rule_sync.saas_base_url + SYNC_PATH
    etag = held.etag if held is not None else None
    headers = {"Accept": "application/json", **({"If-None-Match": etag} if etag else {})}
    identity = await asyncio.to_thread(_identity, settings)
    if identity is None:
        return []  # the check of the identity reports it
    async with open_session(tls_context(settings.agent.ca_file), egress_of(settings.egress)) as session:
        try:
            require_signed = settings.rule_sync.require_signed_response
            calls = ControlPlane(session, lambda: identity, require_signed=require_signed)
            response = await calls.get(url, headers, max_bytes=_MAX_BODY)
        except CallFailed as failure:
            fix = cures.of_control_plane(url, failure)
            fix = fix or "correct RuleSync.SaasBaseUrl, or let this machine reach it"
            return [Finding(_NAME, "fail", str(failure), fix)]
    if response.status not in (200, 304):
        fix = (
            cures.of_refusal(response.error_code, identity.file)
            or "check that RuleSync.SaasBaseUrl is the control plane's address, and see its log"
        )
        return [Finding(_NAME, "fail", description(response), fix)]
    if not response.is_believed:
        fix = "connect to the control plane directly, or let intermediaries pass its responses unchanged"
        return [Finding(_NAME, "fail", description(response), fix)]
    return [Finding(_NAME, "ok", "it accepts the API key and the HMAC secret, and signs its responses")]


def _identity(settings: Settings) -> Identity | None:
    agent = settings.agent
    if not agent.enrols_itself:
        return Identity(agent.api_key, agent.hmac_secret.encode())
    keys = keys_in(agent.identity_path)
    if keys is None:
        return None
    return Identity(keys.api_key, keys.hmac_secret.encode(), str(agent.identity_path))
