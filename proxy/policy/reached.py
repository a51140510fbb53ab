"""Find the types, relations and operations to which a request path leads in the schema."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Final

from proxy.policy.resource_model import (
    ACTION,
    BOUND,
    BOUND_TO_COLLECTION,
    COLLECTION,
    ENTITY,
    NAVIGATION,
    STREAM,
    ResourceModel,
)

# Kinds of steps.
ROOT: Final = 0  # an entity set or a singleton
KEY: Final = 1
RELATION: Final = 2  # a navigation property
PROPERTY: Final = 3
CONTENT: Final = 4  # a property that is a stream
CAST: Final = 5
OPERATION: Final = 6
OPTION: Final = 7  # `$ref`, `$value` or `$count`
INDETERMINATE: Final = 8  # this segment and all later ones may lead to anything

# Three-valued results.
NO: Final = 0
MAYBE: Final = 1
YES: Final = 2

# Starting points of the next segment.
_SERVICE: Final = 0
_ONE: Final = 1
_MANY: Final = 2
_VALUE: Final = 3  # a value without a type in the schema, or several values
_END: Final = 4

_NONE: Final = -1
_CALL: Final = re.compile(r"[a-z_][\w.]*\(")
_NO_OPERATIONS: Final[tuple[int, ...]] = ()
_NO_POSITIONS: Final[frozenset[int]] = frozenset()


class Step:
    """One segment of a path, and the schema type to which it leads; -1 for a value or an unknown type.

    `owner` is the type that declares the relation or property. `member` is the row of the relation or
    property in the schema's table. For an entity set or a singleton, `member` is its row number in the
    schema's table of service roots.
    """

    __slots__ = ("collection", "kind", "member", "operations", "owner", "type")

    def __init__(
        self,
        kind: int,
        type_: int = _NONE,
        collection: bool = False,
        owner: int = _NONE,
        member: int = _NONE,
        operations: tuple[int, ...] = _NO_OPERATIONS,
    ) -> None:
        self.kind: Final[int] = kind
        self.type: Final[int] = type_
        self.collection: Final[bool] = collection
        self.owner: Final[int] = owner
        self.member: Final[int] = member
        self.operations: Final[tuple[int, ...]] = operations  # overloads that the segment may call


_LOST: Final = Step(INDETERMINATE)


def reaches(
    model: ResourceModel, names: Sequence[str], quoted: Container[int] = _NO_POSITIONS
) -> tuple[Step, ...]:
    """Return a Step (segment and schema element) for each segment of a path after its version.

    The result ends with the first segment that may lead to anything (kind INDETERMINATE).

    `quoted` has the positions of segments in quotes or parentheses. A segment in quotes or parentheses is an
    object ID, never an operation.
    """
    walk = _Walk(model)
    for at, name in enumerate(names):
        step = walk.next(name.lower(), at in quoted)
        walk.steps.append(step)
        if step.kind == INDETERMINATE:
            break
    return tuple(walk.steps)


def reaches_type(model: ResourceModel, steps: Sequence[Step], type_: int) -> int:
    """Return YES if a path segment leads to the given type or to a type derived from the given type.

    Otherwise, the result is MAYBE if a path segment may lead to anything (kind INDETERMINATE). The result is
    also MAYBE if a segment leads to a base type of the given type, because the object may have the given
    type.
    """
    best = NO
    for step in steps:
        if step.kind == INDETERMINATE:
            best = MAYBE
        elif step.type >= 0:
            if model.distance(step.type, type_) >= 0:
                return YES
            if model.distance(type_, step.type) > 0:
                best = MAYBE
    return best


def reaches_member(steps: Sequence[Step], owner: int, member: int) -> int:
    """Return whether one of the path's steps is the given relation or property of `owner`."""
    best = NO
    for step in steps:
        if step.kind == INDETERMINATE:
            best = MAYBE
        elif step.owner == owner and step.member == member and owner >= 0:
            return YES
    return best


