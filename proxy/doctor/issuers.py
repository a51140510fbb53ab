"""Check of the issuers of federated credentials: this host must be able to read the issuers' keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import aiohttp

from proxy.agent.issuers import KeysNotRead, OtherIssuer, read_keys
from proxy.agent.pinned_issuers import Pinned, pinned_issuers
from proxy.doctor.hosts import tls_context
from proxy.outbound.session import open_session
from proxy.outbound.settings import egress_of
from proxy.rules.snapshot import Snapshot
from proxy.startup.settings import Settings
from proxy.wire.figures import counted
from proxy.wire.finding import Finding

_FIX = (
    "let this machine reach that address (Egress.ProxyUrl if only a proxy reaches it), name its authority in "
    "Callers.IssuerCaFile, or give the credential the keys themselves"
)

_FIX_NAME = (
    "give the credential the issuer that the document names, letter for letter (`graphward app federated add "
    "--issuer`), and remove the credential with this issuer"
)


async def issuers(settings: Settings, snapshot: Snapshot | None) -> Sequence[Finding]:
    """Return a finding for each token issuer that an enabled application in the last rules snapshot names."""
    if snapshot is None:
        return []
    pinned = pinned_issuers(snapshot.apps).values()
    if not pinned:
        return []
    tls = tls_context(settings.callers.issuer_ca_file)
    async with open_session(tls, egress_of(settings.egress)) as session:
        return await asyncio.gather(*(examined(session, issuer) for issuer in pinned))


async def examined(session: aiohttp.ClientSession, pinned: Pinned) -> Finding:
    """Return a finding that says if the keys of one issuer can be read with the given session."""
    name = f"issuer: {pinned.described}"
    try:
        keys = json.loads(await read_keys(session, pinned.issuer))["keys"]
    except OtherIssuer as error:
        return Finding(name, "fail", str(error), _FIX_NAME)
    except KeysNotRead as error:
        return Finding(name, "fail", str(error), _FIX)
    return Finding(name, "ok", counted(len(keys), "key"))
