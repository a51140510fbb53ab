"""Tests of the `$metadata` parser: it reads each declaration, and refuses malformed documents."""

from __future__ import annotations

from typing import Final

import pytest

from controlplane.model import metadata
from controlplane.model.metadata import MetadataError, Root, TypeRef, parse
from tests.pure.model_schema import EDMX, SMALL, document


def test_types_have_bases_members_and_flags() -> None:
    types = {each.name: each for each in parse(SMALL).types}
    user = types["sample.mail.user"]
    assert user.base == "sample.mail.directoryObject"
    assert (user.entity, user.open, user.has_stream) == (True, True, False)
    assert [each.type for each in user.properties] == [
        TypeRef("Edm.String", False),
        TypeRef("Edm.String", True),
        TypeRef("sample.mail.mailboxSettings", False),
    ]
    assert types["sample.mail.driveItem"].has_stream
    assert types["sample.mail.driveItem"].properties[0].is_stream
    assert not types["sample.mail.mailboxSettings"].entity


def test_navigations_say_what_they_contain_and_whether_expand_takes_them() -> None:
    navigations = {
        (owner.name, each.name): each for owner in parse(SMALL).types for each in owner.navigations
    }
    messages = navigations["sample.mail.user", "messages"]
    assert messages.type == TypeRef("sample.mail.message", True)
    assert messages.contained
    assert not navigations["sample.mail.user", "manager"].contained
    closed = [name for name, each in navigations.items() if not each.expandable]
    assert closed == [("sample.mail.user", "messages"), ("sample.mail.group", "members")]


def test_roots_and_operations() -> None:
    schema = parse(SMALL)
    assert schema.roots[1] == Root("groups", TypeRef("sample.mail.group", True))
    assert schema.roots[3] == Root("me", TypeRef("sample.mail.user", False))
    found = {each.name: each for each in schema.operations}
    assert found["sample.mail.send"].action
    assert found["sample.mail.send"].binds == TypeRef("sample.mail.message", False)
    assert found["sample.mail.send"].returns is None
    assert found["sample.mail.validate"].binds == TypeRef("sample.mail.group", True)
    assert found["sample.mail.latest"].binds is None
    assert schema.aliases == (("mail", "sample.mail"),)


