"""Commands of `app`, which manage applications, their rulesets and their client secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    OneOrg,
    Wide,
    clock,
    facts_of,
    org_names,
    print_facts,
    print_next,
    print_text,
    with_org_names,
)
from controlplane.cli.deletions import YesDelete
from controlplane.cli.deletions import delete as delete_thing
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, named_as_options
from controlplane.cli.grace import Grace, grace_seconds
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.lists import NAMED_OPTIONS, AppSearch, Cursor, Limit, page_members, print_page
from controlplane.cli.next_steps import after_app, after_app_without_secret, after_rotation, not_active_yet
from controlplane.store.pages import Unused
from proxy.wire.figures import number

if TYPE_CHECKING:
    from controlplane.operations.apps import AppDetails, AppList, SecretFacts
    from controlplane.operations.credentials import EndingFacts

app = typer.Typer()

APPS: Final = Layout(
    "apps",
    (
        Column("name"),
        Column("state"),
        Column("lastSeen", "time"),
        Column("recentRequests", "number", "Requests in 30 days"),
        Column("org", title="Organisation"),
        Column("ruleset"),
        Column("shadowRuleset", title="Shadow"),
        Column("owner"),
        Column("note", "prose"),
        Column("createdAt", "time", "Created"),
        Column("secretCreatedAt", "time", "Secret made"),
        Column("secretExpiresAt", "time", "Secret ends"),
        Column("clientId", "id", "Client ID"),
        Column("appId", "id", "App ID"),
    ),
    leads=("name",),
    drops=(
        "secretCreatedAt", "createdAt", "note", "owner", "shadowRuleset", "secretExpiresAt", "recentRequests",
        "org", "ruleset",
    ),
)  # fmt: skip

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="Column to sort by: name, org, ruleset, owner, lastSeen, createdAt. Put - before the"
        " column name for descending order.",
    ),
]

SOON: Final = timedelta(days=30)  # time before the end of a secret from which lists mark it
_NAMED: Final = {"expires": "--expires"}

_App = Annotated[str, typer.Argument(metavar="APP", help="App, by ID, client ID or name.")]
_Ruleset = Annotated[
    str,
    typer.Option(
        "--ruleset", metavar="NAME", help="Ruleset that evaluates the requests of the app, by ID or name."
    ),
]

_Owner = Annotated[
    str | None,
    typer.Option("--owner", metavar="TEXT", help="Person or team that is responsible for the app."),
]
_Note = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Purpose of the app.")]
_Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="T",
        help="Time when the new secret ends: an RFC 3339 time, a date, or a duration from now such as 90d.",
    ),
]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new app.")],
    org: OneOrg,
    ruleset: _Ruleset,
    owner: _Owner = None,
    note: _Note = None,
    expires: _Expires = None,
    no_secret: Annotated[
        bool,
        typer.Option(
            "--no-secret",
            help="Do not make a client secret. An app without a client secret needs a credential of"
            " another kind.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Add an app, and print its client secret. The client secret is shown only once."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.AddApp(name, org, ruleset, owner, note, expires, not no_secret)
    with named_as_options(_NAMED):
        added = cli.call(apps.add, asked)
    print_facts(added, as_json=json)
    if json:
        return
    if expires is not None:
        shown = cli.call(apps.show, apps.AppReference(added.app_id))
        print_text(_end_of(shown.secret_expires_at or expires))
    if added.client_secret is None:
        print_next(after_app_without_secret(cli.typed, name, org))
        return
    secret = (added.client_id, added.client_secret)
    print_next(after_app(cli.typed, name, org, secret, proxy_address(cli, org)))


@app.command("set")
def set_about(
    ctx: typer.Context,
    app_reference: _App,
    owner: _Owner = None,
    note: _Note = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Set the owner or the note of an app. An empty text removes the owner or the note of the app."""
    if owner is None and note is None:
        raise CommandFailed(INVALID_INPUT, "give --owner TEXT, --note TEXT or both")
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.SetApp(app_reference, org, owner=owner, note=note)
    print_facts(cli.call(apps.set_about, asked), as_json=json)


