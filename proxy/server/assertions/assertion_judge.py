"""Verify the assertions that one worker receives, by the keys of issuers and the store of used assertions."""

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
    """Verifier of client assertions in one worker.

    `ask` requests the keys of an issuer from the agent, because the issuer may have published new keys.
    """

    def __init__(self, expected: Expectations, used: UsedAssertions, ask: Callable[[str], None]) -> None:
        self._expected = expected
        self._used = used
        self._warned = False
        self._has_problem = False
        self.keys = IssuerKeys(ask)

    def judge(
        self, assertion: Assertion, client_id: str, credentials: Sequence[Credential], now: float
    ) -> Proof:
        """Return the credential that the assertion proves.

        Raise AssertionRefused if the assertion proves no credential.
        """
        try:
            keys = partial(self.keys.good_at, now=now)
            return judge(assertion, client_id, credentials, keys, self._expected, now)
        except AssertionRefused as refused:
            if refused.problem == "audienceUnknown" and not self._warned:
                self._warned = True
                logger.error(
                    "rejected client assertions that registered keys signed: set Proxy.PublicBaseUrl to"
                    " the address "
                    "that applications use"
                )
            raise

    def use(self, app_id: str, proof: Proof, network: str, now: float) -> Use | None:
        """Record that an assertion was used. Return None if the store of used assertions fails.

        The method `use` blocks, so call it from a thread.
        """
        try:
            use = self._used.use(app_id, proof, network, now)
        except NotRemembered as error:
            if not self._has_problem:
                self._has_problem = True
                logger.error(
                    "rejected client assertions, because the store of used assertions failed: %s", error
                )
            return None
        if use is Use.FULL and not self._has_problem:
            self._has_problem = True
            logger.error(
                "rejected client assertions of application %s: its store of used assertions is full until "
                "earlier assertions expire",
                app_id,
            )
        elif use is Use.FIRST and self._has_problem:
            self._has_problem = False
            logger.warning("the store of used assertions works again")
        return use
