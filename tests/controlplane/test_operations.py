"""Tests of operations: roles, isolation of organisations, and changes to operator accounts."""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec
import pytest

from controlplane.as_code.wanted import Wanted, WantedOrg
from controlplane.index_writer import IndexWriter
from controlplane.names import InvalidName
from controlplane.operations import (
    apps,
    event_export,
    fleet,
    integrity,
    operator_log,
    operators,
    orgs,
    proxies,
    rulesets,
)
from controlplane.operations.actor import Actor, Forbidden, Role, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Operation, Request, Stream
from controlplane.operations.perform import perform
from controlplane.operations.table import OPERATIONS, STREAMS
from controlplane.search import open_index
from controlplane.search.interface import SearchIndex
from controlplane.secrets import digest
from controlplane.store.interface import (
    AlreadyExists,
    Conflict,
    LogQuery,
    NotFound,
    Operator,
    StoreBusy,
    StoreError,
)
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.inventory import Inventory
from tests.controlplane.plane import RULESET, FakeClock, Plane, context_of

OWNER: Final = local_actor("owner")
PASSWORD: Final = "correct horse battery staple"
MARK: Final = "zebra"  # part of each name in the other organisation


@pytest.fixture
async def context(plane: Plane) -> AsyncIterator[OperationContext]:
    """Create the organisations `acme` and `{MARK}-org`, each with an app, a proxy and other objects."""
    await plane.org("acme")
    await plane.org(f"{MARK}-org")
    for org, name in (("acme", "own"), (f"{MARK}-org", MARK)):
        await plane.ruleset(org, f"{name}-rules")
        await plane.inventory.add_app(f"{name}-app", org, f"{name}-rules")
        await plane.proxy(f"{name}-proxy", org)
        await operators.add.perform(
            context_of(plane), OWNER, operators.AddOperator(f"{name}-admin", PASSWORD, "admin", org)
        )
        await operators.add_token.perform(
            context_of(plane), OWNER, operators.AddToken(f"{name}-admin", f"{name}-token")
        )
    index = await open_index(plane.settings.search_index, plane.store, plane.settings.store.path)

    async def filled() -> SearchIndex:
        await IndexWriter(plane.store, index).drain()
        return index

    yield replace(context_of(plane), index=filled)
    await index.close()


async def actor(context: OperationContext, name: str = "eve", **roles: Role) -> Actor:
    """Return an actor with a role for each named organisation. The name `every` means all organisations."""
    ids = {org.name: org.org_id for org in await context.store.orgs()} | {"every": "*"}
    return Actor(name, {ids[org]: role for org, role in roles.items()})


async def known(context: OperationContext, name: str, **roles: Role) -> Actor:
    """Return an actor who is also stored as an operator.

    An operation that makes a change looks up the operator of its actor in the store.
    """
    made = await actor(context, name, **roles)
    operator_id = f"id-of-{name}"
    await context.store.add_operator(
        Operator(operator_id, name, None, True, context.clock.wall_ms(), made.roles)
    )
    return made


# Another organisation


def _references(mark: str) -> dict[str, Any]:
    """Return values for request parameters by name, such as the names of objects of `{mark}-org`."""
    return {
        "org": f"{mark}-org",
        "orgs": (f"{mark}-org",),
        "ruleset": f"{mark}-rules",
        "app": f"{mark}-app",
        "proxy": f"{mark}-proxy",
        "operator": f"{mark}-admin",
        "token": f"{mark}-token",
        "yaml": RULESET.format(name="drafted"),
        "name": "new-name",
        "password": PASSWORD,
        "role": "viewer",
        "config": Wanted((WantedOrg("new-name"),)),
    }


def _sample(cls: type[Any], known: Mapping[str, Any]) -> Any:
    """Return a sample request of the type, with known values by name and made-up values by type."""
    hints = typing.get_type_hints(cls)
    members = {}
    for each in msgspec.structs.fields(cls):
        if each.name in known:
            members[each.name] = known[each.name]
        elif each.required:
            members[each.name] = _made_up(hints[each.name], known)
    return cls(**members)


