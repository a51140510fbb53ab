"""Hide properties of each object of a schema type, anywhere in a response.

The type of an object follows from the request path, from the names of the members that lead to the object,
and from its own `@odata.type`. If an object does not state its type, the filter treats the object as every
type that it may have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from proxy.policy import json_text
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.filters import (
    _UNLISTED,
    CompiledFilter,
    _Bare,
    _intersection,
    _Level,
    _segments,
    _Tree,
    _tree,
    _united,
    _Within,
    _within_tree,
    compile_filter,
)
from proxy.policy.reached import MAYBE, NO, YES
from proxy.policy.shapes import TYPE_ANNOTATIONS, Fate
from proxy.policy.thing_rows import Things
from proxy.policy.transforms import Transforms, TypedTransforms, strip_name

_UNKNOWN = -1
_MOST_TYPES = 256  # values of `@odata.type` whose levels are remembered
_TYPE_FIRST = re.compile(rb'\{\s*+"@(?:odata\.)?type"\s*+:\s*+"([^"\\]*+)"')
_TYPE_SOMEWHERE = re.compile(rb'"@(?:odata\.)?type"')


def filter_of(transforms: Transforms) -> CompiledFilter:
    """Return the compiled response filter for transforms, of which some may apply only to schema types."""
    return TypedFilter(transforms) if transforms.typed else compile_filter(transforms)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Transforms of one filter rule. Each property path has a bit that marks the removal of the property."""

    things: Things
    strip: tuple[tuple[str, int], ...]
    allow: _Tree | None
    unlisted: int


@dataclass(frozen=True, slots=True)
class _Here:
    """State of one filter rule at one position in a JSON response.

    The state is the schema type of the objects at the position (`type`). If the rule is about objects that
    are nested deeper, the state is the names of the JSON members that lead to these objects (`place`).
    """

    rule: int
    type: int  # -1: unknown
    exact: bool = False  # the object stated its type
    named: bool = False  # the rule names the objects by the path that led to them
    place: tuple[str, ...] = ()


class TypedFilter(CompiledFilter):
    """A response filter with transforms by type, in addition to transforms of the whole response."""

    def __init__(self, transforms: Transforms) -> None:
        super().__init__(replace(transforms, typed=()))
        self._hides = True
        rules = [self._rule_of(each) for each in transforms.typed]
        here = tuple(
            _Here(at, each.root, named=each.named, place=tuple(_segments(each.place)) if each.place else ())
            for at, each in enumerate(transforms.typed)
        )
        strip = self._document.strip
        allow = self._document.allow
        first_within = 2 << len(transforms.strip)
        within = _within_tree(transforms.within, first_within)
        cause = self._document.not_allowed.cause
        context = _Context(rules)
        items = _TypedLevel(context, here, strip, allow, within, cause=cause, is_items=True)
        self._document = _TypedLevel(context, here, strip, allow, within, cause=cause, value_fate=items)

    def _rule_of(self, typed: TypedTransforms) -> _Rule:
        strip: list[tuple[str, int]] = []
        for path in typed.strip:
            strip.append((path, 1 << len(self._names)))
            self._names.append((strip_name(path),))
        unlisted = 1 << len(self._names)
        self._names.append(typed.allow_names)
        allow = None if typed.allow is None else _tree((path, unlisted) for path in typed.allow)
        return _Rule(typed.things, tuple(strip), allow, unlisted)


class _Context:
    """The rules of one response filter.

    A response filter has a level for each position in the JSON response. All levels use these rules.
    """

    def __init__(self, rules: list[_Rule]) -> None:
        self.rules = rules

    def applies(self, here: _Here) -> bool:
        if here.place:
            return False
        things = self.rules[here.rule].things
        if here.named or here.type in things.types:
            return True
        return not here.exact and (here.type == _UNKNOWN or here.type in things.bases)

    def below(self, here: _Here, name: str) -> _Here | None:
        """Return the state of the rule of `here` for the objects in the JSON member `name`.

        Return None if the rule does not apply to the objects in this JSON member.
        """
        if here.place:
            first, *rest = here.place
            return replace(here, place=tuple(rest)) if first == name else None
        things = self.rules[here.rule].things
        if here.type == _UNKNOWN:
            return _Here(here.rule, _UNKNOWN)
        found = _members_named(things, here, name)
        if not found:  # the schema does not have the member, so it may contain anything
            return _Here(here.rule, _UNKNOWN)
        types = {things.model.member_type(member) for member, _ in found}
        named = any(held != NO for _, held in found)
        if len(types) > 1:
            return _Here(here.rule, _UNKNOWN, named=named)
        (type_,) = types
        if not named and type_ not in things.leading:
            return None
        return _Here(here.rule, type_, exact=type_ < 0, named=named)


