"""Integrity of the audit events: signed links of the audit chain, and a verification of the chain.

A store that was made by this release has every event in the audit chain from the beginning. The events of an
earlier release are added to the audit chain once, before the control plane listens for the first time. When
these events are in the chain, the control plane records this in a text that it encrypts with the master key.
Without the master key, an attacker who can write the store's file can't present new events as old events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final

from controlplane.master_key import CHAINED, note_chained, opened_check
from controlplane.secrets import Vault
from controlplane.store.chain import Link
from controlplane.store.interface import Misfit, Reached, Store, StoreError

_PURPOSE: Final = "graphward audit chain 1"
_SAY_EVERY_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


def chain_key(vault: Vault) -> bytes:
    return vault.derive(_PURPOSE)


async def begin_chain(vault: Vault, store: Store) -> None:
    """Sign new links of the audit chain from now on.

    First add the events of an earlier release to the audit chain, unless these events were added already.
    """
    store.sign_links(chain_key(vault))
    if await opened_check(vault, store) == CHAINED:
        return
    adopted, said = 0, time.monotonic()
    for org in await store.orgs():
        while events := await store.adopt_blocks(org.org_id):
            adopted += events
            if time.monotonic() - said >= _SAY_EVERY_SECONDS:
                said = time.monotonic()
                _log.info("audit chain: %d events of an earlier release were added so far", adopted)
    await note_chained(vault, store)
    _log.info("audit chain: started, with %d events of an earlier release", adopted)


@dataclass(frozen=True, slots=True)
class Known:
    """Link of the audit chain that somebody kept outside the store, perhaps with the link's number."""

    link: bytes
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """Progress of a verification of the audit chain.

    If `done` is True, `misfit` is the mismatch that the verification found, or None.
    """

    reached: Reached
    links: int  # links of the chain at the start of the verification
    done: bool = False
    misfit: Misfit | None = None


async def walk(vault: Vault, store: Store, org_id: str, known: Known | None) -> AsyncGenerator[Walk]:
    """Verify the organisation's audit chain.

    If `known` has the number of a chain link, the verification begins with this link.
    """
    if await store.has_master_key() and await opened_check(vault, store) != CHAINED:
        raise StoreError(
            "the audit chain lacks the events of an earlier release: start the control plane once"
        )
    key = chain_key(vault)
    head = await store.chain_head(org_id)
    last = 0 if head is None else head.newest.record.number
    begin = await _begin(store, org_id, known)
    at = Walk(begin or Reached(), last)
    while at.reached.number < last and at.misfit is None:
        yield at
        reached, misfit = await store.walk_chain(org_id, at.reached, last, key)
        at = replace(at, reached=reached, misfit=misfit)
    if at.misfit is None:
        at = replace(at, misfit=await _at_end(store, org_id, known, is_known=begin is not None))
    yield replace(at, done=True)


async def _begin(store: Store, org_id: str, known: Known | None) -> Reached | None:
    """Return the state from which a verification of the audit chain continues after the chain link `known`.

    Return None if the stored chain does not contain the link `known`.
    """
    if known is None or known.number is None:
        return None
    link = await store.chain_link(org_id, known.number)
    if link is None or link.link != known.link:
        return None
    return Reached(known.number, link.link, await _position_at(store, link))


async def _position_at(store: Store, link: Link) -> int:
    """Return the position of the block of events that `link` covers.

    If `link` records a purge of events, return the position of the last block that an earlier link covers.
    Return 0 if no earlier link covers a block.
    """
    at: Link | None = link
    while at is not None and at.record.kind == "purge":
        at = await store.chain_link(at.record.org_id, at.record.number - 1)
    return 0 if at is None else at.record.position


async def _at_end(store: Store, org_id: str, known: Known | None, *, is_known: bool) -> Misfit | None:
    if known is not None and not is_known and not await store.chain_has(org_id, known.link):
        text = "the known link is not in the chain: the end was removed, or the chain was made again"
        return Misfit("truncated", text, known.number)
    return await store.mismatch_at_chain_end(org_id)
