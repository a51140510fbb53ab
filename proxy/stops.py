"""Pure: what an operator has stopped: everything, whole organisations, single applications."""

from __future__ import annotations

import msgspec


class Stops(msgspec.Struct, frozen=True):
    """True where anything is stopped. No rule, secret or token lets a request past it."""

    everything: bool = False
    orgs: frozenset[str] = frozenset()
    apps: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.everything or bool(self.orgs) or bool(self.apps)

    def concern(self, org_id: str, app_id: str | None) -> bool:
        return self.everything or org_id in self.orgs or app_id in self.apps

    def with_others(self, others: Stops) -> Stops:
        if not others:
            return self
        return Stops(self.everything or others.everything, self.orgs | others.orgs, self.apps | others.apps)


NOTHING_STOPPED = Stops()
EVERYTHING_STOPPED = Stops(everything=True)
