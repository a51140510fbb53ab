"""Claims that name an operator, from an ID token or userinfo, and reasons to ignore other claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controlplane.admin.sign_in_failure import said

_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
# Members that describe the token, not the person.
_OF_THE_TOKEN: Final = frozenset(
    {"iss", "aud", "exp", "iat", "nbf", "nonce", "at_hash", "c_hash", "s_hash", "azp", "auth_time", "acr",
     "amr", "jti", "sid", "sub", "ver", "tid", "oid", "rh", "uti", "aio"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claims:
    """Verified claims of a person, and their source (`ID token` or `userinfo`)."""

    source: str
    members: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Return the operator names that the claims contain.

        The claim `email` counts only if the provider verified it. Without verification, anybody could claim
        the mail address of another person. Amazon Cognito sends the claim `email_verified` as the text
        `true`. AD FS and the v1 endpoint of Microsoft Entra send the claim `upn` instead of
        `preferred_username`.
        """
        return list(dict.fromkeys(str(self.members[claim]) for claim in self.counted))

    @property
    def counted(self) -> list[str]:
        """Return the names of the claims by which an operator is looked up."""
        claims = [*(["email"] if self._is_verified else []), "preferred_username", "upn"]
        return [claim for claim in claims if _is_text(self.members.get(claim))]

    @property
    def _is_verified(self) -> bool:
        verified = self.members.get("email_verified")
        return verified is True or verified == "true"

    @property
    def passed_over(self) -> list[str]:
        """Return the claims that look like an operator name but are ignored, each with the reason."""
        found = []
        email = self.members.get("email")
        if _is_text(email) and email not in self.names:
            verified = "missing" if "email_verified" not in self.members else "not true"
            found.append(f"email {said(email)} (email_verified is {verified})")
        if _is_text(unique := self.members.get("unique_name")):
            found.append(f"unique_name {said(unique)} (is not unique: have the provider send upn)")
        found += [
            f"{name} (is not text)"
            for name in ("email", "preferred_username", "upn")
            if name in self.members and not _is_text(self.members[name])
        ]
        return found

    @property
    def about_the_person(self) -> list[str]:
        """Return the names of the claims about the person, without the claims about the token."""
        return sorted(said(name) for name in self.members if name not in _OF_THE_TOKEN)


def what_came(found: Sequence[Claims]) -> dict[str, str]:
    """Describe a person's sign-in claims: received claims, operator names in the claims, ignored claims."""
    came = "; ".join(f"{each.source}: {', '.join(each.about_the_person) or 'none'}" for each in found)
    names = dict.fromkeys(said(name) for each in found for name in each.names)
    passed_over = dict.fromkeys(text for each in found for text in each.passed_over)
    counted = dict.fromkeys(claim for each in found for claim in each.counted)
    report = {
        "claims": came,
        "lookedFor": ", ".join(names) or "nothing",
        "counted": ", ".join(counted) or "none",
    }
    return report | ({"notCounted": "; ".join(passed_over)} if passed_over else {})


def _is_text(claim: object) -> bool:
    """Return True if the value of a claim can be a name.

    Text in JSON may contain half a surrogate pair, which the store can't save.
    """
    return isinstance(claim, str) and claim != "" and not _HALF_CHARACTER.search(claim)
