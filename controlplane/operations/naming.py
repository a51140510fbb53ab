"""Add a thing to the store under a name that resembles the name of no other thing.

The transaction that adds an object to the store also checks the object's name.
"""

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
    """Add a thing to the store in one transaction.

    Raise InvalidName if the name of the new thing looks like the name of another thing.
    """

    async def work(within: Store) -> T:
        new_name(name, [each.name for each in await others(within)])
        return await add(within)

    return await store.together(work)
