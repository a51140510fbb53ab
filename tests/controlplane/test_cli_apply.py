"""Tests of the commands `apply` and `export`: exit statuses, secret files and the dry run."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import stat
import sys
from pathlib import Path

import pytest

from controlplane.as_code.plan import Change
from controlplane.cli.directory import SecretFiles
from controlplane.cli.failure import CommandFailed
from controlplane.operations.config import AppliedConfig, AppSecrets
from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import RULESET, Plane, event, write_settings
from tests.fakes import commands as forked

CONTOSO = """\
version: 1
organisations:
  - name: contoso
    rulesets: [rulesets/staff.yaml]
    apps:
      - {name: payroll, ruleset: staff, owner: hr}
proxies:
  - {name: edge-1, orgs: [contoso]}
"""
CASES = "cases:\n  - request: GET /v1.0/users\n    expect: {verdict: %s}\n"


def written(folder: Path, case: str = "allow") -> Path:
    (folder / "rulesets").mkdir(parents=True)
    (folder / "contoso.yaml").write_text(CONTOSO)
    (folder / "rulesets/staff.yaml").write_text(RULESET.format(name="staff"))
    (folder / "rulesets/staff.test.yaml").write_text(CASES % case)
    return folder


def texts_of(files: list[str]) -> list[str]:
    return [Path(file).read_text() for file in files]


async def test_a_directory_is_planned_applied_and_found_again(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder, secrets = str(written(tmp_path / "config")), tmp_path / "secrets"
    status, out, err = await commands.run("server", "apply", folder, "--plan")
    assert (status, err) == (2, "")
    digest = out.splitlines()[-1].removeprefix("Digest: ")
    assert out.splitlines()[:-1] == [
        "organisation contoso",
        "  + organisation contoso",
        "      retention: base",
        "  + ruleset staff, version 1",
        "      test: 1 case, 0 failed",
        "  + app payroll",
        "      ruleset: staff",
        "      owner: hr",
        "the fleet",
        "  + proxy edge-1",
        "      organisations: contoso",
        "Plan: 4 to add, 0 to change, 0 to delete.",
    ]
    assert await commands.run("store", "apply", folder, "--plan") == (2, out, "")  # the same bytes

    status, _, err = await commands.run("server", "apply", folder, "--no-rehearsal")
    assert (status, "1 app and 1 proxy: give a directory" in err) == (1, True)
    assert await plane.store.orgs() == []

    where = ("--secrets-to", str(secrets))
    secrets.mkdir()
    (secrets / "edge-1.api-key").write_text("not in a vault yet")
    status, _, err = await commands.run("server", "apply", folder, *where)
    assert (status, "edge-1.*: a file with this name exists: move it away first" in err) == (1, True)
    assert await plane.store.orgs() == []
    (secrets / "edge-1.api-key").unlink()

    status, out, err = await commands.run("server", "apply", folder, "--expect", digest, *where)
    assert (status, err) == (0, "")
    assert "Applied." in out
    names = ("payroll.client-id", "payroll.client-secret")
    files = [secrets / f"contoso.{name}" for name in names]
    files += [secrets / "edge-1.api-key", secrets / "edge-1.hmac-secret"]
    assert sorted(secrets.iterdir()) == sorted(files)
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.name.endswith("client-id") or file.read_text() not in out
    (stored,) = await plane.store.apps(None)
    assert files[0].read_text() == stored.client_id
    assert f"Wrote {files[0]} for app payroll of organisation contoso" in out

    unchanged = "Nothing to do: the control plane agrees with the directory.\n"
    for where_run in ("server", "store"):
        assert await commands.run(where_run, "apply", folder, "--plan") == (0, unchanged, "")
        assert await commands.run(where_run, "apply", folder) == (0, unchanged, "")
    status, _, err = await commands.run("server", "apply", folder, "--expect", digest)
    assert (status, digest in err) == (1, True)

    copied = tmp_path / "exported"
    assert (await commands.run("server", "export", str(copied), "--org", "contoso"))[0] == 0
    assert sorted(each.name for each in copied.iterdir()) == [
        *("contoso.yaml", "fleet.yaml", "graphward.schema.json", "rulesets")
    ]
    assert await commands.run("server", "apply", str(copied), "--plan") == (0, unchanged, "")
    assert (await commands.run("server", "export", str(copied)))[0] == 1  # the directory is not empty


def test_the_first_apply_makes_the_store_and_a_plan_makes_none(tmp_path: Path) -> None:
    folder, config = str(written(tmp_path / "config")), str(write_settings(tmp_path))
    store = tmp_path / "var/controlplane.db"
    planned = forked.run("--config", config, "apply", folder, "--plan")
    assert (planned.returncode, store.exists()) == (2, False)
    said = "the plan assumes an empty store; applying the plan makes the store"
    assert planned.stderr == f"{store}: there is no store yet: {said}\n"
    assert "      test: 1 case, 0 failed\n" in planned.stdout
    *_, summary, digest = planned.stdout.splitlines()
    assert summary == "Plan: 4 to add, 0 to change, 0 to delete."
    exported = forked.run("--config", config, "export", str(tmp_path / "out"))
    assert (exported.returncode, f"{store}: there is no store yet: " in exported.stderr) == (1, True)

    asked = ("--expect", digest.removeprefix("Digest: "), "--secrets-to", str(tmp_path / "secrets"))
    applied = forked.run("--config", config, "apply", folder, *asked)
    assert (applied.returncode, "Applied.\n" in applied.stdout) == (0, True), applied.stderr
    again = forked.run("--config", config, "apply", folder, "--plan")
    assert (again.returncode, again.stderr) == (0, "")


async def test_what_is_wrong_ends_with_1_and_changes_nothing(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder = written(tmp_path / "config", case="block")
    status, out, err = await commands.run("server", "apply", str(folder), "--plan")
    assert (status, err) == (1, "nothing was applied, because a test case fails: contoso/staff\n")
    assert "test: rulesets/staff.test.yaml:3:23: cases[0].expect.verdict: " in out
    status, _, err = await commands.run("server", "apply", str(folder), "--secrets-to", str(tmp_path / "s"))
    assert (status, await plane.store.orgs()) == (1, [])

    (folder / "contoso.yaml").write_text(
        CONTOSO.replace("owner", "owners").replace("edge-1, orgs", "edge, org")
    )
    status, out, err = await commands.run("server", "apply", str(folder), "--plan")
    assert (status, out) == (1, "")
    assert [line.removeprefix(f"{folder}/").partition(": ")[0] for line in err.splitlines()] == [
        "contoso.yaml:6:41",
        "contoso.yaml:8:5",
        "contoso.yaml:8:18",
    ]
    outside = tmp_path / "outside.yaml"
    outside.write_text("a secret of the machine that plans")
    (folder / "rulesets/staff.yaml").unlink()
    (folder / "rulesets/staff.yaml").symlink_to(outside)
    (folder / "contoso.yaml").write_text(CONTOSO)
    status, _, err = await commands.run("server", "apply", str(folder), "--plan")
    assert (status, "the path leads out of the directory" in err, "secret" in err) == (1, True, False)
    (folder / "rulesets/staff.yaml").unlink()
    os.mkfifo(folder / "rulesets/staff.yaml")
    status, _, err = await commands.run("server", "apply", str(folder), "--plan")
    assert (status, "rulesets/staff.yaml: is not a regular file" in err) == (1, True)
    (folder / "contoso.yaml").unlink()
    (folder / "contoso.yaml").symlink_to(outside)
    (folder / ".yamllint.yaml").write_text("rules: {}\n")  # a file of another tool
    status, _, err = await commands.run("server", "apply", str(folder), "--plan")
    assert (status, err) == (1, f"{folder}/contoso.yaml: the path leads out of the directory\n")


async def test_json_has_the_plan_and_no_secret(plane: Plane, commands: Commands, tmp_path: Path) -> None:
    folder, secrets = str(written(tmp_path / "config")), str(tmp_path / "secrets")
    status, out, _ = await commands.run("server", "apply", folder, "--plan", "--json")
    planned = json.loads(out)
    assert (status, [each["kind"] for each in planned["changes"]]) == (
        2,
        ["organisation", "ruleset", "app", "proxy"],
    )
    assert planned["rehearsal"] == [
        {"org": "contoso", "ruleset": "staff", "lines": ["test: 1 case, 0 failed"], "failed": False}
    ]
    status, out, _ = await commands.run("server", "apply", folder, "--secrets-to", secrets, "--json")
    made = json.loads(out)
    assert (status, made["digest"], len(made["secretFiles"])) == (0, planned["digest"], 4)
    assert made["secretFiles"][0]["name"] == "payroll"
    assert made["secretsLost"] == []
    assert not any(text in out for text in texts_of([each["file"] for each in made["secretFiles"]]))


async def test_nothing_is_deleted_without_being_asked_for(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder = written(tmp_path / "config")
    secrets = ("--secrets-to", str(tmp_path / "secrets"))
    assert (await commands.run("server", "apply", str(folder), *secrets))[0] == 0
    (folder / "contoso.yaml").write_text(CONTOSO.partition("    apps:")[0] + "    apps: []\n")
    status, _, err = await commands.run("server", "apply", str(folder), "--prune")
    what = (
        "the plan deletes 1 thing, and there is no terminal to ask for consent:"
        " give --yes, or --expect DIGEST\n"
    )
    assert (status, err, len(await plane.store.apps(None))) == (1, what, 1)
    assert (await commands.run("server", "apply", str(folder), "--prune", "--yes"))[0] == 0
    assert await plane.store.apps(None) == []


async def test_a_plan_that_would_be_refused_ends_with_1(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder = written(tmp_path / "config")
    (folder / "contoso.yaml").write_text(CONTOSO + "  - {name: Edge-1, orgs: [contoso]}\n")
    for where in ("server", "store"):
        status, out, err = await commands.run(where, "apply", str(folder), "--plan")
        assert (status, "  + proxy Edge-1" in out.splitlines()) == (1, True)
        assert err.startswith("the control plane would refuse these changes:\nproxy ")
        assert "differs from an existing name only by letters of another case or alphabet" in err
    assert await plane.store.orgs() == []


async def test_what_only_waits_is_not_called_applied(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder = written(tmp_path / "config")
    ruled = CONTOSO.partition("    apps:")[0] + "    second_person: true\n"
    (folder / "contoso.yaml").write_text(ruled)
    assert (await commands.run("server", "apply", str(folder)))[1].splitlines()[-1] == "Applied."
    (folder / "rulesets/staff.yaml").write_text(RULESET.format(name="staff") + "# new\n")
    said = "Nothing is active yet: 1 change waits for a second person."
    for _ in range(2):  # the first run proposes, the second finds the proposal
        status, out, _ = await commands.run("server", "apply", str(folder))
        assert (status, said in out.splitlines()) == (0, True)
    assert "Plan: 0 to add, 1 to change, 0 to delete; 1 of them for a second person to approve." in out


async def test_an_apply_that_is_killed_in_the_middle_changes_nothing(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder, secrets = str(written(tmp_path / "config")), str(tmp_path / "secrets")
    applied = ("apply", folder, "--no-rehearsal", "--secrets-to", secrets)
    module = [sys.executable, "-m", "tests.controlplane.killed_apply", "3"]
    killed = await asyncio.create_subprocess_exec(*module, "--config", str(commands.config), *applied)
    assert await killed.wait() == -signal.SIGKILL
    assert (await plane.store.orgs(), await plane.store.apps(None), await plane.store.proxies(None)) == (
        [],
        [],
        [],
    )
    assert (await commands.run("store", *applied))[0] == 0
    assert [app.name for app in await plane.store.apps(None)] == ["payroll"]


async def test_the_rehearsal_replays_recorded_requests(
    plane: Plane, commands: Commands, tmp_path: Path
) -> None:
    folder = written(tmp_path / "config")
    applied = ("apply", str(folder), "--secrets-to", str(tmp_path / "secrets"))
    assert (await commands.run("server", *applied))[0] == 0
    (stored,) = await plane.store.apps(None)
    proxy = await plane.proxy("edge-2", "contoso")
    seen = [event(stored.org_id, number, appId=stored.app_id, ruleId="r1") for number in (1, 2, 3)]
    assert (await proxy.audit({"batchId": "b1", "events": seen})).status == 202
    (folder / "rulesets/staff.test.yaml").unlink()
    (folder / "rulesets/staff.yaml").write_text(RULESET.format(name="staff").replace("allow", "block"))
    status, out, _ = await commands.run("server", "apply", str(folder), "--plan")
    assert status == 2
    assert "      replay: 3 requests of 24 hours: 3 newly blocked" in out.splitlines()
    assert any(line.startswith("      routes: r1 blocks ") for line in out.splitlines())
    assert "        +    verdict: block" in out.splitlines()


def secrets_of(*named: tuple[str, str]) -> AppliedConfig:
    made = tuple(AppSecrets(org, name, f"id of {name}", f"gws_{name}") for org, name in named)
    return AppliedConfig("", (), made, (), ())


def secret_files(directory: Path, *named: tuple[str, str]) -> SecretFiles:
    return SecretFiles(directory, [Change("add", "app", org, name) for org, name in named])


def test_the_names_of_secret_files_depend_on_the_thing_alone(tmp_path: Path) -> None:
    alike = [("contoso", name) for name in ("a-b", "a b", "A-B", "a.b", "a_b", "日本", "Ω日", "a--b")]
    alike += [("contoso.a", "b"), ("contoso-a", "b")]
    bases = set()
    for number, named in enumerate(alike):  # one run for each file, as a pipeline would do
        (tmp_path / str(number)).mkdir()
        kept = secret_files(tmp_path / str(number), named).write(secrets_of(named))
        assert [(each.org, each.name) for each in kept.files] == [named, named]
        names = [Path(each.file).name for each in kept.files]
        assert [name.rpartition(".")[2] for name in names] == ["client-id", "client-secret"]
        bases.add(names[0].replace(".", "--").casefold())  # the name in the vault of the example
    assert len(bases) == len(alike)
    assert {"contoso--a-b--client-id", "contoso-a--b--client-id"} <= bases


def test_a_secret_that_cannot_be_written_is_named_and_stops_no_other(tmp_path: Path) -> None:
    named = [("contoso", name) for name in ("one", "two", "three")]
    (tmp_path / "contoso.two.client-secret.part").mkdir()  # a directory with this name makes the write fail
    kept = secret_files(tmp_path, *named).write(secrets_of(*named))
    assert [Path(each.file).name for each in kept.files] == [
        *("contoso.one.client-id", "contoso.one.client-secret", "contoso.two.client-id"),
        *("contoso.three.client-id", "contoso.three.client-secret"),
    ]
    assert [each.command for each in kept.lost] == ["app rotate-secret two --org contoso"]


def test_room_for_every_secret_is_required_before_the_change(tmp_path: Path) -> None:
    files = secret_files(tmp_path / "secrets", ("contoso", "payroll"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # bytes: too few, as on a full disk
    try:
        with pytest.raises(CommandFailed, match=r"of 1 app and 0 proxies can't be written: File too large"):
            files.require_place()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    files.require_place()
    assert list((tmp_path / "secrets").iterdir()) == []
