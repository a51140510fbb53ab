"""Transforms combine to the stricter of both."""

import pytest

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
