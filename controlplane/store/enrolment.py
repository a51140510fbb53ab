"""Tables of enrolment tokens, of the proxies that enrolled with them, and of retired proxies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from controlplane.clock import Clock
from controlplane.store.database import REGISTRY, Connection, Database, NotUnique, Row, is_text
from controlplane.store.interface import (
    AlreadyExists,
    Enrolled,
    Enrolment,
    EnrolmentRefusal,
    EnrolmentToken,
    NewKeys,
    NewLogLine,
    NotFound,
    Org,
    Proxy,
    Renewal,
    RenewalRefusal,
    TooSoon,
)
from controlplane.store.key_pairs import OPEN_END_MS, KeyMaker, Standing
from controlplane.store.operators import add_whole_line
from controlplane.store.proxy_keys import MadeKeys, key_pairs, note_first_use, orgs_of, replace_keys
from controlplane.store.registry import ORG, PROXY, proxies_of
from proxy.policy.visible import looks_like

_TOKENS: Final = (
    "SELECT enrolment_tokens.token_id, name, uses, used, created_ms, created_by, expires_ms, rotate_days,"
    " retire_days, revoked_ms, org_id FROM enrolment_tokens LEFT JOIN enrolment_token_orgs"
    " ON enrolment_token_orgs.token_id = enrolment_tokens.token_id"
)
_MOST_RETIRED: Final = 200  # proxies of one transaction
_DAY_MS: Final = 86_400_000
_LONGEST_NAME: Final = 200  # characters


class EnrolmentTables:
    _database: Database
    _clock: Clock

    # Tokens

    async def add_enrolment_token(self, token: EnrolmentToken, digest: bytes) -> None:
        def job(connection: Connection) -> None:
            try:
                connection.add(
                    "INSERT INTO enrolment_tokens (token_id, name, digest, uses, created_ms, created_by,"
                    " expires_ms, rotate_days, retire_days) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(token.token_id, token.name, digest, token.uses, token.created_ms),
                        *(token.created_by, token.expires_ms, token.rotate_days, token.retire_days),
                    ),
                )
            except NotUnique:
                raise AlreadyExists(f"an enrolment token named {token.name} exists already") from None
            connection.many(
                "INSERT INTO enrolment_token_orgs (token_id, org_id) VALUES (?, ?)",
                [(token.token_id, org_id) for org_id in token.org_ids],
            )

        await self._database.write_even_if_full(job, REGISTRY)

    async def enrolment_tokens(self) -> list[EnrolmentToken]:
        return _tokens(
            await self._database.fetch(f"{_TOKENS} ORDER BY created_ms DESC, enrolment_tokens.token_id")
        )

    async def find_enrolment_tokens(self, reference: str) -> list[EnrolmentToken]:
        if not is_text(reference):
            return []
        found = f"{_TOKENS} WHERE enrolment_tokens.token_id = ?1 OR name = ?1"
        return _tokens(await self._database.fetch(found, (reference,)))

    async def enrolment_token(self, digest: bytes) -> EnrolmentToken | None:
        found = _tokens(await self._database.glance(f"{_TOKENS} WHERE digest = ?", (digest,)))
        return found[0] if found else None

    async def revoke_enrolment_token(self, token_id: str, *, with_proxies: bool) -> EnrolmentToken:
        def job(connection: Connection) -> EnrolmentToken:
            connection.run(
                "UPDATE enrolment_tokens SET revoked_ms = ? WHERE token_id = ? AND revoked_ms IS NULL",
                (self._clock.wall_ms(), token_id),
            )
            if with_proxies:
                connection.run(
                    "UPDATE proxies SET enabled = 0 WHERE token_id = ? AND enabled = 1", (token_id,)
                )
            (token,) = _tokens(connection.rows(f"{_TOKENS} WHERE enrolment_tokens.token_id = ?", (token_id,)))
            return token

        return await self._database.write_even_if_full(job, REGISTRY)

    async def proxies_by_token(self, token_id: str) -> list[Proxy]:
        rows = await self._database.fetch(
            f"{PROXY} WHERE proxies.token_id = ? ORDER BY proxies.name", (token_id,)
        )
        return proxies_of(rows)

    # Enrolment and renewal

    async def enrol(
        self, enrolment: Enrolment, keys_for: Callable[[str], NewKeys]
    ) -> Enrolled | EnrolmentRefusal | TooSoon:
        def look(connection: Connection) -> EnrolmentRefusal | TooSoon | None:
            return _refusal(connection, enrolment)

        def job(connection: Connection) -> Enrolled | EnrolmentRefusal | TooSoon:
            return look(connection) or _enrol(connection, enrolment, keys_for)

        # A refused request costs a read, never a write.
        refusal = await self._database.read(look)
        return refusal if refusal is not None else await self._database.write(job, REGISTRY)

    async def renew_keys(self, renewal: Renewal, keys: NewKeys) -> Enrolled | RenewalRefusal | TooSoon:
        def look(connection: Connection) -> RenewalRefusal | TooSoon | None:
            return _refusal_of_renewal(connection, renewal)

        def job(connection: Connection) -> Enrolled | RenewalRefusal | TooSoon:
            return look(connection) or _renew(connection, renewal, keys)

        # A full disk only delays new keys: the proxy's current keys are accepted until then.
        refusal = await self._database.read(look)
        return refusal if refusal is not None else await self._database.write(job, REGISTRY)

    # Retirement

    async def retire_silent(self, now_ms: int) -> int:
        def job(connection: Connection) -> int:
            rows = connection.rows(
                "SELECT proxies.proxy_id, proxies.name, retire_days FROM proxies JOIN enrolment_tokens"
                " ON enrolment_tokens.token_id = proxies.token_id WHERE retired_ms IS NULL"
                " AND coalesce(last_seen_ms, proxies.created_ms) < ? - retire_days * ? LIMIT ?",
                (now_ms, _DAY_MS, _MOST_RETIRED),
            )
            for proxy_id, name, days in rows:
                connection.run("UPDATE proxies SET retired_ms = ? WHERE proxy_id = ?", (now_ms, proxy_id))
                line = NewLogLine("control plane", "local", "proxy.retire", "{}")
                result = f"retired {name}: no message for {days} days"
                add_whole_line(connection, line, now_ms, orgs_of(connection, proxy_id), result)
            return len(rows)

        return await self._database.write(job, REGISTRY)


def _refusal(connection: Connection, enrolment: Enrolment) -> EnrolmentRefusal | TooSoon | None:
    """Return the reason why the token can't enrol this proxy, or None if the token can enrol the proxy."""
    (token,) = _tokens(connection.rows(f"{_TOKENS} WHERE digest = ?", (enrolment.token_digest,))) or (None,)
    if token is None:
        return "unknown"
    state = token.state_at(connection.shared_ms())
    if state in ("revoked", "expired"):
        return state
    if not _orgs(connection, token.token_id):
        return "revoked"  # its organisations were deleted
    proxy_id = _enrolled_before(connection, enrolment, token.token_id)
    if proxy_id is None:
        return "used up" if state == "used up" else None
    return _refusal_of_repetition(connection, proxy_id)


