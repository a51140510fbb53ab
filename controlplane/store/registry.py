"""Tables of organisations, proxies, rulesets and applications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import msgspec

from controlplane.clock import Clock
from controlplane.rate_limits import linger_seconds
from controlplane.store.credential_uses import forget_uses
from controlplane.store.database import (
    READ_REGISTRY,
    REGISTRY,
    Connection,
    Database,
    Job,
    NotUnique,
    Row,
    is_text,
    of_proxy,
)
from controlplane.store.interface import (
    NO_NAMES,
    AlreadyExists,
    App,
    AppCredential,
    Applied,
    Approval,
    AppSecret,
    Conflict,
    EndedCredentials,
    Linger,
    NotFound,
    Org,
    Proxy,
    RateLimits,
    Retention,
    Ruleset,
    RulesetVersion,
    Stop,
    SyncContent,
)
from controlplane.store.proposals import pass_gate
from controlplane.store.proxy_keys import GENERATION
from controlplane.store.rows import require_row
from controlplane.store.schemas import (
    name_schemas,
    named_schemas,
    packed_schemas,
    require_current,
    require_room,
)

# Limit in bytes of the active rulesets of an organisation. A proxy receives those of all organisations that
# it serves in one response of at most 64 MiB. A text may be twice as long in JSON.
MOST_TEXT_OF_ORG: Final = 16 * 1024 * 1024
# `generatedAt` never goes back, except by more than a day. A proxy does not accept a time so far ahead of its
# own clock, so the clock was wrong. Proxies also ignore versions that they applied by it.
_CLOCK_WAS_WRONG_MS: Final = (24 * 3600 + 600) * 1000
# time after its end for which a credential is sent as an expired one
_ENDED_KNOWN_MS: Final = 14 * 24 * 3600 * 1000
ORG: Final = "SELECT org_id, name, retention, created_ms, approvals FROM orgs"
PROXY: Final = (
    "SELECT proxies.proxy_id, proxies.name, enabled, proxies.created_ms, last_seen_ms, secret_version,"
    " proxies.token_id, enrolment_tokens.name, keys_made_ms, rotate_days, retired_ms, ends_ms, org_id"
    " FROM proxies LEFT JOIN proxy_orgs ON proxy_orgs.proxy_id = proxies.proxy_id"
    " LEFT JOIN enrolment_tokens ON enrolment_tokens.token_id = proxies.token_id"
    " LEFT JOIN ending_keys ON ending_keys.proxy_id = proxies.proxy_id AND beside_version = secret_version"
)
_RULESET: Final = "SELECT ruleset_id, org_id, name, version, rule_count, rulesets.created_ms"
_NEWEST: Final = (
    "FROM rulesets JOIN ruleset_versions USING (ruleset_id) WHERE version ="
    " (SELECT max(version) FROM ruleset_versions AS newest WHERE newest.ruleset_id = rulesets.ruleset_id)"
)
RULESET: Final = f"{_RULESET} {_NEWEST}"
_OF_APPS: Final = (
    "SELECT app_id, version, hash, expires_ms, app_secrets.created_ms"
    " FROM app_secrets JOIN apps USING (app_id)"
)
_CREDENTIALS_OF_APPS: Final = (
    "SELECT app_id, credential_id, kind, pins, app_credentials.created_ms, ends_ms"
    " FROM app_credentials JOIN apps USING (app_id)"
)
_APP: Final = (
    "SELECT app_id, apps.org_id, apps.name, client_id, own.ruleset_id, own.name, enabled, apps.created_ms,"
    " shadow.ruleset_id, shadow.name, owner, note, secret_floor FROM apps"
    " JOIN rulesets AS own USING (ruleset_id)"
    " LEFT JOIN rulesets AS shadow ON shadow.ruleset_id = shadow_ruleset_id"
)
_STOP: Final = "SELECT nullif(org_id, ''), nullif(app_id, ''), reason, stopped_by, stopped_ms FROM stops"


class RegistryTables:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, _Known] = {}  # one entry for each proxy that requests its content

    # Organisations

    async def add_org(self, org: Org) -> None:
        await self._insert(
            "INSERT INTO orgs (org_id, name, retention, created_ms) VALUES (?, ?, ?, ?)",
            (org.org_id, org.name, org.retention, org.created_ms),
            f"an organisation named {org.name} exists already",
        )

    async def set_retention(self, org_id: str, retention: Retention) -> Org:
        def job(connection: Connection) -> Org:
            require_row(connection, "org", org_id)
            connection.run("UPDATE orgs SET retention = ? WHERE org_id = ?", (retention, org_id))
            return Org(*connection.row(f"{ORG} WHERE org_id = ?", (org_id,)))

        return await self._database.write_even_if_full(job, REGISTRY)

    async def orgs(self) -> list[Org]:
        return [Org(*row) for row in await self._database.fetch(f"{ORG} ORDER BY name")]

    async def find_orgs(self, reference: str) -> list[Org]:
        found = f"{ORG} WHERE org_id = ?1 UNION {ORG} WHERE name = ?1"
        return [Org(*row) for row in await self._find(found, reference)]

    # Proxies

    async def add_proxy(self, proxy: Proxy, api_key_digest: bytes, sealed_hmac_secret: bytes) -> None:
        def job(connection: Connection) -> None:
            for org_id in proxy.org_ids:
                require_row(connection, "org", org_id)
            connection.add(
                "INSERT INTO proxies"
                " (proxy_id, name, api_key_digest, hmac_secret, enabled, created_ms, keys_made_ms)"
                " VALUES (?, ?, ?, ?, 1, ?, ?)",
                (
                    *(proxy.proxy_id, proxy.name, api_key_digest, sealed_hmac_secret),
                    *(proxy.created_ms, proxy.created_ms),
                ),
            )
            connection.many(
                "INSERT INTO proxy_orgs (proxy_id, org_id) VALUES (?, ?)",
                [(proxy.proxy_id, org_id) for org_id in proxy.org_ids],
            )

        await self._unique(job, f"a proxy named {proxy.name} exists already")

    async def set_proxy_enabled(self, proxy_id: str, enabled: bool) -> Proxy:
        change = "UPDATE proxies SET enabled = ? WHERE proxy_id = ?"
        return await self._change_proxy(proxy_id, change, (enabled, proxy_id))

    async def grant(self, proxy_id: str, org_id: str) -> Proxy:
        def job(connection: Connection) -> Proxy:
            require_row(connection, "org", org_id)
            connection.run(
                "INSERT INTO proxy_orgs (proxy_id, org_id) VALUES (?, ?)"
                " ON CONFLICT (proxy_id, org_id) DO NOTHING",
                (proxy_id, org_id),
            )
            return _proxy(connection, proxy_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def revoke(self, proxy_id: str, org_id: str) -> Proxy:
        change = "DELETE FROM proxy_orgs WHERE proxy_id = ? AND org_id = ?"
        return await self._change_proxy(proxy_id, change, (proxy_id, org_id))

    async def _change_proxy(self, proxy_id: str, sql: str, parameters: Sequence[Any]) -> Proxy:
        def job(connection: Connection) -> Proxy:
            connection.run(sql, parameters)
            return _proxy(connection, proxy_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def proxies(self, org_id: str | None) -> list[Proxy]:
        if org_id is None:
            rows = await self._database.fetch(f"{PROXY} ORDER BY proxies.name")
        else:
            serving = "proxies.proxy_id IN (SELECT proxy_id FROM proxy_orgs WHERE org_id = ?)"
            rows = await self._database.fetch(f"{PROXY} WHERE {serving} ORDER BY proxies.name", (org_id,))
        return proxies_of(rows)

    async def hands_of_proxies(self) -> Mapping[str, str]:
        rows = await self._database.fetch(
            "SELECT proxy_id, coalesce(token_id, proxy_id) FROM proxies"
            " WHERE enabled = 1 AND retired_ms IS NULL AND last_seen_ms IS NOT NULL"
            " AND (ended_ms IS NULL OR ended_ms < last_seen_ms)"
        )
        return dict(rows)

    async def find_proxies(self, reference: str) -> list[Proxy]:
        found = f"{PROXY} WHERE proxies.proxy_id = ?1 UNION {PROXY} WHERE proxies.name = ?1"
        return proxies_of(await self._find(found, reference))

    # Rulesets

    async def apply_ruleset(
        self,
        ruleset: Ruleset,
        yaml: str,
        note: str | None,
        expected: int | None,
        schemas: Mapping[str, str] = NO_NAMES,
        approval: Approval | None = None,
    ) -> tuple[Ruleset, Applied]:
        def job(connection: Connection) -> tuple[Ruleset, Applied]:
            now = self._clock.wall_ms()
            in_force = connection.row(
                f"{RULESET} AND org_id = ? AND name = ?", (ruleset.org_id, ruleset.name)
            )
            found = 0 if in_force is None else Ruleset(*in_force).version
            if expected is not None and expected != found:
                what = f"version {found} is active" if found else "no version exists"
                raise Conflict(f"ruleset {ruleset.name}: {what}, but version {expected} was expected")
            if schemas:
                require_current(connection, ruleset.org_id, ruleset.name, schemas)
            if in_force is None:
                pass_gate(connection, ruleset.org_id, approval, ruleset)
                connection.run(
                    "INSERT INTO rulesets (ruleset_id, org_id, name, created_ms) VALUES (?, ?, ?, ?)",
                    (ruleset.ruleset_id, ruleset.org_id, ruleset.name, now),
                )
                _add_version(connection, ruleset, _Text(yaml, note, schemas), now)
                return ruleset, "text"
            current = Ruleset(*in_force)
            named = named_schemas(connection, current.ruleset_id, current.version)
            applied: Applied = "schemas" if _yaml(connection, current) == yaml else "text"
            if applied == "schemas" and named == dict(schemas):
                return current, "nothing"
            new = replace(current, version=current.version + 1, rule_count=ruleset.rule_count)
            pass_gate(connection, ruleset.org_id, approval, new)
            _add_version(connection, new, _Text(yaml, note, schemas), now)
            return new, applied

        return await self._database.write_even_if_full(job, REGISTRY)

    async def roll_back(
        self,
        ruleset_id: str,
        version: int | None,
        note: str | None,
        expected: int | None,
        approval: Approval | None = None,
    ) -> Ruleset:
        def job(connection: Connection) -> Ruleset:
            found = connection.row(f"{RULESET} AND ruleset_id = ?", (ruleset_id,))
            if found is None:
                raise NotFound("this ruleset was deleted")
            current = Ruleset(*found)
            if expected is not None and expected != current.version:
                raise Conflict(
                    f"ruleset {current.name}: version {current.version} is active, but version"
                    f" {expected} was expected"
                )
            if version is None and current.version == 1:
                raise NotFound(f"ruleset {current.name} has no version before the first, which is active")
            wanted = current.version - 1 if version is None else version
            old = None
            if 1 <= wanted <= current.version:  # SQLite does not store larger numbers
                old = connection.row(
                    "SELECT yaml, rule_count FROM ruleset_versions WHERE ruleset_id = ? AND version = ?",
                    (ruleset_id, wanted),
                )
            if old is None:
                raise NotFound(f"ruleset {current.name} has no version {wanted}")
            if wanted == current.version:
                raise Conflict(f"ruleset {current.name}: version {wanted} is active already")
            yaml, rule_count = old
            new = replace(current, version=current.version + 1, rule_count=rule_count)
            pass_gate(connection, current.org_id, approval, new)
            text = _Text(yaml, note, named_schemas(connection, ruleset_id, wanted), wanted)
            _add_version(connection, new, text, self._clock.wall_ms())
            return new

        return await self._database.write_even_if_full(job, REGISTRY)

    async def rulesets(self, org_id: str | None) -> list[Ruleset]:
        if org_id is None:
            rows = await self._database.fetch(f"{RULESET} ORDER BY name, org_id")
        else:
            rows = await self._database.fetch(f"{RULESET} AND org_id = ? ORDER BY name", (org_id,))
        return [Ruleset(*row) for row in rows]

    async def find_rulesets(self, reference: str, org_id: str | None) -> list[Ruleset]:
        found = _matching("ruleset_id", "rulesets", ("ruleset_id", "name"), org_id)
        rows = await self._find(f"{RULESET} AND {found}", reference, org_id)
        return [Ruleset(*row) for row in rows]

    async def ruleset_versions(self, ruleset_id: str) -> list[RulesetVersion]:
        rows = await self._database.fetch(
            "SELECT version, rule_count, rolled_back_to, created_ms, note FROM ruleset_versions"
            " WHERE ruleset_id = ?1 UNION ALL SELECT version, rule_count, rolled_back_to, created_ms, note"
            " FROM deleted_versions WHERE ruleset_id = ?1 ORDER BY version DESC",
            (ruleset_id,),
        )
        return [RulesetVersion(*row) for row in rows]

    async def ruleset_text(self, ruleset_id: str, version: int) -> str | None:
        if not 1 <= version < 2**63:  # SQLite does not store larger numbers
            return None
        rows = await self._database.fetch(
            "SELECT yaml FROM ruleset_versions WHERE ruleset_id = ?1 AND version = ?2"
            " UNION ALL SELECT yaml FROM deleted_versions WHERE ruleset_id = ?1 AND version = ?2",
            (ruleset_id, version),
        )
        return str(rows[0][0]) if rows else None

    # App identities

    async def add_app(self, app: App) -> None:
        def job(connection: Connection) -> None:
            require_row(connection, "org", app.org_id)
            require_row(connection, "ruleset", app.ruleset_id)
            connection.add(
                "INSERT INTO apps (app_id, org_id, name, client_id, ruleset_id, enabled, created_ms,"
                " owner, note) VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?)",
                (
                    *(app.app_id, app.org_id, app.name, app.client_id, app.ruleset_id, app.created_ms),
                    *(app.owner, app.note),
                ),
            )
            for secret in app.secrets:
                connection.run(
                    "INSERT INTO app_secrets (app_id, version, hash, expires_ms, created_ms)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (app.app_id, secret.version, secret.hash, secret.expires_ms, app.created_ms),
                )

        await self._unique(job, f"an app named {app.name} exists already in this organisation")

    async def set_app_enabled(self, app_id: str, enabled: bool) -> App:
        return await self._change_app(app_id, "UPDATE apps SET enabled = ? WHERE app_id = ?", enabled)

    async def bind_app(
        self,
        app_id: str,
        ruleset_id: str,
        approval: Approval | None = None,
        *,
        expected_ruleset_id: str | None = None,
    ) -> App:
        def job(connection: Connection) -> App:
            app = self._app(connection, app_id)
            _require_bound(app, expected_ruleset_id)
            require_row(connection, "ruleset", ruleset_id)
            pass_gate(connection, app.org_id, approval)
            connection.run("UPDATE apps SET ruleset_id = ? WHERE app_id = ?", (ruleset_id, app_id))
            return self._app(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def set_app_about(self, app_id: str, owner: str | None, note: str | None) -> App:
        def job(connection: Connection) -> App:
            connection.run("UPDATE apps SET owner = ?, note = ? WHERE app_id = ?", (owner, note, app_id))
            return self._app(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def set_shadow(self, app_id: str, ruleset_id: str | None) -> App:
        def job(connection: Connection) -> App:
            if ruleset_id is not None:
                require_row(connection, "ruleset", ruleset_id)
            connection.run("UPDATE apps SET shadow_ruleset_id = ? WHERE app_id = ?", (ruleset_id, app_id))
            return self._app(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def _change_app(self, app_id: str, sql: str, value: object) -> App:
        def job(connection: Connection) -> App:
            connection.run(sql, (value, app_id))
            return self._app(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    def _app(self, connection: Connection, app_id: str) -> App:
        apps = apps_where(connection, "app_id = ?", (app_id,), self._clock.wall_ms())
        if not apps:
            raise NotFound("this app was deleted")
        return apps[0]

    async def promote_shadow(
        self,
        app_id: str,
        expected: str | None,
        approval: Approval | None = None,
        *,
        expected_ruleset_id: str | None = None,
    ) -> App:
        def job(connection: Connection) -> App:
            app = self._app(connection, app_id)
            shadow = app.shadow_ruleset_name
            if shadow is None:
                raise NotFound(f"app {app.name} has no shadow ruleset")
            if expected not in (None, shadow):
                raise Conflict(f"app {app.name}: {shadow} is the shadow ruleset, but {expected} was expected")
            _require_bound(app, expected_ruleset_id)
            pass_gate(connection, app.org_id, approval)
            connection.run(
                "UPDATE apps SET ruleset_id = shadow_ruleset_id, shadow_ruleset_id = NULL WHERE app_id = ?",
                (app_id,),
            )
            return self._app(connection, app_id)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def rotate_secret(
        self,
        app_id: str,
        secret_hash: str,
        grace_ms: int,
        expected: int | None,
        expires_ms: int | None = None,
    ) -> App:
        def job(connection: Connection) -> App:
            now = self._clock.wall_ms()
            before = self._app(connection, app_id)
            newest = 0 if before.newest_secret is None else before.newest_secret.version
            _require_newest(f"app {before.name}", newest, expected)
            # The time is never extended: a secret that ends sooner by an earlier rotation keeps that end.
            connection.run(
                "UPDATE app_secrets SET expires_ms = ?2 WHERE app_id = ?1"
                " AND (expires_ms IS NULL OR expires_ms > ?2)",
                (app_id, now + grace_ms),
            )
            connection.run(
                "INSERT INTO app_secrets (app_id, version, hash, created_ms, expires_ms)"
                " VALUES (?, ?, ?, ?, ?)",
                (app_id, max(newest, before.secret_floor) + 1, secret_hash, now, expires_ms),
            )
            # Deleted instead of kept as expired, so that setting a clock back can't make it valid again.
            connection.run("DELETE FROM app_secrets WHERE app_id = ? AND expires_ms <= ?", (app_id, now))
            (app,) = apps_where(connection, "app_id = ?", (app_id,), now)
            forget_uses(connection, app)
            return app

        return await self._database.write_even_if_full(job, REGISTRY)

    async def apps(self, org_id: str | None) -> list[App]:
        if org_id is None:
            return await self._read_apps("TRUE", ())
        return await self._read_apps("apps.org_id = ?", (org_id,))

    async def find_apps(self, reference: str, org_id: str | None) -> list[App]:
        if not is_text(reference):
            return []
        found = _matching("app_id", "apps", ("app_id", "client_id", "name"), org_id)
        return await self._read_apps(found, _keys(reference, org_id))

    async def _read_apps(self, condition: str, parameters: Sequence[Any]) -> list[App]:
        now = self._clock.wall_ms()
        return await self._database.read(
            lambda connection: apps_where(connection, condition, parameters, now)
        )

    # Stops

    async def add_stop(self, stop: Stop) -> Stop:
        key = (stop.org_id or "", stop.app_id or "")

        def job(connection: Connection) -> Stop:
            if stop.org_id is not None:
                require_row(connection, "org", stop.org_id)
            if stop.app_id is not None:
                self._app(connection, stop.app_id)
            connection.run(
                "INSERT INTO stops (org_id, app_id, reason, stopped_by, stopped_ms) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (org_id, app_id) DO NOTHING",
                (*key, stop.reason, stop.stopped_by, stop.stopped_ms),
            )
            return Stop(*connection.row(f"{_STOP} WHERE org_id = ? AND app_id = ?", key))

        return await self._database.write_even_if_full(job, REGISTRY)

    async def lift_stop(self, org_id: str | None, app_id: str | None) -> bool:
        return await self._changes(
            "DELETE FROM stops WHERE org_id = ? AND app_id = ?", (org_id or "", app_id or "")
        )

    async def stops(self) -> list[Stop]:
        rows = await self._database.fetch(f"{_STOP} ORDER BY stopped_ms, org_id, app_id")
        return [Stop(*row) for row in rows]

    # Sync

    async def sync_content(
        self, proxy_id: str, known_versions: Sequence[str], limits: RateLimits, generation: int | None = None
    ) -> SyncContent | str:
        def response(connection: Connection) -> SyncContent:
            # Read again inside the writer's transaction, so that a later generatedAt never comes with older
            # content.
            visible = self._visible(connection, proxy_id, limits)
            digest = visible.digest()
            old_digest, old_version, old_generated = _sync_state(connection, proxy_id) or (None, 0, 0)
            version = old_version + (digest != old_digest)
            generated = now = self._clock.wall_ms()
            if old_generated - now < _CLOCK_WAS_WRONG_MS:
                generated = max(now, old_generated + 1)
            connection.run(
                "INSERT INTO sync_state (proxy_id, digest, version, generated_ms) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (proxy_id) DO UPDATE SET digest = excluded.digest,"
                " version = excluded.version, generated_ms = excluded.generated_ms",
                (proxy_id, digest, version, generated),
            )
            rulesets = [(ruleset, _yaml(connection, ruleset)) for ruleset in visible.rulesets]
            schemas = {
                each.ruleset_id: named_schemas(connection, each.ruleset_id, each.version)
                for each in visible.rulesets
            }
            digests = sorted({digest for named in schemas.values() for digest in named.values()})
            return SyncContent(
                _version(version, digest),
                generated,
                visible.orgs,
                visible.apps,
                tuple(rulesets),
                visible.stops,
                schemas,
                packed_schemas(connection, digests),
                visible.linger,
                visible.rotate_at_ms,
                visible.ended,
            )

        current = await self.sync_version(proxy_id, limits, generation)
        if current is not None and current in known_versions:
            return current
        self._known.pop(proxy_id, None)
        locks = READ_REGISTRY + of_proxy(proxy_id)
        return await self._database.write_even_if_full(response, locks)

    async def sync_version(
        self, proxy_id: str, limits: RateLimits, generation: int | None = None
    ) -> str | None:
        known = self._known.get(proxy_id)
        if known is not None and known.limits == limits and known.holds_at(self._clock.wall_ms()):
            if generation is None:
                ((generation,),) = await self._database.glance(GENERATION)
            if generation == known.generation:
                return known.version
        known = await self._database.read(lambda connection: self._look(connection, proxy_id, limits))
        if known is None:
            return None
        self._known[proxy_id] = known
        return known.version

    def _look(self, connection: Connection, proxy_id: str, limits: RateLimits) -> _Known | None:
        (generation,) = connection.row(GENERATION)
        now_ms = self._clock.wall_ms()
        visible = self._visible(connection, proxy_id, limits)
        digest = visible.digest()
        state = _sync_state(connection, proxy_id)
        if state is None or state[0] != digest:
            return None
        return _Known(_version(state[1], digest), generation, limits, now_ms, visible.until_ms())

    def _visible(self, connection: Connection, proxy_id: str, limits: RateLimits) -> _Visible:
        of_proxy = "org_id IN (SELECT org_id FROM proxy_orgs WHERE proxy_id = ?)"
        orgs = connection.rows(f"{ORG} WHERE {of_proxy} ORDER BY org_id", (proxy_id,))
        now = self._clock.wall_ms()
        found = apps_where(connection, f"apps.{of_proxy}", (proxy_id,), now)
        apps = [
            replace(app, credentials=tuple(each for each in app.credentials if each.is_valid_at(now)))
            for app in found
        ]
        ended = {app.app_id: ended for app in found if (ended := _lately_ended(app, now))}
        rulesets = connection.rows(
            f"{_RULESET}, digest {_NEWEST} AND {of_proxy} ORDER BY ruleset_id", (proxy_id,)
        )
        stops = connection.rows(
            f"{_STOP} WHERE org_id = '' OR {of_proxy} ORDER BY org_id, app_id", (proxy_id,)
        )
        return _Visible(
            orgs=tuple(Org(*row) for row in orgs),
            apps=tuple(sorted(apps, key=lambda app: app.app_id)),
            rulesets=tuple(Ruleset(*row) for *row, _ in rulesets),
            texts=tuple(digest for *_, digest in rulesets),
            stops=tuple(Stop(*row) for row in stops),
            ended=ended,
            linger=_linger(connection, proxy_id, limits),
            rotate_at_ms=_rotate_at_ms(connection, proxy_id),
        )

    async def master_key_check(self, sealed: bytes) -> bytes:
        def job(connection: Connection) -> bytes:
            connection.run(
                "INSERT INTO master_key_check (only_row, sealed) VALUES (1, ?)"
                " ON CONFLICT (only_row) DO NOTHING",
                (sealed,),
            )
            return bytes((connection.row("SELECT sealed FROM master_key_check", ()))[0])

        return await self._database.write_even_if_full(job, REGISTRY)

    async def has_master_key(self) -> bool:
        return bool(await self._database.fetch("SELECT 1 FROM master_key_check"))

    async def replace_master_key_check(self, sealed: bytes) -> None:
        def job(connection: Connection) -> None:
            connection.run("UPDATE master_key_check SET sealed = ?", (sealed,))

        await self._database.write_even_if_full(job, REGISTRY)

    async def _find(self, sql: str, reference: str, org_id: str | None = None) -> list[tuple[Any, ...]]:
        """Run an SQL statement whose first parameter is the ID or name `reference`, and return its rows."""
        if not is_text(reference):
            return []
        return await self._database.fetch(sql, _keys(reference, org_id))

    async def _insert(self, sql: str, parameters: Sequence[Any], taken: str) -> None:
        def job(connection: Connection) -> None:
            connection.add(sql, parameters)

        await self._unique(job, taken)

    async def _unique(self, job: Job[None], taken: str) -> None:
        """Run a job that inserts a row with a unique name.

        Raise AlreadyExists if the job inserts a row whose name another row already has.
        """

        def guarded(connection: Connection) -> None:
            try:
                job(connection)
            except NotUnique:
                raise AlreadyExists(taken) from None

        await self._database.write_even_if_full(guarded, REGISTRY)

    async def _changes(self, sql: str, parameters: Sequence[Any]) -> bool:
        """Run the SQL statement, and return whether it changed a row."""
        return await self._database.write_even_if_full(
            lambda connection: connection.count(sql, parameters) > 0, REGISTRY
        )


def _matching(identity: str, table: str, keys: Sequence[str], org_id: str | None) -> str:
    """Return an SQL condition: a key column equals parameter 1, and the organisation equals parameter 2.

    Each key column has its own SELECT, because a query planner may read the entire table for a condition with
    OR.
    """
    within = "" if org_id is None else " AND org_id = ?2"
    selects = [f"SELECT {identity} FROM {table} WHERE {key} = ?1{within}" for key in keys]  # noqa: S608 - our own names
    return f"{identity} IN ({' UNION '.join(selects)})"


def _keys(reference: str, org_id: str | None) -> tuple[str, ...]:
    return (reference,) if org_id is None else (reference, org_id)


def _proxy(connection: Connection, proxy_id: str) -> Proxy:
    found = proxies_of(connection.rows(f"{PROXY} WHERE proxies.proxy_id = ?", (proxy_id,)))
    if not found:
        raise NotFound("this proxy was deleted")
    return found[0]


def proxies_of(rows: Iterable[Row]) -> list[Proxy]:
    """Build the proxies from database rows.

    Each row contains a proxy and one of its organisations, or None for a proxy without organisations. The
    returned proxies have the order of their first rows in `rows`.
    """
    org_ids: dict[Row, list[str]] = {}
    for *proxy, org_id in rows:
        org_ids.setdefault(tuple(proxy), []).extend([] if org_id is None else [org_id])
    return [
        Proxy(proxy_id, name, bool(enabled), created_ms, seen_ms, version, tuple(sorted(found)), *origin)
        for (proxy_id, name, enabled, created_ms, seen_ms, version, *origin), found in org_ids.items()
    ]


def _require_bound(app: App, expected_ruleset_id: str | None) -> None:
    if expected_ruleset_id not in (None, app.ruleset_id):
        raise Conflict(
            f"app {app.name} now uses the ruleset {app.ruleset_name}, but another ruleset was expected"
        )


def _require_newest(whose: str, newest: int, expected: int | None) -> None:
    if expected not in (None, newest):
        raise Conflict(
            f"{whose}: the secret was replaced by another change: version {newest} is the newest, but version"
            f" {expected} was expected"
        )


@dataclass(frozen=True, slots=True)
class _Text:
    """Content of a ruleset version, and the reason why the version was made."""

    yaml: str
    note: str | None
    schemas: Mapping[str, str]  # digest by root path
    rolled_back_to: int | None = None

    def digest(self) -> bytes:
        return sha256(msgspec.json.encode((self.yaml, sorted(self.schemas.items())))).digest()


def _add_version(connection: Connection, ruleset: Ruleset, text: _Text, now: int) -> None:
    octets = connection.dialect.octets.format("yaml")
    (others,) = connection.row(
        f"SELECT coalesce(sum({octets}), 0) FROM rulesets JOIN ruleset_versions"  # noqa: S608
        " USING (ruleset_id) WHERE org_id = ? AND ruleset_id <> ? AND version = (SELECT max(version)"
        " FROM ruleset_versions AS newest WHERE newest.ruleset_id = rulesets.ruleset_id)",
        (ruleset.org_id, ruleset.ruleset_id),
    )
    if others + len(text.yaml.encode()) > MOST_TEXT_OF_ORG:
        raise Conflict(
            f"ruleset {ruleset.name}: the rulesets of its organisation would have more than"
            f" {MOST_TEXT_OF_ORG} bytes together"
        )
    connection.run(
        "INSERT INTO ruleset_versions"
        " (ruleset_id, version, yaml, rule_count, rolled_back_to, created_ms, note, digest)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            ruleset.ruleset_id,
            ruleset.version,
            text.yaml,
            ruleset.rule_count,
            text.rolled_back_to,
            now,
            text.note,
            text.digest(),
        ),
    )
    name_schemas(connection, ruleset.ruleset_id, ruleset.version, text.schemas)
    if text.schemas:
        require_room(connection, ruleset.org_id)


def _yaml(connection: Connection, ruleset: Ruleset) -> str:
    (yaml,) = connection.row(
        "SELECT yaml FROM ruleset_versions WHERE ruleset_id = ? AND version = ?",
        (ruleset.ruleset_id, ruleset.version),
    )
    return str(yaml)


def apps_where(connection: Connection, condition: str, parameters: Sequence[Any], now: int) -> list[App]:
    secrets: dict[str, list[AppSecret]] = {}
    for app_id, *secret in connection.rows(f"{_OF_APPS} WHERE {condition} ORDER BY version DESC", parameters):
        secrets.setdefault(app_id, []).append(AppSecret(*secret))
    credentials: dict[str, list[AppCredential]] = {}
    for app_id, *credential in connection.rows(
        f"{_CREDENTIALS_OF_APPS} WHERE {condition} ORDER BY app_credentials.created_ms, credential_id",
        parameters,
    ):
        credentials.setdefault(app_id, []).append(AppCredential(*credential))
    rows = connection.rows(f"{_APP} WHERE {condition} ORDER BY apps.name, apps.org_id", parameters)
    return [
        App(
            app_id,
            org_id,
            name,
            client_id,
            ruleset_id,
            ruleset,
            bool(on),
            created,
            tuple(each for each in secrets.get(app_id, ()) if each.is_valid_at(now)),
            shadow_id,
            shadow,
            owner,
            note,
            next(iter(secrets.get(app_id, ())), None),
            tuple(credentials.get(app_id, ())),
            floor,
            next((each for each in secrets.get(app_id, ()) if not each.is_valid_at(now)), None),
        )
        for app_id, org_id, name, client_id, ruleset_id, ruleset, on, created, *further in rows
        for shadow_id, shadow, owner, note, floor in (further,)
    ]


@dataclass(frozen=True, slots=True)
class _Known:
    """The version of one proxy's sync content, and the time until which this version is valid."""

    version: str
    generation: int
    limits: RateLimits
    from_ms: int
    until_ms: int | None

    def holds_at(self, now_ms: int) -> bool:
        return self.from_ms <= now_ms and (self.until_ms is None or now_ms < self.until_ms)


