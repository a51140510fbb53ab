"""Issuers' public keys for federated credentials: discovered, refreshed ahead of time, stored on disk."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from proxy.agent.lasting import LastingProblem
from proxy.agent.pinned_issuers import Pinned, issuers_of, pinned_issuers, share
from proxy.config import Address
from proxy.ipc.channel import IssuerKeys
from proxy.outbound.call import CallFailed, call
from proxy.outbound.failures import unforeseen
from proxy.outbound.retry import backoff, jittered
from proxy.rules.snapshot import App, Snapshot, write_by_rename
from proxy.wire.models import MOST_ISSUERS_OF_ORG, Check

log = logging.getLogger(__name__)

ASKED_SECONDS: Final = 30.0  # least seconds between two readings of one issuer because a key is unknown
AT_ONCE: Final = 4  # readings under way of one organisation's issuers
MAX_DOCUMENT: Final = 256 * 1024  # bytes of a discovery document, and of a JWKS
MAX_KEYS_BYTES: Final = 48 * 1024  # bytes of all keys of one issuer in a message to a worker
_MOST_KEYS: Final = 100
_MOST_NAMED: Final = 5  # issuers of one organisation that the check names for each kind of problem
_LONGEST_BACKOFF: Final = 60.0
_CLOCK_LEEWAY_SECONDS: Final = 60.0
_NOT_READ: Final = "they have not been read yet"
_AGE_UNKNOWN: Final = "they are too old, or the clock was set"
_LIMITS: Final = aiohttp.ClientTimeout(total=15.0, sock_connect=5.0)
_MEMBERS: Final = frozenset(("kty", "kid", "use", "key_ops", "alg", "n", "e", "crv", "x", "y"))


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


class _Read(msgspec.Struct, frozen=True):
    """Keys of one issuer, in the form in which they are stored on disk."""

    keys: str  # JSON text of a JWKS
    read_at: float  # Unix seconds


class KeysNotRead(Exception):
    """Error because the keys of an issuer could not be read. The text of the exception gives the reason."""


class OtherIssuer(KeysNotRead):
    """Error because the document at an issuer's address names a different issuer."""


T = TypeVar("T", bound=msgspec.Struct)

_file_decoder = msgspec.json.Decoder(dict[str, _Read])


async def read_keys(session: aiohttp.ClientSession, issuer: str) -> str:
    """Return the JWKS that an issuer publishes. Raise KeysNotRead if the JWKS can't be read."""
    place = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    document = await _document(session, place, _Discovery)
    if document.issuer != issuer:
        raise OtherIssuer(f"{place} is the discovery document of another issuer: {document.issuer[:200]!r}")
    if not _is_protected(document.jwks_uri, issuer):
        raise KeysNotRead(f"{place} has a jwks_uri that is not https: {document.jwks_uri[:200]!r}")
    listed = (await _document(session, document.jwks_uri, _Jwks)).keys[:_MOST_KEYS]
    keys = [{name: key[name] for name in key if name in _MEMBERS} for key in listed if "d" not in key]
    text = json.dumps({"keys": keys})
    if len(text) > MAX_KEYS_BYTES:
        raise KeysNotRead(f"{document.jwks_uri} has more than {MAX_KEYS_BYTES} bytes of keys")
    return text


async def _document(session: aiohttp.ClientSession, url: str, kind: type[T]) -> T:
    if not _is_protected(url, url):
        raise KeysNotRead(f"{url} is not an https:// address")
    try:
        status, _, body = await call(session, "GET", url, b"", {}, max_bytes=MAX_DOCUMENT, limits=_LIMITS)
    except CallFailed as error:
        raise KeysNotRead(f"{url}: {error}") from None
    if status != 200:
        raise KeysNotRead(f"{url} responded with {status}")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KeysNotRead(f"{url}: {error}") from None


def _is_protected(url: str, issuer: str) -> bool:
    """Return True if the URL has the scheme https.

    An issuer on the proxy's own host may publish its keys there without TLS.
    """
    try:
        return urlsplit(url).scheme == "https" or (_is_local(url) and _is_local(issuer))
    except ValueError:  # the text is not a URL
        return False


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and Address(parts.hostname or "", 80).is_loopback


