"""Find the rules about schema elements that apply to a path."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from proxy.policy.canonical import Name
from proxy.policy.conditions import INDETERMINATE, NO, YES
from proxy.policy.facts import property_path
from proxy.policy.hidden import HiddenProperties, Naming
from proxy.policy.reached import INDETERMINATE as UNKNOWN_STEP
from proxy.policy.reached import KEY, MAYBE, ROOT, reaches
from proxy.policy.resource_model import NAVIGATION, ResourceModel
from proxy.policy.ruleset import Match
from proxy.policy.schemas import Schemas
from proxy.policy.services.facts import NO_FACTS, Facts
from proxy.policy.thing_paths import (
    ReachedPath,
    allowed_by,
    calls_delta,
    end_may_hold,
    ends_with_named,
    met_by,
    named_step,
    property_tail,
    response_may_hold,
    step_number,
    told,
)
from proxy.policy.thing_rows import Part, Things
from proxy.policy.things import Resolver
from proxy.policy.transforms import Transforms, TypedTransforms

# Paths of a service that reach no thing: the sub-requests of a batch are evaluated separately.
_NO_THINGS: Final = frozenset(("$batch", "$metadata"))
_OPTIONS: Final = ("$value", "$ref", "$count")
_NO_TYPE: Final = -1
_STRICT: Final = frozenset(("block", "filter"))

# Kinds of findings.
RULE: Final = 0
HIDES: Final = 1  # the path names a hidden property
NOTHING_HIDDEN: Final = 2  # the response is one value, which the filter lets pass
STRIPS: Final = 3  # the response may contain a property that the rule blocks


class Finding:
    """A rule about schema elements that applies to a path; `index` is the rule's index in the ruleset."""

    __slots__ = ("held", "index", "kind", "transforms")

    def __init__(
        self,
        index: int,
        kind: int,
        held: int,
        transforms: Transforms | None = None,
    ) -> None:
        self.index: Final[int] = index
        self.kind: Final[int] = kind
        self.held: Final[int] = held
        self.transforms: Final[Transforms | None] = transforms


class ThingRule:
    """One rule that names schema elements, with the rows of these elements in the tables of each schema."""

    __slots__ = (
        "_stripped",
        "asks_steps_alone",
        "has_parts",
        "hidden",
        "index",
        "things",
        "transforms",
        "verdict",
    )

    def __init__(
        self,
        index: int,
        verdict: str,
        match: Match,
        transforms: Transforms | None,
        resolvers: list[Resolver],
    ) -> None:
        self.index: Final[int] = index
        self.verdict: Final[str] = verdict
        self.transforms: Final[Transforms | None] = transforms
        self.hidden: Final[HiddenProperties | None] = (
            None if transforms is None else HiddenProperties(transforms)
        )
        self._stripped: Final[list[tuple[str, ...]]] = (
            [] if transforms is None else [property_path(path) for path in transforms.strip]
        )
        self.things: Final[dict[str, Things]] = {
            resolver.model.digest: resolver.resolve(match) for resolver in resolvers
        }
        self.asks_steps_alone: Final[bool] = verdict in ("block", "log_only")
        self.has_parts: Final[bool] = verdict == "block" and any(
            things.parts for things in self.things.values()
        )

    def named_property(self, tail: tuple[str, ...]) -> bool:
        """Return True if the path leads to a hidden property, or to an object that has a hidden property."""
        hidden = self.hidden
        if hidden is None or not tail:
            return False
        if hidden.named_below(tail) is not Naming.NOTHING:
            return True
        names = tuple([name for name in tail if name not in _OPTIONS])
        return bool(names) and any(path[: len(names)] == names for path in self._stripped)

    def may_name_property(self, names: tuple[str, ...]) -> bool:
        """Return True if a path that no schema describes names a property that the filter removes."""
        hidden = self.hidden
        return hidden is not None and hidden.named_within(names) is Naming.HIDDEN


