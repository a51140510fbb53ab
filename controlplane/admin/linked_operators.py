"""Local operators that are linked to a person at an identity provider.

Only the person that an operator is linked to can sign in as that operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.admin.claims import Claims
from controlplane.admin.provided_operators import Identified
from controlplane.admin.provided_roles import label_of
from controlplane.admin.sign_in_failure import Cause, SignInFailed, check_enabled, said
from controlplane.operations.context import OperationContext
from controlplane.search.query import fold
from controlplane.store.interface import Operator


class LinkedOperators:
    """Find operators by their link to a person at the identity provider.

    A person's name from the provider proves nothing, because people can choose or take over names.
    """

    def __init__(self, context: OperationContext) -> None:
        self._store = context.store
        self._issuer = context.settings.console.oidc_issuer

    async def of_subject(self, subject: str, found: Sequence[Claims]) -> Identified | None:
        """Return the operator that is linked to the person `subject`, or None if no operator is linked."""
        operator = await self._store.operator_linked_to(self._issuer, subject)
        if operator is None:
            return None
        details = self._who(subject, found)
        check_enabled(operator, details)
        return Identified(operator, {"singleSignOn": "linked", **details}, ())

    async def first_sign_in(
        self, named: Operator, subject: str, found: Sequence[Claims]
    ) -> Identified | None:
        """Link a person to the operator with the person's name, at the person's first sign-in.

        Return None if the operator is already linked to a person or has a password.
        """
        details = self._by_name(named, subject, found)
        check_enabled(named, details)
        if not await self._store.link_first_sign_in(named.operator_id, self._issuer, subject):
            return None
        return Identified(named, {"singleSignOn": "newly linked", **details}, ())

    def unlinked(self, named: Operator, subject: str, found: Sequence[Claims]) -> SignInFailed:
        """Return the sign-in error for a person with an operator's name but no link to that operator."""
        details = self._by_name(named, subject, found)
        report = "; ".join(f"{name} {value}" for name, value in details.items())
        text = f"the operator {named.name} is not linked to this person ({report}); `operator link` links it"
        return SignInFailed(Cause.UNLINKED, text, details, named)

    def _who(self, subject: str, found: Sequence[Claims]) -> dict[str, str]:
        return {
            "displayName": label_of(found, subject),
            "issuer": said(self._issuer),
            "subject": said(subject),
        }

    def _by_name(self, named: Operator, subject: str, found: Sequence[Claims]) -> dict[str, str]:
        claims = dict.fromkeys(
            claim
            for each in found
            for claim in each.counted
            if fold(str(each.members[claim])) == fold(named.name)
        )
        return {"claim": ", ".join(claims), **self._who(subject, found)}
