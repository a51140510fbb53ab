"""Closed-loop load for benchmark jobs: wrk if it is installed, otherwise the project's load client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.samples import REQUEST, TOKEN
from bench.tools import ROOT, cores, find

CONNECTIONS: Final = 32
ONE_PATH: Final = "/v1.0/users/adele#user#@contoso.com?$select=id,displayName"
LIST_PATH: Final = "/v1.0/users?$top=100"
_REQUEST_LINE: Final = REQUEST.partition(b"\r\n")[0]
_REQUEST_ID: Final = b"0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f"


class LoadFailed(Exception):
    """Error because the load generator did not get the expected responses."""


@dataclass(frozen=True, slots=True)
class Load:
    requests: int
    seconds: float
    bytes_read: int


def head(path: str, token: str) -> bytes:
    """Return the head of a request as a Graph SDK sends it, with nine header fields.

    The load generator replaces `#id#` in the head by a separate id for each request.
    """
    return (
        REQUEST.replace(_REQUEST_LINE, f"GET {path} HTTP/1.1".encode())
        .replace(TOKEN.encode(), token.encode())
        .replace(_REQUEST_ID, b"#id#")
    )


# Takes address, connections, seconds and head file, and returns a command.
Client = Callable[[str, int, int, Path], list[str]]


def own_client(url: str, connections: int, seconds: int, head_file: Path) -> list[str]:
    module = [sys.executable, "-m", "bench.load_client"]
    return [*module, url, str(connections), str(seconds), str(head_file)]


def best_client(url: str, connections: int, seconds: int, head_file: Path) -> list[str]:
    wrk = find("wrk")
    if wrk is None:
        return own_client(url, connections, seconds, head_file)
    script = str(ROOT / "bench" / "requests.lua")
    return [wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script, url, "--", str(head_file)]


@dataclass(frozen=True, slots=True)
class Loader:
    """Load generator that sends the request in a file to a local port again and again, for some seconds."""

    head_file: Path
    tls: bool = False
    connections: int = CONNECTIONS
    client: Client = best_client

    def run(self, port: int, seconds: int) -> Load:
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{port}"
        done = subprocess.run(
            self.client(url, self.connections, seconds, self.head_file),
            cwd=ROOT,
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cores().load}),
        )
        return _result(done.stdout, done.stderr)


def _result(out: str, err: str) -> Load:
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise LoadFailed(f"the load generator ended without a result: {(out + err)[-500:]}")
    requests, microseconds, length, errors = map(int, lines[0].split()[1:])
    if errors or not requests:
        raise LoadFailed(f"{errors} of {requests} requests failed")
    return Load(requests, microseconds / 1e6, length)


def request_loader(
    run: Path, token: str, path: str, *, tls: bool = False, client: Client = best_client
) -> Loader:
    """Return a load generator that requests `path` repeatedly."""
    file = run / ("list.head" if path == LIST_PATH else "one.head")
    file.write_bytes(head(path, token))
    return Loader(file, tls=tls, client=client)