A: Final = '<EntityType Name="a"/>'
NAME: Final = "n" * 257
TOWER: Final = '<EntityType Name="a{}" BaseType="mail.a{}"/>'
# Each document, and its error.
MALFORMED: Final = {
    "not XML": (b"graph", "line 1: the XML is malformed"),
    "empty": (b"", "line 1: the XML is malformed"),
    "cut off": (SMALL[:2000], "the XML is malformed"),
    "a document type": (
        document(A, "<!DOCTYPE a>"), "line 1: the document has a <!DOCTYPE>: remove the <!DOCTYPE>"
    ),
    "an entity": (document(A, '<!DOCTYPE a [<!ENTITY b "c">]>'), "the document has a <!DOCTYPE>"),
    "an external entity": (document(A, '<!DOCTYPE a SYSTEM "file:///a">'), "the document has a <!DOCTYPE>"),
    "an undeclared entity": (document('<EntityType Name="&a;"/>'), "line 4: the XML is malformed"),
    "HTML": (b"<html><body/></html>", "the document begins with <html>: give an OData v4 $metadata"),
    "OData v3": (
        SMALL.replace(b"docs.oasis-open.org/odata/ns/edm\"", b"schemas.microsoft.com/ado/2009/11/edm\""),
        "line 3: the schema is not of OData v4",
    ),
    "no schema": (f'<Edmx xmlns="{EDMX}"/>'.encode(), "the document has no <Schema>"),
    "no name": (document("<EntityType/>"), "line 4: <EntityType> has no Name"),
    "a long name": (document(f'<EntityType Name="{NAME}"/>'), "Name of <EntityType> is longer than 256"),
    "a long full name": (document(f'<EntityType Name="{NAME[:250]}"/>'), "with its namespace is longer"),
    "a name of other letters": (document('<EntityType Name="&#x430;"/>'), r"is '\u0430', which is not a"),
    "a name with a slash": (document('<EntityType Name="a/b"/>'), "is 'a/b', which is not a name"),
    "a name with a line end": (document('<EntityType Name="a&#10;"/>'), r"is 'a\n', which is not a name"),
    "a type twice": (document(A + "\n" + A), "line 5: the type 'sample.mail.a' is declared twice"),
    "a type twice by case": (document(A + '<EntityType Name="A"/>'), "differ only in letter case"),
    "a member twice by case": (
        document('<EntityType Name="a"><Property Name="b" Type="Edm.String"/>'
                 '<Property Name="B" Type="Edm.String"/></EntityType>'),
        "line 4: type 'sample.mail.a' has two properties named 'B' if letter case is ignored",
    ),
    "a root twice": (
        document(A + '<EntitySet Name="b" EntityType="mail.a"/><Singleton Name="B" Type="mail.a"/>'),
        "the entity container has 'B' twice if letter case is ignored",
    ),
    "an unknown base": (document('<EntityType Name="a" BaseType="mail.b"/>'), "line 4: the base type"),
    "itself as base": (document('<EntityType Name="a" BaseType="mail.a"/>'), "form a cycle"),
    "a circle of bases": (
        document('<EntityType Name="a" BaseType="mail.b"/>\n<EntityType Name="b" BaseType="mail.a"/>'),
        "line 4: the base types of 'sample.mail.a' form a cycle",
    ),
    "a base above a circle": (
        document('<EntityType Name="c" BaseType="mail.a"/><EntityType Name="a" BaseType="mail.b"/>'
                 '<EntityType Name="b" BaseType="mail.a"/>'),
        "form a cycle",
    ),
    "a tower of bases": (
        document(A + "".join(map(TOWER.format, range(1, 40), ["", *range(1, 39)]))),
        "has more than 32 base types",
    ),
    "an unknown target": (
        document('<EntityType Name="a">\n<NavigationProperty Name="b" Type="mail.b"/></EntityType>'),
        "line 5: the target 'mail.b' is not a type that this document declares: give the complete $metadata",
    ),
    "a target that is a value": (
        document('<EntityType Name="a"><NavigationProperty Name="b" Type="Edm.String"/></EntityType>'),
        "the target 'Edm.String' is not a type",
    ),
    "a navigation without a type": (
        document('<EntityType Name="a"><NavigationProperty Name="b"/></EntityType>'),
        "<NavigationProperty> has no Type",
    ),
    "an unknown type of a property": (
        document('<EntityType Name="a"><Property Name="b" Type="c.d"/></EntityType>'),
        "the type of a property, 'c.d' is not a type",
    ),
    "an unknown type of a root": (document('<Singleton Name="b" Type="mail.a"/>'), "type 'mail.a' is not"),
    "a bound function without a parameter": (
        document('<Function Name="b" IsBound="true"/>'),
        "line 4: 'sample.mail.b' is bound and has no parameter",
    ),
    "an alias of two namespaces": (
        document('</Schema><Schema Namespace="b" Alias="mail" xmlns="http://docs.oasis-open.org/odata/ns/edm">'),
        "the alias 'mail' refers to two namespaces",
    ),
    "nesting": (document("<a>" * 62 + "</a>" * 62), "line 4: elements are nested deeper than 64"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "error"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_document_is_refused_by_line(given: bytes, error: str) -> None:
    with pytest.raises(MetadataError) as raised:
        parse(given)
    assert error in str(raised.value)
    assert str(raised.value).startswith(f"line {raised.value.line}: ")
    assert len(str(raised.value)) < 600


def test_a_nesting_at_the_limit_is_taken() -> None:
    parse(document("<a>" * 61 + "</a>" * 61))


def test_a_large_document_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_DOCUMENT", len(SMALL) - 1)
    with pytest.raises(MetadataError, match=r"^line 1: the document has [\d,]+ bytes, and the limit is"):
        parse(SMALL)


def test_more_types_than_the_limit_are_refused() -> None:
    types = "\n".join(f'<EntityType Name="a{number}"/>' for number in range(10_001))
    with pytest.raises(MetadataError, match=r"^line 10004: the document has more than 10,000 types"):
        parse(document(types))
