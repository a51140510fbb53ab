"""The whole system at work on fakes: `./dev demo` shows it, `./dev demo --check` asserts it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import http.client
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.demo_rows import HR, REPORTING, Row, rows
from tests.fakes.identity import CLIENT_SECRET
from tests.fakes.server import Received
from tests.fakes.system import SIGNING_KEY, System, SystemFailedError

RULESETS: Final = Path(__file__).parent.parent / "conf" / "demo"
AUDIT_SECONDS: Final = 15
_STYLES: Final = {"allow": "green", "filter": "yellow", "block": "red", "log_only": "cyan"}


@dataclass(slots=True)
class Result:
    """What became of a row: what the client got, the upstream saw and the audit trail says."""

    row: Row
    id: str
    target: str
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    wire_body: bytes = b""
    body: bytes = b""
    seen: list[Received] = field(default_factory=list)  # by the upstream
    upstream_body: bytes | None = None  # what the upstream has to say to it
    events: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def header(self, name: str) -> str:
        return next((value for each, value in self.headers if each.lower() == name.lower()), "")

    @property
    def received_bytes(self) -> bytes:
        head = "".join(f"{name}: {value}\n" for name, value in self.headers).encode("latin-1")
        return head + self.wire_body + self.body


class Demo:
    """Sends the rows through a running system and evaluates what came of them."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.results: list[Result] = []
        self.tokens: dict[str, str] = {}
        self._context = system.client_context()
        self._connection = self._connect()

    # The client's side

    async def send_all(self) -> None:
        for name in self.system.applications:
            await self._get_token(name)
        for row in rows():
            await self._send(row)

    async def _get_token(self, name: str) -> None:
        app = self.system.applications[name]
        form = {
            "grant_type": "client_credentials",
            "client_id": app.client_id,
            "client_secret": app.client_secret,
        }
        row = Row(
            "a token",
            "/proxy/token",
            200,
            "allow",
            None,
            "POST",
            name,
            token="none",
            body=urlencode(form).encode(),
        )
        form_type = {"Content-Type": "application/x-www-form-urlencoded"}
        result = await self._exchange(row, row.target, form_type)
        if result.status != 200:
            log = self.system.children[-1].log_tail()
            raise SystemFailedError(f"no token for {name}: {result.status} {result.body.decode()}\n{log}")
        self.tokens[name] = json.loads(result.body)["access_token"]

    async def _send(self, row: Row) -> None:
        result = await self._exchange(row, row.target or self._next_page(), row.headers)
        graph = self.system.graph
        result.seen = [each for each in graph.requests if each.value("client-request-id") == result.id]
        if result.seen:
            response = await graph.content(result.seen[0])
            result.upstream_body = response.body if response.stream is None else None

    def _next_page(self) -> str:
        """The target that the last response's link leads to, as an SDK follows it."""
        last = self.results[-1]
        link = str((parsed(last.body) or {}).get("@odata.nextLink"))
        # A link that leads elsewhere is not followed, and its row fails by its status.
        here = link.startswith(f"{self.system.proxy_url}/")
        return link.removeprefix(self.system.proxy_url) if here else "/v1.0/$no-link-to-the-proxy"

    async def _exchange(self, row: Row, target: str, headers: dict[str, str]) -> Result:
        result = Result(row, str(uuid.uuid4()), target)
        self.results.append(result)
        fields = {**headers, "client-request-id": result.id, **self._authorization(row)}
        body: Any = row.body or None
        if row.chunked:
            body = (row.body[at : at + 65536] for at in range(0, len(row.body), 65536))
        await asyncio.to_thread(self._request, row, result, fields, body)
        return result

    def _authorization(self, row: Row) -> dict[str, str]:
        own = self.tokens.get(row.app, "")
        damaged = own[:-2] + ("AA" if own[-2:] != "AA" else "BB")
        token = {"own": own, "none": "", "damaged": damaged, "upstream": self.system.identity.tokens[-1]}[
            row.token
        ]
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _request(self, row: Row, result: Result, fields: dict[str, str], body: Any) -> None:
        connection = self._connection
        try:
            connection.request(row.method, result.target, body, fields, encode_chunked=row.chunked)
            response = connection.getresponse()
            result.status = response.status
            result.headers = response.getheaders()
            result.wire_body = response.read()
        except (OSError, http.client.HTTPException) as error:
            result.status, result.body = 0, f"connection lost: {error}".encode()
            connection.close()
            return
        coded = result.header("Content-Encoding") == "gzip"
        result.body = gzip.decompress(result.wire_body) if coded else result.wire_body
        if response.will_close:
            connection.close()  # the next request opens it again

    def _connect(self) -> http.client.HTTPSConnection:
        host, _, port = self.system.proxy_url.removeprefix("https://").partition(":")
        return http.client.HTTPSConnection(host, int(port), timeout=20, context=self._context)

    def close(self) -> None:
        self._connection.close()

    # The audit trail

    async def collect_events(self) -> None:
        """Waits until the control plane can find an event of every request that should have one."""
        expected = {result.id for result in self.results if result.row.verdict}
        deadline = time.monotonic() + AUDIT_SECONDS
        while True:
            found = await self.system.cli("audit", "search", "--org", self.system.org_id, "--limit", "500")
            events = found["events"]
            if expected <= {event.get("clientRequestId") for event in events} or time.monotonic() > deadline:
                break
        for result in self.results:
            own = [event for event in events if event.get("clientRequestId") == result.id]
            result.events = [event for event in own if not event.get("parentRequestId")]
            ids = {event["requestId"] for event in result.events}
            parts = [event for event in events if event.get("parentRequestId") in ids]
            result.parts = sorted(parts, key=lambda event: str(event["path"]))

    # Evaluation

    async def replayed(self) -> list[str]:
        """The rules that have evaluated the rows would evaluate what is stored of them the same way again."""
        files = [str(RULESETS / name) for name in ("hr-sync.yaml", "reporting.yaml")]
        report = await asyncio.gather(
            *(self.system.cli("ruleset", "replay", file, "--org", self.system.org_id) for file in files)
        )
        return [
            f"replayed by {file}: {group['count']} are {group['change']}, as {group['samples'][0]['target']}"
            for file, one in zip(files, report, strict=True)
            for group in one["groups"]
        ] + [
            f"replayed by {file}: no event"
            for file, one in zip(files, report, strict=True)
            if not one["events"]
        ]

    def complaints(self) -> list[str]:
        """Everything that is not as it should be."""
        report = [
            f"{name(result)}: {complaint}" for result in self.results for complaint in _complaints(result)
        ]
        return report + list(self._leaks())

    def _leaks(self) -> Iterator[str]:
        """Neither side may see the other's credential, and no log may show any."""
        system = self.system
        hidden = (*system.identity.tokens, *system.managed_identity.tokens, CLIENT_SECRET, SIGNING_KEY)
        upstream = [secret.encode() for secret in hidden]
        for result in self.results:
            if any(token in result.received_bytes for token in upstream):
                yield f"{name(result)}: the client saw the upstream token"
        proxy = [token.encode() for token in self.tokens.values()]
        for each in self.system.graph.requests:
            if any(token in each.head or token in each.body for token in proxy):
                yield f"{each.target}: the upstream saw a proxy token"
        secrets = [app.client_secret.encode() for app in self.system.applications.values()]
        for child in self.system.children:
            log = child.log.read_bytes()
            if any(secret in log for secret in (*upstream, *proxy, *secrets)):
                yield f"{child.name}: a secret is in {child.log}"


