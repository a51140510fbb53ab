"""What every command shares: its settings and store, its two kinds of output, its exit status."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.store.interface import StoreError

if TYPE_CHECKING:
    from controlplane.cli.remote import Remote
    from controlplane.operations.actor import Actor
    from controlplane.operations.context import OperationContext
    from controlplane.operations.operation import Operation, Request, Response, Stream
    from controlplane.search.interface import SearchIndex
    from controlplane.secrets import Vault
    from controlplane.settings import Settings
    from controlplane.store.sql_store import SqlStore

    A = TypeVar("A", bound=Response)
    Q = TypeVar("Q", bound=Request)

T = TypeVar("T")

_NEVER_EMPTY = frozenset(
    {
        "app",
        "after",
        "cursor",
        "from",
        "id",
        "operation",
        "operator",
        "org",
        "proxy",
        "ruleset",
        "search",
        "sort",
        "to",
        "token",
    }
)
_POLL_SECONDS = 0.5  # for events that a server beside us stores

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OneOrg = Annotated[str, typer.Option("--org", metavar="ORG", help="The organisation, by id or name.")]
AnyOrg = Annotated[
    str | None, typer.Option("--org", metavar="ORG", help="Only in this organisation, by id or name.")
]


@dataclass(frozen=True, slots=True)
class Open:
    """The store while a command runs."""

    settings: Settings
    store: SqlStore
    context: OperationContext


class Cli:
    """`ctx.obj` of every command: where its operations are done."""

    def __init__(self, config: Path | None, url: str | None = None, token_file: Path | None = None) -> None:
        self._config = config
        self._url = url
        self._token_file = token_file

    @property
    def has_store(self) -> bool:
        """Whether there is anything to look a ruleset up in."""
        return self._config is not None or self._url is not None

    @property
    def is_remote(self) -> bool:
        return self._url is not None

    @property
    def config(self) -> Path:
        if self._url is not None:
            raise CommandFailed(
                INVALID_INPUT, "this is done beside the store: give --config instead of --url"
            )
        if self._config is None:
            raise CommandFailed(INVALID_INPUT, "Missing option '--config'.")
        return self._config

    @cached_property
    def settings(self) -> Settings:
        from controlplane.settings import read_settings
        from proxy.config import SettingsError

        try:
            return read_settings(self.config)
        except SettingsError as error:
            raise CommandFailed(INVALID_INPUT, *error.problems) from None

    @property
    def remote(self) -> Remote | None:
        if self._url is None:
            return None
        if self._token_file is None:
            raise CommandFailed(INVALID_INPUT, "Missing option '--token-file'.")
        from controlplane.cli.remote import Remote

        return Remote(self._url, self._token_file)

    def call(self, operation: Operation[Q, A], asked: Q) -> A:
        """Do the operation, on the store or at a running server; its failures told in one line each."""
        from controlplane.operations.perform import perform

        _check(asked)
        remote = self.remote
        if remote is not None:
            return remote.call(operation, asked)
        return self.run(
            lambda opened: perform(operation, opened.context, this_user(), asked), reads=not operation.changes
        )

    def stream(self, stream: Stream[Q], asked: Q, take: Callable[[bytes], None]) -> None:
        """Give every piece of the stream's response to `take`, as it comes."""
        _check(asked)
        remote = self.remote
        if remote is not None:
            for piece in remote.pieces(stream, asked):
                take(piece)
            return

        async def work(opened: Open) -> None:
            streamed = await stream.perform(opened.context, this_user(), asked)
            async with aclosing(streamed.pieces):
                async for piece in streamed.pieces:
                    take(piece)

        self.run(work, reads=True)

    def run(self, work: Callable[[Open], Awaitable[T]], *, reads: bool) -> T:
        """Do `work` with the store open, its failures told in one line each.

        `reads`: whether it only reads. A missing store or master key stays missing then.
        """

        if not self.has_store:
            raise CommandFailed(INVALID_INPUT, "Missing option '--config', or '--url'.")

        async def opened() -> T:
            async with self._open(reads=reads) as open_store:
                return await work(open_store)

        try:
            return asyncio.run(opened())
        except Exception as error:
            raise _describe(error) from None

    @asynccontextmanager
    async def _open(self, *, reads: bool) -> AsyncIterator[Open]:
        from controlplane.clock import SystemClock
        from controlplane.live_tail import LiveTail
        from controlplane.master_key import open_vault
        from controlplane.operations.context import OperationContext
        from controlplane.store.open_store import open_store

        settings, clock = self.settings, SystemClock()
        async with AsyncExitStack() as stack:
            where, key_file = settings.store, settings.secrets.key_file
            store = await open_store(where.path, where.url, clock, key_file, must_exist=reads)
            stack.push_async_callback(store.close)

            async def vault() -> Vault:
                return await open_vault(settings.secrets, store, reads=reads)

            async def index() -> SearchIndex:
                return await _filled_index(settings, store, stack)

            tail = LiveTail(store, poll_seconds=_POLL_SECONDS)
            context = OperationContext(settings, store, clock, vault, index, tail)
            yield Open(settings, store, context)


