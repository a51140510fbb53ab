"""Gates by client address and by time of the week, which are conditions of a rule."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from zoneinfo import ZoneInfo

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.conditions import INDETERMINATE, NO, YES, Check
from proxy.policy.facts import RequestFacts, ResponseFacts
from proxy.policy.ruleset import DAYS, IpGate, TimeGate

_DAY: Final = 24 * 60
_WEEK: Final = 7 * _DAY
_EPOCH_MINUTE: Final = 3 * _DAY  # 1970-01-01 was a Thursday
# seconds; in all time zones, the offset changes only at quarters of an hour
_OFFSET_HOLDS_FOR: Final = 15 * 60
_MOST_ADDRESSES: Final = 4096  # client addresses whose result is remembered
_MAPPED_BITS: Final = 96

Address = tuple[int, int]  # IP version, and the address as a number


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """Parse a network or one IP address.

    A network of IPv4-mapped IPv6 addresses is converted to the IPv4 network. Raise ValueError if the text is
    neither a network nor an address.
    """
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def ip_check(gate: IpGate) -> Check:
    inside = None if gate.inside is None else _Networks(gate.inside)
    outside = None if gate.outside is None else _Networks(gate.outside)
    remembered: BoundedMemo[str, int] = BoundedMemo(_MOST_ADDRESSES, None, WhenFull.CLEAR)

    def check(request: RequestFacts, response: ResponseFacts | None) -> int:
        held = remembered.entries.get(request.client_ip)
        if held is None:
            held = _evaluated(request.client_ip, inside, outside)
            remembered.keep(request.client_ip, held)
        return held

    return check


def _evaluated(client_ip: str, inside: _Networks | None, outside: _Networks | None) -> int:
    address = _address(client_ip)
    if address is None:
        return INDETERMINATE
    if inside is not None and not inside.contain(address):
        return NO
    return NO if outside is not None and outside.contain(address) else YES


def time_check(gate: TimeGate) -> Check:
    week = _open_minutes(gate)
    zone = ZoneInfo(gate.timezone)
    known_quarter, offset = -1, 0

    def check(request: RequestFacts, response: ResponseFacts | None) -> int:
        nonlocal known_quarter, offset
        now = int(request.now)
        quarter = now // _OFFSET_HOLDS_FOR
        if quarter != known_quarter:
            offset = _offset(zone, now)
            known_quarter = quarter
        return YES if week[((now + offset) // 60 + _EPOCH_MINUTE) % _WEEK] else NO

    return check


def minutes(text: str) -> int:
    """Convert a time `HH:MM` to minutes since midnight.

    Raise ValueError if the text does not have the form `HH:MM`.
    """
    hours, colon, rest = text.partition(":")
    if not (colon and len(hours) == len(rest) == 2 and (hours + rest).isdecimal() and text.isascii()):
        raise ValueError("a time of day must have the form HH:MM")
    value = int(hours) * 60 + int(rest)
    if int(rest) > 59 or value > _DAY:
        raise ValueError("a time of day must be from 00:00 to 24:00")
    return value


class _Networks:
    def __init__(self, texts: tuple[str, ...]) -> None:
        self._by_length: dict[tuple[int, int], set[int]] = {}
        for text in texts:
            network = parse_network(text)
            shift = network.max_prefixlen - network.prefixlen
            numbers = self._by_length.setdefault((network.version, shift), set())
            numbers.add(int(network.network_address) >> shift)

    def contain(self, address: Address) -> bool:
        version, number = address
        return any(
            number >> shift in numbers
            for (of_version, shift), numbers in self._by_length.items()
            if of_version == version
        )


@lru_cache(maxsize=_MOST_ADDRESSES)
def _address(text: str) -> Address | None:
    try:
        address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.version, int(address)


def is_address(text: str) -> bool:
    """Return whether the text is an IP address that conditions on the client address can use.

    If the client address of a request cannot be parsed, each condition on the client address (gate `ip`) is
    INDETERMINATE.
    """
    return _address(text) is not None


def _open_minutes(gate: TimeGate) -> bytes:
    week = bytearray(_WEEK)
    start, end = minutes(gate.start), minutes(gate.end)
    length = end - start if end > start else end - start + _DAY
    for day in gate.days:
        first = DAYS.index(day) * _DAY + start
        for minute in range(first, first + length):
            week[minute % _WEEK] = 1
    return bytes(week)


def _offset(zone: ZoneInfo, now: int) -> int:
    offset = datetime.fromtimestamp(now, UTC).astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