@dataclass(slots=True)
class _Issuer:
    """One issuer, whose keys the agent fetches again at intervals."""

    pinned: Pinned
    payer: str  # the organisation whose limit the issuer counts towards
    problem: LastingProblem = field(default_factory=lambda: LastingProblem(log))
    failures: int = 0  # since the keys were last read
    tried_at: float = -ASKED_SECONDS  # monotonic seconds
    is_asked_for: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Issuers:
    """Reader of the public keys of issuers.

    The reader calls `announce` with the keys of one issuer, for every worker.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        path: Path,
        *,
        refresh: float,
        max_age: float,
        announce: Callable[[IssuerKeys], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._path = path
        self._refresh = refresh
        self._max_age = max_age
        self._announce = announce
        self._clock = clock
        self._read = _kept(path)
        self._pinned: dict[str, _Issuer] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}  # one semaphore for each organisation
        self._left_out: Mapping[str, Sequence[Pinned]] = {}
        self._apps: Sequence[App] = ()  # applications that are enabled

    def use(self, snapshot: Snapshot) -> None:
        """Read the keys of the issuers that the snapshot names, and of no other issuers."""
        self._apps = [app for app in snapshot.apps if app.enabled]
        chosen = share(pinned_issuers(self._apps), self._pinned.keys() | self._read.keys())
        self._turns = {
            org_id: self._turns.get(org_id) or asyncio.Semaphore(AT_ONCE)
            for org_id in set(chosen.payer.values())
        }
        if chosen.left_out.keys() - self._left_out.keys():
            log.error("%s", "; ".join(_left_out(chosen.left_out)))
        self._left_out = chosen.left_out
        for issuer in self._pinned.keys() - chosen.read.keys():
            task = self._pinned.pop(issuer).task
            if task is not None:
                task.cancel()
        for issuer, pinned in chosen.read.items():
            payer = chosen.payer[issuer]
            if issuer in self._pinned:
                self._pinned[issuer].pinned, self._pinned[issuer].payer = pinned, payer
            else:
                self._pinned[issuer] = held = _Issuer(pinned, payer)
                held.task = asyncio.create_task(self._keep_reading(issuer, held), name=f"keys of {issuer}")

    def current(self) -> list[IssuerKeys]:
        """Return the issuer keys that a new worker needs."""
        return [self._message(issuer) for issuer in self._pinned if issuer in self._read]

    def asked_for(self, issuer: str) -> None:
        """Read the issuer's keys again, because an assertion names a key that was not found."""
        held = self._pinned.get(issuer)
        if held is not None:
            held.is_asked_for.set()

    def check(self) -> Check | None:
        """Return the health check of all issuers; None if no credential names an issuer.

        The health check of the issuers fails if no application can authenticate. If only some applications
        can authenticate, the health check of the issuers is degraded.
        """
        if not self._pinned:
            return None
        now = self._clock()
        missing: dict[str, list[str]] = {}
        late: dict[str, list[str]] = {}
        for issuer, held in self._pinned.items():
            until = self._good_until(issuer)
            if until <= now:
                why = held.problem.text or (_AGE_UNKNOWN if issuer in self._read else _NOT_READ)
                missing.setdefault(held.payer, []).append(f"no keys of {held.pinned.described}: {why}")
            elif held.problem.text is not None:
                still = f"the last keys of {held.pinned.described} expire in {(until - now) / 3600:.1f} h"
                late.setdefault(held.payer, []).append(f"{still}: {held.problem.text}")
        kinds = missing, late
        named = [text for kind in kinds for of_org in kind.values() for text in _some(of_org)]
        text = "; ".join([*_left_out(self._left_out), *named])
        if missing and not any(self._may_get_in(app, now) for app in self._apps):
            return Check("failed", text)
        return Check("degraded" if text else "ok", text)

    def _may_get_in(self, app: App, now: float) -> bool:
        """Return True if the application has a secret or a credential whose keys are known."""
        if app.secret_hashes or app.credentials is None:
            return True
        issuers = issuers_of(app)
        return any(getattr(each, "issuer", None) not in issuers for each in app.credentials) or any(
            self._good_until(issuer) > now for issuer in issuers
        )

    async def close(self) -> None:
        """Cancel all running requests for the keys of issuers."""
        tasks = [each.task for each in self._pinned.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_reading(self, issuer: str, held: _Issuer) -> None:
        if issuer in self._read:
            self._announce(self._message(issuer))
        while True:
            async with self._turns[held.payer]:
                held.is_asked_for.clear()
                held.tried_at = time.monotonic()
                await self._try_to_read(issuer, held)
            await self._until_due(held)

    async def _try_to_read(self, issuer: str, held: _Issuer) -> None:
        try:
            keys = await read_keys(self._session, issuer)
        except KeysNotRead as error:
            self._not_read(issuer, held, str(error))
            return
        except Exception as error:  # a fault costs only this issuer; the others continue
            self._not_read(issuer, held, unforeseen(error))
            return
        if held.problem.over() or issuer not in self._read:
            log.info("fetched the public keys of token issuer %s", issuer)
        held.failures = 0
        self._read[issuer] = _Read(keys, self._clock())
        self._announce(self._message(issuer))
        await self._keep()

    @staticmethod
    def _not_read(issuer: str, held: _Issuer, why: str) -> None:
        held.failures += 1
        held.problem.met(why, "the keys of issuer %s were not read: %s", issuer, why)

    async def _until_due(self, held: _Issuer) -> None:
        pause = jittered(self._refresh, 0.9)
        if held.failures:
            pause = min(pause, backoff(held.failures - 1, _LONGEST_BACKOFF))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(held.is_asked_for.wait(), pause)
            await asyncio.sleep(held.tried_at + min(ASKED_SECONDS, self._refresh) - time.monotonic())

    async def _keep(self) -> None:
        kept = {issuer: self._read[issuer] for issuer in self._pinned if issuer in self._read}
        try:
            await asyncio.to_thread(write_by_rename, self._path, msgspec.json.encode(kept))
        except OSError as error:
            log.error("%s: cannot store the keys of issuers for the next start: %s", self._path, error)

    def _message(self, issuer: str) -> IssuerKeys:
        return IssuerKeys(issuer, self._read[issuer].keys, self._good_until(issuer))

    def _good_until(self, issuer: str) -> float:
        """Return the time after which the stored keys of the issuer are too old to use.

        If the keys were stored at a time in the future, return 0, because their age is unknown.
        """
        read = self._read.get(issuer)
        if read is None or read.read_at > self._clock() + _CLOCK_LEEWAY_SECONDS:
            return 0.0
        return read.read_at + self._max_age


def _left_out(left_out: Mapping[str, Sequence[Pinned]]) -> list[str]:
    return [
        f"organisation {org_id} names more than {MOST_ISSUERS_OF_ORG} issuers; not reading the keys of: "
        + ", ".join(_some([each.described for each in rest]))
        for org_id, rest in left_out.items()
    ]


def _some(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _MOST_NAMED
    return [*texts[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]


def issuer_keys_file(retention: Path) -> Path:
    return retention / "issuer-keys.json"


def _kept(path: Path) -> dict[str, _Read]:
    try:
        return _file_decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.error("cannot use the stored issuer keys in %s: %s", path, error)
        return {}
