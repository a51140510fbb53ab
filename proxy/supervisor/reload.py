"""Pure state machine of a settings reload: the reload's states, and the supervisor's actions.

A reload replaces the running processes by new processes, which may run another version of the program. The
new processes wait at a start barrier until the old agent process has ended, because only one agent may own
the spool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

RELOAD_SECONDS: Final = 30.0  # seconds from the start of the new processes until their workers can serve


class State(Enum):
    AGENT_ENDING = "the old agent ends"
    STARTING = "the new processes start"
    STALLED = "the new workers can't serve, and those of the previous version do"
    DRAINING = "the old workers end"
    ROLLING_BACK = "the new processes end"


class Action(Enum):
    OPEN_BARRIER = "let the new processes run, and restart those that have ended"
    DRAIN_OLD_WORKERS = "send SIGTERM to the old workers"
    REPORT_STALL = "log that the new workers can't serve"
    SUPERSEDE = "begin another reload instead of this one"
    GIVE_UP = "log that the new workers can't serve, and send SIGTERM to the new processes"
    ADOPT = "end the reload with the new settings"
    RESTORE = "end the reload with the old settings, and start their agent again"


@dataclass(frozen=True, slots=True)
class World:
    """State of the processes that take part in a reload, at one moment."""

    now: float  # monotonic seconds
    old_agents_left: bool  # agents of any generation before the new one
    old_workers_left: bool  # workers of any generation before the new one
    between_workers_left: bool  # workers of a generation between the old and the new one that could not serve
    new_left: bool  # workers or agent of the new generation
    new_workers_ready: bool  # all new workers are ready
    is_superseded: bool  # another reload was requested during this one


class Reload:
    """State of one reload of the settings.

    During an upgrade, the old processes run a different version of the program than the new processes. The
    supervisor can't restart an agent of another version, so a failed upgrade stalls, while any other failed
    reload rolls back.
    """

    def __init__(self, *, is_upgrade: bool) -> None:
        self.state = State.AGENT_ENDING
        self._is_upgrade = is_upgrade
        self._deadline = math.inf

    def next(self, world: World) -> tuple[State, tuple[Action, ...]]:
        """Advance the settings reload as far as the states of the old and new processes allow.

        Return the new state of the reload, and the supervisor's actions in their order.
        """
        self.state, actions = self._after(world)
        return self.state, actions

    def _after(self, world: World) -> tuple[State, tuple[Action, ...]]:
        state = self.state
        if state is State.ROLLING_BACK:
            return state, () if world.new_left else (Action.RESTORE,)
        # This also holds in a later state: the next step needs all old agents to have ended.
        if world.old_agents_left:
            return state, ()
        if state is State.AGENT_ENDING:
            self._deadline = world.now + RELOAD_SECONDS
            return State.STARTING, (Action.OPEN_BARRIER,)
        if state is State.DRAINING:
            return state, () if world.old_workers_left else (Action.ADOPT,)
        return self._after_start(world)

    def _after_start(self, world: World) -> tuple[State, tuple[Action, ...]]:
        if world.new_workers_ready:
            return State.DRAINING, (Action.DRAIN_OLD_WORKERS,)
        if world.now <= self._deadline:
            return State.STARTING, ()
        if not self._is_upgrade:
            return State.ROLLING_BACK, (Action.GIVE_UP,)
        actions = () if self.state is State.STALLED else (Action.REPORT_STALL,)
        # A third generation has counter pages only if the second has no workers left.
        if world.is_superseded and not world.between_workers_left:
            actions = (*actions, Action.SUPERSEDE)
        return State.STALLED, actions
