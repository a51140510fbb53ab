"""The demo of the whole system, which `./dev demo` shows and `./dev demo --check` checks."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.demo_console import StartPage, console_complaints, start_pages
from tests.demo_day import EVENTS, ORG, SignIn, Yesterday
from tests.demo_requests import Demo, Result
from tests.demo_rows import PAYROLL
from tests.demo_table import STYLES, table
from tests.fakes.system import System, SystemFailedError

_WITHOUT_TERMINAL: Final = 180  # columns
_MEANINGS: Final = {
    "allow": "passed on unchanged",
    "filter": "passed on without some properties",
    "block": "refused",
    "log_only": "passed on and recorded",
}


class Screen:
    """The output of the demo on a terminal. After the terminal is closed, the demo runs on without output."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str) -> None:
        """Print a line about the progress of the demo."""
        with contextlib.suppress(OSError):
            self.console.print(f"demo: {escape(text)}", soft_wrap=True, highlight=False)

    def print(self, markup: str) -> None:
        """Print a line for copying, which may be longer than the terminal is wide."""
        self.console.print(markup, soft_wrap=True, highlight=False)

    def welcome(self, system: System, sign_in: SignIn, pages: Sequence[StartPage]) -> None:
        self.print(f"\n[bold]Console[/bold]   {system.console_url}/")
        self.print(f"[bold]Name[/bold]      {sign_in.name}")
        self.print(f"[bold]Password[/bold]  {sign_in.password}")
        self.print("\n[bold]Three pages to open first[/bold]")
        for number, page in enumerate(pages, 1):
            self.print(f"{number}  {escape(system.console_url + page.path)}")
            self.print(f"   {page.about}")

    def summary(self, demo: Demo, day: Counter[str]) -> None:
        """Print the number of requests for each verdict."""
        sent = Counter(result.events[0]["verdict"] for result in demo.results if result.events)
        shown = Table(box=None, pad_edge=False, header_style="bold")
        shown.add_column("Verdict")
        shown.add_column("This run", justify="right")
        shown.add_column("Day before", justify="right")
        shown.add_column("Meaning", style="dim")
        for verdict, meaning in _MEANINGS.items():
            counts = (f"{each[verdict]:,}" for each in (sent, day))
            shown.add_row(f"[{STYLES[verdict]}]{verdict}[/]", *counts, meaning)
        strangers = sum(1 for result in demo.results if not result.events)
        shown.add_row("-", str(strangers), "", "refused without a valid token, no event")
        self.console.print()
        self.console.print(shown)

    def requests(self, results: Sequence[Result]) -> None:
        for part in table(results, self.console.width):
            self.console.print(part)

    def farewell(self, system: System, sign_in: SignIn, pages: Sequence[StartPage]) -> None:
        """Print again those lines that must stay visible on the terminal while the demo runs."""
        self.print(f"\n[bold]Console {system.console_url}/[/bold]  {sign_in.name} / {sign_in.password}")
        for page in pages:
            self.print(f"  {page.name}: {escape(system.console_url + page.path)}")
        self.print(f"Ctrl-C stops everything and removes {system.directory}.")


