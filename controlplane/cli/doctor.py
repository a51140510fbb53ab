"""Command `doctor`, which reports faults of the control plane and how to fix each fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from controlplane.cli.context import Cli, Json, write_json
from controlplane.cli.failure import FAILED, CommandFailed

if TYPE_CHECKING:
    from proxy.wire.finding import Finding

app = typer.Typer()

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.command()
def doctor(ctx: typer.Context, json: Json = False) -> None:
    """Find faults that prevent the control plane from working, without making any change."""
    from controlplane.doctor.examination import examine
    from proxy.wire.finding import as_json, worst

    cli: Cli = ctx.obj
    findings = examine(cli.settings, cli.config)
    if json:
        write_json(as_json(findings).encode())
    else:
        _show(findings)
    if worst(findings) == "fail":
        raise CommandFailed(FAILED)


def _show(findings: Sequence[Finding]) -> None:
    """Print the findings in colour and wrapped on a terminal, or as plain lines to a pipe."""
    from proxy.wire.finding import as_lines, by_weight, summary

    if not sys.stdout.isatty():
        sys.stdout.writelines(f"{line}\n" for line in as_lines(findings))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from proxy.wire.log_line import one_line

    table = Table.grid(padding=(0, 2))
    for each in by_weight(findings):
        report = Text(one_line(each.found))
        if each.fix:
            report.append(f"\n{one_line(each.fix)}", style="cyan")
        table.add_row(Text(each.status, style=_STYLES[each.status]), Text(one_line(each.check)), report)
    console = Console()
    console.print(table)
    console.print(Text(summary(findings)))
