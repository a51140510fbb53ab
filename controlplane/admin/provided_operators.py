"""Operators from an identity provider, added at their first sign-in, with roles from their groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.admin.claims import Claims
from controlplane.admin.provided_roles import (
    claims_looked_at,
    incomplete_claims,
    label_of,
    matching,
    name_of,
    overage,
    roles_of,
    subject_of,
    values_of,
    words_of,
)
from controlplane.admin.sign_in_failure import Cause, SignInFailed, check_enabled, said
from controlplane.names import new_id
from controlplane.operations.actor import EVERY_ORG
from controlplane.operations.context import OperationContext
from controlplane.store.interface import Operator, Provided, ProvidedRole, Store
from proxy.wire.audit_event import rfc3339

_HOUR_MS: Final = 3_600_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identified:
    """Operator whom a verified sign-in identifies, with facts about the sign-in."""

    operator: Operator
    details: Mapping[str, str]  # members of the line in the operator log
    org_ids: tuple[str, ...]  # organisations in which the operator has a role


class ProvidedOperators:
    def __init__(self, context: OperationContext) -> None:
        self._context = context
        self._mappings = context.settings.console.oidc_roles
        self._issuer = context.settings.console.oidc_issuer
        self._lifetime_ms = round(context.settings.console.oidc_roles_hours * _HOUR_MS)

    @property
    def is_configured(self) -> bool:
        return bool(self._mappings)

    def has_role(self, found: Sequence[Claims]) -> bool:
        return bool(matching(self._mappings, found))

    async def signed_in(self, found: Sequence[Claims]) -> Identified:
        """Return the operator that the claims of a person identify, with the roles that the claims give.

        Raise SignInFailed if the person's claims give no role. A person whose claims give no role loses all
        earlier roles, unless the provider left out claims. A disabled operator gets no roles.
        """
        subject = subject_of(self._issuer, found[0].members)
        orgs = {each.org_id: each.name for each in await self._context.store.orgs()}
        org_ids = {name: org_id for org_id, name in orgs.items()} | {org_id: org_id for org_id in orgs}
        roles, unknown = roles_of(matching(self._mappings, found), org_ids)
        for reference in unknown:
            _log.warning("Console.OidcRoles names an organisation that does not exist: %s", said(reference))
        left_out = incomplete_claims(self._mappings, found)
        who = {
            "displayName": label_of(found, subject),
            "issuer": said(self._issuer),
            "subject": said(subject),
        }
        if not roles and left_out:
            raise overage(left_out, who, await self._context.store.operator_of_subject(self._issuer, subject))
        if not roles:
            raise await self._refused(subject, found, unknown, who)
        until_ms = self._context.clock.wall_ms() + self._lifetime_ms
        operator = await self._kept(subject, found, roles, until_ms)
        check_enabled(operator, who)
        details = {
            "singleSignOn": "roles",
            "roles": "; ".join(words_of(roles, {**orgs, EVERY_ORG: "every organisation"})),
            "rolesUntil": rfc3339(until_ms),
            **who,
        }
        if left_out:
            details["incomplete"] = ", ".join(left_out)
        return Identified(operator, details, tuple(each.org_id for each in roles if each.org_id in orgs))

    async def _kept(
        self, subject: str, found: Sequence[Claims], roles: Sequence[ProvidedRole], until_ms: int
    ) -> Operator:
        """Return the operator of the person `subject`; at the person's first sign-in, add the operator.

        The operator gets the roles in `roles` unless the operator is disabled.
        """
        label = label_of(found, subject)

        async def work(within: Store) -> Operator:
            operator = await within.operator_of_subject(self._issuer, subject)
            if operator is None:
                operator = self._new(subject, label, [each.name for each in await within.operators()])
                await within.add_operator(operator)
            if not operator.enabled:
                return operator
            await within.set_provided(operator.operator_id, label, roles, until_ms)
            return await within.operator(operator.operator_id) or operator

        return await self._context.store.together(work)

    def _new(self, subject: str, label: str, taken: Sequence[str]) -> Operator:
        now = self._context.clock.wall_ms()
        return Operator(
            new_id(self._context.clock),
            name_of(label, self._issuer, subject, taken),
            None,
            True,
            now,
            {},
            provided=Provided(self._issuer, subject, label, now, {}),
        )

    async def _refused(
        self, subject: str, found: Sequence[Claims], unknown: Sequence[str], who: Mapping[str, str]
    ) -> SignInFailed:
        """Return the error for the sign-in of a person whose claims give no role.

        Remove all roles that the person got at earlier sign-ins.
        """
        operator = await self._context.store.operator_of_subject(self._issuer, subject)
        if operator is not None:
            now = self._context.clock.wall_ms()
            await self._context.store.set_provided(operator.operator_id, label_of(found, subject), (), now)
        looked = claims_looked_at(self._mappings)
        came = {claim: ", ".join(map(said, values_of(claim, found))) or "nothing" for claim in looked}
        details = {
            "claim": ", ".join(looked),
            "values": said("; ".join(f"{claim}: {values}" for claim, values in came.items())),
            **who,
        }
        if unknown:
            details["unknownOrganisations"] = ", ".join(map(said, unknown))
        report = "; ".join(f"{name} {value}" for name, value in details.items())
        return SignInFailed(Cause.ROLELESS, f"no claim gives a role here: {report}", details, operator)
