"""Run fakes of the control plane and the identity provider as a process, for measurements that need them.

The arguments of the process are the control plane's port, the identity provider's port, and the behaviour of
the control plane. The third argument sets how the fake control plane behaves. `accepts`: the fake accepts all
events; `down`: each batch gets 503; `changes`: each sync changes all 10,000 rules. The process of the fakes
prints `sync` for each sync with changed rules, and `token` for each token request.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from typing import Any, Final

from bench.graphward import ALLOW
from tests.fakes.control_plane import FakeControlPlane, sync_body
from tests.fakes.identity import FakeIdentityProvider
from tests.fakes.server import Received, Response

RULES: Final = 10_000
TOKEN_SECONDS: Final = 6


class _ControlPlane(FakeControlPlane):
    def __init__(self, port: int, behaviour: str) -> None:
        super().__init__(port=port)
        self.down = behaviour == "down"
        self._changes = behaviour == "changes"
        self._syncs = 0
        self.sync_body = _rules(ALLOW, 0)

    async def response(self, request: Received) -> Response:
        if request.path.endswith("/sync") and self._changes:
            self._syncs += 1
            self.sync_body = _rules(many_rules(self._syncs), self._syncs)
            print("sync", flush=True)
        response = await super().response(request)
        self.events.clear()  # A long run must not fill the memory.
        self.bodies.clear()
        return response


class _Identity(FakeIdentityProvider):
    async def response(self, request: Received) -> Response:
        print("token", flush=True)
        return await super().response(request)


def _rules(yaml: str, version: int) -> dict[str, Any]:
    generated = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    ruleset = {
        "rulesetId": "ruleset-1",
        "orgId": "org-1",
        "name": "bench",
        "version": version + 1,
        "yaml": yaml,
    }
    return sync_body(version=str(version), generatedAt=generated, rulesets=[ruleset])


def many_rules(round_number: int) -> str:
    """Return a ruleset of thousands of rules that differ in each round; its last rule is ALLOW."""
    head, _, own = ALLOW.partition("rules:\n")
    others = "".join(
        f'  - {{id: u{number}, match: {{path: ["/v1.0/r{number}-{round_number}/{{id}}"]}}, verdict: allow}}\n'
        for number in range(RULES - 1)
    )
    return f"{head}rules:\n{others}{own}"


async def serve(control_plane_port: int, identity_port: int, behaviour: str) -> None:
    control_plane = _ControlPlane(control_plane_port, behaviour)
    identity = _Identity(port=identity_port, lifetime_seconds=TOKEN_SECONDS)
    async with identity, control_plane:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
