"""Enrolment of a proxy with a token.

The agent stores the proxy's identity in a file, and renews the proxy's keys when the renewal is due.

Every signed call takes the current keys from `present`. Each state of the enrolment is on disk before
anything depends on it (`startup/identity_file.py`), so a killed proxy can continue from that state. A proxy
that has API keys never enrols again by itself, because a new enrolment would undo a revocation.
"""

import asyncio
import logging
import os
import random
import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from proxy import __version__
from proxy.agent import cures
from proxy.agent.control_plane import ControlPlane, Identity, Response
from proxy.agent.lasting import LastingProblem
from proxy.agent.proof import description
from proxy.outbound.call import CallFailed, call
from proxy.outbound.retry import backoff, jittered, retry_after, sleep_until_set
from proxy.policy.json_text import readable
from proxy.startup.identity_file import (
    Enrolled,
    Enrolling,
    IdentityState,
    IdentityUnusable,
    Keys,
    Proving,
    Renewing,
    earlier_of,
    keys_of,
    lock_identity,
    read_identity,
    write_identity,
)
from proxy.wire.models import ENROL_PATH, SYNC_PATH, Check, EnrolRequest, EnrolResponse, RenewRequest
from proxy.wire.signing import MAX_SKEW_SECONDS

log = logging.getLogger(__name__)

_LONGEST_BACKOFF: Final = 60.0
_REFUSED_WAIT: Final = 300.0  # seconds between two attempts after a refusal that only an operator can end
_LOCK_WAIT: Final = 5.0  # seconds between two attempts to lock the file while another process uses it
_LONGEST_LOOK: Final = 3600.0  # seconds after which the time of renewal is compared with the clock again
_MOST_JITTER: Final = 300.0  # most seconds between the renewals of two proxies of a fleet
_MAX_SYNC: Final = 64 * 1024 * 1024
_LONGEST_NAME: Final = 63  # characters; the control plane adds a suffix to a name that is taken

_OTHER_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")  # characters that a name must not have
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NO_ENDPOINT: Final = "check that RuleSync.SaasBaseUrl is a control plane whose release can enrol proxies"

_decode_response: Final = msgspec.json.Decoder(EnrolResponse).decode


class _Refused(Exception):
    """Error because the control plane refuses the enrolment request.

    `wait` is the number of seconds before the proxy tries to enrol again.
    """

    def __init__(self, text: str, wait: float) -> None:
        super().__init__(text)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class EnrolmentOptions:
    base_url: str  # address of the control plane
    path: Path  # path from Agent.IdentityPath
    token: str  # empty if no token is given