def hints(demo: Demo) -> Iterator[str]:
    """Yield lines with commands to copy, and with the addresses of the demo's servers."""
    system = demo.system
    app = system.applications[PAYROLL]
    yield "\n[bold]Try it[/bold] from another terminal, in this directory. The token is valid for an hour."
    yield escape(f"CA={shlex.quote(str(system.authority.ca_file))}")
    yield escape(f"TOKEN={demo.tokens[PAYROLL]}")
    disguised = "/v1.0/organization/../users/ada@contoso.com/%6Dessages"
    curl = r"curl -w '\n'"
    for target in ("/v1.0/users?$top=2", "/v1.0/groups", disguised):
        bearer = '--cacert "$CA" -H "Authorization: Bearer $TOKEN"'
        yield escape(f"{curl} --path-as-is {bearer} '{system.proxy_url}{target}'")
    form = f"-d grant_type=client_credentials -d client_id={app.client_id}"
    secret = shlex.quote(f"client_secret={app.client_secret}")
    yield escape(f'{curl} --cacert "$CA" {form} --data-urlencode {secret} {system.proxy_url}/proxy/token')
    yield escape(f"{curl} {system.admin_url}/readyz {system.admin_url}/metrics")
    yield escape(shlex.join(system.cli_command("audit", "search", "verdict:block", "--limit", "5")))
    report = ("audit", "report", "--org", ORG, "--class", "mail", "--from", "-24h")
    yield escape(shlex.join(system.cli_command(*report)))
    yield "\n[bold]Addresses[/bold]"
    yield f"Proxy                   {system.proxy_url}, for operators {system.admin_url}"
    yield f"Control plane           {system.control_plane_url}"
    yield f"Fake Microsoft Graph    {system.graph.base_url}"
    yield f"Fake identity provider  {system.identity.base_url}"
    yield f"Fake key vault          {system.vault.base_url}, with the client secret for Graph"
    yield f"Files                   {system.directory}: settings, logs, audit spool, database"


def demo_system(directory: Path, day: Yesterday) -> System:
    return System(directory, {}, vault=True, warm=False, console=True, register=day.register)


async def run(*, check: bool) -> int:
    screen = Screen(Console(width=None if sys.stdout.isatty() else _WITHOUT_TERMINAL))
    _stop_once_on_signals(screen)  # before there are resources to clean up
    directory = Path(tempfile.mkdtemp(prefix="graphward-demo-"))
    keep_files = False
    day = Yesterday()
    screen.say(f"storing {EVENTS:,} audit events of the last day, then starting control plane and proxy")
    try:
        async with demo_system(directory, day) as system:
            keep_files = await _run(system, day, screen, check=check)
        return 1 if keep_files else 0
    except SystemFailedError as error:
        screen.console.print(f"demo: {escape(str(error))}", style="red", soft_wrap=True)
        return 1
    except asyncio.CancelledError:
        return 1 if check else 0
    finally:
        _clear_up(screen, directory, keep_files=keep_files)


def _clear_up(screen: Screen, directory: Path, *, keep_files: bool) -> None:
    if not keep_files:
        shutil.rmtree(directory, ignore_errors=True)
    files = f"kept {directory}: settings, logs and database" if keep_files else f"removed {directory}"
    screen.say(f"stopped the console, the control plane, the proxy and the fakes; {files}")


def _stop_once_on_signals(screen: Screen) -> None:
    """Make the first signal to the demo process end the demo, and ignore later signals."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed

    def stop() -> None:
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        screen.say("stopping everything")
        if task is not None:
            task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop)


async def _run(system: System, day: Yesterday, screen: Screen, *, check: bool) -> bool:
    """Return True if any result differs from the expected result."""
    started = time.monotonic()
    screen.say("sending requests")
    demo = Demo(system)
    try:
        await demo.send_all()
        await demo.collect_events()
    finally:
        demo.close()
    pages = start_pages(demo.results)
    looked_up = await asyncio.gather(
        demo.replayed(),
        demo.missing_events(),
        console_complaints(system.console_url, day.sign_in, pages),
    )
    complaints = demo.complaints() + [each for found in looked_up for each in found]
    screen.welcome(system, day.sign_in, pages)
    screen.summary(demo, day.verdicts)
    screen.requests(demo.results)
    for complaint in complaints:
        screen.print(f"[red]not as expected:[/red] {escape(complaint)}")
    good = f"{len(demo.results)} requests, all as expected" if not complaints else "FAILED"
    screen.say(f"{good}, {time.monotonic() - started:.1f} s")
    if not check:
        for line in hints(demo):
            screen.print(line)
        screen.farewell(system, day.sign_in, pages)
        await asyncio.Event().wait()
    return bool(complaints)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--check", action="store_true", help="assert every row and the console, then exit")
    return asyncio.run(run(check=parser.parse_args().check))


if __name__ == "__main__":
    sys.exit(main())