@dataclass(frozen=True, slots=True)
class _Visible:
    """The sync content of one proxy, with versions and digests instead of the texts of rulesets.

    The version number of a ruleset does not identify the text of the ruleset. After a restore from a backup,
    another ruleset text may get the same version number.
    """

    orgs: tuple[Org, ...]
    apps: tuple[App, ...]
    rulesets: tuple[Ruleset, ...]
    texts: tuple[bytes | None, ...]  # digest of each ruleset's text; None if an earlier release applied it
    stops: tuple[Stop, ...]
    ended: Mapping[str, EndedCredentials]
    linger: Linger
    rotate_at_ms: int | None  # time from which the proxy renews its keys

    def until_ms(self) -> int | None:
        """Return the next time in ms at which a credential expires or leaves the report of expiries."""
        ends = [each.expires_ms for app in self.apps for each in app.secrets]
        ends += (each.ends_ms for app in self.apps for each in app.credentials)
        ends += (end + _ENDED_KNOWN_MS for ended in self.ended.values() for end in ended.ends_ms())
        return min((end for end in ends if end is not None), default=None)

    def digest(self) -> bytes:
        seen = (
            [(org.org_id, org.name) for org in self.orgs],
            [
                (
                    (app.app_id, app.org_id, app.name, app.client_id, app.ruleset_id, app.enabled),
                    (app.secret_version, [(secret.hash, secret.expires_ms) for secret in app.secrets]),
                    app.shadow_ruleset_id,
                    *([app.credentials] if app.credentials else ()),
                )
                for app in self.apps
            ],
            [
                (ruleset.ruleset_id, ruleset.name, ruleset.version, text)
                for ruleset, text in zip(self.rulesets, self.texts, strict=True)
            ],
            [(stop.org_id, stop.app_id) for stop in self.stops],
            (self.linger.seconds, self.linger.orgs),
            *(() if self.rotate_at_ms is None else (self.rotate_at_ms,)),
            *((self.ended,) if self.ended else ()),
        )
        return sha256(msgspec.json.encode(seen)).digest()


