"""Sync of rules and applications: fetch, verify and store the sync response, and announce the result.

Until new rules are stored, the old rules stay active.
"""

import asyncio
import contextlib
import gc
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from proxy.agent import cures
from proxy.agent.control_plane import ControlPlane, Response
from proxy.agent.lasting import LastingProblem
from proxy.agent.proof import description
from proxy.outbound.call import CallFailed
from proxy.outbound.retry import backoff, jittered
from proxy.policy import json_text
from proxy.policy.ruleset import Ruleset
from proxy.policy.schemas import needs_schemas
from proxy.rules.credentials import readable_credentials, readable_ended
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import (
    READ,
    App,
    Snapshot,
    SnapshotDamaged,
    SnapshotRuleset,
    mark_synced,
    read_snapshot,
    write_by_rename,
    write_snapshot,
)
from proxy.rules.stops import NOTHING_STOPPED, Stops
from proxy.wire.models import (
    HELD_SCHEMAS_HEADER,
    MOST_HELD_SCHEMAS,
    Check,
    SyncAnswer,
    SyncLinger,
    SyncRuleset,
)

log = logging.getLogger(__name__)

_MAX_BODY: Final = 64 * 1024 * 1024
_ETAG: Final = re.compile(r"[!-~]{1,256}")
_SHORTEST_INTERVAL: Final = 1.0
_FAILED_AFTER: Final = 10  # intervals without a successful sync after which degraded becomes failed

_LEAD: Final = timedelta(days=1)

_response_decoder = msgspec.json.Decoder(SyncAnswer)


class SyncRefused(Exception):
    """Error because a sync response can't be accepted; the active rules stay."""


class _Older(Exception):
    """Error because a sync response is older than the active rules.

    An operator may have lifted an emergency stop of the older response after the control plane made this
    response.
    """


class _NotInForce(Exception):
    """Error because a sync response can't be accepted or stored.

    The proxy refuses the rules in the response, but still applies the emergency stops in the response.
    """

    def __init__(self, why: Exception, stops: Stops) -> None:
        super().__init__(str(why))
        self.stops = stops


@dataclass(frozen=True, slots=True)
class _Fetched:
    snapshot: Snapshot
    is_new: bool
    # Problem of rulesets that could not be read; their previous versions stay active.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Readable:
    """Delivered rulesets that the proxy can activate."""

    rulesets: tuple[SnapshotRuleset, ...]
    problem: str | None