def _members_named(things: Things, here: _Here, name: str) -> list[tuple[int, int]]:
    """Return the schema members with the given name.

    For each schema member, return YES, MAYBE or NO, which states if the rule names the member
    """
    number = things.model.name_id(name)
    if number < 0:
        return []
    found: dict[int, int] = {}
    types = [here.type] if here.exact else list(things.inheritance.with_derived((here.type,)))
    for type_ in types:
        member = things.model.member_of(type_, number)[1]
        if member < 0:
            continue
        named = things.members.get(member)
        held = NO
        if named is not None:
            held = YES if type_ in named.owners else MAYBE if type_ in named.bases else NO
        found[member] = max(found.get(member, NO), held)
    return list(found.items())


class _TypedLevel(_Level):
    """Part of a response filter for the objects at one JSON position, which may have different types."""

    by_type = True

    def __init__(
        self,
        context: _Context,
        here: tuple[_Here, ...],
        strip: _Tree,
        allow: _Tree | None,
        within: dict[str, _Within],
        *,
        cause: int = _UNLISTED,
        is_items: bool = False,
        value_fate: _Level | None = None,
    ) -> None:
        self._context = context
        self._here = here
        self._given = (strip, allow, within, cause)
        self._is_items = is_items
        self._unknown = any(each.type == _UNKNOWN and not each.exact for each in here if not each.place)
        self._by_annotation: BoundedMemo[bytes, _TypedLevel] = BoundedMemo(_MOST_TYPES, 512, WhenFull.KEEP)
        strip_given, allow_given = strip, allow
        for each in here:
            if context.applies(each):
                rule = context.rules[each.rule]
                strip = _united(strip, _tree(rule.strip))
                if rule.allow is not None:
                    cause = rule.unlisted if allow is None else cause | rule.unlisted
                    allow = rule.allow if allow is None else _intersection(allow, rule.allow)
        # Only objects have a type. For any other value, the place itself decides what is hidden.
        bare = _Bare.STAYS if allow_given is None else _Bare.GOES
        if is_items:
            bare = _Bare.FAILS if self._unknown or strip_given or allow_given is not None else _Bare.STAYS
        super().__init__(
            strip,
            allow,
            within,
            cause=cause,
            bare=bare,
            arrays_only=is_items,
            value_fate=value_fate,
        )

    def _child(self, name: str, base: str, strip: _Tree, allow: _Tree | None) -> _Level | Fate:
        known = self._children.get(name)
        if known is not None:
            return known
        here = tuple([below for each in self._here if (below := self._context.below(each, base)) is not None])
        if not here:
            return super()._child(name, base, strip, allow)
        child = super()._child(name, base, strip, allow)
        if isinstance(child, _Level):
            level = _TypedLevel(
                self._context, here, child.strip, child.allow, child._within, cause=child.not_allowed.cause
            )
        else:
            level = _TypedLevel(self._context, here, {}, None, {}, cause=self.not_allowed.cause)
        self._children[name] = level
        return level

    def for_object(self, text: bytes, start: int) -> _Level:
        annotation = _type_named(text, start)
        if annotation is None:
            return self
        level = self._by_annotation.entries.get(annotation)
        if level is None:
            level = self._narrowed(annotation)
            self._by_annotation.keep(annotation, level)
        return level

    def _narrowed(self, annotation: bytes) -> _TypedLevel:
        """Return the filter for those objects at this position whose `@odata.type` is `annotation`."""
        name = annotation.decode("utf-8", "replace").rpartition("#")[2].lower()
        here = tuple([self._narrow(each, name) for each in self._here])
        if here == self._here:
            return self
        strip, allow, within, cause = self._given
        return _TypedLevel(
            self._context,
            here,
            strip,
            allow,
            within,
            cause=cause,
            is_items=self._is_items,
            value_fate=self.value_fate,
        )

    def _narrow(self, here: _Here, name: str) -> _Here:
        """Narrow the expected type of objects to the type that the response states for them.

        If the stated type does not derive from the expected type, ignore the stated type: the object may have
        either type.
        """
        things = self._context.rules[here.rule].things
        model = things.model
        type_ = model.type_of(name)
        if here.place or type_ < 0:
            return here
        if here.type != _UNKNOWN and model.distance(type_, here.type) < 0:
            return here
        return replace(here, type=type_, exact=type_ not in things.bases)


def _type_named(text: bytes, start: int) -> bytes | None:
    """Return the type that `@odata.type` of an object states. Return None if the object states no type."""
    first = _TYPE_FIRST.match(text, start)
    if first is not None:
        return first[1]
    if _TYPE_SOMEWHERE.search(text, start) is None:
        return None
    found = [
        text[member.value_start + 1 : member.value_end - 1]
        for member in json_text.members(text, start)
        if member.name in TYPE_ANNOTATIONS
    ]
    return found[0] if len(found) == 1 else None
