"""Judge the assertions that one worker receives, by its issuers' keys and the memory of used assertions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from proxy.rules.credentials import Credential
from proxy.server.assertions.assertion import Assertion, AssertionRefused
from proxy.server.assertions.issuer_keys import IssuerKeys
from proxy.server.assertions.judge import Expectations, Proof, judge
from proxy.server.assertions.used import NotRemembered, Use, UsedAssertions

logger = logging.getLogger(__name__)


class AssertionJudge:
    """`ask` requests the keys of an issuer from the agent, because there may be new ones."""

    def __init__(self, expected: Expectations, used: UsedAssertions, ask: Callable[[str], None]) -> None:
        self._expected = expected
        self._used = used
        self._warned = False
        self._has_problem = False
        self.keys = IssuerKeys(ask)

    def judge(
        self, assertion: Assertion, client_id: str, credentials: Sequence[Credential], now: float
    ) -> Proof:
        """Return the credential that the assertion proves. Raise AssertionRefused."""
        try:
            keys = partial(self.keys.good_at, now=now)
            return judge(assertion, client_id, credentials, keys, self._expected, now)
        except AssertionRefused as refused:
            if refused.problem == "audienceUnknown" and not self._warned:
                self._warned = True
                logger.error(
                    "assertions by registered keys are refused: set Proxy.PublicBaseUrl to the address that "
                    "applications use"
                )
            raise

    def use(self, app_id: str, proof: Proof, network: str, now: float) -> Use | None:
        """Note that an assertion is used; None if that can't be remembered. For a thread."""
        try:
            use = self._used.use(app_id, proof, network, now)
        except NotRemembered as error:
            if not self._has_problem:
                self._has_problem = True
                logger.error("used assertions can't be remembered, so that they are refused: %s", error)
            return None
        if use is Use.FULL and not self._has_problem:
            self._has_problem = True
            logger.error("application %s has no room for more assertions until earlier ones end", app_id)
        elif use is Use.FIRST and self._has_problem:
            self._has_problem = False
            logger.warning("used assertions are remembered again")
        return use
