"""Choose the evaluation step of a rule for a path: the usual step, or one that blocks a hidden property."""

from __future__ import annotations

from typing import Final

from proxy.policy.canonical import UNTAKEN, Name, Reading
from proxy.policy.compiled_rule import (
    Candidate,
    CompiledRule,
    Entry,
)
from proxy.policy.decision import Step
from proxy.policy.hidden import Naming
from proxy.policy.paths import Pattern

SINGLETONS: Final = frozenset(("me", "root", "manager"))  # named like collections, but a property follows
_FILTER_SEGMENT: Final = "$filter"  # `/$filter(…)`: no query guard evaluates its expression


def names_hidden_within(entry: Entry, name: Name) -> bool:
    hidden = entry.compiled.hidden
    if hidden is None:
        return False
    within = name.folded[entry.pattern.wildcards_from :]
    if entry.compiled.probing is not None and any(word.startswith(_FILTER_SEGMENT) for word in within):
        return True
    return hidden.named_within(within) is not Naming.NOTHING


def asks_for_no_item(compiled: CompiledRule, method: str) -> bool:
    """Return True if the rule's filter removes items and the request method is HEAD.

    The response to a HEAD reveals if an object exists, but has no body on which the filter could test its
    conditions.
    """
    return method == "HEAD" and compiled.hidden is not None and compiled.hidden.keeps_items


def counts_for(candidate: Candidate, reading: Reading) -> bool:
    """Return True if a rule is evaluated for a path interpretation.

    A rule is evaluated for each interpretation of the request path that the upstream may use.

    If the upstream does not use an interpretation, the end of its path may differ from all interpretations
    that the upstream uses. The rule is then evaluated only if a literal segment, a tested path parameter or a
    hidden property of the rule is in this end of the path. A wildcard in the rule's path pattern is not
    sufficient, because a wildcard stands for a whole ID.
    """
    entry, start = candidate.entry, reading.changed_from
    if not reading.kind & UNTAKEN or start == 0:
        return True
    if any(word is not None for word in entry.pattern.segments[start:]):
        return True
    tested = [parameter for parameter, _ in entry.compiled.parameter_tests]
    if any(at >= start and name in tested for name, at in entry.pattern.parameters):
        return True
    hidden = entry.compiled.hidden
    if hidden is None or not (candidate.hides or candidate.probed):
        return False
    words = hidden.words()
    changed = [word for name in reading.names for word in name.folded[start:]]
    return any(word in words or word.startswith("$") for word in changed)


def step_below(entry: Entry, name: Name, found: list[Entry]) -> Step | None:
    """Return the checks and the decision with which a filter rule applies to a path below its path pattern.

    A path that ends with `/$count` or `/$ref` accepts the same queries as the path of its collection.
    """
    compiled = entry.compiled
    if compiled.hidden is None:
        return None
    if names_hidden_below(entry, name, found):
        return compiled.blocking
    following = name.folded[len(entry.pattern.segments)]
    if compiled.probing is None or not following.startswith("$"):
        return None
    return compiled.blocking if following.startswith(_FILTER_SEGMENT) else compiled.probing


def names_hidden_below(entry: Entry, name: Name, found: list[Entry]) -> bool:
    hidden = entry.compiled.hidden
    at = len(entry.pattern.segments)
    naming = Naming.NOTHING if hidden is None else hidden.named_below(name.folded[at:])
    if naming is not Naming.UNLISTED:
        return naming is Naming.HIDDEN
    return not any(
        other.compiled is entry.compiled
        or _spells_out(other.pattern, at)
        or _takes_key(other.pattern, entry, at)
        for other in found
    )


def _spells_out(pattern: Pattern, at: int) -> bool:
    return at < len(pattern.segments) and pattern.segments[at] is not None


def _takes_key(pattern: Pattern, entry: Entry, at: int) -> bool:
    """Return True if the pattern of `entry` ends with a collection and `pattern` has an object ID after it.

    `at` is the position after the collection. An object ID in a path is not the name of a property.
    """
    own = entry.pattern.segments
    return (
        bool(own)
        and own[-1] is not None
        and own[-1] not in SINGLETONS
        and at < len(pattern.segments)
        and pattern.segments[at] is None
    )
