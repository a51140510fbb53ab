"""Asks before and after the token dies, with a credential of either kind. Each must go on by itself."""

import asyncio
import json
import sys

import azure.identity
import azure.identity.aio
from client import graph_client
from msgraph import GraphServiceClient


async def name(client: GraphServiceClient) -> str:
    return (await client.users.by_user_id("ada@contoso.com").get()).display_name


async def main() -> None:
    async with azure.identity.aio.DefaultAzureCredential() as credential:
        clients = {
            "sync": graph_client(azure.identity.DefaultAzureCredential()),
            "aio": graph_client(credential),
        }
        results = {kind: [await name(client)] for kind, client in clients.items()}
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for kind, client in clients.items():
            results[kind].append(await name(client))
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main())
