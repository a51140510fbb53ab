"""Resender of quarantined batches whose files an operator has moved to `resend/`.

After the agent has sent a batch again, the place of the batch's file shows the result. The file of a batch is
deleted once the control plane has the batch. If the control plane refused the batch again, the agent moves
the batch's file back to `rejected/` and adds the new response. The file of a batch stays in `resend/` until
the agent has the result of sending the batch.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from proxy.agent import quarantine
from proxy.agent.control_plane import ControlPlane, Response
from proxy.agent.journal import new_batch_id
from proxy.agent.lasting import LastingProblem
from proxy.agent.proof import Accepted, Refused, audit_outcome, description
from proxy.agent.quarantine import QuarantinedBatch
from proxy.agent.shipper import asked_wait
from proxy.outbound.call import CallFailed
from proxy.policy.json_text import readable
from proxy.policy.redaction import shortened
from proxy.process.own_process import make_directory
from proxy.rules.snapshot import write_by_rename
from proxy.wire.audit_event import rfc3339

log = logging.getLogger(__name__)

_RESPONSE_CHARACTERS: Final = 4096


class _Batch(msgspec.Struct, rename="camel"):
    batch_id: str
    events: msgspec.Raw


class Resender:
    def __init__(
        self,
        retention: Path,
        control_plane: ControlPlane,
        *,
        url: str,
        interval: float,
        all_taken: Callable[[], None],
    ) -> None:
        """Create the directory `resend/`.

        Raise OSError if the directory cannot be created.

        The resender calls `all_taken` when no quarantined batch is left. `interval` is the number of seconds
        between two reads of the directory.
        """
        self._directory = retention / "resend"
        make_directory(self._directory)
        self._rejected = retention / "rejected"
        self._control_plane = control_plane
        self._url = url
        self._interval = interval
        self._all_taken = all_taken
        self._trouble = LastingProblem(log)
        # Batches since the start whose id the control plane already had for other events.
        self.reused_ids = 0

    async def run(self) -> None:
        """Send the quarantined batches in `resend/` again, until the task is cancelled."""
        while True:
            try:
                wait = await self._send_all()
            except OSError as error:
                wait = self._put_off(str(error))
            await asyncio.sleep(wait)

    async def _send_all(self) -> float:
        """Send the batches in `resend/` one after the other.

        Return the seconds to wait before the directory is read again.
        """
        for path in await asyncio.to_thread(_files_in, self._directory):
            held = await asyncio.to_thread(_read, path)
            if held is None:
                log.error("%s is not a quarantined batch; moved the file to %s", path, self._rejected)
                await asyncio.to_thread(path.rename, self._rejected / path.name)
                continue
            try:
                response = await self._control_plane.post(self._url, bytes(held.batch))
            except CallFailed as failure:
                return self._put_off(f"control plane: {failure}")
            wait = await self._after(path, held, response)
            if wait:
                return wait
        return self._interval

    async def _after(self, path: Path, held: QuarantinedBatch, response: Response) -> float:
        """Process the control plane's response to a quarantined batch, and update or delete its file.

        Return the seconds to wait before the next batch; 0 for no wait.
        """
        match audit_outcome(response, _batch(held).batch_id):
            case Accepted(content_differs=True):
                self.reused_ids += 1
                log.error(
                    "batch file %s gets a new batch id: the control plane has other events under the old id",
                    path,
                )
                return await self._renewed(path, held)
            case Accepted():
                await self._taken(path, held)
            case Refused(status=409):
                return await self._renewed(path, held)
            case Refused(status=400 | 403 | 413):
                await self._refused(path, held, response)
            case outcome if response.status == 429:
                wait = max(self._interval, asked_wait(response, outcome, self._interval))
                text = description(response)
                self._trouble.met(
                    text, "batches in %s wait for %.0f s: %s", self._directory, wait, text, level=logging.INFO
                )
                return wait
            case outcome:
                return self._put_off(outcome.text)
        self._trouble.over()
        return 0.0

    async def _renewed(self, path: Path, held: QuarantinedBatch) -> float:
        await asyncio.to_thread(write_by_rename, path, quarantine.encode(_under_a_new_id(held)))
        return self._interval

    async def _taken(self, path: Path, held: QuarantinedBatch) -> None:
        await asyncio.to_thread(path.unlink)
        log.info(
            "delivered quarantined audit events of organisation %s: seq %d-%d",
            *(held.org_id, held.first_seq, held.last_seq),
        )
        if not await asyncio.to_thread(_files_in, self._rejected):
            self._all_taken()

    async def _refused(self, path: Path, held: QuarantinedBatch, response: Response) -> None:
        held.status, held.refused_at = response.status, rfc3339(int(time.time() * 1000))
        held.response = shortened(response.body.decode("utf-8", "replace"), _RESPONSE_CHARACTERS)
        await asyncio.to_thread(write_by_rename, self._rejected / path.name, quarantine.encode(held))
        await asyncio.to_thread(path.unlink)
        log.error("audit batch %s was refused again: %s", self._rejected / path.name, description(response))

    def _put_off(self, problem: str) -> float:
        self._trouble.met(problem, "batches in %s wait: %s", self._directory, problem)
        return self._interval


def _files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.json") if path.is_file())


def _read(path: Path) -> QuarantinedBatch | None:
    try:
        held = quarantine.decode(readable(path.read_bytes()))
        _batch(held)
    except ValueError:
        return None
    return held


def _batch(held: QuarantinedBatch) -> _Batch:
    return msgspec.json.decode(held.batch, type=_Batch)


def _under_a_new_id(held: QuarantinedBatch) -> QuarantinedBatch:
    """Give the batch a new ID, because the old ID was used over 48 hours ago or for other events.

    The control plane uses the IDs of events to recognise events that it already has.
    """
    body = msgspec.json.encode(_Batch(new_batch_id(), _batch(held).events))
    return msgspec.structs.replace(held, batch=msgspec.Raw(body))
