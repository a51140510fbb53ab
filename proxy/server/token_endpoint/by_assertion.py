"""Verify a client assertion (RFC 7523 §2.2) that a registered key or a trusted issuer signed.

The signature of the assertion is checked immediately. The proxy records the use of the assertion outside the
event loop. A correct assertion is accepted even after many failed attempts in the name of its application. A
signature cannot be guessed, so failed attempts in an application's name must not lock out the application.
"""

from __future__ import annotations

import time
from asyncio import Future
from typing import Final

from proxy.ipc.counters import LIMIT_ASSERTIONS
from proxy.server.assertions.assertion import (
    ASSERTION_TYPE,
    Assertion,
    AssertionRefused,
    parse_assertion,
)
from proxy.server.assertions.judge import Proof, Reuse
from proxy.server.assertions.used import Use
from proxy.server.client_limits import network_of
from proxy.server.errors import Refusal
from proxy.server.token_endpoint.form import OAuthError, is_basic
from proxy.server.token_endpoint.token_request import Access, TokenRequest

_BAD_ASSERTION: Final = "The client assertion is not valid."
# problems that are not the client's fault
_OWN_FAULTS: Final = frozenset(("keysUnavailable", "audienceUnknown"))


def has_assertion(form: dict[str, str]) -> bool:
    return "client_assertion" in form or "client_assertion_type" in form


def prove_by_assertion(request: TokenRequest, form: dict[str, str]) -> None:
    """Respond to the client assertion of a token request, immediately or after its use was recorded.

    Raise OAuthError if the proxy refuses the client assertion.
    """
    context, pending = request.context, request.pending
    client_id = form.get("client_id", "")
    try:
        assertion = _assertion_of(form, request.head.fields.authorization)
        client_id = request.client_id = client_id or assertion.subject
        caller = pending.caller = context.rulebook.callers.get(client_id)
        if caller is None:
            raise AssertionRefused("issuer")
        proof = context.assertions.judge(assertion, client_id, caller.credentials or (), time.time())
    except AssertionRefused as refused:
        pending.caller = context.rulebook.callers.get(client_id)
        _refuse(request, refused)
        return
    pending.credential = proof.credential.id, None
    access = request.access_of(caller)
    if access is not Access.GRANTED:
        request.refuse_access(access, _BAD_ASSERTION)
    elif proof.reuse is Reuse.UNTIL_END:
        request.issue(caller, proof.credential)
    elif request.take_slot():
        network = network_of(pending.client_ip)
        job = context.loop.run_in_executor(
            context.executor,
            context.assertions.use,
            *(caller.app_id or caller.client_id, proof, network, time.time()),
        )
        job.add_done_callback(lambda done: _used(request, done, client_id, proof))


def _assertion_of(form: dict[str, str], authorization: bytes | None) -> Assertion:
    """Return the client assertion of a token request. The request must not also have a client secret.

    Raise OAuthError if the form is invalid, or AssertionRefused if the client assertion is invalid.
    """
    if "client_secret" in form or is_basic(authorization):
        raise OAuthError(
            400, "invalid_request", "Send either a client secret or a client assertion, not both."
        )
    if form.get("client_assertion_type") != ASSERTION_TYPE:
        raise OAuthError(400, "invalid_request", f"client_assertion_type must be {ASSERTION_TYPE}.")
    if not form.get("client_assertion"):
        raise OAuthError(400, "invalid_request", "The form has no client_assertion.")
    return parse_assertion(form["client_assertion"])


def _used(request: TokenRequest, done: Future[Use | None], client_id: str, proof: Proof) -> None:
    context = request.context
    context.verifying -= 1
    if done.cancelled() or request.finished:  # the worker stops, or the client has left
        return
    use = done.result()
    if use is Use.USED_BEFORE:
        _refuse(request, AssertionRefused("reuse", proof.credential.id))
        return
    if use is None or use is Use.FULL:
        context.counters.values[LIMIT_ASSERTIONS] += 1
        why = "The proxy's store of used assertions is full."
        request.refuse(Refusal("notReady", why, "notReady", retry_after=5))
        return
    # In the meantime, the active rules or the credentials of the application may have changed.
    caller = context.rulebook.callers.get(client_id)
    credential = None if caller is None else caller.credential_in_force(proof.credential.id, time.time())
    if caller is None or credential != proof.credential:
        _refuse(request, AssertionRefused("ended", proof.credential.id))
        return
    request.pending.caller = caller
    access = request.access_of(caller)
    if access is Access.GRANTED:
        request.issue(caller, credential)
    else:
        request.refuse_access(access, _BAD_ASSERTION)


def _refuse(request: TokenRequest, refused: AssertionRefused) -> None:
    context = request.context
    request.count_problem(refused.problem, refused.credential_id)
    if refused.unknown_key_of:
        context.assertions.keys.seem_old(refused.unknown_key_of, context.deadlines.now)
    if refused.problem in _OWN_FAULTS:
        error = OAuthError(401, "invalid_client", _BAD_ASSERTION)
        request.respond_with_error(error, "assertionRefused")
    else:
        request.refuse_unguessable(_BAD_ASSERTION, "assertionRefused")
