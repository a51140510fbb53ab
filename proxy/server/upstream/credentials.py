"""Upstream tokens in a worker: one credential for each identity, and which application goes up with which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from proxy.startup.identities import DEFAULT_IDENTITY, Assignments

REFUSED_AGAIN_SECONDS: Final = 10.0  # the agent asks the identity provider no more often for this reason


class CredentialWaiter(Protocol):
    def credential_renewed(self) -> None: ...


class UpstreamCredential:
    """The upstream token of one identity, as the agent handed it over."""

    __slots__ = (
        "_ask_for_another",
        "_asked_at",
        "_asked_for",
        "authorization",
        "detail",
        "expires_at",
        "generation",
        "report",
        "retry_after",
        "waiting",
    )

    def __init__(self, ask_for_another: Callable[[int], None]) -> None:
        self._ask_for_another = ask_for_another
        self.authorization = b""
        self.expires_at = 0.0
        self.generation = 0
        self.retry_after = 5
        self.detail = "no upstream token was acquired yet"
        self._asked_at = -REFUSED_AGAIN_SECONDS
        self._asked_for = -1  # the generation that another was last asked for
        self.report = False  # whether the agent has tried, and said what came of it
        self.waiting: set[CredentialWaiter] = set()

    def valid(self, now: float) -> bool:
        """A token past its end is never used, whatever the reason that there is no newer one. `now` and
        `expires_at` are monotonic, so that a clock that jumps neither kills a token nor keeps it alive."""
        return now < self.expires_at

    def renew(self, token: str, expires_at: float, generation: int) -> None:
        self.authorization = b"Bearer " + token.encode("ascii")
        self.expires_at = expires_at
        self.generation = generation
        self.report = True
        waiting, self.waiting = self.waiting, set()
        for waiter in waiting:
            waiter.credential_renewed()

    def unavailable(self, detail: str, retry_after: int) -> None:
        """There is no token for now, for a reason that is the operator's to know. One that is active is
        good until its own end."""
        self.detail = detail
        self.retry_after = retry_after
        self.report = True

    def just_replaced(self, generation: int, now: float) -> bool:
        """Whether the token of `generation` is itself the response to a refusal a moment ago: that the
        upstream refuses it too says that the token is not what is wrong, so nobody waits for yet another."""
        recent = now - self._asked_at < REFUSED_AGAIN_SECONDS
        return recent and generation == self.generation != self._asked_for

    def rejected(self, generation: int, now: float) -> None:
        """The upstream refused the token of `generation`; who waits is told when there is a newer one."""
        recent = now - self._asked_at < REFUSED_AGAIN_SECONDS
        if generation == self.generation and not recent:
            self._asked_at = now
            self._asked_for = generation
            self._ask_for_another(generation)


# Never valid: whoever has it, such as an application that is gone, gets nothing from the upstream.
NO_CREDENTIAL: Final = UpstreamCredential(lambda generation: None)


class UpstreamCredentials:
    """The credentials of one worker by the name of their identity."""

    def __init__(self, assignments: Assignments, ask_for_another: Callable[[str, int], None]) -> None:
        self._assignments = assignments
        self._by_name = {
            name: UpstreamCredential(partial(ask_for_another, name)) for name in assignments.names
        }

    def named(self, name: str) -> UpstreamCredential | None:
        return self._by_name.get(name)

    def of(self, org_id: str, client_id: str) -> UpstreamCredential:
        """The one that an application goes up with, and no other, whatever becomes of it."""
        return self._by_name[self._assignments.identity_of(org_id, client_id)]

    def able(self, used: Iterable[UpstreamCredential], now: float) -> bool:
        """Whether the upstream can be asked for some application at least, of those that use `used`."""
        return any(each.valid(now) for each in self._relevant(used))

    def settled(self, used: Iterable[UpstreamCredential], now: float) -> bool:
        """Whether, beyond that, each of them has its token or the agent's word that there is none."""
        return self.able(used, now) and all(each.valid(now) or each.report for each in self._relevant(used))

    def why_unsettled(self, now: float) -> str:
        if len(self._by_name) == 1:
            return self._by_name[DEFAULT_IDENTITY].detail
        lacking = ((name, each.detail) for name, each in self._by_name.items() if not each.valid(now))
        return "; ".join(f"identity {name}: {detail}" for name, detail in lacking)

    def _relevant(self, used: Iterable[UpstreamCredential]) -> tuple[UpstreamCredential, ...]:
        """While no application uses any, the default's is the one that a first application would use."""
        return tuple(used) or (self._by_name[DEFAULT_IDENTITY],)
