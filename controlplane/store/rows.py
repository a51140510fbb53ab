"""Check that a row that a change needs still exists. Raise NotFound if another operation deleted the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from controlplane.store.database import Connection
from controlplane.store.interface import NotFound

_ROW: Final[Mapping[str, tuple[str, str]]] = {
    "org": ("SELECT 1 FROM orgs WHERE org_id = ?", "organisation"),
    "ruleset": ("SELECT 1 FROM rulesets WHERE ruleset_id = ?", "ruleset"),
    "operator": ("SELECT 1 FROM operators WHERE operator_id = ?", "operator"),
}


def require_row(connection: Connection, kind: Literal["org", "ruleset", "operator"], identity: str) -> None:
    """Raise NotFound if the row has been deleted after the caller read it."""
    found, noun = _ROW[kind]
    if connection.row(found, (identity,)) is None:
        raise NotFound(f"this {noun} was deleted")
