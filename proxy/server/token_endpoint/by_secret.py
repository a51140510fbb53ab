"""Verify a client secret (RFC 6749 §2.3.1).

A worker thread compares the secret with its argon2 hash, so that the event loop is not blocked. The proxy
caches a correct secret as a keyed digest, so that frequent requests of one application cost little.
"""

from __future__ import annotations

import logging
import time
from asyncio import Future
from typing import Final

import argon2

from proxy.server.callers.rulebook import Caller
from proxy.server.token_endpoint.form import OAuthError
from proxy.server.token_endpoint.token_request import Access, TokenRequest

logger = logging.getLogger(__name__)

_NOT_VALID: Final = "The client id or secret is not valid."

_hasher: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

# The secret of an unknown client is compared with this hash, so that the response time does not reveal which
# clients exist. Salt and digest are random bytes, so no secret matches. Computing a hash here would add 50 ms
# to each start.
NOBODYS_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$h+8w8hiIeAz7m5nvq7QcrA$Sjbc/5lnolFFPP8bCYRyJ4iIHP/HF4NRpVXfDlSy5Hg"
)


def prove_by_secret(request: TokenRequest, client_id: str, secret: str) -> None:
    """Respond at once if the client's secret was found correct before.

    For an unknown client or a secret that was not found correct before, respond after an argon2 comparison.
    """
    context = request.context
    caller = context.rulebook.callers.get(client_id)
    request.pending.caller = caller
    digest = context.known_secrets.digest(client_id, secret)
    matching = None if caller is None else context.known_secrets.matching(digest, caller)
    if caller is not None and matching is not None:
        _verified(request, caller, digest, matching)
        return
    of_client = context.failures_of_client.wait(client_id, context.deadlines.now)
    wait = max(request.wait_of_address(), of_client)
    if wait:
        request.refuse_for_failures(wait)
        return
    if not request.take_slot():
        return
    hashes = (caller.known_hashes if caller is not None else ()) or (NOBODYS_HASH,)
    job = context.loop.run_in_executor(context.executor, _matching, hashes, secret)
    job.add_done_callback(lambda done: _compared(request, done, client_id, digest, caller))


def _compared(
    request: TokenRequest, done: Future[str | None], client_id: str, digest: bytes, caller: Caller | None
) -> None:
    context = request.context
    context.verifying -= 1
    if done.cancelled():  # the worker stops
        return
    matching = done.result()
    if matching is None or caller is None:  # counts also if the client did not wait for the response
        request.note_failure_of_address()
        if caller is not None:
            context.failures_of_client.add(client_id, context.deadlines.now)
    if request.finished:
        return
    # In the meantime, the active rules or the secrets of the application may have changed.
    current = context.rulebook.callers.get(client_id)
    if (
        current is not None
        and caller is not None
        and matching is not None
        and matching in current.known_hashes
    ):
        request.pending.caller = current
        _verified(request, current, digest, matching)
    else:
        _refuse(request)


def _verified(request: TokenRequest, caller: Caller, digest: bytes, matching: str) -> None:
    """Respond to a client whose secret is correct. The active rules must contain the application `caller`.

    `matching` is the hash that matches the client's secret.
    """
    request.context.known_secrets.remember(digest, matching)
    secret = caller.secret_with(matching)
    if secret is not None:
        request.pending.credential = secret.id, None
        has_ended = secret.ends_at is not None and time.time() >= secret.ends_at
        if has_ended or matching not in caller.secret_hashes:
            request.count_problem("ended", secret.id)
            request.respond_with_error(OAuthError(401, "invalid_client", _NOT_VALID))
            return
    access = request.access_of(caller)
    if access is Access.GRANTED:
        request.issue(caller, secret)
    elif access is Access.STOPPED:
        request.refuse_stopped()
    else:
        _refuse(request)


def _refuse(request: TokenRequest) -> None:
    request.count_refusal()
    request.respond_with_error(OAuthError(401, "invalid_client", _NOT_VALID))


def _matching(hashes: tuple[str, ...], secret: str) -> str | None:
    """Return the hash in `hashes` that matches `secret`.

    Return None if the secret matches none of the hashes.

    Run this function in a thread: argon2 takes tens of milliseconds by design and releases the interpreter
    lock.
    """
    for each in hashes:
        try:
            if _hasher.verify(each, secret):
                return each
        except argon2.exceptions.VerifyMismatchError:
            continue
        except argon2.exceptions.Argon2Error as error:
            logger.error("cannot use a stored secret hash: %s", type(error).__name__)
        except argon2.exceptions.InvalidHashError:
            logger.error("cannot use a stored secret hash: it is not an argon2 hash")
    return None