class Sync:
    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        url: str,
        cache_path: Path,
        interval: float,
        require_signed: bool,
        announce: Callable[[Snapshot | None, bool], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._control_plane = control_plane
        self._url = url
        self._cache_path = cache_path
        self._highest_path = cache_path.with_name(cache_path.name + ".generated-at")
        self._configured_interval = interval
        self._require_signed = require_signed
        # Receives the snapshot and whether it is a new one; None if only stops changed.
        self._announce = announce
        self._clock = clock
        self._failures = 0
        self._trouble = LastingProblem(log)
        self._good_at = time.monotonic()  # time of the last successful sync, or of the start
        self._changing = asyncio.Lock()  # guards the snapshot here and on disk; not held during a request
        self._stopped_beside = NOTHING_STOPPED
        self.snapshot = self._restored()
        self._confirmed_at = -math.inf if self.snapshot is None else _by_its_age(self.snapshot, clock())
        # True if the next request must not get 304, because an earlier release ignored fields that this one
        # reads.
        self._ask_whole = self.snapshot is not None and self.snapshot.read < READ

    @property
    def interval(self) -> float:
        """Configured sync interval, or the control plane's interval if that is shorter."""
        asked = self.snapshot.sync_interval_seconds if self.snapshot is not None else None
        if asked is None or not _SHORTEST_INTERVAL <= asked < self._configured_interval:
            return self._configured_interval
        return asked

    @property
    def proxy_id(self) -> str | None:
        return self.snapshot.proxy_id if self.snapshot is not None else None

    @property
    def linger(self) -> SyncLinger | None:
        return self.snapshot.linger if self.snapshot is not None else None

    @property
    def age_seconds(self) -> float | None:
        """Seconds after the control plane last confirmed the active rules; infinite if unknown.

        None without rules.
        """
        return None if self.snapshot is None else time.monotonic() - self._confirmed_at

    @property
    def stopped_beside(self) -> Stops:
        """Emergency stops that the agent applies although the snapshot does not contain them.

        The agent could not write these emergency stops into the snapshot, or the first snapshot is still
        missing.
        """
        return self._stopped_beside

    @property
    def stops(self) -> Stops:
        held = NOTHING_STOPPED if self.snapshot is None else self.snapshot.stops
        return held.with_others(self._stopped_beside)

    def check(self) -> Check:
        if self._trouble.text is None:
            return Check("ok")
        lost = time.monotonic() - self._good_at > _FAILED_AFTER * self._configured_interval
        return Check("failed" if self.snapshot is None or lost else "degraded", self._trouble.text)

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(self._pause())

    async def once(self) -> bool:
        """Try once to sync with the control plane.

        Return True if the control plane confirmed the active rules in this sync.
        """
        try:
            held, response = await self._ask()
            async with self._changing:
                self._activate(await self._fetched(held, response))
        except _NotInForce as error:
            async with self._changing:
                await self._stop(error.stops)
            self._note_failure(error)
        except (SyncRefused, CallFailed, OSError) as error:
            self._note_failure(error)
        return self._trouble.text is None

    def _activate(self, fetched: _Fetched) -> None:
        if fetched.problem is not None:
            line = "some rulesets could not be read, their active versions stay in use: %s"
            self._trouble.met(fetched.problem, line, fetched.problem)
        elif self._trouble.over():
            log.info("sync succeeded again")
        self._failures, self._good_at = 0, time.monotonic()
        self.snapshot, self._confirmed_at = fetched.snapshot, self._good_at
        self._stopped_beside, self._ask_whole = NOTHING_STOPPED, False
        self._announce(fetched.snapshot, fetched.is_new)

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        rules = "there are no rules yet" if self.snapshot is None else "the active rules stay in use"
        cure = cures.of_control_plane(self._url, error) if isinstance(error, CallFailed) else ""
        text = cures.joined(str(error), cure)
        pointer = "" if isinstance(error, _NotInForce) else f" ({cures.DOCTOR})"
        self._trouble.met(text, "sync failed, %s: %s%s", rules, text, pointer)

    async def write_again(self) -> None:
        """Write the snapshot file again, because a worker found the file missing, damaged or different."""
        async with self._changing:
            if self.snapshot is None:
                return
            try:
                await asyncio.to_thread(write_snapshot, self._cache_path, self.snapshot)
            except OSError as error:
                log.error("the rules snapshot on disk can't be used, and can't be written again: %s", error)
            else:
                log.warning("the rules snapshot on disk could not be used, so the agent wrote it again")
                self._announce(self.snapshot, False)

    async def _stop(self, report: Stops) -> None:
        """Apply emergency stops in addition to the emergency stops of the active rules.

        An emergency stop must take effect even if the rules are invalid or the disk is full. This method
        never lifts an emergency stop.
        """
        stops = self.stops.with_others(report)
        if stops == self.stops:
            return
        stopping = None if self.snapshot is None else await self._written_with(self.snapshot, stops)
        if stopping is None:
            self._stopped_beside = self._stopped_beside.with_others(report)
        else:
            self.snapshot, self._stopped_beside = stopping, NOTHING_STOPPED
        self._announce(self.snapshot, True)

    async def _written_with(self, held: Snapshot, stops: Stops) -> Snapshot | None:
        """Write the snapshot `held` to disk, with `stops` as its emergency stops.

        Return None if the snapshot can't be written, for example because the disk is full.
        """
        # Remove the ETag: a 304 would confirm rules without this stop.
        stopping = msgspec.structs.replace(held, generation=held.generation + 1, stops=stops, etag=None)
        try:
            await asyncio.to_thread(write_snapshot, self._cache_path, stopping)
        except OSError:
            return None
        return stopping

    def _pause(self) -> float:
        """Return the seconds until the next sync with the control plane.

        Jitter only shortens the pause between two syncs, so that a change of rules takes effect within one
        interval.
        """
        interval = self.interval
        if self._failures:
            return backoff(self._failures - 1, interval)
        return jittered(interval, 0.9)

    def _restored(self) -> Snapshot | None:
        try:
            snapshot = read_snapshot(self._cache_path)
            load_models(snapshot, {})
            return snapshot
        except FileNotFoundError:
            return None
        except (SnapshotDamaged, OSError) as error:
            log.error("cannot use the rules snapshot on disk: %s", error)
            return None

    async def _ask(self) -> tuple[Snapshot | None, Response]:
        """Request the rules from the control plane.

        Return the current snapshot and the response. A 304 response means that the snapshot is still current.
        """
        held = None if self._ask_whole else self.snapshot
        headers = {"Accept": "application/json"}
        if held is not None and held.etag is not None:
            headers["If-None-Match"] = held.etag
        if held is not None and held.schemas:
            headers[HELD_SCHEMAS_HEADER] = ",".join(sorted(held.schemas)[:MOST_HELD_SCHEMAS])
        response = await self._control_plane.get(self._url, headers, max_bytes=_MAX_BODY)
        return held, response

    async def _fetched(self, held: Snapshot | None, response: Response) -> _Fetched:
        if response.status == 304 and held is not None and held.etag is not None:
            return await self._unchanged(held, response)
        if response.status != 200:
            file = "" if response.identity is None else response.identity.file
            cure = cures.of_refusal(response.error_code, file)
            raise SyncRefused(cures.joined(description(response), cure))
        self._check_signature(response)
        return await asyncio.to_thread(self._apply, response)

    async def _unchanged(self, held: Snapshot, response: Response) -> _Fetched:
        if self._require_signed and not self._is_proved(held, response):
            self._ask_whole = True  # a whole response can be verified, whatever is wrong with this one
            raise SyncRefused(
                "rejected the 304: its signature does not match this request and ruleset version"
            )
        confirmed = msgspec.structs.replace(held, synced_at=self._clock())
        try:
            await asyncio.to_thread(mark_synced, self._cache_path, confirmed.synced_at)
        except OSError:  # the file is missing, or belongs to another user because root restored it
            await asyncio.to_thread(write_snapshot, self._cache_path, confirmed)
        return _Fetched(confirmed, is_new=False)

    def _is_proved(self, held: Snapshot, response: Response) -> bool:
        """Return True if the signature of the 304 response is sufficient proof that the rules are unchanged.

        An earlier signed response contains a flag that is true if the control plane signs the rules' version
        in its 304 responses. An intermediary can't change the flag, because the earlier response is
        signed.
        """
        if not response.is_signed:
            return False
        return not held.proves_unchanged or self._control_plane.proves_unchanged(response, held.version)

    def _check_signature(self, response: Response) -> None:
        if self._require_signed and not response.is_signed:
            raise SyncRefused(description(response))

    def _apply(self, response: Response) -> _Fetched:
        """Do the work of a sync that takes time or uses the disk: decode, check, parse, store.

        The garbage collector is off while the sync response is processed. Parsing creates a million objects,
        but no reference cycles. If the garbage collector were on, it would scan the parsed objects
        repeatedly: 10,000 rules would take 0.6 s instead of 0.4 s.
        """
        gc.disable()
        try:
            return self._applied(response)
        finally:
            gc.enable()

    def _applied(self, response: Response) -> _Fetched:
        try:
            synced = _response_decoder.decode(json_text.readable(response.body))
        except ValueError as error:
            raise SyncRefused(f"the control plane's response is not a valid sync body: {error}") from None
        try:
            self._refuse_another_time(synced.generated_at)
            readable = self._readable(synced.rulesets)
            snapshot = self._to_snapshot(synced, _etag(response.headers.get("ETag", "")), readable)
            self._prove_schemas(snapshot)
            return self._in_place(snapshot, readable.problem)
        except _Older as error:
            raise SyncRefused(str(error)) from None
        except (SyncRefused, OSError) as error:
            raise _NotInForce(error, self._withdrawn(synced)) from None

    def _refuse_another_time(self, generated_at: str) -> None:
        generated = _instant(generated_at)
        if generated > self._latest():
            raise SyncRefused(f"generatedAt {generated_at} is in the future by this host's clock")
        highest = self._highest_applied()
        if highest is not None and generated < _instant(highest):
            raise _Older(
                f"generatedAt {generated_at} is older than generatedAt of earlier applied rules ({highest})"
            )

    def _in_place(self, snapshot: Snapshot, problem: str | None) -> _Fetched:
        held = self.snapshot
        if held is not None and _same_rules(held, snapshot):
            snapshot = msgspec.structs.replace(snapshot, generation=held.generation)
        # Write the mark first: if the agent is killed in between, the same response is still new enough.
        write_by_rename(self._highest_path, snapshot.generated_at.encode())
        write_snapshot(self._cache_path, snapshot)
        return _Fetched(snapshot, held is None or snapshot.generation != held.generation, problem)

    def _withdrawn(self, synced: SyncAnswer) -> Stops:
        """Return the emergency stops of a sync response, and the applications that the response disables.

        A full disk must not keep a disabled application running.
        """
        disabled = frozenset(app.app_id for app in synced.apps if not app.enabled)
        held = self.snapshot.apps if self.snapshot is not None else ()
        return _stops(synced).with_others(
            Stops(apps=frozenset(app.app_id for app in held if app.enabled and app.app_id in disabled))
        )

    def _highest_applied(self) -> str | None:
        candidates = [self.snapshot.generated_at] if self.snapshot is not None else []
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError, SyncRefused):
            text = self._highest_path.read_bytes().decode()
            _instant(text)
            candidates.append(text)
        # A wrong clock, or a flipped bit in the mark, which has no checksum, can produce a time in the
        # future.
        latest = self._latest()
        return max((each for each in candidates if _instant(each) <= latest), key=_instant, default=None)

    def _latest(self) -> datetime:
        """Return the latest time that the field `generatedAt` of a sync response may have.

        If the clocks of the proxy and the control plane differ by more than `_LEAD`, the proxy's signed
        request already fails.
        """
        return datetime.fromtimestamp(self._clock(), UTC) + _LEAD

    def _to_snapshot(self, synced: SyncAnswer, etag: str | None, readable: _Readable) -> Snapshot:
        _refuse_twice("clientId", [app.client_id for app in synced.apps])
        _refuse_twice("appId", [app.app_id for app in synced.apps])
        _refuse_twice("rulesetId", [held.ruleset_id for held in synced.rulesets])
        now = self._clock()
        stops = _stops(synced)
        apps = tuple(
            App(
                app_id=app.app_id,
                org_id=app.org_id,
                name=app.name,
                client_id=app.client_id,
                secret_hashes=app.secret_hashes,
                secret_version=app.secret_version,
                ruleset_id=app.ruleset_id,
                enabled=app.enabled and not stops.concern(app.org_id, app.app_id),
                shadow_ruleset_id=app.shadow_ruleset_id or None,
                credentials=readable_credentials(app),
                ended_credentials=readable_ended(app),
            )
            for app in synced.apps
        )
        rulesets, version = readable.rulesets, synced.version
        if readable.problem is not None:
            # Not all of that version is active, so a 304 must not confirm it.
            version, etag = self.snapshot.version if self.snapshot is not None else version, None
            apps, rulesets = self._with_rules_that_stay(apps, synced.rulesets, rulesets)
        return Snapshot(
            version=version,
            generated_at=synced.generated_at,
            generation=max(int(now * 1000), self.snapshot.generation + 1 if self.snapshot else 0),
            synced_at=now,
            etag=etag,
            proxy_id=synced.metadata.proxy_id,
            sync_interval_seconds=synced.metadata.sync_interval_seconds,
            orgs={org.org_id: org.name for org in synced.orgs},
            apps=apps,
            rulesets=rulesets,
            proves_unchanged=synced.metadata.proves_unchanged,
            linger=synced.metadata.linger,
            rotate_at=synced.metadata.rotate_at,
            stops=stops,
            read=READ,
            schemas=self._schemas(synced, rulesets),
        )

    def _schemas(self, synced: SyncAnswer, rulesets: tuple[SnapshotRuleset, ...]) -> dict[str, bytes]:
        """Return the schemas that the rulesets name, from the response or from the active snapshot."""
        delivered = synced.schemas or {}
        held = self.snapshot.schemas if self.snapshot is not None else {}
        wanted = {digest for each in rulesets for digest in each.schemas.values()}
        found = {digest: delivered.get(digest) or held.get(digest) for digest in sorted(wanted)}
        return {digest: packed for digest, packed in found.items() if packed is not None}

    def _prove_schemas(self, snapshot: Snapshot) -> None:
        """Refuse the response if a ruleset names a schema that is missing or has a different digest."""
        try:
            load_models(snapshot, {})
        except SnapshotDamaged as error:
            self._ask_whole = True  # the request may have named a schema that the response left out
            raise SyncRefused(str(error)) from None

    def _readable(self, delivered: tuple[SyncRuleset, ...]) -> _Readable:
        """Parse every delivered ruleset, except a ruleset whose text is already active.

        If a ruleset can't be read, the active version of this ruleset stays. The agent applies the rest of
        the sync response even if one ruleset can't be read. If this release can't read the rules of one
        organisation, the secrets, rules and applications of other organisations still take effect. Raise
        SyncRefused if no ruleset can be read and no ruleset was active before.
        """
        held = self._held_rulesets()
        # An earlier release may have interpreted the text differently.
        as_now = self.snapshot is not None and self.snapshot.read == READ
        readable: list[SnapshotRuleset] = []
        problems: list[str] = []
        for each in delivered:
            digest = hashlib.sha256(each.yaml.encode("utf-8", "surrogatepass")).hexdigest()
            before = held.get(each.ruleset_id)
            try:
                same = as_now and before is not None and before.digest == digest
                ruleset = before.ruleset if before is not None and same else _parse(each)
                _require_schemas(each, ruleset)
            except SyncRefused as unreadable:
                problems.append(str(unreadable))
                if before is not None:
                    readable.append(before)
                continue
            readable.append(
                SnapshotRuleset(
                    *(each.ruleset_id, each.org_id, each.name, each.version, digest, ruleset),
                    schemas=dict(each.schemas or {}),
                )
            )
        if problems and not readable and not held:
            raise SyncRefused("; ".join(problems))
        return _Readable(tuple(readable), "; ".join(problems) or None)

    def _held_rulesets(self) -> dict[str, SnapshotRuleset]:
        return {each.ruleset_id: each for each in self.snapshot.rulesets} if self.snapshot else {}

    def _with_rules_that_stay(
        self, apps: tuple[App, ...], delivered: tuple[SyncRuleset, ...], readable: tuple[SnapshotRuleset, ...]
    ) -> tuple[tuple[App, ...], tuple[SnapshotRuleset, ...]]:
        """Keep an application's previous ruleset if its new ruleset can't be read.

        A new application has no previous ruleset, so all of its requests are blocked.
        """
        rulesets = {each.ruleset_id: each for each in readable}
        unread = {each.ruleset_id for each in delivered} - rulesets.keys()
        held = self._held_rulesets()
        before = {app.app_id: app.ruleset_id for app in self.snapshot.apps} if self.snapshot else {}
        stayed = []
        for app in apps:
            if app.ruleset_id in unread:
                ruleset_id = before.get(app.app_id)
                if ruleset_id in held:
                    rulesets.setdefault(ruleset_id, held[ruleset_id])
                app = msgspec.structs.replace(app, ruleset_id=ruleset_id)
            stayed.append(app)
        return tuple(stayed), tuple(rulesets.values())


