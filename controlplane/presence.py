"""Periodic records that this control plane is running, so that other control planes detect when it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Final

from controlplane import __version__
from controlplane.clock import Clock
from controlplane.names import new_id
from controlplane.retention import WitnessedTime
from controlplane.store.interface import Instance, Peers, Store, StoreError

_EVERY_SECONDS: Final = 10.0  # a third of the time after which the others consider it dead

_log = logging.getLogger(__name__)


class Presence:
    def __init__(self, store: Store, clock: Clock, peers: Peers, witnessed: WitnessedTime) -> None:
        self._store = store
        self._clock = clock
        self._peers = peers
        self._witnessed = witnessed
        name = f"host {socket.gethostname()}, process {os.getpid()}"
        self._instance = Instance(new_id(clock), name, __version__)
        self._is_noted = True
        self._noting: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._store.use_as(self._instance.instance_id)
        await self._write()

    async def run(self) -> None:
        while True:
            changed = self._peers.until_not_leading() if self._peers.leads else self._peers.until_leading()
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_SECONDS):
                    await changed
            await self._note()

    async def end(self) -> None:
        """Remove this control plane's record from the store, after any write in progress has ended."""
        if self._noting is not None:
            await self._noting
        try:
            await self._store.remove_instance(self._instance.instance_id)
        except StoreError as error:
            _log.warning(
                "this control plane stopped, but the other control planes will notice that only after"
                " a delay: %s",
                error,
            )

    async def _note(self) -> None:
        self._noting = asyncio.create_task(self._write())
        await asyncio.shield(self._noting)

    async def _write(self) -> None:
        instance = replace(self._instance, leads=self._peers.leads, witnessed_ms=self._witnessed.ms)
        try:
            now_ms = await self._store.note_instance(instance)
        except StoreError as error:  # A full disk or an unreachable database must not end a control plane.
            if self._is_noted:
                _log.warning("could not record that this control plane runs: %s", error)
            self._is_noted = False
            return
        self._is_noted = True
        if self._store.is_shared:
            self._clock.follow(now_ms)