def name(result: Result) -> str:
    return f"{result.row.title} ({result.row.method} {result.target})"


def _complaints(result: Result) -> Iterator[str]:
    row = result.row
    if result.status != row.status:
        yield f"status {result.status} instead of {row.status}: {result.body[:300]!r}"
        return
    yield from _event_complaints(result)
    is_token = row.target == "/proxy/token"
    if len(result.seen) != (1 if row.forwarded and not is_token else 0):
        yield f"the upstream saw it {len(result.seen)} times"
    if any(each.malformed for each in result.seen):
        yield f"the upstream could not read it: {result.seen[0].malformed}"
    if row.body and result.seen and not row.parts and bytes(result.seen[0].body) != row.body:
        yield "the upstream got another body"
    if row.unchanged and result.body != result.upstream_body:
        yield "the body is not what the upstream sent"
    for hidden in row.hidden:
        if f'"{hidden}"'.encode() in result.body:
            yield f"{hidden} is in the response"
    if "Accept-Encoding" in row.headers and result.header("Content-Encoding") != "gzip" and row.unchanged:
        yield "the response is not compressed"
    if row.status == 429 and result.header("Retry-After") != "7":
        yield "Retry-After is not intact"
    if row.status in (403, 502) and "error" not in (parsed(result.body) or {}):
        yield "no error body"


