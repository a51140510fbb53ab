"""Pure: who asks for an operation, and in which organisations they may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controlplane.search.query import fold
from controlplane.store.interface import EVERY_ORG as EVERY_ORG
from controlplane.store.interface import Role as Role

# Each may what the one before may: a viewer reads; an editor changes rules and stops what does harm; an admin
# hands out secrets and roles.
RANK: Final[Mapping[Role, int]] = {"viewer": 0, "editor": 1, "admin": 2}


class Forbidden(Exception):
    """The role does not reach so far; the text is one line for a person."""


@dataclass(frozen=True, slots=True)
class Actor:
    name: str  # as in the operator log
    roles: Mapping[str, Role]  # by organisation id; EVERY_ORG is each of them, also those to come
    address: str = "local"  # where the request came from

    def is_named(self, name: str) -> bool:
        """Whether an operator of that name is the same one. Only A-Z and a-z are alike, as in the store: by
        any wider comparison somebody could be added whose other name counts as another's."""
        return fold(self.name) == fold(name)

    @property
    def is_local(self) -> bool:
        return self.name.startswith(_LOCAL)

    def may(self, role: Role, org_id: str | None) -> bool:
        """In that organisation; None asks for all of them, which only a role in EVERY_ORG gives."""
        held = [self.roles[key] for key in (EVERY_ORG, org_id) if key is not None and key in self.roles]
        return any(RANK[each] >= RANK[role] for each in held)

    @property
    def sees(self) -> frozenset[str] | None:
        """The organisations that the actor may look at; None: every one."""
        return None if EVERY_ORG in self.roles else frozenset(self.roles)

    def require(self, role: Role, org_id: str | None) -> None:
        """Raises Forbidden."""
        if not self.may(role, org_id):
            raise Forbidden(
                f"this needs the role {role} in "
                + ("every organisation" if org_id is None else "this organisation")
            )


_LOCAL: Final = "local:"  # begins no operator's name


def local_actor(user: str) -> Actor:
    """Who runs commands beside the store's file, and so may do everything."""
    return Actor(f"{_LOCAL}{user}", {EVERY_ORG: "admin"})
