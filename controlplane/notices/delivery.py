"""The consumer of a webhook, which delivers the notices of the store one by one and in order.

The consumer sends each notice until the receiver accepts it. The store keeps the webhook's cursor (its last
delivered position) in the same place as the cursors of the sinks. The webhook's cursor moves after each
delivered notice. After a crash, one notice may be sent twice, but no notice is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from controlplane.clock import Clock
from controlplane.notices.notice import Notice, decoded
from controlplane.sinks.attempts import Attempts
from controlplane.sinks.interface import SinkRefused
from controlplane.sinks.selection import orgs_named
from controlplane.sinks.settings import WebhookSettings
from controlplane.store.interface import Org
from controlplane.store.sink_interface import DeadLetter, NoticeStore, SinkStore

_READ_AT_ONCE: Final = 100

_log = logging.getLogger(__name__)


class Receiver(Protocol):
    async def send(self, notice: Notice) -> None: ...
    async def close(self) -> None: ...


class DeliveryStore(NoticeStore, SinkStore, Protocol):
    async def orgs(self) -> list[Org]: ...


class Delivery:
    """Delivery of the store's notices to one webhook.

    If two consumers deliver to one webhook at once, the receiver gets each notice twice, with the same notice
    ID. This is harmless.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        store: DeliveryStore,
        clock: Clock,
        open_receiver: Callable[[WebhookSettings], Receiver],
    ) -> None:
        self._settings = settings
        self._name = settings.name
        self._store = store
        self._clock = clock
        self._open = open_receiver
        self._attempts = Attempts(settings, store)
        self._receiver: Receiver | None = None

    def wake(self) -> None:
        """Wake the delivery task so that it checks the store for new notices."""
        self._attempts.wake()

    async def run(self) -> None:
        """Deliver notices to the webhook until the task is cancelled."""
        try:
            await self._attempts.repeat(self._attempt)
        finally:
            if self._receiver is not None:
                await self._receiver.close()

    async def _attempt(self) -> None:
        self._receiver = self._receiver or self._open(self._settings)
        await self.drain(self._receiver)

    async def drain(self, receiver: Receiver) -> None:
        """Deliver all notices that the store holds.

        If the delivery of a notice fails, raise the error of the receiver or of the store.
        """
        state = await self._store.begin_webhook(self._name, at_newest=self._settings.from_ == "now")
        self._attempts.problem, position = state.problem, state.position
        orgs = await self._orgs()
        await self._retry(receiver)
        while stored := await self._store.notices_after(position, _READ_AT_ONCE):
            for each in stored:
                notice = decoded(each.body)
                is_wanted = self._is_wanted(notice, orgs)
                refused = await self._refused(receiver, each.position, notice) if is_wanted else []
                delivered = int(is_wanted and not refused)
                if not await self._store.advance_sink(
                    self._name, position, each.position, delivered, refused
                ):
                    return  # an operator moved the cursor, or another control plane leads
                position = each.position
        await self._attempts.recovered()

    async def _orgs(self) -> frozenset[str] | None:
        if not self._settings.organisations:
            return None
        return orgs_named(self._settings.organisations, await self._store.orgs())

    def _is_wanted(self, notice: Notice, orgs: frozenset[str] | None) -> bool:
        is_here = orgs is None or not notice.org_ids or not orgs.isdisjoint(notice.org_ids)
        return is_here and (not self._settings.notices or notice.kind in self._settings.notices)

    async def _refused(self, receiver: Receiver, position: int, notice: Notice) -> list[DeadLetter]:
        """Send the notice to the webhook.

        Return a dead letter if the receiver rejects the notice permanently.
        """
        try:
            await receiver.send(notice)
        except SinkRefused as error:
            reason = self._attempts.masked(str(error))
            _log.warning(
                "webhook %s: the receiver refused the notice %s: %s", self._name, notice.notice_id, reason
            )
            org_id = next(iter(notice.org_ids), "")
            return [DeadLetter(position, org_id, self._clock.wall_ms(), reason)]
        return []

    async def _retry(self, receiver: Receiver) -> None:
        """Send the dead letters that an operator has marked for another attempt."""
        for letter in await self._store.dead_letters(self._name, _READ_AT_ONCE, retried=True):
            stored = await self._store.notices_after(letter.position - 1, 1)
            if not stored or stored[0].position != letter.position:
                await self._store.end_retries(self._name, [letter.position], 0)
                continue
            again = await self._refused(receiver, letter.position, decoded(stored[0].body))
            await self._store.end_retries(self._name, [letter.position], int(not again), again)


class Deliveries:
    """The tasks that deliver notices to the webhooks, one for each webhook in the settings."""

    def __init__(
        self,
        webhooks: Sequence[WebhookSettings],
        store: DeliveryStore,
        clock: Clock,
        open_receiver: Callable[[WebhookSettings], Receiver],
    ) -> None:
        self._all = {each.name: Delivery(each, store, clock, open_receiver) for each in webhooks}

    def wake(self) -> None:
        """Wake all delivery tasks so that they check the store for new notices."""
        for delivery in self._all.values():
            delivery.wake()

    def runs(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return the name and the delivery coroutine of each webhook."""
        return [(f"webhook {name}", delivery.run()) for name, delivery in self._all.items()]