def _event_complaints(result: Result) -> Iterator[str]:
    row = result.row
    if row.verdict is None:
        if result.events:
            yield "nobody known asked, and yet there is an event"
        return
    if len(result.events) != 1:
        yield f"{len(result.events)} audit events"
        return
    event = result.events[0]
    rule = event.get("ruleId") if row.rule is not None else None
    for what, found, wanted in (
        ("verdict", event["verdict"], row.verdict),
        ("rule", rule, row.rule),
        ("status", event["status"], row.status),
        ("method", event["method"], row.method),
    ):
        if found != wanted:
            yield f"{what} {found} in the audit trail instead of {wanted}"
    parts = sorted((part["status"], part["verdict"]) for part in result.parts)
    if parts != sorted(row.parts):
        yield f"parts {parts} in the audit trail instead of {sorted(row.parts)}"


# What is shown


def table(results: list[Result]) -> Table:
    shown = Table(title="What applications asked, and what came of it", header_style="bold", pad_edge=False)
    shown.add_column("Request", overflow="fold", ratio=3)
    shown.add_column("", no_wrap=True, style="dim")
    shown.add_column("Status", justify="right")
    shown.add_column("Verdict")
    shown.add_column("Rule")
    shown.add_column("What changed", overflow="fold", ratio=2)
    for result in results:
        event = result.events[0] if result.events else {}
        verdict = event.get("verdict", "-")
        rule = event.get("ruleId") or event.get("reason") or "nobody known"
        logged = "".join(f" +{each}" for each in event.get("loggedRuleIds") or () if each != rule)
        shown.add_row(
            escape(f"{result.row.method} {result.target}"),
            escape(result.row.title),
            str(result.status),
            f"[{_STYLES.get(verdict, 'dim')}]{verdict}[/]",
            escape(rule + logged),
            escape(changes(result)),
        )
    return shown


def changes(result: Result) -> str:
    """In a few words: what the client's body lost or gained on the way."""
    if not result.status:
        return result.body.decode()
    if not result.seen:
        return "the proxy's own response" if result.row.verdict != "block" else "never left the proxy"
    if result.upstream_body is None:
        return f"{len(result.body):,} bytes passed"
    if result.body == result.upstream_body:
        coded = f", {result.header('Content-Encoding')} kept" if result.header("Content-Encoding") else ""
        return f"nothing ({len(result.body):,} bytes{coded})"
    if not result.body or result.status >= 400:
        return "no body" if not result.body else "response replaced"
    before, after = parsed(result.upstream_body), parsed(result.body)
    if before is None or after is None:
        return f"{len(result.upstream_body):,} to {len(result.body):,} bytes"
    gone = sorted(property_names(before) - property_names(after))
    more = f" and {len(gone) - 5} more" if len(gone) > 5 else ""
    report = [f"removed {', '.join(gone[:5])}{more}"] if gone else []
    if before.get("@odata.nextLink") != after.get("@odata.nextLink"):
        report.append("nextLink leads to the proxy")
    return "; ".join(report) or f"{len(result.upstream_body):,} to {len(result.body):,} bytes"


def parsed(body: bytes) -> dict[str, Any] | None:
    """A JSON object, or None for whatever else."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def property_names(value: Any, prefix: str = "") -> set[str]:
    """Names with the way to them; the items of a list, and of a page's `value`, count as one."""
    if isinstance(value, list):
        return set().union(*(property_names(item, prefix) for item in value))
    if not isinstance(value, dict):
        return set()
    names = {prefix + key for key in value}
    for key, item in value.items():
        names |= property_names(item, prefix if key == "value" else f"{prefix}{key}.")
    return names


