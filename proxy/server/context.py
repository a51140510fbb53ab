"""Shared state of all exchanges of one worker: rules, keys, connections, the spool and limits."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from proxy.audit.segment import MAX_FRAME
from proxy.audit.spool import SpoolWriter
from proxy.ipc.counters import FOREIGN_LINKS, Counters
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.filters import CompiledFilter
from proxy.policy.transforms import Transforms
from proxy.policy.typed_filter import filter_of
from proxy.rules.stops import Stops
from proxy.server.assertions.assertion_judge import AssertionJudge
from proxy.server.callers.client_certificates import ClientCertificates
from proxy.server.callers.known_secrets import KnownSecrets
from proxy.server.callers.rulebook import Rulebook
from proxy.server.callers.token_keeper import TokenKeeper
from proxy.server.client_limits import Connections, Failures
from proxy.server.content.content_coding import acceptable
from proxy.server.content.links import LinkRewriter
from proxy.server.errors import NO_ROOM
from proxy.server.loop.buffer_budget import BufferBudget
from proxy.server.loop.deadlines import Deadlines
from proxy.server.loop.iteration import BatchedConnection, LoopIteration
from proxy.server.upstream.pool import UpstreamPool

log = logging.getLogger(__name__)

MAX_FOREIGN_HOSTS: Final = 20  # other hosts of next links that one process logs
_MOST_REMEMBERED: Final = 1024  # entries of each memo below
_LONGEST_KEY: Final = 512  # bytes of a memo key that the application chose
MAX_VERIFYING: Final = (
    64  # secrets to compare at once; each takes tens of milliseconds, so more would only wait
)

_MOST_FORWARDERS: Final = 16
# Azure Application Gateway writes addresses with a port. Without this pattern, such an address would be
# unreadable, and rules would see no client address.
_WITH_PORT: Final = re.compile(r"([0-9.]+):[0-9]{1,5}|\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on sizes in bytes and on durations in seconds."""

    max_header_bytes: int
    max_header_count: int
    max_buffered_body: int
    max_filter_bytes: int
    head_timeout: float
    idle_timeout: float
    body_grace: float
    min_body_rate: int
    upstream_wait: float
    token_lifetime: int
    max_staleness: float
    max_connections: int
    max_connections_per_address: int
    max_held_bytes: int
    max_failures_per_address: int
    max_failures_per_client: int


def plain_address(address: str) -> str:
    """Return an IPv4 address in its plain form, even if a dual-stack socket reports it inside IPv6.

    Settings and rules name IPv4 networks in the plain form, not as IPv4-mapped IPv6 addresses (RFC 4291
    §2.5.5.2).
    """
    mapped = ipaddress.IPv6Address(address).ipv4_mapped if address.startswith("::ffff:") else None
    return address if mapped is None else str(mapped)


LEAST_RESERVED: Final = 64 * MAX_FRAME  # bytes for records that the spool always keeps free


class OpenConnection(BatchedConnection):
    """Interface by which the worker's context uses a client connection."""

    __slots__ = ()

    @property
    def busy(self) -> bool:
        """True if the client connection serves a request."""
        raise NotImplementedError

    @property
    def record_bytes(self) -> int:
        """Approximate number of bytes that the records of the current request will take in the spool."""
        raise NotImplementedError

    def stop(self, stops: Stops) -> None:
        """End the current request if its application is stopped."""
        raise NotImplementedError

    def drain(self) -> None:
        """Close the connection now if it is idle, and after the response otherwise."""
        raise NotImplementedError

    def cut(self) -> None:
        """Abort the connection and its request."""
        raise NotImplementedError

    def record_unfinished(self) -> None:
        """Write the audit records of the current request, because the worker process ends now."""
        raise NotImplementedError


