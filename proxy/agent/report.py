"""Sender of one kind of report to the control plane: heartbeats, or metrics."""

import logging

from proxy.agent.control_plane import ControlPlane
from proxy.agent.lasting import LastingProblem
from proxy.agent.proof import report_problem
from proxy.outbound.call import CallFailed

log = logging.getLogger(__name__)


class Report:
    def __init__(self, control_plane: ControlPlane, url: str, name: str) -> None:
        self._control_plane = control_plane
        self._url = url
        self.name = name
        self._trouble = LastingProblem(log)

    @property
    def problem(self) -> str | None:
        """Reason why the control plane did not receive the last report; None if that report arrived."""
        return self._trouble.text

    async def post(self, body: bytes) -> bool:
        """Send one report; return True if the control plane provably accepted the report."""
        try:
            problem = report_problem(await self._control_plane.post(self._url, body))
        except CallFailed as failure:
            problem = str(failure)
        if problem is None:
            if self._trouble.over():
                log.info("delivering %s again", self.name)
            return True
        self._trouble.met(problem, "%s not delivered: %s", self.name, problem)
        return False
