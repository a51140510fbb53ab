"""Processes only: opens the sockets, starts workers and agent, replaces the dead, stops and reloads in order.

The supervisor runs no event loop and touches no request. It waits for signals and, once a second, looks
whether each worker's loop still turns.
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

AGENT_STOP_SECONDS: Final = 10.0  # the agent ships what is left within 5 s, then goes
AGENT_MARGIN_SECONDS: Final = 5.0  # beyond DeliverAtStopSeconds, after which the agent ends by itself
DRAIN_MARGIN_SECONDS: Final = 5.0  # beyond DrainSeconds, after which a worker cuts by itself
CHECK_SECONDS: Final = 60.0  # a check of another version that takes longer is given up
TICK_SECONDS: Final = 0.2
BACKLOG: Final = 4096  # connections that wait for a worker

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


class StartError(Exception):
    """The proxy can't start; the message is one line for the operator."""


@dataclass(eq=False)
class Generation:
    """The processes of one reading of the settings, and the channels between them."""

    settings: Settings
    channels: list[tuple[socket.socket, socket.socket]]
    pages: Sequence[Counters]
    workers: list[Child] = field(default_factory=list)
    agents: list[Child] = field(default_factory=list)  # one

    @property
    def serves(self) -> bool:
        """Whether a worker has all that it takes to serve."""
        needed = (SNAPSHOT_GENERATION, CREDENTIAL_READY, SIGNING_KEY_READY, SPOOL_READY)
        return any(all(page.values[index] for index in needed) for page in self.pages)

    def close_channels(self) -> None:
        for pair in self.channels:
            for end in pair:
                end.close()


@dataclass(eq=False)
class Replacement:
    """The generations of a reload or a change of versions that is under way, and its start barrier."""

    old: Generation
    new: Generation
    gate: int | None = None  # an eventfd: the new processes are there, and wait for its count to leave zero
    between: Generation | None = None  # after the old ones, who are of another version; it could not serve
    reload: Reload = field(init=False)

    def __post_init__(self) -> None:
        self.reload = Reload(is_upgrade=self.is_upgrade)

    @property
    def before(self) -> list[Generation]:
        """All that the new ones follow."""
        return [self.old] if self.between is None else [self.old, self.between]

    @property
    def is_upgrade(self) -> bool:
        """Whether the old ones are of another version, which can't be gone back to from here."""
        return any(child.run is None for child in (*self.old.agents, *self.old.workers))

    def open_barrier(self) -> None:
        if self.gate is not None:
            os.eventfd_write(self.gate, 1)

    def await_barrier(self) -> None:
        """In a new process."""
        if self.gate is not None:
            opened = select.poll()
            opened.register(self.gate, select.POLLIN)
            opened.poll()  # nobody reads it, so it stays open for who comes later

    def close_barrier(self) -> None:
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None


