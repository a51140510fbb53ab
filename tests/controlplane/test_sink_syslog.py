"""Tests of the syslog sink, with messages by RFC 5424, framing by RFC 5425 over TLS, and lost connections."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from controlplane.sinks import syslog
from controlplane.sinks.interface import SinkUnavailable
from controlplane.sinks.settings import SyslogSettings
from controlplane.sinks.syslog import SyslogSink, fitting_message, message_of
from tests.controlplane.search_events import event
from tests.controlplane.test_sink_splunk import events
from tests.fakes.certificates import CertificateAuthority, client_certificate
from tests.fakes.syslog import SyslogServer, syslog_server

SETTINGS: Final = SyslogSettings(name="log", kind="syslog", url="tcp://127.0.0.1:1", timeout_seconds=5)
_MESSAGE: Final = re.compile(
    rb"<(?P<priority>\d{1,3})>1 (?P<time>\S+) (?P<host>\S+) (?P<app>\S+) (?P<process>\S+) (?P<id>\S+)"
    rb" (?P<data>-|\[(?:[^\]\\]|\\.)*\]) (?P<text>.*)",
    re.DOTALL,
)


def parts(**changes: Any) -> dict[str, bytes]:
    settings = {key: changes.pop(key) for key in ("structured_data", "facility") if key in changes}
    message = message_of(events(event(1, **changes))[0], replace(SETTINGS, **settings))
    matched = _MESSAGE.fullmatch(message)
    assert matched is not None, message
    return matched.groupdict()


def test_a_message_has_the_header_of_rfc_5424() -> None:
    found = parts()
    assert found["priority"] == b"%d" % (13 * 8 + 6)
    assert re.fullmatch(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])
    assert (found["host"], found["app"], found["process"], found["id"]) == (
        b"proxy-1",
        b"graphward",
        b"-",
        b"allow",
    )
    assert found["data"] == b"-"
    assert orjson.loads(found["text"]) == event(1)
    assert parts(verdict="block", facility=4)["priority"] == b"%d" % (4 * 8 + 4)
    assert parts(status=404)["priority"] == b"%d" % (13 * 8 + 5)


def test_no_value_can_break_a_header_or_structured_data() -> None:
    found = parts(proxyId="a b\n<1>1", time="yesterday", path='/x"]\\y\nz', structured_data=True)
    assert found["host"] == b"a?b?<1>1"
    assert found["time"] == b"-"
    assert rb'path="/x\"\]\\y z"' in found["data"]
    assert found["data"].startswith(b"[graphward@32473 id=")


async def sent_and_read(sink: SyslogSink, server: SyslogServer, *numbers: int) -> None:
    await sink.send(events(*(event(each) for each in numbers)))
    for _ in numbers:
        await server.arrived.acquire()


def seqs(server: SyslogServer) -> list[int]:
    found = []
    for message in server.messages:
        matched = _MESSAGE.fullmatch(message)
        assert matched is not None
        found.append(orjson.loads(matched["text"])["seq"])
    return found


async def test_messages_arrive_over_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    client = client_certificate()
    client_file = tmp_path / "client.pem"
    client_file.write_text(client.pem)
    tls = authority.server().server_context()
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(cadata=client.certificate.public_bytes(Encoding.PEM).decode())
    async with syslog_server(tls) as server:
        settings = replace(
            SETTINGS,
            url=f"tls://127.0.0.1:{server.port}",
            ca_file=authority.ca_file,
            client_cert_file=client_file,
            client_key_file=client_file,
        )
        sink = SyslogSink(settings)
        assert (await sink.test()).startswith(f"connected to 127.0.0.1:{server.port} over TLSv1.")
        await sent_and_read(sink, server, 1, 2, 3)
        # The server ends the connection. It may not have read the newest messages, so they are sent again.
        server.end_connections()
        await asyncio.sleep(0)
        await sink.send(events(event(4)))
        for _ in range(4):
            await server.arrived.acquire()
        assert seqs(server) == [1, 2, 3, 1, 2, 3, 4]
        await sink.close()
        with pytest.raises(SinkUnavailable, match="its certificate is refused: "):
            await SyslogSink(replace(settings, ca_file=None)).send(events(event(1)))


@pytest.mark.parametrize("form", ["event", "ocsf", "cef"])
async def test_an_application_hides_no_request_by_a_long_url(form: Literal["event", "ocsf", "cef"]) -> None:
    hidden = {
        "path": "/evil/" + "\U0001f600" * 6000,
        "query": "q=" + '"' * 9000,
        "clientRequestId": "r" * 3000,
    }
    async with syslog_server() as server:
        settings = replace(SETTINGS, url=f"tcp://127.0.0.1:{server.port}", format=form, structured_data=True)
        sink = SyslogSink(settings)
        sent = await sink.send(events(event(1), event(2, verdict="block", **hidden), event(3), form=form))
        assert sent.refused == ()
        for _ in range(3):
            await server.arrived.acquire()
        message = server.messages[1]
        assert len(message) <= settings.max_message_bytes
        assert b"/evil/" in message
        assert b"more]" in message
        matched = _MESSAGE.fullmatch(message)
        assert matched is not None
        if form == "event":
            found = orjson.loads(matched["text"])
            assert found.keys() == event(2, verdict="block", **hidden).keys()
            assert found["id"] == event(2)["id"]
        await sink.close()
    without = replace(SETTINGS, url=settings.url, max_message_bytes=480)
    assert len(fitting_message(events(event(2, ruleIds=["r"] * 500))[0], without)) > 480


async def test_what_a_connection_outlived_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed idle connection must not make the sink send events again, because repeats distort alerts."""
    async with syslog_server() as server:
        sink = SyslogSink(replace(SETTINGS, url=f"tcp://127.0.0.1:{server.port}"))
        drop, dropped = sink._drop, asyncio.Event()

        def noted() -> None:
            drop()
            dropped.set()

        monkeypatch.setattr(sink, "_drop", noted)
        await sent_and_read(sink, server, 1, 2)
        monkeypatch.setattr(syslog, "KEPT_SECONDS", 0.0)
        server.end_connections()
        await dropped.wait()
        monkeypatch.setattr(syslog, "KEPT_SECONDS", 60.0)
        await sent_and_read(sink, server, 3)
        dropped.clear()
        server.end_connections()
        await dropped.wait()
        await sink.send(events(event(4)))
        for _ in range(2):
            await server.arrived.acquire()
        assert seqs(server) == [1, 2, 3, 3, 4]
        await sink.close()


async def test_nobody_listens() -> None:
    with pytest.raises(SinkUnavailable, match=r"no connection to 127\.0\.0\.1:1: Connection refused"):
        await SyslogSink(SETTINGS).send(events(event(1)))


async def test_messages_that_the_server_does_not_read_are_not_delivered() -> None:
    async with syslog_server() as server:
        server.reads.clear()
        sink = SyslogSink(
            replace(
                SETTINGS,
                url=f"tcp://127.0.0.1:{server.port}",
                timeout_seconds=0.3,
                max_message_bytes=1_000_000,
            )
        )
        large = [event(each, path="/" + "x" * 900_000) for each in range(8)]
        with pytest.raises(SinkUnavailable, match="the connection to the syslog server broke"):
            await sink.send(events(*large))
        await sink.close()
