"""Admit new client connections within the limits of a worker and of one address."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.ipc.counters import LIMIT_ADDRESS_CONNECTIONS, LIMIT_CONNECTIONS
from proxy.server.client_limits import network_of
from proxy.server.context import Context, plain_address


@dataclass(frozen=True, slots=True)
class Admission:
    """Record of how one connection counts against the connection limits."""

    network: str  # empty if connections from this address are not counted
    refused_by: int | None  # the counter of the limit that is reached

    def end(self, context: Context) -> None:
        """Stop counting the connection, because it is closed."""
        if self.network:
            context.addresses.closed(self.network)


def admit(context: Context, address: str) -> Admission:
    """Count a new client connection against the limits.

    Call `end` of the returned admission when the connection closes.
    """
    limits = context.limits
    if len(context.connections) + context.handshakes >= limits.max_connections:
        return Admission("", LIMIT_CONNECTIONS)
    address = plain_address(address)
    if context.is_trusted(address):
        return Admission("", None)
    network = network_of(address)
    over = context.addresses.opened(network) > limits.max_connections_per_address
    return Admission(network, LIMIT_ADDRESS_CONNECTIONS if over else None)
