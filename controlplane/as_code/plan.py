"""Changes that make a control plane equal to a configuration directory, in order and with a digest."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from controlplane.as_code.present import (
    Present,
    PresentApp,
    PresentCredential,
    PresentOperator,
    PresentOrg,
    PresentProxy,
    PresentRuleset,
)
from controlplane.as_code.wanted import (
    CREDENTIAL_LISTS,
    Wanted,
    WantedApp,
    WantedCredential,
    WantedOperator,
    WantedOrg,
    WantedProxy,
    WantedRuleset,
    as_end,
)
from controlplane.store.interface import RETENTION_MS, RETENTION_WORDS

Action = Literal["add", "change", "delete"]
Kind = Literal["organisation", "schema", "ruleset", "app", "proxy", "operator"]
Gate = Literal["none", "proposes", "proposed", "waits"]
"""Effect of the approval by a second person on a change.

It makes a proposal, has an open one, or needs a ruleset that is only proposed.
"""

_MOST_LINES: Final = 200  # lines of a text difference; a longer one is truncated
_MOST_COMPARED: Final = 20_000  # lines of both texts together
_NEW_ORG: Final = PresentOrg("", "", "base", False)


class Member(msgspec.Struct, rename="camel", frozen=True):
    name: str
    before: Any  # JSON value; null: the member does not exist
    after: Any


class Change(msgspec.Struct, rename="camel", frozen=True):
    """One object, such as an app or a ruleset, that is added, changed or deleted."""

    action: Action
    kind: Kind
    org: str | None
    name: str
    members: tuple[Member, ...] = ()
    lines: tuple[str, ...] = ()  # difference of a ruleset's text; only in a plan
    gate: Gate = "none"
    proposal: str | None = None  # id of the open proposal
    warning: str | None = None  # the loss that the change causes

    def after(self, member: str) -> Any:
        return next((each.after for each in self.members if each.name == member), None)

    def changes(self, member: str) -> bool:
        return any(each.name == member for each in self.members)

    @property
    def is_in_force(self) -> bool:
        """Return True if a part of the change takes effect as soon as the plan is applied.

        In a change of an app, only a new value of `ruleset` needs an approval.
        """
        if self.gate in ("proposes", "proposed") and self.kind == "app":
            return any(each.name != "ruleset" for each in self.members)
        return self.gate == "none"


class Unmanaged(msgspec.Struct, rename="camel", frozen=True):
    """An object that is in a managed list, but that the configuration directory does not name.

    The thing stays.
    """

    kind: Kind
    org: str | None
    name: str


class Difference(msgspec.Struct, rename="camel", frozen=True):
    digest: str  # equal for equal changes
    changes: tuple[Change, ...]
    unmanaged: tuple[Unmanaged, ...]


def difference(wanted: Wanted, present: Present, *, prune: bool) -> Difference:
    """Return the plan's changes in the order in which they are applied.

    Plans with equal changes have equal digests.
    """
    others = tuple(_others(wanted, present))
    deleted = [_deletion(each) for each in others] if prune else []
    changes: list[Change] = []
    for org in wanted.organisations:
        own = [each for each in deleted if each.org == org.name]
        changes += _org_changes(org, present.organisations.get(org.name, _NEW_ORG), own)
    changes += (each for each in deleted if each.kind == "proxy")
    for proxy in wanted.proxies or ():
        changes += _proxy_changes(proxy, present.proxies.get(proxy.name))
    for operator in wanted.operators or ():
        changes += _operator_changes(operator, present.operators.get(operator.name))
    return Difference(_digest(changes), tuple(changes), () if prune else others)


def _deletion(each: Unmanaged) -> Change:
    return Change("delete", each.kind, each.org, each.name, warning=_DELETED.get(each.kind))


_DELETED: Final[Mapping[Kind, str]] = {
    "app": "its secrets and tokens end",
    "proxy": "its keys end, and its undelivered audit events are lost",
    "ruleset": "its versions are no longer listed",
}


def _digest(changes: list[Change]) -> str:
    what = [(each.action, each.kind, each.org, each.name, each.members, each.gate) for each in changes]
    return f"sha256:{sha256(msgspec.json.encode(what, order='sorted')).hexdigest()}"


def _org_changes(org: WantedOrg, present: PresentOrg, deleted: Sequence[Change]) -> Iterator[Change]:
    """Yield the plan's changes within one organisation.

    The plan deletes apps first, so that a new app can get a name similar to the name of a deleted app.
    Rulesets and schemas are deleted last, because apps use them until the apps are changed.
    """
    is_new = present is _NEW_ORG
    given: dict[str, Any] = {"retention": org.retention, "secondPerson": org.second_person}
    held: dict[str, Any] = {"retention": present.retention, "secondPerson": present.second_person}
    if is_new:
        held = {"retention": None, "secondPerson": False}
        given["retention"] = org.retention or "base"
    members = _members(held, {name: value for name, value in given.items() if value is not None})
    if members:
        yield Change(
            "add" if is_new else "change",
            "organisation",
            None,
            org.name,
            members,
            warning=None if is_new else _shorter(present, org),
        )
    yield from (each for each in deleted if each.kind == "app")
    yield from _schema_changes(org, present)
    rulesets = list(_ruleset_changes(org, present))
    yield from rulesets
    unborn = {each.name for each in rulesets if each.action == "add" and each.gate != "none"}
    for app in org.apps or ():
        yield from _app_changes(app, org.name, present, unborn)
    yield from (each for each in deleted if each.kind != "app")


def _shorter(present: PresentOrg, org: WantedOrg) -> str | None:
    if org.retention is None or RETENTION_MS[org.retention] >= RETENTION_MS[present.retention]:
        return None
    return f"audit events older than {RETENTION_WORDS[org.retention]} are deleted"


def _schema_changes(org: WantedOrg, present: PresentOrg) -> Iterator[Change]:
    for schema in org.schemas or ():
        before = present.schemas.get(schema.root)
        if before != schema.digest:
            members = (Member("digest", before, schema.digest),)
            yield Change("change" if before else "add", "schema", org.name, schema.root, members)


def _ruleset_changes(org: WantedOrg, present: PresentOrg) -> Iterator[Change]:
    current = dict(present.schemas) | {each.root: each.digest for each in org.schemas or ()}
    for ruleset in org.rulesets or ():
        held = present.rulesets.get(ruleset.name)
        is_active = held is not None and held.version > 0
        if held is not None and is_active and held.yaml == ruleset.yaml:
            if not held.schemas or held.schemas == current:
                continue
            members = [Member("schemas", dict(held.schemas), current)]
        else:
            before = held.yaml if held is not None and is_active else None
            members = [Member("text", _text_digest(before), _text_digest(ruleset.yaml))]
        version = held.version if held is not None else 0
        members.insert(0, Member("version", version or None, version + 1))
        gate, proposal = _ruleset_gate(present, held, ruleset)
        yield Change(
            "change" if is_active else "add",
            "ruleset",
            org.name,
            ruleset.name,
            tuple(members),
            gate=gate,
            proposal=proposal,
        )


def _ruleset_gate(
    present: PresentOrg, held: PresentRuleset | None, ruleset: WantedRuleset
) -> tuple[Gate, str | None]:
    if not present.second_person:
        return "none", None
    proposal = None if held is None else held.proposed.get(ruleset.yaml)
    return ("proposes" if proposal is None else "proposed"), proposal


def _text_digest(text: str | None) -> str | None:
    return None if text is None else f"sha256:{sha256(text.encode()).hexdigest()}"


def text_difference(before: str, after: str) -> tuple[str, ...]:
    """Return the lines that differ between two texts of a ruleset.

    The comparison may take long, so it runs in a separate process that can be ended.
    """
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _MOST_COMPARED:
        return ("… the texts are too long to compare here",)
    found = difflib.unified_diff(old, new, lineterm="", n=2)
    lines = list(islice(found, 2, _MOST_LINES + 3))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = ["… the rest of the difference is omitted"]
    return tuple(lines)


def _app_changes(app: WantedApp, org: str, present: PresentOrg, unborn: set[str]) -> Iterator[Change]:
    held = present.apps.get(app.name)
    wanted: dict[str, Any] = {
        "ruleset": app.ruleset,
        "shadow": app.shadow,
        "owner": app.owner,
        "note": app.note,
    }
    if app.enabled is not None:
        wanted["enabled"] = app.enabled
    needs_unborn = app.ruleset in unborn or app.shadow in unborn
    if held is None:
        wanted = {name: value for name, value in wanted.items() if value not in (None, True)}
        if app.secret is False:
            wanted["secret"] = False
        gate: Gate = "waits" if needs_unborn else "none"
        members = _members({}, wanted) + tuple(_credential_members(app, None))
        yield Change("add", "app", org, app.name, members, gate=gate)
        return
    members = _members(_held_app(held), wanted) + tuple(_credential_members(app, held))
    if members:
        binds = present.second_person and any(each.name == "ruleset" for each in members)
        proposal = held.proposed.get(app.ruleset) if binds and not needs_unborn else None
        bound: Gate = "none" if not binds else "proposes" if proposal is None else "proposed"
        gate = "waits" if needs_unborn else bound
        yield Change("change", "app", org, app.name, members, gate=gate, proposal=proposal)


def _credential_members(app: WantedApp, held: PresentApp | None) -> Iterator[Member]:
    """Yield the changes to the credential lists of an app.

    The old value in each change contains the IDs of the app's existing credentials.
    """
    if app.secret_ends is not None and app.secret is not False:
        secret, after = (None if held is None else held.secret), as_end(app.secret_ends)
        if held is None or (secret is not None and secret.ends != after):
            before = None if secret is None else {"id": secret.credential_id, "ends": secret.ends}
            yield Member("secretEnds", before, after)
    for name in CREDENTIAL_LISTS:
        wanted = app.credentials(name)
        if wanted is not None:
            present = () if held is None else held.credentials.get(name, ())
            yield from _credential_member(name, wanted, present)


def _credential_member(
    name: str, wanted: Sequence[WantedCredential], held: Sequence[PresentCredential]
) -> Iterator[Member]:
    """Yield the changes to one list of credentials of an app.

    If the configuration omits the end time of a credential, the end time does not change.
    """
    ends = {_fixed(each.wanted.facts): each.ends for each in held}
    facts = [each.facts for each in wanted]
    given = ((own, each.ends) for own, each in zip(facts, wanted, strict=True))
    ends |= {_fixed(own): as_end(end) for own, end in given if end is not None}
    after = [_with_end(own, ends.get(_fixed(own))) for own in facts]
    before = [_with_end(each.wanted.facts, each.ends) for each in held]
    if sorted(map(_fixed, after)) != sorted(map(_fixed, before)):
        ids = {_fixed(shown): each.credential_id for shown, each in zip(before, held, strict=True)}
        yield Member(
            name,
            [{**each, "id": ids[_fixed(each)]} for each in sorted(before, key=_fixed)],
            sorted(after, key=_fixed),
        )


def _with_end(facts: dict[str, Any], ends: str | None) -> dict[str, Any]:
    return facts if ends is None else {**facts, "ends": ends}


def _fixed(facts: Mapping[str, Any]) -> bytes:
    """Return the properties of a credential as JSON with sorted keys.

    Credentials with equal properties have equal JSON.
    """
    return msgspec.json.encode(facts, order="sorted")


def _held_app(app: PresentApp) -> dict[str, Any]:
    return {
        "ruleset": app.ruleset,
        "shadow": app.shadow,
        "owner": app.owner,
        "note": app.note,
        "enabled": app.enabled,
    }


def _proxy_changes(proxy: WantedProxy, held: PresentProxy | None) -> Iterator[Change]:
    before = None if held is None else {"orgs": sorted(held.orgs), "enabled": held.enabled}
    yield from _changes_outside("proxy", proxy.name, {"orgs": sorted(proxy.orgs)}, proxy.enabled, before)


def _operator_changes(operator: WantedOperator, held: PresentOperator | None) -> Iterator[Change]:
    before = None if held is None else {"roles": dict(held.roles), "enabled": held.enabled}
    wanted = {"roles": operator.roles}
    yield from _changes_outside("operator", operator.name, wanted, operator.enabled, before)


def _changes_outside(
    kind: Kind,
    name: str,
    wanted: Mapping[str, Any],
    enabled: bool | None,
    before: Mapping[str, Any] | None,
) -> Iterator[Change]:
    """Yield the changes of a proxy or an operator; proxies and operators belong to no single organisation.

    `before` is None for a new proxy or a new operator, which starts enabled.
    """
    is_new = before is None
    if enabled is not None and not (is_new and enabled):
        wanted = {**wanted, "enabled": enabled}
    members = _members(before or {}, wanted)
    if is_new or members:
        yield Change("add" if is_new else "change", kind, None, name, members)


def _members(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Member, ...]:
    return tuple(
        Member(name, before.get(name), value) for name, value in after.items() if before.get(name) != value
    )


def _active(org: PresentOrg) -> Mapping[str, PresentRuleset]:
    """Return the rulesets that have an active version, without rulesets that are only proposed."""
    return {name: each for name, each in org.rulesets.items() if each.version}


def _others(wanted: Wanted, present: Present) -> Iterator[Unmanaged]:
    """Find objects that are in managed lists but not in the configuration directory, in deletion order."""
    for org in wanted.organisations:
        held = present.organisations.get(org.name, _NEW_ORG)
        listed: tuple[tuple[Kind, Any, Mapping[str, Any], str], ...] = (
            ("app", org.apps, held.apps, "name"),
            ("ruleset", org.rulesets, _active(held), "name"),
            ("schema", org.schemas, held.schemas, "root"),
        )
        for kind, named, existing, key in listed:
            if named is not None:
                names = {getattr(each, key) for each in named}
                yield from (Unmanaged(kind, org.name, name) for name in sorted(existing) if name not in names)
    if wanted.proxies is not None:
        names = {each.name for each in wanted.proxies}
        for name, proxy in sorted(present.proxies.items()):
            if name not in names and proxy.prunable:
                yield Unmanaged("proxy", None, name)
