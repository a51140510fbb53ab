"""Derive from the master key the key pair that signs reports and manifests, and show its public half."""

from __future__ import annotations

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Request, Response, operation
from controlplane.report.signed import PURPOSE, Signer, key_pem


class KeyAsked(Request):
    pass


class ReportKey(Response):
    """Public key that verifies the signatures of reports and export manifests."""

    key: str  # public key as 64 hexadecimal digits
    pem: str


@operation("audit.report-key", "GET", "/audit/report-key")
async def report_key(context: OperationContext, actor: Actor, request: KeyAsked) -> ReportKey:
    """Show the public key that verifies the signatures of reports and export manifests."""
    key = (await signer_of(context)).key
    return ReportKey(key=key, pem=key_pem(key))


async def signer_of(context: OperationContext) -> Signer:
    return Signer((await context.vault()).derive(PURPOSE))
