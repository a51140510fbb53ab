"""Pure types for the actor of an operation and the organisations in which the actor has permission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controlplane.search.query import fold
from controlplane.store.interface import EVERY_ORG as EVERY_ORG
from controlplane.store.interface import Role as Role

# Each role has every permission of the role before it. A viewer reads. An editor changes rules and stops
# applications that do harm. An admin hands out secrets and roles.
RANK: Final[Mapping[Role, int]] = {"viewer": 0, "editor": 1, "admin": 2}


class Forbidden(Exception):
    """Error because the actor's role does not permit the operation.

    The exception's text is one line that an operator can read.
    """


@dataclass(frozen=True, slots=True)
class Actor:
    name: str  # the name that the operator log shows
    # roles by organisation id; EVERY_ORG stands for all organisations, later ones too
    roles: Mapping[str, Role]
    address: str = "local"  # address that the request came from

    def is_named(self, name: str) -> bool:
        """Return True if `name` is the operator name of the actor.

        Names compare as in the store, where A-Z equals a-z and all other characters must be identical. If
        this function ignored more differences, it could return True for the name of another operator.
        """
        return fold(self.name) == fold(name)

    @property
    def is_local(self) -> bool:
        return self.name.startswith(_LOCAL)

    def may(self, role: Role, org_id: str | None) -> bool:
        """Return True if the actor has at least the role `role` in the organisation.

        If `org_id` is None, the actor needs the role in all organisations, so only a role in EVERY_ORG
        counts.
        """
        held = [self.roles[key] for key in (EVERY_ORG, org_id) if key is not None and key in self.roles]
        return any(RANK[each] >= RANK[role] for each in held)

    @property
    def sees(self) -> frozenset[str] | None:
        """Return the organisations that the actor may view. The result None means every organisation."""
        return None if EVERY_ORG in self.roles else frozenset(self.roles)

    def require(self, role: Role, org_id: str | None) -> None:
        """Raise Forbidden if the actor does not have the role in the organisation."""
        if not self.may(role, org_id):
            raise Forbidden(
                f"this operation needs the role {role} in every organisation"
                if org_id is None
                else f"this operation needs the role {role} in this organisation"
            )


_LOCAL: Final = "local:"  # prefix that no operator's name has


def local_actor(user: str) -> Actor:
    """Return the actor for a command that opens the store directly, without a server.

    A user whose command opens the store directly has every permission.
    """
    return Actor(f"{_LOCAL}{user}", {EVERY_ORG: "admin"})
