"""Choose how a response reaches the client: passed on, buffered for rules, or with rewritten links.

The module `response` also applies the response rules that do not need the response body.
"""

from __future__ import annotations

from proxy.policy.canonical import MalformedTarget
from proxy.policy.decision import ResponseFacts
from proxy.policy.redirects import ELSEWHERE, host_elsewhere, is_redirect
from proxy.server.errors import UNCHANGED, Refusal, filter_failed
from proxy.server.exchange.buffered_response import BufferedForRules, RewrittenLinks
from proxy.server.exchange.client_response import is_json, may_have_links, pass_on, send_read
from proxy.server.exchange.owner import ResponseBody, ResponseSink
from proxy.server.http1.response_head import ResponseHead


def begin_response(sink: ResponseSink, response: ResponseHead, chunk: bytes, last: bool) -> None:
    """Send or buffer a response of the upstream. The body of the response begins with `chunk`."""
    elsewhere = False
    if is_redirect(response.status):
        sink.pending.redirect = host_elsewhere(response.headers, sink.context.upstream_bases)
        elsewhere = sink.pending.redirect is not None
    if elsewhere and (
        sink.evaluation.reads_response_body or (sink.batch is not None and sink.batch.reads_responses)
    ):
        refuse_response(sink, response, filter_failed(ELSEWHERE))
        return
    _show_shadow(sink, response, body_known=response.length == 0)
    try:
        for_rules = _rules_need_body(sink, response)
    except MalformedTarget as error:
        sink.refuse(filter_failed(str(error)))
        return
    except Refusal as refusal:
        sink.refuse(refusal)
        return
    if elsewhere and sink.evaluation.filters_response:  # true if a response rule decided to filter it
        sink.evaluation.decide_response_by_fallback()
        sink.refuse(filter_failed(ELSEWHERE))
        return
    if response.status == 304 and sink.evaluation.keeps_items:
        sink.refuse(filter_failed(UNCHANGED))
        return
    body: ResponseBody
    if for_rules:
        body = BufferedForRules(sink, response)
    elif not may_have_links(sink, response):
        pass_on(sink, response, chunk, last)
        return
    elif last and response.fields.content_encoding is None:
        send_read(sink, response, chunk, sink.rewriter().rewrite(chunk))
        return
    else:
        body = RewrittenLinks(sink, response)
    sink.buffer(body)
    body.take(chunk, last)


def refuse_response(sink: ResponseSink, response: ResponseHead, refusal: Refusal) -> None:
    """Refuse a response that the application must not receive.

    Response rules and a shadow ruleset still evaluate the status and the headers of the refused response.
    """
    _show_shadow(sink, response, body_known=True)  # no body reaches the application
    if sink.evaluation.plan.has_response_rules:
        try:
            sink.evaluation.decide_response(ResponseFacts(response.status, response.headers, b""))
        except Refusal as blocked:
            refusal = blocked
        except MalformedTarget:
            pass  # no rule that reads the body can apply
    sink.refuse(refusal)


def _show_shadow(sink: ResponseSink, response: ResponseHead, *, body_known: bool) -> None:
    shadow = sink.pending.shadow
    if shadow is not None and shadow.wants_response:
        shadow.responded(response.status, response.headers, None, body_known=body_known)


def _rules_need_body(sink: ResponseSink, response: ResponseHead) -> bool:
    """Let response rules decide without the response body, if the rules do not need the body.

    Return True if response rules or a filter need the response body.
    """
    evaluation = sink.evaluation
    plan = evaluation.plan
    filterable = 200 <= response.status < 300 and response.length != 0
    if plan.has_response_rules:
        if not plan.response_needs_body or response.length == 0:
            evaluation.decide_response(ResponseFacts(response.status, response.headers, None))
        elif not evaluation.decide_response_without_body(
            ResponseFacts(response.status, response.headers, None, unread=True),
            filterable=filterable,
            json=is_json(response.fields.content_type),
        ):
            return True
    return sink.batch is not None or (filterable and evaluation.decision.transforms is not None)
