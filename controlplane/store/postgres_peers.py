"""Control planes that share one PostgreSQL database: one control plane is the leader.

A control plane is the leader as long as its own database session holds the leader lock. The leader lock ends
when the database session ends. If the leader dies, stalls or loses its connection, another control plane gets
the lock. The database session that holds the leader lock also receives the announcements of new events. An
announcement only shortens the time until readers find the new events. Without announcements, readers look for
new events every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg
from psycopg.rows import TupleRow

from controlplane.store.postgres_session import setting_up

_LOOK_SECONDS: Final = 1.0  # time between two checks of the lock
_LOST_SECONDS: Final = 5.0  # a session that does not respond for this time may have ended at the server
_STALLED_MS: Final = 10_000  # time without a check after which the server ends the session and frees the lock
_PAUSE_SECONDS: Final = 1.0  # pause before the next session is tried
_TOGETHER_SECONDS: Final = 0.05  # announcements within this time are combined into one
_ANNOUNCED: Final = "SELECT pg_notify('graphward_events', '')"

_log = logging.getLogger(__name__)
_Session = psycopg.AsyncConnection[TupleRow]


class PostgresPeers:
    def __init__(self, conninfo: str, leader_lock: int) -> None:
        self._conninfo = conninfo
        self._leader_lock = leader_lock
        self._leading, self._not_leading = asyncio.Event(), asyncio.Event()
        self._not_leading.set()
        self._something = asyncio.Event()  # set if there is something to read or to announce
        self._has_events = False
        self._is_connected = True

    @property
    def leads(self) -> bool:
        return self._leading.is_set()

    async def until_leading(self) -> None:
        await self._leading.wait()

    async def until_not_leading(self) -> None:
        await self._not_leading.wait()

    def announce(self) -> None:
        self._has_events = True
        self._something.set()

    async def run(self, on_events: Callable[[], None]) -> None:
        while True:
            try:
                opening = psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
                async with await opening as session:
                    await self._stay(session, on_events)
            except (psycopg.Error, TimeoutError, OSError) as error:
                if self._is_connected:
                    _log.warning(
                        "the database session for leader election failed: %s", str(error).partition("\n")[0]
                    )
                self._is_connected = False
            finally:
                self._lead(False)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        """Do nothing: the database session ends when `run` ends."""

    async def _stay(self, session: _Session, on_events: Callable[[], None]) -> None:
        def heard(notice: psycopg.Notify) -> None:
            if notice.pid != session.info.backend_pid:
                on_events()

        session.add_notify_handler(heard)
        # A stopped process, or one whose host vanished, closes no connection. So nothing here may depend on a
        # close.
        stalled = f"{_STALLED_MS}ms"
        await session.execute(setting_up(idle_session_timeout=stalled, synchronous_commit="off"))
        await session.execute("LISTEN graphward_events")
        if not self._is_connected:
            _log.info("the database session for leader election is open again")
        self._is_connected = True
        on_events()  # events may have been stored before the session began
        while True:
            await self._look(session)
            await self._until_something(session)

    async def _look(self, session: _Session) -> None:
        """Try to become the leader, or check that this control plane is still the leader.

        If this control plane has stored events, announce these events to the other control planes.

        Announcements from other control planes arrive while the database session is checked.
        """
        # The timer covers a server that does not respond, even while the driver waits for a cancelled query.
        lost = asyncio.get_running_loop().call_later(_LOST_SECONDS, self._lead, False)
        try:
            async with asyncio.timeout(_LOST_SECONDS):
                if self.leads:
                    await session.execute("SELECT 1")
                else:
                    cursor = await session.execute("SELECT pg_try_advisory_lock(%s)", (self._leader_lock,))
                    (has_lock,) = await cursor.fetchone() or (False,)
                    self._lead(has_lock)
                if self._has_events:
                    self._has_events = False
                    await session.execute(_ANNOUNCED)
        finally:
            lost.cancel()

    async def _until_something(self, session: _Session) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(session.fileno(), self._something.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._something.wait()
        finally:
            loop.remove_reader(session.fileno())
        self._something.clear()
        if self._has_events:
            await asyncio.sleep(_TOGETHER_SECONDS)

    def _lead(self, leads: bool) -> None:
        begins, ends = (self._leading, self._not_leading) if leads else (self._not_leading, self._leading)
        begins.set()
        ends.clear()
