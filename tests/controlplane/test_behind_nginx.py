"""Tests that streams of the admin API pass through nginx without special directives."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.controlplane.plane import event
from tests.controlplane.test_admin_audit import Reader, Trail, trail  # noqa: F401 - a fixture
from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port
from tests.patience import PATIENCE_SECONDS

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
# Seconds: longer than an event takes, but shorter than the stream's keepalive, which would flush a buffer.


@asynccontextmanager
async def nginx(folder: Path, behind: str) -> AsyncIterator[str]:
    """Yield the address of an nginx that forwards every request to `behind`."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log stderr; worker_processes 1;\n"
        "events { worker_connections 64; }\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {behind}; }} }} }}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(NGINX, "-p", str(folder), "-c", str(config)),
        stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    try:
        await _listening(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _listening(port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return


@pytest.mark.skipif(not Path(NGINX).exists(), reason="nginx is not installed")
async def test_an_event_passes_nginx_when_it_is_stored(trail: Trail, tmp_path: Path) -> None:  # noqa: F811
    acme = trail.orgs["acme"]
    async with nginx(tmp_path, trail.plane.console_url) as address:
        headers = {"Authorization": f"Bearer {trail.tokens['acme']}"}
        async with asyncio.timeout(PATIENCE_SECONDS):
            response = await trail.plane.session.get(f"{address}/admin/v1/audit/tail", headers=headers)
            async with response:
                reader = Reader(trail, "acme")
                await reader.read(response, blocks=1)
                for number in (40, 41):
                    await trail.keep("acme", event(acme, number))
                    assert await reader.take(response, 1) == [number]


@pytest.mark.parametrize("path", ["tail", "export?format=csv", "export?format=ndjson"])
async def test_a_stream_says_that_it_is_one(trail: Trail, path: str) -> None:  # noqa: F811
    headers = {"Authorization": f"Bearer {trail.tokens['acme']}"}
    url = f"{trail.plane.console_url}/admin/v1/audit/{path}"
    async with trail.plane.session.get(url, headers=headers) as response:
        assert response.status == 200
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["Cache-Control"] == "no-store, no-transform"
