"""Tests that a path finds the schema of its service by the longest root path."""

from __future__ import annotations

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from proxy.policy.compile import compile_ruleset
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset import Ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from tests.pure.model_schema import SMALL, document


def model_of(csdl: bytes) -> ResourceModel:
    flat = encode(parse(csdl))
    return ResourceModel(flat, digest_of(flat))


MAIL = model_of(SMALL)
OTHER = model_of(document('<EntityType Name="thing"/>', namespace="sample.other"))


def test_the_longest_root_wins() -> None:
    schemas = Schemas({("api",): MAIL, ("api", "data", "v9.2"): OTHER})
    assert schemas.of(["api", "data", "v9.2", "accounts"]) == (OTHER, 3)
    assert schemas.of(["api", "data", "v9.2"]) == (OTHER, 3)
    assert schemas.of(["api", "data", "v9.3", "accounts"]) == (MAIL, 1)
    assert schemas.of(["api"]) == (MAIL, 1)


def test_a_path_outside_all_roots_has_no_schema() -> None:
    schemas = Schemas({("v1.0",): MAIL})
    assert schemas.of(["beta", "users"]) is None
    assert schemas.of([]) is None
    assert NO_SCHEMAS.of(["v1.0", "users"]) is None


def test_a_service_at_the_top_of_its_host_has_all_other_paths() -> None:
    schemas = Schemas({(): MAIL, ("v2",): OTHER})
    assert schemas.of(["users"]) == (MAIL, 0)
    assert schemas.of([]) == (MAIL, 0)
    assert schemas.of(["v2"]) == (OTHER, 1)


def test_a_compiled_ruleset_keeps_the_schemas() -> None:
    ruleset = Ruleset(version=1, name="small")
    schemas = Schemas({("v1.0",): MAIL})
    assert compile_ruleset(ruleset, schemas=schemas).schemas is schemas
    assert compile_ruleset(ruleset).schemas is NO_SCHEMAS
