"""Tests of schemas in the store, and of their delivery to proxies."""

from __future__ import annotations

import asyncio
import base64

import msgspec
import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.store import schemas as schema_tables
from controlplane.store.database import NO_LOCKS
from controlplane.store.interface import Conflict, NewSchema, Org, Ruleset, StoreError
from controlplane.store.sql_store import SqlStore
from proxy.policy.resource_model import digest_of
from proxy.wire.models import SyncAnswer
from proxy.wire.packed_schema import load, pack
from tests.controlplane.plane import RULESET, Plane, ProxyClient
from tests.pure.model_schema import SMALL, document


def schema(*types: str, root: str = "/v1.0") -> NewSchema:
    """Return a schema with the given types, or the small test schema if no type is given."""
    body = "".join(f'<EntityType Name="{name}"/>' for name in types)
    flat = encode(parse(document(body) if types else SMALL))
    return NewSchema(root, digest_of(flat), pack(flat), len(flat), "https://graph.test/v1.0/$metadata")


ONE, TWO, THREE = schema(), schema("a"), schema("a", "b")


@pytest.fixture
async def store(either_store: SqlStore) -> SqlStore:
    for org in ("acme", "globex"):
        await either_store.add_org(Org(f"org-{org}", org, "base", 1))
    return either_store


async def listed(store: SqlStore, org: str = "acme") -> list[tuple[str, str, bool]]:
    return [(each.root, each.digest, each.is_current) for each in await store.org_schemas(f"org-{org}")]


async def applied(
    store: SqlStore, *schemas: NewSchema, text: str = "version: 1\n", name: str = "hr"
) -> tuple[int, str]:
    """Publish the schema, and return its version and its changes."""
    named = {each.root: each.digest for each in schemas}
    ruleset, new = await store.apply_ruleset(
        Ruleset(f"ruleset-{name}", "org-acme", name, 1, 0, 1), text, None, None, named
    )
    return ruleset.version, new


# The store


async def test_one_schema_is_current_for_each_root_path(store: SqlStore) -> None:
    assert await store.add_schema(["org-acme"], ONE) == {"org-acme": None}
    assert await store.add_schema(["org-acme"], TWO) == {"org-acme": ONE.digest}
    assert await store.add_schema(["org-acme"], schema("beta", root="/beta")) == {"org-acme": None}
    assert await listed(store) == [
        ("/beta", schema("beta").digest, True),
        ("/v1.0", TWO.digest, True),
        ("/v1.0", ONE.digest, False),
    ]
    current = await store.current_schemas("org-acme")
    assert current.digests == {"/beta": schema("beta").digest, "/v1.0": TWO.digest}
    assert load(current.packed[TWO.digest], TWO.digest).types == 1
    assert await listed(store, "globex") == []


async def test_the_same_schema_again_changes_nothing(store: SqlStore) -> None:
    await store.add_schema(["org-acme"], ONE)
    await store.add_schema(["org-acme"], TWO)
    before = await store.org_schemas("org-acme")
    assert await store.add_schema(["org-acme"], TWO) == {"org-acme": TWO.digest}
    assert await store.org_schemas("org-acme") == before


async def test_organisations_share_the_bytes_of_a_schema_and_not_the_choice(store: SqlStore) -> None:
    await store.add_schema(["org-acme", "org-globex"], ONE)
    for each in (TWO, THREE):  # the version before the current one stays
        await store.add_schema(["org-acme"], each)
    assert await listed(store, "globex") == [("/v1.0", ONE.digest, True)]
    assert await store.packed_schema(ONE.digest) == ONE.packed
    assert [digest for _, digest, _ in await listed(store)] == [THREE.digest, TWO.digest]


async def test_a_schema_that_nothing_names_is_forgotten(store: SqlStore) -> None:
    for each in (ONE, TWO, THREE):
        await store.add_schema(["org-acme"], each)
    assert await store.packed_schema(ONE.digest) is None


