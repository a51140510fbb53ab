"""Fake of ClickHouse's HTTP interface over the engine chdb, which is installed only in .venv-clickhouse.

The fake ClickHouse supports the parts that a client of ClickHouse uses: queries with parameters and settings,
INSERTs in any data format, compression, and error codes. The engine chdb executes the queries and INSERTs
that the fake ClickHouse receives. The fake ClickHouse has no sessions, no users with rights and no replicas.

    python clickhouse_server.py DIRECTORY PORT [PASSWORD]

The fake ClickHouse prints a line once it listens.
"""

from __future__ import annotations

import base64
import gzip
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

# Parameters of the interface itself. All other parameters are settings of the query.
_OF_THE_INTERFACE: Final = frozenset(
    {
        *("query", "database", "user", "password", "session_id", "session_timeout", "session_check"),
        *("query_id", "default_format", "compress", "decompress", "enable_http_compression", "role"),
        *("buffer_size", "wait_end_of_query", "client_protocol_version", "send_progress_in_http_headers"),
        "http_headers_progress_interval_ms",
    }
)
# An INSERT followed by its data: in the body after the statement, or in the body alone.
_INSERT: Final = re.compile(rb"(\s*INSERT\s+INTO\b[^\n]*?)\s*\bFORMAT\s+(\w+)[ \t]*\n", re.IGNORECASE)
_FORMAT: Final = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*\Z", re.IGNORECASE)
_CODE: Final = re.compile(r"Code: (\d+)\.")
_AUTHENTICATION_FAILED: Final = 516
_UNKNOWN: Final = frozenset({60, 81})  # unknown table or database: 404, as from the server


class Engine:
    """A session of the ClickHouse engine, which runs one query at a time."""

    def __init__(self, directory: Path) -> None:
        from chdb.session import Session  # type: ignore[import-not-found]  # only in its own environment

        self._session = Session(str(directory))
        self._session.query("CREATE DATABASE IF NOT EXISTS default ENGINE = Atomic")
        self._lock = threading.Lock()

    def run(self, sql: str, form: str, database: str, given: Mapping[str, str]) -> Any:
        settings = {name: text for name, text in given.items() if name not in _OF_THE_INTERFACE}
        parameters = {
            name.removeprefix("param_"): settings.pop(name)
            for name in list(settings)
            if name.startswith("param_")
        }
        with self._lock, self._set(settings):
            self._session.query(f"USE `{database}`")
            return self._session.query(sql, form, params=parameters or None)

    def insert(self, sql: str, data: bytes, database: str, given: Mapping[str, str]) -> Any:
        """Run the INSERT `sql`, in which `{}` stands for the data; the engine reads the data from a file."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return self.run(sql.format(f"FROM INFILE '{file.name}'"), "TabSeparated", database, given)

    def decompressed(self, data: bytes, coding: str) -> bytes:
        with tempfile.NamedTemporaryFile() as file, self._lock:
            file.write(data)
            file.flush()
            source = f"file('{file.name}', 'RawBLOB', 'data String', '{coding}')"
            return bytes(self._session.query(f"SELECT data FROM {source}", "RawBLOB").bytes())

    @contextmanager
    def _set(self, settings: Mapping[str, str]) -> Iterator[None]:
        names = list(settings)
        for name in names:
            self._session.query("SET {} = '{}'".format(name, settings[name].replace("'", "''")))
        try:
            yield
        finally:
            for name in names:
                self._session.query(f"SET {name} = DEFAULT")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    engine: Engine
    password: str

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._send(200, b"Ok.\n")
            return
        self._query(b"")

    def do_POST(self) -> None:
        self._query(self._body())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    def _query(self, body: bytes) -> None:
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("multipart/form-data"):
            given |= _form(kind, body)
            body = b""
        if not self._is_known(given):
            self._fail(_AUTHENTICATION_FAILED, "default: Authentication failed (AUTHENTICATION_FAILED)")
            return
        database = given.get("database") or self.headers.get("X-ClickHouse-Database") or "default"
        form = self.headers.get("X-ClickHouse-Format") or given.get("default_format") or "TabSeparated"
        try:
            if coding := self.headers.get("Content-Encoding"):
                body = self.engine.decompressed(body, coding)
            whole = b"\n".join(filter(None, (given.get("query", "").encode(), body)))
            if insert := _INSERT.match(whole):
                form = "TabSeparated"
                sql, data = f"{insert[1].decode()} {{}} FORMAT {insert[2].decode()}", whole[insert.end() :]
                result = self.engine.insert(sql, data, database, given)
            else:
                sql = whole.decode()
                result = self.engine.run(sql, form, database, given)
        except Exception as error:  # the engine's own error has its code in its text
            code = _CODE.search(str(error))
            self._fail(int(code[1]) if code else 1, str(error))
            return
        named = _FORMAT.search(sql)
        self._send(
            200,
            bytes(result.bytes()) if result is not None else b"",
            {
                "X-ClickHouse-Format": named[1] if named else form,
                "X-ClickHouse-Summary": f'{{"read_rows":"{result.rows_read()}","written_rows":"0"}}',
                "X-ClickHouse-Timezone": "UTC",
            },
        )

    def _is_known(self, given: Mapping[str, str]) -> bool:
        if not self.password:
            return True
        scheme, _, pair = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            return base64.b64decode(pair).decode().partition(":")[2] == self.password
        return self.password in (self.headers.get("X-ClickHouse-Key"), given.get("password"))

    def _fail(self, code: int, text: str) -> None:
        status = 403 if code == _AUTHENTICATION_FAILED else 404 if code in _UNKNOWN else 500
        message = text if text.startswith("Code:") else f"Code: {code}. DB::Exception: {text}"
        self._send(status, message.encode(), {"X-ClickHouse-Exception-Code": str(code)})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        accepted = self.headers.get("Accept-Encoding", "")
        if "enable_http_compression=1" in self.path and "gzip" in accepted:
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because errors are in the response."""


def _form(kind: str, body: bytes) -> dict[str, str]:
    """Return the parameters that the body of a form contains.

    A client sends a form if the parameters are too long for a URL.
    """
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    given = {}
    for part in message.iter_parts():
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        given[str(part.get_param("name", header="Content-Disposition"))] = payload.decode()
    return given


def main(directory: str, port: str, password: str = "") -> None:
    Handler.engine = Engine(Path(directory))
    Handler.password = password
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    print(f"listening on {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
