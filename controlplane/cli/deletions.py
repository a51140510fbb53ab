"""Confirmation before a deletion, with a list of the records that are deleted and the records that stay."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from controlplane.cli.context import Cli, confirm_loss, print_facts
from controlplane.cli.failure import FAILED, CommandFailed

if TYPE_CHECKING:
    from controlplane.operations.deletions import Deleted, Effect, EffectOfDeletion
    from controlplane.operations.operation import Operation, Request

Q = TypeVar("Q", bound="Request")

YesDelete = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Do not ask for confirmation. The option --yes is required if the command has no terminal.",
    ),
]


def delete(
    cli: Cli,
    effect_of: EffectOfDeletion,
    operation: Operation[Q, Deleted],
    asked: Q,
    *,
    yes: bool,
    json: bool,
) -> None:
    """List the records that a deletion removes and those that stay, ask for confirmation, and delete."""
    if not yes:
        asked = _of_the_shown(asked, _ask(cli, effect_of))
    print_facts(cli.call(operation, asked), as_json=json)


def _of_the_shown(asked: Q, shown: Effect) -> Q:
    """Return the deletion request with the ID of the item that the confirmation question names.

    The request contains the ID, because another item could have the name when the operator confirms the
    deletion.
    """
    from msgspec.structs import replace

    named = {} if shown.kind == "model" else {shown.kind: shown.id}
    if shown.version is None or getattr(asked, "expected", None) is not None:
        return replace(asked, **named)
    return replace(asked, **named, expected=shown.version)


def _ask(cli: Cli, effect_of: EffectOfDeletion) -> Effect:
    from controlplane.operations.deletions import effect

    found = cli.call(effect, effect_of)
    if found.refused is not None:
        raise CommandFailed(FAILED, f"{found.name} can't be deleted: {found.refused}")
    lines = [f"goes:  {each}" for each in found.goes] + [f"stays: {each}" for each in found.stays]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    confirm_loss(f"Delete {found.kind} {found.name}?", to="delete")
    return found
