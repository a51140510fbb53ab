"""Wait until proxies enforce a ruleset version.

The commands `proxy wait` and `ruleset apply --wait` use the module `rollout`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli.context import Cli, facts_of
from controlplane.cli.failure import FAILED, CommandFailed

if TYPE_CHECKING:
    from controlplane.operations.fleet import ProxyRollout, Rollout

_POLL_SECONDS: Final = 0.5
_MOST_NAMED: Final = 4  # names in the progress line

Timeout = Annotated[
    float, typer.Option("--timeout", metavar="S", min=0, help="Time limit for waiting, in seconds.")
]


@dataclass(frozen=True, slots=True)
class Waited:
    rollout: Rollout
    seconds: float
    with_lost: bool  # True: also wait for proxies that have sent no heartbeat for a long time

    @property
    def outdated(self) -> list[ProxyRollout]:
        late = ("behind", "unknown", "lost") if self.with_lost else ("behind", "unknown")
        return [each for each in self.rollout.proxies if each.state in late]

    @property
    def facts(self) -> dict[str, Any]:
        return {**facts_of(self.rollout), "waitedSeconds": round(self.seconds, 1)}


def wait_for(
    cli: Cli, ruleset: str, version: int | None, org: str | None, *, timeout: float, with_lost: bool = False
) -> Waited:
    """Wait until no proxy enforces an outdated ruleset version, or until the time limit.

    If the first request of the command fails, the command fails. If any request after the first one fails,
    the command repeats the failed request.
    """
    from controlplane.operations import fleet

    asked = fleet.RolloutRequest(ruleset=ruleset, version=version, org=org)
    began = time.monotonic()
    found = cli.call(fleet.rollout, asked)
    # A rollback or a later version must not change the goal of the wait.
    asked = fleet.RolloutRequest(ruleset=found.ruleset_id, version=found.version, org=org)
    with _progress() as show:
        while True:
            waited = Waited(found, time.monotonic() - began, with_lost)
            if not waited.outdated or waited.seconds >= timeout:
                return waited
            show(_describe(waited))
            time.sleep(min(_POLL_SECONDS, max(0.0, timeout - waited.seconds)))
            try:
                found = cli.call(fleet.rollout, asked)
            except CommandFailed as failed:
                show(f"trying again: {failed.lines[0]}")


def conclude(waited: Waited) -> None:
    """Print the names of the proxies that the command did not wait for.

    Raise CommandFailed, with a line for each outdated proxy, if any proxy is outdated.
    """
    rollout = waited.rollout
    what = f"{rollout.name} version {rollout.version}"
    if not rollout.proxies:
        typer.echo(
            f"no proxy serves the organisation of {rollout.name}: there is nothing to wait for", err=True
        )
    for each in rollout.proxies:
        if each.state in ("disabled", "ended") or (each.state == "lost" and not waited.with_lost):
            typer.echo(f"{each.name} was not waited for: {_why_not(each)}", err=True)
    if waited.outdated:
        lines = (f"{each.name} does not enforce {what}: {_behind(each)}" for each in waited.outdated)
        raise CommandFailed(FAILED, *lines)


def rollout_row(each: ProxyRollout) -> dict[str, Any]:
    """Return the row that shows a proxy in a rollout table, in words for people."""
    behind = each.behind_seconds
    return {
        "name": each.name,
        "state": each.state,
        "version": each.version,
        "behind": None if behind is None or each.state == "disabled" else _for(behind),
    }


def _why_not(each: ProxyRollout) -> str:
    if each.state == "disabled":
        return "it is disabled"
    if each.state == "ended":
        return "it stopped cleanly"
    if each.heartbeat_age_seconds is None:
        return "it has never sent a heartbeat"
    return f"its last heartbeat was {_for(each.heartbeat_age_seconds)} ago"


def _behind(each: ProxyRollout) -> str:
    if each.state == "unknown":
        at = "it does not report which version it enforces"
    elif each.state == "lost":
        at = _why_not(each)
    else:
        at = f"it enforces version {each.version}" if each.version else "it has no version of the ruleset"
    return (
        at
        if each.behind_seconds is None
        else f"{at}, {_for(each.behind_seconds)} after that version became active"
    )


def _describe(waited: Waited) -> str:
    rollout, late = waited.rollout, waited.outdated
    arrived = sum(each.state == "enforced" for each in rollout.proxies)
    names = ", ".join(f"{each.name} ({_short(each)})" for each in late[:_MOST_NAMED])
    more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
    return (
        f"{rollout.name} version {rollout.version}: {arrived} of {arrived + len(late)} proxies enforce it; "
        f"waiting for {names}{more}, {_for(waited.seconds)}"
    )


def _short(each: ProxyRollout) -> str:
    return {"unknown": "no report", "lost": "silent"}.get(
        each.state, f"at version {each.version}" if each.version else "has none"
    )


def _for(seconds: float) -> str:
    from controlplane.fleet_health import duration

    return duration(round(seconds * 1000))


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show a progress line, which each change overwrites.

    If the command has no terminal, show no progress line.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    from proxy.wire.log_line import one_line

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(escape(one_line(text)))
