"""The states of a reload, and the actions of the supervisor between them. Pure: values in, actions out.

A reload replaces one generation of processes by another, which may be of another version of the program. The
new processes wait at a start barrier until the old agent has ended, because only one agent may own the spool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

RELOAD_SECONDS: Final = 30.0  # from the start of the new processes until their workers can serve


class State(Enum):
    AGENT_ENDING = "the old agent ends"
    STARTING = "the new processes start"
    STALLED = "the new workers can't serve, and those of the version before do"
    DRAINING = "the old workers end"
    ROLLING_BACK = "the new processes end"


class Action(Enum):
    OPEN_BARRIER = "let the new processes run, and start those that have ended meanwhile"
    DRAIN_OLD_WORKERS = "send SIGTERM to the old workers"
    REPORT_STALL = "log that the new workers can't serve"
    SUPERSEDE = "begin another reload in place of this one"
    GIVE_UP = "log that the new workers can't serve, and send SIGTERM to the new processes"
    ADOPT = "end the reload with the new settings"
    RESTORE = "end the reload with the old settings, and start their agent again"


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a reload at one time, as the supervisor sees them."""

    now: float  # monotonic seconds
    old_agents_left: bool  # any generation before the new one
    old_workers_left: bool  # the same for workers
    between_workers_left: bool  # a generation between the old and the new one that could not serve
    new_left: bool  # workers or agent
    new_workers_ready: bool  # all of them
    is_superseded: bool  # another reload was asked for meanwhile


class Reload:
    """The state of one reload.

    In an upgrade the old processes are of another version of the program. This version can't start their
    agent again, so an upgrade that fails stalls, and any other reload rolls back.
    """

    def __init__(self, *, is_upgrade: bool) -> None:
        self.state = State.AGENT_ENDING
        self._is_upgrade = is_upgrade
        self._deadline = math.inf

    def next(self, world: World) -> tuple[State, tuple[Action, ...]]:
        """Go on as far as the world allows. Return the new state, and what to do in this order."""
        self.state, actions = self._after(world)
        return self.state, actions

    def _after(self, world: World) -> tuple[State, tuple[Action, ...]]:
        state = self.state
        if state is State.ROLLING_BACK:
            return state, () if world.new_left else (Action.RESTORE,)
        if world.old_agents_left:  # also in a later state: nothing follows before the last of them has ended
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
        # A third generation has counter pages only if the second has no worker left.
        if world.is_superseded and not world.between_workers_left:
            actions = (*actions, Action.SUPERSEDE)
        return State.STALLED, actions