class _Walk:
    """State of a walk through the schema along one request path: the current place and the steps so far."""

    __slots__ = ("_model", "_place", "_type", "steps")

    def __init__(self, model: ResourceModel) -> None:
        self._model: Final[ResourceModel] = model
        self._place: int = _SERVICE
        self._type: int = _NONE
        self.steps: Final[list[Step]] = []

    def next(self, name: str, quoted: bool) -> Step:
        place = self._place
        if name.startswith("$") and not quoted:
            return self._option(name)
        if place == _MANY:
            return self._key() if quoted else self._in_collection(name)
        if quoted:
            return _LOST
        if place == _ONE:
            return self._of_object(name)
        return self._at_service(name) if place == _SERVICE else _LOST

    def _go(self, type_: int, collection: bool) -> None:
        self._type = type_
        if type_ < 0:
            self._place = _VALUE
        else:
            self._place = _MANY if collection else _ONE

    def _option(self, name: str) -> Step:
        place = self._place
        many = place == _MANY
        known = (
            (name == "$count" and (many or place == _VALUE))
            or (name == "$ref" and (many or place == _ONE))
            or (name == "$value" and (place == _ONE or place == _VALUE))
        )
        if not known:
            return _LOST
        self._place = _END
        return Step(OPTION, self._type, many)

    def _at_service(self, name: str) -> Step:
        model = self._model
        number = model.name_id(name)
        root = model.root_of(number) if number >= 0 else _NONE
        if root < 0:
            return self._operation(name, _NONE, False)
        type_, many = model.root_type(root), (model.root_flags(root) & COLLECTION) != 0
        self._go(type_, many)
        return Step(ROOT, type_, many, member=root)

    def _in_collection(self, name: str) -> Step:
        """Interpret the path segment as an operation, a cast or an object ID, in this order."""
        simple = _called(name)
        number = self._model.name_id(simple.rpartition(".")[2])
        if number >= 0:
            found = self._overloads(simple, number, self._type, True)
            if found:
                return self._called_operation(found)
            if self._derived_has_operation(simple, number):
                return _LOST
        if name.endswith(")") and _CALL.match(name) is not None:
            return _LOST
        if "." in name:
            cast = self._cast(name)
            if cast is not None:
                return cast
            if self._model.has_space_of(name):
                return _LOST
        return self._key()

    def _key(self) -> Step:
        if not self._model.type_flags(self._type) & ENTITY:
            return _LOST
        self._place = _ONE
        return Step(KEY, self._type)

    def _of_object(self, name: str) -> Step:
        model = self._model
        number = model.name_id(name)
        if number >= 0:
            owner, member = model.member_of(self._type, number)
            if member >= 0:
                flags, type_ = model.member_flags(member), model.member_type(member)
                many = (flags & COLLECTION) != 0
                self._go(type_, many)
                kind = RELATION if flags & NAVIGATION else CONTENT if flags & STREAM else PROPERTY
                return Step(kind, type_, many, owner, member)
        if "." in name:
            cast = self._cast(name)
            if cast is not None:
                return cast
        return self._operation(name, self._type, False)

    def _cast(self, name: str) -> Step | None:
        """Return the path step for a type's name, or None if the schema has no such type."""
        model = self._model
        type_ = model.type_of(name)
        if type_ < 0:
            return None
        if model.distance(type_, self._type) < 0:
            if model.distance(self._type, type_) < 0:
                return _LOST
            type_ = self._type  # a cast to a base type does not change the type of the object
        self._type = type_
        return Step(CAST, type_, self._place == _MANY)

    def _derived_has_operation(self, simple: str, number: int) -> bool:
        """Return True if an operation of the given name is bound to collections of a derived type."""
        model = self._model
        first, last = model.operations_of(number)
        for each in range(first, last):
            if (
                model.operation_flags(each) & BOUND_TO_COLLECTION
                and model.distance(model.operation_binds(each), self._type) >= 0
                and ("." not in simple or model.names_space_of(simple, each))
            ):
                return True
        return False

    def _operation(self, name: str, type_: int, many: bool) -> Step:
        simple = _called(name)
        number = self._model.name_id(simple.rpartition(".")[2])
        if number < 0:
            return _LOST
        found = self._overloads(simple, number, type_, many)
        return self._called_operation(found) if found else _LOST

    def _overloads(self, simple: str, number: int, type_: int, many: bool) -> list[int]:
        """Return the operation's overloads for the type, or otherwise for its nearest base type.

        If the type is -1 (no type), return the operation's overloads that are not bound to a type.
        """
        model = self._model
        first, last = model.operations_of(number)
        wanted = 0 if type_ < 0 else BOUND | BOUND_TO_COLLECTION if many else BOUND
        found: list[int] = []
        while first < last:
            start, end = model.operations_bound_to(type_, first, last)
            found = [
                each
                for each in range(start, end)
                if model.operation_flags(each) & (BOUND | BOUND_TO_COLLECTION) == wanted
                and ("." not in simple or model.names_space_of(simple, each))
            ]
            type_ = model.base_of(type_) if type_ >= 0 else _NONE
            if found or type_ < 0:
                break
        return found

    def _called_operation(self, found: list[int]) -> Step:
        model = self._model
        returned = model.operation_returns(found[0])
        many = (model.operation_flags(found[0]) & COLLECTION) != 0
        actions = True
        for each in found:
            flags = model.operation_flags(each)
            if model.operation_returns(each) != returned or ((flags & COLLECTION) != 0) != many:
                return Step(INDETERMINATE, operations=tuple(found))
            if not flags & ACTION:
                actions = False
        self._go(returned, many)
        if actions:
            self._place = _END  # a path ends with an action
        return Step(OPERATION, returned, many, operations=tuple(found))


def _called(name: str) -> str:
    """Return the name of an operation without its arguments."""
    return name[: name.index("(")] if name.endswith(")") and "(" in name else name