def _made_up(hint: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = {each.name for each in msgspec.structs.fields(hint)}
        # Text or name, if exactly one of the two is allowed.
        return _sample(
            hint, {name: value for name, value in known.items() if name != "yaml" or "ruleset" not in fields}
        )
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Annotated:
        return _made_up(typing.get_args(hint)[0], known)
    return {int: 1, bool: False, bytes: b""}.get(hint, "/v1.0/users" if hint is str else ())


async def _outcome(
    context: OperationContext, who: Actor, operation: Operation[Any, Any], asked: Request, mark: str
) -> str:
    """Return the operation's result or error as text, with `MARK` in place of each occurrence of `mark`."""
    try:
        report = msgspec.json.encode(await operation.perform(context, who, asked)).decode()
    except (NotFound, Forbidden, InvalidRequest, Conflict, AlreadyExists) as error:
        report = f"{type(error).__name__}: {error}"
    return report.replace(mark, "MARK") if mark else report


def _about_an_organisation(operation: Operation[Any, Any]) -> bool:
    members = {each.name for each in msgspec.structs.fields(operation.request)}
    return bool(members & {"org", "orgs", "ruleset", "app", "proxy", "operator", "source"})


async def test_another_organisation_is_as_unknown_as_one_that_never_was(context: OperationContext) -> None:
    """Each operation returns the same for another organisation's objects as for objects that don't exist."""
    eve = await actor(context, acme="admin")
    evaluated = [each for each in OPERATIONS if _about_an_organisation(each)]
    assert len(evaluated) > 30
    for operation in evaluated:
        foreign = _sample(operation.request, _references(MARK))
        unheard_of = _sample(operation.request, _references("quagga"))
        report = await _outcome(context, eve, operation, foreign, MARK)
        assert report == await _outcome(context, eve, operation, unheard_of, "quagga"), operation.name


async def test_nothing_of_another_organisation_shows(context: OperationContext) -> None:
    """Lists and objects of the actor's own organisation do not reveal another organisation."""
    hidden = {MARK}
    for org in await context.store.orgs():
        if MARK in org.name:
            hidden |= {org.org_id, *(app.app_id for app in await context.store.apps(org.org_id))}
    eve = await actor(context, acme="admin")
    own = {**_references("own"), "org": "acme", "orgs": ("acme",)}
    anywhere = {name: value for name, value in own.items() if name != "org"}
    for operation in OPERATIONS:
        for known in (own, own if _requires_org(operation) else anywhere):
            report = await _outcome(context, eve, operation, _sample(operation.request, known), "")
            assert not [each for each in hidden if each in report], (operation.name, report)


@pytest.mark.parametrize("role", [None, "viewer"])
async def test_who_may_only_read_changes_nothing(context: OperationContext, role: Role | None) -> None:
    """An operator with the role viewer can't perform any operation that changes something."""
    eve = await actor(context, **({} if role is None else {"acme": role}))
    own = {**_references("own"), "org": "acme", "orgs": ("acme",)}
    own["config"] = Wanted((WantedOrg("acme", retention="7y"),))
    for operation in OPERATIONS:
        if operation.changes:
            with pytest.raises((NotFound, Forbidden)):
                await operation.perform(context, eve, _sample(operation.request, own))


async def test_who_has_no_role_is_told_nothing(context: OperationContext) -> None:
    hidden = {"own-", "acme"}
    own = {**_references("own"), "org": "acme", "orgs": ("acme",)}
    anywhere = {name: value for name, value in own.items() if name != "org"}
    for operation in OPERATIONS:
        asked = _sample(operation.request, own if _requires_org(operation) else anywhere)
        report = await _outcome(context, Actor("eve", {}), operation, asked, "")
        if report.partition(":")[0] not in ("NotFound", "Forbidden", "InvalidRequest"):
            assert not [each for each in hidden if each in report], (operation.name, report)


def _requires_org(operation: Operation[Any, Any]) -> bool:
    return any(each.name == "org" and each.required for each in msgspec.structs.fields(operation.request))


def test_every_operation_has_a_name_a_place_and_a_sentence_of_its_own() -> None:
    everything: list[Operation[Any, Any] | Stream[Any]] = [*OPERATIONS, *STREAMS]
    assert len({each.name for each in everything}) == len(everything)
    assert len({(each.method, each.path) for each in OPERATIONS}) == len(OPERATIONS)
    for each in everything:
        assert each.summary, each.name
        members = {field.encode_name for field in msgspec.structs.fields(each.request)}
        in_path = {part[1:-1] for part in each.path.split("/") if part.startswith("{")}
        assert in_path <= members, each.name


# Roles


async def test_a_viewer_reads_an_editor_changes_rules_an_admin_hands_out_secrets(
    context: OperationContext,
) -> None:
    viewer = await actor(context, acme="viewer")
    editor = await known(context, "edith", acme="editor")
    admin = await actor(context, acme="admin")
    apply = rulesets.ApplyRuleset("acme", RULESET.format(name="new"))
    add = apps.AddApp("payroll", "acme", "own-rules")
    assert (await rulesets.show.perform(context, viewer, rulesets.ShowRuleset("own-rules"))).version == 1
    with pytest.raises(Forbidden):
        await rulesets.apply.perform(context, viewer, apply)
    assert (await rulesets.apply.perform(context, editor, apply)).version == 1
    for weak in (viewer, editor):
        with pytest.raises(Forbidden):
            await apps.add.perform(context, weak, add)
        with pytest.raises(Forbidden):
            await apps.rotate_secret.perform(context, weak, apps.RotateSecret("own-app"))
    assert (await apps.add.perform(context, admin, add)).client_secret
    assert not (await apps.disable.perform(context, editor, apps.AppReference("own-app"))).enabled
    with pytest.raises(Forbidden):  # only an admin may lift a stop that has a reason
        await apps.enable.perform(context, editor, apps.AppReference("own-app"))
    assert (await apps.enable.perform(context, admin, apps.AppReference("own-app"))).enabled


async def test_a_secret_is_replaced_by_one_of_those_who_saw_the_same(context: OperationContext) -> None:
    """The second operator must not end the new secret, because only the first operator has seen it."""
    once = apps.RotateSecret("own-app", grace_seconds=3600, expected=1)
    both = [apps.rotate_secret.perform(context, OWNER, once) for _ in range(2)]
    made, refused = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(made, apps.NewSecret)
    with pytest.raises(Conflict, match="version 2 is the newest, but version 1 was expected"):
        raise refused if isinstance(refused, BaseException) else AssertionError
    assert [each.version for each in (await Inventory(context).app("own-app")).secrets] == [2, 1]
    await apps.rotate_secret.perform(context, OWNER, apps.RotateSecret("own-app"))
    assert [each.version for each in (await Inventory(context).app("own-app")).secrets] == [3]


async def test_a_proxy_s_secrets_are_replaced_by_one_of_those_who_saw_the_same(
    context: OperationContext,
) -> None:
    reference = fleet.ProxyReference("own-proxy")
    shown = await fleet.show.perform(context, OWNER, reference)
    once = proxies.RotateProxySecret("own-proxy", expected=shown.secret_version)
    made = await proxies.rotate_secret.perform(context, OWNER, once)
    with pytest.raises(Conflict, match="version 2 is the newest, but version 1 was expected"):
        await proxies.rotate_secret.perform(context, OWNER, once)
    credentials = await context.store.credentials(digest(made.api_key))
    assert credentials is not None
    assert credentials.proxy_id == shown.proxy_id
    await proxies.rotate_secret.perform(context, OWNER, proxies.RotateProxySecret("own-proxy"))
    assert (await fleet.show.perform(context, OWNER, reference)).secret_version == 3


async def test_only_an_admin_over_all_makes_organisations(context: OperationContext) -> None:
    with pytest.raises(Forbidden):
        await orgs.add.perform(context, await actor(context, acme="admin"), orgs.AddOrg("third"))
    everywhere = await actor(context, every="admin")
    assert (await orgs.add.perform(context, everywhere, orgs.AddOrg("third"))).name == "third"


async def test_a_shared_proxy_shows_each_organisation_its_own_half(context: OperationContext) -> None:
    await proxies.grant.perform(context, OWNER, proxies.OrgOfProxy("own-proxy", f"{MARK}-org"))
    eve = await actor(context, acme="admin")
    ids = {org.name: org.org_id for org in await context.store.orgs()}
    proxy = await Inventory(context).proxy("own-proxy")
    last_seq = {ids["acme"]: 7, ids[f"{MARK}-org"]: 9}
    await context.store.add_heartbeat(proxy.proxy_id, json.dumps({"version": "1", "lastSeq": last_seq}))
    await context.store.add_metrics(proxy.proxy_id, "w", json.dumps({"windowStart": "w", "evaluated": 99}))
    shown = await fleet.show.perform(context, eve, fleet.ProxyReference("own-proxy"))
    assert shown.orgs == ("acme",)
    assert ids[f"{MARK}-org"] not in msgspec.json.encode(shown).decode()
    assert shown.metrics is None  # the metrics are totals of both organisations
    assert [each.org_id for each in shown.sequences] == [ids["acme"]]
    with pytest.raises(Forbidden):  # the proxy serves the other organisation too
        await proxies.rotate_secret.perform(context, eve, proxies.RotateProxySecret("own-proxy"))
    with pytest.raises(Forbidden):
        await proxies.disable.perform(context, eve, proxies.ProxyReference("own-proxy"))
    taken = await proxies.revoke.perform(context, eve, proxies.OrgOfProxy("own-proxy", "acme"))
    assert taken.orgs == ()  # each operator may take back the own proposal
    assert (await Inventory(context).proxy("own-proxy")).org_ids == (ids[f"{MARK}-org"],)


def _added_org(context: OperationContext, name: str) -> Awaitable[object]:
    return orgs.add.perform(context, OWNER, orgs.AddOrg(name))


def _added_proxy(context: OperationContext, name: str) -> Awaitable[object]:
    return proxies.add.perform(context, OWNER, proxies.AddProxy(name, ("acme",)))


def _added_app(context: OperationContext, name: str) -> Awaitable[object]:
    return apps.add.perform(context, OWNER, apps.AddApp(name, "acme", "own-rules"))


def _added_rules(context: OperationContext, name: str) -> Awaitable[object]:
    asked = rulesets.ApplyRuleset("acme", RULESET.format(name=name))
    return rulesets.apply.perform(context, OWNER, asked)


def _added_operator(context: OperationContext, name: str) -> Awaitable[object]:
    return operators.add.perform(context, OWNER, operators.AddOperator(name))


async def test_a_name_that_looks_like_one_that_is_taken_is_refused(context: OperationContext) -> None:
    cyrillic = "\N{CYRILLIC SMALL LETTER A}"
    tries: list[Awaitable[object]] = [
        _added_org(context, "Acme"),
        _added_org(context, f"{cyrillic}cme"),
        _added_proxy(context, "Own-Proxy"),
        _added_app(context, "OWN-APP"),
        _added_rules(context, "Own-rules"),
        _added_operator(context, f"own-{cyrillic}dmin"),
    ]
    for each in tries:
        with pytest.raises(
            InvalidName, match="differs from an existing name only by letters of another case or alphabet"
        ):
            await each
    with pytest.raises(AlreadyExists):
        await orgs.add.perform(context, OWNER, orgs.AddOrg("acme"))
    together: list[tuple[Awaitable[object], Awaitable[object]]] = [
        (_added_org(context, "Beta"), _added_org(context, "beta")),
        (_added_proxy(context, "Edge-9"), _added_proxy(context, "edge-9")),
        (_added_app(context, "Crm"), _added_app(context, "crm")),
        (_added_rules(context, "Crm"), _added_rules(context, "crm")),
        (_added_operator(context, "ada"), _added_operator(context, f"{cyrillic}da")),
    ]
    for first, second in together:  # two operators at the same moment
        ends = await asyncio.gather(first, second, return_exceptions=True)
        assert [isinstance(each, InvalidName) for each in ends] == [False, True]
    other = apps.AddApp("Own-app", f"{MARK}-org", f"{MARK}-rules")  # another organisation has other names
    assert (await apps.add.perform(context, OWNER, other)).client_id


# Operators


async def test_an_operator_and_its_roles(context: OperationContext) -> None:
    added = await operators.add.perform(
        context, OWNER, operators.AddOperator("ada@contoso.com", PASSWORD, "viewer", "acme")
    )
    assert (added.name, added.enabled, added.password) == ("ada@contoso.com", True, True)
    await operators.grant.perform(context, OWNER, operators.GrantRole("ADA@contoso.com", "*", "editor"))
    changed = await operators.grant.perform(
        context, OWNER, operators.GrantRole("ada@contoso.com", "acme", "admin")
    )
    assert [(each.org, each.role) for each in changed.roles] == [("*", "editor"), ("acme", "admin")]
    left = await operators.revoke.perform(context, OWNER, operators.RevokeRole("ada@contoso.com", "*"))
    assert [(each.org, each.role) for each in left.roles] == [("acme", "admin")]
    with pytest.raises(AlreadyExists):
        await operators.add.perform(context, OWNER, operators.AddOperator("Ada@Contoso.com"))


@pytest.mark.parametrize("name", ["local:root", "*", "Unknown", "", "a\nb", "x" * 201])
async def test_a_name_that_would_be_mistaken_in_the_record_is_none(
    context: OperationContext, name: str
) -> None:
    with pytest.raises(ValueError, match="name"):
        await operators.add.perform(context, OWNER, operators.AddOperator(name))


@pytest.mark.parametrize(("boss", "namesake"), [("mike", "mi\N{KELVIN SIGN}e"), ("strasser", "straßer")])
async def test_nobody_acts_for_another_by_a_name_that_unicode_takes_for_the_same(
    context: OperationContext, boss: str, namesake: str
) -> None:
    """An admin may add two operators whose names are equal only after Unicode folding."""
    await operators.add.perform(context, OWNER, operators.AddOperator(boss, PASSWORD, "admin", "*"))
    eve = await actor(context, "eve", acme="admin")
    await operators.add.perform(context, eve, operators.AddOperator(namesake, PASSWORD, "admin", "acme"))
    double = await actor(context, namesake, acme="admin")
    takeovers: list[tuple[Operation[Any, Any], Request]] = [
        (operators.add_token, operators.AddToken(boss, "mine")),
        (operators.list_tokens, operators.OperatorReference(boss)),
        (operators.set_password, operators.SetPassword(boss, "another long password", PASSWORD)),
    ]
    for operation, asked in takeovers:
        with pytest.raises(Forbidden):
            await operation.perform(context, double, asked)
    own = Actor(namesake.replace("m", "M"), double.roles)
    assert await operators.add_token.perform(context, own, operators.AddToken(namesake, "mine"))


async def test_nobody_hands_out_more_than_they_have(context: OperationContext) -> None:
    """An admin of one organisation cannot become, or create, an admin of another organisation."""
    eve = await actor(context, "eve", acme="admin")
    await operators.add.perform(context, OWNER, operators.AddOperator("boss", PASSWORD, "admin", "*"))
    await operators.add.perform(context, OWNER, operators.AddOperator("both", PASSWORD, "viewer", "acme"))
    await operators.grant.perform(context, OWNER, operators.GrantRole("both", f"{MARK}-org", "viewer"))
    refused: list[tuple[Operation[Any, Any], Request]] = [
        (operators.add, operators.AddOperator("mine")),
        (operators.add, operators.AddOperator("mine", PASSWORD, "viewer", "*")),
        (operators.grant, operators.GrantRole("own-admin", "*", "viewer")),
        (operators.revoke, operators.RevokeRole("boss", "*")),
        *(
            (operation, cls(name, *rest))
            for name in ("boss", "both")
            for operation, cls, rest in (
                (operators.set_password, operators.SetPassword, (PASSWORD,)),
                (operators.link, operators.LinkOperator, ("eve's own subject",)),
                (operators.unlink, operators.OperatorReference, ()),
                (operators.add_token, operators.AddToken, ("mine",)),
                (operators.list_tokens, operators.OperatorReference, ()),
                (operators.disable, operators.OperatorReference, ()),
            )
        ),
    ]
    for operation, asked in refused:
        with pytest.raises(Forbidden):
            await operation.perform(context, eve, asked)
    unknown: list[tuple[Operation[Any, Any], Request]] = [
        (operators.add, operators.AddOperator("mine", PASSWORD, "viewer", f"{MARK}-org")),
        (operators.grant, operators.GrantRole("own-admin", f"{MARK}-org", "viewer")),
    ]
    for operation, asked in unknown:
        with pytest.raises(NotFound):
            await operation.perform(context, eve, asked)
    await operators.grant.perform(context, eve, operators.GrantRole("both", "acme", "editor"))


@pytest.mark.parametrize("role", ["viewer", "editor"])
async def test_who_is_no_admin_manages_nobody(context: OperationContext, role: Role) -> None:
    eve = await actor(context, "eve", acme=role)
    with pytest.raises(Forbidden):
        await operators.add.perform(context, eve, operators.AddOperator("mine", PASSWORD, "viewer", "acme"))
    for operation, asked in (
        (operators.grant, operators.GrantRole("own-admin", "acme", "viewer")),
        (operators.set_password, operators.SetPassword("own-admin", PASSWORD)),
        (operators.link, operators.LinkOperator("own-admin", "a subject")),
        (operators.show, operators.OperatorReference("own-admin")),
    ):
        with pytest.raises((Forbidden, NotFound)):
            await operation.perform(context, eve, asked)  # type: ignore[arg-type]


async def test_the_last_admin_over_all_stays(context: OperationContext) -> None:
    for name in ("first", "second"):
        await operators.add.perform(context, OWNER, operators.AddOperator(name, PASSWORD, "admin", "*"))
    await operators.disable.perform(context, OWNER, operators.OperatorReference("first"))
    for operation, asked in (
        (operators.disable, operators.OperatorReference("second")),
        (operators.revoke, operators.RevokeRole("second", "*")),
        (operators.grant, operators.GrantRole("second", "*", "editor")),
    ):
        with pytest.raises(Conflict):
            await operation.perform(context, OWNER, asked)  # type: ignore[arg-type]
    await operators.enable.perform(context, OWNER, operators.OperatorReference("first"))
    await operators.revoke.perform(context, OWNER, operators.RevokeRole("second", "*"))


async def test_one_s_own_password_takes_the_current_one(context: OperationContext) -> None:
    own = await actor(context, "own-admin", acme="admin")
    for current in (None, "wrong"):
        with pytest.raises(Forbidden):
            await operators.set_password.perform(
                context, own, operators.SetPassword("own-admin", "another long password", current)
            )
    asked = operators.SetPassword("own-admin", "another long password", PASSWORD)
    await operators.set_password.perform(context, own, asked)
    with pytest.raises(InvalidRequest):
        await operators.set_password.perform(context, OWNER, operators.SetPassword("own-admin", "short"))


async def test_nobody_keeps_another_from_verifying(context: OperationContext) -> None:
    eve, ada = await actor(context, "eve", acme="viewer"), await actor(context, "ada", acme="viewer")
    first = integrity.verification(context, eve, integrity.Verify("acme"))
    await anext(first)
    another = asyncio.ensure_future(integrity.verify.perform(context, ada, integrity.Verify("acme")))
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy):  # an operator runs one at a time; waiting ones count too
        await integrity.verify.perform(context, eve, integrity.Verify("acme"))
    assert not another.done()
    await first.aclose()
    assert (await another).intact
    assert (await integrity.verify.perform(context, eve, integrity.Verify("acme"))).intact


