"""Upstream tokens in a worker: one credential per upstream identity, and the identity of each application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from proxy.startup.identities import DEFAULT_IDENTITY, Assignments

# seconds between two token requests for this reason; the agent has the same limit
REFUSED_AGAIN_SECONDS: Final = 10.0


class CredentialWaiter(Protocol):
    def credential_renewed(self) -> None: ...


class UpstreamCredential:
    """Upstream token of one identity, as the agent sent it."""

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
        self.detail = "the agent has not acquired an upstream token yet"
        self._asked_at = -REFUSED_AGAIN_SECONDS
        self._asked_for = -1  # generation for which a replacement was last requested
        self.report = False  # the agent has tried to get a token and reported the result
        self.waiting: set[CredentialWaiter] = set()

    def valid(self, now: float) -> bool:
        """Return True if the token has not expired. An expired token is never used.

        `now` and `expires_at` are monotonic times, so a change of the system clock does not change when the
        token expires.
        """
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
        """Record that the agent has no new token, and the reason to show to operators.

        An active upstream token remains valid until it expires.
        """
        self.detail = detail
        self.retry_after = retry_after
        self.report = True

    def just_replaced(self, generation: int, now: float) -> bool:
        """Return True if the token number `generation` recently replaced a token that the upstream refused.

        If the upstream refuses the new token too, the token is not the cause of the refusal. So a request
        whose token is refused again does not wait for a third token.
        """
        recent = now - self._asked_at < REFUSED_AGAIN_SECONDS
        return recent and generation == self.generation != self._asked_for

    def rejected(self, generation: int, now: float) -> None:
        """Request a new token, because the upstream refused the token of `generation`.

        The new upstream token resumes the waiting requests.
        """
        recent = now - self._asked_at < REFUSED_AGAIN_SECONDS
        if generation == self.generation and not recent:
            self._asked_at = now
            self._asked_for = generation
            self._ask_for_another(generation)


# Never valid, so that its holder, such as a removed application, receives nothing from the upstream.
NO_CREDENTIAL: Final = UpstreamCredential(lambda generation: None)


class UpstreamCredentials:
    """Upstream credentials of one worker, by the name of the upstream identity."""

    def __init__(self, assignments: Assignments, ask_for_another: Callable[[str, int], None]) -> None:
        self._assignments = assignments
        self._by_name = {
            name: UpstreamCredential(partial(ask_for_another, name)) for name in assignments.names
        }

    def named(self, name: str) -> UpstreamCredential | None:
        return self._by_name.get(name)

    def of(self, org_id: str, client_id: str) -> UpstreamCredential:
        """Return the only upstream credential that requests of an application may use."""
        return self._by_name[self._assignments.identity_of(org_id, client_id)]

    def able(self, used: Iterable[UpstreamCredential], now: float) -> bool:
        """Return True if at least one credential in `used` is valid."""
        return any(each.valid(now) for each in self._relevant(used))

    def settled(self, used: Iterable[UpstreamCredential], now: float) -> bool:
        """Return True if a credential in `used` is valid, and the agent has reported on all credentials.

        The agent's first report on a credential is a token, or the reason why the token is missing.
        """
        return self.able(used, now) and all(each.valid(now) or each.report for each in self._relevant(used))

    def why_unsettled(self, now: float) -> str:
        if len(self._by_name) == 1:
            return self._by_name[DEFAULT_IDENTITY].detail
        lacking = ((name, each.detail) for name, each in self._by_name.items() if not each.valid(now))
        return "; ".join(f"identity {name}: {detail}" for name, detail in lacking)

    def _relevant(self, used: Iterable[UpstreamCredential]) -> tuple[UpstreamCredential, ...]:
        """Return the upstream credentials that applications use.

        If no application uses a credential yet, return the credential of the default identity, because the
        first application will use that credential.
        """
        return tuple(used) or (self._by_name[DEFAULT_IDENTITY],)
