"""Tests that no spelling of a blocked path, method or sub-request gets through the live proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bytes.data_path import DataPath, UpstreamPeer, data_path, ok
from tests.patience import PATIENCE_SECONDS

RULES = """
version: 1
name: spellings
default: allow
rules:
  - {id: no-mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}
  - {id: no-deletes, match: {path: ["/v1.0/groups/**"], methods: [DELETE]}, verdict: block}
"""

BLOCKED = "/v1.0/users/ada/messages"


def spellings() -> Iterator[str]:
    """Yield targets that some server interprets as the blocked path, or as a path below the blocked path."""
    version, users, user, messages = BLOCKED[1:].split("/")
    for segments in (
        (version.upper(), users, user, messages),
        (version, users.upper(), user, messages),
        (version, "uSeRs", user, "mEsSaGeS"),
        (version, users, user, messages.upper()),
        (version, users, user, messages.title()),
    ):
        yield "/" + "/".join(segments)
    for at, char in enumerate(BLOCKED):
        if char != "/":
            yield f"{BLOCKED[:at]}%{ord(char):02X}{BLOCKED[at + 1 :]}"
            yield f"{BLOCKED[:at]}%{ord(char):02x}{BLOCKED[at + 1 :]}?$top=1"
            yield f"{BLOCKED[:at]}%25{ord(char):02X}{BLOCKED[at + 1 :]}"
            yield f"{BLOCKED[:at]}%2525{ord(char):02x}{BLOCKED[at + 1 :]}"
    yield "/" + "".join(f"%{ord(char):02X}" if char != "/" else "/" for char in BLOCKED[1:])
    yield "/" + "".join(f"%25{ord(char):02X}" if char != "/" else "/" for char in BLOCKED[1:])
    for slash in (
        "//",
        "///",
        "/./",
        "/%2e/",
        "/%2E/",
        "/x/../",
        "/x/%2e%2e/",
        "/x/.%2e/",
        "/x/%2E./",
        "/%252e/",
        "/./././",
        "/x/y/../../",
        "/.//",
        "/x//../",
        "/;a/../",
        "/;/",
        "/;a=b/",
        "/%3b/",
        "\\",
        "/\\",
        "%5c",
        "%5C",
        "%2f",
        "%2F",
        "%252f",
        "%252F",
        "%25252f",
        "/%2f",
        "%2f/",
        "/x%2f..%2f",
        "/x%2f../",
        "/x/..;/",
        "%EF%BC%8F",
        "/%E2%80%8B",
        "/%20",
        "/%C2%AD",
        "/%EF%BB%BF",
    ):
        yield BLOCKED.replace("/messages", slash + "messages")
        yield BLOCKED.replace("/users", slash + "users")
        yield BLOCKED.replace("/ada", slash + "ada")
        yield "/" + slash.join(BLOCKED[1:].split("/"))
    for end in (
        "/",
        "//",
        "/.",
        "/./",
        "/x/..",
        "/x/../",
        "/%2e",
        "%2f",
        "%20",
        "%20/",
        ";",
        ";a=b",
        ";a=b/",
        ";a;b;c",
        "%3Ba",
        "()",
        "/()",
        "/$count",
        "/$value",
        "/AAMk=",
        "/AAMk=/attachments",
        "/delta",
        "/delta()",
        "/microsoft.graph.delta()",
        "/$ref",
        "/microsoft.graph.message",
        "/graph.message/",
        "?",
        "?a",
        "?/",
        "?/../../x",
        "?%2f",
        "%3f",
        "%3Fa=b",
        "/%3f",
        "\\",
        "%5c",
        "('AAMk=')",
        "(AAMk%3D)",
        "/AAMk=/",
        "%E2%80%8B",
        "%C2%AD",
    ):
        yield BLOCKED + end
    for key in (
        "users('ada')",
        "users(%27ada%27)",
        "users('a''da')",
        "users(ada)",
        "Users('ada')",
        "users%28'ada'%29",
        "users%28%27ada%27%29",
        "users(id='ada')",
        "users(userPrincipalName='ada%40x.y')",
        "users('ada')/microsoft.graph.user",
        "users ('ada')".replace(" ", "%20"),
        "users('a%2Fb')",
        "users(%2527ada%2527)",
        "users/'ada'",
        "users('ada%252Fx')",
        "users/ada/microsoft.graph.user",
        "users/ada/graph.user",
        "users/microsoft.graph.user/ada",
        "users/ada/Microsoft.Graph.User",
        "users/ada%40contoso.com",
        "users/ada@contoso.com",
        "users/%F0%9F%98%80",
        "users/%C3%A9",
        "users/x%2Fy",
        "users/x%2Fy%2Fz",
        "users/..x",
        "users/.../x/..",
        "users/%2e%2e%2e",
    ):
        yield f"/v1.0/{key}/messages"
        yield f"/v1.0/{key}/Messages/1"
        yield f"//v1.0/{key}//messages/"
    for parameters in (";x=1", ";x=)", ";)", ";x=(1)", ";x=%29", "%3Bx=)", "%EF%BC%9Bx=)", ";x=1;y=)"):
        yield f"/v1.0/users/ada/messages{parameters}"
        yield f"/v1.0/users{parameters}/ada/messages"
        yield f"/v1.0/users('ada'){parameters}/messages"
        yield f"/v1.0/me/..{parameters}/users/ada/messages"
    yield "/v1.0/users%EF%BC%BCada%EF%BC%BCmessages"
    yield "/v1.0/users/ada/messages%23"
    yield "/v1.0/users/ada/messages%23EXT%23"
    for letters in (
        "me%EF%BD%93sages",
        "m%65ssages",
        "%EF%BD%8D%EF%BD%85%EF%BD%93%EF%BD%93%EF%BD%81%EF%BD%87%EF%BD%85%EF%BD%93",
        "me%C5%BFsages",
        "messa%E2%80%8Bges",
        "messages%E2%80%8D",
        "%E2%93%9Cessages",
        "%F0%9D%90%A6essages",
        "me%EF%AC%86ages".replace("%EF%AC%86", "ss"),
    ):
        yield f"/v1.0/users/ada/{letters}"


SPELLINGS = sorted(set(spellings()))


class Recorder:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def script(self, peer: UpstreamPeer) -> None:
        while True:
            head = await peer.head()
            self.lines.append(head.split(b"\r\n")[0])
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length: "):
                    self.lines.append(await peer.body(int(line[16:])))
            peer.send(ok(b"{}"))


async def status_of(
    proxy: DataPath, target: str, method: str = "GET", fields: bytes = b"", body: bytes = b""
) -> int:
    reply = await asyncio.wait_for(proxy.ask(proxy.request(target, method, fields, body)), PATIENCE_SECONDS)
    return reply.status


def test_the_spellings_are_many() -> None:
    assert len(SPELLINGS) >= 350


async def test_no_spelling_of_a_blocked_path_is_forwarded(tmp_path: Path) -> None:
    upstream = Recorder()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        assert await status_of(proxy, "/v1.0/users/ada") == 200
        upstream.lines.clear()
        passed = []
        for target in SPELLINGS:
            status = await status_of(proxy, target)
            if status not in (400, 403):
                passed.append((target, status))
        assert passed == []
        assert upstream.lines == []


@pytest.mark.parametrize("authority", ["http://proxy.example", "HTTPS://Proxy.Example:443"])
async def test_nor_in_absolute_form(tmp_path: Path, authority: str) -> None:
    upstream = Recorder()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        assert await status_of(proxy, f"{authority}/v1.0/users/ada") == 200
        assert upstream.lines == [b"GET /v1.0/users/ada HTTP/1.1"]
        upstream.lines.clear()
        for target in SPELLINGS:
            assert await status_of(proxy, authority + target) in (400, 403), target
        assert upstream.lines == []


async def test_nor_as_a_part_of_a_batch(tmp_path: Path) -> None:
    upstream = Recorder()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        passed = []
        for target in SPELLINGS:
            if not target.startswith("/v1.0/"):
                continue
            part = {"id": "1", "method": "GET", "url": target.removeprefix("/v1.0")}
            body = json.dumps({"requests": [part]}).encode()
            fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
            if await status_of(proxy, "/v1.0/$batch", "POST", fields, body) not in (200, 400):
                passed.append(target)
        assert passed == []
        assert upstream.lines == []


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/$batch",
        "/v1.0/%24batch",
        "/V1.0/$BATCH",
        "//v1.0//$batch/",
        "/v1.0/./$batch",
        "/beta/../v1.0/$batch",
        "/v1.0/$batch;a=b",
        "/beta/..%2fv1.0/$batch",
        "/beta%2f..%2fv1.0/$batch",
        "/v1.0/%2524batch",
        "/beta\\..\\v1.0/$batch",
        "/v1.0/x/..%2f$batch",
        "/v1.0/$batch()",
        "/v1.0/$batch?a=b",
        "/v1.0/%EF%BC%84batch",
        "/v1.0/$b%61tch",
        "/v1.0/$batch%2f",
        "/x/$batch",
        "/v1.0/$batch%20",
        "/v1.0/%20$batch",
        "/v1.0/$batch%3f",
        "/v1.0/$batch%E2%80%8B",
    ],
)
async def test_however_the_batch_is_addressed_its_parts_are_evaluated(tmp_path: Path, target: str) -> None:
    upstream = Recorder()
    body = json.dumps({"requests": [{"id": "1", "method": "GET", "url": "/users/ada/messages"}]}).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(target, "POST", fields, body))
        if target == "/x/$batch":  # it has no API version: nothing is blocked there, and no mail is there
            return
        assert upstream.lines == []
        assert reply.status in (200, 400, 403)
        if reply.status == 200:
            assert [each["status"] for each in reply.json()["responses"]] == [403]


@pytest.mark.parametrize(
    "line",
    [
        "DELETE /v1.0/groups/1",
        "delete /v1.0/groups/1",
        "Delete /v1.0/groups/1",
        "\r\nDELETE /v1.0/groups/1",
        "\nDELETE /v1.0/groups/1",
        "\r\n\r\nDELETE /v1.0/groups/1",
        "\n\n\nDELETE /v1.0/groups/1",
        "\rDELETE /v1.0/groups/1",
        " DELETE /v1.0/groups/1",
        "DELETE  /v1.0/groups/1",
        "DELETE\t/v1.0/groups/1",
        "DELETE /v1.0/Groups/1",
        "DELETE /v1.0/groups/1?x=/v1.0/users",
        "DELETE /v1.0/groups('1')",
        "DELETE /v1.0/%67roups/1",
    ],
)
async def test_no_spelling_of_a_blocked_method_is_forwarded(tmp_path: Path, line: str) -> None:
    upstream = Recorder()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        text = proxy.request("/x").replace(b"GET /x", line.encode())
        assert (await asyncio.wait_for(proxy.ask(text), PATIENCE_SECONDS)).status in (400, 403)
        assert upstream.lines == []


@pytest.mark.parametrize(
    "name",
    [
        "X-HTTP-Method-Override",
        "x-http-method-override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X_HTTP_Method_Override",  # one and the same variable, if header fields become environment variables
        "X-HTTP_METHOD",
    ],
)
@pytest.mark.parametrize(
    "value", ["DELETE", "delete", " DELETE ", "DELETE, POST", "POST, DELETE", '"DELETE"', "POST;DELETE"]
)
@pytest.mark.parametrize("method", ["POST", "GET", "PATCH"])
async def test_no_override_makes_a_blocked_method(tmp_path: Path, name: str, value: str, method: str) -> None:
    upstream = Recorder()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        assert await status_of(proxy, "/v1.0/groups/1", method, f"{name}: {value}\r\n".encode()) in (400, 403)
        assert upstream.lines == []


async def test_the_rest_goes_through_with_its_own_bytes(tmp_path: Path) -> None:
    """Check that harmless targets pass unchanged: a matcher that blocks all unusual targets is wrong too."""
    upstream = Recorder()
    targets = [
        "/v1.0/users/ada",
        "/v1.0/users('ada')",
        "/v1.0/users/ada%40contoso.com",
        "/v1.0/users/ada/mailFolders/messagesx",
        "/v1.0//users//ada/",
        "/v1.0/users/./ada",
        "/v1.0/messages",
        "/v1.0/users/messages",
        "/beta/users/ada/messages",
        "/v1.0/users/ada/xmessages",
        "/v1.0/users/ada?$filter=a%20eq%20'/messages'",
        "/v1.0/drives/1/root:/messages/x:/content",
        "/v1.0/users/ada/drive/root:/a%20b%20(1).txt:",
        "/v1.0/users/O'Neil",
        "/v1.0/sites/root:/teams/x:/drive",
        "/v1.0/users/delta()",
        "/v1.0/users/ada/calendar/getSchedule",
        "/v1.0/users/%C3%A9",
        "/v1.0/users/ada;x=y",
        "/v1.0/me/messages/AAMkAD%3D%3D",
        "/v1.0/users/guest_contoso.com%23EXT%23@fabrikam.example",
    ]
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        for target in targets:
            assert await status_of(proxy, target) == 200, target
        assert upstream.lines == [f"GET {target} HTTP/1.1".encode() for target in targets]