async def test_there_is_an_end_to_how_many_export(context: OperationContext) -> None:
    """Each export keeps a page of events in memory until the reader of the export has finished."""
    eve, ada = await actor(context, "eve", acme="viewer"), await actor(context, "ada", acme="viewer")
    csv = event_export.ExportEvents(format="csv")
    under_way = [
        await event_export.export.perform(context, eve, csv) for _ in range(event_export.MOST_EXPORTS_OF_ONE)
    ]
    for each in under_way:
        assert (await anext(each.pieces)).startswith(b"id,")
    with pytest.raises(StoreBusy):
        await event_export.export.perform(context, eve, csv)
    assert await event_export.export.perform(context, ada, csv)
    for each in under_way:
        await each.pieces.aclose()
    assert await event_export.export.perform(context, eve, csv)


async def test_one_s_own_password_is_not_guessed_in_a_session_that_was_left_alone(
    context: OperationContext, clock: FakeClock
) -> None:
    eve = await actor(context, "eve", acme="viewer")
    added = operators.AddOperator("eve", "the right password", "viewer", "acme")
    await operators.add.perform(context, OWNER, added)

    async def tried(current: str) -> None:
        asked = operators.SetPassword("eve", "another password", current)
        await perform(operators.set_password, context, eve, asked)

    for _ in range(5):
        with pytest.raises(Forbidden, match="current password is wrong"):
            await tried("wrong password")
    clock.advance(seconds=16 * 60)
    await tried("the right password")


