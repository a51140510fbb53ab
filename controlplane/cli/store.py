"""`store new`: make a new store where one was lost."""

from __future__ import annotations

import asyncio

import typer

from controlplane.cli.context import Cli, Json, print_facts, this_user
from controlplane.cli.failure import FAILED, CommandFailed
from controlplane.store.interface import StoreError

app = typer.Typer()


@app.callback()
def about() -> None:
    """Make a new store in place of one that was lost."""


@app.command()
def new(ctx: typer.Context, json: Json = False) -> None:
    """Make a new, empty store in place of one that is missing or empty. Refused if there is a store."""
    from controlplane.clock import SystemClock
    from controlplane.store.beginning import is_store, put_aside_what_is_left
    from controlplane.store.interface import NewLogLine
    from controlplane.store.sqlite import SqliteStore
    from controlplane.store.sqlite_database import SqliteDatabase

    cli: Cli = ctx.obj
    path = cli.settings.store.path
    if cli.settings.store.url:
        raise CommandFailed(FAILED, "the first start makes the tables in the database of Store.Url")
    if is_store(path):
        raise CommandFailed(FAILED, f"{path}: a store is there already; move it away to begin again")

    user = this_user()

    async def make() -> None:
        clock = SystemClock()
        store = SqliteStore(await SqliteDatabase.open(path, clock), clock)
        try:
            # So that the operator log shows that there was a store before.
            line = await store.begin_log_line(NewLogLine(user.name, user.address, "store.new", "{}"))
            await store.end_log_line(line, "done", ())
        finally:
            await store.close()

    try:
        put_aside_what_is_left(path)
        asyncio.run(make())
    except OSError as error:
        raise CommandFailed(FAILED, f"{error.filename or path}: {error.strerror}") from None
    except StoreError as error:
        raise CommandFailed(FAILED, str(error)) from None
    print_facts({"store": str(path)}, as_json=json)
