"""Choice of an application's upstream identity: its own, its organisation's, or the default identity."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

DEFAULT_IDENTITY: Final = "default"


class Application(Protocol):
    @property
    def org_id(self) -> str: ...

    @property
    def client_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Assignments:
    """Upstream identities in the settings: identity names by client ID and by organisation ID."""

    names: tuple[str, ...] = (DEFAULT_IDENTITY,)  # names of all identities
    by_application: Mapping[str, str] = field(default_factory=dict)
    by_organisation: Mapping[str, str] = field(default_factory=dict)

    def identity_of(self, org_id: str, client_id: str) -> str:
        name = self.by_application.get(client_id)
        return name if name is not None else self.by_organisation.get(org_id, DEFAULT_IDENTITY)

    def in_use(self, applications: Iterable[Application]) -> set[str]:
        """Return the upstream identities that any of the applications uses.

        If no applications are given, return the default upstream identity.
        """
        names = {self.identity_of(each.org_id, each.client_id) for each in applications}
        return names or {DEFAULT_IDENTITY}

    def unknown(self, organisations: Iterable[str], applications: Iterable[Application]) -> list[str]:
        """Return the organisations and applications that the settings name but that do not exist.

        With a misspelled ID, the application would get a different upstream identity than the operator
        intended.
        """
        orgs, clients = set(organisations), {each.client_id for each in applications}
        return [
            *(
                f"organisation {each} of identity {name}"
                for each, name in self.by_organisation.items()
                if each not in orgs
            ),
            *(
                f"application {each} of identity {name}"
                for each, name in self.by_application.items()
                if each not in clients
            ),
        ]
