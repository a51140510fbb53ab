"""Conditions that operators need to see: gaps in the audit trail, expiring credentials, late sinks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from controlplane.notices.notice import Kind
from controlplane.sinks.settings import AnyTable, WebhookSettings
from controlplane.store.interface import EndingCredential, Losses, Org, Proxy
from controlplane.store.sink_interface import SinkState
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

ENDS_SOON_MS: Final = 14 * 86_400_000
LAG_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Condition:
    """A problem that continues until someone solves it, such as a credential that expires soon.

    `key` identifies the problem, and stays the same until the problem ends.
    """

    key: str
    kind: Kind
    org_ids: tuple[str, ...]
    text: str
    over: str  # sentence of the notice that the condition has ended
    data: Mapping[str, Any] = field(default_factory=dict)


class ConditionSources(Protocol):
    async def orgs(self) -> list[Org]: ...
    async def proxies(self, org_id: str | None) -> list[Proxy]: ...
    async def losses(self, proxy_ids: Sequence[str]) -> Mapping[str, Losses]: ...
    async def ending_credentials(
        self, org_ids: Collection[str] | None, until_ms: int
    ) -> list[EndingCredential]: ...
    async def sink_states(self) -> Mapping[str, SinkState]: ...
    async def oldest_received_after(self, position: int) -> int | None: ...
    async def oldest_notice_after(self, position: int) -> int | None: ...


async def conditions_now(store: ConditionSources, sinks: Sequence[AnyTable], now_ms: int) -> list[Condition]:
    """Return all problems that currently need an operator's attention."""
    proxies = {each.proxy_id: each for each in await store.proxies(None)}
    losses = await store.losses(list(proxies))
    orgs = {each.org_id: each.name for each in await store.orgs()}
    ending = await store.ending_credentials(None, now_ms + ENDS_SOON_MS)
    found = [*_missing(proxies, losses), *_ending(ending, orgs, now_ms)]
    states = await store.sink_states()
    for each in sinks:
        if (state := states.get(each.name)) is not None:
            is_webhook = isinstance(each, WebhookSettings)
            oldest = store.oldest_notice_after if is_webhook else store.oldest_received_after
            found += _of_sink(state, await oldest(state.position), now_ms)
    return found


def _missing(proxies: Mapping[str, Proxy], losses: Mapping[str, Losses]) -> Iterator[Condition]:
    for proxy_id, lost in losses.items():
        if not any(lost):
            continue
        proxy = proxies[proxy_id]
        faults = {"missing": lost.missing, "repeated": lost.repeated, "implausible": lost.implausible}
        what = ", ".join(f"{counted(number, 'event')} {name}" for name, number in faults.items() if number)
        yield Condition(
            f"losses {proxy_id}",
            "missingEvents",
            tuple(proxy.org_ids),
            f"The audit trail of proxy {proxy.name} has faults: {what}",
            f"The audit trail of proxy {proxy.name} has no unexplained fault any more",
            {"proxy": proxy.name, "proxyId": proxy_id, **faults},
        )


def _ending(ending: Sequence[EndingCredential], orgs: Mapping[str, str], now_ms: int) -> Iterator[Condition]:
    for each in ending:
        if each.ends_ms <= now_ms:
            continue
        end = rfc3339(each.ends_ms)
        name = f"Credential {each.credential_id} of app {each.app} ({orgs.get(each.org_id, each.org_id)})"
        yield Condition(
            f"credential {each.app_id} {each.credential_id}",
            "credentialEnds",
            (each.org_id,),
            f"{name} ends at {end}",
            f"{name} has ended, or has another end",
            {"app": each.app, "appId": each.app_id, "credentialId": each.credential_id, "endsAt": end},
        )


def _of_sink(state: SinkState, oldest_ms: int | None, now_ms: int) -> Iterator[Condition]:
    if oldest_ms is not None and now_ms - oldest_ms > LAG_MS:
        why = f": {state.problem}" if state.problem else ""
        yield Condition(
            f"lag {state.sink}",
            "sink",
            (),
            f"Sink {state.sink} lags: it lacks the events received from {rfc3339(oldest_ms)} on{why}",
            f"Sink {state.sink} has caught up",
            {"sink": state.sink, "oldest": rfc3339(oldest_ms), "problem": state.problem},
        )
    if state.dead_letters:
        yield Condition(
            f"dead letters {state.sink}",
            "sink",
            (),
            f"Sink {state.sink} has {counted(state.dead_letters, 'dead letter')}",
            f"Sink {state.sink} has no dead letter any more",
            {"sink": state.sink, "deadLetters": state.dead_letters},
        )
