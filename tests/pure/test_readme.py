"""Test that README.md's ruleset turns the first example response into the second, and blocks as described."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from proxy.policy.compile import compile_ruleset
from proxy.policy.filters import compile_filter
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.pure.rules import decide

PAGE: Final = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
RULES: Final = compile_ruleset(parse_ruleset(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)[0]))
ADA: Final = "/v1.0/users/ada@contoso.com"
OFFICE: Final = "10.1.2.3"
NOON: Final = datetime(2026, 11, 26, 12, tzinfo=ZoneInfo("Europe/Oslo")).timestamp()
NIGHT: Final = datetime(2026, 11, 26, 18, tzinfo=ZoneInfo("Europe/Oslo")).timestamp()


def responses() -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"^\$ curl [^\n]*\n(\{.*?\})\n```", PAGE, re.M | re.S)]


def test_the_ruleset_makes_the_second_response_out_of_the_first() -> None:
    before, after = responses()
    decision = decide(RULES, ADA, client_ip=OFFICE, now=NOON)
    assert decision.verdict == "filter"
    assert decision.transforms is not None
    filtered = compile_filter(decision.transforms).apply(json.dumps(before).encode())
    assert json.loads(filtered.body) == after


@pytest.mark.parametrize(
    ("target", "address", "now"),
    [(ADA, "192.0.2.1", NOON), (ADA, OFFICE, NIGHT), ("/v1.0/groups", OFFICE, NOON)],
)
def test_the_ruleset_blocks_what_the_page_says(target: str, address: str, now: float) -> None:
    decision = decide(RULES, target, client_ip=address, now=now)
    assert (decision.verdict, decision.rule_id) == ("block", "default")
