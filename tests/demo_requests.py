"""Send the requests of the demo through a running system, and find differences from the expected results."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from tests.demo_rows import PAYROLL, POWER_BI, Row, groups
from tests.fakes.identity import CLIENT_SECRET
from tests.fakes.server import Received
from tests.fakes.system import PROXY, ROOT, SIGNING_KEY, System, SystemFailedError

RULESETS: Final = ROOT / "conf" / "demo"
AUDIT_SECONDS: Final = 15


@dataclass(slots=True)
class Result:
    """One demo row, with the result that the client, the upstream and the audit trail show for the row."""

    row: Row
    heading: str  # heading of its group
    id: str
    target: str
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    wire_body: bytes = b""
    body: bytes = b""
    seen: list[Received] = field(default_factory=list)  # requests that the upstream received
    upstream_body: bytes | None = None  # the upstream's response to this request
    events: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def header(self, name: str) -> str:
        return next((value for each, value in self.headers if each.lower() == name.lower()), "")

    @property
    def received_bytes(self) -> bytes:
        head = "".join(f"{name}: {value}\n" for name, value in self.headers).encode("latin-1")
        return head + self.wire_body + self.body


class Demo:
    """Sends the demo's rows through a running system, and compares each result with the expected result."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.results: list[Result] = []
        self.tokens: dict[str, str] = {}
        self._context = system.client_context()
        self._connection = self._connect()

    # The client's side

    async def send_all(self) -> None:
        for name in (PAYROLL, POWER_BI):
            await self._get_token(name)
        for heading, rows in groups():
            for row in rows:
                await self._send(heading, row)

    async def _get_token(self, name: str) -> None:
        app = self.system.applications[name]
        form = {
            "grant_type": "client_credentials",
            "client_id": app.client_id,
            "client_secret": app.client_secret,
        }
        row = Row(
            f"token for {name}",
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
        result = await self._exchange("Tokens", row, row.target, form_type)
        if result.status != 200:
            log = self.system.children[-1].log_tail()
            raise SystemFailedError(f"no token for {name}: {result.status} {result.body.decode()}\n{log}")
        self.tokens[name] = json.loads(result.body)["access_token"]

    async def _send(self, heading: str, row: Row) -> None:
        result = await self._exchange(heading, row, row.target or self._next_page(), row.headers)
        graph = self.system.graph
        result.seen = [each for each in graph.requests if each.value("client-request-id") == result.id]
        if result.seen:
            response = await graph.content(result.seen[0])
            result.upstream_body = response.body if response.stream is None else None

    def _next_page(self) -> str:
        """Return the request target of the next-page link in the last response, as an SDK would follow it."""
        last = self.results[-1]
        link = str((parsed(last.body) or {}).get("@odata.nextLink"))
        # A link to another host is not followed, and its row fails by its status.
        here = link.startswith(f"{self.system.proxy_url}/")
        return link.removeprefix(self.system.proxy_url) if here else "/v1.0/$no-link-to-the-proxy"

    async def _exchange(self, heading: str, row: Row, target: str, headers: dict[str, str]) -> Result:
        result = Result(row, heading, str(uuid.uuid4()), target)
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
            connection.close()  # the next request opens the connection again

    def _connect(self) -> http.client.HTTPSConnection:
        host, _, port = self.system.proxy_url.removeprefix("https://").partition(":")
        return http.client.HTTPSConnection(host, int(port), timeout=20, context=self._context)

    def close(self) -> None:
        self._connection.close()

    # The audit trail

    async def collect_events(self) -> None:
        """Wait until the control plane finds an event for every request that must have an event."""
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
        """Replay the stored events with the unchanged demo rulesets, and return each change of a verdict.

        Also return each ruleset for which the replay found no event.
        """
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

    async def missing_events(self) -> list[str]:
        """Return each range of missing event sequence numbers, including ranges from the day before."""
        shown = await self.system.cli("proxy", "show", PROXY)
        return [
            f"{PROXY}: events {each['missing']} are missing below {each['highestSeq']}"
            for each in shown["sequences"]
            if each["missingCount"]
        ]

    def complaints(self) -> list[str]:
        """Return each difference between a result of the demo and the expected result."""
        report = [
            f"{name(result)}: {complaint}" for result in self.results for complaint in _complaints(result)
        ]
        return report + list(self._leaks())

    def _leaks(self) -> Iterator[str]:
        """Yield a text for each credential that a log contains, or that reached a wrong receiver."""
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
            yield "the request was not authenticated, and yet there is an event"
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


def parsed(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a body, or None if the body is not a JSON object."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
