"""Tests of the state machine of a reload: its next state and actions, by the state of the processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from proxy.supervisor.reload import RELOAD_SECONDS, Action, Reload, State, World

BEGAN: Final = 1000.0
LATE: Final = BEGAN + RELOAD_SECONDS + 0.1
UNDER_WAY: Final = World(
    now=BEGAN,
    old_agents_left=False,
    old_workers_left=True,
    between_workers_left=False,
    new_left=True,
    new_workers_ready=False,
    is_superseded=False,
)

# By the state, whether it is an upgrade, and the supervisor's observations.
STEPS: Final[list[tuple[State, bool, dict[str, Any], State, tuple[Action, ...]]]] = [
    (State.AGENT_ENDING, False, {"old_agents_left": True}, State.AGENT_ENDING, ()),
    (State.AGENT_ENDING, False, {"old_agents_left": True, "now": LATE}, State.AGENT_ENDING, ()),
    (State.AGENT_ENDING, False, {}, State.STARTING, (Action.OPEN_BARRIER,)),
    (State.AGENT_ENDING, True, {"is_superseded": True}, State.STARTING, (Action.OPEN_BARRIER,)),
    (State.STARTING, False, {}, State.STARTING, ()),
    (State.STARTING, False, {"is_superseded": True}, State.STARTING, ()),
    (State.STARTING, False, {"old_agents_left": True, "new_workers_ready": True}, State.STARTING, ()),
    (State.STARTING, False, {"new_workers_ready": True}, State.DRAINING, (Action.DRAIN_OLD_WORKERS,)),
    (State.STARTING, False, {"now": LATE}, State.ROLLING_BACK, (Action.GIVE_UP,)),
    (
        *(State.STARTING, False, {"now": LATE, "new_workers_ready": True}),
        *(State.DRAINING, (Action.DRAIN_OLD_WORKERS,)),
    ),
    (State.STARTING, True, {"now": LATE}, State.STALLED, (Action.REPORT_STALL,)),
    (
        *(State.STARTING, True, {"now": LATE, "is_superseded": True}),
        *(State.STALLED, (Action.REPORT_STALL, Action.SUPERSEDE)),
    ),
    (State.STALLED, True, {"now": LATE}, State.STALLED, ()),
    (State.STALLED, True, {"now": LATE, "is_superseded": True}, State.STALLED, (Action.SUPERSEDE,)),
    (
        *(State.STALLED, True, {"now": LATE, "is_superseded": True, "between_workers_left": True}),
        *(State.STALLED, ()),
    ),
    (
        *(State.STALLED, True, {"now": LATE, "new_workers_ready": True, "is_superseded": True}),
        *(State.DRAINING, (Action.DRAIN_OLD_WORKERS,)),
    ),
    (State.DRAINING, False, {"new_workers_ready": True}, State.DRAINING, ()),
    (State.DRAINING, False, {"now": LATE}, State.DRAINING, ()),
    (State.DRAINING, False, {"old_workers_left": False}, State.DRAINING, (Action.ADOPT,)),
    (State.DRAINING, True, {"old_workers_left": False, "old_agents_left": True}, State.DRAINING, ()),
    (State.ROLLING_BACK, False, {"now": LATE}, State.ROLLING_BACK, ()),
    (State.ROLLING_BACK, False, {"new_left": False}, State.ROLLING_BACK, (Action.RESTORE,)),
    (
        *(State.ROLLING_BACK, False, {"new_left": False, "old_agents_left": True}),
        *(State.ROLLING_BACK, (Action.RESTORE,)),
    ),
]
# Steps that lead to each state from the beginning.
PATHS: Final[dict[State, list[dict[str, Any]]]] = {
    State.AGENT_ENDING: [],
    State.STARTING: [{}],
    State.STALLED: [{}, {"now": LATE}],
    State.DRAINING: [{}, {"new_workers_ready": True}],
    State.ROLLING_BACK: [{}, {"now": LATE}],
}


@pytest.mark.parametrize(("state", "is_upgrade", "seen", "then", "actions"), STEPS)
def test_what_follows(
    state: State, is_upgrade: bool, seen: dict[str, Any], then: State, actions: tuple[Action, ...]
) -> None:
    reload = Reload(is_upgrade=is_upgrade)
    for each in PATHS[state]:
        reload.next(replace(UNDER_WAY, **each))
    assert reload.state is state
    assert reload.next(replace(UNDER_WAY, **seen)) == (then, actions)
    assert reload.state is then


def test_every_state_and_action_is_in_the_table() -> None:
    assert {state for state, *_ in STEPS} == set(State)
    assert {action for *_, actions in STEPS for action in actions} == set(Action)


@pytest.mark.parametrize("is_upgrade", [False, True])
def test_the_time_to_start_begins_when_the_old_agent_has_ended(is_upgrade: bool) -> None:
    reload = Reload(is_upgrade=is_upgrade)
    reload.next(replace(UNDER_WAY, now=LATE))
    assert reload.next(replace(UNDER_WAY, now=LATE + RELOAD_SECONDS)) == (State.STARTING, ())