def _check(asked: Request) -> None:
    """As the admin API does; and a name, an id or a time without a letter is a variable that the shell has
    not set: to take it for left out would be another question than was meant."""
    from controlplane.operations.operation import validation_problem

    for member in msgspec.structs.fields(type(asked)):
        if member.encode_name in _NEVER_EMPTY and getattr(asked, member.name) == "":
            raise CommandFailed(INVALID_INPUT, f"{member.encode_name}: is empty")
    try:
        msgspec.convert(msgspec.to_builtins(asked), type(asked))
    except msgspec.ValidationError as error:
        raise CommandFailed(INVALID_INPUT, validation_problem(error, type(asked))) from None


def _describe(error: Exception) -> Exception:
    """How a command ends for it; a fault of our own is left as it is."""
    from controlplane.names import InvalidName
    from controlplane.operations.actor import Forbidden
    from controlplane.operations.operation import InvalidRequest
    from controlplane.search.interface import IndexUnavailableError
    from controlplane.secrets import MasterKeyError

    if isinstance(error, InvalidRequest):
        return CommandFailed(INVALID_INPUT, *error.problems)
    if isinstance(error, InvalidName):
        return CommandFailed(INVALID_INPUT, str(error))
    if isinstance(error, StoreError | MasterKeyError | IndexUnavailableError | Forbidden):
        return CommandFailed(FAILED, str(error))
    return error


async def _filled_index(settings: Settings, store: SqlStore, stack: AsyncExitStack) -> SearchIndex:
    """What was accepted is found, whether or not a server runs and however far its index writer is."""
    from controlplane.index_writer import IndexWriter
    from controlplane.search import open_index

    index = await open_index(settings.search_index, store, settings.store.path)
    stack.push_async_callback(index.close)
    await IndexWriter(store, index).drain()
    return index


def this_user() -> Actor:
    """Who runs this command, by the kernel's word and not the environment's."""
    import pwd

    from controlplane.operations.actor import local_actor

    uid = os.getuid()
    try:
        return local_actor(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return local_actor(str(uid))


def leave_standard_output() -> None:
    """It takes nothing any more: that the rest of what was printed can't be written is told once."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    write_json(msgspec.json.encode(value))


def write_json(text: bytes) -> None:
    """One line, byte for byte; but nothing that a proxy sent may drive an operator's terminal."""
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        text = escaped(text.decode()).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(text + b"\n")


def print_text(text: str) -> None:
    """As it stands; but on a terminal nothing of it, like a comment's, may hide or turn round a line."""
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        text = "\n".join(map(escaped, text.replace("\r\n", "\n").split("\n")))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_facts(facts: Mapping[str, Any] | msgspec.Struct, *, as_json: bool) -> None:
    """One thing: JSON, or a line for each of its facts."""
    if isinstance(facts, msgspec.Struct):
        facts = facts_of(facts)
    if as_json:
        print_json(facts)
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        sys.stdout.write(f"{name:{width}}  {_text(value)}\n")


def facts_of(response: msgspec.Struct) -> dict[str, Any]:
    """A response's members by the names that JSON has for them."""
    facts: dict[str, Any] = msgspec.to_builtins(response)
    return facts


def org_names(cli: Cli) -> dict[str, str]:
    """The names of the organisations that one may see, by id."""
    from controlplane.operations import orgs

    return {org.org_id: org.name for org in cli.call(orgs.list_all, orgs.ListOrgs()).orgs}


def with_org_names(cli: Cli, listed: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    """For a person: what organisation each is of by its name."""
    names = org_names(cli) if listed else {}
    return [_with_org_name(facts_of(each), names) for each in listed]


def _with_org_name(row: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    org_id = row.pop("orgId")
    return {"org": names.get(org_id, org_id), **row}


def print_list(
    name: str, listed: Sequence[Mapping[str, Any]] | Sequence[msgspec.Struct], *, as_json: bool
) -> None:
    """Many things: `{name: [...]}`, or a table."""
    rows = [facts_of(each) if isinstance(each, msgspec.Struct) else each for each in listed]
    if as_json:
        print_json({name: rows})
        return
    if not rows:
        sys.stdout.write(f"no {name}\n")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = sorted(rows[0], key=_place)
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(_text(row[column])) for column in columns))
    # A pipe has no width of its own; there no column is cut.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def _place(column: str) -> int:
    """A person looks for a name; ids are for copying."""
    return 0 if column == "name" else 2 if column.endswith("Id") else 1


def _text(value: Any, depth: int = 0) -> str:
    """Return a value as a person reads it, in one line."""
    from proxy.wire.log_line import one_line

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, int | float):
        return str(value)
    if not value:
        return "-"
    if isinstance(value, Mapping):
        parts = [f"{one_line(name)} {_text(each, depth + 1)}" for name, each in value.items()]
        return f"({', '.join(parts)})" if depth else ", ".join(parts)
    between = "; " if any(isinstance(each, Mapping) for each in value) else ", "
    return between.join(_text(each, depth + isinstance(each, Sequence)) for each in value)
