"""Emergency stop file on the proxy's host, which stops all traffic or the applications that its lines name.

The emergency stop file works also while the control plane is unreachable.

    # who, when and why
    app hr-sync          by ID, client ID or name
    org Contoso          by ID or name

An emergency stop file without a line for an application or organisation, or with the line `all`, stops
everything. An unreadable emergency stop file, or an invalid line in the file, also stops everything,
because the author of the file wanted to stop traffic.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.config.given_text import NotUtf8, decoded
from proxy.policy.visible import escaped
from proxy.rules.snapshot import App
from proxy.rules.stops import EVERYTHING_STOPPED, NOTHING_STOPPED, Stops

_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KillOrder:
    """Content of the emergency stop file, with the names as the author of the file wrote them.

    The proxy looks up the IDs of these names in the current rules, because the file need not contain IDs.
    """

    everything: bool = False
    orgs: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    problem: str = ""  # why an unreadable or invalid file stops everything

    def stops(self, orgs: Mapping[str, str], apps: Iterable[App]) -> Stops:
        """Return the IDs of the applications and organisations that the emergency stop file stops.

        `orgs` maps organisation IDs to their names. If several organisations or applications have a name in
        the file, the emergency stop applies to all of them.
        """
        if self.everything:
            return EVERYTHING_STOPPED
        if not self.orgs and not self.apps:
            return NOTHING_STOPPED
        return Stops(
            orgs=frozenset(
                org_id for org_id, name in orgs.items() if org_id in self.orgs or name in self.orgs
            ),
            apps=frozenset(app.app_id for app in apps if not _names_of(app).isdisjoint(self.apps)),
        )

    def unknown(self, orgs: Mapping[str, str], apps: Iterable[App]) -> Iterator[str]:
        """Yield each name that the emergency stop file contains and the rules do not contain."""
        known_apps = {name for app in apps for name in _names_of(app)}
        known_orgs = {*orgs, *orgs.values()}
        yield from (f"org {each}" for each in self.orgs if each not in known_orgs)
        yield from (f"app {each}" for each in self.apps if each not in known_apps)

    def __str__(self) -> str:
        if self.everything:
            return f"everything ({self.problem})" if self.problem else "everything"
        named = [f"org {each}" for each in self.orgs] + [f"app {each}" for each in self.apps]
        return ", ".join(named) or "nothing"


NO_ORDER: Final = KillOrder()


def _names_of(app: App) -> frozenset[str]:
    return frozenset((app.app_id, app.client_id, app.name))


def read_kill_file(path: Path) -> KillOrder:
    """Read the emergency stop file.

    `read_kill_file` never raises an exception. If the emergency stop file exists but cannot be read, all
    traffic is stopped; only a missing file stops nothing.
    """
    try:
        # lstat needs no file descriptor, so running out of descriptors cannot look like a missing file
        path.lstat()
        content = _content(path)
    except FileNotFoundError:
        return _all("it is a symbolic link to a missing file") if path.is_symlink() else NO_ORDER
    except OSError as error:
        return _all(f"it cannot be read: {error.strerror}")
    if content is None:
        return _all("the path is not a regular file of at most 1 MiB")
    try:
        return parse_kill_file(decoded(content))
    except NotUtf8 as error:
        return _all(str(error))


def _content(path: Path) -> bytes | None:
    # O_NONBLOCK: opening a pipe must not block
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
            return None
        return os.read(fd, _MAX_BYTES)
    finally:
        os.close(fd)


def parse_kill_file(text: str) -> KillOrder:
    named: dict[str, list[str]] = {"org": [], "app": []}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line == "all":
            return KillOrder(everything=True)
        kind, _, name = line.partition(" ")
        if kind not in named or not name.strip():
            return _all(f"line {number} is neither `all`, `org NAME` nor `app NAME`")
        # no application or organisation has such a name, so the line would stop nothing
        if not name.isprintable():
            return _all(f"line {number} contains an invisible character: {escaped(line)}")
        named[kind].append(name.strip())
    if not named["org"] and not named["app"]:
        return KillOrder(everything=True)
    return KillOrder(orgs=tuple(named["org"]), apps=tuple(named["app"]))


def _all(problem: str) -> KillOrder:
    return KillOrder(everything=True, problem=problem)
