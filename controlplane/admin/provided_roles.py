"""Pure functions that derive roles and an operator name from the claims of an identity provider."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from controlplane.admin.claims import Claims
from controlplane.admin.sign_in_failure import Cause, SignInFailed, said
from controlplane.names import InvalidName, new_name
from controlplane.operations.actor import EVERY_ORG, RANK
from controlplane.settings import OidcRoleSettings
from controlplane.store.database import is_text
from controlplane.store.interface import Operator, ProvidedRole
from proxy.config.placeholder import is_entra

PREFIX: Final = "sso:"  # because no local operator's name has a colon
_LABELS: Final = (
    "preferred_username",
    "upn",
    "email",
    "name",
)  # claims with a name to show, even an unproved one
_MOST_LABEL: Final = 100  # characters of a label
_OVERAGE: Final = (
    "{claim} has more values than the provider writes into a token (Microsoft Entra: 200 groups): "
    "use app roles (Claim = 'roles'), or let the token have only the groups assigned to the application"
)


def subject_of(issuer: str, members: Mapping[str, Any]) -> str:
    """Return the permanent identifier of a person at the identity provider.

    Microsoft Entra has a different `sub` for each app registration. If the app registration is replaced, the
    `oid` of a person in Microsoft Entra stays the same. Raise SignInFailed if the store can't save the
    identifier.
    """
    entra_id = members.get("oid")
    is_used = is_entra(issuer) and isinstance(entra_id, str) and entra_id
    subject = str(entra_id if is_used else members["sub"])
    if not is_text(subject):
        raise SignInFailed(Cause.TOKEN, f"the subject {said(subject)} has characters that no store can keep")
    return subject


def claims_looked_at(mappings: Iterable[OidcRoleSettings]) -> list[str]:
    return list(dict.fromkeys(each.claim for each in mappings))


def matching(mappings: Iterable[OidcRoleSettings], found: Sequence[Claims]) -> list[OidcRoleSettings]:
    """Return each role mapping whose value exactly equals a value of the claim that the mapping names."""
    return [each for each in mappings if each.value in values_of(each.claim, found)]


def values_of(claim: str, found: Sequence[Claims]) -> list[str]:
    """Return the text values of a claim from the first source that has the claim.

    The value of the claim is a list of texts or one text.
    """
    for each in found:
        if (value := each.members.get(claim)) is not None:
            return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    return []


def incomplete_claims(mappings: Iterable[OidcRoleSettings], found: Sequence[Claims]) -> list[str]:
    """Return the mapped claims that the provider omitted because the claims have too many values."""
    looked = claims_looked_at(mappings)
    return [claim for claim in looked if any(_left_out(claim, each.members) for each in found)]


def overage(claims: Sequence[str], details: Mapping[str, str], operator: Operator | None) -> SignInFailed:
    """Return the error for a sign-in that fails because the provider omitted claims that may give roles."""
    claim = ", ".join(claims)
    report = "; ".join(f"{name} {value}" for name, value in details.items())
    text = f"{_OVERAGE.format(claim=claim)}: {report}"
    return SignInFailed(Cause.OVERAGE, text, {"claim": claim, **details}, operator)


def _left_out(claim: str, members: Mapping[str, Any]) -> bool:
    """Return True if the token refers to the claim without its value (OpenID Connect Core section 5.6.2).

    If a person has too many groups, Microsoft Entra sends only a reference to the groups in place of the
    claim. In an implicit flow, Microsoft Entra sends the claim `hasgroups` instead of a reference to the
    groups.
    """
    elsewhere = members.get("_claim_names")
    if isinstance(elsewhere, Mapping) and claim in elsewhere:
        return True
    return claim == "groups" and members.get("hasgroups") in (True, "true") and claim not in members


def roles_of(
    matched: Iterable[OidcRoleSettings], org_ids: Mapping[str, str]
) -> tuple[list[ProvidedRole], list[str]]:
    """Return the highest mapped role in each organisation, and the mapped organisations that do not exist.

    `org_ids` maps both the ID and the name of each organisation to its ID.
    """
    best: dict[str, ProvidedRole] = {}
    unknown = []
    for mapping in matched:
        for reference in mapping.organisations:
            org_id = EVERY_ORG if reference == EVERY_ORG else org_ids.get(reference)
            if org_id is None:
                unknown.append(reference)
            elif org_id not in best or RANK[best[org_id].role] < RANK[mapping.role]:
                best[org_id] = ProvidedRole(org_id, mapping.role, mapping.name)
    return [best[org_id] for org_id in sorted(best)], unknown


def label_of(found: Sequence[Claims], subject: str) -> str:
    """Return a display name by which people recognise the person.

    No access decision depends on the display name.
    """
    return next(_labels(found), subject)[:_MOST_LABEL]


def _labels(found: Sequence[Claims]) -> Iterator[str]:
    for each in found:
        for claim in _LABELS:
            text = each.members.get(claim)
            if isinstance(text, str) and text.strip():
                yield said(text.strip())


def name_of(label: str, issuer: str, subject: str, taken: Collection[str]) -> str:
    """Return a name that no other operator has, for a new operator from the identity provider.

    The name consists of a fixed prefix and the person's display name, if no other operator has that name. If
    another operator already has the display name, digits of a hash of the issuer and the subject make the
    name unique.
    """
    digits = hashlib.sha256(f"{issuer}\n{subject}".encode("utf-8", "replace")).hexdigest()
    for name in (f"{PREFIX}{label}", f"{PREFIX}{label} ({digits[:8]})"):
        try:
            new_name(name, taken)
        except InvalidName:
            continue
        if name.casefold() not in {each.casefold() for each in taken}:
            return name
    return f"{PREFIX}{digits[:32]}"


def words_of(roles: Iterable[ProvidedRole], names: Mapping[str, str]) -> list[str]:
    """Return texts for the operator log: each role, its organisation, and the mapping that gives the role."""
    return [f"{each.role} in {names.get(each.org_id, each.org_id)} by {each.mapping}" for each in roles]
