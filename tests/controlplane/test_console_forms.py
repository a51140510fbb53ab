"""Forms of the console that are not taken: what was entered stays."""

from __future__ import annotations

import re

import pytest

from tests.controlplane.plane import RULESET, Plane
from tests.controlplane.visitor import visiting


@pytest.mark.parametrize("scope", ["app", "org", "all"])
async def test_a_stop_that_is_refused_stays_as_it_was_entered(plane: Plane, scope: str) -> None:
    orgs = {name: await plane.org(name) for name in ("acme", "zeta")}
    await plane.ruleset("zeta", "hr")
    for name in ("first", "second"):
        await plane.registry.add_app(name, "zeta", "hr")
    apps = {app.name: app.app_id for app in await plane.store.apps(None)}
    entered = {"app": {"app": apps["second"]}, "org": {"org": orgs["zeta"]}, "all": {"sure": "yes"}}[scope]
    async with visiting(plane) as visitor:
        # From the page of another organisation, where that may be.
        path = "/stops" if scope == "app" else "/stops?org=acme"
        seen = await visitor.post(path, {"scope": scope, "reason": "r" * 501, **entered})
    assert seen.status == 422
    chosen = set(re.findall('<option value="([^"]*)" selected', seen.text))
    assert (
        chosen & {*orgs.values(), *apps.values()}
        == {
            "app": {apps["second"]},
            "org": {orgs["zeta"]},
            "all": {orgs["acme"]},
        }[scope]
    )
    reasons = dict(
        re.findall('<input id="([a-z]*)-reason" [^>]*value="(r*)"[^>]* maxlength="500"', seen.text)
    )
    assert reasons == {each: "r" * 501 if each == scope else "" for each in reasons}
    assert scope in reasons


async def test_a_way_back_that_is_refused_is_shown_anew_with_its_reason(plane: Plane) -> None:
    await plane.org("acme")
    for rule in ("r1", "r2", "r3"):
        await plane.ruleset("acme", "hr", RULESET.format(name="hr").replace("r1", rule))
    async with visiting(plane) as visitor:
        form = {"to": "1", "expected": "2", "note": "the night's mail"}
        seen = await visitor.post("/rulesets/acme/hr/rollback", form)
        assert seen.status == 422
        assert "version 3" in seen.text
        for name, value in {"to": "1", "expected": "3", "note": "the night&#39;s mail"}.items():
            assert re.search(f'name="{name}"[^>]* value="{value}"', seen.text), name
        assert (await visitor.post("/rulesets/acme/hr/rollback", {**form, "expected": "3"})).status == 303


async def test_a_token_that_is_refused_keeps_its_name_and_its_time(plane: Plane) -> None:
    async with visiting(plane) as visitor:
        seen = await visitor.post("/operators/ada/tokens", {"name": " deploy", "expiresInDays": "7"})
    assert seen.status == 422
    assert 'name="name" type="text" value=" deploy"' in seen.text
    assert '<option value="7" selected>' in seen.text
