"""What an operator of little rights can do to the control plane and to others by asking for too much."""

from __future__ import annotations

import asyncio
import threading

import pytest

from controlplane.operations import aside as lane
from controlplane.operations.actor import Actor, local_actor
from controlplane.operations.aside import aside
from controlplane.operations.desk import Desk
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.rehearsals import CheckRuleset, RunCases, Source, check
from controlplane.operations.rehearsals import test as run_cases
from controlplane.operations.rulesets import ApplyRuleset, apply
from controlplane.store.interface import StoreBusy
from tests.controlplane.plane import Plane, desk

EDITOR = local_actor("ada")
NOBODY = Actor("mallory", {})
SMALL = "version: 1\nname: hr\nrules: []\n"


@pytest.fixture
def at_desk(plane: Plane) -> Desk:
    return desk(plane)


async def test_a_rehearsal_without_end_is_stopped_and_the_next_one_goes_on(
    at_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the rules is asked in each of the cases: hours of it fit in a body of a megabyte."""
    rules = "".join(
        f"  - {{id: r{at}, match: {{path: [/**]}}, conditions: [{{header: x, equals: a}}], verdict: block}}\n"
        for at in range(500)
    )
    cases = "cases:\n" + "  - {request: GET /v1.0/users, expect: {verdict: block}}\n" * 2000
    monkeypatch.setattr(lane, "LONGEST_SECONDS", 1.0)
    asked = RunCases(source=Source(yaml=f"version: 1\nname: hr\nrules:\n{rules}"), cases=cases)
    with pytest.raises(InvalidRequest, match="takes longer than 1 s"):
        await run_cases.perform(at_desk, NOBODY, asked)
    assert (await check.perform(at_desk, NOBODY, CheckRuleset(yaml=SMALL))).problems == ()


async def test_who_tries_things_out_keeps_no_ruleset_from_being_put_in_force(
    plane: Plane, at_desk: Desk
) -> None:
    await plane.org("acme")
    go_on = threading.Event()
    trying = [asyncio.create_task(aside(go_on.wait)) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy):
        await check.perform(at_desk, NOBODY, CheckRuleset(yaml=SMALL))
    applied = await apply.perform(at_desk, EDITOR, ApplyRuleset(org="acme", yaml=SMALL))
    assert applied.version == 1
    go_on.set()
    assert all(await asyncio.gather(*trying))
