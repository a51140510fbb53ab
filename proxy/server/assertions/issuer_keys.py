"""Keys of issuers as the agent discovered them, for one worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.server.assertions.keys import Jwk

ASK_SECONDS: Final = 5.0  # between two requests for one issuer's keys; the agent has a limit of its own


@dataclass(frozen=True, slots=True)
class _Known:
    keys: tuple[Jwk, ...]
    good_until: float  # Unix seconds


class IssuerKeys:
    """`ask` requests the keys of an issuer from the agent, because there may be new ones."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, float] = {}  # monotonic, by issuer

    def take(self, issuer: str, keys: str, good_until: float) -> None:
        """Replace the keys of an issuer by those of a JWKS. None of the earlier ones counts from now on."""
        listed: Any = json.loads(keys)["keys"]
        self._known[issuer] = _Known(tuple(listed), good_until)

    def good_at(self, issuer: str, now: float) -> Sequence[Jwk] | None:
        """Return the keys; None if there are none that are recent enough at this Unix time."""
        known = self._known.get(issuer)
        return known.keys if known is not None and now < known.good_until else None

    def seem_old(self, issuer: str, now: float) -> None:
        """Ask for the keys again, unless that was done a moment ago. `now` is monotonic."""
        if now - self._asked.get(issuer, -ASK_SECONDS) >= ASK_SECONDS:
            self._asked[issuer] = now
            self._ask(issuer)