@app.command("list")
def list_apps(
    ctx: typer.Context,
    org: AnyOrg = None,
    ruleset: Annotated[
        str | None,
        typer.Option("--ruleset", metavar="NAME", help="Only apps with this ruleset."),
    ] = None,
    shadow: Annotated[
        str | None, typer.Option("--shadow", metavar="NAME", help="Only apps with this shadow ruleset.")
    ] = None,
    unused: Annotated[
        Unused | None,
        typer.Option(
            "--unused", help="Only unused apps: never used, or idle (no request in the last 30 days)."
        ),
    ] = None,
    search: AppSearch = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List apps by name, with the state of each app and the time of its last request."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.ListApps(
        org=org,
        ruleset=ruleset,
        shadow=shadow,
        unused=unused,
        **page_members(search, sort, limit, cursor, as_json=json),
    )
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(apps.list_all, asked)
    rows = () if json else _listed(cli, org, found)
    print_page(APPS, found, rows, as_json=json, fit=fit_of(wide, no_trunc))


def _listed(cli: Cli, org: str | None, found: AppList) -> list[dict[str, Any]]:
    """Return a table row for each app, with the app's state.

    In the list of apps, the row of an app marks each credential that ends soon or has ended.
    """
    from controlplane.operations import credentials

    ending: dict[str, list[EndingFacts]] = {}
    for each in cli.call(credentials.list_ending, credentials.ListEnding(org)).credentials:
        ending.setdefault(each.app_id, []).append(each)
    rows = with_org_names(cli, found.apps)
    return [row | {"state": state_of(row) + _ending_of(row, ending.get(row["appId"], ()))} for row in rows]


def _ending_of(app: Mapping[str, Any], ending: Sequence[EndingFacts]) -> str:
    """Return a mark for an app if one of its credentials, except its client secret, has ended or ends soon.

    The table of apps has a separate mark for the client secret of an app.
    """
    states = {each.state for each in ending if each.ends_at != app["secretExpiresAt"]}
    if "ended" in states:
        return ", credential ended"
    return ", credential ends" if states else ""


