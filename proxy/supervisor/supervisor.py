"""Supervisor of the workers and the agent: opens sockets, starts and replaces processes, stops, reloads.

The supervisor runs no event loop and handles no requests. The supervisor waits for signals, and checks
several times a second that the event loop of each process runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib.util
import logging
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from proxy import __version__
from proxy.config import Address, SettingsError
from proxy.config.listening import not_listening
from proxy.ipc.channel import LAST_STOP, channel_pair
from proxy.ipc.counters import (
    CREDENTIAL_READY,
    SIGNING_KEY_READY,
    SNAPSHOT_GENERATION,
    SPOOL_READY,
    CounterPages,
    Counters,
)
from proxy.process import log
from proxy.startup.certificates import Certificates, certificates, without_system_authorities
from proxy.startup.check import certificate_problems, exposures, unused_settings
from proxy.startup.settings import Settings, load
from proxy.startup.signing_key import SigningKeyError, signing_key
from proxy.supervisor import handover
from proxy.supervisor.child import Child, ChildState, Remedy
from proxy.supervisor.reload import Action, Reload, State, World

logger = logging.getLogger(__package__)

AGENT_STOP_SECONDS: Final = 10.0  # seconds; the agent delivers events for 5 s, then ends
AGENT_MARGIN_SECONDS: Final = 5.0  # seconds after DeliverAtStopSeconds, at which the agent ends by itself
# Seconds after DrainSeconds, at which a worker aborts its connections by itself.
DRAIN_MARGIN_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 60.0  # seconds after which the check of another version is stopped
TICK_SECONDS: Final = 0.2
BACKLOG: Final = 4096  # connections that wait for a worker

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


class StartError(Exception):
    """Error because the proxy can't start. The error's message is one line for the operator."""


@dataclass(eq=False)
class Generation:
    """Processes that started with the same loaded settings, and the channels between these processes."""

    settings: Settings
    channels: list[tuple[socket.socket, socket.socket]]
    pages: Sequence[Counters]
    workers: list[Child] = field(default_factory=list)
    agents: list[Child] = field(default_factory=list)  # exactly one

    @property
    def serves(self) -> bool:
        """Return True if a worker of the generation has everything that it needs to serve requests."""
        needed = (SNAPSHOT_GENERATION, CREDENTIAL_READY, SIGNING_KEY_READY, SPOOL_READY)
        return any(all(page.values[index] for index in needed) for page in self.pages)

    def close_channels(self) -> None:
        for pair in self.channels:
            for end in pair:
                end.close()


@dataclass(eq=False)
class Replacement:
    """Old and new processes of a running reload or upgrade, and the start barrier of the new processes."""

    old: Generation
    new: Generation
    gate: int | None = None  # eventfd; the new processes wait until its count is not zero
    # A generation after the old one that could not serve; the old one is of another version.
    between: Generation | None = None
    reload: Reload = field(init=False)

    def __post_init__(self) -> None:
        self.reload = Reload(is_upgrade=self.is_upgrade)

    @property
    def before(self) -> list[Generation]:
        """All generations of processes that the new generation of processes replaces."""
        return [self.old] if self.between is None else [self.old, self.between]

    @property
    def is_upgrade(self) -> bool:
        """True if the old processes run another version of the proxy, so this version can't restart them."""
        return any(child.run is None for child in (*self.old.agents, *self.old.workers))

    def open_barrier(self) -> None:
        if self.gate is not None:
            os.eventfd_write(self.gate, 1)

    def await_barrier(self) -> None:
        """Wait in a new process until the start barrier is open."""
        if self.gate is not None:
            opened = select.poll()
            opened.register(self.gate, select.POLLIN)
            opened.poll()  # the count is never read, so the barrier stays open for later processes

    def close_barrier(self) -> None:
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None


