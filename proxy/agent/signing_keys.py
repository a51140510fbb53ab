"""Keys from the vault for proxy tokens: the key version that signs now, and the other accepted versions.

Every proxy of a fleet derives the same keys from the vault alone, no matter when the proxy started. A proxy
accepts a newer version of the signing key as soon as the proxy has read that version. The newer key version
signs only when every other proxy has had time to read it. The older key version is accepted until the last
token that it signed has expired.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from proxy.agent.vault import Maintenance
from proxy.ipc.channel import SigningKeys
from proxy.outbound.failures import unforeseen
from proxy.outbound.vault import SecretVersion, Vault, VaultError
from proxy.startup.signing_key import MIN_BYTES
from proxy.wire.models import Check

log = logging.getLogger(__name__)

_MAX_KEYS: Final = 5
_MAX_BYTES: Final = 1024
_TICK_SECONDS: Final = 1.0
# Looks of each other proxy, of which one may fail; the vault shows only whole seconds, so add
# _MARGIN_SECONDS.
_LOOKS_BEFORE_USE: Final = 3
_MARGIN_SECONDS: Final = 1.0


class SigningKeyKeeper:
    def __init__(
        self,
        vault: Vault,
        name: str,
        *,
        token_lifetime: float,
        interval: float,
        announce: Callable[[SigningKeys], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._vault = vault
        self._name = name
        self._token_lifetime = token_lifetime
        self._interval = interval
        self._announce = announce
        self._clock = clock
        self._versions: list[SecretVersion] = []
        self._values: dict[str, bytes] = {}
        self._unusable: dict[str, str] = {}  # reason by version
        self._announced: SigningKeys | None = None
        self._retry_after = 0.0
        self.maintenance = Maintenance("token signing key")
        self.what = f"secret {name} (token signing key)"

    @property
    def ends_at(self) -> float:
        return min((each.expires_at for each in self._in_force()[:1]), default=math.inf)

    def current(self) -> SigningKeys | None:
        """Return the signing keys for a worker; None before the agent has read the vault."""
        if not self._versions:
            return None
        held = [self._values.get(each.version) for each in self._in_force()]
        return SigningKeys(tuple(value for value in held if value is not None))

    def check(self) -> Check:
        keys = self._in_force()
        if keys and self.maintenance.problem is None and self._unusable:
            return Check("degraded", "; ".join(self._unusable.values()))
        if not keys and self._versions and self.maintenance.problem is None:
            return Check("failed", f"no version of secret {self._name} can be used as the token signing key")
        return self.maintenance.check(usable=bool(keys), until=self.ends_at)

    async def run(self) -> None:
        while True:
            await self.read()
            next_look = time.monotonic() + self.maintenance.pause(self._interval, self._retry_after)
            while (left := next_look - time.monotonic()) > 0:
                self._announce_changes()
                await asyncio.sleep(min(left, _TICK_SECONDS))

    async def read(self) -> None:
        try:
            versions = await self._vault.versions(self._name)
            values = await self._values_of(versions)
        except VaultError as error:
            self._not_read(str(error), error.retry_after)
            return
        except Exception as error:  # the rest of the agent continues
            self._not_read(unforeseen(error))
            return
        self._versions, self._values, self._retry_after = versions, values, 0.0
        self.maintenance.succeeded()
        self._announce_changes()

    def _not_read(self, why: str, retry_after: float = 0.0) -> None:
        self._retry_after = retry_after
        self.maintenance.failed(why)

    async def _values_of(self, versions: list[SecretVersion]) -> dict[str, bytes]:
        """Return the values of the active key versions.

        If a version of the secret in the vault can't be a key, the next usable version replaces it.
        """
        self._unusable = {
            each.version: self._unusable[each.version] for each in versions if each.version in self._unusable
        }
        values: dict[str, bytes] = {}
        while True:
            in_force = self._in_force(versions)
            missing = [each.version for each in in_force if each.version not in values]
            if not missing:
                return values
            version = missing[0]
            value = self._values.get(version)
            if value is None:
                value = _as_key((await self._vault.secret(self._name, version)).value)
            if not MIN_BYTES <= len(value) <= _MAX_BYTES:
                self._unusable[version] = (
                    f"version {version} of secret {self._name} can't be a signing key: "
                    f"it must be text of {MIN_BYTES} to {_MAX_BYTES} characters"
                )
                log.error("%s", self._unusable[version])
            values[version] = value

    def _in_force(self, versions: Iterable[SecretVersion] | None = None) -> list[SecretVersion]:
        return in_force(
            [
                each
                for each in (self._versions if versions is None else versions)
                if each.version not in self._unusable
            ],
            self._clock(),
            settle=_LOOKS_BEFORE_USE * self._interval + _MARGIN_SECONDS,
            token_lifetime=self._token_lifetime,
        )

    def _announce_changes(self) -> None:
        keys = self.current()
        if keys is None or keys == self._announced:
            return
        signing = self._in_force()[:1]
        if signing:
            log.info(
                "signing tokens with version %s of secret %s; tokens signed with any of %d versions"
                " are accepted",
                *(signing[0].version, self._name, len(keys.keys)),
            )
        else:
            log.error("no version of secret %s can be used as the token signing key", self._name)
        self._announced = keys
        self._announce(keys)


def _as_key(text: str) -> bytes:
    """Encode the text of a signing key as bytes.

    Return no bytes for a text with a lone surrogate, because such a text can't be a key.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def in_force(
    versions: Iterable[SecretVersion], now: float, *, settle: float, token_lifetime: float
) -> list[SecretVersion]:
    """Return the list of accepted key versions: first the version that signs, then the others, newest first.

    A key version signs tokens until the next version has existed for `settle` seconds. Proxies accept the
    tokens of the replaced version for a token's lifetime and another `settle` seconds, because some proxies
    read the next version late.
    """
    usable = sorted(
        (each for each in versions if each.enabled and now < each.expires_at),
        key=lambda each: (each.begins_at, each.version),
    )
    signing = max((at for at, each in enumerate(usable) if each.begins_at + settle <= now), default=0)
    others = [
        each
        for at, each in enumerate(usable)
        if at > signing
        or (at < signing and now < usable[at + 1].begins_at + settle + token_lifetime + settle)
    ]
    return [*usable[signing : signing + 1], *reversed(others)][:_MAX_KEYS]
