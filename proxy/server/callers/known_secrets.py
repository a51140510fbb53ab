"""Remember correct client secrets, so that argon2 runs once per secret and not at every token request."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.server.callers.rulebook import Caller

_MOST_SECRETS: Final = 10_000  # secrets that one worker remembers


class KnownSecrets:
    """Memory of correct client secrets, stored as keyed digests, so that argon2 need not check them again.

    The key never leaves this process.

    A remembered secret is accepted only while its hash is among the secret hashes of the application.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: BoundedMemo[bytes, str] = BoundedMemo(_MOST_SECRETS, None, WhenFull.CLEAR)

    def digest(self, client_id: str, secret: str) -> bytes:
        text = client_id.encode() + b"\0" + secret.encode()
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()

    def matching(self, digest: bytes, caller: Caller) -> str | None:
        """Return the stored hash that matched the client secret with this digest.

        Return None if the application `caller` no longer has this hash of a client secret.

        Return None if the secret is not remembered and must be compared with argon2.
        """
        found = self._known.entries.get(digest)
        return found if found is not None and found in caller.known_hashes else None

    def remember(self, digest: bytes, matching: str) -> None:
        self._known.keep(digest, matching)