class ThingRules:
    """All rules of a ruleset that name a resource, operation or pack, in the order of the ruleset file."""

    __slots__ = ("_by_member", "_by_type", "_models", "_resolvers", "_roots", "_rules", "_schemas", "_strips")

    def __init__(self, schemas: Schemas) -> None:
        self._schemas: Final[Schemas] = schemas
        self._models: Final[tuple[ResourceModel, ...]] = schemas.models
        self._resolvers: Final[list[Resolver]] = []
        self._rules: Final[list[ThingRule]] = []
        self._roots: Final[frozenset[str]] = frozenset(schemas.root_words)
        self._strips: Final[dict[tuple[str, int, int, bool], Transforms | None]] = {}
        self._by_member: Final[dict[tuple[str, int], tuple[int, ...]]] = {}
        self._by_type: Final[dict[tuple[str, int], tuple[int, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def facts(self) -> Facts:
        """Built-in facts, such as packs, about the first service for which such facts exist."""
        for resolver in self._resolvers:
            if resolver.facts.packs:
                return resolver.facts
        return NO_FACTS

    def add(self, index: int, verdict: str, match: Match, transforms: Transforms | None) -> None:
        if not self._rules:
            by_digest = {model.digest: model for model in self._models}
            self._resolvers.extend([Resolver(model) for model in by_digest.values()])
        self._rules.append(ThingRule(index, verdict, match, transforms, self._resolvers))

    def knows(self, segment: str) -> bool:
        """Return True if the lower-case segment may change which schema elements a path reaches."""
        if segment in _OPTIONS or segment in _NO_THINGS or segment in self._roots:
            return True
        simple = segment.rpartition(".")[2] if "." in segment else segment
        for model in self._models:  # noqa: SIM110 - runs for each segment of each request
            if model.name_id(simple) >= 0:
                return True
        return False

    def stricter_names(self) -> frozenset[str]:
        """Return the lower-case names of members that lead to a resource that a rule blocks or filters."""
        found: set[str] = set()
        for model in self._models:
            strict = [rule.things[model.digest] for rule in self._rules if rule.verdict in _STRICT]
            members = frozenset([member for things in strict for member in things.members])
            types = frozenset([type_ for things in strict for type_ in things.types | things.bases])
            for member in range(model.members):
                if member in members or model.member_type(member) in types:
                    found.add(model.member_name(member).lower())
        return frozenset(found)

    def finds(self, searched: str) -> tuple[tuple[int, Transforms | None], ...]:
        """Return each rule that blocks or filters a type that a search requests.

        Each item of the result has the rule's index in the ruleset, and the rule's transforms for objects of
        the requested type.
        """
        found: list[tuple[int, Transforms | None]] = []
        for resolver in self._resolvers:
            for type_, member in resolver.searched(searched):
                for rule in self._rules:
                    things = rule.things[resolver.model.digest]
                    if rule.verdict in _STRICT and _is_found(things, type_, member):
                        transforms = rule.transforms
                        if transforms is not None:
                            transforms = typed_transforms(transforms, things, type_, named=False)
                        found.append((rule.index, transforms))
        return tuple(found)

    def is_relation(self, names: tuple[Name, ...], word: str) -> bool:
        """Return True if the objects at the end of a path have a relation with the name `word`."""
        path = self.reached(names)
        if path is None or path.end_type < 0:
            return False
        number = path.model.name_id(word)
        member = path.model.member_of(path.end_type, number)[1] if number >= 0 else -1
        return member >= 0 and path.model.member_flags(member) & NAVIGATION != 0

    def fit(self, name: Name) -> int:
        """Return a number from 0 to 2 for how well the schema describes one path of an implied request.

        An implied request is a request that another request causes. The number is 2 if the schema describes
        each segment of the path, and 1 if the schema does not describe the path. The number is 0 if the
        schema expects an object ID at a position where the path has a relation.
        """
        found = self._schemas.of(name.folded)
        if found is None:
            return 1
        model, start = found
        steps = reaches(model, name.folded[start:], frozenset([at - start for at in name.keys]))
        for at, step in enumerate(steps):
            if step.kind == UNKNOWN_STEP:
                return 1
            if step.kind == KEY and at + start in name.relations:
                return 0
        return 2

    def reaches(self, names: tuple[Name, ...]) -> str:
        """Describe for people the types, members and operations that a resource's path reaches.

        The description of a resource is empty if no schema describes the resource.
        """
        path = self.reached(names)
        return "" if path is None else told(path)

    def met(self, index: int, names: tuple[Name, ...]) -> str:
        """Return a text with the path step at which a rule applies, such as `resource message, step 2`."""
        path = self.reached(names)
        rule = next((each for each in self._rules if each.index == index), None)
        if path is None or rule is None:
            return "a path without a schema"
        at = met_by(rule.things[path.model.digest], path).step
        if at < 0:
            at = len(path.steps) - 1
        if at < 0:
            return ""
        word = "operation" if path.steps[at].operations else "resource"
        return f"{word} {named_step(path, at)}, step {step_number(path, at)}"

    def reached(self, names: tuple[Name, ...]) -> ReachedPath | None:
        """Return the schema elements to which a resource's path leads, one for each segment of the path.

        If a resource has several names (paths), the function uses the name that a schema describes best.

        Return None if no schema describes the resource.
        """
        best: ReachedPath | None = None
        for name in names:
            found = self._schemas.of(name.folded)
            if found is None:
                continue
            model, start = found
            quoted = frozenset([at - start for at in name.keys])
            path = ReachedPath(model, name.folded[start:], start, quoted)
            if best is None or _tells_more(path, best):
                best = path
        return best

    def findings(self, names: tuple[Name, ...], *, certain_only: bool) -> list[Finding]:
        """Return the rules about schema elements that apply to a resource.

        If `certain_only` is True, a rule applies only if the path certainly reaches a resource or operation
        that the rule names.
        """
        if not names or any(self._reaches_nothing(name.folded) for name in names):
            return []
        path = self.reached(names)
        found: list[Finding] = []
        touched = self._touched(path) if path is not None and path.certain else None
        for at, rule in enumerate(self._rules):
            if path is None:
                self._add_unknown(rule, found, certain_only)
            elif touched is None or at in touched or not rule.asks_steps_alone:
                self._add(rule, path, found, certain_only)
            elif rule.has_parts:
                self._add_strips(rule, path, found)
        return found

    def _add_strips(self, rule: ThingRule, path: ReachedPath, found: list[Finding]) -> None:
        """Add a finding if the path leads to a property that the rule hides, or to objects that have one."""
        if not path.steps:
            return
        parts = rule.things[path.model.digest].parts
        if any(_leads_to_part(part, path) for part in parts):
            found.append(Finding(rule.index, HIDES, YES))
            return
        key = (path.model.digest, rule.index, path.end_type, calls_delta(path))
        if key not in self._strips:
            typed = [
                TypedTransforms(part.owners, path.end_type, False, part.names)
                for part in parts
                if end_may_hold(part.owners, path)
            ]
            self._strips[key] = Transforms(typed=tuple(typed)) if typed else None
        strips = self._strips[key]
        if strips is not None:
            found.append(Finding(rule.index, STRIPS, INDETERMINATE, strips))

    def _touched(self, path: ReachedPath) -> set[int]:
        """Return the positions of the rules that name a type, a member or an operation of the path."""
        touched: set[int] = set()
        digest = path.model.digest
        for step in path.steps:
            if step.type >= 0:
                known = self._by_type.get((digest, step.type))
                if known is None:
                    known = self._by_type[digest, step.type] = self._naming(digest, step.type)
                touched.update(known)
            if step.operations:
                touched.update(range(len(self._rules)))
            elif step.member >= 0 and step.kind != ROOT:
                known = self._by_member.get((digest, step.member))
                if known is None:
                    known = self._by_member[digest, step.member] = self._naming_member(digest, step.member)
                touched.update(known)
        return touched

    def _naming_member(self, digest: str, member: int) -> tuple[int, ...]:
        """Return the positions of the rules that name the given relation or property."""
        return tuple([at for at, rule in enumerate(self._rules) if member in rule.things[digest].members])

    def _naming(self, digest: str, type_: int) -> tuple[int, ...]:
        """Return the positions of the rules that name the given type, or a stream of objects of the type."""
        found: list[int] = []
        for at, rule in enumerate(self._rules):
            things = rule.things[digest]
            if type_ in things.types or type_ in things.bases or type_ in things.streams:
                found.append(at)
        return tuple(found)

    def _reaches_nothing(self, folded: tuple[str, ...]) -> bool:
        """Return True for the path of `$metadata` or `$batch`.

        The rules evaluate only the sub-requests of a `$batch`, not the outer request.
        """
        if not folded or folded[-1] not in _NO_THINGS:
            return False
        found = self._schemas.of(folded)
        return len(folded) == (1 if found is None else found[1]) + 1

    def _add_unknown(self, rule: ThingRule, found: list[Finding], certain_only: bool) -> None:
        """Add a finding for a path that no schema describes.

        For an unknown path, a blocking rule applies, but an allowing rule does not.
        """
        if rule.verdict == "allow" or certain_only:
            return
        transforms = rule.transforms
        if transforms is not None:
            for things in rule.things.values():
                transforms = typed_transforms(transforms, things, _NO_TYPE, named=False)
                break
        found.append(Finding(rule.index, RULE, INDETERMINATE, transforms))

    def _add(self, rule: ThingRule, path: ReachedPath, found: list[Finding], certain_only: bool) -> None:
        things = rule.things[path.model.digest]
        if rule.verdict == "allow":
            if allowed_by(things, path):
                found.append(Finding(rule.index, RULE, YES))
            return
        if rule.verdict == "filter":
            self._add_filter(rule, things, path, found, certain_only)
            return
        held = met_by(things, path).held
        if held != NO and not (certain_only and held == MAYBE):
            found.append(Finding(rule.index, RULE, YES if held > MAYBE else INDETERMINATE))
        if rule.verdict == "block" and held == NO and things.parts:
            self._add_strips(rule, path, found)

    def _add_filter(
        self,
        rule: ThingRule,
        things: Things,
        path: ReachedPath,
        found: list[Finding],
        certain_only: bool,
    ) -> None:
        transforms = rule.transforms
        allowed = allowed_by(things, path)
        if transforms is None or not (allowed or response_may_hold(things, path)):
            return
        if path.certain:
            if rule.named_property(property_tail(things, path)):
                found.append(Finding(rule.index, HIDES, YES))
                return
        elif certain_only:
            return
        elif rule.may_name_property(path.names):
            found.append(Finding(rule.index, HIDES, INDETERMINATE))
            return
        if path.certain and path.end_type < 0:
            if allowed:
                found.append(Finding(rule.index, NOTHING_HIDDEN, YES))
            return
        if allowed or not certain_only:
            named = path.certain and ends_with_named(things, path)
            typed = typed_transforms(transforms, things, path.end_type, named=named)
            if not typed.keep and not typed.typed:
                return  # the items are other objects
            found.append(Finding(rule.index, RULE, YES if allowed else INDETERMINATE, typed))


def _is_found(things: Things, type_: int, member: int) -> bool:
    if member >= 0:
        return member in things.members
    return type_ in things.types or type_ in things.bases


def _leads_to_part(part: Part, path: ReachedPath) -> bool:
    """Return True if the path leads through one of the properties that `part` names."""
    names = [name.lower() for name in part.names]
    before = _NO_TYPE
    for step, name in zip(path.steps, path.names, strict=False):
        if name in names and (before in part.owners.types or before in part.owners.bases):
            return True
        before = step.type
    return False


def typed_transforms(transforms: Transforms, things: Things, root: int, *, named: bool) -> Transforms:
    """Return the transforms of a rule, adapted to a response whose objects have the schema type `root`."""
    typed: tuple[TypedTransforms, ...] = ()
    if transforms.strip or transforms.allow is not None:
        typed = (TypedTransforms(things, root, named, transforms.strip, transforms.allow),)
    # A response with objects of other types keeps them all.
    of_things = named or root < 0 or root in things.types or root in things.bases
    return replace(transforms, strip=(), allow=None, typed=typed, keep=transforms.keep if of_things else ())


def _tells_more(path: ReachedPath, other: ReachedPath) -> bool:
    """Return True if `path` describes the request better than `other`.

    A path whose schema elements are certain is better. If both paths are equally certain, the path with more
    steps is better.
    """
    if path.certain is not other.certain:
        return path.certain
    return len(path.steps) > len(other.steps)
