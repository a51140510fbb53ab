"""Commands `app federated`, `app key`, `app certificate` and `app credential`: the credentials of an app."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from controlplane.cli.app import proxy_address
from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Wide,
    Yes,
    clock,
    confirm,
    facts_of,
    print_facts,
    print_list,
    print_next,
    with_org_names,
)
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, given, named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.next_steps import after_credential

if TYPE_CHECKING:
    from controlplane.operations.credentials import AddedCredential, CredentialFacts

federated = typer.Typer(
    help="Federated credentials of an app: tokens of other issuers, such as Entra, Kubernetes or GitHub."
)
key = typer.Typer(help="Public keys that verify assertions signed by an app.")
certificate = typer.Typer(help="Client certificates that an app uses in TLS connections.")
credential = typer.Typer(help="All credentials of an app, with the end and the last use of each credential.")

CREDENTIALS: Final = Layout(
    "credentials",
    (
        Column("kind"),
        Column("pinnedBy", "prose", "Pinned by"),
        Column("createdAt", "time", "Since"),
        Column("ends"),
        Column("lastUsed", title="Last used"),
        Column("id", "id", "ID"),
    ),
    leads=("kind",),
    drops=("createdAt", "pinnedBy"),
)
ENDING: Final = Layout(
    "credentials",
    (
        Column("app"),
        Column("state"),
        Column("endsAt", "time", "Ends"),
        Column("org", title="Organisation"),
        Column("id", "id", "ID"),
    ),
    leads=("app",),
    drops=("org",),
)
KINDS: Final = {
    "secret": "secret",
    "federated": "federated",
    "publicKey": "public key",
    "certificate": "certificate",
}
_OPTIONS: Final = {
    name: f"--{name}" for name in ("issuer", "subject", "audience", "reuse", "keys", "expires")
}

_App = Annotated[str, typer.Argument(metavar="APP", help="App, by ID, client ID or name.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="ID of the credential, such as crd-0123456789ab.")]
_Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="T",
        help="Time when the credential ends: an RFC 3339 time, a date, or a duration from now such as 90d.",
    ),
]


class Reuse(str, Enum):  # noqa: UP042 - typer shows the values of such a class
    ONCE = "once"
    UNTIL_END = "until-end"


class _Pins(NamedTuple):
    """The issuer and subject that a credential's tokens must have, and the reuse limit of one assertion."""

    issuer: str | None
    subject: str | None
    reuse: Reuse


