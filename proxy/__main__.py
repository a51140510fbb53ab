"""Entry point of the command line `python -m proxy --config FILE [--check | --doctor [--json]]`.

`python -m proxy` loads the settings and runs the supervisor process.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from proxy import __version__
from proxy.config import SettingsError, describe
from proxy.process import log
from proxy.process.own_process import keep_to_itself, raise_open_files
from proxy.startup.settings import Settings, load
from proxy.startup.signing_key import SigningKeyError
from proxy.wire.log_line import one_line

OK, FAILED, BAD_INPUT = 0, 1, 2
PROGRAM: Final = "graphward-proxy"


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports a wrong command line in one line, like every other error of the proxy."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (--help shows how it is used)\n")


class _PrintCompletion(argparse.Action):
    """Argument parser action that prints the shell completion script of the command, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        import shtab  # this import takes a tenth of the start, so only this option loads it

        for action in parser._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        parser.prog = PROGRAM  # a shell completes a command by its name, and `python -m proxy` is not one
        print(shtab.complete(parser, str(values)))
        parser.exit(OK)


def parser_for(program: str) -> argparse.ArgumentParser:
    """Return the argument parser of the proxy's command line."""
    parser = _Parser(prog=program, description="The Graphward policy proxy.")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="settings file (TOML)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check settings and files, print the settings with secrets masked, and exit",
    )
    parser.add_argument(
        "--doctor",
        action="store_true",
        help="look for faults on this host and at every host that the proxy connects to, and exit",
    )
    parser.add_argument("--json", action="store_true", help="with --doctor: print JSON")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "fish", "tcsh"),
        action=_PrintCompletion,
        help="print a script with which a shell completes options and file names, and exit",
    )
    return parser


def main(arguments: Sequence[str] | None = None, *, program: str = "python -m proxy") -> int:
    parser = parser_for(program)
    options = parser.parse_args(arguments)
    if options.check and options.doctor:
        parser.error("--check and --doctor: give one of the two")
    if options.json and not options.doctor:
        parser.error("--json needs --doctor")
    if not (options.check or options.doctor):
        # A reload that is requested during the start takes place after it. Without the mask, either signal
        # would end the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))
    keep_to_itself()
    try:
        settings = load(options.config, os.environ)
    except SettingsError as error:
        return _complain(error.problems)
    if options.check:
        return _check(settings)
    if options.doctor:
        return _doctor(settings, options.config, as_json=options.json)
    return _run(options.config, settings)


def _check(settings: Settings) -> int:
    from proxy.startup.check import (
        exposures,
        identity_state,
        problems_of,
        unusable_credentials,
        unused_settings,
        ways_out,
    )
    from proxy.supervisor.handover import problems_of_taking_over

    for module in ("proxy.supervisor.supervisor", "proxy.worker.main", "proxy.agent.main"):
        importlib.import_module(module)  # a check of a new version must fail if a module is missing
    print(describe(settings))
    print(one_line(f"# identity: {identity_state(settings)}"))
    for way in ways_out(settings):
        print(one_line(f"# {way}"))
    for warning in (*exposures(settings), *unused_settings(settings), *unusable_credentials(settings)):
        print(one_line(f"warning: {warning}"), file=sys.stderr)
    listen, directory = settings.proxy.listen, settings.audit.local_retention_path
    admin = settings.admin.listen
    taking_over = problems_of_taking_over(os.environ, listen, admin, settings.workers, directory)
    problems = [*problems_of(settings), *taking_over]
    return _complain(problems) if problems else OK


def _doctor(settings: Settings, config: Path, *, as_json: bool) -> int:
    from proxy.doctor.examination import examine
    from proxy.wire import finding

    findings = examine(settings, config)
    for line in [finding.as_json(findings)] if as_json else finding.as_lines(findings):
        print(line)
    return FAILED if finding.worst(findings) == "fail" else OK


def _run(config: Path, settings: Settings) -> int:
    gc.disable()  # loaded modules stay in memory, and scanning them takes a tenth of the start
    from proxy.startup.check import certificate_problems, owner_problems
    from proxy.supervisor.supervisor import StartError, Supervisor

    problems = certificate_problems(settings)
    if problems:
        return _complain(problems)
    if foreign := list(owner_problems(settings)):
        return _complain(foreign, status=FAILED)
    raise_open_files()
    log.configure(settings.log.level, settings.log.format, "supervisor")
    try:
        supervisor = Supervisor(config, settings)
    except StartError as error:
        return _complain([str(error)], status=FAILED)
    except SigningKeyError as error:
        return _complain([str(error)])
    except OSError as error:  # each worker needs descriptors, and perhaps none are left
        return _complain([f"not started: {error}"], status=FAILED)
    return supervisor.run()


def _complain(problems: Sequence[str], *, status: int = BAD_INPUT) -> int:
    for problem in problems:
        print(one_line(problem), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