class Supervisor:
    """Owner of the listening sockets and of the child processes."""

    def __init__(self, config: Path, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._count = settings.workers
        before = handover.received(os.environ)
        self._lock = _own(settings, None if before is None else before.lock)
        if before is None:
            _await_free(settings.admin.listen)
        self._listeners = _listeners(settings.proxy.listen, self._count, before)
        # For a short time, a reload runs two generations, each with its own pages.
        self._pages = CounterPages(2 * self._count)
        self._children: list[Child] = []
        self._generation = self._make_generation(settings, self._pages.workers[: self._count])
        self._reload = None if before is None else self._take_over(before)
        self._reload_again = False
        self._checking: int | None = None  # process id of a check of another version
        self._checking_ends = math.inf
        self._stopping = False

    def run(self) -> int:
        """Run the proxy until SIGTERM or SIGINT. Return the exit status of the proxy."""
        for warning in (*exposures(self._settings), *unused_settings(self._settings)):
            logger.warning("%s", warning)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # A garbage collection in a child must not copy the pages that it shares with this process.
        gc.freeze()
        if self._reload is None:
            for child in self._generation.agents:
                self._start(child)
            # The agent and the workers import their modules at the same time. The workers share these pages.
            importlib.import_module("proxy.worker.main")
            gc.freeze()
            for child in self._generation.workers:
                self._start(child)
        else:
            importlib.import_module("proxy.worker.main")
            self._drain(self._reload.old.agents)
        gc.enable()
        scheme = "https" if self._settings.proxy.cert_file else "http"
        for address in _addresses(self._listeners[0]):
            logger.info(
                "listening on %s://%s with %d workers, version %s, data path %s",
                *(scheme, address, self._count, __version__, form_of_data_path()),
            )
        ticked = time.monotonic()
        while not (self._stopping and not self._children):
            received = signal.sigtimedwait(_SIGNALS, TICK_SECONDS)
            if received is not None:
                self._handle(received.si_signo)
            now = time.monotonic()
            # If the supervisor itself was suspended, its children were too. That time does not count as
            # silence.
            self._look_after_children(min(now - ticked, 2 * TICK_SECONDS))
            ticked = now
        logger.info("stopped")
        return 0

    # Methods for generations.

    def _make_generation(self, settings: Settings, pages: Sequence[Counters]) -> Generation:
        keys, loaded = _local_keys(settings), certificates(settings)
        generation = Generation(settings, _channels(self._count), pages)
        for slot, page in enumerate(pages):
            generation.workers.append(
                Child(f"worker-{slot}", self._worker(generation, slot, keys, loaded), page)
            )
        generation.agents.append(Child("agent", self._agent(generation, loaded), self._pages.agent))
        return generation

    def _worker(
        self, generation: Generation, slot: int, keys: tuple[bytes, ...], loaded: Certificates
    ) -> Callable[[Callable[[], None]], int]:
        def run(ready: Callable[[], None]) -> int:
            from proxy.worker.main import run_worker

            log.configure(generation.settings.log.level, generation.settings.log.format, f"worker-{slot}")
            self._await_start_barrier(generation)
            own = list(_sockets(self._listeners.pop(slot)))
            self._close_inherited()
            reload = self._reload
            # A reload must not replace workers that serve by workers that can't.
            until_ready = (
                reload is not None
                and reload.reload.state is not State.DRAINING
                and (reload.is_upgrade or reload.old.serves)
            )
            return run_worker(
                generation.settings,
                keys,
                loaded,
                own,
                generation.channels[slot][0],
                generation.pages[slot],
                ready,
                until_ready=until_ready,
            )

        return run

    def _agent(self, generation: Generation, loaded: Certificates) -> Callable[[Callable[[], None]], int]:
        def run(ready: Callable[[], None]) -> int:
            with without_system_authorities():
                # Imported only in this process: it is half of all that a proxy imports.
                from proxy.agent.main import run_agent

            log.configure(generation.settings.log.level, generation.settings.log.format, "agent")
            self._await_start_barrier(generation)
            self._close_inherited()
            ready()
            ends = [pair[1] for pair in generation.channels]
            reload, old_ends = self._reload, []
            if reload is not None and reload.new is generation:
                # Old workers serve while the new ones can't, and until they have drained.
                old_ends = [pair[1] for each in reload.before for pair in each.channels]
            return run_agent(generation.settings, loaded, ends, self._pages, to_old_workers=old_ends)

        return run

    def _await_start_barrier(self, generation: Generation) -> None:
        """Wait in a new process until the old agent, if one exists, has ended."""
        if self._reload is not None and self._reload.new is generation:
            self._reload.await_barrier()

    # Methods for children.

    def _start(self, child: Child) -> None:
        """Start the child process now, or later if the first attempt fails.

        If the host has no free process or file descriptor, the processes that already run must continue.
        """
        try:
            self._fork(child)
        except OSError as error:
            child.put_off(time.monotonic())
            logger.error("cannot start %s, trying again: %s", child.name, error.strerror)
        if child not in self._children:
            self._children.append(child)

    def _fork(self, child: Child) -> None:
        """Start a child process by fork.

        If the fork fails, raise OSError and leave no file descriptor open.
        """
        reading, writing = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if pid == 0:
            os.close(reading)
            _become_child(child, writing, parent)
        os.close(writing)
        os.set_blocking(reading, False)
        child.has_started(pid, reading, time.monotonic())

    def _look_after_children(self, elapsed: float) -> None:
        self._reap()
        now = time.monotonic()
        for child in self._children:
            if child.state is ChildState.WAITING and child.start_at <= now:
                self._start(child)
            if child.read_ready():
                logger.debug("%s is ready", child.name)
            self._replace_if_hung(child, elapsed)
            self._kill_if_late(child, now)
        if self._checking is not None and (self._stopping or now > self._checking_ends):
            os.kill(self._checking, signal.SIGKILL)  # the check hangs, or its result is not needed any more
            self._checking_ends = math.inf
        if self._stopping:
            self._go_on_stopping()
        elif self._reload is not None:
            self._go_on_reloading(self._reload)
        elif self._reload_again:
            self._reload_again = False
            self._begin_reload()

    def _replace_if_hung(self, child: Child, elapsed: float) -> None:
        remedy = child.remedy(elapsed, may_be_silent=self._may_be_silent(child))
        if remedy is Remedy.ABORT:
            logger.error("replacing %s: it does not respond", child.name)
            if child in self._agents():
                self._kill(child)
            else:
                child.state = ChildState.ABORTED
                os.kill(child.pid, signal.SIGABRT)
        elif remedy is Remedy.KILL:
            self._kill(child)

    def _may_be_silent(self, child: Child) -> bool:
        """Return True if the supervisor must not treat a silent process as hung.

        The process is of the previous version, or waits for the old agent to end.
        """
        reload = self._reload
        if reload is None or reload.reload.state is not State.AGENT_ENDING:
            return child.run is None
        return child.run is None or child in (*reload.new.agents, *reload.new.workers)

    def _kill_if_late(self, child: Child, now: float) -> None:
        if child in self._agents():
            patience = self._patience_with_agents()
        else:
            patience = self._settings.proxy.drain_seconds + DRAIN_MARGIN_SECONDS
        if child.is_late(now, patience):
            logger.error("killed %s: it did not end in time", child.name)
            self._kill(child)

    def _patience_with_agents(self) -> float:
        if not self._stopping:
            return AGENT_STOP_SECONDS
        last_delivery = self._settings.audit.deliver_at_stop_seconds + AGENT_MARGIN_SECONDS
        return max(AGENT_STOP_SECONDS, last_delivery)

    def _agents(self) -> list[Child]:
        generations = [self._generation]
        if self._reload is not None:
            # One of these is the current generation, self._generation.
            generations += [*self._reload.before, self._reload.new]
        return [agent for each in generations for agent in each.agents]

    def _kill(self, child: Child) -> None:
        child.state = ChildState.KILLED
        os.kill(child.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._checking:
                self._checked(os.waitstatus_to_exitcode(status))
            for child in self._children:
                if child.pid == pid:
                    self._child_ended(child, os.waitstatus_to_exitcode(status))
                    break

    def _child_ended(self, child: Child, code: int) -> None:
        child.has_ended()
        if child.counters is not self._pages.agent:  # the agent's page also holds the reported counts
            child.counters.reset_gauges()
        if child.draining_since is not None or self._stopping or child.run is None:
            self._children.remove(child)
            return
        child.start_again(time.monotonic())
        logger.error("%s ended with %s, starting another process", child.name, _describe(code))

    def _drain(self, children: Iterable[Child], number: int = signal.SIGTERM) -> None:
        for child in list(children):
            if child not in self._children or child.draining_since is not None:
                continue
            if child.state is ChildState.WAITING:
                self._children.remove(child)
            else:
                child.draining_since = time.monotonic()
                os.kill(child.pid, number)

    def _any_left(self, children: Iterable[Child]) -> bool:
        return any(child in self._children for child in children)

    # Methods for signals.

    def _handle(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif number == signal.SIGUSR2 and not self._stopping:
            self._check_new_version()
        elif number == signal.SIGHUP and not self._stopping:
            if self._reload is None:
                self._begin_reload()
            else:
                self._reload_again = True  # the settings may have changed after this reload read them
                logger.info("a reload is under way; the settings will be reloaded again after this reload")

    def _stop(self) -> None:
        """Drain the worker processes before the agent ends.

        The agent ends last, so that the agent can deliver the audit events of the workers.
        """
        if self._stopping:
            return
        self._stopping = True
        logger.info("stopping")
        agents = self._agents()
        self._drain(child for child in self._children if child not in agents)
        self._close_listeners()

    def _go_on_stopping(self) -> None:
        agents = self._agents()
        if all(child in agents for child in self._children):
            # An agent of an earlier version may not handle this signal, and would end at once.
            self._drain((child for child in agents if child.run is not None), LAST_STOP)
            self._drain(agents)

    # Methods for versions.

    def _check_new_version(self) -> None:
        if self._checking is not None:
            return
        logger.info("checking the proxy version that is installed now")
        own = handover.Own(
            list(self._listeners[0]),
            str(self._settings.audit.local_retention_path.resolve()),
            self._count,
            handover.count_kept(self._what_is_kept()),
            str(self._settings.admin.listen),
        )
        try:
            self._checking = handover.start_check(own)
            self._checking_ends = time.monotonic() + CHECK_SECONDS
        except OSError as error:
            logger.error(
                "version %s keeps running: cannot start --check of the new version: %s", __version__, error
            )

    def _checked(self, code: int) -> None:
        self._checking = None
        if self._stopping:
            return
        if code != 0:
            logger.error(
                "version %s keeps running: --check of the new version ended with %s",
                __version__,
                _describe(code),
            )
            return
        logger.info("version %s hands over to the installed version", __version__)
        try:
            handover.become_new_version(self._what_is_kept())
        except OSError as error:
            logger.error("version %s keeps running: cannot start the new version: %s", __version__, error)

    def _what_is_kept(self) -> handover.Handover:
        """Return the file descriptors and processes that are kept across exec."""
        fds: dict[str, list[int]] = {}
        for slot in self._listeners:
            for address, sockets in slot.items():
                fds.setdefault(address, []).extend(each.fileno() for each in sockets)
        children = [handover.OldChild(child.name, child.pid) for child in self._children if child.pid]
        generations = [self._generation]
        if self._reload is not None:
            generations += [*self._reload.before, self._reload.new]
        channels = {pair[1].fileno() for each in generations for pair in each.channels}
        return handover.Handover(self._lock, fds, children, sorted(channels))

    def _take_over(self, before: handover.Handover) -> Replacement:
        """Make the processes of the previous version the old generation of a reload."""
        ends = [socket.socket(fileno=fd) for fd in before.channels]
        old = Generation(self._settings, [(end, end) for end in ends], ())
        for each in before.children:
            child = Child(
                each.name,
                None,
                CounterPages(0).agent,
                state=ChildState.READY,
                pid=each.pid,
                started=time.monotonic(),
            )
            (old.agents if each.name == "agent" else old.workers).append(child)
            self._children.append(child)
        logger.info("Graphward version %s takes over the processes of the previous version", __version__)
        return Replacement(old, self._generation)

    # Methods for reloads.

    def _begin_reload(self) -> None:
        """Start new processes of the proxy with the new settings.

        The old processes serve requests until the new processes can serve them.

        During a running reload, the supervisor calls `_begin_reload` only if the running reload is an upgrade
        whose processes can't serve requests. The processes of the second reload then replace the processes of
        the failed upgrade.
        """
        last, under_way = self._generation, self._reload
        half = self._count if last.pages[0] is self._pages.workers[0] else 0
        try:
            wanted = load(self._config, os.environ)
            problems = [
                *certificate_problems(wanted),
                *handover.admin_problems(self._settings.admin.listen, wanted.admin.listen),
            ]
            settings = self._with_fixed(wanted)
            if not problems:
                new = self._make_generation(settings, self._pages.workers[half : half + self._count])
                after = (
                    Replacement(last, new)
                    if under_way is None
                    else Replacement(under_way.old, new, between=last)
                )
                self._start_waiting(after)
        except SettingsError as error:
            problems = list(error.problems)
        except SigningKeyError as error:
            problems = [str(error)]
        except OSError as error:
            problems = [f"the new processes can't be started: {error.strerror}"]
        if problems:
            for problem in problems:
                logger.error("settings not reloaded, the active settings stay in use: %s", problem)
            return
        logger.info("reloading")
        # Only one agent may own the spool, so the old one must end before the new one starts.
        self._drain(last.agents)
        if under_way is not None:
            self._drain(last.workers)
            under_way.close_barrier()
            if under_way.between is not None:
                under_way.between.close_channels()
            self._generation, self._settings = new, settings

    def _start_waiting(self, reload: Replacement) -> None:
        """Create everything that a reload needs before any running process ends.

        If a resource cannot be created, raise OSError and close all resources that were created before.
        """
        new = reload.new
        with contextlib.ExitStack() as undo:
            undo.callback(new.close_channels)
            reload.gate = os.eventfd(0)
            undo.callback(reload.close_barrier)
            undo.callback(setattr, self, "_reload", self._reload)
            self._reload = reload
            for child in (*new.agents, *new.workers):
                self._fork(child)
                self._children.append(child)
                undo.callback(self._abandon, child)
            undo.pop_all()

    def _abandon(self, child: Child) -> None:
        """End a process that has not served any request yet."""
        child.draining_since = time.monotonic()
        self._kill(child)
        _, status = os.waitpid(child.pid, 0)
        self._child_ended(child, os.waitstatus_to_exitcode(status))

    def _end_reload(self, reload: Replacement) -> None:
        reload.close_barrier()
        self._reload = None

    def _with_fixed(self, wanted: Settings) -> Settings:
        """Return the new settings, but with the old value of each setting on which running processes rely."""
        audit, proxy = self._settings.audit, self._settings.proxy
        fixed = {
            "Proxy.Listen": proxy.listen != wanted.proxy.listen,
            "Proxy.Workers": proxy.workers != wanted.proxy.workers,
            "Audit.LocalRetentionPath": audit.local_retention_path != wanted.audit.local_retention_path,
        }
        for key, changed in fixed.items():
            if changed:
                logger.warning("the new value of %s takes effect at the next start of the proxy", key)
        return replace(
            wanted,
            proxy=replace(wanted.proxy, listen=proxy.listen, workers=proxy.workers),
            audit=replace(wanted.audit, local_retention_path=audit.local_retention_path),
        )

    def _go_on_reloading(self, reload: Replacement) -> None:
        _, actions = reload.reload.next(self._seen(reload))
        for action in actions:
            self._do(action, reload)

    def _seen(self, reload: Replacement) -> World:
        new = reload.new
        between = [] if reload.between is None else reload.between.workers
        return World(
            now=time.monotonic(),
            old_agents_left=self._any_left(agent for each in reload.before for agent in each.agents),
            old_workers_left=self._any_left(worker for each in reload.before for worker in each.workers),
            between_workers_left=self._any_left(between),
            new_left=self._any_left((*new.workers, *new.agents)),
            new_workers_ready=all(child.state is ChildState.READY for child in new.workers),
            is_superseded=self._reload_again,
        )

    def _do(self, action: Action, reload: Replacement) -> None:
        match action:
            case Action.OPEN_BARRIER:
                self._open_barrier(reload)
            case Action.DRAIN_OLD_WORKERS:
                self._drain(reload.old.workers)
            case Action.REPORT_STALL:
                logger.error(
                    "the workers of version %s can't serve; the old workers keep running: fix the settings "
                    "and send SIGHUP, or install another version and send SIGUSR2",
                    __version__,
                )
            case Action.SUPERSEDE:
                self._reload_again = False
                self._begin_reload()
            case Action.GIVE_UP:
                logger.error(
                    "settings not reloaded, the active settings stay in use: the new workers can't serve"
                )
                self._drain((*reload.new.workers, *reload.new.agents))
            case Action.ADOPT:
                self._adopt(reload)
            case Action.RESTORE:
                self._restore(reload)

    def _open_barrier(self, reload: Replacement) -> None:
        """Start the agent first, so that the agent has rules and an upstream token for its workers."""
        reload.open_barrier()
        for child in (*reload.new.agents, *reload.new.workers):
            if child not in self._children:
                self._start(child)

    def _adopt(self, reload: Replacement) -> None:
        for each in reload.before:
            each.close_channels()
        new = reload.new
        self._generation, self._settings = new, new.settings
        self._end_reload(reload)
        log.configure(new.settings.log.level, new.settings.log.format, "supervisor")
        logger.info("reloaded")

    def _restore(self, reload: Replacement) -> None:
        """Restart the old agent after a failed reload.

        The old workers were not stopped, so these workers need no restart.
        """
        reload.new.close_channels()
        self._end_reload(reload)
        for child in reload.old.agents:
            self._start(child)

    def _close_listeners(self) -> None:
        for slot in self._listeners:
            for listener in _sockets(slot):
                listener.close()

    def _close_inherited(self) -> None:
        """Close, in a child process, the file descriptors that belong only to the supervisor."""
        if self._reload is not None:
            self._reload.close_barrier()
        self._close_listeners()
        os.close(self._lock)


def _channels(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return one channel to the agent for each worker.

    If a channel cannot be created, raise OSError and leave no file descriptor open.
    """
    with contextlib.ExitStack() as undo:
        made = []
        for _ in range(count):
            made.append(channel_pair())
            for end in made[-1]:
                undo.callback(end.close)
        undo.pop_all()
    return made


def _local_keys(settings: Settings) -> tuple[bytes, ...]:
    """Return the keys that sign proxy tokens, for new workers; none if the agent reads a vault."""
    token = settings.token
    if token.signing_key_secret_name:
        return ()
    return (signing_key(token.signing_key, token.signing_key_file),)


def _become_child(child: Child, writing: int, parent: int) -> None:
    """Run the child process after a fork of the supervisor. It never returns."""
    code = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, f"gw-{child.name}".encode())  # name in ps and top
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # a child must not outlive a killed supervisor
        if os.getppid() != parent:  # the supervisor was killed before the call above
            os._exit(code)
        # Ctrl-C reaches the whole process group. Only the supervisor acts on it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        assert child.run is not None
        code = child.run(lambda: _tell_ready(writing))
    except Exception:
        logger.exception("%s failed", child.name)
    finally:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _tell_ready(writing: int) -> None:
    # The supervisor was killed, and this process gets a signal too.
    with contextlib.suppress(BrokenPipeError):
        os.write(writing, b"1")
    os.close(writing)


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


_Slot = dict[str, list[socket.socket]]  # listening sockets of one worker, by address as the settings spell it


def _listeners(addresses: Sequence[Address], slots: int, before: handover.Handover | None) -> list[_Slot]:
    """Return the listening sockets of each worker slot.

    With SO_REUSEPORT, the kernel spreads new connections over the sockets of an address.
    """
    shares: list[_Slot] = [{} for _ in range(slots)]
    shared: list[Address] = []
    if before is None:
        # The address may be in use by workers of a killed supervisor, which are about to end. Or another
        # proxy with its own rules uses it, because the kernel lets all processes of one user share a port.
        shared = [each for each in addresses if _is_taken(each)]
    else:
        shares = handover.adopted_listeners(before, [str(each) for each in addresses], slots)
    for address in addresses:
        for slot in shares:
            known = next((each[str(address)][0] for each in shares if str(address) in each), None)
            if str(address) not in slot:
                slot[str(address)] = [_listener(address if known is None else _bound(known))]
    _let_connect(shares, addresses)
    for address in shared:
        logger.warning(
            "Proxy.Listen: another process listens on %s too and receives some of the requests: "
            "stop the other process, unless it is about to end",
            address,
        )
    return shares


def _sockets(slot: _Slot) -> Iterator[socket.socket]:
    for group in slot.values():
        yield from group


def _addresses(slot: _Slot) -> list[Address]:
    return [_bound(group[0]) for group in slot.values()]


def _own(settings: Settings, held: int | None) -> int:
    try:
        return handover.own_directory(settings.audit.local_retention_path, held)
    except handover.DirectoryOwned as error:
        raise StartError(str(error)) from None


def form_of_data_path() -> str:
    """Return `compiled` if the running code was built by `./dev compile`, else `interpreted`."""
    found = importlib.util.find_spec("proxy.server.exchange.exchange")
    return "interpreted" if found is None or str(found.origin).endswith(".py") else "compiled"


def _listener(address: Address) -> socket.socket:
    """Return a bound socket that does not accept connections yet."""
    try:
        listener = handover.bound(address)
    except OSError as error:
        raise _not_listening("Proxy.Listen", address, error) from None
    listener.setblocking(False)
    return listener


def _let_connect(shares: Sequence[_Slot], addresses: Sequence[Address]) -> None:
    """Listen on every address, after all sockets are bound.

    A socket that the previous version handed over listens already.
    """
    for slot in shares:
        for address in addresses:
            for listener in slot[str(address)]:
                try:
                    listener.listen(BACKLOG)
                except OSError as error:
                    raise _not_listening("Proxy.Listen", address, error) from None


def _not_listening(setting: str, address: Address, error: OSError) -> StartError:
    return StartError(not_listening(setting, address, error, Path("/proc")))


def _is_taken(address: Address) -> bool:
    try:
        handover.try_to_bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _await_free(address: Address) -> None:
    """Wait until the admin listener's address is free.

    The agent of a killed proxy may still be delivering audit events, and then occupies the address.
    """
    end: float | None = None
    while True:
        try:
            handover.try_to_bind(address)
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE or (end is not None and time.monotonic() > end):
                raise _not_listening("Admin.Listen", address, error) from None
        if end is None:
            end = time.monotonic() + AGENT_STOP_SECONDS
            logger.warning(
                "Admin.Listen: another process listens on %s: waiting up to %.0f s until that process ends",
                *(address, AGENT_STOP_SECONDS),
            )
        time.sleep(TICK_SECONDS)


def _bound(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)