def _lately_ended(app: App, now_ms: int) -> EndedCredentials | None:
    """Return the credentials that ended in the last _ENDED_KNOWN_MS, or None if no credential did."""
    secret, since_ms = app.ended_secret, now_ms - _ENDED_KNOWN_MS
    ended = EndedCredentials(
        secret if secret is not None and (secret.expires_ms or 0) > since_ms else None,
        tuple(each for each in app.credentials if since_ms < (each.ends_ms or 0) <= now_ms),
    )
    return ended if ended.secret is not None or ended.others else None


def _linger(connection: Connection, proxy_id: str, limits: RateLimits) -> Linger:
    senders = connection.rows(
        "SELECT others.org_id, count(*) FROM proxy_orgs AS own JOIN proxy_orgs AS others"
        " ON others.org_id = own.org_id JOIN proxies ON proxies.proxy_id = others.proxy_id"
        " WHERE own.proxy_id = ? AND enabled = 1 AND retired_ms IS NULL"
        " GROUP BY others.org_id ORDER BY others.org_id",
        (proxy_id,),
    )
    return Linger(
        linger_seconds(limits.proxy, 1),
        {org_id: linger_seconds(limits.org, count) for org_id, count in senders},
    )


def _rotate_at_ms(connection: Connection, proxy_id: str) -> int | None:
    proxies = proxies_of(connection.rows(f"{PROXY} WHERE proxies.proxy_id = ?", (proxy_id,)))
    return proxies[0].rotate_at_ms if proxies else None


def _version(number: int, digest: bytes) -> str:
    return f"{number}-{digest[:12].hex()}"


def _sync_state(connection: Connection, proxy_id: str) -> Any:
    return connection.row(
        "SELECT digest, version, generated_ms FROM sync_state WHERE proxy_id = ?", (proxy_id,)
    )
