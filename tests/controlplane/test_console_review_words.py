"""Tests of the words in a draft's review: what becomes blocked, allowed, removed or visible, and why."""

from __future__ import annotations

import msgspec

from controlplane.console.review_words import AppCount, basis, statements, summary
from controlplane.operations.replays import ChangeFacts, OutcomeFacts, Replayed

ALLOWED = OutcomeFacts("allow", "people")
BLOCKED = OutcomeFacts("block", "default")


def group(
    change: str, app: str | None, count: int, before: OutcomeFacts = ALLOWED, after: OutcomeFacts = BLOCKED
) -> ChangeFacts:
    return ChangeFacts(
        change, f"id-{app}", app, before, (after,), (), "", "", count, "2026-11-21T11:00:00.000Z",
        "2026-11-21T11:30:00.000Z", (),
    )  # fmt: skip


def replayed(*groups: ChangeFacts, events: int = 2000, unasked: int = 0, unclear: int = 0) -> Replayed:
    changed = sum(each.count for each in groups)
    return Replayed(
        from_="2026-11-20T12:00:00.000Z",
        to="2026-11-21T12:00:00.000Z",
        apps=("hr", "payroll"),
        events=events,
        unasked=unasked,
        unchanged=events - unasked - changed,
        by_another_rule=0,
        changed=changed,
        unclear=unclear,
        groups=groups,
        ungrouped=0,
        looked_at=events,
        expected=events,
        next=None,
    )


def filtered(*transforms: str) -> OutcomeFacts:
    return OutcomeFacts("filter", "people", transforms)


def test_what_is_newly_blocked_is_counted_by_app_in_red() -> None:
    found = replayed(
        group("newlyBlocked", "hr", 100),
        group("newlyBlocked", "payroll", 1000),
        group("newlyBlocked", "hr", 6, OutcomeFacts("filter", "mail")),
    )
    (said,) = statements(found)
    assert (said.kind, said.words) == (
        "bad",
        "1,106 requests of 2 apps would be blocked that are allowed today",
    )
    assert said.apps == (AppCount("payroll", 1000), AppCount("hr", 106))
    assert summary(found) is None


def test_what_is_newly_allowed_is_as_red_and_comes_after_what_is_blocked() -> None:
    opened = group("newlyAllowed", "crm", 1, BLOCKED, ALLOWED)
    blocked = group("newlyBlocked", "hr", 1)
    said = statements(replayed(opened, blocked))
    assert [(each.kind, each.words) for each in said] == [
        ("bad", "1 request of 1 app would be blocked that is allowed today"),
        ("bad", "1 request of 1 app would be allowed that is blocked today"),
    ]


def test_properties_that_appear_or_go_are_named() -> None:
    def said(before: OutcomeFacts, after: OutcomeFacts) -> tuple[str, tuple[str, ...]]:
        (found,) = statements(replayed(group("transforms", "hr", 3, before, after)))
        return found.kind, found.properties

    assert said(filtered("strip:mobilePhone"), filtered("strip:mobilePhone", "strip:mail")) == (
        "warn",
        ("Newly removed: mail.",),
    )
    assert said(filtered("strip:mobilePhone"), ALLOWED) == ("bad", ("Newly visible: mobilePhone.",))
    assert said(filtered("allow:id", "allow:mail"), filtered("allow:id", "allow:phone")) == (
        "bad",
        ("Newly visible: phone.", "Newly removed: mail."),
    )
    assert said(ALLOWED, filtered("allow:id")) == ("warn", ("Newly removed: everything but id.",))
    assert said(filtered("allow:id"), ALLOWED) == ("bad", ("Newly visible: everything but id.",))


def test_nothing_that_changes_is_told_from_nothing_that_was_looked_at() -> None:
    assert summary(replayed()) == ("good", "no change", "No recorded request would change.")
    for empty in (replayed(events=0), replayed(events=7, unasked=7)):
        assert (summary(empty) or ("",))[0] == "warn", "no evidence is not good news"


def test_a_review_says_what_it_rests_on() -> None:
    whole = replayed(events=14_729, unasked=292, unclear=5)
    assert basis(whole) == (
        "Replayed 14,437 recorded requests of hr, payroll, from 2026-11-20 12:00 to 2026-11-21 12:00 UTC.",
        "292 more events never reached a rule: token requests, and requests that were refused before.",
        "5 events could not be replayed for certain: the verdict depends on facts that are not stored.",
    )
    part = msgspec.structs.replace(whole, looked_at=14_729, expected=90_000, next="cursor")
    assert basis(part)[1] == "Only 14,729 of about 90,000 stored events were examined, the newest first."


def test_changes_that_have_no_group_are_not_forgotten() -> None:
    many = msgspec.structs.replace(replayed(), ungrouped=12)
    (said,) = statements(many)
    assert said.words == "12 requests would change in further ways, which are not listed"
    assert summary(many) is None
