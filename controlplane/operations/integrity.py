"""The hash chain of audit events: show the chain heads, to be stored elsewhere, and verify the chain."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from controlplane.integrity import Known, walk
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.search.fair_queue import FairQueue
from controlplane.store.chain import DIGEST_BYTES
from controlplane.store.interface import ChainCheck, Misfit, StoreBusy
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted


class Head(Response):
    """Newest link of an organisation's audit chain.

    If a copy of the chain link is stored elsewhere, the copy later proves that no event before the link was
    changed.
    """

    org_id: str
    number: int
    link: str
    at: str
    events: int
    purged: int  # number of these events that retention purged


class Heads(Response):
    heads: tuple[Head, ...]


class HeadsAsked(Request):
    org: str | None = None  # id or name; default: every organisation that the actor has permission to look at


class KnownHead(Request, forbid_unknown_fields=False):
    """A link of an audit chain, from a stored checkpoint.

    A stored checkpoint may contain JSON fields that this schema does not list.
    """

    org_id: str
    number: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    link: str


class Verify(Request):
    org: str | None = None
    head: str | None = None  # a link of that organisation, which must still be in the chain
    checkpoint: tuple[KnownHead, ...] = ()  # stored links; the verification skips everything before them


class Verdict(Response):
    org_id: str
    links: int
    events: int  # events that were verified, and the number of them that retention had purged
    purged: int
    misfit: Misfit | None
    received_from: str | None  # first time at which one of these events was received; null: there are none
    received_to: str | None
    missing_events: int  # sequence numbers that proxies gave out, but whose events never arrived
    repeated_events: int  # events with sequence numbers that earlier events had


class Verified(Response):
    """Results of the verification of audit chains.

    If no stored event was changed, the field `intact` is true. If no event is missing, the field `complete`
    is true.
    """

    intact: bool
    complete: bool
    orgs: tuple[Verdict, ...]


class Check(Response):
    """State of an organisation's audit chain: its newest link, and the result of the last verification."""

    org_id: str
    name: str
    head: Head | None
    checked_at: str | None
    checked_events: int | None
    misfit: Misfit | None
    received_from: str | None  # first time at which an event of that walk was received
    received_to: str | None
    missing_events: int  # sequence numbers whose events never arrived
    repeated_events: int


class Checks(Response):
    orgs: tuple[Check, ...]


@operation("audit.head", "GET", "/audit/heads")
async def head(context: OperationContext, actor: Actor, request: HeadsAsked) -> Heads:
    """Show the newest link of each organisation's chain of audit events."""
    orgs = await context.resolve.orgs_of_events(actor, request.org)
    found = [await _head(context, org.org_id) for org in orgs]
    return Heads(heads=tuple(each for each in found if each is not None))


@operation("audit.checks", "GET", "/audit/integrity")
async def checks(context: OperationContext, actor: Actor, request: HeadsAsked) -> Checks:
    """Show the result of the last complete verification of each organisation's chain of audit events."""
    found = []
    for org in await context.resolve.orgs_of_events(actor, request.org):
        check = await context.store.chain_check(org.org_id)
        absent = await context.store.losses_of_org(org.org_id)
        received = await _received(context, org.org_id, 0, check.links if check else 0)
        found.append(
            Check(
                org_id=org.org_id,
                name=org.name,
                head=await _head(context, org.org_id),
                checked_at=None if check is None else rfc3339(check.checked_ms),
                checked_events=None if check is None else check.events,
                misfit=None if check is None else check.misfit,
                received_from=received[0],
                received_to=received[1],
                missing_events=absent.missing,
                repeated_events=absent.repeated,
            )
        )
    return Checks(orgs=tuple(found))


@operation("audit.verify", "POST", "/audit/verify", changes=False)
async def verify(context: OperationContext, actor: Actor, request: Verify) -> Verified:
    """Verify that no stored audit event was changed, inserted, reordered or removed, except by retention."""
    async with aclosing(verification(context, actor, request)) as steps:
        verdicts = [each async for each in steps if isinstance(each, Verdict)]
    return verified(verdicts)


def verified(verdicts: Sequence[Verdict]) -> Verified:
    return Verified(
        intact=all(each.misfit is None for each in verdicts),
        complete=not any(each.missing_events or each.repeated_events for each in verdicts),
        orgs=tuple(verdicts),
    )


def in_words(verdict: Verdict | Check) -> tuple[str, str | None]:
    """Return the finding of a verification with its period, and the reason why the audit trail is incomplete.

    The reason is None if no event is missing.
    """
    if verdict.misfit is not None:
        found = "stored events were changed after they had been stored"
    elif verdict.received_from is None:
        found = "there are no events to verify"
    else:
        period = f"between {verdict.received_from} and {verdict.received_to}"
        found = f"the events that were received {period} are stored unchanged{_besides(verdict)}"
    absent = []
    if verdict.missing_events:
        absent.append(
            f"{counted(verdict.missing_events, 'event')} never arrived: their sequence numbers are missing"
        )
    if verdict.repeated_events:
        absent.append(
            f"{counted(verdict.repeated_events, 'event')} reused sequence numbers of earlier events"
        )
    return found, "; ".join(absent) or None


