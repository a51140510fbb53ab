"""Tests that a refused form of the console keeps the values that the operator entered."""

from __future__ import annotations

import html
import re

import pytest

from controlplane.console.text import as_sentence
from tests.controlplane.plane import RULESET, Plane
from tests.controlplane.visitor import visiting


@pytest.mark.parametrize("scope", ["app", "org", "all"])
async def test_a_stop_that_is_refused_stays_as_it_was_entered(plane: Plane, scope: str) -> None:
    orgs = {name: await plane.org(name) for name in ("acme", "zeta")}
    await plane.ruleset("zeta", "hr")
    for name in ("first", "second"):
        await plane.inventory.add_app(name, "zeta", "hr")
    apps = {app.name: app.app_id for app in await plane.store.apps(None)}
    entered = {"app": {"app": apps["second"]}, "org": {"org": orgs["zeta"]}, "all": {}}[scope]
    async with visiting(plane) as visitor:
        # The form is sent from the page of another organisation, if that is allowed.
        path = "/stops" if scope == "app" else "/stops?org=acme"
        seen = await visitor.post(path, {"scope": scope, "sure": "yes", "reason": "r" * 501, **entered})
    assert seen.status == 422
    chosen = set(re.findall('<option value="([^"]*)" selected', seen.text))
    assert (
        chosen & {*orgs.values(), *apps.values()}
        == {
            "app": {apps["second"]},
            "org": {orgs["zeta"]},
            "all": set(),  # the page never preselects what to stop
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


_ORG_MISSING = "org: is missing"
_LAST_ADMIN = "this operator is the last admin over all organisations: make another admin first"
_SWITCH = "app payroll: hr is the shadow ruleset, but sales was expected"
_OTHER_SECRET = (
    "the secret was replaced by another change: version 1 is the newest, but version 9 was expected"
)
_LOST = "expected.missing: must be a whole number"
_NO_PASSWORD = "password: is missing"
_TOO_SOON = "expiresInDays: must be a whole number, at least 1"
_VIEWER = {"name": "ada", "role": "viewer", "org": "acme"}
_DEPLOY = {"name": "deploy", "expiresInDays": "0"}
_ROTATE = {"name": "edge-1", "expected": "9"}
_EDGE = {"name": "edge-1", "first": "acme"}
_OWN = {"password": "a long enough password", "current": "wrong"}
_WRITE_NAME = "To replace the secrets, enter the name of the proxy, edge-1. Nothing was changed."
# Each case: path of the form, its error, the page, and the reason that the page then shows.
REFUSED = {
    "add an organisation": ("", {"name": "acme"}, "/orgs", "an organisation named acme exists already"),
    "add an app": ("", {"name": "mail", "ruleset": "hr"}, "/apps?org=acme", "Choose a ruleset."),
    "replace an app's secret": ("/secret", {"expected": "9"}, "/apps/{app}", f"app payroll: {_OTHER_SECRET}"),
    "bind an app": ("/ruleset", {}, "/apps/{app}", "ruleset: is missing"),
    "promote a shadow ruleset": ("/promote-shadow", {"expected": "sales"}, "/apps/{app}", _SWITCH),
    "add an operator": ("", _VIEWER, "/operators", "an operator named ada exists already"),
    "grant a role": ("/roles", {"role": "viewer"}, "/operators/{ada}", _ORG_MISSING),
    "revoke a role": ("/roles/revoke", {"org": "*"}, "/operators/{ada}", _LAST_ADMIN),
    "set a password": ("/password", {}, "/operators/{ada}", _NO_PASSWORD),
    "set one's own password": ("/password", _OWN, "/operators/{ada}", "the current password is wrong"),
    "add a token": ("/tokens", _DEPLOY, "/operators/{ada}", _TOO_SOON),
    "disable an operator": ("/disable", {}, "/operators/{ada}", _LAST_ADMIN),
    "add a proxy": ("", _EDGE, "/proxies", "a proxy named edge-1 exists already"),
    "replace a proxy's secrets": ("/secrets", _ROTATE, "/proxies/{proxy}", f"proxy edge-1: {_OTHER_SECRET}"),
    "replace the secrets of another proxy": ("/secrets", {"name": "edge-2"}, "/proxies/{proxy}", _WRITE_NAME),
    "acknowledge losses": ("/acknowledge", {"note": "n", "org": "acme"}, "/proxies/{proxy}", _LOST),
    "let a proxy serve an organisation": ("/grant", {}, "/proxies/{proxy}", "Choose an organisation."),
    "stop nothing": ("", {}, "/stops", "Choose what to stop."),
    "lift a stop": ("/lift", {}, "/stops", "Choose the stop to lift."),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refused_form_shows_its_page_again_with_the_reason(plane: Plane, kind: str) -> None:
    below, form, page, reason = REFUSED[kind]
    await plane.org("acme")
    await plane.ruleset("acme", "hr")
    await plane.inventory.add_app("payroll", "acme", "hr")
    await plane.inventory.set_shadow("payroll", None, "hr")
    proxy = await plane.proxy("edge-1", "acme")
    page = page.format(app=(await plane.store.apps(None))[0].app_id, ada="id-of-ada", proxy=proxy.proxy_id)
    async with visiting(plane) as visitor:
        opened = await visitor.get(page)
        path, _, query = page.partition("?")
        seen = await visitor.post(f"{path}{below}?{query}", form)
    assert (opened.status, seen.status) == (200, 422)
    assert _alerts(opened.text) == []
    assert _alerts(seen.text) == [as_sentence(reason)]
    assert _heading(seen.text) == _heading(opened.text)


def _alerts(page: str) -> list[str]:
    found = re.findall('<div class="notice bad" role="alert">.*?<span>(.*?)</span>', page, re.DOTALL)
    return [html.unescape(each) for each in found]


def _heading(page: str) -> str:
    found = re.search("<title>(.*?)</title>", page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("page", ["/orgs", "/apps?org=acme", "/operators", "/proxies"])
async def test_a_name_that_is_refused_stays_as_it_was_typed(plane: Plane, page: str) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "hr")
    async with visiting(plane) as visitor:
        assert 'value=" &lt;mail&gt;"' not in (await visitor.get(page)).text
        seen = await visitor.post(page, {"name": " <mail>", "first": "acme", "role": "boss"})
    assert seen.status == 422
    assert 'name="name" type="text" value=" &lt;mail&gt;"' in seen.text


async def test_a_form_of_what_is_not_there_shows_the_page_of_an_error(plane: Plane) -> None:
    async with visiting(plane) as visitor:
        seen = await visitor.post("/apps/nothing/ruleset", {})
    assert seen.status == 404
    assert "nothing" in seen.text


@pytest.mark.parametrize("member", ["to", "expected"])
async def test_a_version_that_is_no_number_shows_no_form_again(plane: Plane, member: str) -> None:
    await plane.org("acme")
    for rule in ("r1", "r2"):
        await plane.ruleset("acme", "hr", RULESET.format(name="hr").replace("r1", rule))
    async with visiting(plane) as visitor:
        seen = await visitor.post("/rulesets/acme/hr/rollback", {"to": "1", "expected": "2", member: "two"})
    assert seen.status == 400
    assert "Two is not a version number" in seen.text
