"""Decide if a path reaches a schema element (type, member or operation) that a rule names.

A blocking rule applies if it names a schema element that any segment of the path reaches, or may reach.
Everything below a schema element in a path counts as a part of this element. The conditions for a rule that
allows are stricter than those for a rule that blocks. An allowing rule applies only if it certainly names the
schema element at the end of the path. An allowing rule must also name each relation on the path that refers
to objects without containing these objects.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from proxy.policy.reached import (
    CAST,
    CONTENT,
    INDETERMINATE,
    KEY,
    MAYBE,
    NO,
    OPERATION,
    OPTION,
    PROPERTY,
    RELATION,
    ROOT,
    YES,
    Step,
    reaches,
)
from proxy.policy.resource_model import (
    ACTION,
    CONTAINED,
    NAVIGATION,
    STREAM,
    ResourceModel,
)
from proxy.policy.thing_rows import Things

_NONE: Final = -1
_VALUE: Final = "$value"
_REF: Final = "$ref"
_DELTA: Final = "delta"
_MOST_INLINE: Final = 16  # levels of nested complex types that are examined


class ReachedPath:
    """The way of one path through the schema, and the path segments from which its steps were made."""

    __slots__ = ("certain", "model", "names", "start", "steps")

    def __init__(
        self, model: ResourceModel, names: Sequence[str], start: int, quoted: Container[int]
    ) -> None:
        self.model: Final[ResourceModel] = model
        self.names: Final[tuple[str, ...]] = tuple(names)
        self.start: Final[int] = start  # number of segments of the root before the names
        self.steps: Final[tuple[Step, ...]] = reaches(model, names, quoted)
        self.certain: Final[bool] = not self.steps or self.steps[-1].kind != INDETERMINATE

    @property
    def end_type(self) -> int:
        """Schema type of the objects at the end of the path; -1 for a value or an unknown type."""
        return self.steps[-1].type if self.steps and self.certain else _NONE


class Met:
    """Result of a search in the steps of a path for a schema element that a rule names.

    `held` says if the path reaches such an element: YES, MAYBE or NO. `step` is the index of the path's step
    that reaches the element, or -1 if no step reaches such an element.
    """

    __slots__ = ("held", "step")

    def __init__(self, held: int, step: int) -> None:
        self.held: Final[int] = held
        self.step: Final[int] = step


_NOT_MET: Final = Met(NO, _NONE)


def met_by(things: Things, path: ReachedPath) -> Met:
    """Find the step of the path that most certainly reaches a schema element that the rule names."""
    best = _NOT_MET
    before = relation = _NONE
    steps = path.steps
    for at, step in enumerate(steps):
        if step.kind != KEY:
            relation = step.member if step.kind == RELATION else _NONE
        held = _held_by(things, path, at, before, relation)
        if held > best.held:
            best = Met(held, at)
            if held == YES:
                break
        before = step.type
    return best


def _held_by(things: Things, path: ReachedPath, at: int, before: int, relation: int) -> int:
    step = path.steps[at]
    kind = step.kind
    if kind == INDETERMINATE:
        return MAYBE
    if kind == OPTION:
        return MAYBE if path.names[at] == _VALUE and before in things.streams else NO
    held = NO
    if step.operations:
        for operation in step.operations:
            if operation in things.operations or operation in things.handing:
                return YES
    if kind == RELATION or kind == PROPERTY or kind == CONTENT:
        held = _member_held(things, step.member, before)
        if held == YES:
            return held
    if step.type >= 0 and not _is_narrowed(path.steps, at):
        if step.type in things.types:
            return YES
        if step.type in things.bases and relation not in things.elsewhere:
            return MAYBE
    return held


def _member_held(things: Things, member: int, owner: int) -> int:
    named = things.members.get(member)
    if named is None:
        return NO
    if owner in named.owners:
        return YES
    return MAYBE if owner in named.bases else NO


def _is_narrowed(steps: Sequence[Step], at: int) -> bool:
    """Return True if the next segment of the path is an object ID or a type cast, which selects objects."""
    return at + 1 < len(steps) and (steps[at + 1].kind == KEY or steps[at + 1].kind == CAST)


def allowed_by(things: Things, path: ReachedPath) -> bool:
    """Return True if the rule names each schema element that a request for the path reads or writes.

    Return False if the schema elements that the path reaches are not certain.
    """
    if not path.certain or not path.steps:
        return False
    covered = named = False
    casts = True  # a cast may narrow the objects to named ones
    before = _NONE
    for at, step in enumerate(path.steps):
        kind = step.kind
        if kind == ROOT:
            covered = step.type in things.types
        elif kind == CAST:
            covered = covered or (casts and step.type in things.types)
        elif kind == RELATION:
            named = _member_held(things, step.member, before) == YES
            contained = path.model.member_flags(step.member) & CONTAINED != 0
            covered = named or step.type in things.types
            casts = contained
            if not covered and not contained:
                return False
        elif kind == PROPERTY:
            covered = covered or step.type in things.types or _member_held(things, step.member, before) == YES
        elif kind == CONTENT:
            covered = _member_held(things, step.member, before) == YES
        elif kind == OPERATION:
            covered = _operation_covered(things, path.model, step)
            casts = True
            named = False
        elif kind == OPTION:
            covered = _option_covered(things, path, at, before, covered, named)
        before = step.type
    return covered


def _operation_covered(things: Things, model: ResourceModel, step: Step) -> bool:
    """Return True if the rule names the operation, or the type that the operation (a function) returns."""
    if all(operation in things.operations for operation in step.operations):
        return True
    if any(model.operation_flags(operation) & ACTION != 0 for operation in step.operations):
        return False
    return step.type in things.types


def _option_covered(
    things: Things, path: ReachedPath, at: int, before: int, covered: bool, named: bool
) -> bool:
    """Return whether the rule covers an OData option such as `$ref` at the end of a path.

    The option `$ref` reads or writes a relation, but not the objects of the relation. The option `$value` may
    address the stream of an object, which a rule covers separately.
    """
    name = path.names[at]
    if name == _REF:
        return named
    if name == _VALUE and before >= 0 and _has_stream(path.model, before):
        return before in things.streams
    return covered


def _has_stream(model: ResourceModel, type_: int) -> bool:
    while type_ >= 0:
        first, end = model.members_of(type_)
        for member in range(first, end):
            if model.member_flags(member) & STREAM:
                return True
        type_ = model.base_of(type_)
    return False


def response_may_hold(things: Things, path: ReachedPath) -> bool:
    """Return True if the response may contain an object that the rule names, even without `$expand`."""
    if not path.certain:
        return True
    if not path.steps:
        return False
    if allowed_by(things, path) or ends_with_named(things, path):
        return True
    return end_may_hold(things, path)


def end_may_hold(things: Things, path: ReachedPath) -> bool:
    """Return True if the rule may name the type or a part of the objects at an unambiguous path's end."""
    end = path.steps[-1]
    if end.type < 0:
        return False
    navigations = calls_delta(path)
    known = things.known_to_hold(end.type, navigations)
    if known is None:
        known = _may_hold(things, path.model, end.type, navigations, _MOST_INLINE)
        things.remember(end.type, navigations, known)
    return known


