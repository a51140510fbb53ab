"""IDs and names of the objects that an operator creates."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection
from hashlib import sha256
from typing import Final

from controlplane.clock import Clock
from proxy.policy.visible import escaped, looks_like, named, unseen_in
from proxy.wire.audit_event import uuid7

_LONGEST_NAME: Final = 200  # characters


class InvalidName(ValueError):
    """Error for a name that is not allowed. The text of the InvalidName error is one line for a person."""


def new_id(clock: Clock) -> str:
    """Return a UUID of version 7, so that IDs sort by the time of their creation."""
    return uuid7(clock.wall_ms(), secrets.randbits(74))


def new_credential_id() -> str:
    """Return the ID of a new credential of an app."""
    return f"crd-{secrets.token_hex(6)}"


def secret_id(app_id: str, version: int) -> str:
    """Return the credential ID of a client secret. The store keeps no ID for client secrets."""
    return f"crd-{sha256(f'{app_id}/{version}'.encode()).hexdigest()[:12]}"


def valid_name(name: str) -> str:
    """Check a name, and return the name unchanged.

    Raise InvalidName if the name is not valid, for example because it looks like an ID.
    """
    unseen = unseen_in(name)
    if unseen is not None:
        raise InvalidName(f"a name must not contain the invisible character {named(unseen)}: {escaped(name)}")
    if not name or len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidName(
            f"a name must have 1 to {_LONGEST_NAME} printable characters, without leading or trailing "
            f"spaces: {name!r}"
        )
    if _is_id(name):
        raise InvalidName(f"a name must not look like an id: {name}")
    if name in (".", ".."):  # Clients would not send it as a segment of a path.
        raise InvalidName(f"a name must not be {name}")
    return name


def new_name(name: str, taken: Collection[str]) -> str:
    """Check the name of a new object, and return the name unchanged.

    Raise InvalidName if a person could confuse the new name with the name of an existing object.

    The store itself refuses a name that another object has, because the store compares names within the
    transaction.
    """
    valid_name(name)
    if name not in taken and looks_like(name) in map(looks_like, taken):
        raise InvalidName(
            f"{name} differs from an existing name only by letters of another case or alphabet:"
            " choose a name that differs more"
        )
    return name


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
