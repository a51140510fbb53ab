"""Text form of the positions from which a page or a stream of audit events continues."""

from __future__ import annotations

import base64

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.secrets import MasterKeyError, Vault


class Places:
    """Text form of the positions from which a page or a stream of audit events continues.

    A position is a number that counts the audit events of all organisations together. If an actor may not
    look at all organisations, the actor gets each position in encrypted form.
    """

    def __init__(self, purpose: str, vault: Vault | None) -> None:
        self._purpose = purpose
        self._vault = vault

    @classmethod
    async def of(cls, context: OperationContext, actor: Actor, purpose: str) -> Places:
        return cls(purpose, None if actor.may("viewer", None) else await context.vault())

    def write(self, place: str) -> str:
        if self._vault is None:
            return place
        return base64.urlsafe_b64encode(self._vault.seal(self._purpose, place)).decode()

    def read(self, text: str) -> str:
        """Return the event position that a text encodes.

        Raise ValueError if the text encodes no position.
        """
        if self._vault is None:
            return text
        sealed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        try:
            return self._vault.open(self._purpose, sealed)
        except MasterKeyError as error:
            raise ValueError(text) from error

    def line(self, position: int) -> bytes:
        return b"id: %b\n\n" % self.write(str(position)).encode()

    def position(self, text: str) -> int:
        try:
            place = self.read(text)
        except ValueError:
            place = ""
        if place.isascii() and place.isdigit() and len(place) < 20:
            return int(place)
        raise InvalidRequest("after: is not a position in the events of this control plane")
