"""Commands of `operator`, for operators and their roles, and of `operator token`, for their API tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Wide,
    clock,
    facts_of,
    print_facts,
    print_list,
    print_next,
)
from controlplane.cli.deletions import YesDelete
from controlplane.cli.deletions import delete as delete_thing
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, given, named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.cli.next_steps import after_operator, after_refused_token, after_token
from controlplane.store.interface import EVERY_ORG, Role
from proxy.config.given_text import first_line

if TYPE_CHECKING:
    from controlplane.operations.operators import OperatorFacts

app = typer.Typer()
token = typer.Typer()
app.add_typer(token, name="token", help="API tokens of an operator, for programs.")

OPERATORS: Final = Layout(
    "operators",
    (
        Column("name"),
        Column("displayName", "prose", "Display name"),
        Column("enabled"),
        Column("roles", "prose"),
        Column("source"),
        Column("rolesUntil", "time", "Roles until"),
        Column("signedInAt", "time", "Signed in"),
        Column("password"),
        Column("createdAt", "time", "Created"),
        Column("operatorId", "id"),
    ),
    leads=("name",),
    drops=("createdAt", "password", "signedInAt", "source", "rolesUntil", "displayName", "roles"),
)
TOKENS: Final = Layout(
    "tokens",
    (
        Column("name"),
        Column("expiresAt", "time", "Expires"),
        Column("goodUntil", "time", "Good until"),
        Column("createdAt", "time", "Created"),
        Column("tokenId", "id"),
    ),
    leads=("name",),
    drops=("createdAt",),
)

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="Column to sort by: name, createdAt or signedInAt. Put - before the column name for"
        " descending order.",
    ),
]
_Operator = Annotated[str, typer.Argument(metavar="OPERATOR", help="ID or name.")]
_PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the password. Without --password-file, the command asks for the password.",
    ),
]
_Where = Annotated[
    str, typer.Option("--org", metavar="ORG", help="Organisation, by ID or name; * is every organisation.")
]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name to sign in with. For single sign-on: the email address or user name at the provider.",
        ),
    ],
    admin: Annotated[
        bool,
        typer.Option(
            "--admin", help="Make the operator admin of every organisation, including those added later."
        ),
    ] = False,
    role: Annotated[
        Role | None, typer.Option("--role", help="First role of the operator, in the organisation --org.")
    ] = None,
    org: Annotated[
        str | None,
        typer.Option("--org", metavar="ORG", help="Organisation of the role; * is every organisation."),
    ] = None,
    password_file: _PasswordFile = None,
    no_password: Annotated[
        bool,
        typer.Option(
            "--no-password", help="Set no password. The operator uses only single sign-on and API tokens."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Add an operator, optionally with a first role."""
    from controlplane.operations import operators

    if admin and (role or org):
        raise CommandFailed(INVALID_INPUT, "--admin: already means --role admin --org '*'; give only --admin")
    if not admin and (role is None) is not (org is None):
        raise CommandFailed(INVALID_INPUT, "--role, --org: give both or neither")
    if no_password and password_file:
        raise CommandFailed(INVALID_INPUT, "--no-password: excludes --password-file")
    cli: Cli = ctx.obj
    password = None if no_password else _password(password_file)
    asked = operators.AddOperator(name, password, "admin" if admin else role, EVERY_ORG if admin else org)
    added = cli.call(operators.add, asked)
    _print(added, json)
    if not json:
        # A remote control plane may have single sign-on.
        sign_in = password is not None or cli.is_remote or bool(cli.settings.console.oidc_issuer)
        print_next(after_operator(cli.typed, added.name, has_role=bool(added.roles), sign_in=sign_in))


