"""Build a worker's compiled rules from a snapshot: the applications by client ID, each with its ruleset."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from proxy.policy.compile import CompiledRuleset, compile_in_slices
from proxy.policy.compiled_rule import Entry
from proxy.policy.paths import Node, take_apart
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset import Ruleset
from proxy.policy.schemas import Schemas
from proxy.rules.credentials import Credential, Secret, credentials_of
from proxy.rules.schemas import load_models, schemas_of
from proxy.rules.snapshot import Snapshot
from proxy.rules.stops import NOTHING_STOPPED, Stops
from proxy.server.callers.shadow import ShadowRules
from proxy.server.upstream.credentials import NO_CREDENTIAL, UpstreamCredential, UpstreamCredentials


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """An application, with the facts that the data path needs to serve its requests.

    `rules` is None if no ruleset is assigned to the application.
    """

    app_id: str | None
    org_id: str
    client_id: str
    secret_hashes: tuple[str, ...] = ()
    secret_version: int = 0
    enabled: bool = True
    rules: CompiledRuleset | None = None
    ruleset_version: int | None = None
    credential: UpstreamCredential = NO_CREDENTIAL  # upstream token of its assigned identity
    shadow: ShadowRules | None = None
    credentials: tuple[Credential, ...] | None = None  # if None, `secret_hashes` alone decides

    @property
    def known_hashes(self) -> tuple[str, ...]:
        """Hashes of all client secrets of the application, including expired secrets.

        The hashes of active secrets come before the hashes of expired secrets.
        """
        ended = [each.hash for each in self.credentials or () if isinstance(each, Secret)]
        return (*self.secret_hashes, *(each for each in ended if each not in self.secret_hashes))

    def secret_with(self, secret_hash: str) -> Secret | None:
        """Return the application's client secret whose hash is `secret_hash`.

        Return None if no client secret has this hash, or if an older control plane sent only hashes.
        """
        for each in self.credentials or ():
            if isinstance(each, Secret) and each.hash == secret_hash:
                return each
        return None

    def secret_end_after(self, moment: int) -> int | None:
        """Return the first Unix time after `moment` at which a client secret of the application ends.

        Return None if no client secret of the application ends after `moment`.

        When a secret ends, the control plane increments `secret_version`. A new `secret_version` ends all
        tokens that the application obtained with a secret.
        """
        ends = [
            int(each.ends_at)
            for each in self.credentials or ()
            if isinstance(each, Secret) and each.ends_at is not None and int(each.ends_at) > moment
        ]
        return min(ends, default=None)

    def credential_in_force(self, credential_id: str, now: float) -> Credential | None:
        """Return the application's credential with the ID `credential_id`.

        Return None if the credential was removed or has expired.
        """
        for each in self.credentials or ():
            if each.id == credential_id:
                return each if each.ends_at is None or now < each.ends_at else None
        return None


Sources = tuple[str, Mapping[str, str]]
"""Sources of a compiled ruleset: the digest of its text, and the digest of the schema of each root."""


@dataclass(frozen=True, slots=True, eq=False)
class Rulebook:
    """Compiled form of a rules snapshot, with which a worker evaluates requests.

    A worker never changes its compiled rules in place. To apply new rules, a worker replaces the whole
    Rulebook object.
    """

    callers: dict[str, Caller] = field(default_factory=dict)
    compiled: dict[tuple[str, int], tuple[Sources, CompiledRuleset]] = field(default_factory=dict)
    version: str = ""
    loaded: bool = False
    credentials: frozenset[UpstreamCredential] = frozenset()  # credentials of enabled callers
    stops: Stops = NOTHING_STOPPED  # stops of the snapshot and of the local file
    # models by digest, which all rulesets share
    models: Mapping[str, ResourceModel] = field(default_factory=dict)

    @property
    def rule_count(self) -> int:
        return sum(compiled.rule_count for _, compiled in self.compiled.values())


async def build_rulebook(
    snapshot: Snapshot,
    previous: Rulebook,
    credentials: UpstreamCredentials,
    models: Mapping[str, ResourceModel] | None = None,
) -> Rulebook:
    """Compile the rules of a snapshot that differ from the compiled rules `previous`.

    Between slices of the compilation, yield to the event loop.

    `models` contains the resource models that `load_models` returned for the snapshot. Raise SnapshotDamaged
    if a resource model is missing.

    While it compiles rules, the worker disables Python's garbage collector. After the compilation of rules,
    the garbage collector ignores the compiled objects. Each garbage collection over ten thousand compiled
    rules would stall requests for a tenth of a second.
    """
    gc.disable()
    try:
        if models is None:
            models = load_models(snapshot, previous.models)
        return await _build(snapshot, previous, credentials, models)
    finally:
        gc.freeze()
        gc.enable()


async def _build(
    snapshot: Snapshot,
    previous: Rulebook,
    credentials: UpstreamCredentials,
    models: Mapping[str, ResourceModel],
) -> Rulebook:
    compiled: dict[tuple[str, int], tuple[Sources, CompiledRuleset]] = {}
    by_id: dict[str, tuple[CompiledRuleset, int]] = {}
    for entry in snapshot.rulesets:
        key = (entry.ruleset_id, entry.version)
        known = previous.compiled.get(key)
        sources: Sources = (entry.digest, entry.schemas)
        if known is None or known[0] != sources:
            known = (sources, await _compile(entry.ruleset, schemas_of(entry.schemas, models)))
        compiled[key] = known
        by_id[entry.ruleset_id] = (known[1], entry.version)
    shadows = {
        ruleset_id: ShadowRules(*by_id[ruleset_id])
        for ruleset_id in {app.shadow_ruleset_id for app in snapshot.apps}
        if ruleset_id in by_id
    }
    callers: dict[str, Caller] = {}
    for app in snapshot.apps:
        rules, version = by_id.get(app.ruleset_id or "", (None, None))
        callers[app.client_id] = Caller(
            app_id=app.app_id,
            org_id=app.org_id,
            client_id=app.client_id,
            secret_hashes=tuple(app.secret_hashes),
            secret_version=app.secret_version,
            enabled=app.enabled,
            rules=rules,
            ruleset_version=version,
            credential=credentials.of(app.org_id, app.client_id),
            shadow=shadows.get(app.shadow_ruleset_id or ""),
            credentials=credentials_of(app),
        )
    used = frozenset(each.credential for each in callers.values() if each.enabled)
    return Rulebook(
        *(callers, compiled, snapshot.version),
        loaded=True,
        credentials=used,
        stops=snapshot.stops,
        models=models,
    )


async def _compile(ruleset: Ruleset, schemas: Schemas) -> CompiledRuleset:
    slices = compile_in_slices(ruleset, schemas=schemas)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            compiled: CompiledRuleset = done.value
            weakref.finalize(compiled.rules.tree, _free_in_slices, compiled.rules.tree.root).atexit = False
            return compiled
        await asyncio.sleep(0)


def _free_in_slices(root: Node[Entry]) -> None:
    """Free the memory of a replaced ruleset in slices, after the last request that this ruleset evaluates."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    _next_slice(loop, take_apart(root))


def _next_slice(loop: asyncio.AbstractEventLoop, slices: Iterator[None]) -> None:
    for _ in slices:
        loop.call_soon(_next_slice, loop, slices)
        break