@federated.command("add")
def add_federated(
    ctx: typer.Context,
    app: _App,
    issuer: Annotated[
        str | None, typer.Option("--issuer", metavar="URL", help="Exact `iss` claim of the tokens.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="TEXT", help="Exact `sub` claim of the tokens.")
    ] = None,
    audience: Annotated[
        str | None,
        typer.Option(
            "--audience", metavar="TEXT", help="Exact `aud` claim of the tokens (api://AzureADTokenExchange)."
        ),
    ] = None,
    reuse: Annotated[
        Reuse | None,
        typer.Option(
            "--reuse",
            help="Number of proxy tokens for one assertion: one, or any number until the assertion expires.",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", metavar="FILE", help="File with the JWKS of an issuer that proxies can't reach."
        ),
    ] = None,
    github: Annotated[
        str | None,
        typer.Option(
            "--github",
            metavar="OWNER/REPO",
            help="GitHub repository whose workflow tokens authenticate the app. The option sets --issuer and"
            " --subject.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option("--environment", metavar="NAME", help="With --github: only jobs of this environment."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="With --github: only runs of this branch.")
    ] = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            "--kubernetes",
            metavar="NAMESPACE/ACCOUNT",
            help="Kubernetes service account whose tokens authenticate the app. The option sets --subject.",
        ),
    ] = None,
    expires: _Expires = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Allow an app to authenticate with a token of another issuer."""
    from controlplane.credential_input import DEFAULT_AUDIENCE
    from controlplane.operations import credentials

    cli: Cli = ctx.obj
    pins = _filled(_Pins(issuer, subject, reuse or Reuse.ONCE), github, environment, branch, kubernetes)
    if reuse is not None:
        pins = pins._replace(reuse=reuse)
    if pins.issuer is None or pins.subject is None:
        raise CommandFailed(
            INVALID_INPUT, "give --issuer URL and --subject TEXT, or --github or --kubernetes"
        )
    asked = credentials.AddFederated(
        *(app, org),
        issuer=pins.issuer,
        subject=pins.subject,
        audience=DEFAULT_AUDIENCE if audience is None else audience,
        reuse="once" if pins.reuse is Reuse.ONCE else "untilEnd",
        keys=None if keys is None else _public_text(keys, "keys"),
        expires=expires,
    )
    with named_as_options(_OPTIONS):
        added = cli.call(credentials.add_federated, asked)
    _print_added(cli, app, added, as_json=json)


def _filled(
    pins: _Pins, github: str | None, environment: str | None, branch: str | None, kubernetes: str | None
) -> _Pins:
    """Return the issuer and subject in the form that GitHub and Kubernetes write in their tokens."""
    from controlplane.credential_input import GITHUB_ISSUER

    if github is None and (environment or branch):
        raise CommandFailed(INVALID_INPUT, "--environment, --branch: need --github")
    if github is None and kubernetes is None:
        return pins
    if pins.subject is not None or (github is not None and kubernetes is not None):
        raise CommandFailed(INVALID_INPUT, "give only one of --subject, --github and --kubernetes")
    if github is not None:
        if (environment is None) == (branch is None):
            raise CommandFailed(INVALID_INPUT, "--github: also give --environment NAME or --branch NAME")
        _require_two(github, "--github", "OWNER/REPO")
        # GitHub encodes a colon in the name of an environment like this.
        part = f"ref:refs/heads/{branch}" if environment is None else _environment(environment)
        return _Pins(pins.issuer or GITHUB_ISSUER, f"repo:{github}:{part}", pins.reuse)
    assert kubernetes is not None
    _require_two(kubernetes, "--kubernetes", "NAMESPACE/ACCOUNT")
    if pins.issuer is None:
        raise CommandFailed(
            INVALID_INPUT,
            "--kubernetes: also give --issuer URL of the cluster, as printed by: "
            "kubectl get --raw /.well-known/openid-configuration | jq -r .issuer",
        )
    subject = "system:serviceaccount:" + kubernetes.replace("/", ":")
    return _Pins(pins.issuer, subject, Reuse.UNTIL_END)


def _environment(name: str) -> str:
    return f"environment:{name.replace(':', '%3A')}"


def _require_two(text: str, option: str, form: str) -> None:
    if text.count("/") != 1 or not all(text.split("/")):
        raise CommandFailed(INVALID_INPUT, f"{option}: must be {form}, not {text!r}")


@key.command("add")
def add_key(
    ctx: typer.Context,
    app: _App,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File with a PEM public key, a PEM certificate or a JWK.")
    ],
    expires: _Expires = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Allow an app to authenticate with assertions that the app signs.

    If the given file contains a private key, `graphward` refuses the file.
    """
    from controlplane.operations import credentials

    cli: Cli = ctx.obj
    asked = credentials.AddKey(app, org, key=_public_text(file, "key"), expires=expires)
    with named_as_options(_OPTIONS | {"key": str(file)}):
        added = cli.call(credentials.add_key, asked)
    _print_added(cli, app, added, as_json=json)


@certificate.command("add")
def add_certificate(
    ctx: typer.Context,
    app: _App,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the certificate in PEM or DER.")],
    expires: _Expires = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Allow an app to authenticate with a client certificate.

    If the given file contains a private key, `graphward` refuses the file.
    """
    from controlplane.operations import credentials

    cli: Cli = ctx.obj
    asked = credentials.AddCertificate(
        app, org, certificate=_public_text(file, "certificate"), expires=expires
    )
    with named_as_options(_OPTIONS | {"certificate": str(file)}):
        added = cli.call(credentials.add_certificate, asked)
    _print_added(cli, app, added, as_json=json)


def _public_text(file: Path, member: str) -> str:
    """Return the text of a file that contains a public key or a certificate.

    A file with a private key is refused before the key leaves this machine.
    """
    from controlplane import credential_input

    text = given(file, credential_input.certificate_text)
    check = {
        "keys": credential_input.checked_jwks,
        "key": credential_input.checked_key,
        "certificate": credential_input.checked_certificate,
    }[member]
    try:
        check(text)
    except credential_input.InvalidCredential as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {str(error).removeprefix(f'{member}: ')}") from None
    return text


@credential.command("list")
def list_credentials(
    ctx: typer.Context,
    app: _App,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List all credentials of an app: kind, pinned values, end time and last use."""
    from controlplane.operations import apps, credentials

    cli: Cli = ctx.obj
    found = cli.call(credentials.list_all, apps.AppReference(app, org)).credentials
    rows = [facts_of(each) for each in found] if json else [_row(each) for each in found]
    print_list(CREDENTIALS, rows, as_json=json, fit=fit_of(wide, no_trunc))


@credential.command("ending")
def list_ending(
    ctx: typer.Context,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List all app credentials that have ended or end within 30 days, soonest end first."""
    from controlplane.operations import credentials

    cli: Cli = ctx.obj
    found = cli.call(credentials.list_ending, credentials.ListEnding(org)).credentials
    rows = [facts_of(each) for each in found] if json else with_org_names(cli, found)
    print_list(ENDING, rows, as_json=json, fit=fit_of(wide, no_trunc))


@credential.command("end")
def end_credential(
    ctx: typer.Context,
    app: _App,
    credential_id: _Id,
    expires: Annotated[
        str,
        typer.Option(
            "--expires",
            metavar="T",
            help="Time when the credential ends: an RFC 3339 time, a date, or a duration from now"
            " such as 90d.",
        ),
    ],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Set the time at which a credential expires."""
    from controlplane.operations import credentials

    cli: Cli = ctx.obj
    asked = credentials.EndCredential(app, org, credential=credential_id, expires=expires)
    with named_as_options(_OPTIONS):
        ended = cli.call(credentials.end, asked)
    print_facts(ended if json else _row(ended.credential), as_json=json)


@credential.command("remove")
def remove_credential(
    ctx: typer.Context,
    app: _App,
    credential_id: _Id,
    org: AnyOrg = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove a credential from an app. The credential and its tokens end at the next sync of each proxy."""
    from controlplane.operations import credentials

    cli: Cli = ctx.obj
    confirm(f"Remove credential {credential_id} of {app}? The tokens that it obtained end too.", yes=yes)
    asked = credentials.CredentialReference(app, org, credential=credential_id)
    print_facts(cli.call(credentials.remove, asked), as_json=json)


def _print_added(cli: Cli, app: str, added: AddedCredential, *, as_json: bool) -> None:
    if as_json:
        print_facts(added, as_json=True)
        return
    from controlplane.operations import apps

    facts = added.credential
    told: dict[str, Any] = {
        "credential": facts.id,
        "kind": KINDS[facts.kind],
        **{name: value for name, value in facts_of(facts).items() if name in _TOLD},
        "ends": ends_of(facts),
        "clientId": added.client_id,
    }
    print_facts(told, as_json=False)
    org_id = cli.call(apps.show, apps.AppReference(added.app_id)).org_id
    print_next(
        (
            _ACCEPTED_FROM[facts.kind == "federated" and not facts.keys] + " To see whether it is used:",
            cli.typed("app", "credential", "list", app),
            *after_credential(facts.kind, added.client_id, proxy_address(cli, org_id)),
        )
    )


_ACCEPTED_FROM: Final = {
    False: "Proxies accept it after their next sync.",
    True: (
        "Proxies accept it after they have read the issuer's keys: see the check `issuers` in `proxy show`."
    ),
}
_TOLD: Final = ("issuer", "subject", "audience", "reuse", "keys", "key", "thumbprint")


def _row(credential: CredentialFacts) -> dict[str, Any]:
    return {
        "kind": KINDS[credential.kind],
        "pinnedBy": credential.pinned_by,
        "createdAt": credential.created_at,
        "ends": ends_of(credential),
        "lastUsed": last_used(credential),
        "id": credential.id,
    }


def ends_of(credential: CredentialFacts) -> str:
    """Return the expiry time of a credential as text, with a mark if the time is near or past."""
    if credential.ends_at is None:
        return "never"
    mark = {"valid": "", "soon": " (soon)", "ended": " (ended)"}
    return f"{clock().whole(credential.ends_at)}{mark[credential.state]}"


def last_used(credential: CredentialFacts) -> str:
    if credential.last_used is not None:
        return clock().whole(credential.last_used)
    return "never" if credential.use == "never" else "not recorded"
