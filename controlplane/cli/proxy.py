"""`proxy`: add, list, show, grant, revoke, rotate-secret, disable, enable."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from controlplane.cli.context import AnyOrg, Cli, Json, OneOrg, Open, print_facts, print_list
from controlplane.registry import ProxySecrets
from controlplane.store.interface import Proxy, SequenceState
from proxy.wire.audit_event import rfc3339

app = typer.Typer()

_GAPS_SHOWN = 100

_Proxy = Annotated[str, typer.Argument(metavar="PROXY", help="Id or name.")]


def _facts(proxy: Proxy, org_names: dict[str, str]) -> dict[str, Any]:
    return {
        "proxyId": proxy.proxy_id,
        "name": proxy.name,
        "orgs": [org_names[org_id] for org_id in proxy.org_ids],
        "enabled": proxy.enabled,
        "lastSeen": None if proxy.last_seen_ms is None else rfc3339(proxy.last_seen_ms),
    }


def _secrets(minted: ProxySecrets) -> dict[str, str]:
    return {"proxyId": minted.proxy_id, "apiKey": minted.api_key, "hmacSecret": minted.hmac_secret}


async def _org_names(opened: Open) -> dict[str, str]:
    return {org.org_id: org.name for org in await opened.store.orgs()}


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    org: Annotated[
        list[str],
        typer.Option("--org", metavar="ORG", help="An organisation, by id or name; several may be given."),
    ],
    json: Json = False,
) -> None:
    """Add a proxy instance. Its API key and HMAC secret are printed this once."""
    cli: Cli = ctx.obj

    async def work(opened: Open) -> ProxySecrets:
        return await opened.registry.add_proxy(await opened.vault(), name, org)

    print_facts(_secrets(cli.run(work)), as_json=json)


@app.command("rotate-secret")
def rotate_secret(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """A new API key and HMAC secret, printed this once; the old ones end at once."""
    cli: Cli = ctx.obj

    async def work(opened: Open) -> ProxySecrets:
        return await opened.registry.rotate_proxy_secrets(await opened.vault(), proxy)

    print_facts(_secrets(cli.run(work)), as_json=json)


@app.command("list")
def list_proxies(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """All proxy instances."""
    cli: Cli = ctx.obj

    async def work(opened: Open) -> list[dict[str, Any]]:
        names = await _org_names(opened)
        return [_facts(proxy, names) for proxy in await opened.registry.proxies(org)]

    print_list("proxies", cli.run(work), as_json=json)


@app.command()
def show(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """One proxy instance: what it last said of itself, and which of its audit events are missing."""
    cli: Cli = ctx.obj

    async def work(opened: Open) -> dict[str, Any]:
        found = await opened.registry.proxy(proxy)
        heartbeats = await opened.store.heartbeats(found.proxy_id, 1)
        metrics = await opened.store.metrics(found.proxy_id, 1)
        heartbeat = msgspec.json.decode(heartbeats[0].body) if heartbeats else None
        return {
            **_facts(found, await _org_names(opened)),
            "createdAt": rfc3339(found.created_ms),
            "lastHeartbeat": rfc3339(heartbeats[0].received_ms) if heartbeats else None,
            "heartbeat": heartbeat,
            "metrics": msgspec.json.decode(metrics[0].body) if metrics else None,
            "sequences": _sequences(
                found,
                await opened.store.sequences(found.proxy_id, _GAPS_SHOWN),
                (heartbeat or {}).get("lastSeq") or {},
            ),
        }

    print_facts(cli.run(work), as_json=json)


def _sequences(proxy: Proxy, states: list[SequenceState], last_seq: dict[str, int]) -> list[dict[str, Any]]:
    """For each organisation what came, what is missing below it, and what the proxy has beyond it."""
    known = {state.org_id: state for state in states}
    org_ids = sorted({*known, *(org_id for org_id in last_seq if org_id in proxy.org_ids)})
    rows = []
    for org_id in org_ids:
        state = known.get(org_id) or SequenceState(org_id, 0, (), 0)
        listed = sum(gap.last - gap.first + 1 for gap in state.gaps)
        rows.append(
            {
                "orgId": org_id,
                "highestSeq": state.highest,
                "missing": [[gap.first, gap.last] for gap in state.gaps],
                "missingCount": listed + state.unlisted,
                "undelivered": max(0, last_seq.get(org_id, 0) - state.highest),
            }
        )
    return rows


@app.command()
def grant(ctx: typer.Context, proxy: _Proxy, org: OneOrg, json: Json = False) -> None:
    """Let the proxy serve one organisation more."""
    cli: Cli = ctx.obj

    async def work(opened: Open) -> dict[str, Any]:
        return _facts(await opened.registry.grant(proxy, org), await _org_names(opened))

    print_facts(cli.run(work), as_json=json)


@app.command()
def revoke(ctx: typer.Context, proxy: _Proxy, org: OneOrg, json: Json = False) -> None:
    """Take an organisation from the proxy: its rules at the next sync, its events at once."""
    cli: Cli = ctx.obj

    async def work(opened: Open) -> dict[str, Any]:
        return _facts(await opened.registry.revoke(proxy, org), await _org_names(opened))

    print_facts(cli.run(work), as_json=json)


@app.command()
def disable(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Refuse the proxy's API key from now on."""
    _set_enabled(ctx.obj, proxy, False, json)


@app.command()
def enable(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Take the proxy's API key again."""
    _set_enabled(ctx.obj, proxy, True, json)


def _set_enabled(cli: Cli, proxy: str, enabled: bool, json: bool) -> None:
    async def work(opened: Open) -> dict[str, Any]:
        return _facts(await opened.registry.set_proxy_enabled(proxy, enabled), await _org_names(opened))

    print_facts(cli.run(work), as_json=json)