async def test_tries_are_not_hidden_behind_requests_that_end_otherwise(context: OperationContext) -> None:
    eve = await actor(context, "eve", acme="viewer")
    added = operators.AddOperator("eve", "the right password", "viewer", "acme")
    await operators.add.perform(context, OWNER, added)

    async def tried(name: str, current: str) -> None:
        asked = operators.SetPassword(name, "another password", current)
        await perform(operators.set_password, context, eve, asked)

    for _ in range(5):
        with pytest.raises(Forbidden, match="current password is wrong"):
            await tried("eve", "wrong password")
    for _ in range(20):
        ended = await asyncio.gather(*[tried("nobody", "any") for _ in range(50)], return_exceptions=True)
        assert {type(each) for each in ended} == {NotFound}
    with pytest.raises(Forbidden, match="too often"):
        await tried("eve", "the right password")


async def test_a_token_is_shown_once_and_ends(context: OperationContext, clock: FakeClock) -> None:
    own = await actor(context, "own-admin", acme="viewer")
    made = await operators.add_token.perform(context, own, operators.AddToken("own-admin", "ci", 30))
    assert made.token.startswith("gwt_")
    listed = await operators.list_tokens.perform(context, own, operators.OperatorReference("own-admin"))
    assert [each.name for each in listed.tokens] == ["ci", "own-token"]
    assert made.token not in msgspec.json.encode(listed).decode()
    await operators.revoke_token.perform(context, own, operators.RevokeToken("own-admin", "ci"))
    listed = await operators.list_tokens.perform(context, own, operators.OperatorReference("own-admin"))
    assert [each.name for each in listed.tokens] == ["own-token"]


