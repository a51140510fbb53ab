"""Check single sign-on: the provider matches the settings, and this console is registered at the provider."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Final

from controlplane.admin.oidc import Provider
from controlplane.admin.sign_in_failure import Cause, SignInFailed
from controlplane.admin.single_sign_on import redirect_uri
from controlplane.clock import SystemClock
from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.settings import ConsoleSettings, Settings
from controlplane.store.interface import EVERY_ORG, StoreError
from proxy.outbound.egress import Egress
from proxy.outbound.settings import egress_of
from proxy.wire.finding import Finding

_NAME: Final = "single sign-on"
_ROLES: Final = "roles from groups"
_ADMINS_BESIDE: Final = (
    "SELECT count(*) FROM operators JOIN operator_roles USING (operator_id) WHERE enabled = 1"
    " AND issuer IS NULL AND password_hash IS NOT NULL AND org_id = ? AND role = 'admin'"
)
_NO_ADMIN: Final = Finding(
    _ROLES,
    "warn",
    (
        "no operator with a password is admin of every organisation: nobody can sign in while the provider "
        "is unreachable"
    ),
    "add one for an outage: operator add NAME --admin",
)


def single_sign_on(settings: Settings) -> list[Finding]:
    """Request the provider's metadata and keys, and test the client's secret with an invalid code."""
    console = settings.console
    if not console.oidc_issuer:
        return []
    try:
        asyncio.run(_asked(console, egress_of(settings.egress)))
    except SignInFailed as failed:
        return [Finding(_NAME, "fail", str(failed), _fix(failed))]
    back = redirect_uri(console)
    return [
        Finding(
            _NAME,
            "ok",
            f"this console is registered at {console.oidc_issuer}, which must send browsers back to {back}",
        )
    ]


def roles_from_groups(settings: Settings) -> list[Finding]:
    """Find role mappings that name unknown organisations.

    Check that an admin can sign in without single sign-on.
    """
    if not settings.console.oidc_roles:
        return []
    try:
        with store_rows(settings.store) as connection:
            known = {text for row in connection.rows("SELECT org_id, name FROM orgs") for text in row}
            (admins,) = connection.row(_ADMINS_BESIDE, (EVERY_ORG,))
    except (Unreadable, StoreError):
        return []  # The findings on the store give the reason.
    return [*_unknown(settings, known | {EVERY_ORG}), *([] if admins else [_NO_ADMIN])]


def _unknown(settings: Settings, known: Collection[str]) -> Iterator[Finding]:
    for each in settings.console.oidc_roles:
        if missing := [org for org in each.organisations if org not in known]:
            what = f"Console.OidcRoles.{each.name}: there is no organisation {', '.join(missing)}"
            yield Finding(_ROLES, "warn", what, "correct Organisations, or add the organisation")


async def _asked(console: ConsoleSettings, egress: Egress) -> None:
    provider = Provider(console, SystemClock(), egress)
    try:
        await provider.check(redirect_uri(console))
    finally:
        await provider.close()


def _fix(failed: SignInFailed) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(failed):
        return (
            "if the provider has a private certificate authority, set SSL_CERT_FILE to its file for the "
            "server and for this command"
        )
    if failed.cause is Cause.UNREACHABLE:
        return "allow this machine to connect to the provider, or correct Console.OidcIssuer"
    return (
        "correct the fault that the message names, here or at the provider; restart the server after a "
        "change here"
    )