def _besides(verdict: Verdict | Check) -> str:
    """Return a text with the number of verified events that retention purged; empty if there are none."""
    purged = verdict.purged if isinstance(verdict, Verdict) else verdict.head.purged if verdict.head else 0
    return f", except {counted(purged, 'event')} that retention removed" if purged else ""


# -- verification of a chain -----------------------------------------------------------------------

# A walk reads the whole chain as fast as it can. One walk runs at a time, and one of each operator, so that
# no operator can block the verifications of the others.
_walking: Final = FairQueue()
_asking: Final[set[str]] = set()  # operators with a verification that runs or waits


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress in the verification of an organisation's audit chain, counted in links."""

    org_id: str
    done: int
    total: int


async def verification(
    context: OperationContext, actor: Actor, request: Verify
) -> AsyncGenerator[Progress | Verdict]:
    """Yield the progress and the verdict for each organisation's audit chain.

    Raise StoreBusy if another verification of the same actor is running.
    """
    if actor.name in _asking:
        raise StoreBusy("your previous verification is still running: try again when it has finished")
    _asking.add(actor.name)
    try:
        async with aclosing(verification_in_turn(context, actor, request)) as steps:
            async for each in steps:
                yield each
    finally:
        _asking.discard(actor.name)


async def verification_in_turn(
    context: OperationContext, actor: Actor, request: Verify
) -> AsyncGenerator[Progress | Verdict]:
    """Yield the results of `verification`, after waiting for running verifications of the same actor."""
    if request.head is not None and request.org is None:
        raise InvalidRequest("head: also give org, the organisation that the chain link belongs to")
    known = {each.org_id: Known(_digest("checkpoint", each.link), each.number) for each in request.checkpoint}
    org_ids = [org.org_id for org in await context.resolve.orgs_of_events(actor, request.org)]
    if request.head is not None:
        known[org_ids[0]] = Known(_digest("head", request.head))
    if request.org is None and actor.may("viewer", None):
        org_ids += [org_id for org_id in await context.store.chained_orgs() if org_id not in org_ids]
    async with _walking.of(actor.name):
        for org_id in org_ids:
            async for each in _verdict(context, org_id, known.get(org_id)):
                yield each
    if request.org is None:
        for org_id in known.keys() - set(org_ids):
            yield _of_nothing_left(org_id, known[org_id])


def _of_nothing_left(org_id: str, known: Known) -> Verdict:
    """Return the verdict `truncated` for a checkpoint that names a link of a missing audit chain.

    The store has no such chain, or the actor has no permission to see the chain.
    """
    text = "the checkpoint names a link of this organisation's chain, and the store has no chain for it"
    return Verdict(
        org_id=org_id,
        links=0,
        events=0,
        purged=0,
        misfit=Misfit("truncated", text, known.number),
        received_from=None,
        received_to=None,
        missing_events=0,
        repeated_events=0,
    )


async def _verdict(
    context: OperationContext, org_id: str, known: Known | None
) -> AsyncIterator[Progress | Verdict]:
    async with aclosing(walk(await context.vault(), context.store, org_id, known)) as steps:
        begun: int | None = None  # number of the last link that was skipped as verified
        async for at in steps:
            reached = at.reached
            begun = reached.number if begun is None else begun
            if not at.done:
                yield Progress(org_id, reached.number, at.links)
                continue
            if known is None:  # without a stored link, the caller decides whether to report or skip it
                check = ChainCheck(context.clock.wall_ms(), reached.number, reached.events, at.misfit)
                await context.store.note_chain_check(org_id, check)
            received = await _received(context, org_id, begun, reached.number)
            absent = await context.store.losses_of_org(org_id)
            yield Verdict(
                received_from=received[0],
                received_to=received[1],
                missing_events=absent.missing,
                repeated_events=absent.repeated,
                org_id=org_id,
                links=reached.number,
                events=reached.events,
                purged=reached.purged,
                misfit=at.misfit,
            )


async def _received(
    context: OperationContext, org_id: str, after: int, last: int
) -> tuple[str | None, str | None]:
    """Return the first and last receipt times of the chain links from number `after` + 1 to `last`."""
    found = await context.store.chain_receipts(org_id, after, last)
    return (None, None) if found is None else (rfc3339(found[0]), rfc3339(found[1]))


def _digest(member: str, text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise InvalidRequest(f"{member}: a link of a hash chain has {2 * DIGEST_BYTES} hexadecimal digits")
    return digest


async def _head(context: OperationContext, org_id: str) -> Head | None:
    found = await context.store.chain_head(org_id)
    if found is None:
        return None
    return Head(
        org_id=org_id,
        number=found.newest.record.number,
        link=found.newest.link.hex(),
        at=rfc3339(found.newest.record.chained_ms),
        events=found.events,
        purged=found.purged,
    )
