"""Pure functions that describe the effect of a draft, from a replay of recorded requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.operations.replays import ChangeFacts, OutcomeFacts, Replayed
from proxy.policy.transforms import Named, parse_names
from proxy.wire.figures import counted, number

_MOST_NAMED: Final = 12  # properties named in a sentence


@dataclass(frozen=True, slots=True)
class AppCount:
    """An application, and the number of its requests that one kind of change affects."""

    app: str
    count: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One effect that publishing a draft would have."""

    kind: str  # kind of the badge: good, warn, bad or plain
    badge: str
    words: str
    apps: tuple[AppCount, ...]  # applications, the one with the most requests first
    changes: tuple[ChangeFacts, ...]  # changes that the statement summarises
    properties: tuple[str, ...] = ()  # sentences on properties that appear or disappear


def statements(replayed: Replayed) -> tuple[Statement, ...]:
    """Return the effects of publishing the draft, with harmful effects first."""
    of = {change: [each for each in replayed.groups if each.change == change] for change in _SAYS}
    found = [_statement(change, groups) for change, groups in of.items() if groups]
    if replayed.ungrouped:
        words = f"{counted(replayed.ungrouped, 'request')} would change in further ways, which are not listed"
        found.append(Statement("warn", "more", words, (), ()))
    return tuple(found)


def basis(replayed: Replayed) -> tuple[str, ...]:
    """Return sentences about the events that a replay evaluated: their period, their number, and gaps."""
    whose = f"of {', '.join(replayed.apps)}" if replayed.apps else "of every app"
    asked = replayed.events - replayed.unasked
    period = f"from {_minute(replayed.from_)} to {_minute(replayed.to)} UTC"
    said = [f"Replayed {counted(asked, 'recorded request')} {whose}, {period}."]
    if replayed.against == "active":
        said.append("Both the active version and the draft evaluated them, so older verdicts do not count.")
    if replayed.next is not None:
        of = f" of about {number(replayed.expected)}" if replayed.expected else ""
        said.append(f"Only {number(replayed.looked_at)}{of} stored events were examined, the newest first.")
    if replayed.unasked:
        said.append(
            f"{counted(replayed.unasked, 'more event')} never reached a rule: token requests, and requests"
            " that were refused before."
        )
    if replayed.unclear:
        said.append(
            f"{counted(replayed.unclear, 'event')} could not be replayed for certain: the verdict depends on"
            " facts that are not stored."
        )
    return tuple(said)


def summary(replayed: Replayed) -> tuple[str, str, str] | None:
    """Return a notice (kind, badge and sentence) if the replay found no effect, or None otherwise."""
    if replayed.events == replayed.unasked:
        return "warn", "no evidence", "No request was recorded in that period, so the replay is no evidence."
    if statements(replayed):
        return None
    return "good", "no change", "No recorded request would change."


_SAYS: Final = {
    "newlyBlocked": ("bad", "blocked", "would be blocked that {are} allowed today"),
    "newlyAllowed": ("bad", "opened", "would be allowed that {are} blocked today"),
    "transforms": ("warn", "filtered", "would get other properties than today"),
    "unclear": ("warn", "unclear", "may change: the verdict depends on facts that are not stored"),
}


def _statement(change: str, groups: Sequence[ChangeFacts]) -> Statement:
    kind, badge, says = _SAYS[change]
    apps: dict[str, int] = {}
    for group in groups:
        name = group.app or group.app_id or "no app"
        apps[name] = apps.get(name, 0) + group.count
    total = sum(apps.values())
    ranked = sorted(apps.items(), key=lambda each: (-each[1], each[0]))
    words = says.format(are="is" if total == 1 else "are")
    shown, gone = _properties(groups) if change == "transforms" else ((), ())
    return Statement(
        "bad" if shown else kind,
        badge,
        f"{counted(total, 'request')} of {counted(len(apps), 'app')} {words}",
        tuple(AppCount(*each) for each in ranked),
        tuple(groups),
        (*_listed("Newly visible", shown), *_listed("Newly removed", gone)),
    )


def _properties(groups: Iterable[ChangeFacts]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all properties that become visible in responses, and all properties that become hidden.

    Each of the `groups` stands for requests whose outcome a draft of the ruleset changes in the same way.
    """
    shown: dict[str, None] = {}
    gone: dict[str, None] = {}
    for group in groups:
        before, after = _filter(group.before), _filter(group.after[0]) if group.after else None
        if before is None or after is None:
            continue
        shown |= dict.fromkeys(_hidden_only(before, after))
        gone |= dict.fromkeys(_hidden_only(after, before))
    return tuple(shown), tuple(gone)


def _filter(outcome: OutcomeFacts) -> Named | None:
    return None if outcome.transforms is None else parse_names(outcome.transforms)


def _hidden_only(one: Named, other: Named) -> list[str]:
    """Return the properties that the filter `one` removes but the filter `other` does not remove."""
    hidden = [each for each in one.stripped if each not in other.stripped]
    if other.allowed is not None:
        hidden = [each for each in hidden if each in other.allowed]
    if one.allowed is not None:
        if other.allowed is None:
            hidden.append(f"everything but {', '.join(one.allowed) or 'nothing'}")
        else:
            hidden += [each for each in other.allowed if each not in one.allowed]
    hidden += [f"items without {each}" for each in one.kept if each not in other.kept]
    return list(dict.fromkeys(hidden))


def _listed(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    more = f" and {number(len(names) - _MOST_NAMED)} more" if len(names) > _MOST_NAMED else ""
    return (f"{what}: {', '.join(names[:_MOST_NAMED])}{more}.",)


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")