def _enrolled_before(connection: Connection, enrolment: Enrolment, token_id: str) -> str | None:
    """Return the ID of the proxy with the enrolment ID, or None if no proxy has this enrolment ID."""
    row = connection.row(
        "SELECT proxy_id FROM proxies WHERE token_id = ? AND enrolment_id = ?",
        (token_id, enrolment.enrolment_id),
    )
    return None if row is None else str(row[0])


def _refusal_of_repetition(connection: Connection, proxy_id: str) -> EnrolmentRefusal | TooSoon | None:
    """Return the reason why the proxy can't repeat its enrolment, or None if the proxy can repeat it."""
    pairs = key_pairs(connection, proxy_id)
    (seen_ms,) = connection.row("SELECT last_seen_ms FROM proxies WHERE proxy_id = ?", (proxy_id,))
    if pairs is None or pairs.is_proved or pairs.maker is not KeyMaker.ENROLMENT or seen_ms is not None:
        return "in use"
    wait_s = pairs.enrolment_wait_s(connection.shared_ms())
    return TooSoon(wait_s) if wait_s else None


def _enrol(connection: Connection, enrolment: Enrolment, keys_for: Callable[[str], NewKeys]) -> Enrolled:
    (token,) = _tokens(connection.rows(f"{_TOKENS} WHERE digest = ?", (enrolment.token_digest,)))
    known_id = _enrolled_before(connection, enrolment, token.token_id)
    if known_id is not None:
        return _enrol_again(connection, enrolment, token, known_id, keys_for(known_id))
    proxy_id, now_ms = enrolment.proxy_id, connection.shared_ms()
    name = _free_name(connection, enrolment)
    _add(connection, enrolment, token, name, keys_for(proxy_id), now_ms)
    enrolled = _enrolled(connection, proxy_id)
    _log_enrolment(
        connection, enrolment, token, enrolled, now_ms, f"enrolled {name}, {token.used + 1} of {token.uses}"
    )
    return enrolled


