"""What every command shares: its settings and store, its two kinds of output, its exit status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from controlplane.store.interface import StoreError

if TYPE_CHECKING:
    from controlplane.registry import Registry
    from controlplane.secrets import Vault
    from controlplane.settings import Settings
    from controlplane.store.sqlite import SqliteStore

T = TypeVar("T")

FAILED = 1
INVALID_INPUT = 2

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OneOrg = Annotated[str, typer.Option("--org", metavar="ORG", help="The organisation, by id or name.")]
AnyOrg = Annotated[
    str | None, typer.Option("--org", metavar="ORG", help="Only in this organisation, by id or name.")
]


class CommandFailed(Exception):
    """Ends the command with these lines on standard error and this exit status."""

    def __init__(self, status: int, *lines: str) -> None:
        super().__init__(*lines)
        self.status = status
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Open:
    """The store while a command runs."""

    settings: Settings
    store: SqliteStore
    registry: Registry

    async def vault(self) -> Vault:
        from controlplane.registry import open_vault

        return await open_vault(self.settings.secrets, self.store)


class Cli:
    """`ctx.obj` of every command."""

    def __init__(self, config: Path | None) -> None:
        self._config = config

    @property
    def has_settings(self) -> bool:
        return self._config is not None

    @property
    def config(self) -> Path:
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

    def run(self, work: Callable[[Open], Awaitable[T]]) -> T:
        """Do `work` with the store open, its failures told in one line each."""
        from controlplane.registry import InvalidName
        from controlplane.secrets import MasterKeyError

        async def opened() -> T:
            async with self._open() as open_store:
                return await work(open_store)

        try:
            return asyncio.run(opened())
        except InvalidName as error:
            raise CommandFailed(INVALID_INPUT, str(error)) from None
        except (StoreError, MasterKeyError) as error:
            raise CommandFailed(FAILED, str(error)) from None

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Open]:
        from controlplane.clock import SystemClock
        from controlplane.registry import Registry
        from controlplane.store.sqlite import SqliteStore

        clock = SystemClock()
        store = await SqliteStore.open(self.settings.store.path, clock)
        try:
            yield Open(self.settings, store, Registry(store, clock))
        finally:
            await store.close()


def print_json(value: object) -> None:
    write_json(msgspec.json.encode(value))


def write_json(text: bytes) -> None:
    """One line, byte for byte; but nothing that a proxy sent may drive an operator's terminal."""
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        text = escaped(text.decode()).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(text + b"\n")


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: JSON, or a line for each of its facts."""
    if as_json:
        print_json(facts)
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        sys.stdout.write(f"{name:{width}}  {_text(value)}\n")


def print_list(name: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Many things: `{name: [...]}`, or a table."""
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

    table = Table(*rows[0], box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    # A pipe has no width of its own; there no column is cut.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def _text(value: Any) -> str:
    from proxy.wire.log_line import one_line

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return ", ".join(one_line(item) for item in value) or "-"
    return (
        value.__str__() if isinstance(value, int | float) else one_line(msgspec.json.encode(value).decode())
    )
