"""The time of the last use of each credential.

The store saves the last use of a credential together with the audit events of the issued tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controlplane.names import secret_id
from controlplane.store.database import Connection, is_text
from controlplane.store.interface import App, NewBatch
from controlplane.store.lists import among

_NOTE_USE: Final = (
    "INSERT INTO credential_uses (app_id, credential_id, last_ms)"
    " SELECT app_id, CAST(?3 AS text), CAST(?4 AS bigint) FROM apps WHERE app_id = ?1 AND org_id = ?2"
    " ON CONFLICT (app_id, credential_id) DO UPDATE SET last_ms = excluded.last_ms"
    " WHERE credential_uses.last_ms < excluded.last_ms"
)


def note_uses(connection: Connection, batch: NewBatch) -> None:
    """Store the last use of each credential that got a token, from the events of a batch.

    The use of an unknown credential ID is not stored.
    """
    used = {use: ms for use, ms in batch.uses.credentials.items() if is_text(use.app_id)}
    if not used:
        return
    known = _known_ids(connection, {use.app_id for use in used})
    connection.many(
        _NOTE_USE,
        [
            (use.app_id, batch.org_id, use.credential_id, last_ms)
            for use, last_ms in used.items()
            if not use.credential_id or use in known
        ],
    )


def _known_ids(connection: Connection, app_ids: Collection[str]) -> set[tuple[str, str]]:
    """Return the IDs of all credentials of the given applications, each with its application's ID."""
    chosen = among(connection.dialect, "app_id", app_ids)
    secrets = connection.rows(
        f"SELECT app_id, version FROM app_secrets WHERE {chosen.sql}",  # noqa: S608
        chosen.parameters,
    )
    others = connection.rows(
        f"SELECT app_id, credential_id FROM app_credentials WHERE {chosen.sql}",  # noqa: S608
        chosen.parameters,
    )
    return {(app_id, secret_id(app_id, version)) for app_id, version in secrets} | {*others}


def forget_uses(connection: Connection, app: App) -> None:
    """Delete the last-use times of credentials that the application no longer has."""
    known = {each.credential_id for each in app.credentials}
    known.update(secret_id(app.app_id, each.version) for each in app.secrets)
    if app.newest_secret is not None:
        known.add(secret_id(app.app_id, app.newest_secret.version))
    rows = connection.rows("SELECT credential_id FROM credential_uses WHERE app_id = ?", (app.app_id,))
    connection.many(
        "DELETE FROM credential_uses WHERE app_id = ? AND credential_id = ?",
        [(app.app_id, each) for (each,) in rows if each and each not in known],
    )
