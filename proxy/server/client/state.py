"""States of a client connection.

    IDLE ──> HEAD ──> BODY ──> WAITING ──> IDLE      the response ends after the request
                      BODY ──> DISCARD ──> IDLE      the response ends before the request's body
    any ──> CLOSING

A head that arrives in one piece leads from IDLE to BODY or, without a body, to WAITING. A refused head
of a request leads to the state DISCARD. The state DISCARD leads to the state CLOSING if the response said
that no other response follows.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """State of a client connection, which is in exactly one state at a time."""

    IDLE = "idle"  # no byte of a request has arrived, or pipelined requests wait until the client reads
    HEAD = "head"  # the head of a request is not complete
    BODY = "body"  # a handler runs, and the body of its request is not complete
    WAITING = "waiting"  # a handler runs, and its request is complete
    DISCARD = "discard"  # the response is written, and the rest of the request is discarded
    CLOSING = "closing"  # nothing is read any more; output may still be in transit


class KeepAlive(Enum):
    """Use of a connection after the current response: other responses may follow, or the connection ends."""

    PERSIST = "persist"  # another response may follow it
    LAST = "last"  # the last response, as a head has announced; that stays true (RFC 9112 §9.6)
