"""Keys of proxies: the current keys, and the previous keys that are still accepted for a limited time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controlplane.clock import Clock
from controlplane.store.database import REGISTRY, Connection, Database
from controlplane.store.interface import Conflict, KeyUse, NewKeys, NewLogLine, NotFound, ProxyCredentials
from controlplane.store.key_pairs import KeyMaker, KeyPairs
from controlplane.store.operators import add_whole_line

GENERATION: Final = "SELECT generation FROM registry_generation"  # another random number after each change
# time in ms for which old keys are accepted after the first call with the new ones
_SETTLED_MS: Final = 3_600_000
# The proxy of a key, with a row for each organisation that it serves and for each deleted one whose events
# may still arrive. Each part finds its rows by an index, because a key is looked up after each change of the
# registry.
_OF_KEY: Final = """
    WITH found AS (
        SELECT proxy_id, hmac_secret, generation, NULL AS ends_ms,
                CASE WHEN key_used_ms IS NULL OR retired_ms IS NOT NULL THEN 1 ELSE 0 END AS is_news
            FROM proxies CROSS JOIN registry_generation WHERE api_key_digest = ?1 AND enabled = 1
        UNION ALL
        SELECT proxies.proxy_id, ending_keys.hmac_secret, generation, ends_ms,
                CASE WHEN retired_ms IS NOT NULL THEN 1 ELSE 0 END
            FROM ending_keys JOIN proxies ON proxies.proxy_id = ending_keys.proxy_id
                CROSS JOIN registry_generation
            WHERE ending_keys.api_key_digest = ?1 AND enabled = 1 AND beside_version = secret_version
    )
    SELECT found.proxy_id, hmac_secret, generation, ends_ms, is_news, NULL AS org_id FROM found
    UNION ALL SELECT found.proxy_id, hmac_secret, generation, ends_ms, is_news, org_id
        FROM found JOIN proxy_orgs ON proxy_orgs.proxy_id = found.proxy_id
    UNION ALL SELECT found.proxy_id, hmac_secret, generation, ends_ms, is_news, org_id
        FROM found JOIN owed_events ON owed_events.proxy_id = found.proxy_id