def _parse(delivered: SyncRuleset) -> Ruleset:
    # Imported here, because the YAML and validation libraries are large and only this function needs them.
    from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset

    try:
        return parse_ruleset(delivered.yaml)
    except InvalidRuleset as invalid:
        first = invalid.problems[0]
        raise SyncRefused(
            f"ruleset {delivered.name} version {delivered.version} is invalid, line {first.line} column "
            f"{first.column}: {first.where}: {first.message} ({len(invalid.problems)} problems in all)"
        ) from None


def _require_schemas(delivered: SyncRuleset, ruleset: Ruleset) -> None:
    if needs_schemas(ruleset) and not delivered.schemas:
        raise SyncRefused(
            f"ruleset {delivered.name} version {delivered.version} uses names of a schema, "
            "but the response does not name that schema"
        )


def _by_its_age(snapshot: Snapshot, now: float) -> float:
    """Return the monotonic time at which the control plane confirmed the snapshot."""
    return time.monotonic() - snapshot.age_at(now)


def _same_rules(one: Snapshot, other: Snapshot) -> bool:
    return (one.orgs, one.apps, one.rulesets, one.stops) == (
        other.orgs,
        other.apps,
        other.rulesets,
        other.stops,
    )


def _stops(synced: SyncAnswer) -> Stops:
    if not synced.stops:
        return NOTHING_STOPPED
    report = synced.stops
    return Stops(report.everything, frozenset(report.orgs), frozenset(report.apps))


def _refuse_twice(what: str, values: list[str]) -> None:
    if len(set(values)) != len(values):
        raise SyncRefused(f"the control plane's response has the same {what} twice")


def _etag(text: str) -> str | None:
    """Return the ETag if it may be stored and sent back (RFC 9110 §8.8.3).

    The signature of a response does not cover the ETag, and the proxy keeps the ETag across restarts.
    """
    return text if _ETAG.fullmatch(text) else None


def _instant(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SyncRefused(f"generatedAt {text[:64]!r} is not a valid time") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
