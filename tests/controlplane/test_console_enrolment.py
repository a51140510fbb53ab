"""Tests of the console's pages about enrolment tokens, keys and retired proxies."""

from __future__ import annotations

import re
from uuid import uuid4

from tests.controlplane.plane import Plane
from tests.controlplane.test_enrolment import ENROL, client, renew
from tests.controlplane.visitor import visiting


async def test_a_token_is_shown_once_and_revoked_with_its_proxies(plane: Plane) -> None:
    org_id = await plane.org("acme")
    form = {"name": "k8s", "org": org_id, "uses": "3", "expires": "7d", "rotateDays": "30"}
    async with visiting(plane) as visitor:
        refused = await visitor.post("/enrolment", {**form, "uses": "many"})
        assert (refused.status, 'value="many"' in refused.text) == (422, True)
        made = await visitor.post("/enrolment", form)
        secret = re.findall(r"gwe_[\w-]{43}", made.text)[0]
        body = {"name": "edge-1", "enrolmentId": str(uuid4())}
        headers = {"Authorization": f"Bearer {secret}"}
        async with plane.session.post(plane.base_url + ENROL, json=body, headers=headers) as response:
            proxy = client(plane, await response.json())
        listed = (await visitor.get("/enrolment")).text
        assert re.search(r'href="/proxies" data-key="p" aria-current="true"', listed)
        assert ("1 of 3" in listed, "every 30 days" in listed, "gwe_" in listed) == (True, True, False)
        own = (await visitor.get("/proxies/edge-1")).text
        assert "with the enrolment token k8s" in own
        assert "Renews its keys" in own
        assert (await renew(proxy)).status == 200
        assert "1 h after the proxy first uses its new keys" in (await visitor.get("/proxies/edge-1")).text
        form = {"name": "edge-1", "expected": "2", "graceSeconds": "3600"}
        replaced = (await visitor.post("/proxies/edge-1/secrets", form)).text
        assert "the proxy ignores the file at <code>Agent.IdentityPath</code>" in replaced
        assert (await visitor.post("/enrolment/k8s/revoke", {"withProxies": "yes"})).status == 303
        assert "disabled" in (await visitor.get("/enrolment/k8s")).text
    assert (await proxy.sync()).code == "unknownApiKey"


async def test_secrets_are_replaced_with_a_grace_and_a_proxy_is_deleted(plane: Plane) -> None:
    await plane.org("acme")
    proxy = await plane.proxy("edge-1", "acme")
    await proxy.sync()
    async with visiting(plane) as visitor:
        form = {"name": "edge-1", "expected": "1", "graceSeconds": "3600"}
        replaced = await visitor.post("/proxies/edge-1/secrets", form)
        assert "work until their time ends" in replaced.text
        assert "enrolled itself" not in replaced.text
        assert (await proxy.sync()).status == 200
        assert "Old keys work until" in (await visitor.get("/proxies/edge-1")).text
        asked = await visitor.get(f"/delete?kind=proxy&thing={proxy.proxy_id}")
        assert "API key and HMAC secret" in asked.text
        assert (await visitor.post("/delete", {"kind": "proxy", "thing": proxy.proxy_id})).status == 303
    assert (await proxy.sync()).code == "unknownApiKey"