# The operator log


async def test_every_change_is_on_record_refused_ones_too_and_no_secret_is(context: OperationContext) -> None:
    ada = await known(context, "ada", every="admin")
    eve = await known(context, "eve", acme="viewer")
    await perform(operators.add, context, ada, operators.AddOperator("bob", PASSWORD, "viewer", "acme"))
    refused: list[tuple[Actor, Operation[Any, Any], Request]] = [
        (eve, apps.disable, apps.AppReference("own-app")),
        (eve, apps.disable, apps.AppReference(f"{MARK}-app")),
        (ada, orgs.add, orgs.AddOrg("acme")),
        (ada, orgs.add, orgs.AddOrg("")),
    ]
    for who, operation, asked in refused:
        with pytest.raises((Forbidden, NotFound, AlreadyExists, ValueError)):
            await perform(operation, context, who, asked)
    await perform(apps.list_all, context, ada, apps.ListApps())
    text = RULESET.format(name="own-rules") + "#" * 1000
    await perform(rulesets.apply, context, ada, rulesets.ApplyRuleset("acme", text, "why it is so"))
    page = await operator_log.search.perform(context, ada, operator_log.SearchOperatorLog())
    lines = [(each.operator, each.operation, each.outcome) for each in page.lines[::-1]]
    assert lines == [
        ("ada", "operator.add", "done"),
        ("eve", "app.disable", "forbidden"),
        ("eve", "app.disable", "notFound"),
        ("ada", "org.add", "alreadyExists"),
        ("ada", "org.add", "invalidRequest"),
        ("ada", "ruleset.apply", "done"),
    ]
    report = msgspec.json.encode(page).decode()
    assert PASSWORD not in report
    assert page.lines[-1].request["password"] == "***"
    assert page.lines[0].request["yaml"].startswith(f"{len(text)} characters, sha256 ")
    assert page.lines[0].request["note"] == "why it is so"


