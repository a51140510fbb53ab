"""Tests of schemas in a snapshot: loaded once, shared, and rejected if a byte differs from the sent bytes."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import msgspec
import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from proxy.policy.resource_model import MAX_BYTES, DamagedModel, digest_of
from proxy.policy.schemas import InvalidRoot, folded_root, root_segments
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import Snapshot, SnapshotDamaged, read_snapshot, write_snapshot
from proxy.server.callers.rulebook import Rulebook, build_rulebook
from proxy.server.upstream.credentials import UpstreamCredentials
from proxy.startup.identities import Assignments
from proxy.wire.packed_schema import MAX_PACKED_BYTES, load, pack, unpack
from tests.bytes.test_snapshot import a_snapshot
from tests.pure.model_schema import SMALL, document

FLAT = encode(parse(SMALL))
DIGEST = digest_of(FLAT)
OTHER_FLAT = encode(parse(document('<EntityType Name="thing"/>', namespace="sample.other")))
OTHER = digest_of(OTHER_FLAT)
NO_CREDENTIALS = UpstreamCredentials(Assignments(("default",), {}, {}), lambda name, generation: None)


def with_schemas(*named: dict[str, str], flat: bytes = FLAT, digest: str = DIGEST) -> Snapshot:
    """Return a snapshot that has one schema, and one ruleset for each entry of `named`."""
    (held,) = a_snapshot().rulesets
    rulesets = tuple(
        msgspec.structs.replace(held, ruleset_id=f"r{number}", schemas=schemas)
        for number, schemas in enumerate(named)
    )
    return msgspec.structs.replace(a_snapshot(), rulesets=rulesets, schemas={digest: pack(flat)})


# Compressed form of schemas


def test_a_schema_is_what_was_packed() -> None:
    assert unpack(pack(FLAT)) == FLAT
    assert load(pack(FLAT), DIGEST).digest == DIGEST


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"", "schema are truncated, or other"),
        (pack(FLAT)[:-1], "schema are truncated, or other"),
        (pack(FLAT) + b"\0", "or other bytes follow"),
        (b"\0" + pack(FLAT), "cannot be inflated"),
        (b"x" * (MAX_PACKED_BYTES + 1), "the compressed schema has more than"),
        (zlib.compress(b"\0" * (MAX_BYTES + 1)), f"more than {MAX_BYTES} bytes"),
    ],
)
def test_bytes_that_are_no_deflated_schema_are_refused(packed: bytes, said: str) -> None:
    with pytest.raises(DamagedModel, match=said):
        unpack(packed)


def test_a_schema_with_another_digest_is_refused() -> None:
    with pytest.raises(DamagedModel, match="digest"):
        load(pack(FLAT), OTHER)


# Root paths of schemas


@pytest.mark.parametrize(
    ("text", "root", "segments"),
    [
        ("/v1.0", "/v1.0", ("v1.0",)),
        ("/api/data/V9.2/", "/api/data/v9.2", ("api", "data", "v9.2")),
        ("/", "/", ()),
    ],
)
def test_a_root_path_is_folded(text: str, root: str, segments: tuple[str, ...]) -> None:
    assert folded_root(text) == root
    assert root_segments(root) == segments


@pytest.mark.parametrize(
    "text", ["", "v1.0", "/v1.0//x", "/..", "/a/../b", "/v1%2e0", "/ü", "/a?b", "/a" * 9]
)
def test_a_text_that_is_no_root_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidRoot):
        folded_root(text)


# Schemas in the snapshot


def test_a_snapshot_keeps_the_schemas_of_its_rulesets(tmp_path: Path) -> None:
    path, snapshot = tmp_path / "snapshot.json", with_schemas({"/v1.0": DIGEST})
    write_snapshot(path, snapshot)
    assert read_snapshot(path) == snapshot
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_release_without_schemas_refuses_the_file(tmp_path: Path) -> None:
    """A release without schemas must refuse the file, because it would ignore rules that need one."""
    path = tmp_path / "snapshot.json"
    write_snapshot(path, with_schemas({"/v1.0": DIGEST}))
    assert path.read_bytes().startswith(b"graphward-snapshot 2 ")
    write_snapshot(path, a_snapshot())
    assert path.read_bytes().startswith(b"graphward-snapshot 1 ")


def test_a_flipped_byte_of_a_schema_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, with_schemas({"/v1.0": DIGEST}))
    whole = path.read_bytes()
    start = whole.index(DIGEST.encode() + b'":"')
    for at in range(start, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SnapshotDamaged):
            read_snapshot(path)


def test_a_snapshot_cut_within_a_schema_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, with_schemas({"/v1.0": DIGEST}))
    for length in range(path.stat().st_size - 1, path.stat().st_size - 400, -13):
        os.truncate(path, length)
        with pytest.raises(SnapshotDamaged):
            read_snapshot(path)


def test_a_snapshot_without_a_schema_that_a_ruleset_names_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, msgspec.structs.replace(with_schemas({"/v1.0": DIGEST}), schemas={}))
    with pytest.raises(
        SnapshotDamaged, match=f"hr-sync needs schema {DIGEST[:12]} of /v1.0, which is missing"
    ):
        read_snapshot(path)


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        (with_schemas({"/v1.0": DIGEST}, flat=OTHER_FLAT), "digest"),
        (with_schemas({"/v1.0": DIGEST}, flat=b"no schema"), "digest"),
        (
            with_schemas({"/v1.0": hashlib.sha256(b"x").hexdigest()}, flat=b"x", digest=digest_of(b"x")),
            "not a schema in the format of this release",
        ),
        (with_schemas({"v1.0": DIGEST}), "not the root path"),
        (with_schemas({"/V1.0": DIGEST}), "not in lower case"),
    ],
)
def test_a_schema_that_cannot_be_loaded_is_damage(snapshot: Snapshot, said: str) -> None:
    with pytest.raises(SnapshotDamaged, match=f"ruleset hr-sync: schema .* cannot be used: .*{said}"):
        load_models(snapshot, {})


# Schemas in the rulebook


async def test_rulesets_that_name_one_schema_share_its_model() -> None:
    snapshot = with_schemas({"/v1.0": DIGEST}, {"/v1.0": DIGEST, "/beta": DIGEST}, {})
    book = await build_rulebook(snapshot, Rulebook(), NO_CREDENTIALS)
    first, second, without = (rules.schemas for _, rules in book.compiled.values())
    (model,) = book.models.values()
    assert first.of(["v1.0", "users"]) == (model, 1)
    assert second.of(["beta", "users"]) == (model, 1)
    assert without.of(["v1.0", "users"]) is None


async def test_a_schema_is_loaded_once_for_all_snapshots_that_name_it() -> None:
    book = await build_rulebook(with_schemas({"/v1.0": DIGEST}), Rulebook(), NO_CREDENTIALS)
    again = await build_rulebook(with_schemas({"/v1.0": DIGEST}, {"/beta": DIGEST}), book, NO_CREDENTIALS)
    assert again.models[DIGEST] is book.models[DIGEST]
    assert again.compiled["r0", 3][1] is book.compiled["r0", 3][1]
    assert (await build_rulebook(a_snapshot(), again, NO_CREDENTIALS)).models == {}


async def test_the_same_text_is_compiled_again_for_another_schema() -> None:
    book = await build_rulebook(with_schemas({"/v1.0": DIGEST}), Rulebook(), NO_CREDENTIALS)
    other = with_schemas({"/v1.0": OTHER}, flat=OTHER_FLAT, digest=OTHER)
    again = await build_rulebook(other, book, NO_CREDENTIALS)
    (rules,) = (rules for _, rules in again.compiled.values())
    assert rules.schemas.of(["v1.0"]) == (again.models[OTHER], 1)
