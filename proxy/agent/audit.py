"""The agent's audit component: a disk thread, a collector, a shipper and the lock of the audit directory."""

import asyncio
import contextlib
import dataclasses
import fcntl
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from proxy.agent.collector import Collector
from proxy.agent.control_plane import ControlPlane
from proxy.agent.health import AuditStatus
from proxy.agent.journal import Journal, JournalStatus
from proxy.agent.resend import Resender
from proxy.agent.shipper import Shipper
from proxy.agent.statefile import NewerState
from proxy.audit.record import Record
from proxy.audit.spool import WhenFull
from proxy.process.own_process import give_to_owner_of, make_directory
from proxy.wire.models import SyncLinger

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_SECONDS: Final = 0.15
_DISK_RETRY_SECONDS: Final = 1.0
_VERIFY_SECONDS: Final = 2.0
_OPEN_RETRY_SECONDS: Final = 1.0
_STATUS_KEPT_SECONDS: Final = 0.2
_STATUS_WAIT_SECONDS: Final = 0.5  # readiness probes usually time out after 1 s
_DISK_SILENT_SECONDS: Final = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class AuditOptions:
    retention: Path
    url: str
    max_disk_bytes: int
    workers_room: int  # bytes of the active and the prepared segments of all workers
    when_full: WhenFull
    max_batch_size: int
    replay_interval: float
    catch_up: bool
    has_served: bool = False  # this identity was used before, so its sequence numbers have begun
    served_as: str | None = None  # id of the proxy that stored rules here before this agent
    waits_for_id: bool = False  # the proxy enrols itself, so no event is sent before its id is known


@dataclasses.dataclass(slots=True)
class _Parts:
    journal: Journal
    collector: Collector
    shipper: Shipper
    resender: Resender


