"""Test that sync and async credentials recover after their token is revoked between two requests."""

import asyncio
import json
import sys
from typing import Any

import azure.identity
import azure.identity.aio
from client import graph_client
from msgraph import GraphServiceClient
from msgraph.generated.models.group import Group


async def name(client: GraphServiceClient) -> str:
    return (await client.users.by_user_id("ada@contoso.com").get()).display_name


async def main() -> None:
    async with azure.identity.aio.DefaultAzureCredential() as credential:
        clients = {
            "sync": graph_client(azure.identity.DefaultAzureCredential()),
            "aio": graph_client(credential),
        }
        results: dict[str, list[Any]] = {kind: [await name(client)] for kind, client in clients.items()}
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for kind, client in clients.items():
            group = await client.groups.post(Group(display_name=kind))
            results[kind] += [group.security_enabled, await name(client)]
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main())
