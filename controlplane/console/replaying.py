"""A replay of stored events, in several steps, on the console page of a draft ruleset.

The form of the page carries the counts of the replay from each step to the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from controlplane.console import review_words, terms
from controlplane.operations import replays
from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppFacts
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import Source
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.recorded import within_time
from controlplane.operations.replays import ChangeFacts, OutcomeFacts, Replayed, ReplayRuleset, together
from controlplane.search.query import rfc3339_ms
from controlplane.store.interface import StoreBusy
from controlplane.workshop.replay import CHANGES, MAX_GROUPS
from proxy.wire.audit_event import rfc3339

EVALUATED_APPS: Final = "judged"
EVERY_APP: Final = "every"
_EVENTS_OF_A_STEP: Final = 50_000  # events per step, about one second, so that the operator sees progress
_REVIEWED_WITHIN_SECONDS: Final = 10.0  # time limit of a review, which then shows the events replayed so far
_LAST_DAY: Final = "24"
_WORDS: Final = {
    "newlyBlocked": ("bad", "newly blocked"),
    "unclear": ("warn", "unclear"),
    "newlyAllowed": ("bad", "newly allowed"),
    "transforms": ("warn", "filtered differently"),
    "recordedAs": ("plain", "by another rule"),
}


class _SoFar(msgspec.Struct, forbid_unknown_fields=True):
    """State of a replay after some of its steps; the replay form of the page sends it to the next step.

    An operator who edits the replay state in the form data changes only the figures on the operator's own
    page.
    """

    draft: str
    replayed: Replayed


@dataclass(frozen=True, slots=True)
class Change:
    """A line of a replay's result: all requests whose verdict the draft changes in the same way."""

    kind: str
    words: str
    facts: ChangeFacts
    query: str | None  # filter that finds these events, or None if no filter can
    since: str
    until: str  # end of the search's period, which is not included


@dataclass(frozen=True, slots=True)
class Progress:
    replayed: Replayed
    changes: tuple[Change, ...]
    so_far: str  # state as JSON

    @property
    def is_done(self) -> bool:
        return self.replayed.next is None

    @property
    def percent(self) -> int:
        if self.is_done:
            return 100
        return min(99, 100 * self.replayed.looked_at // max(1, self.replayed.expected or 1))


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of publishing a draft ruleset, in the form that a review shows."""

    summary: tuple[str, str, str] | None  # kind, badge and words, used if `statements` is empty
    statements: tuple[tuple[review_words.Statement, tuple[Change, ...]], ...]
    basis: tuple[str, ...]


def effect(progress: Progress | None) -> Effect | None:
    """Return the effect of publishing a draft ruleset, or None if no event was replayed."""
    if progress is None:
        return None
    said = review_words.statements(progress.replayed)
    return Effect(
        review_words.summary(progress.replayed),
        tuple((each, tuple(map(_change, each.changes))) for each in said),
        review_words.basis(progress.replayed),
    )


async def of_last_day(
    context: OperationContext, actor: Actor, org: str, yaml: str, evaluated: Sequence[AppFacts]
) -> Progress | None:
    """Replay the last day's events of the applications, and stop after a few seconds even if events remain.

    Return None if no applications are given, or if the control plane has no capacity for a replay.
    """
    if not evaluated:
        return None
    form = {"replay_hours": _LAST_DAY}
    progress = None
    with suppress(StoreBusy, TimeoutError):
        async with asyncio.timeout(_REVIEWED_WITHIN_SECONDS):
            while progress is None or not progress.is_done:
                progress = await step(context, actor, org, yaml, evaluated, form)
                form |= {"do": "replay-on", "replay_so_far": progress.so_far}
    return progress


async def step(
    context: OperationContext,
    actor: Actor,
    org: str,
    yaml: str,
    evaluated: Sequence[AppFacts],
    form: Mapping[str, str],
) -> Progress:
    """Continue the replay whose state is in the form, or start a new replay.

    `evaluated` lists the applications that use the ruleset. Unless the form names another application, the
    replay evaluates the events of the applications in `evaluated`.
    """
    digest = sha256(yaml.encode("utf-8", "surrogatepass")).hexdigest()
    before = _so_far(form, digest) if form.get("do") == "replay-on" else None
    asked = ReplayRuleset(
        source=Source(yaml=yaml, label="rules"),
        org=org,
        filter=_filter(evaluated, form.get("replay_app", EVALUATED_APPS)),
        hours=hours(form.get("replay_hours", "24")),
        limit=_EVENTS_OF_A_STEP,
        against="active",
        cursor=None if before is None else before.next,
    )
    found = await perform(replays.replay, context, actor, asked)
    replayed = found if before is None else together(before, found)
    so_far = msgspec.json.encode(_SoFar(digest, replayed)).decode()
    return Progress(replayed, tuple(map(_change, replayed.groups)), so_far)


def _so_far(form: Mapping[str, str], digest: str) -> Replayed:
    try:
        carried = msgspec.json.decode(form.get("replay_so_far", ""), type=_SoFar)
        groups = carried.replayed.groups
        if len(groups) > MAX_GROUPS or any(group.change not in CHANGES for group in groups):
            raise ValueError(
                "the replay state in the form has too many groups of changed verdicts, or a group with an"
                " unknown kind of change"
            )
    except (msgspec.DecodeError, ValueError):
        raise InvalidRequest(
            "the replay can't continue from the state in the form: start the replay again"
        ) from None
    if carried.draft != digest:
        raise InvalidRequest("the draft was changed after this replay began: start the replay again")
    return carried.replayed


def _filter(evaluated: Sequence[AppFacts], chosen: str) -> str:
    if chosen in (EVERY_APP, ""):
        return ""
    ids = [app.app_id for app in evaluated] if chosen == EVALUATED_APPS else [chosen]
    return f"app:{','.join(ids)}" if ids else ""


def hours(given: str) -> float:
    """Return the number of hours that a form field contains.

    Raise InvalidRequest if the field has no valid number of hours.
    """
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 0 < int(given) <= 24 * 366):
        raise InvalidRequest(f"{given} is not a number of hours")
    return float(given)


def _change(facts: ChangeFacts) -> Change:
    kind, words = _WORDS.get(facts.change, ("plain", facts.change))
    until = rfc3339(within_time((rfc3339_ms(facts.last) or 0) + 1))
    return Change(
        kind, words, facts, _query(facts.app_id, facts.recorded or facts.before), facts.first, until
    )


def _query(app_id: str | None, before: OutcomeFacts) -> str | None:
    """Return a filter for the app's events with the given outcome, or None if no filter selects them."""
    by = ("reason", before.by) if before.verdict == "refused" else ("ruleid", before.by)
    wanted = [by] if before.verdict == "refused" else [("verdict", before.verdict), by]
    found = [terms.term(field, value) for field, value in [*([("app", app_id)] if app_id else []), *wanted]]
    known = [each for each in found if each is not None]
    return " ".join(known) if len(known) == len(found) else None