@app.command("list")
def list_operators(
    ctx: typer.Context,
    org: AnyOrg = None,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the operators that you have permission to see, by name."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    asked = operators.ListOperators(org=org, **page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(operators.list_all, asked)
    rows = [_describe(each) for each in found.operators]
    print_page(OPERATORS, found, rows, as_json=json, fit=fit_of(wide, no_trunc))


@app.command()
def show(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """Show one operator and the operator's roles."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.show, operators.OperatorReference(operator)), json)


@app.command("set-password")
def set_password(
    ctx: typer.Context,
    operator: _Operator,
    password_file: _PasswordFile = None,
    current_password_file: Annotated[
        Path | None,
        typer.Option(
            "--current-password-file",
            metavar="FILE",
            help="File with the current password; required to change your own password.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Set the password of an operator, and end the operator's sessions."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    current = None if current_password_file is None else _password(current_password_file)
    asked = operators.SetPassword(operator, _password(password_file), current)
    _print(cli.call(operators.set_password, asked), json)


@app.command()
def link(
    ctx: typer.Context,
    operator: _Operator,
    subject: Annotated[
        str,
        typer.Option(
            "--subject",
            metavar="SUBJECT",
            help="Subject of the person at the identity provider, as the operator log shows it.",
        ),
    ],
    json: Json = False,
) -> None:
    """Link one person of the identity provider to a local operator.

    When a person is linked to an operator, all earlier sessions of the operator end.
    """
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.link, operators.LinkOperator(operator, subject)), json)


@app.command()
def unlink(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """Remove the link of a local operator to a person, and end the operator's sessions."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.unlink, operators.OperatorReference(operator)), json)


@app.command()
def disable(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """Disable an operator until the operator is enabled again.

    The sessions of the disabled operator end, and the control plane refuses the operator's API tokens.
    """
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.disable, operators.OperatorReference(operator)), json)


@app.command()
def enable(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """Enable a disabled operator and the operator's API tokens again."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.enable, operators.OperatorReference(operator)), json)


@app.command()
def grant(
    ctx: typer.Context,
    operator: _Operator,
    role: Annotated[
        Role, typer.Option("--role", help="Role; replaces the operator's role in this organisation.")
    ],
    org: _Where,
    json: Json = False,
) -> None:
    """Give an operator a role in an organisation."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.grant, operators.GrantRole(operator, org, role)), json)


@app.command()
def revoke(ctx: typer.Context, operator: _Operator, org: _Where, json: Json = False) -> None:
    """Remove an operator's role in an organisation."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.revoke, operators.RevokeRole(operator, org)), json)


@token.command("add")
def add_token(
    ctx: typer.Context,
    operator: _Operator,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the token, such as the name of the program that uses it."
        ),
    ],
    days: Annotated[
        int,
        typer.Option("--days", metavar="N", min=1, max=366, help="Days until the token expires (1 to 366)."),
    ] = 90,
    json: Json = False,
) -> None:
    """Make an API token with the permissions of an operator, and print the token.

    The API token is shown only once.
    """
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    made = cli.call(operators.add_token, operators.AddToken(operator, name, days))
    print_facts(made, as_json=json)
    if not json:
        until = made.good_until or made.expires_at
        moment = clock().whole(until)
        if made.awaits_sign_in:
            print_next(after_refused_token(moment))
            return
        renewed = until != made.expires_at
        print_next(after_token(cli.typed, moment, cli.console_address, renewed=renewed))


@token.command("list")
def list_tokens(
    ctx: typer.Context,
    operator: _Operator,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the API tokens of an operator."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    found = cli.call(operators.list_tokens, operators.OperatorReference(operator))
    print_list(TOKENS, found.tokens, as_json=json, fit=fit_of(wide, no_trunc))


@token.command("revoke")
def revoke_token(
    ctx: typer.Context,
    operator: _Operator,
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="ID or name.")],
    json: Json = False,
) -> None:
    """End an operator's API token immediately."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    print_facts(cli.call(operators.revoke_token, operators.RevokeToken(operator, name)), as_json=json)


def _password(file: Path | None) -> str:
    """Return the password in the first line of a file, or the password that a person types twice."""
    if file is None:
        return _typed_password()
    return given(file, first_line)


def _typed_password() -> str:
    from getpass import getpass

    from controlplane.operations.operators import LONGEST_PASSWORD, SHORTEST_PASSWORD

    if not sys.stdin.isatty():
        raise CommandFailed(
            INVALID_INPUT, "there is no terminal on which to ask for a password: give --password-file"
        )
    password = getpass(f"Password ({SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters): ")
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise CommandFailed(
            INVALID_INPUT, f"the password must have {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"
        )
    if getpass("Password again: ") != password:
        raise CommandFailed(INVALID_INPUT, "the two passwords differ")
    return password


def _print(operator: OperatorFacts, as_json: bool) -> None:
    print_facts(operator if as_json else _describe(operator), as_json=as_json)


def _describe(operator: OperatorFacts) -> dict[str, Any]:
    """Return the facts of an operator, with the roles and the identity as text."""
    found = facts_of(operator)
    identity, linked = found.pop("identity", None) or {}, found.pop("link", None)
    if linked is not None:
        found["linkedTo"] = f"{linked['subject']} at {linked['issuer']}"
    roles = [
        f"{each.org}: {each.role}" + (f" (by {each.mapping})" if each.mapping else "")
        for each in operator.roles
    ]
    return {**found, "source": "identity provider" if identity else "local", **identity, "roles": roles}


@app.command()
def delete(ctx: typer.Context, operator: _Operator, yes: YesDelete = False, json: Json = False) -> None:
    """Delete an operator immediately, with the operator's sessions and API tokens.

    Lines of the operator log still show the name of the deleted operator.
    """
    from controlplane.operations import deletions, operators

    effect_of = deletions.EffectOfDeletion("operator", operator)
    asked = operators.OperatorReference(operator)
    delete_thing(ctx.obj, effect_of, deletions.delete_operator, asked, yes=yes, json=json)
