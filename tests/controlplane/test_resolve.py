"""Tests of operators' references to rows by id or name, and of how the operator log names the rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.operations.actor import EVERY_ORG, Actor, Forbidden, Role
from controlplane.operations.resolve import Resolver
from controlplane.store.interface import App, Conflict, NotFound, Operator, Org, Proxy, Ruleset
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.new_store import open_new_store
from tests.controlplane.plane import FakeClock
from tests.controlplane.two_orgs import NAMES, add_two_orgs

ALL = Actor("ada", {EVERY_ORG: "admin"})
NOBODY = Actor("noel", {})


def viewer(*orgs: str) -> Actor:
    return Actor("vic", {f"org-{org}": "viewer" for org in orgs})


def admin(*orgs: str) -> Actor:
    return Actor("abe", {f"org-{org}": "admin" for org in orgs})


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    """Create two organisations whose rulesets and applications have the same names.

    The proxy `shared` serves both organisations of the test, and the proxy `spare` serves no organisation.
    """
    opened = await open_new_store(tmp_path / "store.db", clock)
    await add_two_orgs(opened)
    for org in NAMES:
        await opened.add_operator(
            Operator(f"operator-{org}", f"Op-{org}", None, True, 1, {f"org-{org}": "viewer"})
        )
    for name, orgs in (("edge", ("org-acme",)), ("shared", ("org-acme", "org-globex")), ("spare", ())):
        await opened.add_proxy(Proxy(f"proxy-{name}", name, True, 1, None, 1, orgs), name.encode(), b"sealed")
    yield opened
    await opened.close()


class Asked:
    """Resolver that finds store rows by name or ID, and notes the IDs of their organisations in `about`."""

    def __init__(self, store: SqliteStore) -> None:
        self.about: set[str] = set()
        self.resolve = Resolver(store, self.about)


@pytest.fixture
def asked(store: SqliteStore) -> Asked:
    return Asked(store)


Find = Callable[[Resolver, Actor, Role, str], Awaitable[Any]]


async def _org(resolve: Resolver, actor: Actor, role: Role, reference: str) -> Org:
    return await resolve.org(actor, role, reference)


async def _ruleset(resolve: Resolver, actor: Actor, role: Role, reference: str) -> Ruleset:
    return await resolve.ruleset(actor, role, reference, None)


async def _app(resolve: Resolver, actor: Actor, role: Role, reference: str) -> App:
    return await resolve.app(actor, role, reference, None)


async def _proxy(resolve: Resolver, actor: Actor, role: Role, reference: str) -> Proxy:
    return await resolve.proxy(actor, role, reference)


KINDS = [
    pytest.param(_org, "organisation", ["org-acme", "acme"], id="org"),
    pytest.param(_ruleset, "ruleset", ["ruleset-acme", "hr"], id="ruleset"),
    pytest.param(_app, "app", ["app-acme", "client-acme", "payroll"], id="app"),
    pytest.param(_proxy, "proxy", ["proxy-edge", "edge"], id="proxy"),
]


@pytest.mark.parametrize(("find", "kind", "references"), KINDS)
async def test_every_key_of_a_row_refers_to_it(
    asked: Asked, find: Find, kind: str, references: list[str]
) -> None:
    found = [await find(asked.resolve, viewer("acme"), "viewer", each) for each in references]
    assert [each == found[0] for each in found] == [True] * len(references)
    assert asked.about == {"org-acme"}


@pytest.mark.parametrize(("find", "kind", "references"), KINDS)
@pytest.mark.parametrize(
    "actor", [NOBODY, viewer("globex"), admin("globex")], ids=["nobody", "viewer", "admin"]
)
async def test_a_row_that_the_actor_may_not_see_is_as_unknown_as_any(
    asked: Asked, find: Find, kind: str, references: list[str], actor: Actor
) -> None:
    """The message and log line for a row of another organisation are the same as for a missing row."""
    for reference in (references[0], "nothing"):
        with pytest.raises(NotFound, match=f"^there is no {kind} {reference}$"):
            await find(asked.resolve, actor, "viewer", reference)
    assert asked.about == set()


@pytest.mark.parametrize(("find", "kind", "references"), KINDS)
async def test_a_name_has_one_case(asked: Asked, find: Find, kind: str, references: list[str]) -> None:
    for reference in references:
        with pytest.raises(NotFound):
            await find(asked.resolve, ALL, "viewer", reference.upper())


@pytest.mark.parametrize(("find", "kind", "references"), KINDS)
@pytest.mark.parametrize("role", ["editor", "admin"])
async def test_a_refusal_for_the_role_is_on_record_with_its_organisation(
    asked: Asked, find: Find, kind: str, references: list[str], role: Role
) -> None:
    with pytest.raises(Forbidden, match=f"this operation needs the role {role} in this organisation"):
        await find(asked.resolve, viewer("acme"), role, references[0])
    assert asked.about == {"org-acme"}


@pytest.mark.parametrize(("find", "name"), [(_ruleset, "hr"), (_app, "payroll")])
async def test_only_rows_that_the_actor_may_see_make_a_name_ambiguous(
    asked: Asked, find: Find, name: str
) -> None:
    for actor in (ALL, viewer("acme", "globex")):
        with pytest.raises(
            Conflict, match=f"2 organisations have .* {name}: name the organisation with --org"
        ):
            await find(asked.resolve, actor, "viewer", name)
    assert asked.about == set()
    for org in ("acme", "globex"):
        found = await find(asked.resolve, viewer(org), "viewer", name)
        assert found.org_id == f"org-{org}"


async def test_an_organisation_resolves_what_is_ambiguous(asked: Asked) -> None:
    for org in ("globex", "org-globex"):
        assert (await asked.resolve.ruleset(ALL, "admin", "hr", org)).ruleset_id == "ruleset-globex"
        assert (await asked.resolve.app(ALL, "admin", "payroll", org)).app_id == "app-globex"
    assert asked.about == {"org-globex"}


async def test_a_row_of_another_organisation_is_not_found_in_the_one_that_is_named(asked: Asked) -> None:
    with pytest.raises(NotFound, match=r"^there is no ruleset ruleset-acme$"):
        await asked.resolve.ruleset(ALL, "viewer", "ruleset-acme", "globex")
    with pytest.raises(NotFound, match=r"^there is no app client-acme$"):
        await asked.resolve.app(ALL, "viewer", "client-acme", "globex")
    assert asked.about == {"org-globex"}


async def test_an_organisation_that_the_actor_may_not_see_can_not_be_named(asked: Asked) -> None:
    eve = viewer("acme")
    for listed in (
        asked.resolve.orgs(eve, "globex"),
        asked.resolve.ruleset(eve, "viewer", "hr", "globex"),
        asked.resolve.rulesets(eve, "globex"),
        asked.resolve.app(eve, "viewer", "payroll", "globex"),
        asked.resolve.apps(eve, "globex"),
        asked.resolve.proxies(eve, "globex"),
        asked.resolve.org_id(eve, "globex"),
    ):
        with pytest.raises(NotFound, match=r"^there is no organisation globex$"):
            await listed
    assert asked.about == set()


async def test_only_a_name_that_the_actor_may_see_is_suggested(asked: Asked) -> None:
    for actor, hint in ((ALL, r": did you mean globex\?"), (viewer("acme"), "")):
        with pytest.raises(NotFound, match=rf"^there is no organisation globx{hint}$"):
            await asked.resolve.org(actor, "viewer", "globx")
    for find in (asked.resolve.ruleset, asked.resolve.app):
        with pytest.raises(NotFound, match=r"did you mean payroll\?$|^there is no ruleset payrol$"):
            await find(ALL, "viewer", "payrol", "acme")
    with pytest.raises(NotFound, match=r"^there is no operator Op-glob: did you mean Op-globex\?$"):
        await asked.resolve.operator(ALL, "Op-glob")
    with pytest.raises(NotFound, match=r"^there is no operator Op-glob$"):
        await asked.resolve.operator(NOBODY, "Op-glob")
    with pytest.raises(NotFound, match=r"^there is no proxy spair: did you mean spare\?$"):
        await asked.resolve.proxy(ALL, "viewer", "spair")


async def test_lists_hold_what_the_actor_may_see(asked: Asked) -> None:
    for actor, org, found in (
        (viewer("acme"), None, [1, 1, 1, 2]),
        (viewer("globex"), None, [1, 1, 1, 1]),
        (NOBODY, None, [0, 0, 0, 0]),
        (ALL, None, [2, 2, 2, 3]),
        (ALL, "acme", [1, 1, 1, 2]),
    ):
        lists = (
            await asked.resolve.orgs(actor, org),
            await asked.resolve.rulesets(actor, org),
            await asked.resolve.apps(actor, org),
            await asked.resolve.proxies(actor, org),
        )
        assert [len(each) for each in lists] == found


async def test_a_proxy_is_looked_at_in_one_of_its_organisations_and_changed_in_all(asked: Asked) -> None:
    for org in ("acme", "globex"):
        assert (await asked.resolve.proxy(viewer(org), "viewer", "shared")).proxy_id == "proxy-shared"
        asked.about.clear()
        with pytest.raises(Forbidden):
            await asked.resolve.proxy(admin(org), "admin", "shared")
        assert asked.about == {"org-acme", "org-globex"}
    assert (await asked.resolve.proxy(admin("acme", "globex"), "admin", "shared")).name == "shared"


async def test_a_proxy_of_no_organisation_takes_a_role_in_every_one(asked: Asked) -> None:
    with pytest.raises(NotFound):
        await asked.resolve.proxy(admin("acme", "globex"), "viewer", "spare")
    everywhere = Actor("vic", {EVERY_ORG: "viewer"})
    assert (await asked.resolve.proxy(everywhere, "viewer", "spare")).name == "spare"
    with pytest.raises(Forbidden, match="in every organisation"):
        await asked.resolve.proxy(everywhere, "admin", "spare")
    assert (await asked.resolve.proxy(ALL, "admin", "spare")).name == "spare"
    assert asked.about == set()


async def test_an_operator_is_seen_by_themselves_and_by_admins(asked: Asked) -> None:
    itself = Actor("op-ACME", {})
    for actor in (itself, admin("acme"), ALL):
        for reference in ("operator-acme", "Op-acme", "op-ACME"):
            assert (await asked.resolve.operator(actor, reference)).operator_id == "operator-acme"
    for actor in (NOBODY, viewer("acme"), admin("globex")):
        with pytest.raises(NotFound, match=r"^there is no operator op-acme$"):
            await asked.resolve.operator(actor, "op-acme")


async def test_an_operation_on_a_role_is_about_its_organisation_alone(asked: Asked) -> None:
    await asked.resolve.operator(ALL, "op-acme", role_in="org-globex")
    assert asked.about == set()
    await asked.resolve.operator(ALL, "op-acme")
    assert asked.about == {"org-acme"}


@pytest.mark.parametrize("reference", ["\ud800", "ac\udc80me"])
async def test_a_reference_that_is_not_unicode_is_not_found(asked: Asked, reference: str) -> None:
    for find in (_org, _ruleset, _app, _proxy):
        with pytest.raises(NotFound):
            await find(asked.resolve, ALL, "viewer", reference)
    with pytest.raises(NotFound):
        await asked.resolve.operator(ALL, reference)
