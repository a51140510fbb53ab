"""Reference pages that are written from the code: each is current, and each error code has its text."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import pytest

import controlplane.errors
from proxy.agent.exposition import COUNTER_TEXTS
from proxy.ipc.counters import COUNTER_NAMES
from proxy.server import errors
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, REASONS
from tests import error_texts

GENERATORS: Final = (
    "settings_reference",
    "openapi_reference",
    "errors_reference",
    "metrics_reference",
    "cli_reference",
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
