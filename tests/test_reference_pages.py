"""Tests that the reference pages generated from the code are current, and that each error has a text."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any, Final

import pytest

import controlplane.errors
from controlplane.admin.openapi import description
from controlplane.operations.actor import RANK
from controlplane.operations.table import OPERATIONS, STREAMS
from proxy.agent.exposition import COUNTER_TEXTS
from proxy.ipc.counters import COUNTER_NAMES
from proxy.server import errors
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, REASONS
from tests import api_reference, api_texts, error_texts

GENERATORS: Final = (
    "settings_reference",
    "openapi_reference",
    "errors_reference",
    "metrics_reference",
    "cli_reference",
    "api_reference",
)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_page_is_what_the_code_says(name: str) -> None:
    generator = import_module(f"tests.{name}")
    assert generator.PAGE.read_text("utf-8") == generator.page_as_it_should_be(), (
        f"run: python -m tests.{name}"
    )


def test_every_code_of_a_response_has_a_text_and_nothing_else_has() -> None:
    assert error_texts.RESPONSES.keys() == errors.STATUS_OF.keys()
    assert error_texts.API.keys() == controlplane.errors.STATUS_OF.keys()


def test_every_reason_and_credential_problem_has_a_text_and_nothing_else_has() -> None:
    assert error_texts.REASONS.keys() == REASONS.keys()
    assert error_texts.PROBLEMS.keys() == CREDENTIAL_PROBLEMS.keys()


def test_every_reason_that_a_text_names_is_one() -> None:
    texts = (*error_texts.RESPONSES.values(), *error_texts.OAUTH.values())
    assert {reason for text in texts for reason in text.reasons} <= REASONS.keys()


def test_every_counter_has_a_text_and_nothing_else_has() -> None:
    assert tuple(COUNTER_TEXTS) == COUNTER_NAMES


def test_every_operation_of_operators_has_a_permission_and_nothing_else_has() -> None:
    document = description()
    names = {each["operationId"] for item in document["paths"].values() for each in item.values()}
    assert {name for name in names if not name.startswith("agent.")} == api_texts.PERMISSIONS.keys()


@pytest.mark.parametrize("operation", [*OPERATIONS, *STREAMS], ids=lambda operation: operation.name)
def test_a_permission_names_the_highest_role_that_the_function_requires(operation: Any) -> None:
    roles = re.findall(r'"(viewer|editor|admin)"', inspect.getsource(operation.perform))
    highest = max(roles, key=lambda role: RANK[role], default="")
    assert highest in api_texts.PERMISSIONS[operation.name]


def test_every_text_of_a_member_is_used() -> None:
    used: set[str] = set()

    class Members(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            if key in self:
                used.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> str:
            used.add(key)
            return super().__getitem__(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_reference, "MEMBERS", Members(api_texts.MEMBERS))
        api_reference.page_as_it_should_be()
    assert used == api_texts.MEMBERS.keys()
