"""Process a response whose body is read in transit: buffer the body for rules, or rewrite the links.

Rules and filters need the complete body of a response. Links do not. A short response is buffered, so that
its bytes do not change if it has no link to rewrite. A response that is too long for the buffer is rewritten
piece by piece, without content coding and without a declared length.
"""

from __future__ import annotations

from typing import Final

from proxy.ipc.counters import LIMIT_FILTER_BYTES
from proxy.policy.batch import MalformedBatch
from proxy.policy.canonical import MalformedTarget
from proxy.policy.decision import ResponseFacts
from proxy.policy.filters import FilterFailed
from proxy.policy.plain_responses import media_type
from proxy.server.content.charset import is_utf8
from proxy.server.content.content_coding import (
    ContentCodingError,
    DecompressedTooLarge,
    StreamDecoder,
    decode,
    split_codings,
)
from proxy.server.content.links import LinkStream
from proxy.server.errors import Refusal, filter_failed, overloaded, unreadable_response
from proxy.server.exchange.client_response import client_head, is_json, may_have_links, pass_on, send_read
from proxy.server.exchange.owner import ResponseBody, ResponseSink
from proxy.server.http1.body_reader import CHUNKED
from proxy.server.http1.chunked import chunk_frame
from proxy.server.http1.response_head import ResponseHead

# Bytes of a JSON response to buffer until it is known whether a link changes.
BUFFER_BYTES: Final = 256 * 1024
# Bytes of a compressed response to buffer. Its coding cannot be changed after the response has begun.
BUFFER_CODED_BYTES: Final = 2 * 1024 * 1024