"""


class KeyTables:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._generation = 0  # generation of these credentials
        self._credentials: dict[bytes, ProxyCredentials] = {}

    async def credentials(self, api_key_digest: bytes) -> ProxyCredentials | None:
        ((generation,),) = await self._database.glance(GENERATION)
        if generation != self._generation:
            self._generation, self._credentials = generation, {}
        found = self._credentials.get(api_key_digest)
        if found is None:
            found = await self._look_up(api_key_digest)
            if found is not None and found.generation == self._generation and not found.is_news:
                self._credentials[api_key_digest] = found
        return found if found is None or found.holds_at(self._clock.wall_ms()) else None

    async def _look_up(self, api_key_digest: bytes) -> ProxyCredentials | None:
        rows = await self._database.glance(_OF_KEY, (api_key_digest,))
        if not rows:
            return None
        proxy_id, secret, generation, ends_ms, is_news, _ = rows[0]
        org_ids = frozenset(row[5] for row in rows if row[5] is not None)
        return ProxyCredentials(proxy_id, secret, org_ids, generation, ends_ms, bool(is_news))

    async def note_key_use(self, api_key_digest: bytes, address: str) -> KeyUse | None:
        def job(connection: Connection) -> KeyUse | None:
            row = connection.row(
                "SELECT proxies.proxy_id, name, retired_ms FROM proxies"
                " LEFT JOIN ending_keys ON ending_keys.proxy_id = proxies.proxy_id"
                " WHERE proxies.api_key_digest = ?1 OR ending_keys.api_key_digest = ?1",
                (api_key_digest,),
            )
            if row is None:
                return None
            proxy_id, name, retired_ms = row
            now_ms = connection.shared_ms()
            note_first_use(connection, proxy_id, api_key_digest, now_ms)
            if retired_ms is not None:
                _bring_back(connection, proxy_id, name, address, now_ms)
            return KeyUse(name, was_retired=retired_ms is not None)

        return await self._database.write_even_if_full(job, REGISTRY)

    async def set_proxy_credentials(
        self, proxy_id: str, keys: NewKeys, expected: int | None, overlap_ms: int = 0
    ) -> None:
        def job(connection: Connection) -> None:
            row = connection.row("SELECT name, secret_version FROM proxies WHERE proxy_id = ?", (proxy_id,))
            if row is None:
                raise NotFound("this proxy was deleted")
            name, version = row
            if expected not in (None, version):
                raise Conflict(
                    f"proxy {name}: the secret was replaced by another change: version {version} is"
                    f" the newest, but version {expected} was expected"
                )
            now_ms = connection.shared_ms()
            ends_ms = now_ms + overlap_ms if overlap_ms else None
            replace_keys(connection, proxy_id, MadeKeys(keys, KeyMaker.OPERATOR, now_ms), ends_ms)

        await self._database.write_even_if_full(job, REGISTRY)


@dataclass(frozen=True, slots=True)
class MadeKeys:
    """New keys of a proxy, the time when they were made, and the maker of the keys."""

    keys: NewKeys
    maker: KeyMaker
    now_ms: int
    repeats: int = 0  # consecutive replacements of keys that were never used


def key_pairs(connection: Connection, proxy_id: str) -> KeyPairs | None:
    """Return the key pairs that the control plane now accepts from an enabled proxy, by the database's clock.

    Return None if the proxy is disabled or deleted.
    """
    row = connection.row(
        "SELECT proxies.api_key_digest, ending_keys.api_key_digest, key_maker, key_maker_version,"
        " secret_version, key_used_ms, keys_made_ms, key_repeats, renewal_signed_s FROM proxies"
        " LEFT JOIN ending_keys ON ending_keys.proxy_id = proxies.proxy_id"
        " AND beside_version = secret_version AND ends_ms > ?2"
        " WHERE proxies.proxy_id = ?1 AND enabled = 1",
        (proxy_id, connection.shared_ms()),
    )
    if row is None:
        return None
    current, before, maker, of_version, version, used_ms, made_ms, repeats, signed_s = row
    return KeyPairs(
        current=bytes(current),
        before=None if before is None else bytes(before),
        maker=KeyMaker(maker) if maker is not None and of_version == version else KeyMaker.OPERATOR,
        is_proved=used_ms is not None,
        made_ms=made_ms,
        repeats=repeats,
        signed_s=signed_s,
    )


def replace_keys(connection: Connection, proxy_id: str, made: MadeKeys, old_ends_ms: int | None) -> None:
    """Make the keys in `made` the current keys of a proxy, in place of the previous keys.

    The control plane accepts the previous keys until `old_ends_ms`. If `old_ends_ms` is None, the previous
    keys are refused at once. If the proxy never used the previous keys, the control plane may still accept
    older keys. The older keys are then accepted until `old_ends_ms`, and the previous keys are refused at
    once. The control plane therefore never accepts more than two pairs of keys of a proxy.
    """
    if old_ends_ms is None:
        connection.run("DELETE FROM ending_keys WHERE proxy_id = ?", (proxy_id,))
    elif not _has_older(connection, proxy_id, made.now_ms):
        connection.run(
            "INSERT INTO ending_keys (proxy_id, api_key_digest, hmac_secret, beside_version, ends_ms)"
            " SELECT proxy_id, api_key_digest, hmac_secret, secret_version, ?2 FROM proxies"
            " WHERE proxy_id = ?1"
            " ON CONFLICT (proxy_id) DO UPDATE SET api_key_digest = excluded.api_key_digest,"
            " hmac_secret = excluded.hmac_secret, ends_ms = excluded.ends_ms",
            (proxy_id, old_ends_ms),
        )
    else:
        connection.run("UPDATE ending_keys SET ends_ms = ? WHERE proxy_id = ?", (old_ends_ms, proxy_id))
    connection.run(
        "UPDATE proxies SET api_key_digest = ?, hmac_secret = ?, secret_version = secret_version + 1,"
        " keys_made_ms = ?, key_used_ms = NULL, key_maker = ?, key_maker_version = secret_version + 1,"
        " key_repeats = ? WHERE proxy_id = ?",
        (
            *(made.keys.api_key_digest, made.keys.sealed_secret, made.now_ms),
            *(made.maker, made.repeats, proxy_id),
        ),
    )
    connection.run(
        "UPDATE ending_keys SET beside_version = (SELECT secret_version FROM proxies"
        " WHERE proxies.proxy_id = ending_keys.proxy_id) WHERE proxy_id = ?",
        (proxy_id,),
    )


def _has_older(connection: Connection, proxy_id: str, now_ms: int) -> bool:
    """Return True if the proxy never used its current keys and the control plane still accepts older keys."""
    return bool(
        connection.rows(
            "SELECT 1 FROM ending_keys JOIN proxies ON proxies.proxy_id = ending_keys.proxy_id"
            " WHERE ending_keys.proxy_id = ? AND key_used_ms IS NULL AND ends_ms > ?"
            " AND beside_version = secret_version",
            (proxy_id, now_ms),
        )
    )


def note_first_use(connection: Connection, proxy_id: str, api_key_digest: bytes, now_ms: int) -> None:
    """When a proxy uses its new keys for the first time, let its old keys expire soon."""
    first = connection.count(
        "UPDATE proxies SET key_used_ms = ? WHERE proxy_id = ? AND api_key_digest = ?"
        " AND key_used_ms IS NULL",
        (now_ms, proxy_id, api_key_digest),
    )
    if first:
        connection.run(
            "UPDATE ending_keys SET ends_ms = ?1 WHERE proxy_id = ?2 AND ends_ms > ?1",
            (now_ms + _SETTLED_MS, proxy_id),
        )


def _bring_back(connection: Connection, proxy_id: str, name: str, address: str, now_ms: int) -> None:
    connection.run("UPDATE proxies SET retired_ms = NULL WHERE proxy_id = ?", (proxy_id,))
    line = NewLogLine(f"proxy:{name}", address, "proxy.return", "{}")
    add_whole_line(connection, line, now_ms, orgs_of(connection, proxy_id), f"{name} is no longer retired")


def orgs_of(connection: Connection, proxy_id: str) -> list[str]:
    rows = connection.rows("SELECT org_id FROM proxy_orgs WHERE proxy_id = ? ORDER BY org_id", (proxy_id,))
    return [org_id for (org_id,) in rows]
