"""Tests of a proxy's health by the age of its last message, in multiples of the heartbeat interval."""

from __future__ import annotations

import msgspec
import pytest

from controlplane.curves import percentile, restarts, window
from controlplane.fleet_health import Facts, assess, clock_skew_ms, duration, said_by
from controlplane.reports import Check, Heartbeat, Latency, Metrics
from controlplane.store.interface import Losses

NOW = 1_795_262_400_000
INTERVAL = 30_000
OK = {"sync": Check("ok"), "upstream": Check("ok")}


def _facts(age_seconds: float = 0, **members: object) -> Facts:
    given: dict[str, object] = {"checks": OK, "heard_ms": NOW - round(age_seconds * 1000), **members}
    return Facts(INTERVAL, **given)  # type: ignore[arg-type]


def test_a_proxy_that_never_sent_a_heartbeat_has_no_heartbeat() -> None:
    assessment = assess(NOW, Facts(INTERVAL))
    assert (assessment.health, assessment.presence) == ("no heartbeat", "lost")


@pytest.mark.parametrize(
    ("age_seconds", "health", "lost"),
    [
        (0, "ok", False),
        (90, "ok", False),
        (90.001, "stale", False),
        (300, "stale", False),
        (300.001, "failed", True),
        (86_400 * 400, "failed", True),
        (-90.001, "stale", False),  # our clock was set back after the message
        (-301, "failed", True),
    ],
)
def test_ok_is_worth_nothing_once_it_is_old(age_seconds: float, health: str, lost: bool) -> None:
    assessment = assess(NOW, _facts(age_seconds))
    assert (assessment.health, assessment.presence) == (health, "lost" if lost else "here")
    assert bool(assessment.reasons) is (health != "ok")


@pytest.mark.parametrize(
    ("age_seconds", "said", "health"),
    [
        (0, "degraded", "degraded"),
        (0, "failed", "failed"),
        (91, "degraded", "stale"),  # its own statement is out of date
        (91, "failed", "failed"),  # no message said that the failure is over
        (301, "degraded", "failed"),
    ],
)
def test_what_it_says_of_itself_counts_while_it_is_young(age_seconds: float, said: str, health: str) -> None:
    check = Check(said, "the upstream is away")  # type: ignore[arg-type]
    assessment = assess(NOW, _facts(age_seconds, checks={**OK, "upstream": check}))
    assert assessment.health == health
    assert f"upstream {said}: the upstream is away" in assessment.reasons


@pytest.mark.parametrize(
    ("member", "most", "report"),
    [
        ("sync_age_ms", 3 * INTERVAL, "confirmed"),
        ("behind_ms", 3 * INTERVAL, "behind the active rules"),
        ("oldest_unsent_ms", 10 * INTERVAL, "unsent"),
        ("skew_ms", 30_000, "ahead"),
    ],
)
def test_what_is_measured_of_it_degrades_it_beyond_a_threshold(member: str, most: int, report: str) -> None:
    assert assess(NOW, _facts(**{member: most})).health == "ok"
    assessment = assess(NOW, _facts(**{member: most + 1}))
    assert assessment.health == "degraded"
    assert report in assessment.reasons[0]
    assert assessment.presence == "here"


@pytest.mark.parametrize(
    ("members", "health", "presence"),
    [
        ({"last_seen_ms": NOW - 400_000}, "ended", "ended"),
        ({"last_seen_ms": None}, "ended", "ended"),  # a deleted proxy has no other message
        # the proxy sent a message after the failure, and then no more
        ({"last_seen_ms": NOW - 399_999}, "failed", "lost"),
        ({"last_seen_ms": NOW - 400_000, "losses": Losses(missing=2)}, "degraded", "ended"),
        ({"last_seen_ms": NOW - 400_000, "reused_ms": NOW - 400_000}, "degraded", "ended"),
        ({"last_seen_ms": NOW - 400_000, "behind_ms": 10**9, "sync_age_ms": 10**9}, "ended", "ended"),
    ],
)
def test_a_proxy_that_stopped_in_order_is_ended_until_it_speaks_again(
    members: dict[str, object], health: str, presence: str
) -> None:
    checks = {"workers": Check("failed", "none serves")}
    assessment = assess(NOW, _facts(400, is_last=True, checks=checks, **members))
    assert (assessment.health, assessment.presence) == (health, presence)
    assert ("it stopped cleanly 7 min ago" in assessment.reasons) is (presence == "ended")


