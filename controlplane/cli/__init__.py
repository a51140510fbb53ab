"""The commands of an operator, one file for each noun."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import app as app_commands
from controlplane.cli import (
    audit,
    doctor,
    dry_runs,
    integrity,
    kill,
    model,
    operator,
    operator_log,
    org,
    proxy,
    routes,
    ruleset,
    store,
    traffic,
)
from controlplane.cli.context import Cli, leave_standard_output
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from proxy.process.own_process import keep_to_itself

cli = typer.Typer(
    name="controlplane",
    help="Gives proxies their rules and collects their audit events. Without a command, it serves.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cli.add_typer(
    org.app, name="org", help="Organisations: their names and how long their audit events are kept."
)
cli.add_typer(proxy.app, name="proxy", help="Proxy instances: how they are, credentials, organisations.")
cli.add_typer(proxy.app, name="proxies", help="The same as proxy.")
ruleset.app.add_typer(dry_runs.app)
ruleset.app.add_typer(traffic.app)
ruleset.app.add_typer(routes.app)
cli.add_typer(ruleset.app, name="ruleset", help="Rulesets: check, try out, apply, look at and roll back.")
cli.add_typer(model.app, name="model", help="Schemas of graph APIs, which rules name things of.")
cli.add_typer(app_commands.app, name="app", help="App identities: their secrets and rulesets.")
cli.add_typer(kill.stop, name="kill", help="Emergency stop: of an app, an organisation or everything.")
cli.add_typer(kill.lift, name="unkill", help="Lift an emergency stop.")
audit.app.add_typer(integrity.app)
cli.add_typer(audit.app, name="audit", help="Audit events.")
cli.add_typer(doctor.app)
cli.add_typer(
    store.app, name="store", help="The store: make a new one in place of a lost one, copy one to PostgreSQL."
)
cli.add_typer(operator.app, name="operator", help="Operators: who may sign in, roles and API tokens.")
cli.add_typer(operator_log.app, name="record", help="The operator log: what operators did.")


@cli.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The settings file (TOML); work on its store."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Work at the running control plane whose admin API is there; GRAPHWARD_URL.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Holds the API token for --url; GRAPHWARD_TOKEN_FILE."
        ),
    ] = None,
) -> None:
    if config is not None and url is not None:
        raise CommandFailed(INVALID_INPUT, "--config and --url: give one of the two")
    if token_file is not None and url is None and not os.environ.get("GRAPHWARD_URL"):
        raise CommandFailed(INVALID_INPUT, "--token-file: goes with --url")
    if config is None:
        url = url or os.environ.get("GRAPHWARD_URL") or None
        token_file = token_file or (
            Path(given) if (given := os.environ.get("GRAPHWARD_TOKEN_FILE")) else None
        )
    ctx.obj = Cli(config, url, token_file)
    if ctx.invoked_subcommand is None:
        serve(ctx.obj)


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
    ) as error:  # OSError: an address in use, a certificate that is none
        raise CommandFailed(FAILED, str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 the operation failed, 2 usage or invalid input."""
    keep_to_itself()
    if sys.stdout is None or sys.stderr is None:  # a secret that nobody can be shown must not be made
        return FAILED
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without all of Unicode
    try:
        status = _run(arguments)
        sys.stdout.flush()  # while what goes wrong can still be told
    except OSError as error:  # of other files it is told where they are read and written
        leave_standard_output()
        if not isinstance(error, BrokenPipeError):
            _complain(f"{error.filename or 'standard output'}: {error.strerror}")
        return FAILED
    return status


def _run(arguments: Sequence[str] | None) -> int:
    command = typer.main.get_command(cli)
    try:
        for each in sys.argv[1:] if arguments is None else arguments:
            _require_unicode(each)
        status = command.main(arguments, prog_name="python -m controlplane", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        # Typer's own words for a value that is none of the choices begin as an exception's.
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