class Context:
    """Shared state of all requests of one worker.

    The worker replaces `rulebook` as a whole when rules change.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        deadlines: Deadlines,
        counters: Counters,
        spool: SpoolWriter,
        tokens: TokenKeeper,
        pool: UpstreamPool,
        iteration: LoopIteration,
        upstream_base: str,
        statuses_as_502: frozenset[int],
        rewrite_links: bool,
        interpretations: int,
        public_base: str,
        contact: str,
        trusted_proxies: tuple[Network, ...],
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        other_bases: tuple[str, ...] = (),
        assertions: AssertionJudge,
        client_certificates: ClientCertificates,
    ) -> None:
        self.limits = limits
        self.deadlines = deadlines
        self.counters = counters
        self.spool = spool
        self.tokens = tokens
        self.pool = pool
        self.iteration = iteration
        self.upstream_base = upstream_base.encode("ascii")
        self.upstream_bases = (upstream_base, *other_bases)  # every known address of the upstream
        self._other_bases = tuple([each.encode("ascii") for each in other_bases])
        self._foreign_hosts: set[str] = set()
        self.upstream_host = self.upstream_base.partition(b"://")[2]
        self.statuses_as_502 = statuses_as_502
        self.rewrite_links = rewrite_links
        # bits of the interpretations that the upstream may apply to a path
        self.interpretations = interpretations
        self.contact = contact  # contact for questions about a blocked request, or empty
        self.public_base = public_base.encode("ascii")
        self.trusted_proxies = trusted_proxies
        self.executor = executor
        self.loop = loop
        self.verifying = 0  # number of secrets that the executor compares now
        self.max_verifying = MAX_VERIFYING
        self.known_secrets = KnownSecrets()
        self.assertions = assertions
        self.client_certificates = client_certificates
        self.rulebook = Rulebook()
        self.synced_at = 0.0  # monotonic time at which the control plane last confirmed the rules
        self.draining = False
        self.requests = 0  # number of requests of this worker, which is a part of every request id
        self.connections: set[OpenConnection] = set()
        self.handshakes = 0  # number of handshakes in progress, which are not connections yet
        self.addresses = Connections()
        self.buffer_budget = BufferBudget(limits.max_held_bytes)
        self.failures_of_address = Failures(limits.max_failures_per_address)
        self.failures_of_client = Failures(limits.max_failures_per_client)
        self._rewriters: BoundedMemo[bytes, LinkRewriter] = BoundedMemo(
            _MOST_REMEMBERED, _LONGEST_KEY, WhenFull.KEEP
        )
        self._filters: BoundedMemo[Transforms, CompiledFilter] = BoundedMemo(
            _MOST_REMEMBERED, None, WhenFull.CLEAR
        )
        self._codings: BoundedMemo[bytes, bytes] = BoundedMemo(_MOST_REMEMBERED, _LONGEST_KEY, WhenFull.KEEP)

    def use(self, rulebook: Rulebook) -> None:
        """Evaluate requests against `rulebook` from now on.

        Current requests keep the rules that they began with, unless their application is stopped.
        """
        self.rulebook = rulebook
        self.tokens.use(rulebook)
        if rulebook.stops:
            for connection in list(self.connections):
                connection.stop(rulebook.stops)

    def in_flight(self) -> int:
        """Return the number of current exchanges, for the metrics."""
        return sum(connection.busy for connection in self.connections)

    def reserve_records(self) -> None:
        """Reserve spool space for the records of current exchanges.

        The reserved space is twice the size of the current records, because new requests may need as much
        before the next reservation.
        """
        unrecorded = sum([connection.record_bytes for connection in self.connections])
        self.spool.reserve(max(LEAST_RESERVED, 2 * unrecorded))

    def can_record(self, size: int) -> bool:
        """Reserve `size` bytes of the spool, unless the records of current exchanges need these bytes.

        Return True if the bytes were reserved in the spool.
        """
        spool = self.spool
        if spool.promise(size):
            return True
        if not spool.has_promised:  # nothing to free by a recount, which is expensive for each refusal
            return False
        self.reserve_records()  # this frees space promised to requests that have ended
        return spool.promise(size)

    def why_not_ready(self, record_bytes: int = 0) -> str | None:
        """Return the reason why no request can be served now. Return None if requests can be served.

        If the worker can serve requests, it has reserved spool space for the audit records.
        """
        if not self.rulebook.loaded:
            return "The proxy has no rules yet: its control plane has given it none since it was set up."
        limit = self.limits.max_staleness
        if limit and self.deadlines.now - self.synced_at > limit:
            return "The proxy's rules are too old: its control plane has not confirmed them for too long."
        if not self.tokens.ready:
            return "The proxy has no key for its tokens: it has read none from its key vault since its start."
        if not self.can_record(record_bytes):
            return NO_ROOM
        return None

    def own_base(self, scheme: bytes, host: bytes) -> bytes:
        """Return the base address by which the application reached the proxy."""
        return self.public_base or scheme + b"://" + host

    def rewriter(self, scheme: bytes, host: bytes) -> LinkRewriter:
        """Return the rewriter that turns links to the upstream into links to the proxy."""
        base = self.own_base(scheme, host)
        rewriter = self._rewriters.entries.get(base)
        if rewriter is None:
            rewriter = LinkRewriter(self.upstream_base, base, self._other_bases, self.foreign_link)
            self._rewriters.keep(base, rewriter)
        return rewriter

    def foreign_link(self, host: str) -> None:
        """Count a link with which an application would bypass the proxy.

        Log the host of the link when the host appears for the first time.
        """
        self.counters.values[FOREIGN_LINKS] += 1
        if host not in self._foreign_hosts and len(self._foreign_hosts) < MAX_FOREIGN_HOSTS:
            self._foreign_hosts.add(host)
            log.warning(
                "a next link leads to %s and bypasses this proxy: add this address to Upstream.OtherBaseUrls "
                "if it belongs to the upstream",
                host,
            )

    def filter_for(self, transforms: Transforms) -> CompiledFilter:
        compiled = self._filters.entries.get(transforms)
        if compiled is None:
            compiled = filter_of(transforms)
            self._filters.keep(transforms, compiled)
        return compiled

    def readable_codings(self, accept_encoding: bytes) -> bytes:
        """Return an Accept-Encoding value without the content codings that the proxy cannot decode."""
        value = self._codings.entries.get(accept_encoding)
        if value is None:
            value = acceptable(accept_encoding.decode("latin-1")).encode("latin-1")
            self._codings.keep(accept_encoding, value)
        return value

    def client_ip(self, peer: str, forwarded_for: bytes | None) -> str:
        """Return the client's address: the peer, or the address that trusted load balancers report.

        The proxy reads the list of reported addresses from right to left. Return an empty text if a load
        balancer reports no address (RFC 7239 §6.2). No rule may evaluate the load balancer's address as the
        client address.
        """
        if not self.trusted_proxies or forwarded_for is None or not self.is_trusted(peer):
            return peer
        address = peer
        # The client itself wrote the rest of a longer list, and each entry costs time.
        for entry in reversed(forwarded_for.decode("latin-1").rsplit(",", _MOST_FORWARDERS)):
            entry = entry.strip(" \t")
            with_port = _WITH_PORT.fullmatch(entry)
            if with_port is not None:
                entry = with_port[1] or with_port[2]
            try:
                # Without the zone, which has no meaning on this host and can be any text.
                parsed = ipaddress.ip_address(entry.partition("%")[0])
            except ValueError:
                return ""
            address = plain_address(str(parsed))
            if not self.is_trusted(address):
                return address
        return address

    def is_trusted(self, address: str) -> bool:
        """Return True if the address belongs to a trusted load balancer.

        Connections of a load balancer belong to many clients.
        """
        if not self.trusted_proxies:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.trusted_proxies)
