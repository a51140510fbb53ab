"""Tests that a schema's flat form keeps each declaration, and that the reader refuses damaged bytes."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import Schema, parse
from proxy.policy import resource_model
from proxy.policy.resource_model import DamagedModel, ResourceModel, digest_of
from tests.pure.model_schema import SMALL, document

SCHEMA: Final = parse(SMALL)
FLAT: Final = encode(SCHEMA)


def load(flat: bytes) -> ResourceModel:
    return ResourceModel(flat, digest_of(flat))


MODEL: Final = load(FLAT)


def test_each_type_has_its_base_its_flags_and_its_members() -> None:
    assert MODEL.types == len(SCHEMA.types)
    for each in SCHEMA.types:
        row = MODEL.type_of(each.name.lower())
        assert MODEL.type_name(row) == each.name
        flags = MODEL.type_flags(row)
        assert bool(flags & resource_model.ENTITY) == each.entity
        assert bool(flags & resource_model.OPEN) == each.open
        assert bool(flags & resource_model.MEDIA) == each.has_stream
        base = MODEL.base_of(row)
        assert (None if base < 0 else MODEL.type_name(base)) == each.base
        for one in each.properties:
            owner, member = MODEL.member_of(row, MODEL.name_id(one.name.lower()))
            assert (owner, MODEL.member_name(member)) == (row, one.name)
            flags = MODEL.member_flags(member)
            assert not flags & resource_model.NAVIGATION
            assert bool(flags & resource_model.COLLECTION) == one.type.collection
            assert bool(flags & resource_model.STREAM) == one.is_stream
        for each_way in each.navigations:
            owner, member = MODEL.member_of(row, MODEL.name_id(each_way.name.lower()))
            assert owner == row
            assert MODEL.type_name(MODEL.member_type(member)) == each_way.type.name
            flags = MODEL.member_flags(member)
            assert flags & resource_model.NAVIGATION
            assert bool(flags & resource_model.COLLECTION) == each_way.type.collection
            assert bool(flags & resource_model.CONTAINED) == each_way.contained
            assert bool(flags & resource_model.EXPANDABLE) == each_way.expandable


def test_a_member_of_a_base_type_is_found_with_its_owner() -> None:
    user = MODEL.type_of("sample.mail.user")
    owner, member = MODEL.member_of(user, MODEL.name_id("deleteddatetime"))
    assert MODEL.type_name(owner) == "sample.mail.directoryObject"
    assert MODEL.member_name(member) == "deletedDateTime"
    assert MODEL.member_of(user, MODEL.name_id("membershiprule")) == (-1, -1)
    assert MODEL.member_of(user, MODEL.name_id("unheard")) == (-1, -1)


def test_roots_and_operations_are_found_by_name() -> None:
    root = MODEL.root_of(MODEL.name_id("groups"))
    assert MODEL.root_name(root) == "groups"
    assert MODEL.type_name(MODEL.root_type(root)) == "sample.mail.group"
    assert MODEL.root_flags(root) == resource_model.COLLECTION
    assert MODEL.root_of(MODEL.name_id("subject")) == -1
    first, last = MODEL.operations_of(MODEL.name_id("delta"))
    assert {MODEL.type_name(MODEL.operation_binds(each)) for each in range(first, last)} == {
        "sample.mail.user",
        "sample.mail.directoryObject",
    }
    assert MODEL.operations_of(MODEL.name_id("users")) in [(at, at) for at in range(MODEL.operations + 1)]


def test_types_are_found_by_alias_and_by_simple_name() -> None:
    assert MODEL.type_of("mail.user") == MODEL.type_of("sample.mail.user") >= 0
    assert MODEL.types_named("user") == (MODEL.type_of("mail.user"),)
    assert MODEL.types_named("unheard") == MODEL.types_named("subject") == ()
    assert MODEL.type_of("other.user") == MODEL.type_of("user") == MODEL.type_of("") == -1


def test_distance_counts_base_types() -> None:
    user, thing = MODEL.type_of("mail.user"), MODEL.type_of("mail.entity")
    assert (MODEL.distance(user, thing), MODEL.distance(user, user), MODEL.distance(thing, user)) == (
        2,
        0,
        -1,
    )


def test_the_order_of_declarations_does_not_change_the_bytes() -> None:
    turned = Schema(SCHEMA.types[::-1], SCHEMA.roots[::-1], SCHEMA.operations[::-1], SCHEMA.aliases[::-1])
    assert encode(turned) == FLAT


def test_a_schema_without_types_loads() -> None:
    model = load(encode(parse(document(""))))
    assert (model.types, model.type_of("mail.user"), model.root_of(0)) == (0, -1, -1)


def test_bytes_without_their_digest_are_refused() -> None:
    for at in range(0, len(FLAT), 7):
        damaged = FLAT[:at] + bytes([FLAT[at] ^ 1]) + FLAT[at + 1 :]
        with pytest.raises(DamagedModel):
            ResourceModel(damaged, MODEL.digest)


@pytest.mark.parametrize("size", [0, 7, 8, 35, 36, len(FLAT) - 1])
def test_a_part_of_the_bytes_is_refused(size: int) -> None:
    with pytest.raises(DamagedModel):
        load(FLAT[:size])


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(DamagedModel):
        load(FLAT + b"a")


def test_damage_with_a_digest_of_its_own_is_refused_or_leads_to_rows() -> None:
    """If a damaged packed schema passes the checks, each row number in it points to an existing row."""
    random = Random(1)
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(FLAT)
        for _ in range(random.choice([1, 1, 2, 4])):
            at = random.randrange(8, len(damaged))
            damaged[at] = random.choice([0, 1, 255, damaged[at] ^ (1 << random.randrange(8))])
        try:
            model = load(bytes(damaged))
        except DamagedModel:
            refused += 1
            continue
        for row in range(model.types):
            assert model.type_name(row)
            assert model.distance(row, -2) == -1
            for name in range(model.names):
                _, member = model.member_of(row, name)
                assert member == -1 or -1 <= model.member_type(member) < model.types
        assert all(0 <= model.root_type(row) < model.types for row in range(model.roots))
        assert all(-1 <= model.operation_binds(row) < model.types for row in range(model.operations))
    assert refused > 1_000
