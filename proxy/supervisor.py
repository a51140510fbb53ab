"""Processes only: opens the sockets, starts workers and agent, replaces the dead, stops and reloads in order.

The supervisor runs no event loop and touches no request. It waits for signals and, once a second, looks
whether each worker's loop still turns.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proxy import log
from proxy.agent.main import run_agent
from proxy.channel import channel_pair
from proxy.config import Address, SettingsError
from proxy.counters import ALIVE_AT, CounterPages, Counters
from proxy.settings import Settings, load
from proxy.signing_key import SigningKeyError, signing_key
from proxy.worker import run_worker

logger = logging.getLogger(__name__)

AGENT_STOP_SECONDS: Final = 10.0  # the agent ships what is left, then goes
DRAIN_MARGIN_SECONDS: Final = 5.0  # beyond DrainSeconds, after which a worker cuts by itself
HUNG_SECONDS: Final = 30  # a worker whose loop has not turned for so long is replaced
START_SECONDS: Final = 30.0  # a reload waits so long for its new workers
QUICK_DEATH_SECONDS: Final = 5.0
MAX_RESTART_DELAY: Final = 5.0

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_PR_SET_PDEATHSIG: Final = 1


class StartError(Exception):
    """The proxy can't start; the message is one line for the operator."""


@dataclass(eq=False)
class Child:
    """One process, and how to start it again."""

    name: str
    run: Callable[[Callable[[], None]], int]
    counters: Counters | None = None  # of a worker: where it says that its loop turns
    pid: int = 0
    started: float = 0.0
    ready: bool = False
    retired: bool = False  # not to be replaced
    quick_deaths: int = 0
    start_at: float | None = None
    ready_fd: int | None = None


@dataclass(eq=False)
class Generation:
    """The processes of one reading of the settings, and the channels between them."""

    settings: Settings
    channels: list[tuple[socket.socket, socket.socket]]
    workers: list[Child] = field(default_factory=list)
    agent: Child | None = None

    def close_channels(self) -> None:
        for pair in self.channels:
            for end in pair:
                end.close()


