"""The states of a client connection.

    IDLE ──> HEAD ──> BODY ──> WAITING ──> IDLE      a request whose response ends behind the request
                      BODY ──> DISCARD ──> IDLE      a response that ends before the request's body does
    any ──> CLOSING

A head that is whole in its first piece leads from IDLE to BODY or, without a body, to WAITING. A refused head
leads to DISCARD. DISCARD leads to CLOSING if the response said that no other follows.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """A state of a client connection, one at a time."""

    IDLE = "idle"  # no byte of a request is here, or pipelined requests wait for the client to read
    HEAD = "head"  # the head of a request is not whole
    BODY = "body"  # a handler is at work, and the body of its request is not whole
    WAITING = "waiting"  # a handler is at work, and its request is whole
    DISCARD = "discard"  # the response is written, and what the client still sends of its request is dropped
    CLOSING = "closing"  # nothing is read any more; what was written may still be on its way


class KeepAlive(Enum):
    """The place of the current response on its connection."""

    PERSIST = "persist"  # another may follow it
    LAST = "last"  # a response has said so in its head, and what it said stays true (RFC 9112 §9.6)
