"""Measure how long the proxy takes for a complete request, with in-memory transports instead of sockets."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pytest_benchmark.fixture import BenchmarkFixture

from bench.samples import REQUEST, RESPONSE, TOKEN, rules
from proxy.policy.compile import compile_ruleset
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.server.callers.shadow import ShadowRules
from proxy.server.client.connection import ClientConnection
from proxy.server.router import handler_for
from proxy.server.upstream.connection import UpstreamConnection
from tests.bytes.data_path import DataPath, data_path, responding

_QUIET = os.eventfd(0)  # Descriptor without data to read, like that of an idle connection
_SOCKET = SimpleNamespace(fileno=lambda: _QUIET)


class _Transport:
    """Transport that discards everything written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write: Callable[[bytes], None] = self.written.append
        self.writelines: Callable[[Iterable[bytes]], None] = self.written.extend

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else _SOCKET

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def _one_request(proxy: DataPath) -> Callable[[], None]:
    context = proxy.context
    client, upstream = _Transport(), _Transport()
    connection = ClientConnection(context, handler_for, secure=False)
    connection.connection_made(cast(asyncio.Transport, client))
    backend = UpstreamConnection(context.pool)
    backend.connection_made(cast(asyncio.Transport, upstream))
    context.pool.release(backend)
    request = REQUEST.replace(TOKEN.encode(), proxy.token.encode())
    spool = context.spool

    def run() -> None:
        connection.data_received(request)
        context.iteration.end()
        backend.data_received(RESPONSE)
        context.iteration.end()
        upstream.written.clear()
        client.written.clear()
        if spool.needs_maintenance:
            spool.maintain()

    connection.data_received(request)
    context.iteration.end()
    assert upstream.written[0].startswith(b"GET /v1.0/users/ada@contoso.com")
    backend.data_received(RESPONSE)
    context.iteration.end()
    assert client.written[0].startswith(b"HTTP/1.1 200 OK")
    return run


def test_whole_request(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    async def measure() -> None:
        async with data_path(responding(b""), tmp_path, rules(100)) as proxy:
            benchmark(_one_request(proxy))

    started = time.monotonic()
    asyncio.run(measure())
    assert time.monotonic() > started


def test_whole_request_with_a_shadow(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Measure a complete request of an application with a shadow ruleset."""
    shadow = ShadowRules(compile_ruleset(parse_ruleset(rules(100))), 2)

    async def measure() -> None:
        async with data_path(responding(b""), tmp_path, rules(100)) as proxy:
            book = proxy.context.rulebook
            callers = {name: replace(each, shadow=shadow) for name, each in book.callers.items()}
            proxy.context.use(replace(book, callers=callers))
            benchmark(_one_request(proxy))
            assert proxy.events()[-1]["shadowVerdict"] == "allow"

    asyncio.run(measure())