class Supervisor:
    """Owns the sockets and the children."""

    def __init__(self, config: Path, settings: Settings) -> None:
        self._config = config
        self._count = settings.proxy.workers or os.cpu_count() or 1
        self._listeners = [_listen(settings.proxy.listen) for _ in range(1)]
        addresses = [_bound(each) for each in self._listeners[0]]
        self._listeners += [_listen(addresses) for _ in range(self._count - 1)]
        # A reload runs two generations side by side for a moment, each with pages of its own.
        self._pages = CounterPages(2 * self._count)
        self._half = 0
        self._children: list[Child] = []
        self._generation: Generation | None = None
        self._reload: Reload | None = None
        self._stopping = False
        self._settings = settings

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        gc.collect()
        gc.freeze()  # so that a collection in a child doesn't copy the pages that it shares with us
        self._generation = self._make_generation(self._settings)
        for child in (self._generation.agent, *self._generation.workers):
            assert child is not None
            self._start(child)
        scheme = "https" if self._settings.proxy.cert_file else "http"
        for listener in self._listeners[0]:
            logger.info("listening on %s://%s with %d workers", scheme, _bound(listener), self._count)
        while not (self._stopping and not self._children):
            received = signal.sigtimedwait(_SIGNALS, 0.2)
            if received is not None:
                self._handle(received.si_signo)
            self._look_after_children()
        return 0

    # Generations

    def _make_generation(self, settings: Settings) -> Generation:
        key = signing_key(settings.token.signing_key, settings.token.signing_key_file)
        pages = self._pages.workers[self._half * self._count : (self._half + 1) * self._count]
        generation = Generation(settings, [channel_pair() for _ in range(self._count)])
        for slot, page in enumerate(pages):
            generation.workers.append(
                Child(f"worker-{slot}", self._worker(generation, slot, page, key), counters=page)
            )
        generation.agent = Child("agent", self._agent(generation))
        return generation

    def _worker(
        self, generation: Generation, slot: int, page: Counters, key: bytes
    ) -> Callable[[Callable[[], None]], int]:
        def run(ready: Callable[[], None]) -> int:
            log.configure(generation.settings.log.level, generation.settings.log.format, f"worker-{slot}")
            own = self._listeners.pop(slot)
            self._close_listeners()
            return run_worker(generation.settings, key, own, generation.channels[slot][0], page, ready)

        return run

    def _agent(self, generation: Generation) -> Callable[[Callable[[], None]], int]:
        def run(ready: Callable[[], None]) -> int:
            log.configure(generation.settings.log.level, generation.settings.log.format, "agent")
            self._close_listeners()
            ready()
            return run_agent(generation.settings, [pair[1] for pair in generation.channels], self._pages)

        return run

    # Children

    def _start(self, child: Child) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _become_child(child, writing)
        os.close(writing)
        os.set_blocking(reading, False)
        child.pid, child.started, child.start_at = pid, time.monotonic(), None
        child.ready, child.ready_fd = False, reading
        if child not in self._children:
            self._children.append(child)

    def _look_after_children(self) -> None:
        self._reap()
        now = time.monotonic()
        for child in self._children:
            if child.start_at is not None and child.start_at <= now:
                self._start(child)
            self._notice_ready(child)
            self._replace_if_hung(child)
        if self._stopping:
            self._go_on_stopping()
        elif self._reload is not None:
            self._go_on_reloading(self._reload)

    def _notice_ready(self, child: Child) -> None:
        if child.ready_fd is None or not select.select([child.ready_fd], [], [], 0)[0]:
            return
        if os.read(child.ready_fd, 1):
            child.ready = True
            logger.debug("%s is ready", child.name)
        os.close(child.ready_fd)
        child.ready_fd = None

    def _replace_if_hung(self, child: Child) -> None:
        if child.counters is None or not child.ready or not child.pid:
            return
        alive_at = child.counters.values[ALIVE_AT]
        quiet = time.time() - alive_at
        # A jump of the clock looks like a hang once; the start time keeps it from looking so twice.
        if alive_at and quiet > HUNG_SECONDS and time.monotonic() - child.started > HUNG_SECONDS:
            logger.error("%s does not respond, replacing it", child.name)
            os.kill(child.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    self._bury(child, os.waitstatus_to_exitcode(status))
                    break

    def _bury(self, child: Child, code: int) -> None:
        child.pid = 0
        if child.ready_fd is not None:
            os.close(child.ready_fd)
            child.ready_fd = None
        if child.counters is not None:
            child.counters.reset_gauges()
        if child.retired or self._stopping:
            self._children.remove(child)
            return
        lived = time.monotonic() - child.started
        child.quick_deaths = child.quick_deaths + 1 if lived < QUICK_DEATH_SECONDS else 0
        delay = min(MAX_RESTART_DELAY, 0.1 * 2**child.quick_deaths) if child.quick_deaths > 1 else 0.0
        child.start_at = time.monotonic() + delay
        logger.error("%s ended with %s, starting another", child.name, _told(code))

    # Signals

    def _handle(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif number == signal.SIGHUP and not self._stopping and self._reload is None:
            self._begin_reload()

    def _stop(self) -> None:
        """Workers drain first; the agent goes last, so that it can ship what they leave."""
        if self._stopping:
            return
        self._stopping = True
        logger.info("stopping")
        self._children = [child for child in self._children if child.pid]
        self._retire(child for child in self._children if child.counters is not None)
        self._close_listeners()

    def _go_on_stopping(self) -> None:
        workers = [child for child in self._children if child.counters is not None]
        if not workers:
            self._retire(child for child in self._children if not child.retired)
        drain_seconds = self._settings.proxy.drain_seconds + DRAIN_MARGIN_SECONDS
        self._kill_late(workers, drain_seconds)
        self._kill_late([child for child in self._children if not child.counters], AGENT_STOP_SECONDS)

    def _kill_late(self, children: Iterable[Child], seconds: float) -> None:
        for child in children:
            if child.retired and child.pid and time.monotonic() - child.started > seconds:
                logger.error("%s did not end in time", child.name)
                os.kill(child.pid, signal.SIGKILL)

    def _retire(self, children: Iterable[Child]) -> None:
        for child in children:
            child.retired = True
            child.started = time.monotonic()  # from here its end is timed
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)

    # Reloading

    def _begin_reload(self) -> None:
        """New settings in new processes; the old ones serve until the new are ready."""
        try:
            settings = load(self._config, os.environ)
            signing_key(settings.token.signing_key, settings.token.signing_key_file)
        except (SettingsError, SigningKeyError) as error:
            for line in str(error).splitlines():
                logger.error("not reloaded: %s", line)
            return
        self._warn_of_fixed(settings)
        old = self._generation
        assert old is not None
        assert old.agent is not None
        self._half = 1 - self._half
        new = self._make_generation(settings)
        self._reload = Reload(old, new)
        logger.info("reloading")
        for child in new.workers:
            self._start(child)
        # Only one agent may own the spool: the old one hands over by ending.
        self._retire([old.agent])

    def _warn_of_fixed(self, settings: Settings) -> None:
        old, new = self._settings, settings
        fixed = {
            "Proxy.Listen": old.proxy.listen != new.proxy.listen,
            "Proxy.Workers": old.proxy.workers != new.proxy.workers,
            "Audit.LocalRetentionPath": old.audit.local_retention_path != new.audit.local_retention_path,
        }
        for key, changed in fixed.items():
            if changed:
                logger.warning("%s takes effect at the next start", key)

    def _go_on_reloading(self, reload: Reload) -> None:
        old, new = reload.old, reload.new
        assert old.agent is not None
        assert new.agent is not None
        if old.agent in self._children:
            self._kill_late([old.agent], AGENT_STOP_SECONDS)
            return
        if new.agent not in self._children:
            self._start(new.agent)
        if not reload.handed_over:
            if not all(child.ready for child in new.workers):
                return
            reload.handed_over = True
            self._retire(old.workers)
        if not any(child in self._children for child in old.workers):
            old.close_channels()
            self._generation, self._settings, self._reload = new, new.settings, None
            logger.info("reloaded")

    def _close_listeners(self) -> None:
        for group in self._listeners:
            for listener in group:
                listener.close()


@dataclass(eq=False)
class Reload:
    """A reload under way."""

    old: Generation
    new: Generation
    handed_over: bool = False


def _become_child(child: Child, writing: int) -> None:
    """The child's side of a fork; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # no child outlives a killed supervisor
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole group; the supervisor acts on it
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = child.run(lambda: _tell_ready(writing))
    except Exception:
        logger.exception("%s failed", child.name)
    finally:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _tell_ready(writing: int) -> None:
    os.write(writing, b"1")
    os.close(writing)


def _told(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def _listen(addresses: Iterable[Address]) -> list[socket.socket]:
    """One worker's listening sockets. SO_REUSEPORT lets the kernel spread connections over the workers."""
    return [_listener(address) for address in addresses]


def _listener(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address.host, address.port))
        listener.listen(4096)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StartError(f"Proxy.Listen: {address}: {error.strerror}") from None
    return listener


def _bound(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)
