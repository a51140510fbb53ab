"""Single sign-on: whether the provider is the one of the settings, and knows this console."""

from __future__ import annotations

import asyncio
from typing import Final

from controlplane.admin.oidc import Provider
from controlplane.admin.sign_in_failure import Cause, SignInFailed
from controlplane.admin.single_sign_on import redirect_uri
from controlplane.clock import SystemClock
from controlplane.settings import ConsoleSettings, Settings
from proxy.wire.finding import Finding

_NAME: Final = "single sign-on"


def single_sign_on(settings: Settings) -> list[Finding]:
    """Ask for discovery and keys, and show the client's secret with a code that does not exist."""
    console = settings.console
    if not console.oidc_issuer:
        return []
    try:
        asyncio.run(_asked(console))
    except SignInFailed as failed:
        return [Finding(_NAME, "fail", str(failed), _fix(failed))]
    back = redirect_uri(console)
    return [Finding(_NAME, "ok", f"{console.oidc_issuer} knows this console; it must lead back to {back}")]


async def _asked(console: ConsoleSettings) -> None:
    provider = Provider(console, SystemClock())
    try:
        await provider.check(redirect_uri(console))
    finally:
        await provider.close()


def _fix(failed: SignInFailed) -> str:
    if failed.cause is Cause.UNREACHABLE:
        return "let this machine reach the provider, or correct Console.OidcIssuer"
    return "correct what the message names, here or at the provider; restart the server after a change here"