@pytest.mark.parametrize(
    ("body", "health"),
    [
        (b'{"ended": true, "auditPending": 0, "checks": {"workers": {"status": "failed"}}}', "ended"),
        (b'{"ended": true, "auditPending": 3}', "ok"),  # it contradicts itself
        (b'{"ended": false, "auditPending": 0}', "ok"),
    ],
)
def test_only_a_proxy_that_owes_nothing_has_ended(body: bytes, health: str) -> None:
    said = msgspec.json.decode(body, type=Heartbeat)
    assert said_by(INTERVAL, None, said).health == health


def test_a_clock_that_is_behind_is_told_as_such() -> None:
    assert assess(NOW, _facts(skew_ms=-45_000)).reasons == ("its clock is 45 s behind",)


@pytest.mark.parametrize(
    ("timestamp", "arrived_ms", "skew_ms"),
    [
        (100, 100_000, 0),
        (100, 100_999, 0),  # any instant of that second
        (100, 101_000, 0),
        (100, 101_001, -1),  # outdated, or the sync is one millisecond old
        (100, 99_999, 1),
        (100, 40_000, 60_000),
        (100, 399_000, -298_000),
    ],
)
def test_skew_is_the_least_that_explains_the_timestamp(timestamp: int, arrived_ms: int, skew_ms: int) -> None:
    assert clock_skew_ms(timestamp, arrived_ms) == skew_ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 s"), (119_000, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 d")],
)
def test_a_duration_as_a_person_says_it(ms: int, text: str) -> None:
    assert duration(ms) == text


# Curves


@pytest.mark.parametrize(
    ("buckets", "count", "share", "expected"),
    [
        ([(10.0, 100), (20.0, 100)], 100, 0.5, 5.0),
        ([(10.0, 0), (20.0, 100)], 100, 0.5, 15.0),
        ([(10.0, 90), (20.0, 100)], 100, 0.95, 15.0),
        ([(10.0, 50), (20.0, 50)], 100, 0.95, 20.0),  # above the last bound the value is unknown
        ([(10.0, 0)], 0, 0.5, None),
        ([], 5, 0.5, None),
    ],
)
def test_a_percentile_lies_on_a_line_within_its_bucket(
    buckets: list[tuple[float, int]], count: int, share: float, expected: float | None
) -> None:
    assert percentile(Latency(buckets, 0, count), share) == expected


def test_a_window_tells_its_rates() -> None:
    found = window(
        Metrics(
            window_start="2026-11-21T12:00:00.000Z",
            window_end="2026-11-21T12:00:30.000Z",
            evaluated=60,
            upstream_errors=2,
            latency_ms=Latency([(10.0, 60)], 300, 60),
        )
    )
    assert found is not None
    assert (found.requests_a_second, found.upstream_errors, found.p50_ms) == (2.0, 2, 5.0)


@pytest.mark.parametrize("start", ["", "yesterday", "2026-13-01T00:00:00Z"])
def test_a_window_of_no_time_is_none(start: str) -> None:
    assert window(Metrics(window_start=start, window_end="2026-11-21T12:00:30.000Z")) is None


def test_an_uptime_that_goes_back_is_a_restart() -> None:
    uptimes = [(0, 100.0), (30_000, 130.0), (60_000, 10.0), (90_000, None), (120_000, 69.5), (150_000, 3.0)]
    assert restarts([(at, Heartbeat(uptime_seconds=uptime)) for at, uptime in uptimes]) == [50_000, 147_000]


def test_an_uptime_that_creeps_back_is_none() -> None:
    assert restarts([(0, Heartbeat(uptime_seconds=10.5)), (1, Heartbeat(uptime_seconds=10.0))]) == []
