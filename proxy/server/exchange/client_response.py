"""The response as the client receives it: head, framing, and body pieces that are sent as they arrive."""

from __future__ import annotations

from typing import Final

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.plain_responses import media_type
from proxy.server.exchange.owner import ResponseBody, ResponseSink
from proxy.server.http1.body_reader import CHUNKED
from proxy.server.http1.chunked import chunk_frame, framed_chunk
from proxy.server.http1.forwarded_headers import KEPT, head_for_client
from proxy.server.http1.response_head import ResponseHead


class PassThrough(ResponseBody):
    """Response body that the proxy sends to the client while it arrives from the upstream.

    `chunked` means that the client receives the body in chunks.
    """

    __slots__ = ("_chunked", "_sink")

    def __init__(self, sink: ResponseSink, *, chunked: bool) -> None:
        self._sink = sink
        self._chunked = chunked

    def take(self, chunk: bytes, last: bool) -> None:
        before, behind = chunk_frame(len(chunk), last) if self._chunked else (b"", b"")
        self._sink.send_piece(before, chunk, behind, last)

    def resume(self) -> bool:
        return True


def pass_on(sink: ResponseSink, response: ResponseHead, chunk: bytes, last: bool) -> None:
    """Send the head and the first body bytes of a response that the proxy does not examine."""
    size = len(chunk)
    sized = response.length >= 0
    head = client_head(sink, response, KEPT if sized else CHUNKED)
    chunked = not sized and not sink.head.http10
    if chunked:
        chunk = framed_chunk(chunk, last)
    if last:
        sink.send_whole(response.status, head, chunk, size)
        return
    sink.response = PassThrough(sink, chunked=chunked)
    sink.send_head(response.status, head, chunk, size)


def send_read(sink: ResponseSink, response: ResponseHead, body: bytes, changed: bytes | None) -> None:
    """Send a response that the proxy has read completely.

    The client receives `changed` without content coding. If `changed` is None, the client receives the
    upstream's `body` unchanged.
    """
    final = body if changed is None else changed
    head = client_head(sink, response, len(final), changed=changed is not None)
    sink.send_whole(response.status, head, final, len(final))


def client_head(sink: ResponseSink, response: ResponseHead, length: int, *, changed: bool = False) -> bytes:
    """Return the response head for the client.

    `length` is the size of the response body in bytes, or the constant CHUNKED or KEPT. KEPT keeps the length
    that the upstream declared.
    """
    status = response.status
    # The length of a body that is absent, but that a filter or a rule would change or read.
    hidden = sink.evaluation.reads_response_body and (
        status == 304 or (sink.head.method == "HEAD" and 200 <= status < 300)
    )
    return head_for_client(
        response,
        length,
        changed=changed or hidden,
        length_hidden=hidden,
        http10=sink.head.http10,
        close=status >= 200 and not sink.connection.persists(),
        relocated=sink.relocated,
    )


def may_have_links(sink: ResponseSink, response: ResponseHead) -> bool:
    """Return True if the response may contain links that an SDK would follow to more data."""
    return (
        response.length != 0
        and sink.context.rewrite_links
        and response.status != 206  # a range must keep its position and length within the whole
        and is_json(response.fields.content_type)
    )


_LONGEST_CONTENT_TYPE: Final = 256  # bytes of a value to remember; a longer one is parsed each time
_json_types: Final[BoundedMemo[bytes, bool]] = BoundedMemo(256, _LONGEST_CONTENT_TYPE, WhenFull.KEEP)


def is_json(content_type: bytes | None) -> bool:
    """Return True if the Content-Type is a JSON type."""
    if content_type is None:
        return False
    known = _json_types.entries.get(content_type)
    if known is None:
        known = media_type(content_type).is_json
        _json_types.keep(content_type, known)
    return known
