"""One worker's store of the keys that the agent discovered for each issuer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.server.assertions.keys import Jwk

# seconds between two requests for the keys of one issuer; the agent has its own limit
ASK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Known:
    keys: tuple[Jwk, ...]
    good_until: float  # Unix seconds


class IssuerKeys:
    """Keys that the agent discovered for each issuer.

    The function `ask` requests an issuer's keys from the agent, because the issuer may have published new
    keys.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, float] = {}  # monotonic time of the last request, by issuer

    def take(self, issuer: str, keys: str, good_until: float) -> None:
        """Replace the keys of an issuer with the keys in a JWKS.

        The earlier keys of the issuer are no longer valid.
        """
        listed: Any = json.loads(keys)["keys"]
        self._known[issuer] = _Known(tuple(listed), good_until)

    def good_at(self, issuer: str, now: float) -> Sequence[Jwk] | None:
        """Return the discovered keys of the issuer.

        Return None if no keys of the issuer are recent enough at the Unix time `now`.
        """
        known = self._known.get(issuer)
        return known.keys if known is not None and now < known.good_until else None

    def seem_old(self, issuer: str, now: float) -> None:
        """Request an issuer's keys from the agent, at most once within ASK_SECONDS.

        `now` is the current time in monotonic seconds.
        """
        if now - self._asked.get(issuer, -ASK_SECONDS) >= ASK_SECONDS:
            self._asked[issuer] = now
            self._ask(issuer)
