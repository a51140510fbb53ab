"""Parts of a report for people: titles, sentences and tables, the same in the CLI, console and HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.report.answer import Activity, Answer, AppRules, ProxyTrail, because
from controlplane.report.resource_classes import CLASSES
from controlplane.report.words import joined, moment
from proxy.wire.figures import counted

_OUTCOMES: Final = {
    "passed": "passed",
    "blocked": "blocked",
    "refused": "refused before a rule",
    "failed": "failed upstream",
    "withheld": "response withheld",
    "unanswered": "no response",
}
_ORDER: Final = tuple(_OUTCOMES)
_MOST_SHOWN: Final = 5  # rules or requests that a cell names


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    empty: str = ""  # meaning of a table without rows


def sections(answer: Answer) -> Iterator[Section]:
    yield _completeness(answer)
    for name in answer.classes:
        yield _activity(answer, name)
    yield _proxies(answer)
    yield _evidence(answer)
    yield _rules(answer)
    yield _changes(answer)
    yield Section("What the trail cannot show", answer.unseen)


def _completeness(answer: Answer) -> Section:
    if answer.complete:
        checked = "missing numbers, events not yet delivered, silent proxies, retention and the chain"
        return Section("How complete this is", (f"No gap is known. The report checked {checked}.",))
    lead = f"This answer is incomplete for {counted(len(answer.gaps), 'reason')}:"
    return Section("How complete this is", (lead, *answer.gaps))


def _activity(answer: Answer, name: str) -> Section:
    rows = sorted(
        (each for each in answer.activity if each.resource_class == name),
        key=lambda each: (_ORDER.index(each.outcome), each.app, each.access, each.held),
    )
    reasons = any(each.held == "possible" for each in rows)
    title = f"Requests for {CLASSES[name].noun}"
    said = next((each.text for each in answer.statements if each.resource_class == name), "")
    return Section(
        title,
        (said, f"This class covers {CLASSES[name].covers}."),
        (
            "App",
            "Access",
            "Outcome",
            "Requests",
            "First and last",
            "Rules",
            "Removed from responses",
            "Asked",
            *(["Why possibly"] if reasons else []),
        ),
        tuple(_activity_row(each, with_reasons=reasons) for each in rows),
        f"The trail of this period has no request for {CLASSES[name].noun}, passed or refused.",
    )


def _activity_row(row: Activity, *, with_reasons: bool) -> tuple[str, ...]:
    held = "" if row.held == "certain" else ", possibly"
    return (
        row.app,
        f"{row.access}{held}",
        _OUTCOMES[row.outcome],
        f"{row.count:,}",
        f"{moment(row.first)} – {moment(row.last)}",
        _listed([f"{each.name} ({each.count:,})" for each in row.rules]),
        _listed([f"{each.what} by {each.rule} ({each.count:,})" for each in row.removed]) or "nothing",
        _listed([f"{each.name} ({each.count:,})" for each in row.requests]),
        *([_why(row)] if with_reasons else []),
    )


def _why(row: Activity) -> str:
    if row.held == "certain":
        return "–"
    return _listed([f"{because(each.name)} ({each.count:,})" for each in row.why])


def _listed(texts: Sequence[str]) -> str:
    rest = len(texts) - _MOST_SHOWN
    return joined([*texts[:_MOST_SHOWN], *([f"{rest:,} more"] if rest > 0 else [])])


def _proxies(answer: Answer) -> Section:
    return Section(
        "Proxies and missing events",
        ("Each proxy numbers the events of an organisation. A missing number is a missing event.",),
        (
            "Proxy",
            "Events",
            "First and last",
            "Missing numbers",
            "Not delivered",
            "Last heartbeat",
        ),
        tuple(map(_proxy_row, answer.proxies)),
        "No proxy serves this organisation, and none has sent an event of it.",
    )


def _proxy_row(proxy: ProxyTrail) -> tuple[str, ...]:
    ranges = [f"{each.first:,}–{each.last:,}" for each in proxy.missing]
    if proxy.unlisted:
        ranges.append(f"{proxy.unlisted:,} not listed")
    span = "–" if proxy.first is None else f"{moment(proxy.first)} – {moment(proxy.last or proxy.first)}"
    return (
        proxy.name if proxy.enabled else f"{proxy.name} (disabled)",
        f"{proxy.events:,}",
        span,
        _listed(ranges) or "none",
        "not said" if proxy.pending is None else f"{proxy.pending:,}",
        _last_heartbeat(proxy),
    )


def _last_heartbeat(proxy: ProxyTrail) -> str:
    if proxy.last_heartbeat is None:
        return "never"
    return moment(proxy.last_heartbeat) + (", shut down normally" if proxy.ended else "")


def _evidence(answer: Answer) -> Section:
    kept, chain = answer.retention, answer.chain
    oldest = "no event is stored" if kept.oldest is None else f"the oldest event is of {moment(kept.oldest)}"
    intact = "no stored event was changed" if chain.intact else chain.problem
    schemas = [f"{each.root}: {each.digest} from {each.source}" for each in answer.schemas]
    return Section(
        "Evidence",
        (),
        ("What", "Finding"),
        (
            ("Events", f"{answer.events:,} in the period, {answer.tokens:,} of them requests for a token"),
            (
                "Retention",
                f"{counted(kept.days, 'day')} ({kept.tier}); {oldest}; {kept.purged:,} were purged",
            ),
            ("Organisation", f"registered {moment(kept.org_since)}"),
            ("Chain", f"walked {moment(chain.walked_at)}: {intact}"),
            ("Head of the chain", f"link {chain.number:,}: {chain.link or 'none'}"),
            (
                "Read from",
                "the store, not the search index, so that events that wait to be indexed are included",
            ),
            ("Schema", f"{joined(schemas) or 'none'}. {answer.schema_note}"),
            ("Made", f"{moment(answer.made_at)} by {answer.made_by}, release {answer.release}"),
        ),
    )


def _rules(answer: Answer) -> Section:
    return Section(
        "Rulesets over the period",
        (
            "The ruleset is the one that was bound when the report was made.",
            "Its versions are listed since the last switch of the app that the operator log has.",
            "Events name a version without its ruleset. After a switch the ruleset is not known.",
        ),
        ("App", "Ruleset", "Switched", "In force", "Seen in events"),
        tuple(map(_rules_row, answer.rules)),
        "The organisation has no application.",
    )


def _rules_row(row: AppRules) -> tuple[str, ...]:
    in_force = [
        f"version {each.version} {moment(each.from_)} to {'now' if each.to is None else moment(each.to)}"
        for each in row.in_force
    ]
    seen = [
        f"{each.ruleset or 'ruleset not known:'} version {each.version} ({counted(each.events, 'event')})"
        for each in row.seen
    ]
    return (
        row.app,
        row.ruleset,
        "; ".join(row.switches) or "not since the period began",
        _listed(in_force) or "none in the period",
        _listed(seen) or "no event names one",
    )


def _changes(answer: Answer) -> Section:
    more = ("There were more changes than are listed. The operator log has all of them.",)
    return Section(
        "Changes of rules, stops and retention in the period",
        (*answer.stops, *(more if answer.more_changes else ())),
        ("Time", "Operator", "Operation", "What", "Outcome"),
        tuple((moment(each.time), each.operator, each.operation, each.what, each.outcome)
              for each in answer.changes),
        "The operator log has no change of rules, stops, retention or roles in the period.",
    )  # fmt: skip
