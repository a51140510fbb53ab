"""Commands of `proxy enrol-token`, which manage the tokens with which proxies enrol themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Wide,
    Yes,
    clock,
    confirm,
    print_facts,
    print_list,
    print_next,
)
from controlplane.cli.failure import named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.next_steps import after_enrolment_token
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.operations.enrolment import EnrolmentTokenDetails

app = typer.Typer()

TOKENS: Final = Layout(
    "tokens",
    (
        Column("name"),
        Column("state"),
        Column("used", "number"),
        Column("uses", "number"),
        Column("expiresAt", "time", "Expires"),
        Column("orgs", "prose", "Organisations"),
        Column("rotateDays", "number", "Rotate every (days)"),
        Column("retireDays", "number", "Retire after (days)"),
        Column("createdBy"),
        Column("createdAt", "time", "Created"),
        Column("tokenId", "id"),
    ),
    leads=("name",),
    drops=("createdAt", "createdBy", "retireDays", "rotateDays", "orgs", "expiresAt"),
)
_NAMED: Final = {
    "orgs": "--org",
    "uses": "--uses",
    "expires": "--expires",
    "rotateDays": "--rotate-every",
    "retireDays": "--retire-after",
}
_Token = Annotated[str, typer.Argument(metavar="TOKEN", help="ID or name of the token, or the token itself.")]


@app.command()
def add(
    ctx: typer.Context,
    org: Annotated[
        list[str],
        typer.Option(
            "--org",
            metavar="ORG",
            help="Organisation, by ID or name. Give the option once for each organisation.",
        ),
    ],
    uses: Annotated[
        int, typer.Option("--uses", metavar="N", help="Number of proxies that can enrol with the token.")
    ] = 1,
    expires: Annotated[
        str,
        typer.Option(
            "--expires",
            metavar="T",
            help="Time when the token ends: an RFC 3339 time, a date, or a duration from now such as 30d.",
        ),
    ] = "24h",
    rotate_every: Annotated[
        int | None,
        typer.Option(
            "--rotate-every", metavar="DAYS", help="Days between two renewals of the keys of a proxy."
        ),
    ] = None,
    retire_after: Annotated[
        int | None,
        typer.Option(
            "--retire-after",
            metavar="DAYS",
            help="Days without a message from a proxy, after which the proxy is retired.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the token, such as the name of the deployment that uses it.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a token with which proxies enrol themselves, and print the token.

    The enrolment token is shown only once.
    """
    from controlplane.operations import enrolment

    cli: Cli = ctx.obj
    with named_as_options(_NAMED):
        made = cli.call(
            enrolment.add,
            enrolment.AddEnrolmentToken(
                tuple(org), name, uses, expires, rotate_days=rotate_every, retire_days=retire_after
            ),
        )
    print_facts(made, as_json=json)
    if not json:
        print_next(after_enrolment_token(cli.typed, made.name, made.token, clock().whole(made.expires_at)))


@app.command("list")
def list_tokens(
    ctx: typer.Context,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List enrolment tokens, newest first."""
    from controlplane.operations import enrolment

    cli: Cli = ctx.obj
    found = cli.call(enrolment.list_all, enrolment.ListEnrolmentTokens(org))
    print_list(TOKENS, found.tokens, as_json=json, fit=fit_of(wide, no_trunc))


@app.command()
def show(ctx: typer.Context, token: _Token, json: Json = False) -> None:
    """Show one enrolment token, and the proxies that enrolled with this token."""
    cli: Cli = ctx.obj
    print_facts(_shown(cli, token), as_json=json)


@app.command()
def revoke(
    ctx: typer.Context,
    token: _Token,
    with_proxies: Annotated[
        bool, typer.Option("--with-proxies", help="Also disable every proxy that enrolled with the token.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Revoke an enrolment token at once.

    Proxies that enrolled with the token stay enabled, unless you give --with-proxies.
    """
    from controlplane.operations import enrolment

    cli: Cli = ctx.obj
    known = _shown(cli, token)
    confirm(_question(known, with_proxies=with_proxies), yes=yes)
    revoked = cli.call(enrolment.revoke, enrolment.RevokeEnrolmentToken(known.token_id, with_proxies))
    print_facts(revoked, as_json=json)


def _shown(cli: Cli, token: str) -> EnrolmentTokenDetails:
    from controlplane.operations import enrolment

    return cli.call(enrolment.show, enrolment.EnrolmentTokenReference(token))


def _question(token: EnrolmentTokenDetails, *, with_proxies: bool) -> str:
    came = counted(len(token.proxies), "proxy", "proxies")
    if not with_proxies:
        return (
            f"Revoke {token.name}? No further proxy can enrol with it. The {came} that enrolled with it stay."
        )
    names = ", ".join(each.name for each in token.proxies)
    return (
        f"Revoke {token.name} and disable the {came} that enrolled with it ({names})? Their keys are "
        "refused at"
        " once. Their events stay, and `proxy enable` enables one of them again."
    )
