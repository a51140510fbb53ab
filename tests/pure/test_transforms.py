"""Tests that two transforms combine to the stricter transform."""

import pytest

from proxy.policy.filters import compile_filter
from proxy.policy.transforms import Transforms, parse_names


def test_strips_are_united_without_regard_to_case() -> None:
    combined = Transforms(strip=("mail", "mobilePhone")).combined(Transforms(strip=("MAIL", "manager.mail")))
    assert combined == Transforms(strip=("mail", "mobilePhone", "manager.mail"))


def test_allows_are_intersected() -> None:
    combined = Transforms(allow=("id", "mail")).combined(Transforms(allow=("Mail", "displayName")))
    assert [path.casefold() for path in combined.allow or ()] == ["mail"]


def test_an_allowed_object_and_a_property_within_it_meet_in_the_property() -> None:
    combined = Transforms(allow=("manager",)).combined(Transforms(allow=("manager.mail",)))
    assert combined.allow == ("manager.mail",)


def test_the_dots_of_an_annotation_lead_nowhere() -> None:
    combined = Transforms(allow=("photo@odata",)).combined(Transforms(allow=("photo@odata.mediaReadLink",)))
    assert combined.allow == ()


def test_a_whitelist_met_by_none_stays() -> None:
    assert Transforms(allow=("id",)).combined(Transforms(strip=("mail",))) == Transforms(("mail",), ("id",))


def test_disjoint_allows_leave_nothing() -> None:
    assert Transforms(allow=("id",)).combined(Transforms(allow=("mail",))).allow == ()


def test_names_tell_the_audit_what_was_done() -> None:
    assert Transforms(("mail",), ("id",)).names == ("strip:mail", "allow:id")


@pytest.mark.parametrize(
    ("names", "stripped", "allowed"),
    [
        (Transforms(("mail", "fax")).names, ("mail", "fax"), None),
        (Transforms(("fax",), ("id", "mail")).names, ("fax",), ("id", "mail")),
        (Transforms(allow=()).names, (), ()),
        (("strip:a", "…[3 more]"), ("a", "…[3 more]"), None),
        (("strip:a", "allow:b", "…[3 more]"), ("a",), ("b", "…[3 more]")),
        ((), (), None),
    ],
)
def test_names_tell_what_is_stripped_from_what_is_allowed(
    names: tuple[str, ...], stripped: tuple[str, ...], allowed: tuple[str, ...] | None
) -> None:
    named = parse_names(names)
    assert (named.stripped, named.allowed) == (stripped, allowed)


def test_transforms_at_a_place_hide_the_same_of_the_objects_there() -> None:
    inner = Transforms(("mail",), ("id", "mail", "photo")).at("members").combined(Transforms(("secret",)))
    body = (
        b'{"secret":1,"name":"x","members":[{"id":"1","mail":"m","phone":"p","@odata.type":"#u"}],'
        b'"members@odata.nextLink":"n"}'
    )
    filtered = compile_filter(inner).apply(body)
    assert filtered.body == (
        b'{"name":"x","members":[{"id":"1","@odata.type":"#u"}],"members@odata.nextLink":"n"}'
    )
    assert filtered.removed == (
        "strip:members.mail",
        "strip:secret",
        "allow:members.id",
        "allow:members.mail",
        "allow:members.photo",
    )


def test_an_allow_list_at_a_place_holds_for_each_item_and_below_it() -> None:
    transforms = Transforms(allow=("id",)).at("manager").at("members")
    body = (
        b'{"value":[{"members":[{"a":1,"manager":{"id":1,"mail":2}}]},{"members":[]},'
        b'{"x":{"manager":{"mail":1}}}]}'
    )
    assert compile_filter(transforms).apply(body).body == (
        b'{"value":[{"members":[{"a":1,"manager":{"id":1}}]},{"members":[]},{"x":{"manager":{"mail":1}}}]}'
    )


def test_allow_lists_of_one_place_leave_what_all_of_them_allow() -> None:
    whole = Transforms(allow=("id", "manager"))
    parts = (
        Transforms(allow=("id", "mail")).at("manager").combined(Transforms(allow=("mail", "x")).at("manager"))
    )
    body = b'{"id":1,"name":2,"manager":{"id":1,"mail":2,"x":3}}'
    assert compile_filter(whole.combined(parts)).apply(body).body == b'{"id":1,"manager":{"mail":2}}'
    narrow = Transforms(allow=("manager.id",)).combined(Transforms(allow=("id", "mail")).at("manager"))
    assert compile_filter(narrow).apply(body).body == b'{"manager":{"id":1}}'


def test_what_is_no_object_at_a_place_with_an_allow_list_goes() -> None:
    transforms = Transforms(allow=("id",)).at("manager")
    assert compile_filter(transforms).apply(b'{"manager":"m","id":1}').body == b'{"id":1}'
    assert compile_filter(transforms).apply(b'{"manager":null,"id":1}').body == b'{"manager":null,"id":1}'
