"""Count the routes to twenty targets of Microsoft Graph that a ruleset leaves open (does not block).

    python -m bench.routes METADATA [--all] [--references]

METADATA is the schema file that Graph serves as /v1.0/$metadata. `--all` also prints each open route of two
rulesets for each target. The first ruleset blocks the target by the name of a resource or operation. The
second ruleset allows the paths that an application needs, and blocks everything else. `--references` also
counts routes that go on from an object that the previous object of the path references, but does not contain.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controlplane.model.schema_file import read_schema
from controlplane.workshop.routes import OpenRoute, routes_of
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset_yaml import parse_ruleset


@dataclass(frozen=True, slots=True)
class Target:
    """Data in Microsoft Graph, such as messages, to which the benchmark counts the routes.

    `blocked` has the paths that a careful administrator blocks. `words` is a rule condition that matches the
    resource of the data. `needed` has the paths that an application needs for its job.
    """

    name: str
    blocked: tuple[str, ...]
    words: str
    pack: str
    needed: tuple[str, ...]


_PEOPLE: Final = ("/v1.0/users", "/v1.0/users/{id}")
_GROUPS: Final = ("/v1.0/groups", "/v1.0/groups/{id}")
_FILES: Final = ("/v1.0/users/{id}/drive/root", "/v1.0/users/{id}/drive/items/{item}", "/v1.0/sites/{id}")


def _of_users(*names: str) -> tuple[str, ...]:
    return tuple(f"/v1.0/{user}/{name}/**" for user in ("users/{id}", "me") for name in names)


TARGETS: Final = (
    Target("messages", _of_users("messages", "mailFolders"), "resource: [message]", "mail", _PEOPLE),
    Target(
        "events", _of_users("events", "calendar", "calendarView"), "resource: [event]", "calendar", _PEOPLE
    ),
    Target("contacts", _of_users("contacts"), "resource: [contact]", "contacts", _PEOPLE),
    Target(
        "file content",
        (
            "/v1.0/users/{id}/drive/items/{item}/content",
            "/v1.0/drives/{id}/items/{item}/content",
            "/v1.0/me/drive/items/{item}/content",
        ),
        "resource: [driveItem.content]",
        "files",
        _FILES,
    ),
    Target(
        "chat messages",
        ("/v1.0/chats/{id}/messages/**",),
        "resource: [chatMessage]",
        "chats",
        ("/v1.0/chats/{id}",),
    ),
    Target(
        "channel messages",
        ("/v1.0/teams/{id}/channels/{channel}/messages/**",),
        "resource: [chatMessage]",
        "chats",
        ("/v1.0/teams/{id}", "/v1.0/teams/{id}/channels", "/v1.0/teams/{id}/channels/{channel}"),
    ),
    Target(
        "group members", ("/v1.0/groups/{id}/members/**",), "resource: [group.members]", "membership", _GROUPS
    ),
    Target("group owners", ("/v1.0/groups/{id}/owners/**",), "resource: [group.owners]", "owners", _GROUPS),
    Target(
        "application credentials",
        ("/v1.0/applications/{id}/addPassword", "/v1.0/applications/{id}/addKey"),
        "operation: [addPassword, addKey]",
        "credentials",
        ("/v1.0/applications", "/v1.0/applications/{id}"),
    ),
    Target(
        "app role assignments",
        ("/v1.0/servicePrincipals/{id}/appRoleAssignedTo/**", "/v1.0/users/{id}/appRoleAssignments/**"),
        "resource: [appRoleAssignment]",
        "permissions",
        ("/v1.0/servicePrincipals", "/v1.0/servicePrincipals/{id}"),
    ),
    Target(
        "consent grants",
        ("/v1.0/oauth2PermissionGrants", "/v1.0/oauth2PermissionGrants/**"),
        "resource: [oAuth2PermissionGrant]",
        "permissions",
        ("/v1.0/servicePrincipals", "/v1.0/servicePrincipals/{id}"),
    ),
    Target(
        "sign-in logs",
        ("/v1.0/auditLogs/signIns", "/v1.0/auditLogs/signIns/**"),
        "resource: [signIn]",
        "sign-ins",
        ("/v1.0/auditLogs/directoryAudits",),
    ),
    Target(
        "directory role members",
        ("/v1.0/directoryRoles/{id}/members/**",),
        "resource: [directoryRole.members]",
        "roles",
        ("/v1.0/directoryRoles", "/v1.0/directoryRoles/{id}"),
    ),
    Target(
        "conditional access policies",
        ("/v1.0/identity/conditionalAccess/policies", "/v1.0/identity/conditionalAccess/policies/**"),
        "resource: [conditionalAccessPolicy]",
        "access-policies",
        ("/v1.0/identity/conditionalAccess/namedLocations",),
    ),
    Target(
        "recovery keys",
        ("/v1.0/informationProtection/bitlocker/recoveryKeys/**",),
        "resource: [bitlockerRecoveryKey]",
        "recovery-keys",
        ("/v1.0/devices", "/v1.0/devices/{id}"),
    ),
    Target(
        "authentication methods",
        ("/v1.0/users/{id}/authentication/**",),
        "resource: [authenticationMethod]",
        "authentication-methods",
        _PEOPLE,
    ),
    Target(
        "notes",
        _of_users("onenote"),
        "resource: [onenote, onenoteEntityBaseModel]",
        "notes",
        _FILES,
    ),
    Target(
        "mailbox settings",
        ("/v1.0/users/{id}/mailboxSettings", "/v1.0/me/mailboxSettings"),
        "resource: [user.mailboxSettings]",
        "mailbox-settings",
        ("/v1.0/users/{id}/calendarView",),
    ),
    Target(
        "list items",
        ("/v1.0/sites/{id}/lists/{list}/items/**",),
        "resource: [listItem]",
        "list-items",
        ("/v1.0/sites/{id}", "/v1.0/sites/{id}/lists", "/v1.0/sites/{id}/lists/{list}"),
    ),
    Target(
        "attachments",
        _of_users("messages"),
        "resource: [attachment]",
        "mail",
        _PEOPLE,
    ),
)


@dataclass(frozen=True, slots=True)
class Count:
    routes: int
    open: tuple[OpenRoute, ...]


def _ruleset(default: str, match: str, needed: tuple[str, ...] = ()) -> str:
    """Return a ruleset in YAML, with a rule that blocks the requests that the condition `match` selects.

    If `needed` has paths that an application needs for its job, an earlier rule allows GET requests to these
    paths.
    """
    lines = ["version: 1", "name: measured", f"default: {default}", "rules:"]
    if needed:
        lines.append(f"  - {{id: job, match: {{methods: [GET], path: {list(needed)}}}, verdict: allow}}")
    lines.append(f"  - {{id: x, match: {{{match}}}, verdict: block}}")
    return "\n".join(lines) + "\n"


def count(model: ResourceModel, text: str, *, through_references: bool = False) -> Count:
    ruleset = parse_ruleset(text)
    report = routes_of(ruleset, model, only="x", through_references=through_references)
    routes, opened = 0, list[OpenRoute]()
    for rule in report.rules:
        routes += rule.routes
        opened += rule.open
    return Count(routes, tuple(opened))


def main(arguments: list[str]) -> int:
    paths = [each for each in arguments if not each.startswith("--")]
    if len(paths) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    model = read_schema(Path(paths[0]).read_bytes())
    deep = "--references" in arguments
    began = time.perf_counter()
    print(
        f"{'target':28} {'routes':>7} {'by path':>8} {'by word':>8} {'of pack':>8} {'by pack':>8} {'job':>8}"
    )
    total, kinds = [0] * 6, Counter[str]()
    for target in TARGETS:
        path = f"path: {list(target.blocked)}"
        counts = (
            count(model, _ruleset("allow", path), through_references=deep),
            count(model, _ruleset("allow", target.words), through_references=deep),
            count(model, _ruleset("allow", f"pack: [{target.pack}]"), through_references=deep),
            count(model, _ruleset("block", path, target.needed), through_references=deep),
        )
        by_path, by_word, by_pack, by_job = counts
        row = [
            by_path.routes,
            len(by_path.open),
            len(by_word.open),
            by_pack.routes,
            len(by_pack.open),
            len(by_job.open),
        ]
        total = [first + second for first, second in zip(total, row, strict=True)]
        kinds.update(str(each.kind) for each in by_word.open)
        print(f"{target.name:28} " + " ".join(f"{each:8,}" for each in row)[1:])
        if "--all" in arguments:
            for each in (*by_word.open, *by_job.open):
                print(f"    {each.kind:12} {each.example} ({each.verdict} by {each.decided_by})")
    print(f"{'all':28} " + " ".join(f"{each:8,}" for each in total)[1:])
    print(f"open by word, by kind: {dict(kinds)}; {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