async def test_a_schema_that_a_version_names_stays(store: SqlStore) -> None:
    await store.add_schema(["org-acme"], ONE)
    assert await applied(store, ONE) == (1, "text")
    for each in (TWO, THREE):
        await store.add_schema(["org-acme"], each)
    await applied(store, THREE)
    assert (await store.version_schemas("ruleset-hr", 1)).digests == {"/v1.0": ONE.digest}
    assert (await store.version_schemas("ruleset-hr", 2)).digests == {"/v1.0": THREE.digest}
    uses = await store.schema_uses("org-acme", "/v1.0")
    assert [(each.digest, each.version, each.in_force) for each in uses] == [
        (THREE.digest, 2, True),
        (ONE.digest, 1, False),
    ]


async def test_the_same_text_is_a_new_version_if_the_schema_changed(store: SqlStore) -> None:
    await store.add_schema(["org-acme"], ONE)
    assert await applied(store, ONE) == (1, "text")
    assert await applied(store, ONE) == (1, "nothing")
    await store.add_schema(["org-acme"], TWO)
    assert await applied(store, TWO) == (2, "schemas")
    assert await applied(store, TWO) == (2, "nothing")
    assert await applied(store, TWO, text="version: 1\n# new\n") == (3, "text")


async def test_a_text_that_names_no_schema_is_no_new_version(store: SqlStore) -> None:
    assert await applied(store) == (1, "text")
    await store.add_schema(["org-acme"], ONE)
    assert await applied(store) == (1, "nothing")


async def test_a_schema_that_was_replaced_meanwhile_is_a_conflict(store: SqlStore) -> None:
    await store.add_schema(["org-acme"], ONE)
    await store.add_schema(["org-acme"], TWO)
    with pytest.raises(Conflict, match="the schemas of its organisation have changed"):
        await applied(store, ONE)
    assert await store.rulesets("org-acme") == []


async def test_a_rollback_brings_the_schema_of_its_version(store: SqlStore) -> None:
    await store.add_schema(["org-acme"], ONE)
    await applied(store, ONE)
    await store.add_schema(["org-acme"], TWO)
    await applied(store, TWO, text="version: 1\n# two\n")
    back = await store.roll_back("ruleset-hr", 1, None, None)
    assert (await store.version_schemas("ruleset-hr", back.version)).digests == {"/v1.0": ONE.digest}


async def test_an_organisation_has_no_more_schemas_than_proxies_can_take(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_tables, "MOST_ROOTS_OF_ORG", 2)
    for root in ("/a", "/b"):
        await store.add_schema(["org-acme"], schema("a", root=root))
    with pytest.raises(Conflict, match="at most 2"):
        await store.add_schema(["org-acme"], schema("a", root="/c"))
    monkeypatch.setattr(schema_tables, "MOST_PACKED_OF_ORG", len(TWO.packed))
    with pytest.raises(Conflict, match="compressed: apply"):
        await store.add_schema(["org-globex", "org-acme"], schema("b", root="/a"))
    assert await listed(store, "globex") == []  # all organisations or none
    assert len(await listed(store)) == 2