def ends_with_named(things: Things, path: ReachedPath) -> bool:
    """Return True if the rule names the relation, property or operation at the end of the path."""
    before = _NONE
    held = False
    for step in path.steps:
        if step.kind in (RELATION, PROPERTY, CONTENT):
            held = _member_held(things, step.member, before) != NO or (held and step.kind == PROPERTY)
        elif step.kind == OPERATION:
            held = any(operation in things.operations for operation in step.operations)
        before = step.type
    return held


def _may_hold(things: Things, model: ResourceModel, type_: int, navigations: bool, depth: int) -> bool:
    """Return True if objects of the schema type may be, or contain, a schema element that the rule names.

    The function examines the type `type_`, its base types, and the complex types within these types. If
    `navigations` is True, the function also examines the types that are one relation away from `type_`.
    """
    if type_ in things.types or type_ in things.bases:
        return True
    if depth == 0:
        return True
    each = type_
    while each >= 0:
        first, end = model.members_of(each)
        for member in range(first, end):
            if member in things.members:
                return True
            inner = model.member_type(member)
            if inner < 0 or inner == type_:
                continue
            if model.member_flags(member) & NAVIGATION:
                if navigations and (inner in things.types or inner in things.bases):
                    return True
            elif _may_hold(things, model, inner, False, depth - 1):
                return True
        each = model.base_of(each)
    return False


