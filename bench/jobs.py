"""The jobs whose figure is processor time per request: who does them, and how each proves that it does."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable

from bench.cost import Pace, Peer, cost_table, measure
from bench.graphward import ALLOW, STRIP
from bench.load import LIST_PATH, ONE_PATH, Client, Loader, best_client, head
from bench.report import Table
from bench.rig import Rig
from bench.samples import ONE_USER, USERS
from bench.servers import Server, ServerFailed

STRIPPED = ("mobilePhone", "businessPhones", "otherMails")


def pass_through(rig: Rig, pace: Pace) -> Table:
    load = loader(rig, ONE_PATH)
    peers = [
        Peer("relay", rig.relay, load),
        Peer("haproxy", rig.haproxy, load),
        Peer("nginx", rig.nginx, load),
        Peer("envoy", rig.envoy, load),
        Peer("aiohttp", rig.aiohttp, load),
    ]
    missing = measure(peers, pace, proves_one(rig))
    return cost_table("J1", "pass-through of a 1.1 KB answer, nothing judged", peers, "relay", missing)


def judged(rig: Rig, pace: Pace) -> Table:
    load = loader(rig, ONE_PATH)
    peers = [
        Peer("relay", rig.relay, load),
        Peer("haproxy", rig.haproxy_judging, load),
        Peer("nginx", rig.nginx_judging, load),
        Peer("envoy", lambda: rig.envoy(judging=True), load),
        Peer("aiohttp", lambda: rig.aiohttp(judging=True), load),
        Peer("graphward", lambda: rig.graphward(rules=ALLOW), load),
    ]
    missing = measure(peers, pace, proves_one(rig, judging=True))
    title = "token checked, one path rule, credential swapped, a record of each request"
    notes = ["relay judges nothing and is here as the floor of Python."]
    return cost_table("J2", title, peers, "graphward", missing, notes)


def long_list(rig: Rig, pace: Pace) -> Table:
    load = loader(rig, LIST_PATH)
    peers = [
        Peer("nginx", rig.nginx, load),
        Peer("envoy", rig.envoy, load),
        Peer("aiohttp", rig.aiohttp, load),
        Peer("graphward", lambda: rig.graphward(rules=ALLOW), load),
    ]
    missing = measure(peers, pace, _proves(rig, LIST_PATH, USERS))
    notes = ["The others pass through and judge nothing; graphward does all of J2."]
    return cost_table("J3", "pass-through of a list of 100 users, 88 KB", peers, "graphward", missing, notes)


def stripped(rig: Rig, pace: Pace) -> Table:
    load = loader(rig, LIST_PATH)
    peers = [
        Peer("nginx", rig.nginx_stripping, load),
        Peer("aiohttp", lambda: rig.aiohttp(stripping=True), load),
        Peer("graphward", lambda: rig.graphward(rules=STRIP), load),
    ]
    missing = measure(peers, pace, _proves_stripping(rig))
    notes = [
        "nginx (lua-cjson) and aiohttp (orjson) write the JSON anew, numbers changed, and judge nothing.",
        "graphward keeps every other byte and does all of J2.",
    ]
    title = "three properties taken out of each of 100 users, 88 KB"
    return cost_table("J4", title, peers, "graphward", missing, notes)


def both_sides_tls(rig: Rig, pace: Pace) -> Table:
    load = loader(rig, ONE_PATH, tls=True)
    peers = [
        Peer("haproxy", lambda: rig.haproxy_judging(tls=True), load),
        Peer("nginx", lambda: rig.nginx_judging(tls=True), load),
        Peer("graphward", lambda: rig.graphward(rules=ALLOW, tls=True), load),
    ]
    missing = measure(peers, pace, proves_one(rig, judging=True))
    return cost_table("TLS", "J2 with TLS to both sides", peers, "graphward", missing)


def two_workers(rig: Rig, pace: Pace) -> Table:
    load = loader(rig, ONE_PATH)
    peers = [
        Peer("one worker", lambda: rig.graphward(rules=ALLOW), load),
        Peer("two workers", lambda: rig.graphward(rules=ALLOW, workers=2), load),
    ]
    missing = measure(peers, pace, proves_one(rig, judging=True))
    notes = ["All workers share one core here, so that the load can have the other."]
    return cost_table("WORKERS", "J2 by one worker and by two", peers, "two workers", missing, notes)


# What a server has to prove before it is measured


def loader(rig: Rig, path: str, *, tls: bool = False, client: Client = best_client) -> Loader:
    """Asks for this path again and again."""
    file = rig.run / ("list.head" if path == LIST_PATH else "one.head")
    file.write_bytes(head(path, rig.token))
    return Loader(file, tls=tls, client=client)


Proof = Callable[[Server, Peer], None]


def proves_one(rig: Rig, *, judging: bool = False) -> Proof:
    return _proves(rig, ONE_PATH, ONE_USER, judging=judging)


def _proves(rig: Rig, path: str, body: bytes, *, judging: bool = False) -> Proof:
    def check(server: Server, peer: Peer) -> None:
        fetch = _fetcher(rig, server, tls=peer.loader.tls)
        _expect(server, "passes the answer on", fetch(path, rig.token) == (200, body))
        if judging and peer.name != "relay":
            _expect(server, "refuses a damaged token", fetch(path, rig.token[:-4] + "AAAA")[0] == 401)
            _expect(server, "refuses a request without a token", fetch(path, None)[0] == 401)
            _expect(server, "refuses what no rule allows", fetch("/v1.0/groups", rig.token)[0] == 403)

    return check


def _proves_stripping(rig: Rig) -> Proof:
    wanted = json.loads(USERS)
    for item in wanted["value"]:
        for name in STRIPPED:
            del item[name]

    def check(server: Server, peer: Peer) -> None:
        status, body = _fetcher(rig, server, tls=False)(LIST_PATH, rig.token)
        _expect(server, "takes the properties out", status == 200 and json.loads(body) == wanted)

    return check


def _expect(server: Server, what: str, holds: bool) -> None:
    if not holds:
        raise ServerFailed(f"{server.name} can't be measured, it does not do this: {what} (see {server.log})")


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
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    return fetch
