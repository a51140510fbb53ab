"""Tests that the agent writes few log lines about a problem that lasts long."""

from __future__ import annotations

import logging

import pytest

from proxy.agent.lasting import LastingProblem


def test_a_line_at_its_start_at_each_change_and_every_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    problem = LastingProblem(logging.getLogger("proxy.test"), clock=lambda: now)
    for text in ("away", "away", "away", "refused", "away"):
        problem.met(text, "events wait: %s", text)
    now = 599.0
    problem.met("away", "events wait: %s", "away")
    now = 601.0
    problem.met("away", "events wait: %s", "away")
    assert caplog.messages == [
        "events wait: away",
        "events wait: refused",
        "events wait: away",
        "events wait: away (and 1 times since the last line)",
    ]
    assert (problem.over(), problem.text, problem.over()) == (True, None, False)
    problem.met("away", "events wait: %s", "away")
    assert len(caplog.messages) == 5
