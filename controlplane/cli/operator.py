"""`operator`: who may sign in, and their roles; `operator token`: API tokens for programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli.context import AnyOrg, Cli, Json, facts_of, print_facts, print_list
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, given, named_as_options
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.store.interface import EVERY_ORG, Role
from proxy.config.given_text import first_line

if TYPE_CHECKING:
    from controlplane.operations.operators import OperatorFacts

app = typer.Typer()
token = typer.Typer()
app.add_typer(token, name="token", help="API tokens of an operator, for programs.")

_Sort = Annotated[
    str | None, typer.Option("--sort", metavar="COLUMN", help="name or createdAt; - before it: descending.")
]
_Operator = Annotated[str, typer.Argument(metavar="OPERATOR", help="Id or name.")]
_PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Holds the password, which is asked for otherwise."),
]
_Where = Annotated[str, typer.Option("--org", metavar="ORG", help="Id or name; * is every organisation.")]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="As it is signed in with; for single sign-on, the address or user name there.",
        ),
    ],
    admin: Annotated[
        bool, typer.Option("--admin", help="Admin of every organisation, also those to come.")
    ] = False,
    role: Annotated[Role | None, typer.Option("--role", help="The first role, in --org.")] = None,
    org: Annotated[
        str | None, typer.Option("--org", metavar="ORG", help="Where the role is held; * is everywhere.")
    ] = None,
    password_file: _PasswordFile = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Let in by single sign-on and tokens only.")
    ] = False,
    json: Json = False,
) -> None:
    """Add an operator."""
    from controlplane.operations import operators

    if admin and (role or org):
        raise CommandFailed(INVALID_INPUT, "--admin: is --role admin --org '*' already")
    if not admin and (role is None) is not (org is None):
        raise CommandFailed(INVALID_INPUT, "--role and --org: are given together or not at all")
    if no_password and password_file:
        raise CommandFailed(INVALID_INPUT, "--no-password: not with --password-file")
    cli: Cli = ctx.obj
    password = None if no_password else _password(password_file)
    asked = operators.AddOperator(name, password, "admin" if admin else role, EVERY_ORG if admin else org)
    _print(cli.call(operators.add, asked), json)


@app.command("list")
def list_operators(
    ctx: typer.Context,
    org: AnyOrg = None,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """The operators that one may see, by name."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    asked = operators.ListOperators(org=org, **page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(operators.list_all, asked)
    print_page("operators", found, [_describe(each) for each in found.operators], as_json=json)


@app.command()
def show(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """One operator."""
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
            "--current-password-file", metavar="FILE", help="Holds the current one; to change one's own."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Set a password; the operator's sessions end."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    current = None if current_password_file is None else _password(current_password_file)
    asked = operators.SetPassword(operator, _password(password_file), current)
    _print(cli.call(operators.set_password, asked), json)


@app.command()
def disable(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """Refuse the operator from now on: sessions end, tokens are refused."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.disable, operators.OperatorReference(operator)), json)


@app.command()
def enable(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """Let the operator in again, tokens too."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.enable, operators.OperatorReference(operator)), json)


@app.command()
def grant(
    ctx: typer.Context,
    operator: _Operator,
    role: Annotated[Role, typer.Option("--role", help="In place of the one that they have there.")],
    org: _Where,
    json: Json = False,
) -> None:
    """Give the operator a role in an organisation."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.grant, operators.GrantRole(operator, org, role)), json)


@app.command()
def revoke(ctx: typer.Context, operator: _Operator, org: _Where, json: Json = False) -> None:
    """Take the operator's role in an organisation."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    _print(cli.call(operators.revoke, operators.RevokeRole(operator, org)), json)


@token.command("add")
def add_token(
    ctx: typer.Context,
    operator: _Operator,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=366, help="How long it is good.")
    ] = 90,
    json: Json = False,
) -> None:
    """Make an API token, which may what the operator may. It is printed this once."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    print_facts(cli.call(operators.add_token, operators.AddToken(operator, name, days)), as_json=json)


@token.command("list")
def list_tokens(ctx: typer.Context, operator: _Operator, json: Json = False) -> None:
    """The operator's API tokens."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    found = cli.call(operators.list_tokens, operators.OperatorReference(operator))
    print_list("tokens", found.tokens, as_json=json)


@token.command("revoke")
def revoke_token(
    ctx: typer.Context,
    operator: _Operator,
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="Id or name.")],
    json: Json = False,
) -> None:
    """End an API token at once."""
    from controlplane.operations import operators

    cli: Cli = ctx.obj
    print_facts(cli.call(operators.revoke_token, operators.RevokeToken(operator, name)), as_json=json)


def _password(file: Path | None) -> str:
    """The first line of the file, or what a person types twice."""
    if file is None:
        return _typed_password()
    return given(file, first_line)


def _typed_password() -> str:
    from getpass import getpass

    if not sys.stdin.isatty():
        raise CommandFailed(INVALID_INPUT, "there is no terminal to ask for a password: give --password-file")
    password = getpass("Password: ")
    if getpass("Once more: ") != password:
        raise CommandFailed(INVALID_INPUT, "the two passwords differ")
    return password


def _print(operator: OperatorFacts, as_json: bool) -> None:
    print_facts(operator if as_json else _describe(operator), as_json=as_json)


def _describe(operator: OperatorFacts) -> dict[str, Any]:
    """With the roles as a person reads them."""
    return {**facts_of(operator), "roles": [f"{each.org}: {each.role}" for each in operator.roles]}