def hints(demo: Demo) -> Iterator[str]:
    """Commands to copy, and where things are."""
    system = demo.system
    app = system.applications[HR]
    yield "[bold]Try it[/bold] from another terminal, in this directory (the token is good for an hour):"
    yield escape(f"CA={shlex.quote(str(system.authority.ca_file))}")
    yield escape(f"TOKEN={demo.tokens[HR]}")
    disguised = "/v1.0/organization/../users/ada@contoso.com/%6Dessages"
    for target in ("/v1.0/users?$top=2", "/v1.0/groups", disguised):
        bearer = '--cacert "$CA" -H "Authorization: Bearer $TOKEN"'
        yield escape(f"curl --path-as-is {bearer} '{system.proxy_url}{target}'")
    form = f"-d grant_type=client_credentials -d client_id={app.client_id}"
    secret = shlex.quote(f"client_secret={app.client_secret}")
    yield escape(f'curl --cacert "$CA" {form} --data-urlencode {secret} {system.proxy_url}/proxy/token')
    yield escape(f"curl {system.admin_url}/readyz {system.admin_url}/metrics")
    yield escape(shlex.join(system.cli_command("audit", "search", "verdict:block", "--limit", "5")))
    yield ""
    yield "[bold]Where it is[/bold]"
    yield f"proxy {system.proxy_url}, its admin listener {system.admin_url}"
    yield f"control plane {system.control_plane_url}"
    yield f"fake Graph {system.graph.base_url}, fake identity provider {system.identity.base_url}"
    yield f"fake key vault {system.vault.base_url}, which holds the upstream client secret"
    yield f"settings, logs, audit spool and database: {system.directory}"


async def run(*, check: bool) -> int:
    console = Console(width=None if sys.stdout.isatty() else 180)
    _stop_once_on_signals()  # before there is anything to clear up
    directory = Path(tempfile.mkdtemp(prefix="graphward-demo-"))
    keep_files = False
    try:
        applications = {HR: RULESETS / "hr-sync.yaml", REPORTING: RULESETS / "reporting.yaml"}
        async with System(directory, applications, vault=True, warm=False) as system:
            keep_files = await _run(system, console, check=check)
        return 1 if keep_files else 0
    except SystemFailedError as error:
        console.print(f"demo: {escape(str(error))}", style="red", soft_wrap=True)
        return 1
    except asyncio.CancelledError:
        return 1 if check else 0
    finally:
        _clear_up(console, directory, keep_files=keep_files)


def _clear_up(console: Console, directory: Path, *, keep_files: bool) -> None:
    """Remove the files and say what ended; a terminal that was closed takes no text."""
    if not keep_files:
        shutil.rmtree(directory, ignore_errors=True)
    left = f"kept {directory}: settings, logs and database" if keep_files else f"removed {directory}"
    with contextlib.suppress(OSError):
        console.print(f"demo: stopped the control plane and the proxy, {left}", soft_wrap=True)


def _stop_once_on_signals() -> None:
    """The first signal ends whatever is going on; what comes later must not disturb the stopping."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last when its terminal is closed

    def stop() -> None:
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        if task is not None:
            task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop)


async def _run(system: System, console: Console, *, check: bool) -> bool:
    """Whether anything is not as it should be."""
    started = time.monotonic()
    demo = Demo(system)
    try:
        await demo.send_all()
        await demo.collect_events()
    finally:
        demo.close()
    complaints = demo.complaints() + await demo.replayed()
    console.print(table(demo.results))
    for complaint in complaints:
        console.print(f"[red]not as it should be:[/red] {escape(complaint)}", soft_wrap=True)
    good = f"{len(demo.results)} requests, all as expected" if not complaints else "FAILED"
    console.print(f"demo: {good}, {time.monotonic() - started:.1f} s", soft_wrap=True, highlight=False)
    if not check:
        for line in hints(demo):
            console.print(line, soft_wrap=True, highlight=False)
        console.print("\nCtrl-C stops everything and removes these files.")
        await asyncio.Event().wait()
    return bool(complaints)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--check", action="store_true", help="assert every row, then exit 0 or 1")
    return asyncio.run(run(check=parser.parse_args().check))


if __name__ == "__main__":
    sys.exit(main())