def calls_delta(path: ReachedPath) -> bool:
    """Return True if the path calls `delta`, which returns objects with relations even without `$expand`."""
    return any(
        step.kind == OPERATION and name.rpartition(".")[2].startswith(_DELTA)
        for step, name in zip(path.steps, path.names, strict=False)
    )


def property_tail(things: Things, path: ReachedPath) -> tuple[str, ...]:
    """Return the property names after the last object of the path.

    Return an empty tuple if this object cannot have a type that the rule names.
    """
    steps = path.steps
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if step.kind in (PROPERTY, CONTENT, OPTION):
            continue
        if step.type in things.types or step.type in things.bases:
            return tuple(path.names[at + 1 : len(steps)])
        return ()
    return ()


def step_number(path: ReachedPath, at: int) -> int:
    """Return the number by which a text for people refers to a step (a segment) of the path.

    Object IDs, casts and options do not count as steps, because each of them is part of the preceding step.
    """
    parts = (KEY, CAST, OPTION)
    return sum(step.kind not in parts for step in path.steps[: at + 1])


def named_step(path: ReachedPath, at: int) -> str:
    """Return the schema element at a path's step as text for people: a type, property or operation."""
    model, step = path.model, path.steps[at]
    if step.operations:
        return model.operation_name(step.operations[0])
    if step.kind == INDETERMINATE:
        return f"? ({path.names[at]})"
    if step.kind == PROPERTY or step.kind == CONTENT:
        return f"{_simple(model, step.owner)}.{model.member_name(step.member)}"
    return _simple(model, step.type)


def told(path: ReachedPath) -> str:
    """Describe a path's schema elements for people, such as `user → message (user.messages, contained)`."""
    model = path.model
    texts: list[str] = []
    before = _NONE
    for at, step in enumerate(path.steps):
        kind = step.kind
        simple = _simple(model, step.type)
        if kind == ROOT:
            texts.append(simple)
        elif kind == RELATION:
            member = f"{_simple(model, before)}.{model.member_name(step.member)}"
            contained = ", contained" if model.member_flags(step.member) & CONTAINED else ""
            texts.append(f"{simple} ({member}{contained})")
        elif kind == PROPERTY or kind == CONTENT:
            texts.append(f"{_simple(model, before)}.{model.member_name(step.member)}")
        elif kind == CAST and texts:
            texts[-1] = f"{texts[-1]} as {simple}"
        elif kind == OPERATION:
            name = model.operation_name(step.operations[0])
            many = " collection" if step.collection else ""
            texts.append(f"{simple}{many} ({name})" if step.type >= 0 else f"{name}()")
        elif kind == OPTION and texts:
            texts[-1] = f"{texts[-1]} {path.names[at]}"
        elif kind == INDETERMINATE:
            texts.append(f"? ({path.names[at]})")
        before = step.type if step.type >= 0 or kind not in (PROPERTY, CONTENT) else before
    return " → ".join(texts)


def _simple(model: ResourceModel, type_: int) -> str:
    return model.type_name(type_).rpartition(".")[2] if type_ >= 0 else "?"