def _enrol_again(
    connection: Connection, enrolment: Enrolment, token: EnrolmentToken, proxy_id: str, keys: NewKeys
) -> Enrolled:
    """Replace the unused keys of a proxy.

    The operator log has only one line if a proxy repeats its enrolment several times.
    """
    pairs, now_ms = key_pairs(connection, proxy_id), connection.shared_ms()
    repeats = pairs.repeats + 1 if pairs is not None else 1
    replace_keys(connection, proxy_id, MadeKeys(keys, KeyMaker.ENROLMENT, now_ms, repeats), None)
    enrolled = _enrolled(connection, proxy_id)
    if repeats == 1:
        result = f"gave {enrolled.proxy.name}, which was never seen, new keys for a lost response"
        _log_enrolment(connection, enrolment, token, enrolled, now_ms, result)
    return enrolled


def _log_enrolment(
    connection: Connection,
    enrolment: Enrolment,
    token: EnrolmentToken,
    enrolled: Enrolled,
    now_ms: int,
    result: str,
) -> None:
    line = NewLogLine(f"enrolment:{token.name}", enrolment.address, "proxy.enrol", enrolment.request)
    add_whole_line(connection, line, now_ms, [org.org_id for org in enrolled.orgs], result)


def _refusal_of_renewal(connection: Connection, renewal: Renewal) -> RenewalRefusal | TooSoon | None:
    """Return the reason why the keys that signed a request can't be renewed, or None if they can."""
    pairs = key_pairs(connection, renewal.proxy_id)
    if pairs is None:
        return "replaced"  # the proxy was disabled or deleted after the signature was verified
    (token_id,) = connection.row("SELECT token_id FROM proxies WHERE proxy_id = ?", (renewal.proxy_id,))
    if token_id is None:
        return "not enrolled"
    standing = pairs.standing(renewal.api_key_digest)
    if standing is Standing.ENDED:
        return "replaced"
    if standing is Standing.BEFORE_OPERATOR:
        return "replaced by operator"
    wait_s = pairs.renewal_wait_s(standing, renewal.signed_s)
    return TooSoon(wait_s) if wait_s else None


def _renew(connection: Connection, renewal: Renewal, keys: NewKeys) -> Enrolled | RenewalRefusal:
    """Replace the current keys of a proxy with new keys.

    The operator log has only one line if a proxy repeats the renewal of its keys several times.
    """
    proxy_id, now_ms = renewal.proxy_id, connection.shared_ms()
    pairs = key_pairs(connection, proxy_id)
    if pairs is None:
        return "replaced"
    is_repeat = pairs.standing(renewal.api_key_digest) is Standing.BEFORE_RENEWAL
    repeats = pairs.repeats + 1 if is_repeat else 0
    note_first_use(connection, proxy_id, renewal.api_key_digest, now_ms)  # the signature counts as a use
    replace_keys(connection, proxy_id, MadeKeys(keys, KeyMaker.RENEWAL, now_ms, repeats), OPEN_END_MS)
    connection.run("UPDATE proxies SET renewal_signed_s = ? WHERE proxy_id = ?", (renewal.signed_s, proxy_id))
    enrolled = _enrolled(connection, proxy_id)
    name = enrolled.proxy.name
    if repeats < 2:
        given = f"{name} has new keys" if repeats == 0 else f"{name} has new keys once more"
        line = NewLogLine(f"proxy:{name}", renewal.address, "proxy.renew-keys", "{}")
        result = f"{given}; the old ones end 1 h after the first use of the new ones"
        add_whole_line(connection, line, now_ms, orgs_of(connection, proxy_id), result)
    return enrolled