class BufferedForRules(ResponseBody):
    """Response body that rules or a filter read only after the body is complete.

    The client receives the body only after rules and filters have read it, unless only log rules need the
    body.
    """

    __slots__ = ("_buffered", "_response", "_sink", "_size")

    def __init__(self, sink: ResponseSink, response: ResponseHead) -> None:
        self._sink = sink
        self._response = response
        self._buffered: list[bytes] = []
        self._size = 0

    def take(self, chunk: bytes, last: bool) -> None:
        sink = self._sink
        self._buffered.append(chunk)
        self._size += len(chunk)
        if last:
            self._take_whole(b"".join(self._buffered))
        elif self._size > sink.context.limits.max_filter_bytes:
            if not self._passed_without_rules():
                sink.context.counters.values[LIMIT_FILTER_BYTES] += 1
                sink.refuse(filter_failed("the response is over the size limit"))
        elif not sink.reserve_buffer(len(chunk)) and not self._passed_without_rules():
            sink.refuse(overloaded("The proxy's memory for buffered responses is full."))

    def resume(self) -> bool:
        return True

    def _passed_without_rules(self) -> bool:
        """Pass on the buffered part of the body if only rules that log need the body.

        Return False if a filter, or a rule other than a log rule, needs the response body.
        """
        if not self._sink.evaluation.decide_response_by_fallback():
            return False
        if may_have_links(self._sink, self._response):
            self._rewrite_links().begin(b"".join(self._buffered), last=False)
        else:
            self._pass_on(b"".join(self._buffered), last=False)
        return True

    def _take_whole(self, body: bytes) -> None:
        """Evaluate and filter a completely received response."""
        sink, response = self._sink, self._response
        try:
            decoded, changed, removed = self._filtered(body)
        except (FilterFailed, ContentCodingError, MalformedBatch, MalformedTarget) as error:
            if sink.evaluation.decide_response_by_fallback():
                self._take_whole_without_rules(body)
                return
            if isinstance(error, DecompressedTooLarge):
                sink.context.counters.values[LIMIT_FILTER_BYTES] += 1
            sink.refuse(filter_failed(str(error)))
            return
        except Refusal as refusal:
            sink.refuse(refusal)
            return
        if may_have_links(sink, response):
            relinked = sink.rewriter().rewrite(decoded if changed is None else changed)
            changed = changed if relinked is None else relinked
        sink.pending.transforms = removed
        send_read(sink, response, body, changed)

    def _take_whole_without_rules(self, body: bytes) -> None:
        if may_have_links(self._sink, self._response):
            self._rewrite_links().take_whole(body)
        else:
            self._pass_on(body, last=True)

    def _rewrite_links(self) -> RewrittenLinks:
        links = RewrittenLinks(self._sink, self._response)
        self._sink.response = links
        return links

    def _pass_on(self, body: bytes, *, last: bool) -> None:
        self._sink.release_buffer()
        pass_on(self._sink, self._response, body, last)

    def _filtered(self, body: bytes) -> tuple[bytes, bytes | None, tuple[str, ...]]:
        """Return the decoded body, the filtered body, and the names of the transforms that removed data.

        The filtered body is None if the rules hide nothing. A transform is effective if it removed something.
        """
        sink, response = self._sink, self._response
        evaluation = sink.evaluation
        awaited = evaluation.awaits_response_body
        if awaited and response.status == 206:
            raise FilterFailed("the response is partial content (206)")
        decoded = decoded_body(body, response, sink.context.limits.max_filter_bytes)
        _require_utf8(response, decoded)
        if awaited:
            evaluation.decide_response(ResponseFacts(response.status, response.headers, decoded))
        changed, removed = self._without_hidden(decoded)
        return decoded, changed, removed

    def _without_hidden(self, body: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        sink, response = self._sink, self._response
        filtered = sink.evaluation.decision.transforms is not None
        if not 200 <= response.status < 300 or not (filtered or sink.batch is not None):
            return None, ()
        if not body:
            if sink.batch is not None:
                raise FilterFailed("the batch response has no body")
            return None, ()
        if response.status == 206:
            raise FilterFailed("the response is partial content (206)")
        if sink.batch is not None:
            # No transforms, because the event of each sub-request names its own.
            return sink.batch.response(body, sink.relocated), ()
        kind = media_type(response.fields.content_type or b"")
        left = sink.evaluation.without_hidden(sink.context, kind, body)
        return left.body, left.removed


class RewrittenLinks(ResponseBody):
    """Response body in which links to the upstream become links to the proxy.

    A short body is buffered; a body too long for the buffer is rewritten as it arrives.
    """

    __slots__ = ("_buffered", "_decoder", "_last", "_links", "_response", "_sink", "_size")

    def __init__(self, sink: ResponseSink, response: ResponseHead) -> None:
        self._sink = sink
        self._response = response
        self._buffered: list[bytes] = []
        self._size = 0
        # State of a body that is rewritten as it arrives
        self._links: LinkStream | None = None
        self._decoder: StreamDecoder | None = None
        self._last = False

    def take(self, chunk: bytes, last: bool) -> None:
        if self._links is not None:
            self._rewrite(self._links, chunk, last)
            return
        self._buffered.append(chunk)
        self._size += len(chunk)
        limit = BUFFER_BYTES if self._response.fields.content_encoding is None else BUFFER_CODED_BYTES
        if last:
            self.take_whole(b"".join(self._buffered))
        elif self._size > limit or not self._sink.reserve_buffer(len(chunk)):
            self.begin(b"".join(self._buffered), last=False)

    def resume(self) -> bool:
        if self._links is not None and self._decoder is not None and self._decoder.pending:
            self._rewrite(self._links, b"", self._last)
            return not self._sink.connection.write_paused
        return True

    def take_whole(self, body: bytes) -> None:
        """Send a response body that was received completely.

        The bytes of the body do not change if the body has no link to rewrite.
        """
        sink, response = self._sink, self._response
        try:
            decoded = decoded_body(body, response, sink.context.limits.max_filter_bytes)
        except DecompressedTooLarge:  # too large to buffer in its decompressed form
            self.begin(body, last=True)
            return
        except ContentCodingError as error:
            sink.refuse(unreadable_response(str(error), response.status))
            return
        send_read(sink, response, body, sink.rewriter().rewrite(decoded))

    def begin(self, body: bytes, *, last: bool) -> None:
        """Rewrite the links of a response as it arrives, beginning with `body`."""
        sink, response = self._sink, self._response
        links = self._links = sink.rewriter().stream()
        if response.fields.content_encoding is not None:
            try:
                self._decoder = StreamDecoder(split_codings(response.fields.content_encoding))
            except ContentCodingError as error:
                sink.refuse(unreadable_response(str(error), response.status))
                return
        self._buffered = []
        sink.release_buffer()
        sink.send_head(response.status, client_head(sink, response, CHUNKED, changed=True), b"", 0)
        self._rewrite(links, body, last)

    def _rewrite(self, links: LinkStream, chunk: bytes, last: bool) -> None:
        """Rewrite the links in a piece of a response body.

        Decompress the piece of the body in steps, no faster than the client reads the output.
        """
        decoder = self._decoder
        self._last = last
        try:
            if decoder is not None:
                chunk = decoder.feed(chunk)
                while decoder.pending:
                    self._send(links.feed(chunk), last=False)
                    if self._sink.connection.write_paused:
                        return
                    chunk = decoder.feed(b"")
                if last:
                    chunk += decoder.finish()
        except ContentCodingError as error:
            self._sink.refuse(unreadable_response(str(error), self._response.status))
            return
        out = links.feed(chunk)
        if last and (rest := links.finish()):
            out += rest
        self._send(out, last=last)

    def _send(self, chunk: bytes, *, last: bool) -> None:
        before, behind = (b"", b"") if self._sink.head.http10 else chunk_frame(len(chunk), last)
        self._sink.send_piece(before, chunk, behind, last)


def decoded_body(body: bytes, response: ResponseHead, limit: int) -> bytes:
    """Return a response body without its content codings.

    Raise ContentCodingError if the body cannot be decompressed. Raise ContentCodingError also if the
    decompressed body has more than `limit` bytes.
    """
    coding = response.fields.content_encoding
    return body if coding is None else decode(body, split_codings(coding), limit=limit)


def _require_utf8(response: ResponseHead, body: bytes) -> None:
    """Raise FilterFailed if the response body is not in UTF-8.

    In a response that is not in UTF-8, the filter would not recognise the name of a hidden property, and
    would pass the property on.
    """
    content_type = response.fields.content_type
    if is_json(content_type) and not is_utf8((content_type or b"").decode("latin-1"), body):
        raise FilterFailed("the response is not in UTF-8")