class Supervisor:
    """Owns the sockets and the children."""

    def __init__(self, config: Path, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._count = settings.workers
        before = handover.received(os.environ)
        self._lock = _own(settings, None if before is None else before.lock)
        if before is None:
            _await_free(settings.admin.listen)
        self._listeners = _listeners(settings.proxy.listen, self._count, before)
        # A reload runs two generations side by side for a moment, each with pages of its own.
        self._pages = CounterPages(2 * self._count)
        self._children: list[Child] = []
        self._generation = self._make_generation(settings, self._pages.workers[: self._count])
        self._reload = None if before is None else self._take_over(before)
        self._reload_again = False
        self._checking: int | None = None  # the process that looks whether another version can start
        self._checking_ends = math.inf
        self._stopping = False

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT."""
        for warning in (*exposures(self._settings), *unused_settings(self._settings)):
            logger.warning("%s", warning)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        gc.freeze()  # so that a collection in a child doesn't copy the pages that it shares with us
        if self._reload is None:
            for child in self._generation.agents:
                self._start(child)
            # The agent's imports and the workers' take place side by side; the workers share these pages.
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
            # Where we ourselves stood still, so did the children: that is no silence of theirs.
            self._look_after_children(min(now - ticked, 2 * TICK_SECONDS))
            ticked = now
        logger.info("stopped")
        return 0

    # Generations

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
            # A reload never trades workers that serve for workers that can't.
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
                from proxy.agent.main import run_agent  # in its own process: half of all that a proxy imports

            log.configure(generation.settings.log.level, generation.settings.log.format, "agent")
            self._await_start_barrier(generation)
            self._close_inherited()
            ready()
            ends = [pair[1] for pair in generation.channels]
            reload, old_ends = self._reload, []
            if reload is not None and reload.new is generation:
                # They serve on while the new workers can't, and until they have drained.
                old_ends = [pair[1] for each in reload.before for pair in each.channels]
            return run_agent(generation.settings, loaded, ends, self._pages, to_old_workers=old_ends)

        return run

    def _await_start_barrier(self, generation: Generation) -> None:
        """In a new process: until the old agent has ended, where there is one."""
        if self._reload is not None and self._reload.new is generation:
            self._reload.await_barrier()

    # Children

    def _start(self, child: Child) -> None:
        """At once, or later where that can't be: if no process or descriptor is left, nothing that runs
        may end."""
        try:
            self._fork(child)
        except OSError as error:
            child.put_off(time.monotonic())
            logger.error("%s can't be started, trying again: %s", child.name, error.strerror)
        if child not in self._children:
            self._children.append(child)

    def _fork(self, child: Child) -> None:
        """Raises OSError, and leaves no descriptor behind then."""
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
            os.kill(self._checking, signal.SIGKILL)  # it waits for something, or nobody waits for it any more
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
            logger.error("%s does not respond, replacing it", child.name)
            if child in self._agents():
                self._kill(child)
            else:
                child.state = ChildState.ABORTED
                os.kill(child.pid, signal.SIGABRT)
        elif remedy is Remedy.KILL:
            self._kill(child)

    def _may_be_silent(self, child: Child) -> bool:
        """Return True for a process of the version before, and for one that waits for the old agent's end."""
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
            logger.error("%s did not end in time", child.name)
            self._kill(child)

    def _patience_with_agents(self) -> float:
        if not self._stopping:
            return AGENT_STOP_SECONDS
        last_delivery = self._settings.audit.deliver_at_stop_seconds + AGENT_MARGIN_SECONDS
        return max(AGENT_STOP_SECONDS, last_delivery)

    def _agents(self) -> list[Child]:
        generations = [self._generation]
        if self._reload is not None:
            generations += [*self._reload.before, self._reload.new]  # of which one is that in force
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
        if child.counters is not self._pages.agent:  # which also holds what was reported
            child.counters.reset_gauges()
        if child.draining_since is not None or self._stopping or child.run is None:
            self._children.remove(child)
            return
        child.start_again(time.monotonic())
        logger.error("%s ended with %s, starting another", child.name, _describe(code))

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

    # Signals

    def _handle(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif number == signal.SIGUSR2 and not self._stopping:
            self._check_new_version()
        elif number == signal.SIGHUP and not self._stopping:
            if self._reload is None:
                self._begin_reload()
            else:
                self._reload_again = True  # the settings may have changed since they were read
                logger.info("a reload is under way: another follows when it has ended")

    def _stop(self) -> None:
        """Workers drain first; the agent goes last, so that it can ship what they leave."""
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
            # The agent of an earlier version may not know this signal, and would end at once.
            self._drain((child for child in agents if child.run is not None), LAST_STOP)
            self._drain(agents)

    # Versions

    def _check_new_version(self) -> None:
        if self._checking is not None:
            return
        logger.info("checking the version that is installed now")
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
                "version %s goes on: --check of the new one can't be started: %s", __version__, error
            )

    def _checked(self, code: int) -> None:
        self._checking = None
        if self._stopping:
            return
        if code != 0:
            logger.error(
                "version %s goes on: --check of the new one ended with %s", __version__, _describe(code)
            )
            return
        logger.info("version %s hands over", __version__)
        try:
            handover.become_new_version(self._what_is_kept())
        except OSError as error:
            logger.error("version %s goes on: the new one can't be started: %s", __version__, error)

    def _what_is_kept(self) -> handover.Handover:
        """By an exec."""
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
        """The processes of the version before are the old generation of a reload."""
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
        logger.info("version %s takes over", __version__)
        return Replacement(old, self._generation)

    # Reloading

    def _begin_reload(self) -> None:
        """New settings in new processes; the old ones serve until the new ones can. Amid a reload only after
        an upgrade that can't serve: the new ones take the place of those."""
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
                logger.error("not reloaded, the settings in force stay: %s", problem)
            return
        logger.info("reloading")
        # Only one agent may own the spool: the old one hands over by ending.
        self._drain(last.agents)
        if under_way is not None:
            self._drain(last.workers)
            under_way.close_barrier()
            if under_way.between is not None:
                under_way.between.close_channels()
            self._generation, self._settings = new, settings

    def _start_waiting(self, reload: Replacement) -> None:
        """All that a reload takes is had before anything in force ends. Raises OSError, and nothing is left
        of it then."""
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
        """One that has done nothing yet."""
        child.draining_since = time.monotonic()
        self._kill(child)
        _, status = os.waitpid(child.pid, 0)
        self._child_ended(child, os.waitstatus_to_exitcode(status))

    def _end_reload(self, reload: Replacement) -> None:
        reload.close_barrier()
        self._reload = None

    def _with_fixed(self, wanted: Settings) -> Settings:
        """What other processes of this very proxy rely on stays as it was at the start."""
        audit, proxy = self._settings.audit, self._settings.proxy
        fixed = {
            "Proxy.Listen": proxy.listen != wanted.proxy.listen,
            "Proxy.Workers": proxy.workers != wanted.proxy.workers,
            "Audit.LocalRetentionPath": audit.local_retention_path != wanted.audit.local_retention_path,
        }
        for key, changed in fixed.items():
            if changed:
                logger.warning("%s takes effect at the next start", key)
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
                    "the workers of version %s can't serve; the old ones go on: mend the settings and send "
                    "SIGHUP, or install another version and send SIGUSR2",
                    __version__,
                )
            case Action.SUPERSEDE:
                self._reload_again = False
                self._begin_reload()
            case Action.GIVE_UP:
                logger.error("not reloaded, the settings in force stay: the new workers can't serve")
                self._drain((*reload.new.workers, *reload.new.agents))
            case Action.ADOPT:
                self._adopt(reload)
            case Action.RESTORE:
                self._restore(reload)

    def _open_barrier(self, reload: Replacement) -> None:
        """Let the agent start before its workers, so that it has rules and an upstream token for them."""
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
        """Start the old agent again. The old workers never stopped."""
        reload.new.close_channels()
        self._end_reload(reload)
        for child in reload.old.agents:
            self._start(child)

    def _close_listeners(self) -> None:
        for slot in self._listeners:
            for listener in _sockets(slot):
                listener.close()

    def _close_inherited(self) -> None:
        """In a child: what is the supervisor's alone."""
        if self._reload is not None:
            self._reload.close_barrier()
        self._close_listeners()
        os.close(self._lock)