async def test_rulesets_in_force_name_no_more_than_a_worker_should_load(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An organisation's active rulesets must not keep more old schemas in memory than a worker may load."""
    monkeypatch.setattr(schema_tables, "MOST_BYTES_OF_ORG", ONE.bytes + TWO.bytes)
    await store.add_schema(["org-acme"], ONE)
    await applied(store, ONE, name="hr")
    await store.add_schema(["org-acme"], TWO)
    await applied(store, TWO, name="it")
    with pytest.raises(Conflict, match="apply the rulesets that name older schemas again"):
        await store.add_schema(["org-acme"], THREE)
    assert [digest for _, digest, current in await listed(store) if current] == [TWO.digest]
    assert await applied(store, TWO, name="hr") == (2, "schemas")
    await store.add_schema(["org-acme"], THREE)
    with pytest.raises(Conflict, match="that name older schemas again"):
        await store.roll_back("ruleset-hr", 1, None, None)
    assert (await store.rulesets("org-acme"))[0].version == 2


async def test_the_tables_hold_to_each_other(store: SqlStore) -> None:
    """The database refuses to delete a stored schema that a ruleset version refers to."""
    await store.add_schema(["org-acme"], ONE)
    await applied(store, ONE)
    with pytest.raises(StoreError):
        await store._database.write(lambda rows: rows.run("DELETE FROM schemas"), NO_LOCKS)


# Delivery to proxies


async def test_a_proxy_is_sent_the_schemas_that_its_rulesets_name(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    store = plane.store
    await store.add_schema([org], ONE)
    await store.add_schema([org], schema("b", root="/beta"))
    named = (await store.current_schemas(org)).digests
    await store.apply_ruleset(Ruleset("r1", org, "hr", 1, 1, 1), RULESET.format(name="hr"), None, None, named)
    await store.apply_ruleset(Ruleset("r2", org, "it", 1, 1, 1), RULESET.format(name="it"), None, None)
    response = await proxy.sync()
    content = response.json
    by_id = {each["rulesetId"]: each for each in content["rulesets"]}
    assert by_id["r1"]["schemas"] == {"/beta": schema("b").digest, "/v1.0": ONE.digest}
    assert "schemas" not in by_id["r2"]
    assert {digest: base64.b64decode(text) for digest, text in content["schemas"].items()} == {
        each.digest: each.packed for each in (ONE, schema("b"))
    }
    assert msgspec.json.decode(response.body, type=SyncAnswer).schemas == {
        each.digest: each.packed for each in (ONE, schema("b"))
    }
    assert (await proxy.sync(response.headers["ETag"])).status == 304


async def test_a_proxy_is_not_sent_a_schema_that_it_has(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    for each in (ONE, schema("b", root="/beta")):
        await plane.store.add_schema([org], each)
    named = (await plane.store.current_schemas(org)).digests
    ruleset = Ruleset("r1", org, "hr", 1, 1, 1)
    await plane.store.apply_ruleset(ruleset, RULESET.format(name="hr"), None, None, named)
    for held, sent in (
        (ONE.digest, [schema("b").digest]),
        (f"{schema('b').digest} , {ONE.digest}", []),
        (f"x,,{ONE.digest[:-1]}", sorted(named.values())),
        (",".join(["x"] * 1000) + f",{ONE.digest}", sorted(named.values())),
    ):
        headers = proxy.headers(b"")
        headers["X-Held-Schemas"] = held
        content = (await proxy.send("/api/v1/agent/sync", headers=headers)).json
        assert sorted(content.get("schemas", {})) == sent
        assert content["rulesets"][0]["schemas"] == named


async def test_a_fetched_schema_changes_nothing_for_proxies(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    await plane.store.add_schema([org], ONE)
    text = RULESET.format(name="hr")
    ruleset = Ruleset("r1", org, "hr", 1, 1, 1)
    await plane.store.apply_ruleset(ruleset, text, None, None, {"/v1.0": ONE.digest})
    before = await proxy.sync()
    await plane.store.add_schema([org], TWO)
    assert (await proxy.sync(before.headers["ETag"])).status == 304
    await plane.store.apply_ruleset(ruleset, text, None, None, {"/v1.0": TWO.digest})
    after = (await proxy.sync(before.headers["ETag"])).json
    assert after["rulesets"][0]["schemas"] == {"/v1.0": TWO.digest}
    assert list(after["schemas"]) == [TWO.digest]


async def test_a_schema_of_another_organisation_is_not_sent(plane: Plane, proxy: ProxyClient) -> None:
    rival = await plane.org("rival")
    await plane.store.add_schema([rival], ONE)
    text = RULESET.format(name="hr")
    await plane.store.apply_ruleset(
        Ruleset("r1", rival, "hr", 1, 1, 1), text, None, None, {"/v1.0": ONE.digest}
    )
    assert ONE.digest not in (await proxy.sync()).body.decode()


async def test_writers_at_once_leave_one_current_schema(store: SqlStore) -> None:
    await asyncio.gather(*(store.add_schema(["org-acme"], each) for each in (ONE, TWO, THREE) * 5))
    assert [current for _, _, current in await listed(store)].count(True) == 1
