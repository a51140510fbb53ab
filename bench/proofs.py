"""Check before a measurement that a server does its job and refuses invalid requests."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable
from typing import Final

from bench.cost import Peer
from bench.graphward import TOKEN_SECONDS, proxy_token
from bench.load import LIST_PATH, ONE_PATH
from bench.rig import Rig
from bench.samples import ONE_USER, USERS
from bench.servers import Server, ServerFailed

STRIPPED: Final = frozenset({"mobilePhone", "businessPhones", "otherMails"})
Proof = Callable[[Server, Peer], None]


def one_user(rig: Rig, *, evaluating: bool = False) -> Proof:
    return _proves(rig, ONE_PATH, ONE_USER, evaluating=evaluating)


def the_list(rig: Rig) -> Proof:
    return _proves(rig, LIST_PATH, USERS)


def _proves(rig: Rig, path: str, body: bytes, *, evaluating: bool = False) -> Proof:
    expired = proxy_token(time.time() - 2 * TOKEN_SECONDS)

    def check(server: Server, peer: Peer) -> None:
        fetch = _fetcher(rig, server, tls=peer.loader.tls)
        _expect(server, "forwards the response", fetch(path, rig.token) == (200, body))
        if evaluating and peer.name != "relay":
            _expect(server, "refuses a damaged token", fetch(path, rig.token[:-4] + "AAAA")[0] == 401)
            _expect(server, "refuses an expired token", fetch(path, expired)[0] == 401)
            _expect(server, "refuses a request without a token", fetch(path, None)[0] == 401)
            _expect(
                server, "refuses a request that no rule allows", fetch("/v1.0/groups", rig.token)[0] == 403
            )

    return check


def stripping(rig: Rig) -> Proof:
    wanted = [item.keys() - STRIPPED for item in json.loads(USERS)["value"]]

    def check(server: Server, peer: Peer) -> None:
        status, body = _fetcher(rig, server, tls=False)(LIST_PATH, rig.token)
        got = [item.keys() for item in json.loads(body)["value"]] if status == 200 else []
        _expect(server, "removes the properties", got == wanted)

    return check


def _expect(server: Server, what: str, holds: bool) -> None:
    if not holds:
        raise ServerFailed(
            f"{server.name} can't be measured, because it failed this check: {what} (see {server.log})"
        )


def _fetcher(rig: Rig, server: Server, *, tls: bool) -> Callable[[str, str | None], tuple[int, bytes]]:
    def fetch(path: str, token: str | None) -> tuple[int, bytes]:
        if tls:
            context = ssl.create_default_context(cafile=str(rig.ca_file))
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "localhost", server.port, timeout=10, context=context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path.replace("#user#", "1"), headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    return fetch
