"""Tests of `audit head` and `audit verify`, and of the same operations over the admin API."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.store.block_body import unpacked
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import NOON_MS, FakeClock, Plane, batch, started
from tests.controlplane.processes import cli, facts
from tests.controlplane.test_admin import call, operator

pytestmark = pytest.mark.process


@pytest.fixture
async def config(tmp_path: Path) -> Path:
    """Settings of a stopped control plane, whose store contains audit events of two organisations."""
    async with started(tmp_path, FakeClock()) as plane:
        for name in ("acme", "beta"):
            org = await plane.org(name)
            proxy = await plane.proxy(f"edge-{name}", name)
            for number in range(3):
                assert (await proxy.audit(batch(f"b{number}", org, [number]))).status == 202
    return tmp_path / "controlplane.toml"


def tamper(config: Path, sql: str) -> None:
    with closing(sqlite3.connect(config.parent / "var" / "controlplane.db")) as file:
        file.create_function("inflated", 1, lambda body: unpacked(body).decode())
        file.execute(sql)
        file.commit()


def test_what_fits_and_what_does_not(config: Path) -> None:
    kept = config.parent / "heads.json"
    kept.write_text(cli(config, "audit", "head", "--json").stdout)
    heads = json.loads(kept.read_text())["heads"]
    assert [(head["number"], head["events"], head["purged"]) for head in heads] == [(3, 3, 0)] * 2
    for arguments in ([], ["--from-checkpoint", str(kept)], ["--org", "acme", "--head", heads[0]["link"]]):
        assert facts(config, "audit", "verify", *arguments)["intact"] is True
    tamper(config, "UPDATE blocks SET body = CAST(replace(inflated(body), 'GET', 'PUT') AS BLOB) WHERE"
                   f" org_id = '{heads[1]['orgId']}' AND inflated(body) LIKE '%event-1%'")  # fmt: skip
    done = cli(config, "audit", "verify", "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    first, second = json.loads(done.stdout)["orgs"]
    assert first["misfit"] is None
    assert (second["misfit"]["what"], second["misfit"]["link"]) == ("changed", 2)
    assert second["misfit"]["eventId"] == "event-1"
    report = cli(config, "audit", "verify", "--org", "beta")
    assert report.returncode == 1
    assert "changed: the event is not what was stored (link 2, position 5, event event-1)" in report.stderr
    assert cli(config, "audit", "verify", "--org", "acme").returncode == 0


def test_an_end_that_was_cut_off_is_found_by_a_head_that_was_kept(config: Path) -> None:
    kept = config.parent / "heads.json"
    kept.write_text(cli(config, "audit", "head", "--org", "acme", "--json").stdout)
    (head,) = json.loads(kept.read_text())["heads"]
    for table, key in (("chain", "number"), ("blocks", "position")):
        tamper(config, f"DELETE FROM {table} WHERE org_id = '{head['orgId']}' AND {key} = 3")
    assert facts(config, "audit", "verify")["intact"] is True
    for arguments in (["--from-checkpoint", str(kept)], ["--org", "acme", "--head", head["link"]]):
        done = cli(config, "audit", "verify", "--json", *arguments)
        assert done.returncode == 1
        assert json.loads(done.stdout)["orgs"][0]["misfit"]["what"] == "truncated"


def test_an_organisation_that_was_taken_out_whole_is_found_by_a_head_that_was_kept(config: Path) -> None:
    kept = config.parent / "heads.json"
    kept.write_text(cli(config, "audit", "head", "--org", "acme", "--json").stdout)
    (head,) = json.loads(kept.read_text())["heads"]
    for table in ("chain", "chain_checks", "blocks", "orgs"):
        tamper(config, f"DELETE FROM {table} WHERE org_id = '{head['orgId']}'")
    done = cli(config, "audit", "verify", "--from-checkpoint", str(kept))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{head['orgId']}: truncated: ")


@pytest.mark.parametrize(
    ("arguments", "report"),
    [
        (["--head", "a" * 32], "also give --org, the organisation that the chain link belongs to"),
        (["--org", "acme", "--head", "xyz"], "64 hexadecimal digits"),
        (["--from-checkpoint", "missing.json"], "missing.json: No such file"),
        (["--from-checkpoint", "controlplane.toml"], "is not the output of `audit head --json`"),
    ],
)
def test_mistakes_are_one_line(config: Path, arguments: list[str], report: str) -> None:
    arguments = [str(config) if each == "controlplane.toml" else each for each in arguments]
    done = cli(config, "audit", "verify", *arguments)
    assert (done.returncode, report in done.stderr, done.stderr.count("\n")) == (2, True, 1)


async def test_over_the_admin_api_everyone_verifies_what_they_may_look_at(plane: Plane) -> None:
    for name in ("acme", "beta"):
        org = await plane.org(name)
        proxy = await plane.proxy(f"edge-{name}", name)
        assert (await proxy.audit(batch("b", org, [1, 2]))).status == 202
    token = await operator(plane, "vi", {"acme": "viewer"})
    before = (await call(plane, token, "GET", "/audit/integrity")).json["orgs"]
    assert [(each["name"], each["checkedAt"], each["head"]["events"]) for each in before] == [
        ("acme", None, 2)
    ]
    verified = (await call(plane, token, "POST", "/audit/verify", {})).json
    assert [(each["links"], each["events"], each["misfit"]) for each in verified["orgs"]] == [(1, 2, None)]
    (after,) = (await call(plane, token, "GET", "/audit/integrity")).json["orgs"]
    assert (after["checkedAt"], after["checkedEvents"], after["misfit"]) == (rfc3339(NOON_MS), 2, None)
    (head,) = (await call(plane, token, "GET", "/audit/heads")).json["heads"]
    asked = {"org": "acme", "head": head["link"], "checkpoint": [head]}
    assert (await call(plane, token, "POST", "/audit/verify", asked)).json["intact"] is True
    assert (await call(plane, token, "POST", "/audit/verify", {"org": "beta"})).status == 404
    assert (await call(plane, token, "POST", "/audit/verify", {"org": "acme", "head": "x"})).status == 400
