"""Context of every command: its settings and store, its output as JSON or text, and its exit status."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.cli.layouts import Fit, Layout
from controlplane.cli.next_steps import Typed
from controlplane.programs import MODULE
from controlplane.store.interface import NoStoreYet, StoreError

if TYPE_CHECKING:
    from controlplane.cli.moments import Clock
    from controlplane.cli.remote import Remote
    from controlplane.clock import Clock as StoreClock
    from controlplane.operations.actor import Actor
    from controlplane.operations.context import OperationContext
    from controlplane.operations.operation import Operation, Request, Response, Stream
    from controlplane.search.interface import SearchIndex
    from controlplane.secrets import Vault
    from controlplane.settings import Settings
    from controlplane.store.sql_store import SqlStore
    from proxy.outbound.egress import Egress

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
_POLL_SECONDS = 0.5  # seconds between two checks for events that a server on this host stores

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wide = Annotated[
    bool,
    typer.Option(
        "--wide", help="Show every column, including IDs, even if lines are longer than the terminal."
    ),
]
NoTrunc = Annotated[
    bool,
    typer.Option(
        "--no-trunc",
        help="Wrap long paths over several lines. By default, … replaces the middle of a long path.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation on a terminal.")]
OneOrg = Annotated[str, typer.Option("--org", metavar="ORG", help="Organisation, by ID or name.")]
AnyOrg = Annotated[
    str | None, typer.Option("--org", metavar="ORG", help="Only this organisation, by ID or name.")
]


@dataclass(frozen=True, slots=True)
class Open:
    """Settings, store and operation context that are open while a command runs."""

    settings: Settings
    store: SqlStore
    context: OperationContext


class Cli:
    """Context of every command (`ctx.obj`), which runs operations on the local store or at a server."""

    def __init__(
        self,
        config: Path | None,
        url: str | None = None,
        token_file: Path | None = None,
        typed: Typed = Typed(MODULE),  # noqa: B008
    ) -> None:
        self.typed = typed
        self._config = config
        self._url = url
        self._token_file = token_file
        self._empty_store: Path | None = None

    @property
    def has_store(self) -> bool:
        """Return True if the options name a store or a server in which to look up a ruleset."""
        return self._config is not None or self._url is not None

    @property
    def is_remote(self) -> bool:
        return self._url is not None

    @property
    def console_address(self) -> str:
        """Address of the console, or an empty text if neither settings nor options have an address."""
        return self._url or self.settings.console.public_base_url

    @property
    def config(self) -> Path:
        if self._url is not None:
            raise CommandFailed(INVALID_INPUT, "this command opens the store: give --config instead of --url")
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
    def egress(self) -> Egress:
        """Egress settings from the settings file or, without that file, from environment variables."""
        from proxy.config import SettingsError
        from proxy.outbound.settings import egress_of, egress_of_variables

        if self._config is not None:
            return egress_of(self.settings.egress)
        try:
            return egress_of_variables(os.environ)
        except SettingsError as error:
            raise CommandFailed(INVALID_INPUT, *error.problems) from None

    @property
    def remote(self) -> Remote | None:
        if self._url is None:
            return None
        if self._token_file is None:
            raise CommandFailed(INVALID_INPUT, "Missing option '--token-file'.")
        from controlplane.cli.remote import Remote

        return Remote(self._url, self._token_file, self.egress)

    @contextmanager
    def missing_store_as_empty(self) -> Iterator[None]:
        """If the store does not exist yet, let read-only commands work on an empty temporary store.

        After the command, the empty temporary store is removed.
        """
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(prefix="graphward-") as directory:
            self._empty_store = Path(directory) / "empty.db"
            try:
                yield
            finally:
                self._empty_store = None

    def call(self, operation: Operation[Q, A], asked: Q) -> A:
        """Run an operation on the store or at a running server.

        Report each failure of the operation on one line.
        """
        from controlplane.operations.perform import perform

        _check(asked)
        remote = self.remote
        if remote is not None:
            return remote.call(operation, asked)
        return self.run(
            lambda opened: perform(operation, opened.context, this_user(), asked), reads=not operation.changes
        )

    def stream(
        self, stream: Stream[Q], asked: Q, take: Callable[[bytes], None], seconds: float | None = None
    ) -> None:
        """Pass each piece of a response to `take` when the piece arrives.

        `seconds` is the longest wait for a byte from a server, or None for the default.
        """
        _check(asked)
        remote = self.remote
        if remote is not None:
            for piece in remote.pieces(stream, asked, seconds):
                take(piece)
            return

        async def work(opened: Open) -> None:
            streamed = await stream.perform(opened.context, this_user(), asked)
            async with aclosing(streamed.pieces):
                async for piece in streamed.pieces:
                    take(piece)

        self.run(work, reads=True)

    def run(self, work: Callable[[Open], Awaitable[T]], *, reads: bool) -> T:
        """Open the store, and run the function `work` with the open store.

        Report each failure of `work` on one line.

        If `reads` is true, the function `work` only reads, so a missing store or master key is not created.
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
        from proxy.outbound.settings import egress_of

        settings, clock = self.settings, SystemClock()
        async with AsyncExitStack() as stack:
            store = await self._open_store(clock, reads=reads)
            stack.push_async_callback(store.close)

            async def vault() -> Vault:
                return await open_vault(settings.secrets, store, egress_of(settings.egress), reads=reads)

            async def index() -> SearchIndex:
                return await _filled_index(settings, store, stack)

            tail = LiveTail(store, poll_seconds=_POLL_SECONDS)
            context = OperationContext(settings, store, clock, vault, index, tail)
            yield Open(settings, store, context)

    async def _open_store(self, clock: StoreClock, *, reads: bool) -> SqlStore:
        from controlplane.store.open_store import open_store

        where, key_file = self.settings.store, self.settings.secrets.key_file
        try:
            return await open_store(where.path, where.url, clock, key_file, must_exist=reads)
        except NoStoreYet as missing:
            empty = self._empty_store
            if empty is None:
                raise
            if not empty.exists():
                said = "the plan assumes an empty store; applying the plan makes the store"
                typer.echo(f"{missing.store}: there is no store yet: {said}", err=True)
            return await open_store(empty, "", clock, None)


