"""What an operator of little rights can do to the control plane and to others by asking for too much."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from controlplane.operations import aside as lane
from controlplane.operations.actor import Actor, local_actor
from controlplane.operations.aside import aside
from controlplane.operations.desk import Desk
from controlplane.operations.integrity import HeadsAsked, KnownHead, Verify, checks, head, verify
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.rehearsals import CheckRuleset, RunCases, Source, check
from controlplane.operations.rehearsals import test as run_cases
from controlplane.operations.rulesets import ApplyRuleset, apply
from controlplane.store.interface import StoreBusy
from tests.controlplane.plane import Plane, ProxyClient, batch, desk

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


async def test_nobody_s_own_head_changes_what_is_known_of_a_chain(
    plane: Plane, proxy: ProxyClient, at_desk: Desk
) -> None:
    """A viewer could have a finding forgotten by passing over what has it, or have one made up."""
    (org,) = proxy.org_ids
    viewer = Actor("victor", {org: "viewer"})
    assert (await proxy.audit(batch("b1", org, [1, 2]))).status == 202

    async def known_misfit() -> str | None:
        (check,) = (await checks.perform(at_desk, viewer, HeadsAsked())).orgs
        assert check.checked_at is not None
        return None if check.misfit is None else check.misfit.what

    assert (await verify.perform(at_desk, viewer, Verify())).intact
    made_up = Verify(org=org, head="00" * 32)
    assert not (await verify.perform(at_desk, viewer, made_up)).intact
    assert await known_misfit() is None
    with closing(sqlite3.connect(plane.settings.store.path)) as file:
        file.execute("UPDATE blocks SET body = CAST('[]' AS BLOB)")
        file.commit()
    assert not (await verify.perform(at_desk, viewer, Verify())).intact
    (newest,) = (await head.perform(at_desk, viewer, HeadsAsked())).heads
    passed_over = Verify(checkpoint=(KnownHead(org_id=org, number=newest.number, link=newest.link),))
    assert (await verify.perform(at_desk, viewer, passed_over)).intact
    assert await known_misfit() == "removed"
