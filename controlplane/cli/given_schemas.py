"""Schemas for a ruleset that a command evaluates on this host, without a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.context import Cli
from controlplane.cli.failure import INVALID_INPUT, CommandFailed
from controlplane.cli.ruleset import problem_lines, schema_in

if TYPE_CHECKING:
    from proxy.policy.ruleset import Ruleset
    from proxy.policy.schemas import Schemas

Schema = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="File with the upstream's $metadata, for rules that name things in it.",
    ),
]
Root = Annotated[
    str, typer.Option("--root", metavar="PATH", help="Root path of the service that --schema describes.")
]


def asks_the_store(cli: Cli, ruleset: Ruleset, schema: Path | None) -> bool:
    """Return True if the ruleset needs a schema that is not in a given file, but in a store.

    An operation of the control plane must then evaluate the ruleset, because only the store has the schema.
    """
    from proxy.policy.schemas import needs_schemas

    return needs_schemas(ruleset) and schema is None and cli.has_store


def given_schemas(label: str, text: str, ruleset: Ruleset, schema: Path | None, root: str) -> Schemas:
    """Return the schemas that the rules of a ruleset need, read from the schema file of the command.

    Raise CommandFailed if the ruleset needs a schema but no file is given, or if the schema lacks something
    that the ruleset names.
    """
    from controlplane.workshop.thing_problems import thing_problems
    from proxy.policy.schemas import (
        NO_SCHEMAS,
        InvalidRoot,
        Schemas,
        folded_root,
        needs_schemas,
        root_segments,
    )

    if not needs_schemas(ruleset):
        return NO_SCHEMAS
    model = schema_in(schema)
    if model is None:
        what = "its rules name elements of a schema: give --schema FILE, or --config and --org"
        raise CommandFailed(INVALID_INPUT, f"{label}: {what}")
    try:
        schemas = Schemas({root_segments(folded_root(root)): model})
    except InvalidRoot as error:
        raise CommandFailed(INVALID_INPUT, f"--root: {error}") from None
    problems = thing_problems(text, ruleset, schemas)
    if problems:
        raise CommandFailed(INVALID_INPUT, *problem_lines(label, problems))
    return schemas