class Audit:
    def __init__(
        self,
        options: AuditOptions,
        control_plane: ControlPlane,
        proxy_id: Callable[[], str | None],
        linger: Callable[[], SyncLinger | None],
        collected: Callable[[Sequence[Record], int], None] | None = None,
    ) -> None:
        """`linger` returns how long to collect events before a batch is sent, as the control plane requests.

        The disk thread calls `collected` with the audit records that it has read.
        """
        self._options = options
        self._control_plane = control_plane
        self._proxy_id = proxy_id
        self._linger = linger
        self._collected = collected
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit-disk")
        self._parts: _Parts | None = None
        self._lock_fd: int | None = None
        self._status: AuditStatus | None = None
        self._status_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._looking_since = 0.0
        self._disk_problem: str | None = None
        self._why_closed = "the audit files are not open yet"
        self._is_known = asyncio.Event()  # set when the attempt to lock the directory has ended

    async def run(self) -> None:
        """Collect audit events and send them to the control plane, until the task is cancelled.

        Call `stop` afterwards.
        """
        parts = await self._opened()
        resending = asyncio.create_task(parts.resender.run(), name="resend")
        try:
            await self._collect_and_ship(parts, resending)
        finally:
            resending.cancel()

    async def _collect_and_ship(self, parts: _Parts, resending: asyncio.Task[None]) -> None:
        await self._send_pending(parts)
        verified_at = time.monotonic()
        while not resending.done():  # it ends only by a fault of the program, which is raised below
            busy = await self._collect(parts)
            if time.monotonic() - verified_at > _VERIFY_SECONDS:
                verified_at = time.monotonic()
                with contextlib.suppress(OSError):
                    await self._on_disk(parts.journal.verify_files)
            if not busy:
                await asyncio.sleep(_DISK_RETRY_SECONDS if self._disk_problem else _POLL_SECONDS)
        resending.result()

    async def stop(self, deadline: float, *, retry: bool = False) -> AuditStatus | None:
        """Collect the last audit records of ended workers, and send as many events as the deadline allows.

        A failed delivery is repeated only if `retry` is true. Return the state of this host's audit events
        after the last delivery. Return None if this process does not own the audit directory.
        """
        parts = self._parts
        if parts is None:
            return None
        ends = time.monotonic() + deadline
        while (busy := await self._collect(parts)) and time.monotonic() < ends:
            pass
        await parts.shipper.stop(max(0.0, ends - time.monotonic()), retry=retry)
        status = await self._read_status(parts)
        await self._on_disk(parts.collector.close)
        if busy:
            status = dataclasses.replace(status, stalled="the stop left no time to collect the rest")
        return status

    def close(self) -> None:
        """Release the lock of the audit directory, so that a new agent process can use the directory."""
        self._disk.shutdown(wait=True)
        if self._lock_fd is not None:
            os.close(self._lock_fd)

    async def status(self) -> AuditStatus | None:
        """Return a recent audit status. Return None if another process owns the audit directory.

        The audit status reports a disk that does not respond. The heartbeat, metrics and readiness tasks call
        this method, so a disk that does not respond must not block it.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_now(), name="audit status")
            self._looking_since = time.monotonic()
        patience = _DISK_SILENT_SECONDS if self._status is None else _STATUS_WAIT_SECONDS
        await asyncio.wait({self._looking}, timeout=patience)
        if self._looking.done():
            self._looking.result()
        elif (silent := time.monotonic() - self._looking_since) >= _DISK_SILENT_SECONDS:
            self._why_closed = f"the disk has not responded for {silent:.0f} s"
            if self._status is not None:
                self._status = dataclasses.replace(self._status, stalled=self._why_closed)
        return self._status

    def last_status(self) -> AuditStatus | str:
        """Return the last known state of this host's audit events, or the reason why it could not be read."""
        return self._status or self._why_closed

    async def _look_now(self) -> None:
        await self._is_known.wait()
        parts = self._parts
        if parts is not None and time.monotonic() - self._status_at > _STATUS_KEPT_SECONDS:
            self._status = await self._read_status(parts)
            self._status_at = time.monotonic()

    async def _read_status(self, parts: _Parts) -> AuditStatus:
        journal, backlog, problem = await self._on_disk(self._look, parts)
        return AuditStatus(
            journal=journal,
            backlog=backlog,
            rejected_files=await self._on_disk(parts.journal.rejected_files),
            stalled=self._disk_problem or problem or parts.collector.stalled,
            not_going_out=parts.shipper.problems(),
            quarantined=parts.shipper.quarantined(),
            reused_ids=parts.shipper.reused_ids + parts.resender.reused_ids,
        )

    def _look(self, parts: _Parts) -> tuple[JournalStatus, int, str | None]:
        """Return the journal's status and the backlog.

        The third returned value is the reason why the backlog may be outdated, or None if the backlog is
        current.

        This method never raises OSError: if the disk fails, the caller still has to report the failure.
        """
        with contextlib.suppress(OSError):
            parts.journal.verify_files()
        journal = parts.journal.status()
        try:
            return journal, parts.collector.backlog(), None
        except OSError as error:
            return journal, self._status.backlog if self._status is not None else 0, str(error)

    async def _collect(self, parts: _Parts) -> bool:
        try:
            busy = await self._on_disk(parts.collector.run_pass)
        except OSError as error:
            if self._disk_problem is None:
                log.error("cannot move audit events from the spool to the journal: %s", error)
            self._disk_problem = str(error)
            await self._send_pending(parts)
            return False
        if self._disk_problem is not None:
            log.info("the collection of audit events from the spool works again")
            self._disk_problem = None
        await self._send_pending(parts)
        return busy

    async def _send_pending(self, parts: _Parts) -> None:
        proxy_id = self._proxy_id()
        if proxy_id is None and self._options.waits_for_id:
            return
        # If the state can't be written, no event is sent with other numbers.
        with contextlib.suppress(OSError):
            if proxy_id is not None and parts.journal.state.proxy_id != proxy_id:
                await self._on_disk(parts.journal.number_for, proxy_id, self._options.served_as)
            parts.shipper.notify(await self._on_disk(parts.journal.pending))

    async def _opened(self) -> _Parts:
        """Open the audit directory and the files in it.

        If the audit directory cannot be opened, retry until the directory is open.

        While the agent retries to open the audit directory, its other tasks and the workers' spool continue.
        """
        while True:
            try:
                self._own_directory()
                self._parts = await self._on_disk(self._open)
            except (OSError, NewerState) as error:
                if str(error) != self._why_closed:
                    log.error("cannot collect audit events: %s", error)
                self._why_closed = str(error)
                self._is_known.set()
                await asyncio.sleep(_OPEN_RETRY_SECONDS)
            else:
                self._is_known.set()
                return self._parts

    def _own_directory(self) -> None:
        """Lock the audit directory, so that no second agent assigns the same sequence numbers."""
        if self._lock_fd is not None:
            return
        make_directory(self._options.retention)
        fd = os.open(self._options.retention / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            give_to_owner_of(self._options.retention, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise OSError(
                f"another agent process already collects audit events in {self._options.retention}"
            ) from None
        self._lock_fd = fd

    def _open(self) -> _Parts:
        options = self._options
        journal = Journal(options.retention, max_bytes=options.max_disk_bytes, has_served=options.has_served)
        collector = Collector(
            options.retention,
            journal,
            max_bytes=options.max_disk_bytes,
            when_full=options.when_full,
            workers_room=options.workers_room,
            proxy_id=self._proxy_id,
            collected=self._collected,
        )
        shipper = Shipper(
            journal,
            self._disk,
            self._control_plane,
            url=options.url,
            max_batch_size=options.max_batch_size,
            replay_interval=options.replay_interval,
            catch_up=options.catch_up,
            asked=self._linger,
        )
        resender = Resender(
            options.retention,
            self._control_plane,
            url=options.url,
            interval=options.replay_interval,
            all_taken=shipper.forget_quarantined,
        )
        return _Parts(journal, collector, shipper, resender)

    async def _on_disk(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, functools.partial(call, *args))
