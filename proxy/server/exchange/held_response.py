"""An answer whose body has to be read on its way: held until it is whole, or rewritten as it comes.

Rules need it whole. Links alone do not: what fits is held, so that an answer without a link to change keeps
every byte, and a longer one is rewritten piece by piece, uncoded and of unknown length.
"""

from __future__ import annotations

from typing import Final

from proxy.ipc.counters import LIMIT_FILTER_BYTES
from proxy.server.content.content_coding import (
    ContentCodingError,
    StreamDecoder,
    UnfoldsTooFar,
    decode,
    split_codings,
)
from proxy.server.content.links import LinkStream
from proxy.server.errors import filter_failed, overloaded, unreadable_answer
from proxy.server.exchange.owner import ExchangeOwner
from proxy.server.http1.response_head import AnswerHead

HOLD_BYTES: Final = 256 * 1024  # of a JSON answer that is held back until it is known whether a link changes
HOLD_CODED_BYTES: Final = 2 * 1024 * 1024  # the same while compressed: it can't be changed once begun


class AnswerReader:
    """Takes the pieces of one answer. `for_rules`: rules read the whole; otherwise only links matter."""

    __slots__ = ("_answer", "_decoder", "_exchange", "_for_rules", "_held", "_last", "_links", "_size")

    def __init__(self, exchange: ExchangeOwner, answer: AnswerHead, *, for_rules: bool) -> None:
        self._exchange = exchange
        self._answer = answer
        self._for_rules = for_rules
        self._held: list[bytes] = []
        self._size = 0
        # Once it is rewritten as it comes
        self._links: LinkStream | None = None
        self._decoder: StreamDecoder | None = None
        self._last = False

    def take(self, chunk: bytes, last: bool) -> None:
        if self._links is not None:
            self._rewrite(self._links, chunk, last)
            return
        self._held.append(chunk)
        self._size += len(chunk)
        if last:
            self._take_whole(b"".join(self._held))
        elif self._size > self._limit():
            if self._rules_need_it():
                self._exchange.context.counters.values[LIMIT_FILTER_BYTES] += 1
                self._exchange.refuse(filter_failed("it is over the size limit"))
            else:
                self._go_on_unread()
        elif not self._exchange.hold(len(chunk)):
            if self._rules_need_it():
                self._exchange.refuse(overloaded("The proxy holds as many answers as it may."))
            else:
                self._go_on_unread()

    def resume(self) -> bool:
        """The client takes more again. False where what is left to unfold has filled it up at once."""
        if self._links is not None and self._decoder is not None and self._decoder.pending:
            self._rewrite(self._links, b"", self._last)
            return not self._exchange.connection.write_paused
        return True

    def _rules_need_it(self) -> bool:
        if self._for_rules and self._exchange.judged_unread():
            self._for_rules = False
        return self._for_rules

    def _go_on_unread(self) -> None:
        if not self._exchange.pass_unread(b"".join(self._held), last=False):
            self._begin_rewriting(last=False)

    def _limit(self) -> int:
        if self._for_rules:
            return self._exchange.context.limits.max_filter_bytes
        return HOLD_BYTES if self._answer.fields.content_encoding is None else HOLD_CODED_BYTES

    def _take_whole(self, body: bytes) -> None:
        exchange = self._exchange
        if self._for_rules and exchange.filter_response(body):
            return
        if self._for_rules and exchange.pass_unread(body, last=True):
            return
        try:
            decoded = decoded_answer(body, self._answer, exchange.context.limits.max_filter_bytes)
        except UnfoldsTooFar:  # too large to hold once decoded
            self._held = [body]
            self._begin_rewriting(last=True)
            return
        except ContentCodingError as error:
            exchange.refuse(unreadable_answer(str(error), self._answer.status))
            return
        exchange.send_whole(body, exchange.rewriter().rewrite(decoded))

    def _begin_rewriting(self, *, last: bool) -> None:
        answer = self._answer
        links = self._links = self._exchange.rewriter().stream()
        if answer.fields.content_encoding is not None:
            try:
                self._decoder = StreamDecoder(split_codings(answer.fields.content_encoding))
            except ContentCodingError as error:
                self._exchange.refuse(unreadable_answer(str(error), answer.status))
                return
        held, self._held = b"".join(self._held), []
        self._exchange.hold_no_longer()
        self._exchange.start_rewritten()
        self._rewrite(links, held, last)

    def _rewrite(self, links: LinkStream, chunk: bytes, last: bool) -> None:
        """Rewrites a piece. A compressed answer unfolds step by step, no faster than the client takes it."""
        exchange = self._exchange
        decoder = self._decoder
        self._last = last
        try:
            if decoder is not None:
                chunk = decoder.feed(chunk)
                while decoder.pending:
                    exchange.send_chunk(links.feed(chunk), last=False)
                    if exchange.connection.write_paused:
                        return
                    chunk = decoder.feed(b"")
                if last:
                    chunk += decoder.finish()
        except ContentCodingError as error:
            exchange.refuse(unreadable_answer(str(error), self._answer.status))
            return
        out = links.feed(chunk)
        if last and (rest := links.finish()):
            out += rest
        exchange.send_chunk(out, last)


def decoded_answer(body: bytes, answer: AnswerHead, limit: int) -> bytes:
    """The body less its content codings. Raises ContentCodingError, also where it unfolds beyond `limit`."""
    coding = answer.fields.content_encoding
    return body if coding is None else decode(body, split_codings(coding), limit=limit)
