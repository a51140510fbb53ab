"""Tests of request ids in pasted text: ids that are found, and filters that stay filters."""

from __future__ import annotations

import json

import pytest

from controlplane.search.given_ids import MOST_IDS, asks_for_ids, ids_in, whole_id

OWN = "01a21710-e265-7000-8000-2a0000000002"
CLIENTS = "3FA85F64-5717-4562-B3FC-2C963F66AFA6"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
BODY = {
    "error": {
        "code": "policyBlocked",
        "message": "Graphward blocked this request by rule 'no-mail'.",
        "innerError": {"request-id": OWN, "client-request-id": CLIENTS, "date": "2026-11-21T04:25:58"},
    }
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OWN, (OWN,)),
        (f"  '{OWN}',\n", (OWN,)),
        (f"{ULID}\t", (ULID,)),
        (json.dumps(BODY), (OWN, CLIENTS)),
        (json.dumps(BODY, indent=2), (OWN, CLIENTS)),
        (f"2026-11-21 04:25:58 WARN 403 from graph, request-id={OWN} took 5 ms", (OWN,)),
        (f"request-id: {OWN}", (OWN,)),
        (f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01", (TRACE,)),
        (f"{OWN} {OWN}", (OWN,)),
        ("verdict:block", ()),
        ("mail folders of ada", ()),
        ("0" * 40, ()),
    ],
)
def test_ids_are_found_in_whatever_is_pasted(text: str, found: tuple[str, ...]) -> None:
    assert ids_in(text) == asks_for_ids(text) == found


@pytest.mark.parametrize(
    "text", [f"request:{OWN}", f"-id:{OWN}", f"verdict:block {OWN}", f"path:/users/{OWN}"]
)
def test_a_filter_that_names_a_field_stays_a_filter(text: str) -> None:
    assert asks_for_ids(text) == ()


def test_a_text_with_many_ids_asks_for_few() -> None:
    many = " ".join(f"01a21710-e265-7000-8000-{number:012x}" for number in range(100))
    assert len(ids_in(many)) == MOST_IDS


def test_an_id_of_another_form_may_be_given_alone() -> None:
    assert whole_id(' "c-1",\n') == "c-1"
    assert whole_id("a\nb") is None
    assert whole_id(" \n") is None
    assert whole_id("x" * 300) is None
