"""`app`: add, list, show, bind, rotate-secret, disable, enable."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from controlplane.cli.context import (
    INVALID_INPUT,
    AnyOrg,
    Cli,
    CommandFailed,
    Json,
    OneOrg,
    print_facts,
    print_list,
)
from controlplane.registry import AppSecrets
from controlplane.store.interface import App
from proxy.wire.audit_event import rfc3339

app = typer.Typer()

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_App = Annotated[str, typer.Argument(metavar="APP", help="Id, client id or name.")]
_Ruleset = Annotated[
    str, typer.Option("--ruleset", metavar="NAME", help="The ruleset that judges it, by id or name.")
]


def _facts(found: App) -> dict[str, Any]:
    return {
        "appId": found.app_id,
        "name": found.name,
        "orgId": found.org_id,
        "clientId": found.client_id,
        "ruleset": found.ruleset_name,
        "enabled": found.enabled,
        "secretVersion": found.secret_version,
    }


def _secrets(created: AppSecrets) -> dict[str, Any]:
    return {
        "appId": created.app.app_id,
        "clientId": created.app.client_id,
        "clientSecret": created.client_secret,
    }


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    org: OneOrg,
    ruleset: _Ruleset,
    json: Json = False,
) -> None:
    """Add an app identity. Its client secret is printed this once."""
    cli: Cli = ctx.obj
    print_facts(_secrets(cli.run(lambda opened: opened.registry.add_app(name, org, ruleset))), as_json=json)


@app.command("list")
def list_apps(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """All app identities."""
    cli: Cli = ctx.obj
    apps = cli.run(lambda opened: opened.registry.apps(org))
    print_list("apps", [_facts(found) for found in apps], as_json=json)


@app.command()
def show(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """One app identity, with its valid secrets by version."""
    cli: Cli = ctx.obj
    found = cli.run(lambda opened: opened.registry.app(app_reference, org))
    secrets = [
        {
            "version": secret.version,
            "expiresAt": None if secret.expires_ms is None else rfc3339(secret.expires_ms),
        }
        for secret in found.secrets
    ]
    facts = {
        **_facts(found),
        "rulesetId": found.ruleset_id,
        "createdAt": rfc3339(found.created_ms),
        "secrets": secrets,
    }
    print_facts(facts, as_json=json)


@app.command()
def bind(
    ctx: typer.Context, app_reference: _App, ruleset: _Ruleset, org: AnyOrg = None, json: Json = False
) -> None:
    """Let another ruleset of its organisation judge the app identity."""
    cli: Cli = ctx.obj
    print_facts(
        _facts(cli.run(lambda opened: opened.registry.bind_app(app_reference, org, ruleset))), as_json=json
    )


@app.command("rotate-secret")
def rotate_secret(
    ctx: typer.Context,
    app_reference: _App,
    org: AnyOrg = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How long the old secret stays valid: 30m, 24h, 7d."),
    ] = "0s",
    json: Json = False,
) -> None:
    """A new client secret, printed this once. Without a grace the old one and its tokens end at once."""
    cli: Cli = ctx.obj
    grace_ms = _duration_ms(grace)
    rotated = cli.run(lambda opened: opened.registry.rotate_secret(app_reference, org, grace_ms))
    facts = {**_secrets(rotated), "secretVersion": rotated.app.secret_version}
    print_facts(facts, as_json=json)


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,5})([smhd])", text)
    if match is None:
        raise CommandFailed(
            INVALID_INPUT, f"--grace: must be a number with s, m, h or d, like 24h, not {text!r}"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


@app.command()
def disable(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Refuse the app identity and every token of it, from the proxies' next sync on."""
    _set_enabled(ctx.obj, app_reference, org, False, json)


@app.command()
def enable(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Serve the app identity again."""
    _set_enabled(ctx.obj, app_reference, org, True, json)


def _set_enabled(cli: Cli, reference: str, org: str | None, enabled: bool, json: bool) -> None:
    changed = cli.run(lambda opened: opened.registry.set_app_enabled(reference, org, enabled))
    print_facts(_facts(changed), as_json=json)
