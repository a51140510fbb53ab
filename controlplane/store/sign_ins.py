"""Failed sign-ins as rows of the database, so that control planes with the same store share the counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controlplane.store.database import Connection, Database, Lock, Locks
from controlplane.store.interface import AttemptLimit, SignInKeys

# An attempt without a name costs no password hash, so it must not displace one with a name. Several control
# planes can't compare so many passwords within the window.
_MOST_ROWS: Final = {"name IS NOT NULL": 100_000, "name IS NULL": 20_000}
_ROWS_BETWEEN_PURGES: Final = 200  # rows between two purges, because a purge reads all rows
_SIGN_INS: Final[Locks] = (Lock("sign-ins"),)


class SignInTables:
    _database: Database

    async def begin_attempt(self, keys: SignInKeys, limits: Sequence[AttemptLimit], window_ms: int) -> int:
        def look(connection: Connection) -> int:
            return _wait_ms(connection, limits, window_ms)

        def job(connection: Connection) -> int:
            wait_ms = look(connection)
            if wait_ms > 0:
                return wait_ms
            now = connection.steady_ms()
            (attempt_id,) = connection.row(
                "INSERT INTO sign_in_attempts (failed_ms, address, name, pair) VALUES (?, ?, ?, ?)"
                " RETURNING attempt_id",
                (now, keys.address, keys.name, keys.pair),
            )
            connection.run("DELETE FROM sign_in_attempts WHERE failed_ms <= ?", (now - window_ms,))
            if attempt_id % _ROWS_BETWEEN_PURGES == 0:
                _keep_newest(connection)
            return 0

        # A sign-in that must wait costs a read, never a write.
        return await self._database.read(look) or await self._database.write(job, _SIGN_INS)

    async def forgive_attempt(self, keys: SignInKeys) -> None:
        def job(connection: Connection) -> None:
            newest = "pair = ?" if keys.pair is not None else "name IS NULL AND address = ?"
            connection.run(
                "DELETE FROM sign_in_attempts WHERE attempt_id ="  # noqa: S608
                f" (SELECT max(attempt_id) FROM sign_in_attempts WHERE {newest})",
                (keys.address if keys.pair is None else keys.pair,),
            )
            if keys.pair is not None:
                connection.run("UPDATE sign_in_attempts SET pair = NULL WHERE pair = ?", (keys.pair,))

        await self._database.write(job, _SIGN_INS)


def _keep_newest(connection: Connection) -> None:
    for kind, most in _MOST_ROWS.items():
        connection.run(
            f"DELETE FROM sign_in_attempts WHERE {kind} AND attempt_id <= (SELECT attempt_id"  # noqa: S608
            f" FROM sign_in_attempts WHERE {kind} ORDER BY attempt_id DESC LIMIT 1 OFFSET ?)",
            (most,),
        )


def _wait_ms(connection: Connection, limits: Sequence[AttemptLimit], window_ms: int) -> int:
    now = connection.steady_ms()
    waits = [0]
    for limit in limits:
        row = connection.row(
            f"SELECT failed_ms FROM sign_in_attempts WHERE {limit.what} = ? AND failed_ms > ?"  # noqa: S608
            " ORDER BY failed_ms DESC LIMIT 1 OFFSET ?",
            (limit.key, now - window_ms, limit.most - 1),
        )
        if row is not None:
            waits.append(row[0] + window_ms - now)
    return max(waits)