@app.command()
def show(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Show one app, with the versions of its valid secrets."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.AppReference(app_reference, org)
    found = cli.call(apps.show, asked)
    print_facts(found if json else _describe(found, org_names(cli)), as_json=json)


@app.command()
def bind(
    ctx: typer.Context, app_reference: _App, ruleset: _Ruleset, org: AnyOrg = None, json: Json = False
) -> None:
    """Switch an app to another ruleset of its organisation."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.BindApp(app_reference, org, ruleset=ruleset)
    bound = cli.call(apps.bind, asked)
    print_facts(bound, as_json=json)
    if bound.proposal is not None:
        typer.echo(not_active_yet(bound.proposal), err=True)


@app.command()
def shadow(
    ctx: typer.Context,
    app_reference: _App,
    ruleset: Annotated[
        str | None, typer.Option("--ruleset", metavar="NAME", help="Shadow ruleset, by ID or name.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the shadow ruleset.")] = False,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Set the shadow ruleset of an app.

    Audit events record the verdicts of the shadow ruleset, which has no other effect.
    """
    if (ruleset is None) != off:
        raise CommandFailed(INVALID_INPUT, "give either --ruleset NAME or --off")
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.SetShadow(app_reference, org, ruleset)
    print_facts(cli.call(apps.shadow, asked), as_json=json)


@app.command("promote-shadow")
def promote_shadow(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Make the shadow ruleset of an app its active ruleset."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    bound = cli.call(apps.promote_shadow, apps.PromoteShadow(app_reference, org))
    print_facts(bound, as_json=json)
    if bound.proposal is not None:
        typer.echo(not_active_yet(bound.proposal), err=True)


@app.command("rotate-secret")
def rotate_secret(
    ctx: typer.Context,
    app_reference: _App,
    org: AnyOrg = None,
    grace: Grace = "0s",
    expires: _Expires = None,
    json: Json = False,
) -> None:
    """Make a new client secret for an app, and print the secret. The client secret is shown only once.

    Without --grace, the app's old client secret is invalid at each proxy after the proxy's next sync, and so
    are the secret's tokens.
    """
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    seconds = grace_seconds(grace, apps.MAX_GRACE_SECONDS)
    asked = apps.RotateSecret(app_reference, org, seconds, expires=expires)
    with named_as_options(_NAMED):
        made = cli.call(apps.rotate_secret, asked)
    if json:
        print_facts(made, as_json=True)
    else:
        # While two secrets are valid, `secretVersion` is the older one.
        print_facts(
            {each: facts_of(made)[each] for each in ("clientSecret", "clientId", "appId")}, as_json=False
        )
        app = cli.call(apps.show, apps.AppReference(made.app_id))
        newest, *older = app.secrets
        ends = [each.expires_at for each in older if each.expires_at is not None]
        if newest.expires_at is not None:
            print_text(_end_of(newest.expires_at))
        until = clock().whole(max(ends)) if ends else None
        print_next(after_rotation(newest.version, until, made.client_secret))


def proxy_address(cli: Cli, org: str) -> str | None:
    """Return the address that a proxy of the organisation reported, or None if no proxy reported one."""
    from controlplane.operations import fleet

    found = cli.call(fleet.list_all, fleet.ListFleet(org=org, sort="health", limit=20))
    return next((each.public_base_url for each in found.proxies if each.public_base_url), None)


def state_of(app: Mapping[str, Any]) -> str:
    """Return the state of an app as text: enabled or not, and the emergency stop that applies."""
    stop = {"app": "stopped", "org": "stopped (organisation)", "all": "stopped (everything)"}
    state = stop.get(app["stopped"], "enabled" if app["enabled"] else "disabled")
    expires_at = app["secretExpiresAt"]
    if expires_at is not None and datetime.fromisoformat(expires_at) <= clock().now:
        return f"{state}, secret ended"
    return f"{state}, secret ends" if _ends_soon(expires_at) else state


def _describe(app: AppDetails, orgs: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of an app to show to a person, with IDs last."""
    return {
        "name": app.name,
        "organisation": orgs.get(app.org_id, app.org_id),
        "state": state_of(facts_of(app)),
        "ruleset": app.ruleset,
        "shadowRuleset": app.shadow_ruleset,
        "owner": app.owner,
        "note": app.note,
        "lastSeen": app.last_seen or f"never since {clock().whole(app.counted_since)}",
        "requests": f"{number(app.recent_requests)} in the last 30 days",
        "secrets": [_secret(each, app) for each in app.secrets] or _no_secret(app),
        "createdAt": app.created_at,
        "clientId": app.client_id,
        "appId": app.app_id,
    }


def _no_secret(app: AppDetails) -> str:
    if app.secret_expires_at is None:
        return "none (`app credential list` shows the other credentials)"
    return f"no valid secret: version {app.newest_secret} ended {clock().whole(app.secret_expires_at)}"


def _secret(secret: SecretFacts, app: AppDetails) -> str:
    said = f"version {secret.version}, made {clock().whole(secret.created_at)}"
    if secret.expires_at is not None:
        soon = " (soon)" if secret.version == app.newest_secret and _ends_soon(secret.expires_at) else ""
        return f"{said}, valid until {clock().whole(secret.expires_at)}{soon}"
    return f"{said}, " + ("current" if secret.version == app.secret_version else "valid")


def _end_of(expires_at: str) -> str:
    return f"The new secret ends {clock().whole(expires_at)}. Replace the secret before it ends."


def _ends_soon(expires_at: str | None) -> bool:
    """Return True if a client secret ends within 30 days, or has ended."""
    now = clock().now
    return expires_at is not None and datetime.fromisoformat(expires_at) - now < SOON


@app.command()
def disable(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Disable an app until it is enabled again.

    After an app is disabled, each proxy refuses the app and its tokens from the proxy's next sync on.
    """
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.disable, apps.AppReference(app_reference, org)), as_json=json)


@app.command()
def enable(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Enable a disabled app again."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.enable, apps.AppReference(app_reference, org)), as_json=json)


@app.command()
def delete(
    ctx: typer.Context, app_reference: _App, org: AnyOrg = None, yes: YesDelete = False, json: Json = False
) -> None:
    """Delete an app with its secrets.

    The app's secrets and tokens end at each proxy's next sync. After the deletion, the app's audit events
    stay in the store.
    """
    from controlplane.operations import apps, deletions

    effect_of = deletions.EffectOfDeletion("app", app_reference, org)
    asked = apps.AppReference(app_reference, org)
    delete_thing(ctx.obj, effect_of, deletions.delete_app, asked, yes=yes, json=json)
