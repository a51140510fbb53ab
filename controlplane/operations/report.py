"""Audit reports, which are made once for each actor and period, signed, and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Literal

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Streamed, stream
from controlplane.operations.report_answer import Progress, answered
from controlplane.operations.report_key import signer_of
from controlplane.operations.report_period import Period, ReportAsked, period_of
from controlplane.report.report_file import ReportFiles, make_files
from controlplane.search.fair_queue import FairQueue
from controlplane.store.interface import StoreBusy
from proxy.wire.audit_event import rfc3339

_turns: Final = FairQueue(2)  # reports that are made at the same time; others wait
_MOST_KEPT: Final = 4  # finished reports that are kept for repeated requests
_KEPT_SECONDS: Final = 900.0


class DownloadReport(ReportAsked):
    format: Literal["html", "json"] = "html"


@stream("audit.report", "/audit/report", "text/html", "application/json")
async def report(context: OperationContext, actor: Actor, request: DownloadReport) -> Streamed:
    """Make a signed report on applications that accessed mail or other data, and on gaps in the events."""
    period = await period_of(context, actor, request)
    made = begin(context, actor, period)
    files = await made.files()
    body = files.html if request.format == "html" else files.json
    media_type = "text/html" if request.format == "html" else "application/json"
    name = f"audit-report-{rfc3339(period.to_ms)[:10]}.{request.format}"
    return Streamed(media_type, _one_piece(body), name)


async def _one_piece(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


class Making:
    """An audit report that is in progress or finished."""

    def __init__(self, work: Callable[[Callable[[Progress], None]], Awaitable[ReportFiles]]) -> None:
        self.progress = Progress("waiting for other reports", 0, 0)
        self._task = asyncio.ensure_future(work(self._note))

    def _note(self, progress: Progress) -> None:
        self.progress = progress

    @property
    def is_running(self) -> bool:
        return not self._task.done()

    @property
    def is_of_this_loop(self) -> bool:
        return self._task.get_loop() is asyncio.get_running_loop()

    @property
    def failed(self) -> bool:
        return self._task.done() and (self._task.cancelled() or self._task.exception() is not None)

    async def files(self) -> ReportFiles:
        """Wait until the report is finished, and return its files.

        The report is finished even if the caller disconnects.
        """
        return await asyncio.shield(self._task)

    async def files_within(self, seconds: float) -> ReportFiles | None:
        """Return the files of the report, or None if the report takes longer than `seconds`."""
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        return self._task.result() if done else None


_making: Final[dict[tuple[str, Period], Making]] = {}


def begin(context: OperationContext, actor: Actor, period: Period) -> Making:
    """Start an audit report, or return the running report of the same actor and period.

    A new report waits until running reports of other actors have finished. Raise StoreBusy if another report
    of the same actor is running.
    """
    key = (actor.name, period)
    for known, each in list(_making.items()):
        if each.failed or not each.is_of_this_loop:
            del _making[known]
    found = _making.get(key)
    if found is not None:
        return found
    if any(each.is_running for (name, _), each in _making.items() if name == actor.name):
        raise StoreBusy("you already have a report in progress: try again when it has finished")
    finished = [known for known, each in _making.items() if not each.is_running]
    for known in finished[: max(0, len(finished) - _MOST_KEPT + 1)]:
        del _making[known]

    async def work(note: Callable[[Progress], None]) -> ReportFiles:
        async with _turns.of(actor.name):
            files = await signed_report(context, actor, period, note)
        asyncio.get_running_loop().call_later(_KEPT_SECONDS, _making.pop, key, None)
        return files

    made = _making[key] = Making(work)
    return made


async def signed_report(
    context: OperationContext, actor: Actor, period: Period, note: Callable[[Progress], None]
) -> ReportFiles:
    signer = await signer_of(context)
    answer = await answered(context, actor, period, note)
    return await asyncio.to_thread(make_files, answer, signer)
