"""Comparison of this machine's clock with the clocks of the hosts that the proxy connects to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.doctor.hosts import Visit
from proxy.wire.finding import Finding
from proxy.wire.signing import MAX_SKEW_SECONDS

_NOTICEABLE_SECONDS: Final = 10.0
_FIX: Final = "set this machine's clock: `timedatectl set-ntp true`, or `chronyc makestep`"


def clock(control_plane: Visit, others: Sequence[Visit]) -> Finding:
    report = [each for each in (control_plane, *others) if each.skew is not None]
    if not report:
        return Finding("clock", "warn", "no host sent its time", "compare `date -u` with a clock you trust")
    off = [each for each in report if abs(each.skew or 0) > _NOTICEABLE_SECONDS]
    if not off:
        names = " and ".join(each.host.name for each in report)
        return Finding("clock", "ok", f"agrees with {names} within {_NOTICEABLE_SECONDS:g} s")
    what = "; ".join(f"{_apart(each.skew or 0)} {each.host.name}" for each in off)
    agreeing = [each.host.name for each in report if each not in off]
    if agreeing:  # a clock is wrong, but perhaps not this one
        names = " and ".join(each.host.name for each in off)
        fix = f"this machine agrees with {' and '.join(agreeing)}: set the clock of {names}"
    else:
        fix = _FIX
    refused = abs(control_plane.skew or 0) > MAX_SKEW_SECONDS
    if refused:
        what += f"; the control plane refuses requests beyond {MAX_SKEW_SECONDS} s"
    return Finding("clock", "fail" if refused else "warn", what, fix)


def _apart(skew: float) -> str:
    return f"{abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'}"
