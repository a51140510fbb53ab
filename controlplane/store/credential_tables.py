"""Tables of application credentials: changes, expiry and last use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from controlplane.clock import Clock
from controlplane.names import secret_id
from controlplane.store.credential_uses import forget_uses
from controlplane.store.database import REGISTRY, Connection, Database, NotUnique
from controlplane.store.interface import (
    AlreadyExists,
    App,
    AppCredential,
    Conflict,
    CredentialUses,
    EndingCredential,
    NotFound,
)
from controlplane.store.lists import among
from controlplane.store.registry import apps_where

MOST_CREDENTIALS: Final = 50  # credentials of an application; limited because each proxy receives all of them
# A secret that was replaced by a newer one expires intentionally.
_ENDING: Final = (
    "SELECT apps.app_id, apps.org_id, apps.name, '' AS credential_id, version, expires_ms AS ends_ms"
    " FROM app_secrets JOIN apps ON apps.app_id = app_secrets.app_id WHERE enabled = 1"
    " AND expires_ms IS NOT NULL AND version = (SELECT max(newer.version) FROM app_secrets AS newer"
    " WHERE newer.app_id = app_secrets.app_id)"
    " UNION ALL SELECT apps.app_id, apps.org_id, apps.name, credential_id, 0, ends_ms"
    " FROM app_credentials JOIN apps ON apps.app_id = app_credentials.app_id WHERE enabled = 1"
    " AND ends_ms IS NOT NULL"
)
_USES_OF_ENDING: Final = (
    "SELECT app_id, credential_id, last_ms FROM credential_uses"  # noqa: S608 - constants
    f" WHERE app_id IN (SELECT app_id FROM ({_ENDING}) AS ending)"
)


def ending_rows(connection: Connection) -> list[EndingCredential]:
    """Return the expiring credentials of enabled applications, sorted by expiry time."""
    used = connection.rows(_USES_OF_ENDING, ())
    last_ms = {(app_id, credential_id): last for app_id, credential_id, last in used}
    found = []
    for app_id, org_id, name, given_id, version, ends_ms in connection.rows(
        f"{_ENDING} ORDER BY ends_ms, 1, 4", ()
    ):
        credential_id = given_id or secret_id(app_id, version)
        last = last_ms.get((app_id, credential_id))
        found.append(EndingCredential(app_id, org_id, name, credential_id, ends_ms, last))
    return found


class CredentialTables:
    _database: Database
    _clock: Clock

    async def add_credential(self, app_id: str, credential: AppCredential, identity: str) -> App:
        def job(connection: Connection) -> App:
            app = self._with_credentials(connection, app_id)
            if len(app.credentials) >= MOST_CREDENTIALS:
                raise Conflict(
                    f"app {app.name} has {MOST_CREDENTIALS} credentials already: remove a credential first"
                )
            try:
                connection.add(
                    "INSERT INTO app_credentials"
                    " (credential_id, app_id, kind, identity, pins, created_ms, ends_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(credential.credential_id, app_id, credential.kind, identity, credential.pins),
                        *(credential.created_ms, credential.ends_ms),
                    ),
                )
            except NotUnique:
                raise AlreadyExists(f"app {app.name} has this credential already") from None
            return self._with_credentials(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def end_credential(self, app_id: str, credential_id: str, ends_ms: int) -> App:
        def job(connection: Connection) -> App:
            version = self._secret_version(connection, app_id, credential_id)
            if version is not None:
                # An older secret never expires later, because tokens of both have the version of the older
                # one.
                connection.run(
                    "UPDATE app_secrets SET expires_ms = ?3 WHERE app_id = ?1 AND (version = ?2"
                    " OR (version < ?2 AND (expires_ms IS NULL OR expires_ms > ?3)))",
                    (app_id, version, ends_ms),
                )
            elif not connection.count(
                "UPDATE app_credentials SET ends_ms = ? WHERE app_id = ? AND credential_id = ?",
                (ends_ms, app_id, credential_id),
            ):
                raise NotFound(_removed(credential_id))
            return self._with_credentials(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def remove_credential(self, app_id: str, credential_id: str) -> App:
        def job(connection: Connection) -> App:
            before = self._with_credentials(connection, app_id)
            version = self._secret_version(connection, app_id, credential_id)
            if version is not None:
                self._remove_secret(connection, before, version)
            elif not connection.count(
                "DELETE FROM app_credentials WHERE app_id = ? AND credential_id = ?", (app_id, credential_id)
            ):
                raise NotFound(_removed(credential_id))
            after = self._with_credentials(connection, app_id)
            forget_uses(connection, after)
            return after

        return await self._database.write_even_if_full(job, REGISTRY)

    def _remove_secret(self, connection: Connection, app: App, version: int) -> None:
        """Delete a client secret of an application.

        If the secret was still valid, all access tokens that client secrets of the application obtained are
        revoked.
        """
        newest = 0 if app.newest_secret is None else app.newest_secret.version
        connection.run("DELETE FROM app_secrets WHERE app_id = ? AND version = ?", (app.app_id, version))
        was_valid = any(secret.version == version for secret in app.secrets)
        # Otherwise the next secret could get the version of an earlier secret.
        floor = max(newest, app.secret_floor) + 1 if was_valid else max(newest, app.secret_floor)
        if was_valid or version == newest:
            connection.run("UPDATE apps SET secret_floor = ? WHERE app_id = ?", (floor, app.app_id))

    async def credential_uses(self, app_ids: Sequence[str]) -> Mapping[str, CredentialUses]:
        def job(connection: Connection) -> Mapping[str, CredentialUses]:
            chosen = among(connection.dialect, "app_id", app_ids)
            last: dict[str, dict[str, int]] = {}
            for app_id, credential_id, last_ms in connection.rows(
                f"SELECT app_id, credential_id, last_ms FROM credential_uses WHERE {chosen.sql}",  # noqa: S608
                chosen.parameters,
            ):
                last.setdefault(app_id, {})[credential_id] = last_ms
            since = connection.rows(
                f"SELECT app_id, uses_since_ms FROM apps WHERE {chosen.sql}",  # noqa: S608
                chosen.parameters,
            )
            return {app_id: CredentialUses(since_ms, last.get(app_id, {})) for app_id, since_ms in since}

        return await self._database.read(job)

    async def ending_credentials(
        self, org_ids: Collection[str] | None, until_ms: int
    ) -> list[EndingCredential]:
        found = await self._database.read(ending_rows)
        return [
            each for each in found if each.ends_ms < until_ms and (org_ids is None or each.org_id in org_ids)
        ]

    def _with_credentials(self, connection: Connection, app_id: str) -> App:
        apps = apps_where(connection, "app_id = ?", (app_id,), self._clock.wall_ms())
        if not apps:
            raise NotFound("this app was deleted")
        return apps[0]

    def _secret_version(self, connection: Connection, app_id: str, credential_id: str) -> int | None:
        rows = connection.rows("SELECT version FROM app_secrets WHERE app_id = ?", (app_id,))
        return next((version for (version,) in rows if secret_id(app_id, version) == credential_id), None)


def _removed(credential_id: str) -> str:
    return f"this app has no credential {credential_id}: it was removed"