class Enrolment:
    def __init__(
        self,
        options: EnrolmentOptions,
        session: aiohttp.ClientSession,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._session = session
        self._clock = clock
        self._url = options.base_url + ENROL_PATH
        self._failures = 0
        self._asked_wait = 0.0  # seconds, after a refusal
        self._trouble = LastingProblem(log)
        self._why_unusable: str | None = None
        self._lock: int | None = None  # file descriptor; None if another process may use the file
        # True if a call with the current keys was refused after they were last tested.
        self._is_refused = False
        self._rotate_at: str | None = None  # the latest `rotateAt` of a sync
        self._etag: str | None = (
            None  # ETag of the active rules, so that the test of new keys does not transfer rules
        )
        self._changed = asyncio.Event()
        self._jitter = random.random()  # noqa: S311 - not a secret
        self.is_enrolled = asyncio.Event()
        self._state = self._restored()

    def present(self) -> Identity:
        """Return the keys that sign the proxy's next call.

        Raise CallFailed if the proxy is not enrolled, and so has no keys.
        """
        keys = keys_of(self._state)
        if keys is None:
            raise CallFailed(f"this proxy is not enrolled: {self._why_not()}")
        return self._identity(keys)

    @property
    def proxy_id(self) -> str | None:
        keys = keys_of(self._state)
        return None if keys is None else keys.proxy_id

    def check(self) -> Check:
        if keys_of(self._state) is None:
            return Check("failed", f"this proxy is not enrolled: {self._why_not()}")
        return Check("ok") if self._trouble.text is None else Check("degraded", self._trouble.text)

    def report_sync(self, etag: str | None, rotate_at: str | None) -> None:
        """Store the ETag of a confirmed sync, and the time at which the keys are to be renewed."""
        self._etag = etag
        if rotate_at != self._rotate_at:
            self._rotate_at = rotate_at
            self._changed.set()

    def report_refusal(self, identity: Identity) -> None:
        """Handle the control plane's refusal of an identity, so that the previous pair of keys is tried next.

        A revoked proxy gains nothing from a try with its previous keys, because the control plane refuses all
        its key pairs.
        """
        keys = keys_of(self._state)
        if keys is None or keys.api_key != identity.api_key or self._is_refused:
            return
        if earlier_of(self._state) is not None and not isinstance(self._state, Proving):
            self._is_refused = True
            self._changed.set()

    def close(self) -> None:
        """Release the lock of the identity file, so that another process can use the identity file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def run(self) -> None:
        """Enrol the proxy, then renew the proxy's keys when a renewal is due, until the task is cancelled."""
        while True:
            await self.once()
            await sleep_until_set(self._changed, self._pause())

    async def once(self) -> bool:
        """Take the next step of the enrolment if a step is due.

        Return True if the enrolment has no problem.
        """
        self._changed.clear()
        self._asked_wait = 0.0
        try:
            await self._step()
        except (_Refused, CallFailed, OSError) as error:
            self._note_failure(error)
        return self._trouble.text is None

    def _restored(self) -> IdentityState | None:
        try:
            if self._lock is None:
                self._lock = lock_identity(self._options.path)
            state = read_identity(self._options.path)
        except IdentityUnusable as error:
            if str(error) != self._why_unusable:
                log.error("this proxy has no identity: %s", error)
            self._why_unusable = str(error)
            return None
        self._why_unusable = None
        if keys_of(state) is not None:
            self.is_enrolled.set()
        return state

    def _why_not(self) -> str:
        return self._why_unusable or self._trouble.text or "the control plane has not responded yet"

    def _identity(self, keys: Keys) -> Identity:
        return Identity(keys.api_key, keys.hmac_secret.encode(), str(self._options.path))

    def _pause(self) -> float:
        """Return the seconds until the next step of the enrolment."""
        if self._lock is None:
            return _LOCK_WAIT
        if self._why_unusable is not None:
            return _LONGEST_LOOK
        if self._failures:
            return self._asked_wait or backoff(self._failures - 1, _LONGEST_BACKOFF)
        if isinstance(self._state, Enrolled):
            due = self._due(self._state.keys)
            return _LONGEST_LOOK if due is None else min(max(0.0, due - self._clock()), _LONGEST_LOOK)
        return 0.0

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._asked_wait = jittered(error.wait, 0.9) if isinstance(error, _Refused) else 0.0
        doing = (
            "not enrolled"
            if keys_of(self._state) is None
            else "keys not renewed, the current ones stay in use"
        )
        if isinstance(error, CallFailed):
            cure = cures.of_control_plane(self._url, error)
        else:
            cure = cures.OF_IDENTITY_FILE if isinstance(error, OSError) else ""
        text = cures.joined(str(error), cure)
        self._trouble.met(text, "%s: %s (%s)", doing, text, cures.DOCTOR)

    async def _step(self) -> None:
        match self._state:
            case None if self._lock is None:
                self._state = self._restored()
            case None if self._why_unusable is not None:
                return
            case None:
                await self._keep(Enrolling(str(uuid.uuid4())))
            case Enrolling(enrolment_id):
                await self._enrol(enrolment_id)
            case Enrolled(keys, Keys() as earlier) | Renewing(keys, _, Keys() as earlier) if self._is_refused:
                await self._fall_back(keys, earlier)
            case Enrolled(keys, earlier):
                due = self._due(keys)
                if due is not None and self._clock() >= due:
                    await self._keep(Renewing(keys, str(uuid.uuid4()), earlier))
            case Renewing():
                await self._renew(self._state)
            case Proving():
                await self._prove(self._state)

    async def _keep(self, state: IdentityState) -> None:
        """Write the new enrolment state to disk, then use the new state."""
        await asyncio.to_thread(write_identity, self._options.path, state)
        self._state = state
        if isinstance(state, Enrolled):
            self._failures = 0
            self._trouble.over()
            self.is_enrolled.set()

    def _due(self, keys: Keys) -> float | None:
        """Return the Unix time of the next key renewal; None if no time is set."""
        # A time in the future is from a clock that was wrong.
        obtained = keys.obtained_at if keys.obtained_at <= self._clock() + MAX_SKEW_SECONDS else 0.0
        for text in (self._rotate_at, keys.rotate_at):
            moment = _unix(text)
            # A time before these keys belongs to a sync with the previous keys.
            if moment is not None and moment > obtained:
                return moment + self._jitter * min(_MOST_JITTER, (moment - obtained) / 10)
        return None

    async def _enrol(self, enrolment_id: str) -> None:
        if not self._options.token:
            raise _Refused("Agent.EnrolmentToken is missing: the proxy needs it to enrol", _REFUSED_WAIT)
        body = msgspec.json.encode(
            EnrolRequest(name_to_ask_for(socket.gethostname()), enrolment_id, __version__)
        )
        headers = {
            "Authorization": f"Bearer {self._options.token}",
            "Content-Type": "application/json",
        }
        status, given, content = await call(self._session, "POST", self._url, body, headers)
        response = Response(
            status, given, content, is_signed=False, request_signature="", needs_signature=False
        )
        found = self._new_identity(response, 201)
        await self._keep(Enrolled(self._keys(found)))
        log.info(
            "enrolled as proxy %s (%s) of %s; its keys are in %s",
            found.name, found.proxy_id, ", ".join(org.name for org in found.orgs), self._options.path,
        )  # fmt: skip

    async def _renew(self, state: Renewing) -> None:
        body = msgspec.json.encode(RenewRequest(state.renewal_id))
        response = await self._signed_by(state.keys).post(self._url, body)
        if response.status == 200 and not response.is_signed:
            raise CallFailed(description(response))
        found = self._new_identity(response, 200)
        if found.proxy_id != state.keys.proxy_id:
            raise CallFailed("the response to the key renewal names another proxy")
        await self._keep(Proving(state.keys, self._keys(found), state.earlier))

    async def _prove(self, state: Proving) -> None:
        """Test a pair of new keys with one call to the control plane.

        Use the new keys to sign calls only after the test call to the control plane succeeded.
        """
        if not await self._is_accepted(state.renewed):
            await self._keep(Enrolled(state.keys, state.earlier))
            raise _Refused("the control plane gave this proxy new keys, but then refused them", _REFUSED_WAIT)
        await self._keep(Enrolled(state.renewed, state.keys))
        log.info("renewed the keys of this proxy; they are in %s", self._options.path)

    async def _fall_back(self, keys: Keys, earlier: Keys) -> None:
        """Renew the previous pair of keys if the control plane accepts only the previous pair."""
        if await self._is_accepted(keys):
            self._failures = 0
            self._trouble.over()
        elif await self._is_accepted(earlier):
            await self._keep(Renewing(earlier, str(uuid.uuid4()), keys))
            log.warning(
                "the control plane accepts only the previous keys of this proxy, perhaps after a restored "
                "backup: renewing the previous keys"
            )
        else:
            cure = cures.of_refusal("unknownApiKey", str(self._options.path))
            text = "the control plane accepts neither the current keys nor the previous ones"
            raise _Refused(cures.joined(text, cure), _REFUSED_WAIT)
        self._is_refused = False

    async def _is_accepted(self, keys: Keys) -> bool:
        """Sign one sync request with the given keys, and return True if the control plane accepts the keys.

        Raise CallFailed if the response proves neither acceptance nor refusal of the keys.
        """
        headers = {"Accept": "application/json", **({"If-None-Match": self._etag} if self._etag else {})}
        url = self._options.base_url + SYNC_PATH
        response = await self._signed_by(keys).get(url, headers, max_bytes=_MAX_SYNC)
        if response.error_code in cures.OF_KEYS:
            return False
        if response.status not in (200, 304) or not response.is_signed:
            raise CallFailed(description(response))
        return True

    def _signed_by(self, keys: Keys) -> ControlPlane:
        return ControlPlane(self._session, lambda: self._identity(keys), clock=self._clock)

    def _new_identity(self, response: Response, wanted: int) -> EnrolResponse:
        """Return the new identity of the proxy from a response: its proxy ID and its keys.

        Raise CallFailed or _Refused if the response of the control plane does not contain the identity.
        """
        if response.status == wanted:
            try:
                found = _decode_response(readable(response.body))
            except ValueError:
                raise CallFailed(
                    f"the control plane responded with {wanted}, but without the keys of this proxy"
                ) from None
            if not (_is_word(found.api_key) and _is_word(found.hmac_secret) and _is_word(found.proxy_id)):
                raise CallFailed(
                    f"the control plane responded with {wanted}, but a key or the proxy ID is empty or"
                    " malformed"
                )
            return found
        if response.error_code == "invalidEnrolmentToken":
            cure = (
                "`proxy enrol-token list` on the control plane shows its state: make another with `proxy "
                "enrol-token add`, put it into Agent.EnrolmentToken or the file that "
                "Agent.EnrolmentTokenFile names, and reload or restart this proxy"
            )
            raise _Refused(f"{description(response)}; {cure}", _REFUSED_WAIT)
        if response.status == 429:
            wait = retry_after(response.headers.get("Retry-After"), self._clock())
            raise _Refused(description(response), min(wait or _LONGEST_BACKOFF, _REFUSED_WAIT))
        if response.status in (404, 405):
            raise _Refused(f"{self._url} responded with {response.status}: {_NO_ENDPOINT}", _REFUSED_WAIT)
        if response.error_code:
            file = "" if response.identity is None else response.identity.file
            cure = cures.of_refusal(response.error_code, file) or self._cure_of_copy()
            raise _Refused(cures.joined(description(response), cure), _REFUSED_WAIT)
        raise CallFailed(description(response))

    def _cure_of_copy(self) -> str:
        if not isinstance(self._state, Enrolling):
            return ""
        return f"if {self._options.path} is a copy from another proxy: delete it, and start this proxy again"

    def _keys(self, found: EnrolResponse) -> Keys:
        now = self._clock()
        return Keys(found.proxy_id, found.name, found.api_key, found.hmac_secret, now, found.rotate_at)


def name_to_ask_for(host_name: str) -> str:
    """Derive a proxy name that the control plane allows from the name of the machine, container or pod."""
    name = _OTHER_CHARACTERS.sub("-", host_name)[:_LONGEST_NAME].strip("._-")
    return "proxy" if not name or _UUID.fullmatch(name) else name


def _is_word(text: str) -> bool:
    """Return True if the text can be a value in a header field."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _unix(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
