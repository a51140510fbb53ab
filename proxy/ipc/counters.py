"""Counters in shared memory: one page for each worker and one page for the agent.

A process adds to its counters and the agent reads these counters, without a lock.

The supervisor creates the counter pages before its first fork. A counter page outlives the process that uses
the page, so counters only grow until the whole proxy stops. A process that replaces an ended process uses the
same counter page, and calls `reset_gauges`.
"""

import mmap
from typing import Final

ALLOWED: Final = 0
BLOCKED: Final = 1
FILTERED: Final = 2
LOGGED_ONLY: Final = 3
UPSTREAM_ERRORS: Final = 4
TOKENS_ISSUED: Final = 5
TOKENS_REFUSED: Final = 6
UNKNOWN_CLIENTS: Final = 7
UNAUTHENTICATED: Final = 8
BAD_REQUESTS: Final = 9
CLIENT_ABORTED: Final = 10
UPSTREAM_ABORTED: Final = 11
FILTER_FAILED: Final = 12
NOT_READY: Final = 13
SPOOL_DROPPED: Final = 14
BYTES_IN: Final = 15
BYTES_OUT: Final = 16
CONNECTIONS_ACCEPTED: Final = 17
UPSTREAM_OPENED: Final = 18
UPSTREAM_REUSED: Final = 19
UPSTREAM_RETRIED: Final = 20
STARTS: Final = 21  # processes that have run in this slot
LIMIT_HEAD_BYTES: Final = 22
LIMIT_HEADER_COUNT: Final = 23
LIMIT_BODY_BYTES: Final = 24
LIMIT_CONNECTIONS: Final = 25
LIMIT_HEAD_TIMEOUT: Final = 26
LIMIT_IDLE_TIMEOUT: Final = 27
LIMIT_BODY_RATE: Final = 28
LIMIT_UPSTREAM_CONNECTIONS: Final = 29
LIMIT_FILTER_BYTES: Final = 30
LIMIT_RESPONSE_TIMEOUT: Final = 31
LIMIT_TOKEN_CHECKS: Final = 32
LIMIT_ADDRESS_CONNECTIONS: Final = 33
LIMIT_TOKEN_FAILURES: Final = 34
LIMIT_UPSTREAM_WAITING: Final = 35
LIMIT_HELD_BYTES: Final = 36
LIMIT_SLOW_READERS: Final = 37
LIMIT_RESPONSE_HEAD_BYTES: Final = 38
# links to a host other than the upstream's in responses, of a kind that SDKs follow
FOREIGN_LINKS: Final = 39
LIMIT_ASSERTIONS: Final = 40  # rejected assertions, because the memory of used ones was full
CREDENTIAL_PROBLEMS_FIRST: Final = 64  # refused credentials, one counter per name in CREDENTIAL_PROBLEMS

VERDICTS: Final = (ALLOWED, BLOCKED, FILTERED, LOGGED_ONLY)

COUNTER_NAMES: Final = (
    "allowed", "blocked", "filtered", "logged_only", "upstream_errors", "tokens_issued",
    "tokens_refused", "unknown_clients", "unauthenticated", "bad_requests", "client_aborted",
    "upstream_aborted", "filter_failed", "not_ready", "spool_dropped", "bytes_in", "bytes_out",
    "connections_accepted", "upstream_opened", "upstream_reused", "upstream_retried", "starts",
    "limit_head_bytes", "limit_header_count", "limit_body_bytes", "limit_connections", "limit_head_timeout",
    "limit_idle_timeout", "limit_body_rate", "limit_upstream_connections", "limit_filter_bytes",
    "limit_response_timeout", "limit_token_checks", "limit_address_connections", "limit_token_failures",
    "limit_upstream_waiting", "limit_held_bytes", "limit_slow_readers", "limit_answer_head_bytes",
    "foreign_links", "limit_assertions",
)  # fmt: skip

# Gauges: current values.
ALIVE_AT: Final = 128  # Unix seconds, written about once a second
CONNECTIONS_OPEN: Final = 129
IN_FLIGHT: Final = 130
UPSTREAM_OPEN: Final = 131
SNAPSHOT_GENERATION: Final = 132  # Snapshot.generation of the active rules; 0: no rules
LOADED_RULES: Final = 133
SPOOL_READY: Final = 134
CREDENTIAL_READY: Final = 135
SIGNING_KEY_READY: Final = 136
KILL_FILE: Final = 137  # effect of the emergency stop file: 0 nothing, 1 what it names, 2 everything
TAKES_REQUESTS: Final = 138  # 1 from the time the process listens until it drains
_FIRST_GAUGE: Final = ALIVE_AT
_END_OF_GAUGES: Final = 160

# Latency of whole requests. The bounds are in milliseconds; the bucket after the last bound counts the rest.
LATENCY_BOUNDS_MS: Final = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000)
LATENCY_FIRST: Final = 160  # counts per bucket, not cumulative
LATENCY_LAST: Final = LATENCY_FIRST + len(LATENCY_BOUNDS_MS)
LATENCY_SUM_US: Final = LATENCY_LAST + 1

# Only on the agent's page: figures that metrics posts have reported, so that a restarted agent does not
# report them again.
REPORTED_FIRST: Final = 256
REPORTED_UNTIL_MS: Final = 511

SLOT_BYTES: Final = 4096
_BOUNDS_US: Final = tuple(int(bound * 1000) for bound in LATENCY_BOUNDS_MS)


class Counters:
    """Counters of one worker or of the agent, on a page of shared memory."""

    def __init__(self, page: memoryview) -> None:
        self.values = page.cast("Q")

    def observe_latency(self, duration_us: int) -> None:
        """Count a request of `duration_us` microseconds in the first bucket with a sufficient bound."""
        bucket = LATENCY_FIRST
        # nearly all requests need few steps, and fewer instructions than a bisection
        for bound in _BOUNDS_US:
            if duration_us <= bound:
                break
            bucket += 1
        values = self.values
        values[bucket] += 1
        values[LATENCY_SUM_US] += duration_us

    def reset_gauges(self) -> None:
        """Set all gauges to zero when a process takes over the slot of a process that ended."""
        for index in range(_FIRST_GAUGE, _END_OF_GAUGES):
            self.values[index] = 0


class CounterPages:
    """Counter pages of all process slots: one page per worker, then one page for the agent."""

    def __init__(self, workers: int) -> None:
        shared = memoryview(mmap.mmap(-1, (workers + 1) * SLOT_BYTES))
        pages = [Counters(shared[at * SLOT_BYTES : (at + 1) * SLOT_BYTES]) for at in range(workers + 1)]
        self.workers = tuple(pages[:workers])
        self.agent = pages[workers]

    def total(self, index: int) -> int:
        """Return the sum of one counter over all worker slots, including slots whose process ended."""
        return sum(page.values[index] for page in self.workers)

    @property
    def requests(self) -> int:
        """Number of requests that a ruleset has evaluated; each such request has one verdict."""
        return sum(map(self.total, VERDICTS))
