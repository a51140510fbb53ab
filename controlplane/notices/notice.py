"""A notice for operators in two forms: as a CloudEvent, and as a text for a chat (pure functions)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
import orjson

from controlplane.sinks.settings import Kind as Kind
from proxy.wire.audit_event import rfc3339

Step = Literal["happened", "began", "reminder", "ended"]


class Notice(msgspec.Struct, frozen=True, rename="camel"):
    """Notice to operators about one thing that has happened."""

    notice_id: str  # the same for each repetition, so that a receiver can drop duplicates
    kind: Kind
    step: Step
    time_ms: int
    org_ids: tuple[str, ...]  # ids of the organisations that it is about; empty for the whole control plane
    subject: str
    text: str  # one sentence for a person
    data: Mapping[str, Any] = {}


class Form(msgspec.Struct, frozen=True):
    media_type: str
    body: Callable[[Notice, str], bytes]  # makes the body from a notice and the address of the control plane


def notice_id(*parts: object) -> str:
    """Return a notice ID that depends only on `parts`."""
    return f"ntc_{hashlib.sha256(repr(parts).encode('utf-8', 'replace')).hexdigest()[:32]}"


def encoded(notice: Notice) -> str:
    return msgspec.json.encode(notice).decode()


def decoded(text: str) -> Notice:
    return msgspec.json.decode(text, type=Notice)


def test_notice(now_ms: int) -> Notice:
    """Return a sample notice that an operator sends to test a webhook's receiver."""
    text = "This is a test of a webhook of Graphward. Nothing happened."
    return Notice(notice_id("test", now_ms), "sink", "happened", now_ms, (), "test", text)


def _cloud_event(notice: Notice, source: str) -> bytes:
    """Return the notice in the JSON format of CloudEvents 1.0.2, in structured mode."""
    about = {"text": notice.text, "step": notice.step, "organisations": notice.org_ids}
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": notice.notice_id,
            "source": source,
            "type": f"graphward.{notice.kind}.{notice.step}",
            "subject": notice.subject,
            "time": rfc3339(notice.time_ms),
            "datacontenttype": "application/json",
            "data": {**about, **notice.data},
        }
    )


def _slack(notice: Notice, source: str) -> bytes:
    """Return the notice as a text for Slack.

    Slack reads `&`, `<` and `>` as commands, so they are escaped.
    """
    text = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return orjson.dumps({"text": f"Graphward: {text} ({source})"})


def _teams(notice: Notice, source: str) -> bytes:
    """Return the notice as an adaptive card, which workflows of Microsoft Teams accept."""
    blocks = [
        {"type": "TextBlock", "text": "Graphward", "weight": "Bolder"},
        {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": notice.text}]},
        {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": source, "isSubtle": True}]},
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return orjson.dumps({"type": "message", "attachments": [attachment]})


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "cloudevents": Form("application/cloudevents+json; charset=utf-8", _cloud_event),
        "slack": Form("application/json; charset=utf-8", _slack),
        "teams": Form("application/json; charset=utf-8", _teams),
    }
)