def _channels(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """One per worker. Raises OSError, and leaves no descriptor behind then."""
    with contextlib.ExitStack() as undo:
        made = []
        for _ in range(count):
            made.append(channel_pair())
            for end in made[-1]:
                undo.callback(end.close)
        undo.pop_all()
    return made


def _local_keys(settings: Settings) -> tuple[bytes, ...]:
    """The keys of proxy tokens that workers are born with: none where the agent reads them in the vault."""
    token = settings.token
    if token.signing_key_secret_name:
        return ()
    return (signing_key(token.signing_key, token.signing_key_file),)


def _become_child(child: Child, writing: int, parent: int) -> None:
    """The child's side of a fork; never returns."""
    code = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, f"gw-{child.name}".encode())  # for ps and top
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # no child outlives a killed supervisor
        if os.getppid() != parent:  # it was killed before we asked for that signal
            os._exit(code)
        # Ctrl-C reaches the whole group; the supervisor acts on it.
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
    with contextlib.suppress(BrokenPipeError):  # the supervisor was killed, and our own signal is under way
        os.write(writing, b"1")
    os.close(writing)


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


_Slot = dict[str, list[socket.socket]]  # one worker's listening sockets, by address as the settings spell it


def _listeners(addresses: Sequence[Address], slots: int, before: handover.Handover | None) -> list[_Slot]:
    """SO_REUSEPORT lets the kernel spread connections over the workers, each with a socket of its own."""
    shares: list[_Slot] = [{} for _ in range(slots)]
    shared: list[Address] = []
    if before is None:
        # By the workers of a supervisor that was killed, which are about to end, or by another proxy, which
        # would go on to respond by its own rules: the kernel lets all processes of one user share a port.
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
            "Proxy.Listen: another process listens on %s too and responds to a part of its requests: "
            "stop it, unless it is about to end",
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
    """`compiled` where `./dev compile` made what runs, else `interpreted`."""
    found = importlib.util.find_spec("proxy.server.exchange.exchange")
    return "interpreted" if found is None or str(found.origin).endswith(".py") else "compiled"


def _listener(address: Address) -> socket.socket:
    """A bound socket, which nobody can connect to yet."""
    try:
        listener = handover.bound(address)
    except OSError as error:
        raise _not_listening("Proxy.Listen", address, error) from None
    listener.setblocking(False)
    return listener


def _let_connect(shares: Sequence[_Slot], addresses: Sequence[Address]) -> None:
    """Listen at every address, now that all are bound. A socket of the version before listens already."""
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
    """The agent's own listener. A predecessor that was killed may still be shipping: it gets its time."""
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
                "Admin.Listen: another process listens on %s: waiting up to %.0f s for its end",
                *(address, AGENT_STOP_SECONDS),
            )
        time.sleep(TICK_SECONDS)


def _bound(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)
