"""Pure functions for emergency stops that apply to everything, an organisation or an application."""

from __future__ import annotations

from typing import Final

import msgspec

_MOST_NAMED: Final = 5


class Stops(msgspec.Struct, frozen=True):
    """The emergency stops as a set, which counts as True if anything is stopped.

    No rule, secret or token lets a stopped request pass.
    """

    everything: bool = False
    orgs: frozenset[str] = frozenset()
    apps: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.everything or bool(self.orgs) or bool(self.apps)

    def concern(self, org_id: str, app_id: str | None) -> bool:
        return self.everything or org_id in self.orgs or app_id in self.apps

    def described(self) -> str:
        if self.everything:
            return "everything"
        names = [f"organisation {each}" for each in sorted(self.orgs)]
        names += [f"application {each}" for each in sorted(self.apps)]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return ", ".join(names[:_MOST_NAMED]) + more

    def with_others(self, others: Stops) -> Stops:
        if not others:
            return self
        return Stops(self.everything or others.everything, self.orgs | others.orgs, self.apps | others.apps)


NOTHING_STOPPED = Stops()
EVERYTHING_STOPPED = Stops(everything=True)
