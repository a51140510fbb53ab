"""A sink that writes to a custom table of Microsoft Sentinel, by the Logs Ingestion API of Azure Monitor.

The package `azure-monitor-ingestion` is not used, because it splits a list into several calls and sends these
calls at the same time. Calls that run at the same time would change the order of events.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
import orjson

from controlplane.sinks.azure_token import ServiceToken, open_credential
from controlplane.sinks.http import retry_after, said, unproven
from controlplane.sinks.interface import ALL_SENT, Limits, Sent, SinkEvent, SinkRefused, SinkUnavailable
from controlplane.sinks.settings import SentinelSettings, secrets_of_sink
from proxy.config.tls import client_tls
from proxy.outbound.call import CallFailed, call
from proxy.outbound.egress import Egress
from proxy.outbound.session import open_session

_LIMITS: Final = Limits(events=2000, bytes=900_000)
_MOST_BYTES: Final = 1_000_000  # largest body in bytes before compression; the service accepts 1 MB
_OF_EVENTS: Final = frozenset({400, 413})  # statuses that concern the events
# Error codes of a 400 that concern the rule or the stream, and not the events.
_OF_SETTINGS: Final = ("stream", "rule", "endpoint", "apiversion")
_CLOUDS: Final = {".azure.us": "monitor.azure.us", ".azure.cn": "monitor.azure.cn"}
_ROLE: Final = "; does the identity have the role Monitoring Metrics Publisher on the rule? A new role takes"
_SPREADS: Final = "up to 30 minutes to work"
# Column of the table -> member of the event. Names such as `id` and `Type` are reserved in the table.
COLUMNS: Final[Mapping[str, str]] = {
    "TimeGenerated": "time",
    "EventId": "id",
    "OrgId": "orgId",
    "ProxyId": "proxyId",
    "AppId": "appId",
    "ClientId": "clientId",
    "ClientIp": "clientIp",
    "RequestId": "requestId",
    "ClientRequestId": "clientRequestId",
    "ParentRequestId": "parentRequestId",
    "UpstreamRequestId": "upstreamRequestId",
    "TraceId": "traceId",
    "Method": "method",
    "Path": "path",
    "Query": "query",
    "Status": "status",
    "UpstreamStatus": "upstreamStatus",
    "Verdict": "verdict",
    "Reason": "reason",
    "RuleId": "ruleId",
    "RuleIds": "ruleIds",
    "LoggedRuleIds": "loggedRuleIds",
    "Transforms": "transforms",
    "RulesetVersion": "rulesetVersion",
    "CredentialId": "credentialId",
    "CredentialProblem": "credentialProblem",
    "DurationMs": "durationMs",
    "UpstreamMs": "upstreamMs",
    "RequestBytes": "requestBytes",
    "ResponseBytes": "responseBytes",
    "Seq": "seq",
    "ReceivedAt": "receivedAt",
}
OTHER_MEMBERS: Final = "OtherMembers"
OCSF: Final = "Ocsf"
_KNOWN: Final = frozenset(COLUMNS.values())


class SentinelSink:
    def __init__(self, settings: SentinelSettings, egress: Egress) -> None:
        self._settings = settings
        self._session = open_session(client_tls(settings.ca_file), egress, user_agent="graphward")
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds, sock_connect=10)
        self._token = ServiceToken(open_credential(settings, self._session), scope_of(settings.url))
        rule, stream = quote(settings.rule_id), quote(settings.stream)
        place = f"/dataCollectionRules/{rule}/streams/{stream}?api-version=2023-01-01"
        self._url = settings.url.rstrip("/") + place

    @property
    def limits(self) -> Limits:
        return _LIMITS

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        delivered = 0
        for rows in _calls([self._row(each) for each in events]):
            try:
                await self._upload(rows)
            except SinkRefused as error:
                if not delivered:
                    raise
                # The service has the events of the earlier calls, so the consumer continues after them.
                raise SinkUnavailable(str(error), None, delivered) from None
            except SinkUnavailable as error:
                raise SinkUnavailable(str(error), error.retry_after, delivered) from None
            delivered += len(rows)
        return ALL_SENT

    async def test(self) -> str:
        """Send an empty list of rows.

        The service accepts an empty list of rows if the identity has the required role.
        """
        await self._upload([])
        return "the data collection rule accepts events"

    async def close(self) -> None:
        await self._session.close()

    def _row(self, event: SinkEvent) -> bytes:
        members = event.members
        if self._settings.format == "event":
            row = {column: members[name] for column, name in COLUMNS.items() if name in members}
            others = {name: value for name, value in members.items() if name not in _KNOWN}
            return orjson.dumps(row | ({OTHER_MEMBERS: others} if others else {}))
        kept = {column: members.get(COLUMNS[column]) for column in ("TimeGenerated", "EventId", "OrgId")}
        return orjson.dumps(kept | {OCSF: orjson.Fragment(event.payload)})

    async def _upload(self, rows: Sequence[bytes]) -> None:
        token = await self._token.value()
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
        }
        body = gzip.compress(b"[" + b",".join(rows) + b"]", 3, mtime=0)
        try:
            status, given, content = await call(
                self._session, "POST", self._url, body, headers, limits=self._timeout
            )
        except CallFailed as error:
            raise SinkUnavailable(str(error)) from None
        if status == 204:
            return
        secrets = secrets_of_sink(self._settings) | {token}
        if 200 <= status < 300:
            raise SinkUnavailable(unproven(status, given, content, secrets))
        words = said(status, given, content, secrets)
        if status in _OF_EVENTS and rows and not _is_of_settings(given, content):
            raise SinkRefused(words)
        if status == 401:
            self._token.forget()
        if status == 403:
            words = f"{words}{_ROLE} {_SPREADS}"
        raise SinkUnavailable(words, retry_after(given))


def scope_of(url: str) -> str:
    """Return the scope of access tokens for the Azure cloud to which the URL belongs."""
    host = urlsplit(url).hostname or ""
    service = next((each for end, each in _CLOUDS.items() if host.endswith(end)), "monitor.azure.com")
    return f"https://{service}/.default"


def _calls(rows: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Split the rows into calls within the size limit of the Logs Ingestion API.

    A row that exceeds the size limit of a call is sent alone.
    """
    found: list[bytes] = []
    size = 2
    for row in rows:
        if found and size + len(row) + 1 > _MOST_BYTES:
            yield found
            found, size = [], 2
        found.append(row)
        size += len(row) + 1
    if found:
        yield found


def _is_of_settings(headers: Mapping[str, str], content: bytes) -> bool:
    code = headers.get("x-ms-error-code", "") or _code(content)
    return any(word in code.lower() for word in _OF_SETTINGS)


def _code(content: bytes) -> str:
    try:
        error: Any = orjson.loads(content)["error"]
        return str(error["code"])
    except (ValueError, TypeError, KeyError):
        return ""
