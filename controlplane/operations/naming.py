"""Add a thing under a name that looks like no other one, checked in the transaction that adds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from controlplane.names import new_name
from controlplane.store.interface import Store


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T")


async def add_named(
    store: Store,
    name: str,
    others: Callable[[Store], Awaitable[Iterable[Named]]],
    add: Callable[[Store], Awaitable[T]],
) -> T:
    """Add a thing beside the others. Raise InvalidName if its name looks like that of one of them."""

    async def work(within: Store) -> T:
        new_name(name, [each.name for each in await others(within)])
        return await add(within)

    return await store.together(work)