async def test_a_change_of_rules_is_on_record_with_what_came_of_it(context: OperationContext) -> None:
    ada = await known(context, "ada", every="admin")
    text, other = RULESET.format(name="own-rules") + "# new\n", RULESET.format(name="other")
    for yaml in (text, text, other):
        await perform(rulesets.apply, context, ada, rulesets.ApplyRuleset("acme", yaml))
    await perform(rulesets.rollback, context, ada, rulesets.RollBack("own-rules", "acme"))
    with pytest.raises(NotFound):
        await perform(rulesets.rollback, context, ada, rulesets.RollBack("own-rules", "acme", to=9))
    for name in ("other", "other", "own-rules"):
        await perform(apps.bind, context, ada, apps.BindApp("own-app", ruleset=name))
    page = await operator_log.search.perform(context, ada, operator_log.SearchOperatorLog(sort="time"))
    assert [each.result for each in page.lines] == [
        "published own-rules version 2",
        "own-rules unchanged: version 2 stays active",
        "published other version 1",
        "published own-rules version 3 with the text of version 1",
        None,
        "switched own-app from own-rules to other",
        "own-app unchanged: other is already its ruleset",
        "switched own-app from other to own-rules",
    ]
    asked = operator_log.SearchOperatorLog(search="own-rules version 2")
    assert len((await operator_log.search.perform(context, ada, asked)).lines) == 1