def _add(
    connection: Connection,
    enrolment: Enrolment,
    token: EnrolmentToken,
    name: str,
    keys: NewKeys,
    now_ms: int,
) -> None:
    connection.run("UPDATE enrolment_tokens SET used = used + 1 WHERE token_id = ?", (token.token_id,))
    connection.run(
        "INSERT INTO proxies (proxy_id, name, api_key_digest, hmac_secret, enabled, created_ms,"
        " keys_made_ms, token_id, enrolment_id, key_maker, key_maker_version)"
        " VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, 1)",
        (
            *(enrolment.proxy_id, name, keys.api_key_digest, keys.sealed_secret, now_ms, now_ms),
            *(token.token_id, enrolment.enrolment_id, KeyMaker.ENROLMENT),
        ),
    )
    connection.many(
        "INSERT INTO proxy_orgs (proxy_id, org_id) VALUES (?, ?)",
        [(enrolment.proxy_id, org.org_id) for org in _orgs(connection, token.token_id)],
    )


def _free_name(connection: Connection, enrolment: Enrolment) -> str:
    """Return the name for a proxy: the requested name, unless that name is taken.

    If the requested proxy name looks like an existing name, the control plane appends enough of the enrolment
    ID to distinguish the two names.
    """
    # Only letters of other alphabets look like the letters that an enrolment may use in a name.
    octets = connection.dialect.octets.format("name")
    found = f"SELECT name FROM proxies WHERE lower(name) = lower(?) OR {octets} <> length(name)"  # noqa: S608
    for suffix in ("", f"-{enrolment.enrolment_id[-8:]}", f"-{enrolment.enrolment_id}"):
        name = enrolment.name[: _LONGEST_NAME - len(suffix)] + suffix
        taken = connection.rows(found, (name,))
        if looks_like(name) not in {looks_like(other) for (other,) in taken}:
            return name
    raise AlreadyExists(f"a proxy named {name} exists already")


def _orgs(connection: Connection, token_id: str) -> list[Org]:
    """Return those organisations of the enrolment token that still exist."""
    chosen = "org_id IN (SELECT org_id FROM enrolment_token_orgs WHERE token_id = ?)"
    rows = connection.rows(f"{ORG} WHERE {chosen} ORDER BY org_id", (token_id,))
    return [Org(*row) for row in rows]


def _enrolled(connection: Connection, proxy_id: str) -> Enrolled:
    rows = connection.rows(f"{PROXY} WHERE proxies.proxy_id = ?", (proxy_id,))
    if not rows:
        raise NotFound("this proxy was deleted")
    (proxy,) = proxies_of(rows)
    of_proxy = "org_id IN (SELECT org_id FROM proxy_orgs WHERE proxy_id = ?)"
    orgs = connection.rows(f"{ORG} WHERE {of_proxy} ORDER BY org_id", (proxy_id,))
    return Enrolled(proxy, tuple(Org(*row) for row in orgs))


def _tokens(rows: Iterable[Row]) -> list[EnrolmentToken]:
    """Build the enrolment tokens from database rows.

    Each database row has one organisation of a token. The returned tokens keep the order of the database
    rows.
    """
    org_ids: dict[Row, list[str]] = {}
    for *token, org_id in rows:
        org_ids.setdefault(tuple(token), []).extend([] if org_id is None else [org_id])
    return [
        EnrolmentToken(token_id, name, tuple(sorted(found)), *rest)
        for (token_id, name, *rest), found in org_ids.items()
    ]
