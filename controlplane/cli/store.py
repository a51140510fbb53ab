"""Commands of `store`: make a new store after a loss, and copy a store to PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.context import Cli, Json, print_facts, this_user
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.store.interface import StoreError

if TYPE_CHECKING:
    from controlplane.integrity import Walk
    from controlplane.secrets import Vault
    from controlplane.settings import Settings
    from controlplane.store.alone import Alone
    from controlplane.store.sql_store import SqlStore
    from controlplane.store.store_copy import Progress

_INTERRUPTED = 130  # exit status that shells use for an interrupted command

app = typer.Typer()


@app.callback()
def about() -> None:
    """Make a new store after a loss, or copy a store to PostgreSQL."""


@app.command()
def new(ctx: typer.Context, json: Json = False) -> None:
    """Make a new, empty store in place of a missing or empty store.

    The command `store new` never replaces an existing store.
    """
    from controlplane.clock import SystemClock
    from controlplane.store.beginning import is_store, put_aside_what_is_left
    from controlplane.store.interface import NewLogLine
    from controlplane.store.sqlite import SqliteStore
    from controlplane.store.sqlite_database import SqliteDatabase

    cli: Cli = ctx.obj
    path = cli.settings.store.path
    if cli.settings.store.url:
        raise CommandFailed(
            FAILED, "no command is needed with Store.Url: the first start makes the tables in the database"
        )
    if is_store(path):
        raise CommandFailed(FAILED, f"{path}: a store already exists; move it away to make a new one")

    user = this_user()

    async def make() -> None:
        clock = SystemClock()
        store = SqliteStore(await SqliteDatabase.open(path, clock), clock)
        try:
            # The first line of the operator log shows that the store was made by this command.
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


@app.command()
def copy(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="SQLite file of the store to copy.")],
    json: Json = False,
) -> None:
    """Copy the store in a SQLite file into the empty database of Store.Url, while no control plane runs.

    If the copy is interrupted, run the same `store copy` command again to continue the copy. After the copy,
    `store copy` compares the row counts of both stores and verifies the audit chains.
    """
    from controlplane.secrets import MasterKeyError
    from controlplane.store.beginning import is_store
    from controlplane.store.open_store import require_driver

    cli: Cli = ctx.obj
    url = cli.settings.store.url
    if not url:
        raise CommandFailed(FAILED, "Store.Url is missing: set it to the database that receives the copy")
    if not source.exists():
        raise CommandFailed(INVALID_INPUT, f"{source}: no such file")
    if not is_store(source):
        raise CommandFailed(FAILED, f"{source} is not the SQLite file of a store")
    try:
        require_driver()
        from controlplane.store.store_copy import copy_rows, finish

        alone = _alone(source)
        try:
            counts = copy_rows(source, url, _Told())
            links = asyncio.run(_verified(cli.settings, source))
            finish(url)
        finally:
            asyncio.run(alone.close())
        asyncio.run(_logged(url))
    except (StoreError, MasterKeyError) as error:
        raise CommandFailed(FAILED, str(error)) from None
    except KeyboardInterrupt:
        raise CommandFailed(
            _INTERRUPTED, "the copy was interrupted: run the same command again to continue"
        ) from None
    rows = sum(counts.values())
    print_facts({"rows": rows, "events": counts["event_ids"], "verifiedLinks": links}, as_json=json)
    typer.echo(f"the copy is complete: start the control plane, and move {source} away", err=True)


def _alone(source: Path) -> Alone:
    from controlplane.store.alone import Alone, InUse

    try:
        return Alone(source)
    except InUse:
        what = f"{source} is in use by a control plane: stop it until the copy is complete"
        raise CommandFailed(FAILED, what) from None


async def _logged(url: str) -> None:
    """Add a line to the copy's operator log; the line says that the store is a copy."""
    from controlplane.clock import SystemClock
    from controlplane.store.interface import NewLogLine
    from controlplane.store.postgres import PostgresStore

    store, user = await PostgresStore.open(url, SystemClock()), this_user()
    try:
        line = await store.begin_log_line(NewLogLine(user.name, user.address, "store.copy", "{}"))
        await store.end_log_line(line, "done", ())
    finally:
        await store.close()


class _Told:
    """Print the progress of a copy: the start of each table, and at most one line a second."""

    def __init__(self) -> None:
        self._table = ""
        self._at = 0.0

    def __call__(self, progress: Progress) -> None:
        if not progress.of:
            return
        now = time.monotonic()
        if progress.table != self._table or now - self._at >= 1 or progress.rows == progress.of:
            typer.echo(f"{progress.table}: {progress.rows} of {progress.of} rows", err=True)
            self._table, self._at = progress.table, now


async def _verified(settings: Settings, source: Path) -> int:
    """Verify all audit chains of the copy, and return the number of links in these chains.

    Raise StoreError if an audit chain is broken in the copy but not in the original file.
    """
    from controlplane.clock import SystemClock
    from controlplane.master_key import open_vault
    from controlplane.store.postgres import PostgresStore
    from controlplane.store.postgres_database import PostgresDatabase
    from controlplane.store.sqlite import SqliteStore
    from proxy.outbound.settings import egress_of

    clock = SystemClock()
    store = PostgresStore(PostgresDatabase(settings.store.url), clock)
    try:
        vault = await open_vault(settings.secrets, store, egress_of(settings.egress), reads=True)
        links = 0
        for org_id in await store.chained_orgs():
            found = await _walked(vault, store, org_id)
            links += found.links
            if found.misfit is not None:
                original = await SqliteStore.open(source, clock, None)
                try:
                    known = await _walked(vault, original, org_id)
                finally:
                    await original.close()
                if known.misfit != found.misfit:
                    raise StoreError(
                        f"the audit chain of organisation {org_id} is broken: {found.misfit.explanation}"
                    )
                typer.echo(f"the audit chain of organisation {org_id} is broken, in the file too", err=True)
        return links
    finally:
        await store.close()


async def _walked(vault: Vault, store: SqlStore, org_id: str) -> Walk:
    from controlplane.integrity import walk

    async for at in walk(vault, store, org_id, None):
        found = at
    return found
