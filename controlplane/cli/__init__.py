"""Define the command line for operators, with one module for each group of commands."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import app as app_commands
from controlplane.cli import (
    apply,
    archive,
    audit,
    credentials,
    doctor,
    dry_runs,
    integrity,
    kill,
    model,
    operator,
    operator_log,
    org,
    proxy,
    report,
    routes,
    rule_usage,
    ruleset,
    sink,
    store,
    traffic,
)
from controlplane.cli.context import Cli, leave_standard_output
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.cli.next_steps import Typed
from controlplane.programs import MODULE
from proxy.process.own_process import keep_to_itself

cli = typer.Typer(
    name="controlplane",
    help="Give proxies their rules and collect their audit events. Without a command, start the server.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cli.add_typer(
    org.app, name="org", help="Manage organisations: their names, and how long their audit events are kept."
)
cli.add_typer(proxy.app, name="proxy", help="Manage proxies: their health, credentials and organisations.")
cli.add_typer(proxy.app, name="proxies", help="Same as `proxy`.")
ruleset.app.add_typer(dry_runs.app)
ruleset.app.add_typer(traffic.app)
ruleset.app.add_typer(routes.app)
ruleset.app.add_typer(rule_usage.app)
cli.add_typer(ruleset.app, name="ruleset", help="Manage rulesets: check, test, apply, show and roll back.")
cli.add_typer(
    model.app, name="model", help="Manage schemas of graph APIs, for rules that name the types of an API."
)
app_commands.app.add_typer(credentials.federated, name="federated")
app_commands.app.add_typer(credentials.key, name="key")
app_commands.app.add_typer(credentials.certificate, name="certificate")
app_commands.app.add_typer(credentials.credential, name="credential")
cli.add_typer(
    app_commands.app, name="app", help="Manage applications: their credentials, rulesets and owners."
)
cli.add_typer(
    kill.stop,
    name="kill",
    help="Set or list emergency stops of applications, of organisations or of everything.",
)
cli.add_typer(kill.lift, name="unkill", help="Lift an emergency stop.")
audit.app.add_typer(integrity.app)
audit.app.add_typer(archive.app)
audit.app.add_typer(report.app)
cli.add_typer(audit.app, name="audit", help="Search, verify and export audit events.")
cli.add_typer(
    sink.app, name="sink", help="Manage sinks, which are the destinations that audit events are delivered to."
)
cli.add_typer(apply.app)
cli.add_typer(doctor.app)
cli.add_typer(
    store.app,
    name="store",
    help="Manage the store: create a new store after a loss, or copy a store to PostgreSQL.",
)
cli.add_typer(operator.app, name="operator", help="Manage operators: their sign-in, roles and API tokens.")
cli.add_typer(
    operator_log.app, name="record", help="Search the operator log, which records the actions of operators."
)


@cli.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings file (TOML) of the control plane; the command opens its store.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Address of the admin API of a running control plane (variable GRAPHWARD_URL).",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the API token for --url (variable GRAPHWARD_TOKEN_FILE).",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check the settings, print them with secrets masked, and exit."),
    ] = False,
    examine: Annotated[
        bool, typer.Option("--doctor", help="Run the checks of the command `doctor`, and exit.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from controlplane import __version__

        typer.echo(f"graphward {__version__}")
        raise typer.Exit
    if (check or examine) and (ctx.invoked_subcommand is not None or (check and examine)):
        raise CommandFailed(INVALID_INPUT, "--check, --doctor: give only one of them, and no command")
    if config is not None and url is not None:
        raise CommandFailed(INVALID_INPUT, "--config, --url: give only one of them")
    if token_file is not None and url is None and not os.environ.get("GRAPHWARD_URL"):
        raise CommandFailed(INVALID_INPUT, "--token-file: needs --url")
    typed = _typed(ctx.info_name or MODULE, config, url, token_file)
    if config is None:
        url = url or os.environ.get("GRAPHWARD_URL") or None
        token_file = token_file or (
            Path(given) if (given := os.environ.get("GRAPHWARD_TOKEN_FILE")) else None
        )
    ctx.obj = Cli(config, url, token_file, typed)
    if check:
        check_settings(ctx.obj)
    elif examine:
        doctor.doctor(ctx)
    elif ctx.invoked_subcommand is None:
        serve(ctx.obj)


@cli.command()
def server(ctx: typer.Context) -> None:
    """Start the server of the control plane. `--config FILE` without a command starts the server too."""
    serve(ctx.obj)


def _typed(program: str, config: Path | None, url: str | None, token_file: Path | None) -> Typed:
    """Return the options that precede the command exactly as typed, so that messages can print them again."""
    given = (("--config", config), ("--url", url), ("--token-file", token_file))
    return Typed(program, tuple(str(word) for pair in given if pair[1] is not None for word in pair))


def check_settings(context: Cli) -> None:
    """Print the settings of the control plane, with secrets masked.

    Raise CommandFailed with every error in the settings.
    """
    from controlplane.check import problems_of, warnings_of, ways_out
    from controlplane.exposures import exposures
    from proxy.config import describe

    settings = context.settings
    typer.echo(describe(settings), nl=False)
    for way in ways_out(settings):
        typer.echo(f"# {way}")
    for key, what, _ in exposures(settings):
        _complain(f"warning: {key}: {what}")
    for warning in warnings_of(settings):
        _complain(f"warning: {warning}")
    if problems := problems_of(settings):
        raise CommandFailed(INVALID_INPUT, *problems)


def serve(context: Cli) -> None:
    import asyncio

    import uvloop

    from controlplane import log
    from controlplane.app import serve as serve_until_stopped
    from controlplane.search.interface import IndexUnavailableError
    from controlplane.secrets import MasterKeyError
    from controlplane.store.interface import StoreError

    settings = context.settings
    log.configure(settings.log.level, settings.log.format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_until_stopped(settings))
    except (
        StoreError,
        IndexUnavailableError,
        MasterKeyError,
        OSError,
    ) as error:  # OSError: for example an address in use, or an invalid certificate
        raise CommandFailed(FAILED, str(error)) from None


def main(arguments: Sequence[str] | None = None, *, program: str = MODULE) -> int:
    """Run the command line and return the exit status: 0 is success, 1 failure, 2 invalid input."""
    keep_to_itself()
    if sys.stdout is None or sys.stderr is None:  # A command must not make a secret that it cannot show.
        return FAILED
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # The terminal's encoding may lack characters.
    try:
        status = _run(arguments, program)
        sys.stdout.flush()  # Flush here, where an error can still be reported.
    except OSError as error:  # Code that reads or writes other files reports their errors itself.
        leave_standard_output()
        if not isinstance(error, BrokenPipeError):
            _complain(f"{error.filename or 'standard output'}: {error.strerror}")
        return FAILED
    return status


@cache
def commands() -> typer.core.TyperGroup:
    """Build all commands of the control plane with their options."""
    return typer.main.get_group(cli)


def _run(arguments: Sequence[str] | None, program: str) -> int:
    # A shell completes the name of a command, but `python -m controlplane` is not a name.
    command = commands() if program == MODULE else typer.main.get_command(cli)
    try:
        for each in sys.argv[1:] if arguments is None else arguments:
            _require_unicode(each)
        status = command.main(arguments, prog_name=program, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        # Typer's message for a value outside the choices begins like an exception's message.
        _complain(error.format_message().replace(": Value error, ", ": "))
        return error.exit_code
    except CommandFailed as failed:
        for line in failed.lines:
            _complain(line)
        return failed.status


def _require_unicode(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise CommandFailed(INVALID_INPUT, f"an argument is not UTF-8: {argument!r}") from None


def _complain(line: str) -> None:
    from proxy.wire.log_line import one_line

    sys.stderr.write(one_line(line) + "\n")
