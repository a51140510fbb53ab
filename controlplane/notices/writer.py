"""The job that makes notices for webhooks: from the operator log, and from lasting problems.

Each step of the job may run twice, also in two control planes, because the store keeps each notice only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from controlplane.clock import Clock
from controlplane.notices.conditions import Condition, ConditionSources, conditions_now
from controlplane.notices.from_log import notice_of
from controlplane.notices.notice import Notice, Step, decoded, encoded, notice_id
from controlplane.sinks.settings import AnyTable
from controlplane.store.interface import LogLine, LogQuery, StoreError
from controlplane.store.sink_interface import ConditionState, NewNotice, NoticeStore

_POLL_SECONDS: Final = 5.0
_CONDITIONS_EVERY_MS: Final = 60_000
_REMINDED_EVERY_MS: Final = 86_400_000
_KEPT_MS: Final = 90 * 86_400_000  # time after which a notice is deleted, delivered or not
_LINES_AT_ONCE: Final = 500
# Another control plane may commit a line with a lower position later, and outcomes are added later too. So
# the stored position stays behind the newest lines for this time, and these lines are read again.
_SETTLED_MS: Final = 60_000
_LONGEST_OPERATION_MS: Final = 3_600_000

_log = logging.getLogger(__name__)


class WriterStore(NoticeStore, ConditionSources, Protocol):
    async def operator_log(self, query: LogQuery) -> list[LogLine]: ...


class NoticeWriter:
    def __init__(
        self,
        sinks: Sequence[AnyTable],
        store: WriterStore,
        clock: Clock,
        written: Callable[[], None],
    ) -> None:
        self._sinks = sinks
        self._store = store
        self._clock = clock
        self._written = written
        self._looked_ms: int | None = None

    async def run(self) -> None:
        """Make notices for webhooks until the task is cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                _log.warning("notices: could not make new notices for webhooks: %s", error)
            except Exception:
                _log.exception("notices: could not make new notices for webhooks")
            await asyncio.sleep(_POLL_SECONDS)

    async def look(self) -> None:
        """Make notices from new lines of the operator log, and from lasting problems such as late sinks."""
        await self._read_log()
        now = self._clock.wall_ms()
        if self._looked_ms is None or abs(now - self._looked_ms) >= _CONDITIONS_EVERY_MS:
            await self._look_at_conditions(now)
            await self._store.purge_notices(now - _KEPT_MS)
            self._looked_ms = now
        self._written()

    async def _read_log(self) -> None:
        kept = past = await self._store.log_position_noticed()
        is_settled = True
        while True:
            lines = await self._store.operator_log(
                LogQuery(limit=_LINES_AT_ONCE, order="oldest first", past=past)
            )
            for line in lines:
                is_settled = is_settled and self._is_settled(line)
                kept = line.position if is_settled else kept
            notices = [_new(notice) for line in lines if (notice := notice_of(line)) is not None]
            await self._store.add_notices(notices, kept)
            if len(lines) < _LINES_AT_ONCE:
                return
            past = lines[-1].position

    def _is_settled(self, line: LogLine) -> bool:
        age = self._clock.wall_ms() - line.time_ms
        return age > (_SETTLED_MS if line.outcome is not None else _LONGEST_OPERATION_MS)

    async def _look_at_conditions(self, now: int) -> None:
        known = await self._store.conditions()
        found = {each.key: each for each in await conditions_now(self._store, self._sinks, now)}
        for key, condition in found.items():
            before = known.get(key)
            if before is None:
                notice = _new(_notice(condition, "began", now))
                await self._store.begin_condition(ConditionState(key, notice.body, now), notice)
            elif abs(now - before.reminded_ms) >= _REMINDED_EVERY_MS:
                await self._store.remind_of_condition(before, _new(_notice(condition, "reminder", now)))
        for key in known.keys() - found.keys():
            await self._store.end_condition(key, _new(_end(known[key], now)))


def _notice(condition: Condition, step: Step, now: int) -> Notice:
    return Notice(
        notice_id(condition.key, step, now),
        condition.kind,
        step,
        now,
        condition.org_ids,
        condition.key,
        condition.text,
        {**condition.data, "over": condition.over},
    )


def _end(state: ConditionState, now: int) -> Notice:
    last = decoded(state.body)
    text = str(last.data.get("over", last.text))
    about = (last.org_ids, last.subject, text, last.data)
    return Notice(notice_id(state.condition, "ended", now), last.kind, "ended", now, *about)


def _new(notice: Notice) -> NewNotice:
    return NewNotice(notice.notice_id, notice.time_ms, encoded(notice))
