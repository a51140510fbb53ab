"""Tests of the types, relations and operations at a path: the same as in a list of all paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from controlplane.model.metadata import Navigation, Operation, Property, Schema, Type, TypeRef
from proxy.policy import reached
from proxy.policy.reached import MAYBE, NO, YES, Step, reaches, reaches_member, reaches_type
from proxy.policy.resource_model import ResourceModel
from tests.pure.test_resource_model import MODEL, SCHEMA

KINDS: Final = {
    reached.ROOT: "root",
    reached.KEY: "key",
    reached.RELATION: "relation",
    reached.PROPERTY: "property",
    reached.CONTENT: "content",
    reached.CAST: "cast",
    reached.OPERATION: "operation",
    reached.OPTION: "option",
    reached.INDETERMINATE: "?",
}


def steps_of(path: str, quoted: frozenset[int] = frozenset()) -> tuple[Step, ...]:
    return reaches(MODEL, path.split("/"), quoted)


def told(model: ResourceModel, step: Step) -> str:
    """Return a step of a path as text: its kind, its type, and `*` for a collection."""
    name = model.type_name(step.type).rpartition(".")[2] if step.type >= 0 else ""
    return f"{KINDS[step.kind]} {name}{'*' if step.collection else ''}".strip()


PATHS: Final = {
    "users": "root user*",
    "USERS/ada/Messages": "root user*, key user, relation message*",
    "me/messages/1/attachments/$count": (
        "root user, relation message*, key message, relation attachment*, option attachment*"
    ),
    "me/settings/timezone/$value": "root user, property mailboxSettings, property, option",
    "me/settings/owner/manager": (
        "root user, property mailboxSettings, relation user, relation directoryObject"
    ),
    "me/othermails/$count": "root user, property *, option",
    "groups/1/members/2/$ref": (
        "root group*, key group, relation directoryObject*, key directoryObject, option directoryObject"
    ),
    "groups/1/members/$ref": "root group*, key group, relation directoryObject*, option directoryObject*",
    "me/drive/root/content": "root user, relation drive, relation driveItem, content",
    "me/drive/root/children/1/$value": (
        "root user, relation drive, relation driveItem, relation driveItem*, key driveItem, option driveItem"
    ),
    # Casts.
    "directoryobjects/mail.user": "root directoryObject*, cast user*",
    "directoryobjects/sample.mail.user/1/messages": (
        "root directoryObject*, cast user*, key user, relation message*"
    ),
    "directoryobjects/1/mail.group/members": (
        "root directoryObject*, key directoryObject, cast group, relation directoryObject*"
    ),
    "users/mail.directoryobject": "root user*, cast user*",
    "users/mail.message": "root user*, ?",
    "users/mail.unheard": "root user*, ?",
    "users/ada.lovelace": "root user*, key user",
    # Operations.
    "users/delta": "root user*, operation user*",
    "users/delta()/1": "root user*, operation user*, key user",
    "users/sample.mail.delta": "root user*, operation user*",
    "users/mail.delta": "root user*, operation user*",
    "groups/delta": "root group*, operation directoryObject*",
    "directoryobjects/delta": "root directoryObject*, operation directoryObject*",
    "me/reminderview(from=a)/1/subject": "root user, operation message*, key message, property",
    "me/messages/1/send": "root user, relation message*, key message, operation",
    "me/messages/1/send/subject": "root user, relation message*, key message, operation, ?",
    "latest": "operation message",
    "latest()/subject": "operation message, property",
    "me/messages/1/any": "root user, relation message*, key message, ?",
    "me/drive/browse/1/content": (
        "root user, relation drive, operation driveItem*, key driveItem, content"  # a function and an action
    ),
    # A key position does not match the name of an operation.
    "groups/validate": "root group*, operation",
    "groups/VALIDATE/members": "root group*, operation, ?",
    "directoryobjects/validate": "root directoryObject*, ?",
    "users/send": "root user*, key user",
    "users/unheard(a=b)": "root user*, ?",
    "users/a (1)": "root user*, key user",
    # Names that the schema does not have.
    "unheard": "?",
    "users/ada/unheard/messages": "root user*, key user, ?",
    "directoryobjects/1/members": "root directoryObject*, key directoryObject, ?",
    "users/ada/membershiprule": "root user*, key user, ?",
    "me/$count": "root user, ?",
    "users/$value": "root user*, ?",
    "users/$each": "root user*, ?",
    "users/$count/1": "root user*, option user*, ?",
    "$batch": "?",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_reaches(path: str) -> None:
    assert ", ".join(told(MODEL, step) for step in steps_of(path)) == PATHS[path]


def test_a_quoted_key_is_no_operation() -> None:
    assert [told(MODEL, step) for step in steps_of("groups/validate/members", frozenset([1]))] == [
        "root group*",
        "key group",
        "relation directoryObject*",
    ]
    assert [told(MODEL, step) for step in steps_of("me/messages", frozenset([1]))] == ["root user", "?"]
    assert [told(MODEL, step) for step in steps_of("users/$count", frozenset([1]))] == [
        "root user*",
        "key user",
    ]


def test_a_relation_goes_by_the_type_that_declares_it() -> None:
    relation = MODEL.member_of(MODEL.type_of("mail.user"), MODEL.name_id("memberof"))
    assert reaches_member(steps_of("me/memberof/1"), *relation) == YES
    assert reaches_member(steps_of("me/settings/owner/memberof"), *relation) == YES
    assert reaches_member(steps_of("me/messages"), *relation) == NO
    assert reaches_member(steps_of("directoryobjects/1/memberof"), *relation) == MAYBE
    assert reaches_member(steps_of("groups/1/members"), *relation) == NO
    assert reaches_member(steps_of("groups/1"), -1, -1) == NO


@pytest.mark.parametrize(
    ("path", "type_", "answer"),
    [
        ("users/1", "user", YES),
        ("users/1", "directoryObject", YES),
        ("directoryobjects/1", "user", MAYBE),
        ("me/manager", "group", MAYBE),
        ("me/messages", "group", NO),
        ("me/messages/1/attachments", "fileAttachment", MAYBE),
        ("me/messages/1/attachments/mail.itemattachment/1/item", "message", YES),
        ("groups/1/members/1/unheard", "message", MAYBE),
        ("groups/1/members/mail.group", "user", MAYBE),
        ("groups", "user", NO),
    ],
)
def test_a_base_type_may_be_a_derived_one(path: str, type_: str, answer: int) -> None:
    assert reaches_type(MODEL, steps_of(path), MODEL.type_of(f"mail.{type_.lower()}")) == answer


def test_overloads_that_return_different_types_are_indeterminate_and_named() -> None:
    step = steps_of("me/messages/1/any")[-1]
    assert step.kind == reached.INDETERMINATE
    assert [MODEL.operation_name(each) for each in step.operations] == ["any", "any"]


# Simple enumeration, which reads the declarations of the schema again for each segment.


@dataclass(frozen=True)
class Place:
    """Position in the schema after the segments of a path.

    `kind` is `service` (the root), `one` (an object), `many` (a collection), `value` (a simple value) or
    `end` (no further segment).
    """

    kind: str
    type: str | None = None


def members_of(owner: Type) -> list[Property | Navigation]:
    return [*owner.properties, *owner.navigations]


class Naive:
    def __init__(self, schema: Schema) -> None:
        self.types = {each.name: each for each in schema.types}
        self.roots = schema.roots
        self.operations = schema.operations
        simple = {each.name.rpartition(".")[2] for each in schema.types}
        simple |= {each.name.rpartition(".")[2] for each in schema.operations}
        members = {each.name for owner in schema.types for each in members_of(owner)}
        roots = {each.name for each in schema.roots}
        qualified = {f"mail.{name}" for name in simple} | {f"sample.mail.{name}" for name in simple}
        self.words = sorted(
            {*simple, *members, *roots, *qualified, "$ref", "$value", "$count", "$all", "a", "a.b", "mail.a"}
        )

    def bases(self, name: str) -> list[str]:
        found: list[str] = []
        at: str | None = name
        while at is not None:
            found.append(at)
            at = self.types[at].base
        return found

    def after(self, type_: TypeRef | None) -> Place:
        if type_ is None or type_.name not in self.types:
            return Place("value")
        return Place("many" if type_.collection else "one", type_.name)

    def step(self, place: Place, word: str) -> tuple[str, Place] | None:
        """Return as text the schema element to which `word` leads from `place`, and the place after it.

        Return None if the schema element cannot be determined.
        """
        if word.startswith("$"):
            return self.option(place, word)
        if place.kind == "service":
            for root in self.roots:
                if root.name == word:
                    return self.text("root", root.type.name, root.type.collection), self.after(root.type)
            return self.call(place, word)
        if place.type is None:
            return None
        called = self.call(place, word)
        if place.kind == "one":
            owners = [self.types[base] for base in self.bases(place.type)]
            found = [each for owner in owners for each in members_of(owner) if each.name == word]
            return self.member(found[0]) if found else called or self.cast(place, word)
        if called is not None or self.may_call(place, word):
            return called
        if word.rpartition(".")[0] in ("mail", "sample.mail"):
            return self.cast(place, word)
        if not self.types[place.type].entity:
            return None
        return self.text("key", place.type, False), Place("one", place.type)

    def option(self, place: Place, word: str) -> tuple[str, Place] | None:
        allowed = {"one": ("$ref", "$value"), "many": ("$ref", "$count"), "value": ("$value", "$count")}
        if word not in allowed.get(place.kind, ()):
            return None
        return self.text("option", place.type, place.kind == "many"), Place("end")

    def member(self, each: Property | Navigation) -> tuple[str, Place]:
        kind = "property"
        if isinstance(each, Navigation):
            kind = "relation"
        elif each.is_stream:
            kind = "content"
        return self.text(kind, each.type.name, each.type.collection), self.after(each.type)

    def cast(self, place: Place, word: str) -> tuple[str, Place] | None:
        space, _, simple = word.rpartition(".")
        name = f"sample.mail.{simple}"
        if space not in ("mail", "sample.mail") or name not in self.types or place.type is None:
            return None
        related = sorted([name, place.type], key=lambda each: len(self.bases(each)))
        if related[0] not in self.bases(related[1]):
            return None
        return self.text("cast", related[1], place.kind == "many"), Place(place.kind, related[1])

    def named(self, word: str) -> list[Operation]:
        return [
            each
            for each in self.operations
            if word in (each.name, each.name.removeprefix("sample."), each.name.removeprefix("sample.mail."))
        ]

    def may_call(self, place: Place, word: str) -> bool:
        assert place.type is not None
        return any(
            each.binds.name in self.bases(place.type) or place.type in self.bases(each.binds.name)
            for each in self.named(word)
            if each.binds is not None and each.binds.collection
        )

    def call(self, place: Place, word: str) -> tuple[str, Place] | None:
        if place.type is None:
            found = [each for each in self.named(word) if each.binds is None]
        else:
            found = []
            for base in self.bases(place.type):
                binds = TypeRef(base, place.kind == "many")
                found = found or [each for each in self.named(word) if each.binds == binds]
        if len({each.returns for each in found}) != 1:
            return None
        returns = found[0].returns
        text = self.text("operation", returns.name if returns else None, bool(returns and returns.collection))
        return text, Place("end") if all(each.action for each in found) else self.after(returns)

    def text(self, kind: str, name: str | None, collection: bool) -> str:
        simple = name.rpartition(".")[2] if name is not None and name in self.types else ""
        return f"{kind} {simple}{'*' if collection else ''}".strip()

    def routes(self, most: int) -> Iterator[tuple[list[str], list[str]]]:
        """Yield each path of at most `most` segments, together with the path's steps as texts."""
        reachable: list[tuple[list[str], list[str], Place]] = [([], [], Place("service"))]
        for _ in range(most):
            following = []
            for path, steps, place in reachable:
                for word in self.words:
                    found = self.step(place, word)
                    if found is None:
                        yield [*path, word], [*steps, "?"]
                    else:
                        yield [*path, word], [*steps, found[0]]
                        # One key stands for all keys: only "a" continues a path, and other words do not.
                        if not found[0].startswith("key") or word == "a":
                            following.append(([*path, word], [*steps, found[0]], found[1]))
            reachable = following


def test_all_routes_of_four_steps_reach_what_an_enumeration_says() -> None:
    number = 0
    for path, steps in Naive(SCHEMA).routes(4):
        number += 1
        found = [told(MODEL, step) for step in reaches(MODEL, [word.lower() for word in path])]
        assert found == steps, "/".join(path)
    assert number > 10_000
