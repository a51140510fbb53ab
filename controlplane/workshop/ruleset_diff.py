"""Differences between two rulesets, rule by rule. Two rule texts with the same meaning count as equal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.policy.ruleset import Rule, Ruleset
from proxy.policy.transforms import Transforms


@dataclass(frozen=True, slots=True)
class ChangedRule:
    id: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MovedRule:
    id: str
    after: str | None  # id of the rule before it now, or None if it is the first


@dataclass(frozen=True, slots=True)
class RulesetDiff:
    keys: tuple[str, ...]  # changed keys of the ruleset itself
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedRule, ...]
    moved: tuple[MovedRule, ...]  # smallest set of rules to move to get the new order

    def __bool__(self) -> bool:
        return bool(self.keys or self.added or self.removed or self.changed or self.moved)


def diff_rulesets(old: Ruleset, new: Ruleset) -> RulesetDiff:
    before = {rule.id: rule for rule in old.rules}
    after = {rule.id: rule for rule in new.rules}
    changed = [ChangedRule(rule.id, _keys(before[rule.id], rule)) for rule in new.rules if rule.id in before]
    return RulesetDiff(
        keys=tuple(key for key in ("name", "default") if getattr(old, key) != getattr(new, key)),
        added=tuple(rule_id for rule_id in after if rule_id not in before),
        removed=tuple(rule_id for rule_id in before if rule_id not in after),
        changed=tuple(one for one in changed if one.keys),
        moved=tuple(_moved(old, new)),
    )


def _keys(old: Rule, new: Rule) -> tuple[str, ...]:
    """Return the keys in which two versions of a rule differ, in the spelling of the file."""
    pairs: dict[str, tuple[object, object]] = {
        key: (getattr(old, key), getattr(new, key)) for key in ("description", "when")
    }
    pairs["match.methods"] = frozenset(_upper(old)), frozenset(_upper(new))
    for key in ("path", "resource", "operation", "pack"):
        pairs[f"match.{key}"] = frozenset(getattr(old.match, key)), frozenset(getattr(new.match, key))
    for key in ("conditions", "ip", "time", "until", "verdict"):
        pairs[key] = getattr(old, key), getattr(new, key)
    pairs["body_only"] = _set(old.body_only), _set(new.body_only)
    first, second = old.transforms or Transforms(), new.transforms or Transforms()
    pairs["transforms.strip_properties"] = frozenset(first.strip), frozenset(second.strip)
    pairs["transforms.allow_properties"] = _set(first.allow), _set(second.allow)
    pairs["transforms.items"] = frozenset(first.keep), frozenset(second.keep)
    pairs["guard_queries"] = old.guard_queries, new.guard_queries
    return tuple(key for key, (one, other) in pairs.items() if one != other)


def _upper(rule: Rule) -> list[str]:
    return [method.upper() for method in rule.match.methods]


def _set(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _moved(old: Ruleset, new: Ruleset) -> Iterator[MovedRule]:
    places = {rule.id: at for at, rule in enumerate(old.rules)}
    common = [rule.id for rule in new.rules if rule.id in places]
    kept = _longest_rising([places[rule_id] for rule_id in common])
    ids: list[str | None] = [rule.id for rule in new.rules]
    predecessors = dict(zip(ids, [None, *ids][:-1], strict=True))
    for rule_id in common:
        if places[rule_id] not in kept:
            yield MovedRule(rule_id, predecessors[rule_id])


def _longest_rising(numbers: Sequence[int]) -> set[int]:
    """Return the members of a longest increasing subsequence of `numbers` (patience sorting)."""
    ends: list[int] = []
    before: dict[int, int | None] = {}
    for number in numbers:
        at = bisect_left(ends, number)
        before[number] = ends[at - 1] if at else None
        ends[at : at + 1] = [number]
    kept: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        kept.add(last)
        last = before[last]
    return kept
