"""Audit events of a day: requests of applications, and the rules' verdict on each."""

from __future__ import annotations

import json
import math
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import msgspec

from controlplane.search.known_event import Event
from controlplane.search.query import rfc3339_ms
from controlplane.store.interface import App, NewBatch, Org, Proxy, RateLimits
from controlplane.usage import uses_of
from proxy.policy.canonical import canonicalise
from proxy.policy.compile import CompiledRuleset
from proxy.policy.facts import RequestFacts
from proxy.wire.audit_event import rfc3339, uuid7
from tests.fakes.examples import examples

DAY_MS: Final = 86_400_000
NO_LIMIT: Final = RateLimits(org=1_000_000, proxy=1_000_000)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Typical requests of one application over a day, each with its weight."""

    org: str
    name: str
    ruleset: str
    share: float  # weight among all events
    network: str
    requests: Sequence[tuple[float, str, str]]
    nightly: bool = False


class TrafficMaker:
    """Maker of the audit events that the given rules would produce for random requests.

    Two event makers with equal random sources make equal events.
    """

    def __init__(self, now_ms: int, source: random.Random) -> None:
        self._now_ms = now_ms
        self._random = source
        self._plans: dict[str, CompiledRuleset] = {}
        self._versions: dict[str, int] = {}

    def use_ruleset(self, name: str, version: int, compiled: CompiledRuleset) -> None:
        """Use the given version of a ruleset for later requests of the ruleset's applications."""
        self._plans[name] = compiled
        self._versions[name] = version

    def moments(self, traffics: Sequence[Traffic], count: int) -> list[tuple[Traffic, int]]:
        """Return the sorted times of a day's requests, with more requests by day than by night."""
        found = []
        for traffic in self._random.choices(traffics, [each.share for each in traffics], k=count):
            while True:
                ago = self._random.random()
                hour = ((self._now_ms - ago * DAY_MS) % DAY_MS) / 3_600_000
                day = (
                    math.exp(-(((hour - 12.5) / 4.2) ** 2))
                    if not traffic.nightly
                    else 0.9 * (hour < 5 or hour > 21)
                )
                if self._random.random() < 0.07 + day:
                    break
            found.append((traffic, round(self._now_ms - 1000 - ago * (DAY_MS - 60_000))))
        return sorted(found, key=lambda each: each[1])

    def event(self, traffic: Traffic, app: App, proxy: Proxy, at_ms: int, seq: int) -> dict[str, Any]:
        """Return the audit event of one request of the application through the proxy."""
        method, target = self._request(traffic)
        path, _, query = target.partition("?")
        ip = f"{traffic.network}.{self._random.randrange(11, 19)}"
        outcome = self._outcome(traffic.ruleset, method, target, ip, at_ms)
        duration = self._random.lognormvariate(3.6, 0.6)
        blocked = outcome["verdict"] == "block" or outcome["status"] == 401
        identity = uuid7(at_ms, self._random.getrandbits(74))
        event = {
            "id": identity,
            "time": rfc3339(at_ms),
            "orgId": app.org_id,
            "proxyId": proxy.proxy_id,
            "appId": app.app_id,
            "clientId": app.client_id,
            "clientIp": ip,
            "requestId": uuid7(at_ms, self._random.getrandbits(74)),
            "clientRequestId": str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            "method": method,
            "path": path,
            "query": query or None,
            **outcome,
            "upstreamStatus": None if blocked else outcome["status"],
            "durationMs": round(1.1 + self._random.random() if blocked else duration, 2),
            "upstreamMs": None if blocked else round(duration * 0.93, 2),
            "requestBytes": self._random.randrange(400, 1400),
            "responseBytes": self._random.randrange(180, 300)
            if blocked
            else self._random.randrange(700, 60_000),
            "seq": seq,
            "rulesetVersion": self._versions[traffic.ruleset],
        }
        return {name: value for name, value in event.items() if value not in (None, ())}

    def _request(self, traffic: Traffic) -> tuple[str, str]:
        if self._random.random() < 0.02:
            return "POST", "/proxy/token"
        weights = [weight or 20 for weight, _, _ in traffic.requests]
        _, method, target = self._random.choices(traffic.requests, weights)[0]
        if target == "examples":
            example = self._random.choice(examples())
            method, target = example.method, example.target
        person = str(uuid.UUID(int=random.Random(self._random.randrange(60)).getrandbits(128), version=4))
        mail = f"AAMkAGVmMDEzM{self._random.randrange(10**6):06d}="
        filled = target.replace("{id}", person).replace("{mail}", mail)
        # Published examples have placeholders, which are replaced by an id.
        return method, re.sub(r"(%7B|\{).*?(%7D|\})", person, filled)

    def _outcome(self, ruleset: str, method: str, target: str, ip: str, at_ms: int) -> dict[str, Any]:
        """Return the outcome that the rules give to a request, or for a few requests an upstream error."""
        if target == "/proxy/token":
            refused = self._random.random() < 0.06
            return {
                "status": 401 if refused else 200,
                "verdict": "block" if refused else "allow",
                "reason": "tokenRefused" if refused else "tokenIssued",
            }
        facts = RequestFacts(
            method, canonicalise(quote(target, safe="/?#[]@!$&'()*+,;=:%~")), (), ip, at_ms / 1000
        )
        decision = self._plans[ruleset].plan(method, facts.target).decide(facts)
        status, reason = (
            (201 if method == "POST" else 204 if method in ("PATCH", "DELETE") else 200),
            decision.reason,
        )
        luck = self._random.random()
        if decision.verdict == "block":
            status = 403
        elif luck < 0.006:
            status, reason = 504, "upstreamTimeout"
        elif luck < 0.02:
            status = 429
        elif luck < 0.045:
            status = 404
        return {
            "status": status,
            "verdict": decision.verdict,
            "ruleId": decision.rule_id,
            "loggedRuleIds": tuple(decision.logged_rule_ids),
            "ruleIds": decision.rule_ids,
            "transforms": decision.transforms.names if status == 200 and decision.transforms else (),
            "reason": reason,
        }


def batch(proxy: Proxy, org: Org, events: Sequence[Mapping[str, Any]]) -> NewBatch:
    """Return the events as a batch that the store accepts."""
    times = [rfc3339_ms(event["time"]) or 0 for event in events]
    bodies = [json.dumps(event, separators=(",", ":")).encode() for event in events]
    known = msgspec.json.decode(b"[" + b",".join(bodies) + b"]", type=list[Event])
    return NewBatch(
        proxy.proxy_id,
        org.org_id,
        str(uuid.uuid4()),
        [event["id"] for event in events],
        [event["seq"] for event in events],
        times,
        bodies,
        uses=uses_of(known, times, max(times)),
    )
