"""Benchmark jobs that measure processor time per request, and the servers that they compare."""

from __future__ import annotations

from bench import proofs
from bench.cost import Pace, Peer, cost_table, measure
from bench.graphward import ALLOW, STRIP
from bench.load import LIST_PATH, ONE_PATH, request_loader
from bench.report import Table
from bench.rig import Rig
from bench.tools import ROOT
from proxy.supervisor.supervisor import form_of_data_path


def pass_through(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, ONE_PATH)
    peers = [
        Peer("relay", rig.relay, load),
        Peer("haproxy", rig.haproxy, load),
        Peer("nginx", rig.nginx, load),
        Peer("envoy", rig.envoy, load),
        Peer("aiohttp", rig.aiohttp, load),
    ]
    missing = measure(peers, pace, proofs.one_user(rig))
    return cost_table("J1", "forwarding of a 1.1 KB response, without evaluation", peers, "relay", missing)


def evaluated(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, ONE_PATH)
    peers = [
        Peer("relay", rig.relay, load),
        Peer("haproxy", rig.haproxy_evaluating, load),
        Peer("nginx", rig.nginx_evaluating, load),
        Peer("envoy", lambda: rig.envoy(evaluating=True), load),
        Peer("aiohttp", lambda: rig.aiohttp(evaluating=True), load),
        Peer("graphward", lambda: rig.graphward(rules=ALLOW), load),
    ]
    if form_of_data_path() == "compiled":
        sources = {"PYTHONPATH": str(ROOT)}
        peers.append(Peer("interpreted", lambda: rig.graphward(rules=ALLOW, environment=sources), load))
    missing = measure(peers, pace, proofs.one_user(rig, evaluating=True))
    title = "token checked, one path rule, credential swapped, a record of each request"
    notes = [
        "The server `relay` only forwards requests, so its figure is the minimum cost of a Python proxy.",
        "The server `interpreted` is Graphward as interpreted Python sources, without `./dev compile`.",
    ]
    return cost_table("J2", title, peers, "graphward", missing, notes)


def long_list(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, LIST_PATH)
    peers = [
        Peer("nginx", rig.nginx, load),
        Peer("envoy", rig.envoy, load),
        Peer("aiohttp", rig.aiohttp, load),
        Peer("graphward", lambda: rig.graphward(rules=ALLOW), load),
    ]
    missing = measure(peers, pace, proofs.the_list(rig))
    notes = [
        (
            "nginx, envoy and aiohttp forward without evaluation. graphward also checks the token, evaluates "
            "a path rule, replaces the credential and records the request (job J2)."
        )
    ]
    return cost_table("J3", "forwarding of a list of 100 users, 88 KB", peers, "graphward", missing, notes)


def stripped(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, LIST_PATH)
    peers = [
        Peer("nginx", rig.nginx_stripping, load),
        Peer("aiohttp", lambda: rig.aiohttp(stripping=True), load),
        Peer("graphward", lambda: rig.graphward(rules=STRIP), load),
    ]
    missing = measure(peers, pace, proofs.stripping(rig))
    notes = [
        (
            "nginx (lua-cjson) and aiohttp (orjson) encode the JSON again, change numbers, and do not "
            "evaluate requests."
        ),
        (
            "graphward removes the properties and changes no other byte. graphward also checks the token, "
            "evaluates a path rule, replaces the credential and records the request (job J2)."
        ),
    ]
    title = "three properties removed from each of 100 users, 88 KB"
    return cost_table("J4", title, peers, "graphward", missing, notes)


def both_sides_tls(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, ONE_PATH, tls=True)
    peers = [
        Peer("haproxy", lambda: rig.haproxy_evaluating(tls=True), load),
        Peer("nginx", lambda: rig.nginx_evaluating(tls=True), load),
        Peer("graphward", lambda: rig.graphward(rules=ALLOW, tls=True), load),
    ]
    missing = measure(peers, pace, proofs.one_user(rig, evaluating=True))
    return cost_table("TLS", "J2 with TLS to both sides", peers, "graphward", missing)


def two_workers(rig: Rig, pace: Pace) -> Table:
    load = request_loader(rig.run, rig.token, ONE_PATH)
    peers = [
        Peer("one worker", lambda: rig.graphward(rules=ALLOW), load),
        Peer("two workers", lambda: rig.graphward(rules=ALLOW, workers=2), load),
    ]
    missing = measure(peers, pace, proofs.one_user(rig, evaluating=True))
    notes = ["In the job WORKERS, all workers share one core, so that the load can use the other core."]
    return cost_table("WORKERS", "J2 by one worker and by two", peers, "two workers", missing, notes)
