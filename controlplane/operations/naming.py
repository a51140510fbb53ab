"""Add an object to the store under a name that resembles no other object's name.

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
    """Add an object to the store in one transaction.

    Raise InvalidName if the name of the new object looks like the name of another object.
    """

    async def work(within: Store) -> T:
        new_name(name, [each.name for each in await others(within)])
        return await add(within)

    return await store.together(work)