def _check(asked: Request) -> None:
    """Validate the members of a request in the same way as the admin API.

    Refuse an empty name, ID or time in the request. An empty value usually comes from a shell variable
    without a value. If the command ignored an empty value, the request would have a different effect.
    """
    from controlplane.operations.operation import validation_problem

    for member in msgspec.structs.fields(type(asked)):
        if member.encode_name in _NEVER_EMPTY and getattr(asked, member.name) == "":
            raise CommandFailed(INVALID_INPUT, f"{member.encode_name}: is empty")
    try:
        msgspec.convert(msgspec.to_builtins(asked), type(asked))
    except msgspec.ValidationError as error:
        raise CommandFailed(INVALID_INPUT, validation_problem(error, type(asked))) from None


def _describe(error: Exception) -> Exception:
    """Return the CommandFailed for an error, or None if the error is a bug in the program."""
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
    """Return the search index after all accepted events were added to the index.

    This function adds the events to the index, because no server may be running, or its index writer may be
    behind.
    """
    from controlplane.index_writer import IndexWriter
    from controlplane.search import open_index

    index = await open_index(settings.search_index, store, settings.store.path)
    stack.push_async_callback(index.close)
    await IndexWriter(store, index).drain()
    return index


def this_user() -> Actor:
    """Return the name of the user who runs this command, from the kernel instead of the environment."""
    import pwd

    from controlplane.operations.actor import local_actor

    uid = os.getuid()
    try:
        return local_actor(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return local_actor(str(uid))


def leave_standard_output() -> None:
    """Discard further output, so that a failure to write output is reported only once."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    write_json(msgspec.json.encode(value))


def write_json(text: bytes) -> None:
    """Print one line of JSON with exactly the given bytes.

    On a terminal, escape unsafe characters in text that a proxy sent.
    """
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        text = escaped(text.decode()).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(text + b"\n")


def print_text(text: str) -> None:
    """Print a text without escapes and without other changes of its characters.

    On a terminal, escape characters that could hide or reverse a part of the line.
    """
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        text = "\n".join(map(escaped, text.replace("\r\n", "\n").split("\n")))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_facts(facts: Mapping[str, Any] | msgspec.Struct, *, as_json: bool) -> None:
    """Print one object as JSON, or as text with a line or a block for each fact."""
    if isinstance(facts, msgspec.Struct):
        facts = facts_of(facts)
    if as_json:
        print_json(facts)
        return
    from controlplane.cli.facts import fact_lines

    sys.stdout.writelines(f"{line}\n" for line in fact_lines(facts, clock()))


def print_next(lines: Iterable[str]) -> None:
    """Print the next steps for the operator, below the facts about a new object."""
    print_text("\n" + "\n".join(lines))


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal for consent before a step with consequences.

    Raise CommandFailed if the operator does not answer yes.
    """
    if yes or not sys.stdin.isatty():
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed(FAILED, "nothing was changed")


def confirm_loss(question: str, *, to: str) -> None:
    """Ask for consent before data is lost permanently. Raise CommandFailed unless the operator answers yes.

    Without a terminal, the option `--yes` is required. `to` describes the action in the error message about
    the missing option `--yes`.
    """
    if not sys.stdin.isatty():
        raise CommandFailed(INVALID_INPUT, f"--yes: required to {to} without a terminal")
    confirm(question, yes=False)


def facts_of(response: msgspec.Struct) -> dict[str, Any]:
    """Return the members of a response by their JSON names."""
    facts: dict[str, Any] = msgspec.to_builtins(response)
    return facts


def org_names(cli: Cli) -> dict[str, str]:
    """Return a mapping from the ID to the name of each organisation that the operator may see."""
    from controlplane.operations import orgs

    return {org.org_id: org.name for org in cli.call(orgs.list_all, orgs.ListOrgs()).orgs}


def names_with_deleted(cli: Cli) -> dict[str, str]:
    """Return the names of organisations by ID, with labels for deleted organisations."""
    from controlplane.operations import deletions

    found = cli.call(deletions.list_all, deletions.ListDeletions()).deletions
    return {each.id: each.label for each in found if each.kind == "org"} | org_names(cli)


def with_org_names(
    cli: Cli, listed: Sequence[msgspec.Struct], names_of: Callable[[Cli], dict[str, str]] = org_names
) -> list[dict[str, Any]]:
    """Replace the IDs of organisations in a list by names, for output to a person."""
    names = names_of(cli) if listed else {}
    return [_with_org_name(facts_of(each), names) for each in listed]


def _with_org_name(row: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    org_id = row.pop("orgId")
    return {"org": names.get(org_id, org_id), **row}


def print_list(
    layout: Layout,
    listed: Sequence[Mapping[str, Any]] | Sequence[msgspec.Struct],
    *,
    as_json: bool,
    fit: Fit = Fit.TERMINAL,
) -> None:
    """Print a list as a table, or as a JSON object whose only member is the list."""
    rows = [facts_of(each) if isinstance(each, msgspec.Struct) else each for each in listed]
    if as_json:
        print_json({layout.rows: rows})
        return
    if not rows:
        sys.stdout.write(f"no {layout.rows}\n")
        return
    from controlplane.cli.tables import View, print_table

    print_table(layout, rows, View(terminal_width(), fit, clock()))


def terminal_width() -> int | None:
    """Return the width of the terminal in characters, or None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def clock() -> Clock:
    """Return the clock that formats times in the operator's time zone.

    Raise CommandFailed if the environment variable names an unknown time zone.
    """
    from controlplane.cli.moments import UnknownZone, clock_of

    try:
        return clock_of(os.environ, datetime.now(UTC))
    except UnknownZone as error:
        raise CommandFailed(INVALID_INPUT, str(error)) from None