async def test_what_is_changed_is_changed_with_the_roles_of_that_moment(context: OperationContext) -> None:
    """The server reads the caller's roles when the request begins, but the request may take long."""
    ada, eve = await known(context, "ada", every="admin"), await known(context, "eve", acme="editor")
    asked = rulesets.ApplyRuleset("acme", RULESET.format(name="new"))
    await perform(operators.grant, context, ada, operators.GrantRole("eve", "acme", "viewer"))
    with pytest.raises(Forbidden, match="role editor"):
        await perform(rulesets.apply, context, eve, asked)
    await perform(operators.disable, context, ada, operators.OperatorReference("eve"))
    with pytest.raises(Forbidden, match="disabled"):
        await perform(rulesets.apply, context, eve, asked)
    lines = await context.store.operator_log(LogQuery(limit=9, operator="eve"))
    assert [each.outcome for each in lines] == ["forbidden", "forbidden"]


async def test_nothing_is_done_that_can_not_be_recorded_and_what_was_done_is_responded(
    context: OperationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await known(context, "ada", every="admin")

    async def full(*_: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(type(context.store), "begin_log_line", full)
        with pytest.raises(StoreError):
            await perform(apps.disable, context, ada, apps.AppReference("own-app"))
    assert (await Inventory(context).app("own-app")).enabled
    with monkeypatch.context() as patched:
        patched.setattr(type(context.store), "end_log_line", full)
        rotated = await perform(apps.rotate_secret, context, ada, apps.RotateSecret("own-app"))
    assert rotated.client_secret  # shown only this once: it must not be lost
    page = await operator_log.search.perform(context, ada, operator_log.SearchOperatorLog())
    assert [(each.operation, each.outcome) for each in page.lines] == [("app.rotate-secret", None)]


async def test_what_is_still_being_done_is_on_record_as_under_way(
    context: OperationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    disabled = type(context.store).set_app_enabled

    async def held_up(*arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await disabled(*arguments)

    monkeypatch.setattr(type(context.store), "set_app_enabled", held_up)
    doing = asyncio.create_task(perform(apps.disable, context, OWNER, apps.AppReference("own-app")))
    await begun.wait()

    async def report() -> list[tuple[str | None, bool]]:
        page = await operator_log.search.perform(context, OWNER, operator_log.SearchOperatorLog())
        return [(each.outcome, each.under_way) for each in page.lines]

    assert await report() == [(None, True)]
    beside = await SqliteStore.open(context.settings.store.path, context.clock)
    assert [each.under_way for each in await beside.operator_log(LogQuery(limit=9))] == [False]
    await beside.close()
    go_on.set()
    await doing
    assert await report() == [("done", False)]


async def test_a_line_of_the_record_is_short_whatever_was_asked(context: OperationContext) -> None:
    """An operator without permissions causes log lines too, and must not fill the disk with them."""
    eve = await known(context, "eve")
    asked = proxies.AddProxy("edge", tuple(f"org-{number}" for number in range(100_000)))
    with pytest.raises(NotFound):
        await perform(proxies.add, context, eve, asked)
    await perform(orgs.list_all, context, eve, orgs.ListOrgs())
    (line,) = await context.store.operator_log(LogQuery(limit=9))
    assert len(line.request) < 10_000
    assert json.loads(line.request)["name"] == "edge"
    assert "sha256" in json.loads(line.request)["orgs"]


async def test_the_record_shows_each_organisation_its_own_lines(context: OperationContext) -> None:
    ada = await known(context, "ada", every="admin")
    await perform(apps.disable, context, ada, apps.AppReference("own-app"))
    await perform(apps.disable, context, ada, apps.AppReference(f"{MARK}-app"))
    await perform(proxies.grant, context, ada, proxies.OrgOfProxy("own-proxy", f"{MARK}-org"))
    await perform(orgs.add, context, ada, orgs.AddOrg("third"))
    eve = await known(context, "eve", acme="viewer")
    page = await operator_log.search.perform(context, eve, operator_log.SearchOperatorLog())
    assert [each.request for each in page.lines] == [{"app": "own-app", "org": None}]


async def test_who_got_a_role_stands_in_the_record_of_its_organisation(context: OperationContext) -> None:
    """An admin must not be able to create another admin whom the organisation's operators can't see."""
    ada, eve = await known(context, "ada", every="admin"), await known(context, "eve", acme="viewer")
    await perform(operators.add, context, ada, operators.AddOperator("abroad", None, "viewer", f"{MARK}-org"))
    own = operators.GrantRole("abroad", "acme", "admin")
    await perform(operators.grant, context, ada, own)
    await perform(operators.grant, context, ada, operators.GrantRole("abroad", f"{MARK}-org", "editor"))
    await perform(operators.revoke, context, ada, operators.RevokeRole("abroad", "acme"))
    page = await operator_log.search.perform(context, eve, operator_log.SearchOperatorLog())
    assert [(each.operation, each.request["org"]) for each in page.lines] == [
        ("operator.revoke", "acme"),
        ("operator.grant", "acme"),
    ]


async def test_a_cursor_of_the_record_tells_nothing_of_what_is_done_elsewhere(
    context: OperationContext,
) -> None:
    """The cursor of a page in the operator log is a position among the log lines of all organisations."""
    ada = await known(context, "ada", every="admin")
    eve = await known(context, "eve", acme="viewer")
    for _ in range(2):
        await perform(apps.disable, context, ada, apps.AppReference("own-app"))
    first = operator_log.SearchOperatorLog(limit=1)
    own, all_ = [await operator_log.search.perform(context, who, first) for who in (eve, ada)]
    assert own.next is not None
    assert not own.next.isdigit()
    second = await operator_log.search.perform(
        context, eve, operator_log.SearchOperatorLog(limit=1, cursor=own.next)
    )
    assert (len(second.lines), second.next) == (1, None)
    for who, cursor in ((eve, all_.next), (ada, own.next), (eve, "x")):
        with pytest.raises(InvalidRequest, match="cursor"):
            await operator_log.search.perform(context, who, operator_log.SearchOperatorLog(cursor=cursor))


async def test_the_record_is_searched_and_read_in_pages(context: OperationContext, clock: FakeClock) -> None:
    ada, eve = await known(context, "ada", every="admin"), await known(context, "eve", every="admin")
    for who in (ada, eve, ada):
        await perform(apps.disable, context, who, apps.AppReference("own-app"))
        await perform(orgs.set_retention, context, who, orgs.SetRetention("acme", "7y"))
        clock.advance(hours=1)

    async def found(**members: Any) -> list[tuple[str, str]]:
        page = await operator_log.search.perform(context, ada, operator_log.SearchOperatorLog(**members))
        return [(each.operator, each.operation) for each in page.lines]

    assert len(await found()) == 6
    assert await found(operator="EVE") == [("eve", "org.set-retention"), ("eve", "app.disable")]
    assert await found(operation="app", operator="eve") == [("eve", "app.disable")]
    assert await found(operation="app.disable", from_="-90m") == [("ada", "app.disable")]
    assert await found(org=f"{MARK}-org") == []
    assert await found(search="OWN-") == [(who, "app.disable") for who in ("ada", "eve", "ada")]  # requests
    assert await found(search="Retention", operator="eve") == [("eve", "org.set-retention")]
    assert await found(search="%") == []
    orders: tuple[Literal["-time", "time"], ...] = ("-time", "time")
    for sort in orders:
        pages: list[list[str]] = []
        cursor = None
        while not pages or cursor is not None:
            page = await operator_log.search.perform(
                context, ada, operator_log.SearchOperatorLog(sort=sort, limit=4, cursor=cursor)
            )
            pages.append([each.time for each in page.lines])
            cursor = page.next
        assert [len(each) for each in pages] == [4, 2]
        times = [each for of_page in pages for each in of_page]
        assert times == sorted(times, reverse=sort == "-time")
    for bad in ({"cursor": "x"}, {"from_": "yesterday"}):
        with pytest.raises(InvalidRequest):
            await operator_log.search.perform(context, ada, operator_log.SearchOperatorLog(**bad))  # type: ignore[arg-type]


async def test_a_ruleset_is_not_applied_over_a_version_that_its_writer_never_saw(
    context: OperationContext,
) -> None:
    def draft(note: str, expected: int | None) -> rulesets.ApplyRuleset:
        text = f"# {note}\n{RULESET.format(name='drafted')}"
        return rulesets.ApplyRuleset("acme", text, note, expected=expected)

    with pytest.raises(Conflict, match="no version exists, but version 1 was expected"):
        await perform(rulesets.apply, context, OWNER, draft("too late", 1))
    assert (await perform(rulesets.apply, context, OWNER, draft("first", 0))).version == 1
    assert (await perform(rulesets.apply, context, OWNER, draft("second", 1))).version == 2
    with pytest.raises(Conflict, match="version 2 is active, but version 1 was expected"):
        await perform(rulesets.apply, context, OWNER, draft("beside it", 1))
    assert (await perform(rulesets.apply, context, OWNER, draft("whatever it is", None))).version == 3
