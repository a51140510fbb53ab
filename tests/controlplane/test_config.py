"""Tests of management as code: a plan is applied completely or not at all, on both database engines."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm

from controlplane.as_code.plan_text import plan_lines
from controlplane.as_code.wanted import (
    Wanted,
    WantedApp,
    WantedCertificate,
    WantedFederated,
    WantedKey,
    WantedOperator,
    WantedOrg,
    WantedProxy,
    WantedRuleset,
    WantedSchema,
)
from controlplane.cli.directory import read_directory, write_directory
from controlplane.live_tail import LiveTail
from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.names import InvalidName
from controlplane.operations import apps, config, deletions, orgs, proposals, rulesets
from controlplane.operations.actor import Actor, Forbidden, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.search.interface import SearchIndex
from controlplane.secrets import Vault
from controlplane.settings import read_settings
from controlplane.store.interface import MOST_OPEN, AlreadyExists, Conflict, LogQuery, NotFound
from controlplane.store.sql_store import SqlStore
from proxy.policy.resource_model import digest_of
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import RULESET, FakeClock, write_settings
from tests.fakes.certificates import client_certificate

ADA = local_actor("ada")
TEXT = RULESET.format(name="staff")
OPEN = WantedRuleset("staff", TEXT, "rulesets/staff.yaml")
METADATA = """\
<edmx:Edmx Version="4.0" xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx"><edmx:DataServices>
<Schema Namespace="microsoft.graph" xmlns="http://docs.oasis-open.org/odata/ns/edm">
<EntityType Name="user"><Key><PropertyRef Name="id"/></Key>
<Property Name="id" Type="Edm.String" Nullable="false"/></EntityType>
<EntityContainer Name="c"><EntitySet Name="users" EntityType="microsoft.graph.user"/></EntityContainer>
</Schema></edmx:DataServices></edmx:Edmx>
"""
CRM = WantedApp("crm", "staff", owner="sales")
CONTOSO = WantedOrg("contoso", "1y", rulesets=(OPEN,), apps=(CRM,))
WANTED = Wanted(
    (CONTOSO,),
    (WantedProxy("edge", ("contoso",)),),
    (WantedOperator("ci", {"contoso": "editor", "*": "viewer"}),),
)


@pytest.fixture
async def context(either_store: SqlStore, clock: FakeClock, tmp_path: Path) -> OperationContext:
    async def vault() -> Vault:
        return Vault(bytes(32))

    async def index() -> SearchIndex:
        raise AssertionError("nothing here searches")

    settings = read_settings(write_settings(tmp_path), {})
    return OperationContext(settings, either_store, clock, vault, index, LiveTail(either_store))


async def plan(context: OperationContext, wanted: Wanted, *, prune: bool = False) -> config.ConfigPlan:
    return await perform(config.plan, context, ADA, config.PlanConfig(wanted, prune))


async def apply(
    context: OperationContext, wanted: Wanted, *, expected: str | None = None, actor: Actor = ADA
) -> config.AppliedConfig:
    return await perform(config.apply, context, actor, config.ApplyConfig(wanted, False, expected))


def with_apps(*added: WantedApp) -> Wanted:
    return Wanted((replace_org(apps=added),))


def replace_org(**members: object) -> WantedOrg:
    return msgspec.structs.replace(CONTOSO, **members)


async def test_a_plan_lists_everything_and_the_second_apply_changes_nothing(
    context: OperationContext,
) -> None:
    planned = await plan(context, WANTED)
    assert [(each.action, each.kind, each.name) for each in planned.changes] == [
        ("add", "organisation", "contoso"),
        ("add", "ruleset", "staff"),
        ("add", "app", "crm"),
        ("add", "proxy", "edge"),
        ("add", "operator", "ci"),
    ]
    assert (await plan(context, WANTED)).digest == planned.digest
    assert await context.store.orgs() == []  # only the plan was made

    made = await apply(context, WANTED, expected=planned.digest)
    assert [(each.org, each.name) for each in made.apps] == [("contoso", "crm")]
    assert [each.name for each in made.proxies] == ["edge"]
    (stored,) = await context.store.apps(None)
    assert (stored.name, stored.owner, stored.ruleset_name) == ("crm", "sales", "staff")
    assert stored.client_id == made.apps[0].client_id
    operator = await context.store.operator("ci")
    assert operator is not None
    assert set(operator.roles.values()) == {"editor", "viewer"}

    lines = await context.store.operator_log(LogQuery(limit=100))
    assert [line.operation for line in reversed(lines)] == [
        "config.apply",
        *("org.add", "ruleset.apply", "app.add", "proxy.add", "operator.add", "operator.grant"),
    ]
    assert {line.outcome for line in lines} == {"done"}
    secret = made.apps[0].client_secret
    assert secret
    assert not any(secret in line.request + str(line.result) for line in lines)

    assert (await plan(context, WANTED)).changes == ()
    assert (await apply(context, WANTED)).apps == ()


async def test_drift_is_changed_back_and_names_who_changed_it(context: OperationContext) -> None:
    await apply(context, WANTED)
    await perform(apps.set_about, context, ADA, apps.SetApp(app="crm", org=None, owner="marketing", note="x"))
    await perform(apps.disable, context, ADA, apps.AppReference("crm"))
    changed = TEXT.replace("allow", "block")
    await perform(rulesets.apply, context, ADA, rulesets.ApplyRuleset("contoso", changed))

    planned = await plan(context, WANTED)
    ruleset, app = planned.changes
    assert (ruleset.action, ruleset.name, ruleset.after("version")) == ("change", "staff", 3)
    assert [line for line in ruleset.lines if line[0] in "+-"] == [
        "-    verdict: block",
        "+    verdict: allow",
    ]
    assert [(each.name, each.before, each.after) for each in app.members] == [
        ("owner", "marketing", "sales"),
        ("note", "x", None),
    ]  # `enabled` is not set in the file, so a disabled app stays disabled
    assert [(each.kind, each.operator, each.operation) for each in planned.last_changes] == [
        ("ruleset", "local:ada", "ruleset.apply"),
        ("app", "local:ada", "app.disable"),
    ]
    await apply(context, WANTED)
    (stored,) = await context.store.apps(None)
    assert (stored.owner, stored.note, stored.enabled) == ("sales", None, False)
    assert (await plan(context, WANTED)).changes == ()


async def test_everything_or_nothing(context: OperationContext) -> None:
    taken = WantedApp("two", "elsewhere")  # no ruleset has this name, which only the last step detects
    wanted = Wanted((replace_org(apps=(CRM, taken)),), WANTED.proxies)
    with pytest.raises(NotFound, match="elsewhere"):
        await apply(context, wanted)
    assert (await context.store.orgs(), await context.store.apps(None)) == ([], [])
    (line,) = await context.store.operator_log(LogQuery(limit=10))
    assert (line.operation, line.outcome) == ("config.apply", "notFound")

    broken = replace_org(rulesets=(OPEN, WantedRuleset("mail", "version: 1\nname: mail\n", "m.yaml")))
    with pytest.raises(InvalidRequest, match=r"m\.yaml:1:1: .*rules"):
        await apply(context, Wanted((broken,)))
    assert await context.store.orgs() == []


async def test_only_the_plan_that_was_reviewed_is_applied(context: OperationContext) -> None:
    planned = await plan(context, WANTED)
    await perform(orgs.add, context, ADA, orgs.AddOrg("contoso"))
    with pytest.raises(Conflict, match="was expected"):
        await apply(context, WANTED, expected=planned.digest)
    assert await context.store.apps(None) == []


async def test_two_applies_at_once_make_the_things_once(context: OperationContext) -> None:
    results = await asyncio.gather(*(apply(context, WANTED) for _ in range(3)), return_exceptions=True)
    failed = [each for each in results if isinstance(each, BaseException)]
    assert all(isinstance(each, Conflict | AlreadyExists) for each in failed), failed
    made = [app for each in results if isinstance(each, config.AppliedConfig) for app in each.apps]
    (stored,) = await context.store.apps(None)
    assert [app.client_id for app in made] == [stored.client_id]
    assert (await plan(context, WANTED)).changes == ()


async def test_each_change_needs_the_role_that_it_needs_alone(context: OperationContext) -> None:
    await apply(context, WANTED)
    (org,) = await context.store.orgs()
    # An editor of one organisation: the operator ci after its roles are refreshed.
    ci = Actor("ci", {})
    published = replace_org(rulesets=(WantedRuleset("staff", TEXT + "# new\n"),), apps=None, retention=None)
    actor = replace(ci, roles={org.org_id: "editor", "*": "viewer"})
    await apply(context, Wanted((published,)), actor=actor)
    with pytest.raises(Forbidden):
        await apply(context, with_apps(CRM, WantedApp("second", "staff")), actor=actor)
    with pytest.raises(Forbidden):
        await apply(context, Wanted((replace_org(rulesets=None, apps=None, retention="base"),)), actor=actor)
    assert [app.name for app in await context.store.apps(None)] == ["crm"]


async def test_a_second_person_gets_a_proposal_and_what_needs_it_waits(context: OperationContext) -> None:
    await apply(context, Wanted((WantedOrg("contoso", second_person=True, rulesets=(OPEN,)),)))
    mail = WantedRuleset("mail", RULESET.format(name="mail"))
    wanted = Wanted(
        (replace_org(retention=None, rulesets=(mail, OPEN), apps=(CRM, WantedApp("archive", "mail"))),)
    )
    planned = await plan(context, wanted)
    assert [(each.name, each.gate) for each in planned.changes] == [
        ("mail", "proposes"),
        ("crm", "none"),
        ("archive", "waits"),
    ]
    made = await apply(context, wanted, expected=planned.digest)
    assert [app.name for app in made.apps] == ["crm"]
    (proposed,) = made.proposals
    again = await plan(context, wanted)
    assert [(each.name, each.gate) for each in again.changes] == [("mail", "proposed"), ("archive", "waits")]
    assert (await apply(context, wanted)).proposals == ()  # the open proposal stays unchanged

    approval = proposals.ApproveProposal(proposal=proposed.proposal)
    await perform(proposals.approve, context, local_actor("grace"), approval)
    assert [app.name for app in (await apply(context, wanted)).apps] == ["archive"]
    assert (await plan(context, wanted)).changes == ()


async def test_an_export_asks_for_what_is_there(context: OperationContext) -> None:
    await apply(context, WANTED)
    exported = await perform(config.export, context, ADA, config.ExportConfig())
    assert (await plan(context, exported.config)).changes == ()
    assert [app.name for app in exported.config.organisations[0].apps or ()] == ["crm"]


async def test_prune_deletes_what_managed_lists_do_not_name(context: OperationContext) -> None:
    old = WantedRuleset("old", RULESET.format(name="old"))
    everything = replace_org(rulesets=(old, OPEN), apps=(CRM, WantedApp("import", "old")))
    fleet = (WantedProxy("edge", ("contoso",)), WantedProxy("both", ("contoso", "fabrikam")))
    await apply(context, Wanted((everything, WantedOrg("fabrikam", rulesets=(OPEN,))), fleet))
    planned = await plan(context, Wanted((CONTOSO,)))
    assert planned.changes == ()
    assert [(each.kind, each.name) for each in planned.unmanaged] == [("app", "import"), ("ruleset", "old")]

    # The other proxy serves an organisation that the directory does not name.
    pruned = config.ApplyConfig(Wanted((CONTOSO,), proxies=()), prune=True)
    made = await perform(config.apply, context, ADA, pruned)
    assert [(each.action, each.kind, each.name) for each in made.changes] == [
        ("delete", "app", "import"),
        ("delete", "ruleset", "old"),
        ("delete", "proxy", "edge"),
    ]
    assert [proxy.name for proxy in await context.store.proxies(None)] == ["both"]
    assert [app.name for app in await context.store.apps(None)] == ["crm"]
    assert sorted(each.name for each in await context.store.rulesets(None)) == ["staff", "staff"]
    lines = await context.store.operator_log(LogQuery(limit=3))
    assert [line.operation for line in lines] == ["proxy.delete", "ruleset.delete", "app.delete"]

    kept = replace_org(rulesets=(), apps=None)  # the app that uses the ruleset is not managed here, and stays
    with pytest.raises(Conflict, match="staff is in use"):
        await perform(config.apply, context, ADA, config.ApplyConfig(Wanted((kept,)), prune=True))


async def test_a_proxy_without_an_organisation_belongs_to_no_directory(context: OperationContext) -> None:
    fabrikam = WantedOrg("fabrikam", rulesets=(OPEN,))
    await apply(context, Wanted((CONTOSO, fabrikam), (WantedProxy("owing", ("fabrikam",)),)))
    await perform(deletions.delete_org, context, ADA, orgs.OrgReference("fabrikam"))
    planned = await plan(context, Wanted((CONTOSO,), proxies=()), prune=True)
    assert planned.changes == ()  # the proxy still delivers the events of fabrikam
    exported = await perform(config.export, context, ADA, config.ExportConfig())
    assert (exported.config.proxies, (await plan(context, exported.config, prune=True)).changes) == ((), ())


async def test_nothing_takes_long_for_an_actor_without_the_role(
    context: OperationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply(context, WANTED)
    (org,) = await context.store.orgs()

    def hashed() -> apps.ClientSecret:
        raise AssertionError("a secret was made")

    monkeypatch.setattr(apps, "new_client_secret", hashed)
    viewer = Actor("ci", {org.org_id: "viewer"})
    with pytest.raises(Forbidden):
        await config.apply.perform(
            context, viewer, config.ApplyConfig(with_apps(CRM, WantedApp("b", "staff")))
        )
    many = with_apps(*(WantedApp(f"app-{number}", "staff") for number in range(config.MOST_CHANGES + 1)))
    with pytest.raises(InvalidRequest, match="too many at once"):
        await config.apply.perform(context, ADA, config.ApplyConfig(many))


async def test_a_new_schema_is_stored_first_and_gives_rulesets_a_new_version(
    context: OperationContext,
) -> None:
    text = "version: 1\nname: staff\nrules:\n  - {id: r1, match: {resource: [user]}, verdict: block}\n"

    def with_schema(document: str) -> Wanted:
        digest = digest_of(encode(parse(document.encode())))
        schema = WantedSchema("/v1.0", digest, "schemas/graph.xml", document)
        return Wanted((WantedOrg("contoso", rulesets=(WantedRuleset("staff", text),), schemas=(schema,)),))

    first = with_schema(METADATA)
    await apply(context, first)
    assert (await plan(context, first)).changes == ()
    second = with_schema(
        METADATA.replace("</EntityType>", '<Property Name="rank" Type="Edm.String"/></EntityType>')
    )
    planned = await plan(context, second)
    assert [(each.action, each.kind, each.name) for each in planned.changes] == [
        ("change", "schema", "/v1.0"),
        ("change", "ruleset", "staff"),
    ]
    await apply(context, second, expected=planned.digest)
    (ruleset,) = await context.store.rulesets(None)
    assert ruleset.version == 2
    assert (await plan(context, second)).changes == ()

    forged = msgspec.structs.replace(first.organisations[0].schemas[0], document=METADATA[:-5])  # type: ignore[index]
    with pytest.raises(InvalidRequest, match=r"schemas/graph\.xml"):
        await apply(context, Wanted((WantedOrg("contoso", schemas=(forged,)),)))


async def test_a_viewer_plans_only_what_it_can_see(context: OperationContext) -> None:
    await apply(context, Wanted((CONTOSO, WantedOrg("fabrikam", rulesets=(OPEN,))), WANTED.proxies))
    (contoso, _) = await context.store.orgs()
    viewer = Actor("eve", {contoso.org_id: "viewer"})
    shorter = replace_org(retention="base")
    planned = await config.plan.perform(context, viewer, config.PlanConfig(Wanted((shorter,), ()), True))
    assert [(each.action, each.kind, each.name, each.warning) for each in planned.changes] == [
        ("change", "organisation", "contoso", "audit events older than 30 days are deleted"),
        ("delete", "proxy", "edge", "its keys end, and its undelivered audit events are lost"),
    ]
    for unseen in (  # each of them would look new
        Wanted((shorter, WantedOrg("fabrikam"))),
        Wanted((), (WantedProxy("far", ("fabrikam",)),)),
        Wanted((), operators=WANTED.operators),
    ):
        with pytest.raises(Forbidden, match=r"no organisation fabrikam in which|only an admin can see"):
            await config.plan.perform(context, viewer, config.PlanConfig(unseen))


async def test_whoever_plans_finds_the_open_proposals_of_everybody(context: OperationContext) -> None:
    other = WantedRuleset("other", RULESET.format(name="other"))
    both = replace_org(rulesets=(other, OPEN), second_person=True)
    await apply(context, Wanted((both,)))
    later = WantedRuleset("staff", TEXT + "# later\n")
    bound = msgspec.structs.replace(CRM, ruleset="other", owner="hr")
    wanted = Wanted((replace_org(rulesets=(other, later), apps=(bound,)),))
    made = await apply(context, wanted)
    by_name = {each.name: each.proposal for each in made.proposals}
    assert by_name.keys() == {"staff", "crm"}
    (stored,) = await context.store.apps(None)
    # only the ruleset needs a second person's approval
    assert (stored.owner, stored.ruleset_name) == ("hr", "staff")

    request = config.PlanConfig(wanted)
    planned = await perform(config.plan, context, ADA, request)
    assert {each.name: each.proposal for each in planned.changes} == by_name
    assert {each.gate for each in planned.changes} == {"proposed"}
    assert await perform(config.plan, context, local_actor("bob"), request) == planned
    again = await apply(context, wanted, expected=planned.digest, actor=local_actor("bob"))
    assert again.proposals == ()
    (org,) = await context.store.orgs()
    assert len(await context.store.proposals([org.org_id], is_open=False, limit=9)) == 2
    approval = proposals.ApproveProposal(proposal=by_name["crm"])
    await perform(proposals.approve, context, local_actor("grace"), approval)
    assert [each.name for each in (await plan(context, wanted)).changes] == ["staff"]


async def test_prune_makes_room_for_a_name_in_another_case(context: OperationContext) -> None:
    await apply(context, Wanted((CONTOSO,), WANTED.proxies))
    renamed = Wanted((replace_org(apps=(WantedApp("CRM", "staff"),)),), (WantedProxy("Edge", ("contoso",)),))
    await perform(config.apply, context, ADA, config.ApplyConfig(renamed, prune=True))
    assert [app.name for app in await context.store.apps(None)] == ["CRM"]
    assert [proxy.name for proxy in await context.store.proxies(None)] == ["Edge"]


async def test_a_plan_says_why_it_would_be_refused(context: OperationContext) -> None:
    old = WantedRuleset("old", RULESET.format(name="old"))
    await apply(context, Wanted((replace_org(rulesets=(old, OPEN)),), WANTED.proxies))
    before = await context.store.operator_log(LogQuery(limit=100))
    similar = "differs from an existing name only by letters of another case or alphabet"
    for wanted, why in (
        (with_apps(CRM, WantedApp("Crm", "staff")), f"app Crm of organisation contoso: Crm {similar}"),
        (Wanted((WantedOrg("contoso", apps=(WantedApp("crm", "none"),)),)), "there is no ruleset none"),
        (Wanted((WantedOrg("Contoso"),)), f"organisation Contoso: Contoso {similar}"),
        (Wanted((), operators=(WantedOperator("x", {"nowhere": "viewer"}),)), "nowhere"),
        (Wanted((WantedOrg("new", rulesets=(WantedRuleset("bad", "version: 1", "b.yaml"),)),)), "b.yaml:1:1"),
    ):
        refused = "; ".join((await plan(context, wanted)).refused)
        assert why in refused
        with pytest.raises((InvalidRequest, InvalidName, AlreadyExists, NotFound, Conflict)) as caught:
            await apply(context, wanted)
        assert str(caught.value) == refused
    in_use = await plan(context, Wanted((WantedOrg("contoso", rulesets=(old,)),)), prune=True)
    assert "ruleset staff of organisation contoso: ruleset staff is in use" in in_use.refused[0]
    possible = with_apps(CRM, WantedApp("second", "old"))
    assert (await plan(context, possible)).refused == ()
    assert [app.name for app in await context.store.apps(None)] == ["crm"]  # each attempt was undone
    after = await context.store.operator_log(LogQuery(limit=100))
    assert {line.operation for line in after[: len(after) - len(before)]} == {"config.apply"}


async def test_one_apply_proposes_what_a_common_change_needs(context: OperationContext) -> None:
    names = [f"app-{number:02}" for number in range(MOST_OPEN + 1)]
    other = WantedRuleset("other", RULESET.format(name="other"))

    def bound_to(ruleset: str) -> Wanted:
        bound = tuple(WantedApp(name, ruleset) for name in names)
        return Wanted((replace_org(rulesets=(other, OPEN), apps=bound, second_person=True),))

    await apply(context, bound_to("staff"))
    planned = await plan(context, bound_to("other"))
    assert planned.refused == ()
    assert len((await apply(context, bound_to("other"), expected=planned.digest)).proposals) == MOST_OPEN + 1


WORKFLOW = WantedFederated("https://token.actions.githubusercontent.com", "repo:contoso/api:environment:p")
CLUSTER = WantedFederated("https://issuer.example", "system:serviceaccount:a:b", reuse="untilEnd")


async def test_an_app_as_code_needs_no_secret_and_has_the_federated_credentials_of_its_directory(
    context: OperationContext,
) -> None:
    await apply(context, WANTED)
    app = WantedApp("jobs", "staff", secret=False, federated=(WORKFLOW,))
    made = await apply(context, with_apps(*CONTOSO.apps or (), app))
    assert [(each.name, each.client_secret) for each in made.apps] == [("jobs", None)]
    exported = (await perform(config.export, context, ADA, config.ExportConfig())).config
    (held,) = (each for each in exported.organisations[0].apps or () if each.name == "jobs")
    assert (held.secret, held.federated) == (False, (WORKFLOW,))
    assert (await plan(context, exported)).changes == ()

    # Omitting the list changes nothing. A change of the reuse replaces the credential.
    unmanaged = with_apps(*CONTOSO.apps or (), WantedApp("jobs", "staff"))
    assert (await plan(context, unmanaged)).changes == ()
    again = WantedFederated(WORKFLOW.issuer, WORKFLOW.subject, reuse="untilEnd")
    wanted = with_apps(*CONTOSO.apps or (), WantedApp("jobs", "staff", federated=(again, CLUSTER)))
    (change,) = (await apply(context, wanted)).changes
    assert [member.name for member in change.members] == ["federated"]
    lines = await context.store.operator_log(LogQuery(limit=4))
    assert [line.operation for line in reversed(lines)] == [
        "config.apply", "app.credential.remove", "app.federated.add", "app.federated.add",
    ]  # fmt: skip
    assert (await plan(context, wanted)).changes == ()
    none = with_apps(*CONTOSO.apps or (), WantedApp("jobs", "staff", federated=()))
    await apply(context, none)
    (stored,) = (each for each in await context.store.apps(None) if each.name == "jobs")
    assert stored.credentials == ()


def jwks(kid: str) -> str:
    jwk = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    return json.dumps({"keys": [jwk | {"kid": kid}]})


async def test_keys_certificates_and_ends_are_those_of_the_directory(
    context: OperationContext, clock: FakeClock, tmp_path: Path
) -> None:
    made = client_certificate(days=30)
    clock.advance(seconds=made.certificate.not_valid_before_utc.timestamp() + 60 - clock.wall_ms() / 1000)
    pem = made.certificate.public_bytes(Encoding.PEM).decode()
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    key = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    soon, later = (rfc3339(clock.wall_ms() + days * 86_400_000) for days in (10, 20))
    await apply(context, WANTED)

    async def has(app: WantedApp) -> list[str]:
        """Apply the configuration directory, and return the operations that changed the control plane."""
        await apply(context, with_apps(*CONTOSO.apps or (), app))
        assert (await plan(context, with_apps(*CONTOSO.apps or (), app))).changes == ()
        lines = [line.operation for line in await context.store.operator_log(LogQuery(limit=20))]
        return lines[: lines.index("config.apply")][::-1]

    first = WantedApp(
        *("jobs", "staff"),
        secret_ends=later,
        federated=(WantedFederated("https://issuer.example", "s", keys=jwks("one"), ends=later),),
        keys=(WantedKey(key, soon), WantedKey(pem)),
        certificates=(WantedCertificate(pem),),
    )
    assert sorted(await has(first)) == [
        "app.add", "app.certificate.add", "app.federated.add", "app.key.add", "app.key.add",
    ]  # fmt: skip
    exported = (await perform(config.export, context, ADA, config.ExportConfig())).config
    write_directory(tmp_path / "exported", exported)
    assert (await plan(context, read_directory(tmp_path / "exported"))).changes == ()

    # An omitted end stays. An end with another value moves. A credential that is not listed is removed.
    other = WantedFederated("https://issuer.example", "s", keys=jwks("two"))
    changed = WantedApp(
        *("jobs", "staff"),
        secret_ends=soon,
        federated=(other,),
        keys=(WantedKey(key),),
        certificates=(WantedCertificate(pem, soon),),
    )
    planned = await plan(context, with_apps(*CONTOSO.apps or (), changed))
    assert WantedCertificate(pem).facts["thumbprint"] in "\n".join(plan_lines(planned.changes, (), {}))
    assert await has(changed) == [
        *("app.credential.end", "app.credential.remove", "app.credential.remove"),
        *("app.federated.add", "app.credential.end"),
    ]
    (stored,) = (each for each in await context.store.apps(None) if each.name == "jobs")
    ends = {each.kind: each.ends_ms and rfc3339(each.ends_ms) for each in stored.credentials}
    assert ends == {"federated": None, "publicKey": soon, "certificate": soon}
