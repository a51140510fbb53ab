"""Format a configuration plan as lines of text for a person.

Configuration plans that are equal are formatted as equal lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from controlplane.as_code.plan import Action, Change, Member, Unmanaged
from proxy.policy.visible import escaped
from proxy.wire.figures import number

Key = tuple[str, str | None, str]
"""Kind, organisation and name of a thing."""

_SIGNS: Final[Mapping[Action, str]] = {"add": "+", "change": "~", "delete": "-"}
_LABELS: Final = {"secondPerson": "second person", "orgs": "organisations", "secretEnds": "end of the secret"}


def key_of(change: Change) -> Key:
    return change.kind, change.org, change.name


def plan_lines(
    changes: Sequence[Change], unmanaged: Sequence[Unmanaged], further: Mapping[Key, Sequence[str]]
) -> Iterator[str]:
    """Yield the text lines of a plan's changes, grouped by organisation.

    The function `further` returns additional lines for one change of a plan.
    """
    heading = ""
    for change in changes:
        if (found := _heading(change)) != heading:
            heading = found
            yield heading
        yield f"  {_SIGNS[change.action]} {change.kind} {escaped(change.name)}{_in_short(change)}"
        yield from (f"      {line}" for line in _details(change))
        yield from (f"      {escaped(line)}" for line in further.get(key_of(change), ()))
    if unmanaged:
        yield "Not in the directory (--prune deletes it):"
        for each in unmanaged:
            of = f" of organisation {escaped(each.org)}" if each.org is not None else ""
            yield f"    {each.kind} {escaped(each.name)}{of}"


def _heading(change: Change) -> str:
    if change.kind == "organisation":
        return f"organisation {escaped(change.name)}"
    return "the fleet" if change.org is None else f"organisation {escaped(change.org)}"


def _in_short(change: Change) -> str:
    if change.kind != "ruleset" or change.action == "delete":
        return ""
    version = next(each for each in change.members if each.name == "version")
    becomes = f"version {version.after}" if version.before is None else f"{version.before} → {version.after}"
    return f", {becomes}" if version.before is None else f", version {becomes}"


def _details(change: Change) -> Iterator[str]:
    for member in change.members:
        if change.kind != "ruleset":
            yield _member_line(member, of_new=change.action == "add")
        elif member.name == "schemas":
            yield "the text stays the same; it is bound to the current schemas"
    yield from (f"  {escaped(line)}" for line in change.lines)
    if change.warning is not None:
        yield f"! {change.warning}"
    match change.gate:
        case "proposes":
            yield "! the organisation needs a second person: this makes a proposal"
        case "proposed":
            yield f"! waits for a second person: proposal {change.proposal}"
        case "waits":
            yield "! waits for a ruleset that a second person must approve"
        case "none":
            pass


def _member_line(member: Member, *, of_new: bool) -> str:
    label = _LABELS.get(member.name, member.name)
    if of_new:
        return f"{label}: {_value(member.after)}"
    return f"{label}: {_value(member.before)} → {_value(member.after)}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{escaped(key)} {_value(each)}" for key, each in sorted(value.items())) or "none"
    return escaped(str(value))


def summary(changes: Sequence[Change]) -> str:
    counts: dict[Action, int] = {
        action: sum(each.action == action for each in changes) for action in ("add", "change", "delete")
    }
    if not changes:
        return "Nothing to do: the control plane agrees with the directory."
    waiting = sum(not each.is_in_force for each in changes)
    return (
        f"Plan: {number(counts['add'])} to add, {number(counts['change'])} to change, "
        f"{number(counts['delete'])} to delete"
        + (f"; {number(waiting)} of them for a second person to approve." if waiting else ".")
    )
