"""Compile a ruleset to matchers for requests, once per ruleset."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any, Final, TypeVar

from proxy.policy.canonical import MAX_CACHED_PATH, Name, Reading, Target
from proxy.policy.compiled_rule import (
    NO_PATTERN,
    CheckOf,
    Entry,
    compile_part,
    compile_rule,
    strictness_of,
)
from proxy.policy.content_paths import CONTENT, ITEMS
from proxy.policy.decision import Decision, Plan
from proxy.policy.implied import (
    TELLING_WORDS,
)
from proxy.policy.odata import CERTAIN
from proxy.policy.operations import OPERATIONS, key_positions
from proxy.policy.paths import PathTree, parse_pattern
from proxy.policy.rule_finder import UNKNOWN_PLAN, RuleFinder
from proxy.policy.ruleset import (
    DEFAULT_RULE_ID,
    Rule,
    Ruleset,
)
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.policy.thing_rules import ThingRules

_MAX_PLANS: Final = 8192  # plans of all methods together, by shape and by path each
_MAX_SHAPE: Final = 32  # segments; real paths have some 10
# paths and conditions; some hundred microseconds, which delays no request noticeably
_WORK_PER_SLICE: Final = 5
_WORK_OF_REGEX: Final = 5


_CONTENT: Final = frozenset((CONTENT, ITEMS))
_K = TypeVar("_K")
_V = TypeVar("_V")
_NO_PLANS: Final[Any] = {}


def _remember(plans: dict[str, dict[_K, _V]], method: str, key: _K, plan: _V) -> None:
    """Store an evaluation plan in the cache `plans`, by HTTP method and by path or path shape.

    If the cache of evaluation plans is full, remove all plans from the cache first. The proxy soon makes the
    plans of common requests again.
    """
    if sum(map(len, plans.values())) >= _MAX_PLANS:
        plans.clear()
    plans.setdefault(method, {})[key] = plan


class CompiledRuleset:
    """The evaluation plans of a ruleset; all paths of the same shape share one remembered plan."""

    def __init__(self, rule_count: int, rules: RuleFinder) -> None:
        self.rule_count = rule_count
        self.rules = rules
        self._word = rules.word
        self._plans_by_shape: dict[str, dict[tuple[str, ...], Plan | None]] = {}
        self._plans_by_path: dict[str, dict[str, Plan]] = {}

    @property
    def schemas(self) -> Schemas:
        return self.rules.schemas

    def plan(self, method: str, target: Target) -> Plan:
        plain = target.plain
        if plain is None:
            return self._plan_by_path(method, target, target.cache_key)
        # Rules treat all ids, and all words that no rule has, alike. No segment and no word of a rule
        # contains a slash.
        word = self._word
        shape = tuple([word(segment) or ("$/" if segment[:1] == "$" else "/") for segment in plain])
        plan = self._plans_by_shape.get(method, _NO_PLANS).get(shape, UNKNOWN_PLAN)
        if plan is UNKNOWN_PLAN:
            plan = self._plan_of_shape(method, shape)
            if len(shape) <= _MAX_SHAPE:
                _remember(self._plans_by_shape, method, shape, plan)
        return plan or self._plan_by_path(method, target, target.path)

    def _plan_of_shape(self, method: str, shape: tuple[str, ...]) -> Plan | None:
        """Return the evaluation plan that all paths of one shape share.

        Return None if a rule has a condition on a path parameter. A path shape has no object IDs, so it does
        not contain the parameter's value.
        """
        readings = (Reading(CERTAIN, (Name(shape, shape),)),)
        if self.rules.tests_parameters(readings):
            return None
        return self.rules.plan_of_readings(method.upper(), readings)

    def _plan_by_path(self, method: str, target: Target, key: str | None) -> Plan:
        if key is None or len(key) > MAX_CACHED_PATH:
            return self.rules.plan_of_readings(method.upper(), target.readings)
        plan: Plan | None = self._plans_by_path.get(method, _NO_PLANS).get(key)
        if plan is None:
            plan = self.rules.plan_of_readings(method.upper(), target.readings)
            _remember(self._plans_by_path, method, key, plan)
        return plan


def compile_ruleset(
    ruleset: Ruleset, check_of: CheckOf | None = None, schemas: Schemas = NO_SCHEMAS
) -> CompiledRuleset:
    """Compile a ruleset in one go, without pauses for the event loop.

    `check_of` is the function that compiles each part of a rule to a check; the default is `compile_part`.
    """
    slices = compile_in_slices(ruleset, check_of, schemas)
    while True:
        try:
            next(slices)
        except StopIteration as finished:
            compiled: CompiledRuleset = finished.value
            return compiled


def compile_in_slices(
    ruleset: Ruleset, check_of: CheckOf | None = None, schemas: Schemas = NO_SCHEMAS
) -> Generator[None, None, CompiledRuleset]:
    """Compile a ruleset, and yield after every few hundred microseconds of work.

    So an event loop can run other tasks between the slices of the compilation.
    """
    tree: PathTree[Entry] = PathTree()
    words = {"$value": "$value"}
    words.update((word, word) for word in OPERATIONS | TELLING_WORDS)
    things = ThingRules(schemas)
    of_things: dict[int, Entry] = {}
    work = 0
    spells_content = False
    for index, rule in zip(count(), ruleset.rules):
        compiled = compile_rule(index, rule, check_of or compile_part)
        for path in rule.match.path:
            for pattern in parse_pattern(path):
                entry = Entry(compiled, pattern, key_positions(pattern.segments))
                tree.add(pattern, entry, strictness_of(rule))
                words.update((word, word) for word in pattern.segments if word is not None)
                spells_content = spells_content or (
                    rule.verdict in ("block", "filter") and not _CONTENT.isdisjoint(pattern.segments)
                )
        if rule.match.names_things:
            things.add(index, rule.verdict, rule.match, compiled.step.decision.transforms)
            of_things[index] = Entry(compiled, NO_PATTERN, ())
        if compiled.hidden is not None:
            words.update((word, word) for word in compiled.hidden.words())
            spells_content = spells_content or CONTENT in compiled.hidden.words()
        work += _work_of(rule)
        if work >= _WORK_PER_SLICE:
            work = 0
            yield
    default = Decision(ruleset.default, DEFAULT_RULE_ID, reason="default")
    finder = RuleFinder(default, tree, words, schemas, things, of_things, spells_content=spells_content)
    return CompiledRuleset(len(ruleset.rules), finder)


def _work_of(rule: Rule) -> int:
    tests = [test for condition in rule.conditions for test in condition.tests]
    regexes = sum(test.operator == "matches" for test in tests)
    return 1 + len(rule.match.path) + len(tests) + _WORK_OF_REGEX * (regexes + (rule.time is not None))
