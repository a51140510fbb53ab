"""The key pairs of one proxy: the state of each key pair, and the time from which renewal is possible."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

# end of keys whose successors were never used: the real end is not set yet
OPEN_END_MS: Final = 253_402_300_799_000
_BETWEEN_RENEWALS_S: Final = 3600
_MOST_DOUBLED: Final = 12  # 2 to the 12th power is more seconds than an hour has


class KeyMaker(StrEnum):
    ENROLMENT = "enrolment"
    RENEWAL = "renewal"
    OPERATOR = "operator"


class Standing(Enum):
    """State of one pair of a proxy's keys, compared with the other pairs of keys of the same proxy."""

    CURRENT = "the newest pair"
    BEFORE_RENEWAL = "the pair before a renewal whose keys were never used"
    BEFORE_OPERATOR = "a pair that an operator replaced, and that is still accepted"
    ENDED = "a pair that is not accepted, or whose successor is in use"


@dataclass(frozen=True, slots=True)
class KeyPairs:
    """The key pairs that the control plane currently accepts from a proxy."""

    current: bytes  # digest of the API key
    before: bytes | None  # digest of the API key of the earlier pair
    maker: KeyMaker  # the maker of the current pair
    is_proved: bool  # True if the current pair was used
    made_ms: int | None  # None: an earlier release made the current pair
    repeats: int  # consecutive replacements of a pair that was never used
    signed_s: int | None  # time in the newest renewal, by the clock of the proxy that signed it

    def standing(self, api_key_digest: bytes) -> Standing:
        if api_key_digest == self.current:
            return Standing.CURRENT
        if api_key_digest != self.before:
            return Standing.ENDED
        if self.maker is KeyMaker.OPERATOR:
            return Standing.BEFORE_OPERATOR
        return Standing.ENDED if self.is_proved else Standing.BEFORE_RENEWAL

    def renewal_wait_s(self, standing: Standing, signed_s: int) -> int:
        """Return how many seconds too early a renewal signed at `signed_s` is, or 0 if it is allowed.

        `renewal_wait_s` compares two times that the proxy signed: of this renewal request, and of the
        previous renewal. A copy of a renewal request has the signed time of the original request. So the copy
        is always too early, no matter when and where it arrives.
        """
        if self.signed_s is None:
            return 0
        is_repeat = standing is Standing.BEFORE_RENEWAL
        wait_s = _doubled_s(self.repeats) if is_repeat else _BETWEEN_RENEWALS_S
        return max(0, self.signed_s + wait_s - signed_s)

    def enrolment_wait_s(self, now_ms: int) -> int:
        """Return how many seconds a proxy must wait before it may enrol again, or 0.

        Another enrolment replaces the keys of the earlier enrolment, which the proxy never used.
        """
        wait_ms = _doubled_s(self.repeats) * 1000
        age_ms = abs(now_ms - self.made_ms) if self.made_ms is not None else wait_ms
        return max(0, -((age_ms - wait_ms) // 1000))


def _doubled_s(repeats: int) -> int:
    return min(_BETWEEN_RENEWALS_S, 1 << min(repeats, _MOST_DOUBLED))
